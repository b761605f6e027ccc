//! Counters of one origin, for the metrics layer: plain atomics, read without stopping anything.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counters since the origin was opened. Each only grows.
#[derive(Debug, Default)]
pub(crate) struct OriginStats {
    requests: AtomicU64,
    bytes: AtomicU64,
    retries: AtomicU64,
    throttles: AtomicU64,
    errors: AtomicU64,
}

/// The counters at one moment (each by itself; they are not read as one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OriginCounts {
    /// Attempts sent to the origin.
    pub requests: u64,
    /// Bytes of file contents received by reads that succeeded.
    pub bytes: u64,
    /// Attempts that followed a failed one.
    pub retries: u64,
    /// Answers that said "slow down".
    pub throttles: u64,
    /// Operations that failed in the end, `NotFound` and `VersionChanged` aside: those are answers.
    pub errors: u64,
}

impl OriginStats {
    /// The counters now.
    pub(crate) fn counts(&self) -> OriginCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OriginCounts {
            requests: get(&self.requests),
            bytes: get(&self.bytes),
            retries: get(&self.retries),
            throttles: get(&self.throttles),
            errors: get(&self.errors),
        }
    }

    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_throttle(&self) {
        self.throttles.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.errors.fetch_add(1, Ordering::Relaxed);
    }
}
