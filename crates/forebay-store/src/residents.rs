//! The copies that a tier holds, in eviction order and by frame.
//!
//! Three questions are answered: which copy goes next, which frame is emptied with the least loss, and which copy goes
//! when an account is over its quota. There is one SIEVE for each priority, and the lower one is emptied before the next
//! is touched; pinned copies stand apart, where no hand comes by. A copy that counts against an account stands in a SIEVE
//! of that account too. Only publishing and evicting take the lock; hits set a flag in the copy itself.
//!
//! Pins are bounded by frames, not by bytes: one small pinned copy keeps its whole frame from being emptied. So a copy is
//! pinned only if its frame has a pin already, or if fewer than the allowed number of frames have one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::place::{GOING, Place, RANKS, Rank, Standing};
use crate::run::Held;
use crate::sieve::{Sieve, Verdict};
use crate::sync::Mutex;
use crate::{Account, Eviction, Keep};

/// The copies of one tier: all memory, or one disk.
#[derive(Debug)]
pub(crate) struct Residents<T> {
    order: Mutex<Order<T>>,
}

#[derive(Debug)]
struct Order<T> {
    queues: [Sieve<Arc<T>>; RANKS],
    accounts: HashMap<Account, Ledger<T>>,
    frames: HashMap<u32, Frame<T>>,
    /// The same frames, those whose highest rank is lowest first, and of those the ones with the least used bytes.
    by_use: BTreeSet<(Rank, u64, u32)>,
    run_bytes: u64,
    pinned_bytes: u64,
    pinned_frames: u32,
    most_pinned_frames: u32,
}

/// What counts against one account.
#[derive(Debug)]
struct Ledger<T> {
    /// Its copies that may go, by rank.
    queues: [Sieve<Arc<T>>; GOING.len()],
    use_of: AccountUse,
    copies: u64,
}

/// How many bytes of a tier count against an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccountUse {
    pub(crate) bytes: u64,
    /// Those of them that are pinned.
    pub(crate) pinned: u64,
}

#[derive(Debug)]
struct Frame<T> {
    /// Bytes in the extents of its copies.
    used: u64,
    copies: Vec<Arc<T>>,
    /// How many of the copies have which rank.
    ranks: [u32; RANKS],
}

/// How many copies a tier holds, and how many bytes of runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) runs: u64,
    pub(crate) bytes: u64,
    pub(crate) pinned_bytes: u64,
}

/// On what terms a copy is taken in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    pub(crate) keep: Keep,
    /// It need not be pinned, whatever `keep` says: another tier has it pinned.
    pub(crate) is_pinned_elsewhere: bool,
    /// Bytes that its account may have in this tier, with it.
    pub(crate) quota: Option<u64>,
}

/// How many frames of a tier may have pins: three quarters, and never the last two, so that whatever is pinned a fill of a
/// whole block and a read of another find a frame that can be emptied.
fn most_pinned_frames(frames: u64) -> u32 {
    u32::try_from((frames / 4 * 3 + frames % 4 * 3 / 4).min(frames.saturating_sub(2))).unwrap_or(u32::MAX)
}

impl<T: Held> Residents<T> {
    /// None yet, in a tier of so many frames.
    pub(crate) fn new(frames: u64) -> Self {
        Self {
            order: Mutex::new(Order {
                queues: std::array::from_fn(|_| Sieve::new()),
                accounts: HashMap::new(),
                frames: HashMap::new(),
                by_use: BTreeSet::new(),
                run_bytes: 0,
                pinned_bytes: 0,
                pinned_frames: 0,
                most_pinned_frames: most_pinned_frames(frames),
            }),
        }
    }

