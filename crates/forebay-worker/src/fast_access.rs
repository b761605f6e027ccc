//! The table of who may read what ([`Access`]) as a hit looks at it: a load and a bit, without a lock, a count of
//! references or an allocation.
//!
//! What everybody may read, or nobody, is in here. What somebody may read who has proved who it is, the caller carries
//! along, for one epoch of the table.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use forebay_transport::Caller;

use crate::access::Access;

/// Words of bits: more origins than a namespace has in practice. For those beyond, the table is asked.
const WORDS: usize = 4;

type Bits = [AtomicU64; WORDS];

/// What the table says of most callers and origins.
#[derive(Default)]
pub(crate) struct FastAccess {
    /// Everybody may read what has a label below this one: in most clusters, all that is mounted.
    all_below: AtomicU32,
    /// The table's epoch.
    epoch: AtomicU32,
    /// The labels of origins that are mounted, which this process may read.
    mounted: Bits,
    /// Those that everybody may read.
    open: Bits,
    /// Whether what has no label is shown to nobody.
    is_guarded: AtomicBool,
}

impl FastAccess {
    /// As the table says from now on, which is the current one already. Two callers must not be here at once.
    pub(crate) fn set(&self, access: &Access, is_guarded: bool) {
        // The rest of it changes while nobody is let in by this one.
        self.all_below.store(0, Ordering::SeqCst);
        for (word, bits) in (0..).zip(self.mounted.iter().zip(&self.open)) {
            bits.0.store(access.mounted().word(word), Ordering::Release);
            bits.1.store(access.open().word(word), Ordering::Release);
        }
        self.is_guarded.store(is_guarded, Ordering::Release);
        // Takes back what callers remember. Who sees it, and asks the table, asks this one or a later one.
        self.epoch.store(access.epoch(), Ordering::Release);
        let first = (0..).find(|label| !access.open().contains(*label));
        self.all_below.store(first.unwrap_or(0), Ordering::SeqCst);
    }

    /// Whether what has this label may be shown to `caller`. `None`: the table has to be asked.
    #[inline]
    pub(crate) fn shows(&self, caller: &Caller, label: Option<u32>) -> Option<bool> {
        let Some(label) = label else { return Some(!self.is_guarded.load(Ordering::Acquire)) };
        if label < self.all_below.load(Ordering::Acquire) {
            return Some(true);
        }
        match caller {
            Caller::Proved(caller) => caller.may_read(label, self.epoch.load(Ordering::Acquire)),
            Caller::Local => bit(&self.mounted, label),
            Caller::Unproved => bit(&self.open, label),
        }
    }
}

