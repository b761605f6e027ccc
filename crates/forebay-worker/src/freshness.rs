//! When names and listings changed, as far as this worker knows: an answer that was asked for before is not believed after.
//!
//! To drop what is cached is not enough: an answer that is under way when a name changes arrives after that, and nobody can
//! tell whether it is of before. So a change leaves a mark ([`marks`]), and an answer is held against it when it is used.
//!
//! In a cluster a worker hears of changes for as long as the others take it for the owner of its names. What it learned before
//! its [`Tenure`] was over is not believed after that: the changes went to others. A process that was stopped finds out by the
//! clock, whatever it does first when it goes on.

mod marks;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use forebay_types::{FsPath, Tenure};

use self::marks::Marks;

/// Places for marks of names, and as many for those of listings: half a megabyte each. One in so many changes has a name asked for
/// again that shares its place.
const PLACES: usize = 65_536;

pub(crate) struct Freshness {
    start: Instant,
    names: Marks,
    listings: Marks,
    /// Nothing, where the worker is not one of several.
    tenure: ArcSwapOption<Tenure>,
}

/// What those of `marks` need of threads.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

impl Freshness {
    pub(crate) fn new() -> Self {
        Self::with_places(PLACES)
    }

    fn with_places(places: usize) -> Self {
        let (names, listings) = (Marks::new(places), Marks::new(places));
        Self { start: Instant::now(), names, listings, tenure: ArcSwapOption::empty() }
    }

    /// What was asked about `path` itself before `at` is not believed any more.
    pub(crate) fn name_changed(&self, path: &FsPath, at: Instant) {
        self.names.mark(path.as_bytes(), self.nanos(at));
    }

    /// The same of the listing of the directory `path`.
    pub(crate) fn listing_changed(&self, path: &FsPath, at: Instant) {
        self.listings.mark(path.as_bytes(), self.nanos(at));
    }

    /// The same of everything.
    pub(crate) fn everything_changed(&self, at: Instant) {
        self.names.mark_all(self.nanos(at));
        self.listings.mark_all(self.nanos(at));
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