    /// Adds a copy, as the newest, in the place of `replaced`, and takes out those that its account must give up for it.
    /// `None` when the account has no room for it even so; nothing has changed then.
    pub(crate) fn insert(&self, copy: &Arc<T>, terms: Terms, replaced: &[Arc<T>]) -> Option<Vec<Arc<T>>> {
        let mut order = self.order.lock();
        let mut room = u64::MAX;
        if let (Some(account), Some(quota)) = (terms.keep.account, terms.quota) {
            let pinned = order.accounts.get(&account).map_or(0, |ledger| ledger.use_of.pinned);
            let of_account = |copy: &&Arc<T>| {
                let place = copy.marks().place.lock();
                place.is_pinned() && place.keep.account == Some(account)
            };
            let unpinned = replaced.iter().filter(of_account).map(|copy| u64::from(copy.run().byte_len)).sum();
            room = quota.checked_sub(u64::from(copy.run().byte_len))?;
            if pinned.saturating_sub(unpinned) > room {
                return None;
            }
        }
        for old in replaced {
            order.take(old);
        }
        let give_up = || order.evict_of(terms.keep.account?, room);
        let gone = std::iter::from_fn(give_up).collect();
        order.put(copy, terms.keep, terms.is_pinned_elsewhere);
        Some(gone)
    }

    /// Takes out a copy that was inserted; no effect when it has left already.
    pub(crate) fn remove(&self, copy: &Arc<T>) {
        self.order.lock().take(copy);
    }

    /// Keeps a copy on other terms from now on; no effect when it has left already.
    pub(crate) fn reclass(&self, copy: &Arc<T>, keep: Keep, is_pinned_elsewhere: bool) {
        let mut order = self.order.lock();
        if order.take(copy) {
            order.put(copy, keep, is_pinned_elsewhere);
        }
    }

    /// Takes out the copy that goes next, in order of `eviction`; `may_go` can refuse one for now.
    pub(crate) fn evict(&self, eviction: Eviction, may_go: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut order = self.order.lock();
        let victim = GOING.iter().find_map(|rank| {
            order.queues[*rank as usize].evict(|copy| {
                if !may_go(copy) {
                    Verdict::Skip
                } else if eviction == Eviction::Sieve && copy.marks().take_visited() {
                    Verdict::Spare
                } else {
                    Verdict::Evict
                }
            })
        })?;
        order.take(&victim);
        Some(victim)
    }

    /// Takes out the copy that an account gives up next; `None` when it has no more than `quota` bytes, or only pinned ones.
    pub(crate) fn evict_of(&self, account: Account, quota: u64) -> Option<Arc<T>> {
        self.order.lock().evict_of(account, quota)
    }

    /// Takes out all copies of one frame: of those frames whose copies all `may_go` one without copies of a higher rank than
    /// others have, and of those the one with the least used bytes. Empty when there is none; never one with a pin.
    pub(crate) fn evict_frame(&self, may_go: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut order = self.order.lock();
        let order = &mut *order;
        let frame_may_go =
            |number: &u32| order.frames.get(number).is_none_or(|frame| frame.copies.iter().all(|copy| may_go(copy)));
        let mut going = order.by_use.iter().take_while(|(rank, ..)| *rank < Rank::Pinned);
        let Some((_, _, number)) = going.find(|(_, _, number)| frame_may_go(number)).copied() else {
            return Vec::new();
        };
        let victims = order.frames.get(&number).map(|frame| frame.copies.clone()).unwrap_or_default();
        for victim in &victims {
            order.take(victim);
        }
        victims
    }

    /// Up to `most` of the copies that are pinned, the oldest first.
    pub(crate) fn pinned(&self, most: usize) -> Vec<Arc<T>> {
        self.order.lock().queues[Rank::Pinned as usize].iter().take(most).cloned().collect()
    }

    pub(crate) fn holding(&self) -> Holding {
        let order = self.order.lock();
        let runs = order.queues.iter().map(|queue| queue.len() as u64).sum();
        Holding { runs, bytes: order.run_bytes, pinned_bytes: order.pinned_bytes }
    }

    /// What counts against an account.
    pub(crate) fn use_of(&self, account: Account) -> AccountUse {
        self.order.lock().accounts.get(&account).map(|ledger| ledger.use_of).unwrap_or_default()
    }
}

impl<T: Held> Order<T> {
    fn evict_of(&mut self, account: Account, quota: u64) -> Option<Arc<T>> {
        let ledger = self.accounts.get_mut(&account).filter(|ledger| ledger.use_of.bytes > quota)?;
        let victim = ledger.queues.iter_mut().find_map(|queue| {
            queue.evict(|copy| if copy.marks().take_visited() { Verdict::Spare } else { Verdict::Evict })
        })?;
        self.take(&victim);
        Some(victim)
    }

