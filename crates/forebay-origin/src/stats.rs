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
    /// A page of a directory, of uploads, or of the parts of one.
    List,
    /// Bytes of a file.
    Read,
    /// A whole file, or the marker of a directory.
    Put,
    /// The beginning of an upload in parts.
    Begin,
    /// A part of an upload.
    Part,
    /// The end of an upload: its parts become a file.
    Complete,
    /// The end of an upload that is given up.
    Abort,
    /// A copy made by the origin itself.
    Copy,
    /// The removal of a file, or of a directory.
    Remove,
}

impl Operation {
    const ALL: [Self; 10] = [
        Self::Stat,
        Self::List,
        Self::Read,
        Self::Put,
        Self::Begin,
        Self::Part,
        Self::Complete,
        Self::Abort,
        Self::Copy,
        Self::Remove,
    ];

    /// Its name in logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::List => "list",
            Self::Read => "read",
            Self::Put => "put",
            Self::Begin => "begin",
            Self::Part => "part",
            Self::Complete => "complete",
            Self::Abort => "abort",
            Self::Copy => "copy",
            Self::Remove => "remove",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Outcome {
    /// As was hoped.
    Ok,
    /// With an answer that is none of the origin's fault: there is no such file, it is another version by now, there is a
    /// directory of that name.
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
            FailureKind::NotFound
            | FailureKind::VersionChanged
            | FailureKind::IsADirectory
            | FailureKind::NotADirectory
            | FailureKind::Exists
            | FailureKind::NotEmpty => Self::Refused,
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
    uploaded: AtomicU64,
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
    /// Bytes of file contents taken by puts and parts that succeeded.
    pub uploaded: u64,
    /// Attempts that followed a failed one.
    pub retries: u64,
    /// Answers that said "slow down".
    pub throttles: u64,
    /// Operations that failed in the end, those aside whose failure is an answer: `NotFound`, `VersionChanged`, `Exists` ….
    pub errors: u64,
    /// The attempts, by what they asked for.
    pub operations: Vec<OriginOperation>,
}

/// The attempts at one kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OriginOperation {
    /// `stat`, `list`, `read`; of changes `put`, `begin`, `part`, `complete`, `abort`, `copy`, `remove`.
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
            uploaded: get(&self.uploaded),
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

    pub(crate) fn count_uploaded(&self, bytes: usize) {
        self.uploaded.fetch_add(bytes as u64, Ordering::Relaxed);
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
