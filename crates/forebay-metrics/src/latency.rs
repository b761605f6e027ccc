//! Durations, counted in buckets.
//!
//! A [`LatencyHistogram`] has a fixed number of buckets that grow with the duration, each about an eighth as wide as what is in
//! it: to record is to add to two counters, without a lock or an allocation, so that it may stand on the path of every read.
//! A [`LatencySnapshot`] is what was counted until a moment; the difference of two is what happened in between, which is
//! how percentiles of the last second come out of counters that only grow.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use histogram::{AtomicHistogram, Config, Histogram};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Buckets that are 12.5 % wide: 280 of them, 2.2 KiB.
const GROUPING_POWER: u8 = 3;
/// The longest that is told apart is 137 s; what took longer counts as that.
const MAX_VALUE_POWER: u8 = 37;
const LONGEST: u64 = (1 << MAX_VALUE_POWER) - 1;

/// The bounds that Prometheus sees, in nanoseconds: each twice the one before, from 2 µs to 69 s. They are edges of buckets
/// here, so nothing is lost on the way.
pub const BOUNDS_NANOS: [u64; 26] = {
    let mut bounds = [0; 26];
    let mut at = 0;
    while at < bounds.len() {
        bounds[at] = 1 << (11 + at);
        at += 1;
    }
    bounds
};

/// Durations since the start. Any number of threads may record.
#[derive(Debug)]
pub struct LatencyHistogram {
    nanos: AtomicU64,
    buckets: AtomicHistogram,
}

/// What a histogram had counted at a moment, or between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySnapshot {
    nanos: u64,
    buckets: Histogram,
}

#[expect(clippy::expect_used, reason = "constants that the type takes: the tests make one")]
fn config() -> Config {
    Config::new(GROUPING_POWER, MAX_VALUE_POWER).expect("a valid configuration")
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { nanos: AtomicU64::new(0), buckets: AtomicHistogram::with_config(&config()) }
    }
}

impl LatencyHistogram {
    /// Nothing recorded yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Something took so long.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).min(LONGEST);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
        // Never out of range, after the line above.
        let _ = self.buckets.increment(nanos);
    }

    /// What has been recorded so far. What is recorded meanwhile may be in the sum and not yet in a bucket.
    #[must_use]
    pub fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot { buckets: self.buckets.load(), nanos: self.nanos.load(Ordering::Relaxed) }
    }
}

impl Serialize for LatencyHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.snapshot().serialize(serializer)
    }
}

impl Default for LatencySnapshot {
    fn default() -> Self {
        Self { nanos: 0, buckets: Histogram::with_config(&config()) }
    }
}

impl LatencySnapshot {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.as_slice().iter().sum()
    }

    /// How long all of them took together.
    #[must_use]
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// How long one took on average; `None` without any.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        self.nanos.checked_div(self.count()).map(Duration::from_nanos)
    }

    /// `share` of them, between 0 and 1, took no longer than this, to 12.5 %; `None` without any.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let bucket = self.buckets.quantile_bucket(share.clamp(0.0, 1.0)).ok().flatten()?;
        Some(Duration::from_nanos(bucket.end()))
    }

    /// What came after `earlier`, which is a snapshot of the same histogram. If there is less now than there was then, it
    /// is that of a process that was started anew, and all of it came after.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        match self.buckets.checked_sub(&earlier.buckets) {
            Ok(buckets) => Self { nanos: self.nanos.saturating_sub(earlier.nanos), buckets },
            Err(_) => self.clone(),
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        // They are of one configuration, and a count that overflows would have taken centuries.
        let buckets = self.buckets.checked_add(&other.buckets).unwrap_or_else(|_| self.buckets.clone());
        Self { nanos: self.nanos.saturating_add(other.nanos), buckets }
    }

    /// How many took no longer than each of [`BOUNDS_NANOS`] and longer than the one before; the last one: longer than all.
    #[must_use]
    pub fn per_bound(&self) -> [u64; BOUNDS_NANOS.len() + 1] {
        let mut counts = [0; BOUNDS_NANOS.len() + 1];
        for bucket in self.buckets.iter().filter(|bucket| bucket.count() > 0) {
            // A bound is the first value of a bucket, and all of a bucket is on one side of it.
            let at = BOUNDS_NANOS.partition_point(|bound| *bound <= bucket.start());
            counts[at] += bucket.count();
        }
        counts
    }
}

