//! What of a worker's memory is lent to files, and what of that is wanted back. Pure: it is told of needs and of how the store
//! fares, and says what is to be done.
//!
//! Files and blocks share one budget and one order: whatever was not used for longest goes. A block's use is known to the store; a
//! file's is its opens, since nobody hears of what the kernel reads. The two orders meet in the *eviction age* of the store: the time in
//! which it has evicted as much as it holds. What it evicts now came within that time, or was not used in it; so a file that was not
//! used in it either is older than everything in the store, and goes first. A store that evicts nothing has no such age, and wants
//! nothing.
//!
//! What lending itself drives out of the store is no need of the store: otherwise each file that comes would drive out one that is
//! there.

use std::collections::VecDeque;
use std::time::Instant;

use forebay_materialise::WantedBack;
use forebay_types::BlockKey;

/// The share of the memory that can be lent, in quarters. The rest is for readers whose bytes are in no file, and for what is on its
/// way.
const MAX_QUARTERS: u64 = 3;
/// The same of memory that other processes of the host read in place: they may hold half of it (ADR 0016).
const MAX_QUARTERS_SHOWN: u64 = 1;
/// So much is always left: two fills hold eight blocks of 4 MiB while they wait for a frame, and readers hold some, too.
const RESERVE: u64 = 64 << 20;
/// Moments at which the store is remembered. With more of them every second one is forgotten.
const MAX_SEEN: usize = 256;
/// Blocks that are in a file that is being filled, and that the store has as well, of which it is remembered that they are.
const MAX_DOUBLED: usize = 4096;
/// The same of files that are whole, each of which has one or a few.
const MAX_DOUBLED_WHOLE: usize = 16_384;

/// How the store fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreUse {
    /// Bytes that its runs and readers take, without what is lent.
    pub(crate) used: u64,
    /// Bytes of runs that eviction must pass by.
    pub(crate) pinned: u64,
    /// Bytes that it evicted since it began.
    pub(crate) evicted: u64,
    /// Whether it is fuller than it is to be.
    pub(crate) is_full: bool,
    /// Bytes that it can do without before it evicts anything.
    pub(crate) spare: u64,
}

/// What is to be done next so that a file gets its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It has it.
    Enough,
    /// The store is to evict its copy of this block, which is in a file too; then ask again.
    GiveUp(BlockKey),
    /// A frame is to be taken from the pool; then ask again.
    Take,
    /// There is none to be had.
    Refuse,
}

/// What is lent.
#[derive(Debug)]
pub(crate) struct Budget {
    frame: u64,
    /// Bytes that can be lent at most.
    most: u64,
    /// Bytes that files have, or are about to.
    held: u64,
    /// Bytes of files that are gone, and mapped.
    lingering: u64,
    /// Frames that are lent.
    frames: u64,
    /// Bytes of all frames that were ever taken: as much may have been evicted for them.
    taken: u64,
    /// Of files that are being filled, whose readers are served by the store meanwhile.
    doubled: VecDeque<BlockKey>,
    /// Of files that are whole, the first one first: only who opened them before that reads them from the store.
    doubled_whole: VecDeque<BlockKey>,
    /// When the store had evicted how much, the oldest first.
    seen: VecDeque<(Instant, u64)>,
}

/// How much of `capacity` bytes can be lent in frames of `frame`. `is_shown`: other processes may look at them.
pub(crate) fn most_of(capacity: u64, frame: u64, is_shown: bool) -> u64 {
    let quarters = if is_shown { MAX_QUARTERS_SHOWN } else { MAX_QUARTERS };
    (capacity / 4 * quarters).min(capacity.saturating_sub(RESERVE)) / frame * frame
}

impl Budget {
    /// Nothing is lent yet; so many bytes can be, in frames of `frame`.
    pub(crate) fn new(most: u64, frame: u64) -> Self {
        Self {
            frame,
            most,
            held: 0,
            lingering: 0,
            frames: 0,
            taken: 0,
            doubled: VecDeque::new(),
            doubled_whole: VecDeque::new(),
            seen: VecDeque::new(),
        }
    }

    /// Frames that are lent.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Files ask for so much more: what is to be done. They have it when that is [`Step::Enough`]. Where nothing may be evicted for
    /// them, they get what is spare, and what the store has twice of files that are whole.
    pub(crate) fn ask(&mut self, bytes: u64, may_evict: bool, store: StoreUse) -> Step {
        let wanted = self.held.saturating_add(self.lingering).saturating_add(bytes);
        // More is lent than may be where files that are gone are mapped: that is not for others.
        if wanted <= (self.frames * self.frame).min(self.most) {
            self.held += bytes;
            return Step::Enough;
        }
        if wanted > self.allowed(store) {
            return Step::Refuse;
        }
        if !may_evict {
            return match store.spare < self.frame {
                true => self.doubled_whole.pop_front().map_or(Step::Refuse, Step::GiveUp),
                false => Step::Take,
            };
        }
        if !store.is_full {
            return Step::Take;
        }
        let doubled = self.doubled_whole.pop_front().or_else(|| self.doubled.pop_front());
        doubled.map_or(Step::Take, Step::GiveUp)
    }

