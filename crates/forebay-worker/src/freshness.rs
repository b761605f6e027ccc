//! When names and listings changed, as far as this worker knows: an answer that was asked for before is not believed after.
//!
//! To drop what is cached is not enough: an answer that is under way when a name changes arrives after that, and nobody can
//! tell whether it is of before. So a change leaves a mark, and an answer is held against it when it is used. A mark is kept
//! for as long as an answer from before may be believed. Marks are bounded in number; when one has to go early, everything that
//! was asked for before it is believed no more, which costs questions and never a wrong answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_types::FsPath;
use moka::Expiry;
use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

/// Names, and listings, that have marks: some 200 bytes each.
const MARKS: u64 = 65_536;
/// How long answers may be under way, generously: origins give up sooner.
const UNDER_WAY: Duration = Duration::from_secs(600);

/// What was asked for before `at` is not believed.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    /// How long answers from before may be cached.
    keep: Duration,
}

/// A mark goes when nothing from before it is left.
struct WhenOver;

impl Expiry<FsPath, Mark> for WhenOver {
    fn expire_after_create(&self, _: &FsPath, mark: &Mark, _: Instant) -> Option<Duration> {
        Some(mark.keep)
    }

    fn expire_after_update(&self, _: &FsPath, mark: &Mark, _: Instant, _: Option<Duration>) -> Option<Duration> {
        Some(mark.keep)
    }
}

pub(crate) struct Freshness {
    names: Cache<FsPath, Mark>,
    listings: Cache<FsPath, Mark>,
    floor: Arc<Floor>,
    /// Whether there ever was a mark: workers of those who only read do not pay for them.
    has_marks: AtomicBool,
}

/// Nothing at all that was asked for before this is believed.
struct Floor {
    start: Instant,
    /// Since the start.
    nanos: AtomicU64,
}

impl Floor {
    fn raise(&self, at: Instant) {
        let nanos = u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_max(nanos, Ordering::AcqRel);
    }

    fn get(&self) -> Instant {
        self.start + Duration::from_nanos(self.nanos.load(Ordering::Acquire))
    }
}

impl Freshness {
    pub(crate) fn new() -> Self {
        Self::with_marks(MARKS)
    }

    fn with_marks(most: u64) -> Self {
        let floor = Arc::new(Floor { start: Instant::now(), nanos: AtomicU64::new(0) });
        let marks = || {
            let floor = Arc::clone(&floor);
            // The oldest goes first: by any other rule, a young one might take the floor up with it.
            let builder = Cache::builder().max_capacity(most).eviction_policy(EvictionPolicy::lru());
            let raise = move |_: Arc<FsPath>, mark: Mark, cause| {
                if cause == RemovalCause::Size {
                    floor.raise(mark.at);
                }
            };
            builder.expire_after(WhenOver).eviction_listener(raise).build()
        };
        Self { names: marks(), listings: marks(), floor, has_marks: AtomicBool::new(false) }
    }

    /// What was asked about `path` itself before `at` is not believed any more. Answers about it are believed for `ttl` at most.
    pub(crate) fn name_changed(&self, path: &FsPath, at: Instant, ttl: Duration) {
        self.mark(&self.names, path, at, ttl);
    }

    /// The same of the listing of the directory `path`.
    pub(crate) fn listing_changed(&self, path: &FsPath, at: Instant, ttl: Duration) {
        self.mark(&self.listings, path, at, ttl);
    }

    /// The same of everything.
    pub(crate) fn everything_changed(&self, at: Instant) {
        self.floor.raise(at);
    }

    fn mark(&self, marks: &Cache<FsPath, Mark>, path: &FsPath, at: Instant, ttl: Duration) {
        self.has_marks.store(true, Ordering::Release);
        let mark = Mark { at, keep: ttl.max(UNDER_WAY) };
        // Whoever comes late with an older one changes nothing.
        marks.entry_by_ref(path).and_compute_with(|known| match known {
            Some(known) if known.value().at >= at => Op::Nop,
            _ => Op::Put(mark),
        });
    }

    /// Whether an answer about `path` that was asked for at `asked` can be believed.
    pub(crate) fn believes_name(&self, path: &FsPath, asked: Instant) -> bool {
        self.believes(&self.names, path, asked)
    }

    /// Whether a page of the directory `path` that was asked for at `asked` can be believed.
    pub(crate) fn believes_listing(&self, path: &FsPath, asked: Instant) -> bool {
        self.believes(&self.listings, path, asked)
    }

    fn believes(&self, marks: &Cache<FsPath, Mark>, path: &FsPath, asked: Instant) -> bool {
        if asked < self.floor.get() {
            return false;
        }
        !self.has_marks.load(Ordering::Acquire) || marks.get(path).is_none_or(|mark| asked >= mark.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    fn path(number: u32) -> FsPath {
        FsPath::new(format!("/{number}")).unwrap()
    }

    fn after(start: Instant, nanos: u64) -> Instant {
        start + Duration::from_nanos(nanos)
    }

    #[test]
    fn what_was_asked_before_a_change_is_not_believed_after_it_and_what_was_asked_after_is() {
        let (freshness, start) = (Freshness::new(), Instant::now());
        assert!(freshness.believes_name(&path(1), start));
        freshness.name_changed(&path(1), after(start, 10), TTL);
        assert!(!freshness.believes_name(&path(1), after(start, 9)));
        assert!(freshness.believes_name(&path(1), after(start, 10)));
        assert!(freshness.believes_name(&path(2), start) && freshness.believes_listing(&path(1), start));
        freshness.name_changed(&path(1), after(start, 5), TTL);
        assert!(
            !freshness.believes_name(&path(1), after(start, 9)),
            "a later change is not forgotten for an earlier one"
        );
        freshness.listing_changed(&path(2), after(start, 7), TTL);
        assert!(!freshness.believes_listing(&path(2), after(start, 6)) && freshness.believes_name(&path(2), start));
        freshness.everything_changed(after(start, 100));
        assert!(
            !freshness.believes_name(&path(3), after(start, 99))
                && freshness.believes_name(&path(1), after(start, 100))
        );
    }

    #[test]
    fn a_mark_that_has_to_go_takes_with_it_whatever_it_spoke_against() {
        let (freshness, start) = (Freshness::with_marks(4), Instant::now());
        for number in 0..20 {
            freshness.name_changed(&path(number), after(start, 10 * u64::from(number)), TTL);
        }
        freshness.names.run_pending_tasks();
        assert!(freshness.names.entry_count() <= 4);
        for number in 0..20 {
            let at = after(start, 10 * u64::from(number));
            assert!(!freshness.believes_name(&path(number), at - Duration::from_nanos(1)), "{number}");
        }
        assert!(freshness.believes_name(&path(99), after(start, 190)));
    }
}
