//! How long reads of one worker take, by their size, and after how long one is overdue.
//!
//! Times are counted in buckets that are half an octave wide, those of the last few hundred reads of each size: a worker
//! that is warm now was cold a moment ago. The estimate is the upper edge of the bucket of the 99th percentile, so up to
//! half as much again; that is why fewer than one read in a hundred is overdue while nothing changes. It is worked out every
//! few reads and kept: to look it up is one load.
//!
//! A read that was given up counts with the time for which it was waited: without those, the estimate would sink below
//! what it is an estimate of, and hedge ever more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The largest read of each class, but of the last: beyond what comes with a reply, beyond a page of read-ahead, beyond
/// a FUSE request.
const CLASSES: [u32; 3] = [32 << 10, 256 << 10, 1 << 20];
/// Nanoseconds to units of about 16 µs, as a shift.
const UNIT: u32 = 14;
/// Two buckets for each octave up to a minute, and one for what is below.
const BUCKETS: usize = 45;
/// Reads in a window; the estimate is made from the present one and the one before.
const WINDOW: u32 = 256;
/// How often the estimate is made anew, in reads. Half as many are enough to have one at first.
const EVERY: u32 = 32;
/// What a read may take of a worker of which nothing is known: more than an origin that is near takes, and less than a
/// reader minds.
const UNKNOWN: Duration = Duration::from_millis(400);

/// What is known of one worker. All verbs may be called at once from many threads: they are statistics, and one that is
/// lost when two threads meet does not matter.
#[derive(Debug, Default)]
pub struct ReadLatencies {
    classes: [Latencies; CLASSES.len() + 1],
}

impl ReadLatencies {
    /// After how long a read of `length` bytes is overdue.
    #[inline]
    #[must_use]
    pub fn overdue_after(&self, length: u32) -> Duration {
        match self.classes[class_of(length)].overdue.load(Ordering::Relaxed) {
            0 => UNKNOWN,
            nanos => Duration::from_nanos(nanos),
        }
    }

    /// A read of `length` bytes took so long, or was given up after that.
    pub fn took(&self, length: u32, took: Duration) {
        self.classes[class_of(length)].took(took);
    }
}

fn class_of(length: u32) -> usize {
    CLASSES.iter().position(|most| length <= *most).unwrap_or(CLASSES.len())
}

#[derive(Debug)]
struct Latencies {
    present: [AtomicU32; BUCKETS],
    before: [AtomicU32; BUCKETS],
    reads: AtomicU32,
    /// The estimate in nanoseconds; 0 before there is one.
    overdue: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Self {
        let none = || std::array::from_fn(|_| AtomicU32::new(0));
        Self { present: none(), before: none(), reads: AtomicU32::new(0), overdue: AtomicU64::new(0) }
    }
}

impl Latencies {
    fn took(&self, took: Duration) {
        self.present[bucket_of(took)].fetch_add(1, Ordering::Relaxed);
        let reads = self.reads.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        if reads.is_multiple_of(EVERY) || reads == EVERY / 2 {
            self.estimate(reads.is_multiple_of(WINDOW));
        }
    }

    #[cold]
    fn estimate(&self, is_full: bool) {
        let count = |at: usize| self.present[at].load(Ordering::Relaxed) + self.before[at].load(Ordering::Relaxed);
        let all: u32 = (0..BUCKETS).map(count).sum();
        let rank = all - all / 100;
        let mut seen = 0;
        let reached = |at: &usize| {
            seen += count(*at);
            seen >= rank
        };
        let at = (0..BUCKETS).find(reached).unwrap_or(BUCKETS - 1);
        self.overdue.store(upper_edge(at), Ordering::Relaxed);
        if is_full {
            for (before, present) in self.before.iter().zip(&self.present) {
                before.store(present.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

fn bucket_of(took: Duration) -> usize {
    let units = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX) >> UNIT;
    let Some(octave) = units.checked_ilog2().filter(|octave| *octave > 0) else { return 0 };
    let upper_half = (units >> (octave - 1)) & 1;
    // Both are small.
    (1 + 2 * (octave as usize - 1) + upper_half as usize).min(BUCKETS - 1)
}

/// Where bucket `at` ends, in nanoseconds.
fn upper_edge(at: usize) -> u64 {
    let Some(at) = at.checked_sub(1) else { return 2 << UNIT };
    (3 + at as u64 % 2) << (at / 2) << UNIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: u32 = 4096;

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn each_size_has_an_estimate_of_its_own_after_a_few_reads() {
        let latencies = ReadLatencies::default();
        assert_eq!(latencies.overdue_after(SMALL), UNKNOWN);
        (0..EVERY / 2).for_each(|_| latencies.took(SMALL, us(100)));
        assert!((us(100)..=us(150)).contains(&latencies.overdue_after(SMALL)));
        assert_eq!(latencies.overdue_after(4 << 20), UNKNOWN);
    }

    #[test]
    fn one_read_in_a_hundred_that_is_slow_does_not_raise_it_and_two_do() {
        let (one, two) = (ReadLatencies::default(), ReadLatencies::default());
        for read in 0..WINDOW * 8 {
            one.took(SMALL, if read % 128 == 0 { us(50_000) } else { us(100) });
            two.took(SMALL, if read % 64 == 0 { us(50_000) } else { us(100) });
        }
        assert!(one.overdue_after(SMALL) < us(200), "{:?}", one.overdue_after(SMALL));
        assert!(two.overdue_after(SMALL) >= us(50_000), "{:?}", two.overdue_after(SMALL));
    }

    #[test]
    fn a_worker_that_has_become_warm_is_known_to_be_so_after_two_windows() {
        let latencies = ReadLatencies::default();
        (0..10_000).for_each(|_| latencies.took(SMALL, us(80_000)));
        assert!(latencies.overdue_after(SMALL) >= us(80_000));
        (0..WINDOW * 3).for_each(|_| latencies.took(SMALL, us(100)));
        assert!(latencies.overdue_after(SMALL) < us(200));
    }

    proptest! {
        #[test]
        fn a_time_lies_in_its_bucket(nanos in 0u64..60_000_000_000) {
            let at = bucket_of(Duration::from_nanos(nanos));
            prop_assert!(nanos < upper_edge(at));
            prop_assert!(at == 0 || nanos >= upper_edge(at - 1), "{} in {}", nanos, at);
        }

        #[test]
        fn hardly_any_read_is_overdue_while_nothing_changes(
            least in 20u64..100_000,
            spread in 1u64..400_000,
            seed: u64,
        ) {
            let latencies = ReadLatencies::default();
            let mut state = seed | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                us(least + (state >> 33) % spread)
            };
            (0..WINDOW * 2).for_each(|_| latencies.took(SMALL, next()));
            let overdue = (0..4000).filter(|_| {
                let took = next();
                let is_overdue = took > latencies.overdue_after(SMALL);
                latencies.took(SMALL, took);
                is_overdue
            });
            prop_assert!(overdue.count() <= 120);
        }
    }
}