    /// A frame was taken.
    pub(crate) fn took(&mut self) {
        self.frames += 1;
        self.taken += self.frame;
    }

    /// The store has this block, and so has a file that is being filled.
    pub(crate) fn is_doubled(&mut self, key: BlockKey) {
        if self.doubled.len() < MAX_DOUBLED {
            self.doubled.push_back(key);
        }
    }

    /// The store has this block, and so has a file that is whole.
    pub(crate) fn is_doubled_whole(&mut self, key: BlockKey) {
        if self.doubled_whole.len() < MAX_DOUBLED_WHOLE {
            self.doubled_whole.push_back(key);
        }
    }

    /// What there is of a file is not there twice any more: the store has its pages, or it is gone.
    pub(crate) fn is_once(&mut self, is_of_it: impl Fn(&BlockKey) -> bool) {
        self.doubled.retain(|key| !is_of_it(key));
        self.doubled_whole.retain(|key| !is_of_it(key));
    }

    /// Files have so much less. How many frames are free again: they are to be given back, and count as given back.
    #[must_use]
    pub(crate) fn give_back(&mut self, bytes: u64) -> u64 {
        self.held = self.held.saturating_sub(bytes);
        self.surplus()
    }

    /// So much is mapped of files that are gone. How many frames are free again, and how many are to be taken, if that can be at
    /// once: what is in use is in use, whatever is lent.
    #[must_use]
    pub(crate) fn lingers(&mut self, bytes: u64) -> (u64, u64) {
        self.lingering = bytes;
        let lacking = self.needed().saturating_sub(self.frames);
        (self.surplus(), lacking)
    }

    /// The same, where so much of it is of a file that is gone now: that is not counted twice.
    #[must_use]
    pub(crate) fn is_gone(&mut self, bytes: u64, lingering: u64) -> (u64, u64) {
        self.held = self.held.saturating_sub(bytes);
        self.lingers(lingering)
    }

    /// Nothing is lent any more.
    pub(crate) fn end(&mut self) {
        (self.held, self.lingering, self.frames, self.most) = (0, 0, 0, 0);
        self.doubled.clear();
        self.doubled_whole.clear();
    }

    /// What is wanted back. Asked once in a while, with how the store fares.
    pub(crate) fn wanted_back(&mut self, store: StoreUse, now: Instant) -> Option<WantedBack> {
        let evicted = store.evicted.saturating_sub(self.taken);
        let before = self.seen.back().map_or(evicted, |(_, before)| *before);
        self.see(now, evicted);
        let lent = self.frames * self.frame;
        let over = lent.saturating_sub(self.allowed(store));
        if over > 0 {
            return Some(WantedBack { bytes: over, unused_since: now });
        }
        let need = evicted.saturating_sub(before).min(lent);
        let unused_since = self.eviction_age(store.used, evicted)?;
        (need > 0).then_some(WantedBack { bytes: need, unused_since })
    }

    /// Since when the store has evicted as much as it holds.
    fn eviction_age(&self, used: u64, evicted: u64) -> Option<Instant> {
        // What holds nothing has turned over at any time, but it is not short of anything either.
        let turned = evicted.checked_sub(used.max(self.frame))?;
        self.seen.iter().rev().find(|(_, before)| *before <= turned).map(|(at, _)| *at)
    }

    fn see(&mut self, now: Instant, evicted: u64) {
        // What stays as it is was first seen earlier: then it was so much already, and still is.
        match self.seen.back_mut() {
            Some((at, before)) if *before >= evicted => *at = now,
            _ => self.seen.push_back((now, evicted)),
        }
        if self.seen.len() > MAX_SEEN {
            // The last one stays.
            let (mut number, last) = (0, self.seen.len() % 2);
            self.seen.retain(|_| {
                number += 1;
                number % 2 == last
            });
        }
    }

    /// What may be lent while the store fares like this: what it must keep is not to be had.
    fn allowed(&self, store: StoreUse) -> u64 {
        self.most.saturating_sub(store.pinned)
    }

    fn needed(&self) -> u64 {
        (self.held + self.lingering).div_ceil(self.frame)
    }

    fn surplus(&mut self) -> u64 {
        let surplus = self.frames.saturating_sub(self.needed());
        self.frames -= surplus;
        surplus
    }
}

#[cfg(test)]
mod tests;
