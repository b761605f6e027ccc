//! What is made of the samples. Pure, and exact: all samples are there.

use std::time::Duration;

use serde::Serialize;

/// A latency test's figures, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// How many operations were timed.
    pub iterations: usize,
    /// The shortest.
    pub min_us: f64,
    /// The longest.
    pub max_us: f64,
    /// The mean.
    pub avg_us: f64,
    /// The standard deviation.
    pub stdev_us: f64,
    /// The median; what perftest calls typical.
    pub p50_us: f64,
    /// 99 of 100 took no longer; of fewer samples it is not known.
    pub p99_us: Option<f64>,
    /// 999 of 1000 took no longer; of fewer samples it is not known.
    pub p999_us: Option<f64>,
}

impl Latency {
    /// The figures of these samples; zeros of none.
    #[must_use]
    pub(crate) fn of(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        let (Some(min), Some(max)) = (samples.first(), samples.last()) else { return Self::default() };
        let micros = |sample: &Duration| sample.as_nanos() as f64 / 1e3;
        let count = samples.len() as f64;
        let avg_us = samples.iter().map(micros).sum::<f64>() / count;
        let variance = samples.iter().map(|sample| (micros(sample) - avg_us).powi(2)).sum::<f64>() / count;
        // The nearest rank: the smallest sample that so many are not above.
        let rank = |per_mille: usize| micros(&samples[(samples.len() * per_mille).div_ceil(1000).max(1) - 1]);
        Self {
            iterations: samples.len(),
            min_us: micros(min),
            max_us: micros(max),
            avg_us,
            stdev_us: variance.sqrt(),
            p50_us: rank(500),
            p99_us: (samples.len() >= 100).then(|| rank(990)),
            p999_us: (samples.len() >= 1000).then(|| rank(999)),
        }
    }
}

/// A bandwidth test's figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// How many operations ended.
    pub operations: u64,
    /// From the start of all jobs to the end of the last.
    pub seconds: f64,
    /// Operations a second, on average.
    pub ops_per_second: f64,
    /// 10^9 bits a second, on average.
    pub gbps: f64,
    /// 2^20 bytes a second, on average.
    pub mib_per_second: f64,
    /// The same in the best window.
    pub peak_mib_per_second: f64,
    /// Processor seconds of the client for each GiB.
    pub client_cpu_seconds_per_gib: f64,
    /// Those of the server.
    pub server_cpu_seconds_per_gib: f64,
}

/// What was counted in a bandwidth test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    /// Bytes of an operation.
    pub(crate) bytes: u64,
    /// Operations that ended.
    pub(crate) operations: u64,
    /// From the start of all jobs to the end of the last.
    pub(crate) elapsed: Duration,
    /// For each window: operations that ended in it, and how long it was.
    pub(crate) windows: Vec<(u64, Duration)>,
    /// Processor time of the client.
    pub(crate) client_cpu: Duration,
    /// Processor time of the server.
    pub(crate) server_cpu: Duration,
}

/// Operations a second.
#[must_use]
pub(crate) fn rate(operations: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { operations as f64 / elapsed.as_secs_f64() }
}

/// 10^9 bits a second at `rate` operations a second of `bytes`.
#[must_use]
pub(crate) fn gbps(rate: f64, bytes: u64) -> f64 {
    rate * bytes as f64 * 8.0 / 1e9
}

impl Bandwidth {
    /// The figures of what was counted.
    #[must_use]
    pub(crate) fn of(counted: &Counted) -> Self {
        let average = rate(counted.operations, counted.elapsed);
        let mib = |rate: f64| rate * counted.bytes as f64 / f64::from(1 << 20);
        let peak =
            counted.windows.iter().map(|(operations, length)| rate(*operations, *length)).fold(average, f64::max);
        let gib = counted.operations as f64 * counted.bytes as f64 / f64::from(1 << 30);
        let for_each_gib = |cpu: Duration| if gib > 0.0 { cpu.as_secs_f64() / gib } else { 0.0 };
        Self {
            operations: counted.operations,
            seconds: counted.elapsed.as_secs_f64(),
            ops_per_second: average,
            gbps: gbps(average, counted.bytes),
            mib_per_second: mib(average),
            peak_mib_per_second: mib(peak),
            client_cpu_seconds_per_gib: for_each_gib(counted.client_cpu),
            server_cpu_seconds_per_gib: for_each_gib(counted.server_cpu),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn micros(samples: impl IntoIterator<Item = u64>) -> Latency {
        Latency::of(samples.into_iter().map(Duration::from_micros).collect())
    }

    #[test]
    fn percentiles_are_samples_by_nearest_rank() {
        let latency = micros((1..=1000).rev());
        assert_eq!((latency.min_us, latency.max_us, latency.iterations), (1.0, 1000.0, 1000));
        assert_eq!((latency.p50_us, latency.p99_us, latency.p999_us), (500.0, Some(990.0), Some(999.0)));
        let few = micros(1..=999);
        assert_eq!(
            (few.p99_us, few.p999_us),
            (Some(990.0), None),
            "a thousandth of fewer than a thousand is not known"
        );
        assert!((latency.avg_us - 500.5).abs() < 1e-6 && (latency.stdev_us - 288.675).abs() < 0.001, "{latency:?}");
        let one = micros([7]);
        assert_eq!((one.min_us, one.p50_us, one.p99_us, one.max_us, one.stdev_us), (7.0, 7.0, None, 7.0, 0.0));
        assert_eq!(micros([]), Latency::default());
    }

    #[test]
    fn bandwidth_is_what_ended_in_the_time_that_passed() {
        let counted = Counted {
            bytes: 1 << 20,
            operations: 2048,
            elapsed: Duration::from_secs(2),
            windows: vec![(1500, Duration::from_secs(1)), (548, Duration::from_secs(1))],
            client_cpu: Duration::from_secs(1),
            server_cpu: Duration::from_millis(500),
        };
        let bandwidth = Bandwidth::of(&counted);
        assert_eq!((bandwidth.ops_per_second, bandwidth.mib_per_second), (1024.0, 1024.0));
        assert_eq!(bandwidth.peak_mib_per_second, 1500.0);
        assert!((bandwidth.gbps - 8.589_934_592).abs() < 1e-9);
        assert_eq!((bandwidth.client_cpu_seconds_per_gib, bandwidth.server_cpu_seconds_per_gib), (0.5, 0.25));
        let nothing = Bandwidth::of(&Counted { bytes: 1, ..Counted::default() });
        assert_eq!(nothing, Bandwidth::default());
    }

    proptest! {
        #[test]
        fn the_figures_are_in_order(samples in prop::collection::vec(0_u64..1_000_000, 1..500)) {
            let latency = micros(samples);
            let known = [latency.p99_us, latency.p999_us].into_iter().flatten();
            let ordered: Vec<f64> =
                [latency.min_us, latency.p50_us].into_iter().chain(known).chain([latency.max_us]).collect();
            prop_assert!(ordered.is_sorted(), "{:?}", ordered);
            prop_assert!(latency.min_us <= latency.avg_us + 1e-9 && latency.avg_us <= latency.max_us + 1e-9);
        }
    }
}
