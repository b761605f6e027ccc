//! What a worker counts.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_metrics::ShardedCounter;
use forebay_transport::{Op, Provenance};
use serde::Serialize;

use crate::rates::LimitedCounts;

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
    /// Changes of the namespace.
    pub change: u64,
    /// Files and parts of files to be taken to the origin.
    pub upload: u64,
    /// Requests to forget what is known of a name.
    pub refresh: u64,
}

/// A snapshot of a worker's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerCounts {
    /// Requests answered, well or badly.
    pub requests: OpCounts,
    /// Requests that failed.
    pub failures: u64,
    /// Requests of those who asked too often.
    pub rate_limited: LimitedCounts,
    /// Bytes served from memory.
    pub bytes_memory: u64,
    /// Bytes served from disk.
    pub bytes_disk: u64,
    /// Bytes that had to be fetched from the origin, for a read or ahead of one.
    pub bytes_origin: u64,
    /// Bytes that came from the caches of other workers instead.
    pub bytes_peers: u64,
    /// Bytes that were taken over from workers that leave.
    pub bytes_adopted: u64,
    /// Blocks that were dropped on request.
    pub blocks_freed: u64,
    /// Bytes of those, in memory and on disk together.
    pub bytes_freed: u64,
    /// Bytes of files that were taken to the origin.
    pub bytes_uploaded: u64,
    /// Fetches from origins and peers under way.
    pub fetches: u64,
}

/// What each hit adds to is spread over threads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: ShardedCounter,
    /// The others, in the order of [`OpCounts`].
    ops: [AtomicU64; 6],
    failures: AtomicU64,
    memory: ShardedCounter,
    disk: AtomicU64,
    origin: AtomicU64,
    peers: AtomicU64,
    adopted: AtomicU64,
    blocks_freed: AtomicU64,
    bytes_freed: AtomicU64,
    uploaded: AtomicU64,
}

/// Where the bytes of an answer came from, as this worker counts it. Its caller hears of what peers had as of what was in
/// memory: a cache had it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) provenance: Provenance,
    pub(crate) peers: u32,
}

impl Served {
    pub(crate) fn told(self) -> Provenance {
        self.provenance.and(Provenance { memory: self.peers, ..Provenance::default() })
    }
}

impl Counters {
    pub(crate) fn asked(&self, op: Op) {
        let at = match op {
            Op::Read => return self.reads.add(1),
            Op::Fill => 0,
            Op::Stat | Op::StatRead | Op::Part => 1,
            Op::List => 2,
            Op::Change => 3,
            Op::Upload => 4,
            Op::Refresh => 5,
            Op::Ping | Op::Coverage | Op::Stats | Op::Paths | Op::Free | Op::Adopt | Op::Admit => return,
        };
        self.ops[at].fetch_add(1, Ordering::Relaxed);
    }

    /// A read that memory had all of.
    #[inline]
    pub(crate) fn hit(&self, bytes: u32) {
        self.reads.add(1);
        self.memory.add(u64::from(bytes));
    }

    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn served(&self, Served { provenance, peers }: Served) {
        if provenance.memory > 0 {
            self.memory.add(u64::from(provenance.memory));
        }
        for (counter, bytes) in [(&self.disk, provenance.disk), (&self.origin, provenance.origin), (&self.peers, peers)]
        {
            if bytes > 0 {
                counter.fetch_add(u64::from(bytes), Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn adopted(&self, bytes: u32) {
        self.adopted.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(crate) fn freed(&self, blocks: u64, bytes: u64) {
        self.blocks_freed.fetch_add(blocks, Ordering::Relaxed);
        self.bytes_freed.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn uploaded(&self, bytes: usize) {
        self.uploaded.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self, fetches: usize, rate_limited: LimitedCounts) -> WorkerCounts {
        let op = |at: usize| self.ops[at].load(Ordering::Relaxed);
        let requests = OpCounts {
            read: self.reads.get(),
            fill: op(0),
            stat: op(1),
            list: op(2),
            change: op(3),
            upload: op(4),
            refresh: op(5),
        };
        WorkerCounts {
            requests,
            failures: self.failures.load(Ordering::Relaxed),
            rate_limited,
            bytes_memory: self.memory.get(),
            bytes_disk: self.disk.load(Ordering::Relaxed),
            bytes_origin: self.origin.load(Ordering::Relaxed),
            bytes_peers: self.peers.load(Ordering::Relaxed),
            bytes_adopted: self.adopted.load(Ordering::Relaxed),
            blocks_freed: self.blocks_freed.load(Ordering::Relaxed),
            bytes_freed: self.bytes_freed.load(Ordering::Relaxed),
            bytes_uploaded: self.uploaded.load(Ordering::Relaxed),
            fetches: fetches as u64,
        }
    }
}
