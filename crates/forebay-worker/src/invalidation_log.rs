//! The invalidation log: since when names and listings are different, as far as this worker knows. An answer that was asked for before
//! that is not believed after it.
//!
//! Dropping what is cached is not enough: an answer may be under way while a name changes, and arrive later, and nothing in it tells
//! whether it is from before. So each change leaves a tombstone ([`tombstones`]), and every answer is compared with it when it is used.
//!
//! In a cluster a worker hears of changes for as long as the others take it for the owner of its names. What it learned before its
//! [`Tenure`] ended is not believed after that: the changes went to other workers. A process that was stopped finds out by the clock,
//! whatever it does first when it goes on.

mod tombstones;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use forebay_types::{FsPath, Tenure};

use self::tombstones::Tombstones;

/// Places for tombstones of names, and as many for those of listings: half a megabyte each. One in so many changes has a name asked for
/// again that shares its place.
const SLOTS: usize = 65_536;

pub(crate) struct InvalidationLog {
    start: Instant,
    names: Tombstones,
    listings: Tombstones,
    /// None where the worker is the only one.
    tenure: ArcSwapOption<Tenure>,
}

/// The atomics of `tombstones`, which its model replaces.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

impl InvalidationLog {
    pub(crate) fn new() -> Self {
        Self::with_slots(SLOTS)
    }

    fn with_slots(slots: usize) -> Self {
        let (names, listings) = (Tombstones::new(slots), Tombstones::new(slots));
        Self { start: Instant::now(), names, listings, tenure: ArcSwapOption::empty() }
    }

    /// What was asked about `path` itself before `at` is not believed any more.
    pub(crate) fn name_changed(&self, path: &FsPath, at: Instant) {
        self.names.add(path.as_bytes(), self.nanos(at));
    }

    /// The same of the listing of the directory `path`.
    pub(crate) fn listing_changed(&self, path: &FsPath, at: Instant) {
        self.listings.add(path.as_bytes(), self.nanos(at));
    }

    /// The same of everything.
    pub(crate) fn everything_changed(&self, at: Instant) {
        self.names.raise_watermark(self.nanos(at));
        self.listings.raise_watermark(self.nanos(at));
    }

    /// From now on changes are heard of during `tenure`. What was asked for before is not believed any more.
    pub(crate) fn hears_during(&self, tenure: &Arc<Tenure>, now: Instant) {
        self.everything_changed(now);
        self.tenure.store(Some(Arc::clone(tenure)));
    }

    /// Whether an answer about `path` that was asked for at `asked` can be believed now.
    pub(crate) fn believes_name(&self, path: &FsPath, asked: Instant, now: Instant) -> bool {
        self.names.believes(path.as_bytes(), self.nanos(asked)) && self.is_heard_of(asked, now)
    }

    /// Whether a page of the directory `path` that was asked for at `asked` can be believed now.
    pub(crate) fn believes_listing(&self, path: &FsPath, asked: Instant, now: Instant) -> bool {
        self.listings.believes(path.as_bytes(), self.nanos(asked)) && self.is_heard_of(asked, now)
    }

    fn is_heard_of(&self, asked: Instant, now: Instant) -> bool {
        self.tenure.load().as_ref().is_none_or(|tenure| tenure.covers(asked, now))
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
