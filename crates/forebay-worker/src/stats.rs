//! What a worker counts.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_transport::{Op, Provenance};
use serde::Serialize;

/// Requests, by what they asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpCounts {
    /// Reads of a block.
    pub read: u64,
    /// Requests to bring bytes into the cache.
    pub fill: u64,
    /// Questions for attributes.
    pub stat: u64,
    /// Questions for a page of a directory.
    pub list: u64,
}

/// A snapshot of a worker's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerCounts {
    /// Requests answered, well or badly.
    pub requests: OpCounts,
    /// Requests that failed.
    pub failures: u64,
    /// Bytes served from memory.
    pub bytes_memory: u64,
    /// Bytes served from disk.
    pub bytes_disk: u64,
    /// Bytes that had to be fetched from the origin, for a read or ahead of one.
    pub bytes_origin: u64,
    /// Fetches from origins under way.
    pub fetches: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    ops: [AtomicU64; 4],
    failures: AtomicU64,
    memory: AtomicU64,
    disk: AtomicU64,
    origin: AtomicU64,
}

impl Counters {
    pub(crate) fn asked(&self, op: Op) {
        let at = match op {
            Op::Read => 0,
            Op::Fill => 1,
            Op::Stat => 2,
            Op::List => 3,
            Op::Ping | Op::Coverage | Op::Stats | Op::Paths => return,
        };
        self.ops[at].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn served(&self, provenance: Provenance) {
        for (counter, bytes) in
            [(&self.memory, provenance.memory), (&self.disk, provenance.disk), (&self.origin, provenance.origin)]
        {
            if bytes > 0 {
                counter.fetch_add(u64::from(bytes), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn snapshot(&self, fetches: usize) -> WorkerCounts {
        let op = |at: usize| self.ops[at].load(Ordering::Relaxed);
        WorkerCounts {
            requests: OpCounts { read: op(0), fill: op(1), stat: op(2), list: op(3) },
            failures: self.failures.load(Ordering::Relaxed),
            bytes_memory: self.memory.load(Ordering::Relaxed),
            bytes_disk: self.disk.load(Ordering::Relaxed),
            bytes_origin: self.origin.load(Ordering::Relaxed),
            fetches: fetches as u64,
        }
    }
}
