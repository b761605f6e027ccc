//! A bandwidth limit: a token bucket in virtual time.
//!
//! A transfer may start when the bucket is not in debt, and then takes all of its bytes, so a block larger than the
//! bucket does not wait for ever. What turns out to have been in the cache is given back.

use std::time::{Duration, Instant};

use forebay_types::ByteSize;

/// How much of a second may be spent at once: enough that the clock's coarseness costs nothing.
const BURST: f64 = 0.25;

#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Bytes a second; at least one.
    rate: f64,
    /// Bytes that may be taken; a debt when negative.
    level: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub(super) fn new(rate: ByteSize, now: Instant) -> Self {
        let rate = rate.as_u64().max(1) as f64;
        Self { rate, level: rate * BURST, at: now }
    }

    /// Whether a transfer may start now; when, if not.
    pub(super) fn ready(&mut self, now: Instant) -> Result<(), Instant> {
        self.fill(now);
        if self.level > 0.0 {
            return Ok(());
        }
        // A little more than nothing, so that the wait is over when it is over.
        Err(now + Duration::from_secs_f64((1.0 - self.level) / self.rate) + Duration::from_micros(1))
    }

    /// A transfer of so many bytes starts.
    pub(super) fn take(&mut self, bytes: u32) {
        self.level -= f64::from(bytes);
    }

    /// So many of the bytes that were taken were not transferred.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.level = (self.level + bytes as f64).min(self.rate * BURST);
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed * self.rate).min(self.rate * BURST);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes that get through in `seconds`, by transfers of `block` bytes.
    fn passed(rate: u64, block: u32, seconds: u64) -> u64 {
        let start = Instant::now();
        let (mut bucket, mut now, mut bytes) = (Bucket::new(ByteSize::bytes(rate), start), start, 0);
        while now < start + Duration::from_secs(seconds) {
            match bucket.ready(now) {
                Ok(()) => {
                    bucket.take(block);
                    bytes += u64::from(block);
                }
                Err(at) => now = at,
            }
        }
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn over_time_exactly_the_rate_passes(rate in 1u64 << 20..1 << 32, block in 1u32 << 18..1 << 22) {
            let (expected, slack) = (rate * 5, rate as f64 * BURST + 2.0 * f64::from(block));
            let bytes = passed(rate, block, 5);
            prop_assert!((bytes as f64 - expected as f64).abs() <= slack, "{bytes} of {expected}");
        }
    }

    #[test]
    fn what_was_in_the_cache_costs_nothing() {
        let start = Instant::now();
        let mut bucket = Bucket::new(ByteSize::mib(1), start);
        for _ in 0..1000 {
            assert_eq!(bucket.ready(start), Ok(()));
            bucket.take(4 << 20);
            bucket.give_back(4 << 20);
        }
    }
}
