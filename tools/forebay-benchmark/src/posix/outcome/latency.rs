//! Completion latencies of one entry of fio's report, or of several together.
//!
//! fio counts latencies in buckets (`bins` of `json+`) and gives for a percentile the middle of the bucket that it falls into. So a
//! percentile of a few operations can be above the highest latency that there was: no percentile here is above that.
//!
//! Percentiles of several entries, as of several clients, are those of their counts added up, by fio's own rule: the first bucket up to
//! which there is that part of all operations. An average of percentiles would be none: of two clients that do as many operations, one
//! of which waits, the 99th percentile is that of the one that waits. Where a server is so old that it sends no counts the highest of
//! the entries' percentiles is taken, which that of all of them is never above.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::record::Latency;

/// The percentiles that a record has, as fio names them.
const NAMES: [(&str, f64); 5] =
    [("50.000000", 0.5), ("90.000000", 0.9), ("95.000000", 0.95), ("99.000000", 0.99), ("99.900000", 0.999)];

/// Nanoseconds.
#[derive(Debug, Deserialize)]
pub(super) struct Completion {
    max: f64,
    mean: f64,
    /// Not there when there was no operation.
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
    /// How many operations took about so long. Empty where fio was not asked, or had nothing to count.
    #[serde(default, deserialize_with = "counted")]
    bins: BTreeMap<u64, u64>,
}

/// JSON has words for keys only.
fn counted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u64, u64>, D::Error> {
    let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
    let counted = counts.into_iter().map(|(nanoseconds, count)| Ok((nanoseconds.parse()?, count)));
    counted.collect::<Result<_, std::num::ParseIntError>>().map_err(serde::de::Error::custom)
}

/// The sum, or the largest number: what fio prints may be anything, and a wrong count must not look like a small one.
pub(super) fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Of all entries together, in microseconds; each with the number of its operations.
pub(super) fn latency(entries: &[(&Completion, u64)]) -> Latency {
    let entries: Vec<(&Completion, u64)> = entries.iter().copied().filter(|(_, operations)| *operations > 0).collect();
    let operations = total(entries.iter().map(|(_, operations)| *operations));
    let sum: f64 = entries.iter().map(|(completion, own)| completion.mean * *own as f64).sum();
    let max = entries.iter().map(|(completion, _)| completion.max).fold(0.0, f64::max);
    let [p50, p90, p95, p99, p999] = percentiles(&entries).map(|nanoseconds| nanoseconds.min(max) / 1e3);
    Latency { mean: sum / operations.max(1) as f64 / 1e3, p50, p90, p95, p99, p999, max: max / 1e3 }
}

fn percentiles(entries: &[(&Completion, u64)]) -> [f64; 5] {
    let highest = |name: &str| {
        let own = entries.iter().filter_map(|(completion, _)| completion.percentile.get(name).copied());
        own.fold(0.0, f64::max)
    };
    // What fio says of one entry is its own.
    if entries.len() < 2 || entries.iter().any(|(completion, _)| completion.bins.is_empty()) {
        return NAMES.map(|(name, _)| highest(name));
    }
    let mut merged: BTreeMap<u64, u64> = BTreeMap::new();
    for (nanoseconds, count) in entries.iter().flat_map(|(completion, _)| &completion.bins) {
        let merged = merged.entry(*nanoseconds).or_default();
        *merged = total([*merged, *count]);
    }
    NAMES.map(|(_, part)| percentile(&merged, part))
}

/// The first latency up to which there is this part of all operations.
fn percentile(counts: &BTreeMap<u64, u64>, part: f64) -> f64 {
    let all = total(counts.values().copied());
    let mut up_to = 0;
    for (nanoseconds, count) in counts {
        up_to = total([up_to, *count]);
        if up_to as f64 >= part * all as f64 {
            return *nanoseconds as f64;
        }
    }
    0.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As fio counts these: in buckets of 100 ns, with their middles.
    fn of(nanoseconds: &[u64]) -> Completion {
        let mut bins: BTreeMap<u64, u64> = BTreeMap::new();
        nanoseconds.iter().for_each(|time| *bins.entry(time / 100 * 100 + 50).or_default() += 1);
        let percentile =
            NAMES.iter().map(|(name, part)| ((*name).to_owned(), super::percentile(&bins, *part))).collect();
        let mean = nanoseconds.iter().sum::<u64>() as f64 / nanoseconds.len() as f64;
        Completion { max: nanoseconds.iter().copied().max().unwrap_or(0) as f64, mean, percentile, bins }
    }

    #[test]
    fn a_client_that_waits_is_seen_in_the_percentiles_of_all() {
        // A hundred of 1 µs; and ninety of 1 µs with ten of a millisecond.
        let (fast, slow) = (of(&[1000; 100]), of(&[[1000; 90].as_slice(), &[1_000_000; 10]].concat()));
        let both = latency(&[(&fast, 100), (&slow, 100)]);
        assert_eq!((both.p50, both.p90, both.p95), (1.05, 1.05, 1.05), "95 % took no longer");
        // An average would say half a millisecond, which no operation took.
        assert_eq!((both.p99, both.p999, both.max), (1000.0, 1000.0, 1000.0));
        assert!((both.mean - (190.0 * 1000.0 + 10.0 * 1e6) / 200.0 / 1e3).abs() < 1e-9);
    }

    #[test]
    fn entries_that_do_not_say_how_often_give_a_bound_and_no_average() {
        let (fast, mut slow) = (of(&[1000; 100]), of(&[1_000_000; 100]));
        slow.bins.clear();
        assert_eq!(latency(&[(&fast, 100), (&slow, 100)]).p99, 1000.0);
        let nothing = Completion { max: 0.0, mean: 0.0, percentile: BTreeMap::new(), bins: BTreeMap::new() };
        assert_eq!(latency(&[(&fast, 100), (&nothing, 0)]).p99, latency(&[(&fast, 100)]).p99);
        assert_eq!(latency(&[]), Latency::default());
    }

    proptest! {
        #[test]
        fn percentiles_ascend_to_the_highest_latency_and_are_of_all_operations(
            clients in prop::collection::vec(prop::collection::vec(1_u64..1_000_000, 1..60), 1..5),
        ) {
            let all: Vec<Completion> = clients.iter().map(|times| of(times)).collect();
            let entries: Vec<_> = all.iter().zip(&clients).map(|(one, times)| (one, times.len() as u64)).collect();
            let found = latency(&entries);
            let ascending = [found.p50, found.p90, found.p95, found.p99, found.p999, found.max];
            prop_assert!(ascending.is_sorted(), "{:?}", found);
            // As if one client had done all of it.
            let together = latency(&[(&of(&clients.concat()), clients.concat().len() as u64)]);
            for (one, other) in [(found.p50, together.p50), (found.p99, together.p99), (found.mean, together.mean)] {
                prop_assert!((one - other).abs() < 1e-6, "{} {}", one, other);
            }
        }
    }
}