fn bit(bits: &Bits, label: u32) -> Option<bool> {
    let word = bits.get((label / u64::BITS) as usize)?.load(Ordering::Acquire);
    Some((word >> (label % u64::BITS)) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use forebay_origin::{FakeOrigin, Origin};
    use forebay_types::{AccessList, FsPath, Role};
    use proptest::prelude::*;

    use super::*;
    use crate::namespace::Namespace;

    /// Origins, each with a label.
    const ORIGINS: u32 = 300;
    /// Labels below this one need no look at the table, once it was asked about one nearby.
    const FAST: u32 = WORDS as u32 * u64::BITS;
    /// What is asked of the table at once.
    const AT_ONCE: u32 = 32;
    const LISTS: &[&[&str]] = &[&[], &["team-a"], &["team-*"], &["team-b", "batch"], &["*"]];

    /// The mounts by their numbers, each with the names on its list, if it has one. Two lead to each origin.
    type Mounts = BTreeMap<u32, Option<&'static [&'static str]>>;

    fn url(mount: u32) -> String {
        format!("fake://{}", mount % ORIGINS)
    }

    fn namespace(mounts: &Mounts) -> Namespace {
        let path = |mount: u32| FsPath::new(format!("/m{mount}")).unwrap();
        let origin = |mount: u32| Arc::new(FakeOrigin::new(url(mount))) as Arc<dyn Origin>;
        let list = |names: &[&str]| AccessList::new(names, &[]).unwrap();
        let lists = mounts.iter().filter_map(|(mount, names)| Some((path(*mount), list((*names)?))));
        Namespace::new(mounts.keys().map(|mount| (path(*mount), origin(*mount)))).unwrap().with_access(lists)
    }

    fn all_open() -> Mounts {
        (0..ORIGINS).map(|mount| (mount, None)).collect()
    }

    fn callers() -> [Caller; 6] {
        let of = |role, name: &str| Caller::proved(role, name, name);
        let (reader, other, writer) =
            (of(Role::Reader, "team-a"), of(Role::Reader, "batch"), of(Role::Writer, "team-b"));
        [Caller::Unproved, Caller::Local, reader, other, writer, of(Role::Admin, "root")]
    }

    /// Whether the mounts let a caller read an origin.
    fn lets_read(mounts: &Mounts, caller: &Caller, origin: u32) -> bool {
        let mut leading = [origin, origin + ORIGINS].into_iter().filter_map(|mount| mounts.get(&mount).copied());
        leading.any(|names| match (names, caller) {
            (None, _) => true,
            (Some(names), Caller::Proved(proved)) if !caller.is_of_cluster() => {
                AccessList::new(names, &[]).unwrap().may_read(proved.name())
            }
            (Some(_), caller) => caller.is_of_cluster(),
        })
    }

    /// All mounts or none, but for some.
    fn any_mounts() -> impl Strategy<Value = Mounts> {
        let names = prop::option::of(prop::sample::select(LISTS));
        (any::<bool>(), prop::collection::btree_map(0..2 * ORIGINS, names, 0..40)).prop_map(|(all, some)| {
            let mut mounts = if all { all_open() } else { Mounts::new() };
            mounts.extend(some);
            mounts
        })
    }

    #[test]
    fn it_says_what_the_table_says_or_nothing() {
        let open = Access::of(&namespace(&all_open()), &Access::default());
        let third_listed: Mounts =
            (0..ORIGINS).map(|mount| (mount, mount.is_multiple_of(3).then_some(LISTS[1]))).collect();
        let some = Access::of(&namespace(&third_listed), &open);
        let none = Access::of(&namespace(&Mounts::new()), &some);
        let (fast, mut asked) = (FastAccess::default(), 0);
        for (access, is_guarded) in [(&open, false), (&some, true), (&none, false), (&open, true)] {
            fast.set(access, is_guarded);
            for caller in callers() {
                assert_eq!(fast.shows(&caller, None), Some(!is_guarded));
                for label in 0..ORIGINS {
                    let shown = fast.shows(&caller, Some(label));
                    asked += u32::from(shown.is_none());
                    let may_read = access.may_read(&caller, label);
                    assert_eq!(shown.unwrap_or(may_read), may_read, "{caller} {label}");
                }
            }
        }
        // Where not everything is open: what is beyond, and for the four who have proved who they are, some at once.
        let beyond = 6 * (ORIGINS - FAST);
        assert!((2 * beyond..=2 * (beyond + 4 * FAST / AT_ONCE)).contains(&asked), "{asked}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// Mounts come and go and their lists change, while callers keep what they remember.
        #[test]
        fn it_says_of_each_caller_what_the_mounts_say_whatever_they_said_before(
            steps in prop::collection::vec(any_mounts(), 1..5)
        ) {
            let (fast, callers) = (FastAccess::default(), callers());
            let mut access = Access::of(&namespace(&all_open()), &Access::default());
            for mounts in steps {
                access = Access::of(&namespace(&mounts), &access);
                fast.set(&access, false);
                let each_origin = |caller| (0..ORIGINS).map(move |origin| (caller, origin));
                for (caller, origin) in callers.iter().flat_map(each_origin) {
                    let label = access.label(&url(origin)).expect("all origins were mounted");
                    let may_read = lets_read(&mounts, caller, origin);
                    let shown = fast.shows(caller, Some(label));
                    prop_assert!(shown.is_none_or(|shown| shown == may_read), "{caller} {origin} {shown:?}");
                    prop_assert_eq!(access.lets_read(caller, label), may_read);
                    prop_assert_eq!(access.may_read(caller, label), may_read);
                    let again = fast.shows(caller, Some(label));
                    prop_assert!(again == Some(may_read) || (again.is_none() && label >= FAST), "{caller} {origin}");
                }
            }
        }
    }
}
