//! A tombstone for each name that changed: a table of times, in which the hash of a name chooses its slot.
//!
//! A tombstone is never taken back, so there is no moment between its end and the end of what it guards against. Names that share a
//! slot share the latest of their tombstones: when one of them changes, the others are asked for again, once. That costs a request now
//! and then, never a wrong answer, and the table does not grow with changes or time.
//!
//! Times count from one that the owner chose. Everything that depends on the order of threads is in this file: the tests run it
//! under a scheduler that tries the orders out.

use std::hash::{BuildHasher, RandomState};

use super::sync::{AtomicBool, AtomicU64, Ordering};

/// For each name, the time before which no answer about it is believed.
pub(crate) struct Tombstones {
    /// A power of two of them.
    slots: Box<[AtomicU64]>,
    hasher: RandomState,
    /// The same for all names.
    watermark: AtomicU64,
    /// Whether there ever was a tombstone: workers that only serve reads do not pay for them.
    has_tombstones: AtomicBool,
}

impl Tombstones {
    /// None yet. The number of `slots` is rounded up to a power of two.
    pub(crate) fn new(slots: usize) -> Self {
        let slots = (0..slots.next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
        Self { slots, hasher: RandomState::new(), watermark: AtomicU64::new(0), has_tombstones: AtomicBool::new(false) }
    }

    /// Answers about `name` that were asked for before `at` are not believed any more.
    pub(crate) fn add(&self, name: &[u8], at: u64) {
        // The later of two that come at once counts, in whatever order they come.
        self.slot(name).fetch_max(at, Ordering::AcqRel);
        self.has_tombstones.store(true, Ordering::Release);
    }

    /// Answers about any name that were asked for before `at` are not believed any more.
    pub(crate) fn raise_watermark(&self, at: u64) {
        self.watermark.fetch_max(at, Ordering::AcqRel);
    }

    /// Whether an answer about `name` that was asked for at `asked` can be believed, given all changes whose calls have returned.
    pub(crate) fn believes(&self, name: &[u8], asked: u64) -> bool {
        let is_buried =
            || self.has_tombstones.load(Ordering::Acquire) && asked < self.slot(name).load(Ordering::Acquire);
        asked >= self.watermark.load(Ordering::Acquire) && !is_buried()
    }

    fn slot(&self, name: &[u8]) -> &AtomicU64 {
        let at = self.hasher.hash_one(name) as usize & (self.slots.len() - 1);
        &self.slots[at]
    }
}
