//! The counters of a process as it reports them, with types: what `forebay stats` reads from `/stats`, from `.stats.json`, from a
//! mount's socket or from a worker, and what metrics are made of.
//!
//! All of it may be missing: a worker has no mount, a mount no origin, and another version of the program counts something
//! else.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use forebay_metrics::{LatencySnapshot, ProcessStats};
use serde::Deserialize;
use serde_json::Value;

/// What a process reports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) process: Option<ProcessStats>,
    pub(crate) fuse: Option<Fuse>,
    pub(crate) staging: Option<Staging>,
    /// A mount's materialised files.
    pub(crate) local: Option<Local>,
    pub(crate) client: Option<Client>,
    /// A client's memory.
    pub(crate) buffers: Option<Memory>,
    pub(crate) rdma: Option<Rdma>,
    pub(crate) window: Option<Window>,
    pub(crate) worker: Option<Worker>,
    pub(crate) store: Option<Store>,
    pub(crate) origins: Vec<Origin>,
    /// A worker's requests from other processes, by what they asked for.
    pub(crate) requests: BTreeMap<String, LatencySnapshot>,
    /// Connections of a worker over TCP.
    pub(crate) connections: Option<u64>,
    /// What a worker sends over TCP without copying it.
    pub(crate) zero_copy: Option<ZeroCopy>,
    /// What a mount knows of the members of its cluster.
    pub(crate) cluster: Option<Cluster>,
    /// What a coordinator counts.
    pub(crate) coordinator: Option<Coordinator>,
    /// The worker in the process of a mount.
    pub(crate) node: Option<Box<Report>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Cluster {
    pub(crate) members: Vec<Value>,
    /// Where the membership service is out of reach: what is known may be old.
    pub(crate) last_known: Option<LastKnown>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Coordinator {
    pub(crate) leads: bool,
    /// By their state.
    pub(crate) jobs: BTreeMap<String, u64>,
    pub(crate) bytes_per_second: f64,
    pub(crate) failures: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LastKnown {
    pub(crate) seconds: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Fuse {
    pub(crate) operations: BTreeMap<String, LatencySnapshot>,
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) read_bytes: u64,
    pub(crate) read_hits: u64,
    pub(crate) read_misses: u64,
    pub(crate) written_bytes: u64,
    pub(crate) inodes: u64,
    /// How requests come from the kernel.
    pub(crate) io: Option<FuseIo>,
}

/// Of rings only where there are some: their counters stay 0 over `/dev/fuse`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FuseIo {
    /// `device` or `uring`; empty until that is settled.
    pub(crate) mode: String,
    pub(crate) threads: u64,
    pub(crate) queues: u64,
    /// Entries of a queue.
    pub(crate) depth: u64,
    /// Why requests do not come over io_uring although that was wanted.
    pub(crate) why_not_uring: Option<String>,
    pub(crate) passthrough: bool,
    pub(crate) requests: u64,
    pub(crate) kept: u64,
    pub(crate) submits: u64,
    pub(crate) bells: u64,
    pub(crate) starved: u64,
    pub(crate) malformed: u64,
    pub(crate) interrupts: u64,
}

/// What a mount keeps whole for the kernel to read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Local {
    pub(crate) on: bool,
    pub(crate) capacity_bytes: u64,
    pub(crate) huge_bytes: u64,
    /// By their state.
    pub(crate) files: BTreeMap<String, u64>,
    /// By what they are used for.
    pub(crate) bytes: BTreeMap<String, u64>,
    /// Opens for reading, by what was found.
    pub(crate) opens: BTreeMap<String, u64>,
    /// Handles for reading, by what serves them.
    pub(crate) handles: BTreeMap<String, u64>,
    /// Files that were not taken, by the reason.
    pub(crate) refused: BTreeMap<String, u64>,
    pub(crate) refused_by_kernel: u64,
    pub(crate) splits: u64,
    pub(crate) fills: LocalFills,
    pub(crate) evictions: u64,
    pub(crate) corrupt_sectors: u64,
    pub(crate) checked_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LocalFills {
    pub(crate) done: u64,
    pub(crate) changed: u64,
    pub(crate) cancelled: u64,
    pub(crate) no_room: u64,
    pub(crate) corrupt: u64,
    pub(crate) failed: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds_sum: f64,
}

/// What a mount writes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Staging {
    pub(crate) drafts: Drafts,
    pub(crate) space: StagingSpace,
    pub(crate) uploads: Uploads,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Drafts {
    pub(crate) open: u64,
    pub(crate) dirty: u64,
    pub(crate) failed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct StagingSpace {
    pub(crate) size: u64,
    pub(crate) used: u64,
    pub(crate) failed: u64,
    pub(crate) writers_waiting: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Uploads {
    pub(crate) bytes_in_flight: u64,
    pub(crate) completed: u64,
    pub(crate) aborted: u64,
    pub(crate) puts: u64,
    pub(crate) parts: u64,
    pub(crate) bytes: u64,
    pub(crate) failures: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Client {
    pub(crate) local_memory: u64,
    pub(crate) buffered: u64,
    pub(crate) worker_memory: u64,
    pub(crate) worker_disk: u64,
    pub(crate) origin: u64,
    pub(crate) prefetched: u64,
    pub(crate) failovers: u64,
    pub(crate) outages: u64,
    pub(crate) waiting_for_workers: u64,
    pub(crate) direct_requests: u64,
    pub(crate) corrupt_sectors: u64,
    pub(crate) failed_reads: u64,
    pub(crate) uploaded: u64,
    pub(crate) uploads: u64,
    pub(crate) changes: u64,
    pub(crate) data: Calls,
    pub(crate) metadata: Calls,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Calls {
    pub(crate) failures: u64,
    pub(crate) bytes_received: u64,
    pub(crate) latency: LatencySnapshot,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Memory {
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) runs_evicted: u64,
    pub(crate) corrupt_sectors: u64,
    pub(crate) waits: u64,
    pub(crate) failures: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Rdma {
    /// Of a worker.
    pub(crate) listeners: Vec<Listener>,
    /// Of a mount.
    pub(crate) paths: Option<Paths>,
    pub(crate) workers: Vec<WorkerPaths>,
    pub(crate) cards: Vec<Card>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Listener {
    pub(crate) card: String,
    pub(crate) registered_bytes: u64,
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) bytes_received: u64,
    pub(crate) replies: u64,
    pub(crate) bytes_sent: u64,
    pub(crate) latency: LatencySnapshot,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Card {
    pub(crate) card: String,
    pub(crate) registered_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Paths {
    pub(crate) fell_back: u64,
    pub(crate) failed_back: u64,
    pub(crate) rdma: Traffic,
    pub(crate) tcp: Traffic,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Traffic {
    pub(crate) bytes_received: u64,
    pub(crate) latency: LatencySnapshot,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WorkerPaths {
    pub(crate) worker: String,
    pub(crate) data: Vec<Path>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Path {
    /// `tcp`, or the cards at both ends.
    pub(crate) path: String,
    pub(crate) rdma: bool,
    pub(crate) up: bool,
    /// Why it is not.
    pub(crate) cause: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ZeroCopy {
    pub(crate) bytes: u64,
    /// Sends.
    pub(crate) copied: u64,
    pub(crate) lost_bytes: u64,
}

/// Of a client, or of a worker.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Window {
    /// What a client read where workers have it.
    pub(crate) reads: Option<u64>,
    pub(crate) bytes: Option<u64>,
    /// The workers that a client may see.
    pub(crate) workers: Vec<WindowWorker>,
    /// Clients that see a worker's memory.
    pub(crate) connections: Option<u64>,
    /// What a worker keeps as it is for them.
    pub(crate) pinned_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WindowWorker {
    pub(crate) worker: String,
    pub(crate) state: String,
    pub(crate) why: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Worker {
    pub(crate) requests: BTreeMap<String, u64>,
    pub(crate) failures: u64,
    pub(crate) bytes_memory: u64,
    pub(crate) bytes_disk: u64,
    pub(crate) bytes_origin: u64,
    pub(crate) bytes_peers: u64,
    pub(crate) bytes_adopted: u64,
    pub(crate) blocks_freed: u64,
    pub(crate) bytes_freed: u64,
    pub(crate) bytes_uploaded: u64,
    pub(crate) fetches: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Store {
    pub(crate) blocks: u64,
    pub(crate) memory: Memory,
    pub(crate) disks: Vec<Disk>,
    pub(crate) disk_queue_bytes: u64,
    pub(crate) disk_write_skipped: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    pub(crate) capacity: u64,
    pub(crate) used: u64,
    pub(crate) runs_evicted: u64,
    pub(crate) bytes_written: u64,
    pub(crate) bytes_read: u64,
    pub(crate) corrupt_sectors: u64,
    pub(crate) read_errors: u64,
    pub(crate) write_errors: u64,
    pub(crate) degraded: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Origin {
    pub(crate) counts: OriginCounts,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OriginCounts {
    pub(crate) bytes: u64,
    pub(crate) uploaded: u64,
    pub(crate) retries: u64,
    pub(crate) errors: u64,
    pub(crate) operations: Vec<OriginOperation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OriginOperation {
    pub(crate) operation: String,
    pub(crate) outcomes: Vec<(String, u64)>,
    pub(crate) latency: LatencySnapshot,
}

/// For people.
impl fmt::Display for FuseIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, threads, queues, depth, why_not_uring, .. } = self;
        match &**mode {
            "uring" => write!(f, "over io_uring: {threads} threads, {queues} queues of {depth} requests"),
            _ => write!(f, "over /dev/fuse: {threads} threads"),
        }?;
        why_not_uring.as_ref().map_or(Ok(()), |why| write!(f, "; not over io_uring: {why}"))
    }
}

impl Report {
    /// What `report` says.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn of(report: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(report)
    }

    /// It, and that of the worker in the same process.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.node.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_components_report_is_understood() {
        let counts = forebay_worker::WorkerCounts { bytes_disk: 5, ..Default::default() };
        let store = forebay_store::StoreStats::default();
        let client = forebay_client::ClientStats::default();
        let paths = forebay_client::paths::PathStats::default();
        let report = serde_json::json!({
            "worker": counts, "store": store, "client": client, "rdma": { "paths": paths }, "buffers": store.memory,
            "process": ProcessStats::now(),
        });
        let report = Report::of(&report).unwrap();
        assert_eq!(report.worker.unwrap().bytes_disk, 5);
        assert_eq!(report.client.unwrap().data.latency.count(), 0);
        assert!(report.process.unwrap().threads > 0);
        assert!(report.rdma.unwrap().paths.is_some());
    }

    #[test]
    fn how_a_mount_is_served_is_told_with_what_keeps_io_uring_away() {
        let rings = FuseIo { mode: "uring".into(), threads: 2, queues: 8, depth: 64, ..FuseIo::default() };
        assert_eq!(rings.to_string(), "over io_uring: 2 threads, 8 queues of 64 requests");
        let device = FuseIo { mode: "device".into(), threads: 4, ..FuseIo::default() };
        assert_eq!(device.to_string(), "over /dev/fuse: 4 threads");
        let instead = FuseIo { why_not_uring: Some("it is switched off".into()), ..device };
        assert_eq!(instead.to_string(), "over /dev/fuse: 4 threads; not over io_uring: it is switched off");
    }

    #[test]
    fn a_process_without_rdma_or_mount_reports_less() {
        let report = Report::of(&serde_json::json!({ "rdma": null, "worker": { "news": 1 }, "more": [] })).unwrap();
        assert!(report.rdma.is_none() && report.fuse.is_none() && report.worker.is_some());
        assert!(Report::of(&serde_json::json!([1])).is_err());
    }
}
