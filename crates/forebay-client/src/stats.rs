//! What a client counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_metrics::{LatencyHistogram, ShardedCounter};
use forebay_transport::{CallError, LinkError, Op, Payload, Provenance, Reply};

/// Where the bytes of a read came from, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadSource {
    /// The memory of a worker in this process, without waiting.
    LocalMemory,
    /// What had been prefetched from another process.
    Buffered,
}

/// Counters of a client, in bytes unless said otherwise. Reading them costs nothing to the threads that count.
#[derive(Debug, Default, serde::Serialize)]
pub struct ClientStats {
    /// From the memory of a worker in this process, without waiting.
    pub local_memory: ShardedCounter,
    /// From what had been prefetched.
    pub buffered: ShardedCounter,
    /// From a worker's memory.
    pub worker_memory: AtomicU64,
    /// From a worker's disks.
    pub worker_disk: AtomicU64,
    /// From the origin, through a worker.
    pub origin: AtomicU64,
    /// Asked for ahead of a reader.
    pub prefetched: AtomicU64,
    /// Files that were fetched before they were opened, since those before them in their directory were.
    pub files_ahead: AtomicU64,
    /// Those that were opened then.
    pub files_ahead_used: AtomicU64,
    /// Those that were not.
    pub files_ahead_wasted: AtomicU64,
    /// Requests that went to another worker than the first choice.
    pub failovers: AtomicU64,
    /// Reads, and questions about names, that waited for their worker and were sent to another one, too.
    pub hedges_sent: AtomicU64,
    /// Those that the other one answered first.
    pub hedges_won: AtomicU64,
    /// Those that were for nothing: the worker that was asked first answered after all, or the other one failed.
    pub hedges_wasted: AtomicU64,
    /// Times when a worker was found to be slow.
    pub slow_workers: AtomicU64,
    /// Reads, and questions about names, that went to another worker at once because theirs is slow.
    pub avoided_reads: AtomicU64,
    /// Times when no worker could be reached.
    pub outages: AtomicU64,
    /// Requests that wait for one at present.
    pub waiting_for_workers: AtomicU64,
    /// Requests that went to the origin without a worker, since none could be reached, or theirs was late or slow.
    pub direct_requests: AtomicU64,
    /// Sectors that were not what their worker's checksums say when they arrived.
    pub corrupt_sectors: AtomicU64,
    /// Reads that failed.
    pub failed_reads: AtomicU64,
    /// Taken to the origin, through a worker.
    pub uploaded: AtomicU64,
    /// Files and parts of files that were taken to the origin.
    pub uploads: AtomicU64,
    /// Changes of the namespace that were made, uploads aside.
    pub changes: AtomicU64,
    /// Requests for bytes to workers in other processes, over whatever path.
    pub data: Calls,
    /// Requests for attributes and listings to any worker.
    pub metadata: Calls,
}

/// Requests to workers.
#[derive(Debug, Default, serde::Serialize)]
pub struct Calls {
    /// Those that no worker answered.
    pub failures: AtomicU64,
    /// Bytes that came with the answers.
    pub bytes_received: AtomicU64,
    /// From request to answer.
    pub latency: LatencyHistogram,
}

impl ClientStats {
    pub(crate) fn hit(&self, source: ReadSource, bytes: u64) {
        let counter = match source {
            ReadSource::LocalMemory => &self.local_memory,
            ReadSource::Buffered => &self.buffered,
        };
        counter.add(bytes);
    }

    /// A request ended; `local`: it was for a worker in this process.
    pub fn called(&self, local: bool, op: Op, answer: &Result<Reply, CallError>, took: Duration) {
        let calls = match op {
            Op::Stat | Op::List | Op::StatRead | Op::Part => &self.metadata,
            Op::Read | Op::Fill if !local => &self.data,
            _ => return,
        };
        match answer {
            Ok(reply) => {
                let bytes = reply.body.len() as u64 + carried(&reply.payload);
                calls.bytes_received.fetch_add(bytes, Ordering::Relaxed);
            }
            // The worker's answer is no, and it is an answer.
            Err(CallError::Service(_)) => {}
            // It is asked again, another way, and that counts.
            Err(CallError::Link(LinkError::OtherPath { .. })) => return,
            Err(CallError::Link(_)) => {
                calls.failures.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        calls.latency.record(took);
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

/// The bytes of a read that came with its answer.
fn carried(payload: &Payload) -> u64 {
    match payload {
        Payload::None => 0,
        Payload::Landed(span) => span.len() as u64,
        Payload::Shared(spans) => spans.iter().map(|span| span.len() as u64).sum(),
    }
}
