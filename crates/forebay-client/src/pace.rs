//! How long the fetches ahead of a handle's readers take: what its streams go by when they decide how far ahead to be.
//!
//! The shortest one counts. It waited least for others, so it says how far away the bytes are, and not how busy the line is.
//! What comes from a cache is told from what comes from the origin: of a file that is cached in part, neither says anything of
//! the other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::prefetch::MIN_STEP;

/// Where the bytes of a fetch came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchSource {
    /// The worker that was asked, or another one.
    Cache,
    /// The origin.
    Origin,
}

/// See above.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    /// By [`FetchSource`], in microseconds.
    shortest: [AtomicU64; 2],
    /// Where the last bytes came from.
    last: AtomicUsize,
}

impl Pace {
    pub(crate) fn new() -> Self {
        let unknown = || AtomicU64::new(u64::MAX);
        Self { since: Instant::now(), shortest: [unknown(), unknown()], last: AtomicUsize::new(0) }
    }

    /// The time, since the handle was opened.
    pub(crate) fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// A fetch of so many bytes that began then has ended now.
    pub(crate) fn fetched(&self, from: FetchSource, length: u32, began: Duration) {
        self.took(from, length, self.now().saturating_sub(began));
    }

    fn took(&self, from: FetchSource, length: u32, took: Duration) {
        // The end of a file comes sooner than what is usually fetched.
        if u64::from(length) < MIN_STEP {
            return;
        }
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.shortest[from as usize].fetch_min(micros, Ordering::Relaxed);
        self.last.store(from as usize, Ordering::Relaxed);
    }

    /// The shortest of those from where the last one came from.
    pub(crate) fn shortest(&self) -> Option<Duration> {
        let shortest = self.shortest.get(self.last.load(Ordering::Relaxed))?.load(Ordering::Relaxed);
        (shortest != u64::MAX).then(|| Duration::from_micros(shortest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_fetch_counts_for_caches_and_origins_apart() {
        let pace = Pace::new();
        assert_eq!(pace.shortest(), None);
        let millis = Duration::from_millis;
        pace.took(FetchSource::Origin, 4 << 20, millis(40));
        pace.took(FetchSource::Origin, 4 << 20, millis(25));
        pace.took(FetchSource::Origin, 4 << 20, millis(90));
        assert_eq!(pace.shortest(), Some(millis(25)));
        pace.took(FetchSource::Cache, 4 << 20, millis(1));
        assert_eq!(pace.shortest(), Some(millis(1)));
        pace.took(FetchSource::Origin, 4 << 20, millis(30));
        assert_eq!(pace.shortest(), Some(millis(25)), "what was cached did not make the origin nearer");
        pace.took(FetchSource::Origin, 4 << 10, millis(2));
        assert_eq!(pace.shortest(), Some(millis(25)), "a few bytes come sooner");
    }
}
