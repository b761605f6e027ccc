//! How long operations took.

use std::time::Duration;

use crate::rounds::Sample;

/// The latency of each operation of a measurement, in ns; 4 s at most, which no operation here comes near.
#[derive(Default)]
pub(crate) struct Latencies(Vec<u32>);

impl Latencies {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, latency: Duration) {
        self.0.push(u32::try_from(latency.as_nanos()).unwrap_or(u32::MAX));
    }

    /// Takes in those of another reader.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// What operations of `size` bytes that took these, side by side, came to in `took`.
    pub(crate) fn sample(mut self, size: u32, took: Duration) -> Sample {
        let operations = self.0.len() as f64 / took.as_secs_f64();
        let (p50, p99) = (self.percentile(50), self.percentile(99));
        Sample { rate: operations * f64::from(size), operations, p50, p99, ..Sample::default() }
    }

    /// The 99.9th percentile and the longest, in µs.
    pub(crate) fn tail(&mut self) -> [f64; 2] {
        [self.per_mille(999), self.per_mille(1000)]
    }

    /// In µs.
    fn percentile(&mut self, percent: usize) -> f64 {
        self.per_mille(percent * 10)
    }

    /// In µs.
    fn per_mille(&mut self, of_thousand: usize) -> f64 {
        if self.0.is_empty() {
            return f64::NAN;
        }
        let at = (self.0.len() * of_thousand / 1000).min(self.0.len() - 1);
        f64::from(*self.0.select_nth_unstable(at).1) / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_latency_that_was_seen() {
        let mut latencies = Latencies::default();
        (1..=100).rev().for_each(|micros| latencies.add(Duration::from_micros(micros)));
        assert_eq!(latencies.tail(), [100.0, 100.0]);
        let sample = latencies.sample(1000, Duration::from_secs(2));
        assert_eq!((sample.p50, sample.p99), (51.0, 100.0));
        assert_eq!((sample.operations, sample.rate), (50.0, 50_000.0));
    }
}