    /// Lets a copy stand where it belongs.
    fn put(&mut self, copy: &Arc<T>, keep: Keep, is_pinned_elsewhere: bool) {
        let (number, length) = (copy.frame(), u64::from(copy.run().byte_len));
        let frame = self.frames.entry(number).or_insert_with(Frame::new);
        let has_pins = frame.ranks[Rank::Pinned as usize] > 0;
        let is_pinned =
            keep.pinned && !is_pinned_elsewhere && (has_pins || self.pinned_frames < self.most_pinned_frames);
        let rank = if is_pinned { Rank::Pinned } else { keep.priority.into() };
        if let Some(before) = frame.rank() {
            self.by_use.remove(&(before, frame.used, number));
        }
        frame.used += copy.extent_size();
        frame.ranks[rank as usize] += 1;
        frame.copies.push(Arc::clone(copy));
        self.by_use.insert((frame.rank().unwrap_or(rank), frame.used, number));
        self.run_bytes += length;
        if is_pinned {
            self.pinned_bytes += length;
            self.pinned_frames += u32::from(!has_pins);
        }
        let token = self.queues[rank as usize].insert(Arc::clone(copy));
        let of_account = keep.account.and_then(|account| {
            let ledger = self.accounts.entry(account).or_insert_with(Ledger::new);
            ledger.copies += 1;
            ledger.use_of.bytes += length;
            ledger.use_of.pinned += if is_pinned { length } else { 0 };
            ledger.queues.get_mut(rank as usize).map(|queue| queue.insert(Arc::clone(copy)))
        });
        *copy.marks().place.lock() = Place { keep, standing: Some(Standing { rank, token, of_account }) };
    }

    /// Lets a copy stand nowhere; whether it stood. The queue that it was evicted from may have let it go already.
    fn take(&mut self, copy: &Arc<T>) -> bool {
        let (keep, standing) = {
            let mut place = copy.marks().place.lock();
            (place.keep, place.standing.take())
        };
        let Some(Standing { rank, token, of_account }) = standing else { return false };
        let (number, length) = (copy.frame(), u64::from(copy.run().byte_len));
        self.queues[rank as usize].remove(token);
        self.run_bytes -= length;
        if let Some(account) = keep.account
            && let Some(ledger) = self.accounts.get_mut(&account)
        {
            if let (Some(queue), Some(token)) = (ledger.queues.get_mut(rank as usize), of_account) {
                queue.remove(token);
            }
            ledger.copies -= 1;
            ledger.use_of.bytes -= length;
            ledger.use_of.pinned -= if rank == Rank::Pinned { length } else { 0 };
            if ledger.copies == 0 {
                self.accounts.remove(&account);
            }
        }
        let Some(frame) = self.frames.get_mut(&number) else { return true };
        if let Some(before) = frame.rank() {
            self.by_use.remove(&(before, frame.used, number));
        }
        frame.used -= copy.extent_size();
        frame.ranks[rank as usize] -= 1;
        frame.copies.retain(|other| !Arc::ptr_eq(other, copy));
        if rank == Rank::Pinned {
            self.pinned_bytes -= length;
            self.pinned_frames -= u32::from(frame.ranks[rank as usize] == 0);
        }
        match frame.rank() {
            Some(rank) => _ = self.by_use.insert((rank, frame.used, number)),
            None => _ = self.frames.remove(&number),
        }
        true
    }
}

impl<T> Ledger<T> {
    fn new() -> Self {
        Self { queues: std::array::from_fn(|_| Sieve::new()), use_of: AccountUse::default(), copies: 0 }
    }
}

impl<T> Frame<T> {
    fn new() -> Self {
        Self { used: 0, copies: Vec::new(), ranks: [0; RANKS] }
    }

