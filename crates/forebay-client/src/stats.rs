//! What a client counts.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_transport::Provenance;

/// Where the bytes of a read came from, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadSource {
    /// The memory of a worker in this process, without waiting.
    LocalMemory,
    /// What had been prefetched from another process.
    Buffered,
}

/// Counters of a client, in bytes unless said otherwise. Reading them costs nothing to those who count.
#[derive(Debug, Default, serde::Serialize)]
pub struct ClientStats {
    /// From the memory of a worker in this process, without waiting.
    pub local_memory: AtomicU64,
    /// From what had been prefetched.
    pub buffered: AtomicU64,
    /// From a worker's memory.
    pub worker_memory: AtomicU64,
    /// From a worker's disks.
    pub worker_disk: AtomicU64,
    /// From the origin, through a worker.
    pub origin: AtomicU64,
    /// Asked for ahead of a reader.
    pub prefetched: AtomicU64,
    /// Requests that went to another worker than the first choice.
    pub failovers: AtomicU64,
    /// Sectors that were not what their worker's sums say when they arrived.
    pub corrupt_sectors: AtomicU64,
    /// Reads that failed.
    pub failed_reads: AtomicU64,
}

impl ClientStats {
    pub(crate) fn hit(&self, source: ReadSource, bytes: u64) {
        let counter = match source {
            ReadSource::LocalMemory => &self.local_memory,
            ReadSource::Buffered => &self.buffered,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn delivered(&self, provenance: Provenance) {
        for (counter, bytes) in [
            (&self.worker_memory, provenance.memory),
            (&self.worker_disk, provenance.disk),
            (&self.origin, provenance.origin),
        ] {
            if bytes > 0 {
                counter.fetch_add(u64::from(bytes), Ordering::Relaxed);
            }
        }
    }
}
