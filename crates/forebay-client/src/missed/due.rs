//! How many changes one worker was not told of, and how many of them it has made up for. What is known of the order of threads is
//! all in here, and modelled (`model.rs`).

use super::sync::{AtomicU64, Ordering};

/// Changes of names that a worker should have been told of, and was not.
#[derive(Default)]
pub(crate) struct Missed {
    changes: AtomicU64,
    /// How many of them it has made up for since.
    caught_up: AtomicU64,
}

impl Missed {
    /// It was not told of a change.
    pub(crate) fn note(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// How many changes it was not told of in all, if there are some that it has not made up for.
    pub(crate) fn due(&self) -> Option<u64> {
        let changes = self.changes.load(Ordering::Acquire);
        (changes > self.caught_up.load(Ordering::Acquire)).then_some(changes)
    }

    /// It has made up for the first so many.
    pub(crate) fn caught_up(&self, changes: u64) {
        self.caught_up.fetch_max(changes, Ordering::AcqRel);
    }
}