/// Only the buckets with something in them, each by its place: `{"count":3,"nanos":700,"buckets":[[17,2],[40,1]]}`.
#[derive(Serialize, Deserialize)]
struct Sparse {
    count: u64,
    nanos: u64,
    buckets: Vec<(usize, u64)>,
}

impl Serialize for LatencySnapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let filled = self.buckets.as_slice().iter().copied().enumerate().filter(|(_, count)| *count > 0);
        Sparse { count: self.count(), nanos: self.nanos, buckets: filled.collect() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LatencySnapshot {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Sparse { nanos, buckets, .. } = Sparse::deserialize(deserializer)?;
        let mut snapshot = Self { nanos, ..Self::default() };
        for (at, count) in buckets {
            let bucket = snapshot.buckets.as_mut_slice().get_mut(at);
            *bucket.ok_or_else(|| D::Error::custom(format!("there is no bucket {at}")))? = count;
        }
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recorded(micros: impl IntoIterator<Item = u64>) -> LatencySnapshot {
        let histogram = LatencyHistogram::new();
        micros.into_iter().for_each(|micros| histogram.record(Duration::from_micros(micros)));
        histogram.snapshot()
    }

    #[test]
    fn mean_and_percentiles_are_those_of_what_was_recorded() {
        let snapshot = recorded(1..=1000);
        assert_eq!((snapshot.count(), snapshot.mean()), (1000, Some(Duration::from_nanos(500_500))));
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = snapshot.quantile(share).unwrap().as_secs_f64() * 1e6;
            assert!((micros..=micros * 1.125).contains(&found), "{share}: {found}");
        }
        let nothing = LatencySnapshot::default();
        assert_eq!((nothing.count(), nothing.mean(), nothing.quantile(0.5)), (0, None, None));
    }

    #[test]
    fn the_shortest_and_the_longest_have_a_bucket() {
        let histogram = LatencyHistogram::new();
        for took in [Duration::ZERO, Duration::MAX] {
            histogram.record(took);
        }
        let counts = histogram.snapshot().per_bound();
        assert_eq!((counts[0], counts[BOUNDS_NANOS.len()]), (1, 1));
    }

    #[test]
    fn an_interval_is_the_difference_and_a_process_started_anew_begins_at_zero() {
        let (first, second) = (recorded([1, 2, 3]), recorded([1, 2, 3, 700, 800]));
        let between = second.since(&first);
        assert_eq!(between, recorded([700, 800]));
        assert_eq!(first.and(&between), second);
        assert_eq!(first.since(&second), first);
    }

    #[test]
    fn what_many_threads_record_adds_up() {
        let histogram = LatencyHistogram::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..1000).for_each(|nanos| histogram.record(Duration::from_nanos(nanos))));
            }
        });
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.count(), snapshot.total()), (8000, Duration::from_nanos(8 * 499_500)));
    }

    #[test]
    fn what_no_histogram_of_ours_wrote_is_refused() {
        for text in [r#"{"count":1,"nanos":1,"buckets":[[280,1]]}"#, r#"{"count":1,"nanos":1,"buckets":[[0]]}"#, "1"] {
            assert!(serde_json::from_str::<LatencySnapshot>(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_snapshot_survives_json_and_its_bounds_agree_with_what_was_recorded(
            nanos in prop::collection::vec(0u64..200_000_000_000, 0..50)
        ) {
            let histogram = LatencyHistogram::new();
            nanos.iter().for_each(|nanos| histogram.record(Duration::from_nanos(*nanos)));
            let snapshot = histogram.snapshot();
            let json = serde_json::to_string(&histogram).unwrap();
            prop_assert_eq!(&serde_json::from_str::<LatencySnapshot>(&json).unwrap(), &snapshot);
            let mut cumulative = 0;
            for (bound, count) in BOUNDS_NANOS.iter().zip(snapshot.per_bound()) {
                cumulative += count;
                prop_assert_eq!(cumulative as usize, nanos.iter().filter(|nanos| *nanos < bound).count());
            }
            prop_assert_eq!(snapshot.per_bound().iter().sum::<u64>() as usize, nanos.len());
        }
    }
}
