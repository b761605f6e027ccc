//! Counters of one origin, for the metrics layer: plain atomics, read without stopping anything.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_metrics::{LatencyHistogram, LatencySnapshot};
use forebay_types::FailureKind;
use serde::Serialize;

/// What an origin is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Operation {
    /// Attributes of a file.
    Stat,
    /// A page of a directory.
    List,
    /// Bytes of a file.
    Read,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Stat, Self::List, Self::Read];

    /// Its name in logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::List => "list",
            Self::Read => "read",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Outcome {
    /// As was hoped.
    Ok,
    /// With an answer that is none of the origin's fault: there is no such file, or it is another version by now.
    Refused,
    /// With "slow down".
    Throttled,
    /// Without an answer in time.
    TimedOut,
    /// In any other way.
    Failed,
}

impl Outcome {
    /// That of a failure of this kind.
    pub(crate) fn of(kind: FailureKind) -> Self {
        match kind {
            FailureKind::NotFound | FailureKind::VersionChanged => Self::Refused,
            FailureKind::TimedOut => Self::TimedOut,
            _ => Self::Failed,
        }
    }

    const ALL: [Self; 5] = [Self::Ok, Self::Refused, Self::Throttled, Self::TimedOut, Self::Failed];

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Throttled => "throttled",
            Self::TimedOut => "timed_out",
            Self::Failed => "failed",
        }
    }
}

/// Counters since the origin was opened. Each only grows.
#[derive(Debug, Default)]
pub(crate) struct OriginStats {
    operations: [OperationStats; Operation::ALL.len()],
    bytes: AtomicU64,
    retries: AtomicU64,
    errors: AtomicU64,
}

#[derive(Debug, Default)]
struct OperationStats {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    latency: LatencyHistogram,
}

/// The counters at one moment (each by itself; they are not read as one).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OriginCounts {
    /// Attempts that ended.
    pub requests: u64,
    /// Bytes of file contents received by reads that succeeded.
    pub bytes: u64,
    /// Attempts that followed a failed one.
    pub retries: u64,
    /// Answers that said "slow down".
    pub throttles: u64,
    /// Operations that failed in the end, `NotFound` and `VersionChanged` aside: those are answers.
    pub errors: u64,
    /// The attempts, by what they asked for.
    pub operations: Vec<OriginOperation>,
}

/// The attempts at one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OriginOperation {
    /// `stat`, `list` or `read`.
    pub operation: &'static str,
    /// How they ended, and how many: `ok`, `refused` (an answer, as that there is no such file), `throttled`, `timed_out`,
    /// `failed`.
    pub outcomes: Vec<(&'static str, u64)>,
    /// How long they took, waiting for leave to send them aside.
    pub latency: LatencySnapshot,
}

impl OriginStats {
    /// The counters now.
    pub(crate) fn counts(&self) -> OriginCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let sum = |outcomes: &[Outcome]| -> u64 {
            let each =
                self.operations.iter().flat_map(|stats| outcomes.iter().map(|ended| &stats.outcomes[*ended as usize]));
            each.map(get).sum()
        };
        let operation = |operation: Operation| {
            let stats = &self.operations[operation as usize];
            let outcomes = Outcome::ALL.map(|outcome| (outcome.name(), get(&stats.outcomes[outcome as usize])));
            OriginOperation {
                operation: operation.name(),
                outcomes: outcomes.to_vec(),
                latency: stats.latency.snapshot(),
            }
        };
        OriginCounts {
            requests: sum(&Outcome::ALL),
            bytes: get(&self.bytes),
            retries: get(&self.retries),
            throttles: sum(&[Outcome::Throttled]),
            errors: get(&self.errors),
            operations: Operation::ALL.map(operation).to_vec(),
        }
    }

    /// An attempt ended.
    pub(crate) fn attempted(&self, operation: Operation, outcome: Outcome, took: Duration) {
        let stats = &self.operations[operation as usize];
        stats.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
        stats.latency.record(took);
    }

    pub(crate) fn count_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_are_counted_by_what_they_asked_for_and_how_they_ended() {
        let stats = OriginStats::default();
        stats.attempted(Operation::Read, Outcome::Ok, Duration::from_millis(3));
        stats.attempted(Operation::Read, Outcome::Throttled, Duration::from_millis(1));
        stats.attempted(Operation::List, Outcome::TimedOut, Duration::from_secs(30));
        let counts = stats.counts();
        assert_eq!((counts.requests, counts.throttles), (3, 1));
        let read = &counts.operations[Operation::Read as usize];
        assert_eq!((read.operation, read.latency.mean()), ("read", Some(Duration::from_millis(2))));
        let expected = [("ok", 1), ("refused", 0), ("throttled", 1), ("timed_out", 0), ("failed", 0)];
        assert_eq!(read.outcomes, expected);
    }
}
