//! The table of who may read what ([`Access`]) as a hit looks at it: a load and a shift, without a lock, a count of references or
//! an allocation.

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
    /// The labels of origins that are mounted, which who is of the cluster may read.
    mounted: Bits,
    /// Those that everybody may read.
    open: Bits,
    /// Whether some clients may read more than that.
    has_lists: AtomicBool,
    /// Whether what has no label is shown to nobody.
    is_guarded: AtomicBool,
}

impl FastAccess {
    /// As the table says from now on. Two callers must not be here at once.
    pub(crate) fn set(&self, access: &Access, is_guarded: bool) {
        // The rest of it changes while nobody is let in by this one.
        self.all_below.store(0, Ordering::SeqCst);
        for (word, bits) in (0..).zip(self.mounted.iter().zip(&self.open)) {
            bits.0.store(access.mounted().word(word), Ordering::Release);
            bits.1.store(access.open().word(word), Ordering::Release);
        }
        self.has_lists.store(access.has_lists(), Ordering::Release);
        self.is_guarded.store(is_guarded, Ordering::Release);
        let first = (0..).find(|label| !access.open().contains(*label));
        self.all_below.store(first.unwrap_or(0), Ordering::SeqCst);
    }

    /// Whether what has this label may be shown to `caller`. `None`: the table has to be asked.
    #[inline]
    pub(crate) fn shows(&self, caller: &Caller, label: Option<u32>) -> Option<bool> {
        if label.is_some_and(|label| label < self.all_below.load(Ordering::Acquire)) {
            return Some(true);
        }
        self.shows_some(caller, label)
    }

    fn shows_some(&self, caller: &Caller, label: Option<u32>) -> Option<bool> {
        let Some(label) = label else { return Some(!self.is_guarded.load(Ordering::Acquire)) };
        let bits = match caller {
            caller if caller.is_of_cluster() => &self.mounted,
            Caller::Proved(_) if self.has_lists.load(Ordering::Acquire) => return None,
            _ => &self.open,
        };
        let word = bits.get((label / u64::BITS) as usize)?.load(Ordering::Acquire);
        Some((word >> (label % u64::BITS)) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_origin::{FakeOrigin, Origin};
    use forebay_types::{AccessList, FsPath, Role};

    use super::*;
    use crate::namespace::Namespace;

    #[test]
    fn it_says_what_the_table_says_or_nothing() {
        let most = 300_u32;
        let path = |number: u32| FsPath::new(format!("/m{number}")).unwrap();
        let origin = |number: u32| Arc::new(FakeOrigin::new(format!("fake://{number}"))) as Arc<dyn Origin>;
        let namespace = || Namespace::new((0..most).map(|number| (path(number), origin(number)))).unwrap();
        let list = || AccessList::new(&["team-a"], &[]).unwrap();
        let open = Access::of(&namespace(), &Access::default());
        let some =
            Access::of(&namespace().with_access((0..most).step_by(3).map(|number| (path(number), list()))), &open);
        let none = Access::of(&Namespace::new([]).unwrap(), &some);
        let of = |role, name: &str| Caller::proved(role, name, name);
        let (fast, mut asked) = (FastAccess::default(), 0);
        for (generation, (access, is_guarded)) in
            (0..).zip([(&open, false), (&some, true), (&none, false), (&open, true)])
        {
            fast.set(access, is_guarded);
            for caller in [Caller::Unproved, Caller::Local, of(Role::Reader, "team-a"), of(Role::Admin, "root")] {
                assert_eq!(fast.shows(&caller, None), Some(!is_guarded));
                for label in 0..most {
                    match fast.shows(&caller, Some(label)) {
                        Some(shown) => {
                            assert_eq!(shown, access.may_read(&caller, label, generation), "{caller} {label}")
                        }
                        None => asked += 1,
                    }
                }
            }
        }
        let beyond = most - WORDS as u32 * u64::BITS;
        // Where not everything is open: what is beyond, and more of it when the client on the lists asks.
        assert!((2 * 4 * beyond..=2 * 4 * beyond + most - beyond).contains(&asked), "{asked}");
    }
}
