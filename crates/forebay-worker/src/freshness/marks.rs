//! A mark for each name that changed: a table of times, in which a name has the place that its hash says.
//!
//! A mark is never taken back, so nobody can look between its end and that of what it spoke against. Names that share a place
//! share the latest of their marks: what was asked about one of them before the other changed is asked for again, once. That
//! costs a question now and then and never a wrong answer, and neither changes nor time let the table grow.
//!
//! Times are counted from one that the owner chose. What is known of the order of threads is all in here: the tests run this
//! file under a scheduler that tries the orders out.

use std::hash::{BuildHasher, RandomState};

use super::sync::{AtomicBool, AtomicU64, Ordering};

/// Times before which nothing that was asked for is believed.
pub(crate) struct Marks {
    /// As many as a power of two.
    places: Box<[AtomicU64]>,
    hasher: RandomState,
    /// The same for every name.
    floor: AtomicU64,
    /// Whether there ever was a mark: workers of those who only read do not pay for them.
    has_marks: AtomicBool,
}

impl Marks {
    /// Without marks. `places` are rounded up to a power of two.
    pub(crate) fn new(places: usize) -> Self {
        let places = (0..places.next_power_of_two()).map(|_| AtomicU64::new(0)).collect();
        Self { places, hasher: RandomState::new(), floor: AtomicU64::new(0), has_marks: AtomicBool::new(false) }
    }

    /// What was asked about `name` before `at` is not believed any more.
    pub(crate) fn mark(&self, name: &[u8], at: u64) {
        // Of two that come at once the later one counts, whichever comes first.
        self.place(name).fetch_max(at, Ordering::AcqRel);
        self.has_marks.store(true, Ordering::Release);
    }

    /// The same of every name.
    pub(crate) fn mark_all(&self, at: u64) {
        self.floor.fetch_max(at, Ordering::AcqRel);
    }

    /// Whether what was asked about `name` at `asked` can be believed, as far as whoever marked it has returned.
    pub(crate) fn believes(&self, name: &[u8], asked: u64) -> bool {
        let is_marked = || self.has_marks.load(Ordering::Acquire) && asked < self.place(name).load(Ordering::Acquire);
        asked >= self.floor.load(Ordering::Acquire) && !is_marked()
    }

    fn place(&self, name: &[u8]) -> &AtomicU64 {
        let at = self.hasher.hash_one(name) as usize & (self.places.len() - 1);
        &self.places[at]
    }
}
