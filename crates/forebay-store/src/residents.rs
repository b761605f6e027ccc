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

    /// The tier has so many frames for its copies. Pins that there are by now stay.
    pub(crate) fn resize(&self, frames: u64) {
        self.order.lock().most_pinned_frames = most_pinned_frames(frames);
    }

    /// Takes out a copy that was inserted; no effect when it has left already. Whether it had not.
    pub(crate) fn remove(&self, copy: &Arc<T>) -> bool {
        self.order.lock().take(copy)
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
mod tests;