    /// The highest rank of its copies; `None` when it has none.
    fn rank(&self) -> Option<Rank> {
        let ranks = [Rank::Pinned, Rank::High, Rank::Normal, Rank::Low];
        ranks.into_iter().find(|rank| self.ranks[*rank as usize] > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Marks, Run};
    use forebay_types::{BlockKey, FileId, Priority, SectorRange};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[derive(Debug)]
    struct Fake {
        run: Run,
        frame: u32,
        has_readers: bool,
        was_reclassed: AtomicBool,
        marks: Marks,
    }

    impl Held for Fake {
        fn run(&self) -> &Run {
            &self.run
        }

        fn frame(&self) -> u32 {
            self.frame
        }

        fn extent_size(&self) -> u64 {
            u64::from(self.run.byte_len)
        }

        fn marks(&self) -> &Marks {
            &self.marks
        }
    }

    impl Fake {
        fn rank(&self) -> Rank {
            let place = self.marks.place.lock();
            if place.is_pinned() { Rank::Pinned } else { place.keep.priority.into() }
        }
    }

    fn copy(frame: u32, length: usize, has_readers: bool) -> Arc<Fake> {
        let key = BlockKey { file: FileId([0; 16]), index: 0 };
        let run = Run::of(key, SectorRange { start: 0, end: 1 }, &vec![0; length]);
        Arc::new(Fake { run, frame, has_readers, was_reclassed: AtomicBool::new(false), marks: Marks::default() })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { frame: u32, length: usize, has_readers: bool, keep: Keep, replaces: Option<prop::sample::Index> },
        Reclass { pick: prop::sample::Index, keep: Keep },
        Remove(prop::sample::Index),
        Evict,
        EvictFrame,
        EvictOf(u8),
    }

    const QUOTA: u64 = 100;

    fn account(number: u8) -> Account {
        Account::of(&[number])
    }

    fn keeps() -> impl Strategy<Value = Keep> {
        let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)];
        (priority, prop::bool::weighted(0.2), prop::option::of(0u8..2)).prop_map(|(priority, pinned, number)| Keep {
            priority,
            pinned,
            account: number.map(account),
        })
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => (
                0u32..6,
                1usize..50,
                prop::bool::weighted(0.2),
                keeps(),
                prop::option::weighted(0.3, any::<prop::sample::Index>()),
            )
                .prop_map(|(frame, length, has_readers, keep, replaces)| {
                    Step::Insert { frame, length, has_readers, keep, replaces }
                }),
            1 => (any::<prop::sample::Index>(), keeps()).prop_map(|(pick, keep)| Step::Reclass { pick, keep }),
            2 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => Just(Step::Evict),
            1 => Just(Step::EvictFrame),
            1 => (0u8..2).prop_map(Step::EvictOf),
        ];
        prop::collection::vec(step, 1..120)
    }

    fn bytes<'a>(copies: impl Iterator<Item = &'a Arc<Fake>>) -> u64 {
        copies.map(|copy| u64::from(copy.run.byte_len)).sum()
    }

    proptest! {
        #[test]
        fn low_goes_before_high_and_pins_never_and_counts_stay_right(steps in steps()) {
            let residents = Residents::new(6);
            let mut held: Vec<Arc<Fake>> = Vec::new();
            for step in steps {
                match step {
                    Step::Insert { frame, length, has_readers, keep, replaces } => {
                        let copy = copy(frame, length, has_readers);
                        let replaced: Vec<_> = replaces
                            .filter(|_| !held.is_empty())
                            .map(|pick| Arc::clone(&held[pick.index(held.len())]))
                            .into_iter()
                            .collect();
                        let is_in = |copies: &[Arc<Fake>], copy: &Arc<Fake>| copies.iter().any(|other| Arc::ptr_eq(other, copy));
                        let stay = || held.iter().filter(|copy| !is_in(&replaced, copy));
                        let mine = || stay().filter(|other| other.marks.keep().account == keep.account);
                        let pinned = bytes(mine().filter(|other| other.marks.is_pinned()));
                        let fits = keep.account.is_none() || pinned + length as u64 <= QUOTA;
                        let terms = Terms { keep, quota: Some(QUOTA), ..Terms::default() };
                        let gone = residents.insert(&copy, terms, &replaced);
                        prop_assert_eq!(gone.is_some(), fits);
                        if let Some(gone) = gone {
                            prop_assert!(gone.iter().all(|copy| copy.marks.keep().account == keep.account));
                            prop_assert!(gone.iter().all(|copy| !copy.marks.is_pinned()));
                            held.retain(|copy| !is_in(&gone, copy) && !is_in(&replaced, copy));
                            held.push(copy);
                            let used = keep.account.map_or(0, |account| residents.use_of(account).bytes);
                            // More only by what was given to the account later, which is not checked here.
                            let reclassed = bytes(held.iter().filter(|copy| copy.was_reclassed.load(Relaxed)));
                            prop_assert!(used <= QUOTA + reclassed);
                        }
                    }
                    Step::Reclass { pick, keep } if !held.is_empty() => {
                        let copy = &held[pick.index(held.len())];
                        residents.reclass(copy, keep, false);
                        copy.was_reclassed.store(true, Relaxed);
                        prop_assert_eq!(copy.marks.keep(), keep);
                    }
                    Step::Remove(pick) if !held.is_empty() => {
                        let copy = held.swap_remove(pick.index(held.len()));
                        residents.remove(&copy);
                        residents.remove(&copy);
                        residents.reclass(&copy, Keep::default(), false);
                    }
                    Step::Remove(_) | Step::Reclass { .. } => {}
                    Step::Evict => {
                        let may_go = |copy: &Arc<Fake>| !copy.has_readers && !copy.marks.is_pinned();
                        let lowest = held.iter().filter(|copy| may_go(copy)).map(|copy| copy.rank()).min();
                        let victim = residents.evict(Eviction::Sieve, |copy| !copy.has_readers);
                        prop_assert_eq!(victim.as_ref().map(|victim| victim.rank()), lowest);
                        held.retain(|copy| victim.as_ref().is_none_or(|victim| !Arc::ptr_eq(copy, victim)));
                    }
                    Step::EvictFrame => {
                        let of = |frame| held.iter().filter(move |copy| copy.frame == frame);
                        let loss = |frame| (of(frame).map(|copy| copy.rank()).max(), bytes(of(frame)));
                        let may_go = |frame: &u32| {
                            of(*frame).count() > 0
                                && of(*frame).all(|copy| !copy.has_readers && !copy.marks.is_pinned())
                        };
                        let least = (0..6).filter(may_go).map(loss).min();
                        let losses: Vec<_> = (0..6).map(loss).collect();
                        let victims = residents.evict_frame(|copy| !copy.has_readers);
                        let gone = victims.first().map(|victim| victim.frame);
                        prop_assert_eq!(gone.map(|frame| losses[frame as usize]), least);
                        if let Some(frame) = gone {
                            prop_assert_eq!(victims.len(), of(frame).count());
                            held.retain(|copy| copy.frame != frame);
                        }
                    }
                    Step::EvictOf(number) => {
                        let mine = |copy: &&Arc<Fake>| copy.marks.keep().account == Some(account(number));
                        let is_over = bytes(held.iter().filter(mine)) > 20;
                        let lowest = held.iter().filter(mine).map(|copy| copy.rank()).min();
                        let expected = lowest.filter(|rank| is_over && *rank < Rank::Pinned);
                        let victim = residents.evict_of(account(number), 20);
                        prop_assert_eq!(victim.as_ref().map(|victim| victim.rank()), expected);
                        held.retain(|copy| victim.as_ref().is_none_or(|victim| !Arc::ptr_eq(copy, victim)));
                    }
                }
                let pinned = || held.iter().filter(|copy| copy.marks.is_pinned());
                let holding = Holding {
                    runs: held.len() as u64,
                    bytes: bytes(held.iter()),
                    pinned_bytes: bytes(pinned()),
                };
                prop_assert_eq!(residents.holding(), holding);
                prop_assert_eq!(residents.pinned(usize::MAX).len(), pinned().count());
                let pinned_frames: BTreeSet<u32> = pinned().map(|copy| copy.frame).collect();
                prop_assert!(pinned_frames.len() <= 4, "two frames can always be emptied");
                for number in 0..2 {
                    let mine = |copy: &&Arc<Fake>| copy.marks.keep().account == Some(account(number));
                    let expected = AccountUse {
                        bytes: bytes(held.iter().filter(mine)),
                        pinned: bytes(pinned().filter(mine)),
                    };
                    prop_assert_eq!(residents.use_of(account(number)), expected);
                }
            }
        }
    }
}
