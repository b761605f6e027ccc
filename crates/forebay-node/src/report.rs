//! The counters of a process as it reports them, with types: what `forebay stats` reads from `/stats`, from `.stats.json`, from a
//! mount's socket or from a worker, and what metrics are made of.
//!
//! All of it may be missing: a worker has no mount, a mount no origin, and another version of the program counts something
//! else.

#![expect(
    missing_docs,
    reason = "fields are called as in the report, and what they count is said where their metric is described"
)]

mod mount;
#[cfg(any(test, feature = "sample"))]
pub mod sample;

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_metrics::{LatencySnapshot, ProcessStats};
use serde::Deserialize;
use serde_json::Value;

pub use mount::{Drafts, Fuse, FuseIo, Local, LocalFills, Staging, StagingSpace, Uploads};

/// What a process reports.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Report {
    pub process: Option<ProcessStats>,
    pub fuse: Option<Fuse>,
    pub staging: Option<Staging>,
    /// A mount's materialised files.
    pub local: Option<Local>,
    pub client: Option<Client>,
    /// A client's memory.
    pub buffers: Option<Memory>,
    pub rdma: Option<Rdma>,
    pub window: Option<Window>,
    pub worker: Option<Worker>,
    pub store: Option<Store>,
    pub origins: Vec<Origin>,
    /// A worker's requests from other processes, by what they asked for.
    pub requests: BTreeMap<String, LatencySnapshot>,
    /// Connections of a worker over TCP.
    pub connections: Option<u64>,
    /// Those of them, and to its shared memory, whose clients proved nothing.
    pub unauthenticated_connections: u64,
    /// Those that it closed or refused, by reason.
    pub closed_connections: BTreeMap<String, u64>,
    /// Bytes of memory that uploads to a worker have.
    pub upload_memory: Option<u64>,
    /// What a worker sends over TCP without copying it.
    pub zero_copy: Option<ZeroCopy>,
    /// What a mount knows of the members of its cluster.
    pub cluster: Option<Cluster>,
    /// What a process knows of its connections to etcd.
    pub etcd: Option<Etcd>,
    /// What a worker proves to its clients.
    pub security: Option<Security>,
    /// What a worker or a coordinator records.
    pub audit: Option<Audit>,
    /// What a coordinator counts.
    pub coordinator: Option<Coordinator>,
    /// What an S3 endpoint counts.
    pub s3: Option<S3>,
    /// What an operator of Kubernetes counts.
    pub operator: Option<Operator>,
    /// The worker in the process of a mount.
    pub node: Option<Box<Report>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Cluster {
    pub members: Vec<Value>,
    /// Where the membership service is out of reach: what is known may be old.
    pub last_known: Option<LastKnown>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Etcd {
    pub certificate_renewals: u64,
    /// Where changed certificate files cannot be used.
    pub certificate_refused_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Security {
    pub certificate_expires_seconds: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Audit {
    pub lost: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Coordinator {
    pub leads: bool,
    /// By their state.
    pub jobs: BTreeMap<String, u64>,
    pub bytes_per_second: f64,
    pub failures: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct S3 {
    pub operations: BTreeMap<String, LatencySnapshot>,
    /// By the class of their status: `2xx`.
    pub answers: BTreeMap<String, u64>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Requests that nobody known has signed.
    pub unsigned: u64,
    pub under_way: u64,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Operator {
    /// By the kind of objects.
    pub kinds: BTreeMap<String, OperatorKind>,
    /// Workers that it asked to leave their nodes.
    pub leaving: u64,
    pub drain_timeouts: u64,
    /// By reason.
    pub coordinator_errors: BTreeMap<String, u64>,
    pub kubernetes_errors: u64,
    /// Events that the API server did not take.
    pub lost_events: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OperatorKind {
    pub objects: u64,
    /// Those of them that are not as they say.
    pub unready: u64,
    pub outcomes: BTreeMap<String, u64>,
    pub latency: LatencySnapshot,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LastKnown {
    pub seconds: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Client {
    pub local_memory: u64,
    pub buffered: u64,
    pub worker_memory: u64,
    pub worker_disk: u64,
    pub origin: u64,
    pub prefetched: u64,
    pub files_ahead: u64,
    pub files_ahead_used: u64,
    pub files_ahead_wasted: u64,
    pub failovers: u64,
    pub hedges_sent: u64,
    pub hedges_won: u64,
    pub hedges_wasted: u64,
    pub slow_workers: u64,
    pub avoided_reads: u64,
    pub outages: u64,
    pub waiting_for_workers: u64,
    pub direct_requests: u64,
    pub corrupt_sectors: u64,
    pub failed_reads: u64,
    pub uploaded: u64,
    pub uploads: u64,
    pub changes: u64,
    pub data: Calls,
    pub metadata: Calls,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Calls {
    pub failures: u64,
    pub bytes_received: u64,
    pub latency: LatencySnapshot,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Memory {
    pub capacity: u64,
    pub used: u64,
    pub runs_evicted: u64,
    pub corrupt_sectors: u64,
    pub waits: u64,
    pub failures: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Rdma {
    /// Of a worker.
    pub listeners: Vec<Listener>,
    /// Of a mount.
    pub paths: Option<Paths>,
    pub workers: Vec<WorkerPaths>,
    pub cards: Vec<Card>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Listener {
    pub card: String,
    pub registered_bytes: u64,
    pub connections: u64,
    pub refused_connections: u64,
    pub no_room_connections: u64,
    pub requests: u64,
    pub bytes_received: u64,
    pub replies: u64,
    pub bytes_sent: u64,
    pub latency: LatencySnapshot,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Card {
    pub card: String,
    pub registered_bytes: u64,
    pub bytes_received: u64,
    pub one_sided_reads: u64,
    pub one_sided_refused: u64,
    pub bytes_in_messages: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Paths {
    pub fell_back: u64,
    pub failed_back: u64,
    pub rdma: Traffic,
    pub tcp: Traffic,
    pub striping: Striping,
}

/// Large reads of workers that are reached over several cards.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Striping {
    pub reads: u64,
    pub parts: u64,
    pub late: u64,
    pub failed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Traffic {
    pub bytes_received: u64,
    pub latency: LatencySnapshot,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WorkerPaths {
    pub worker: String,
    pub data: Vec<Path>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Path {
    /// `tcp`, or the cards at both ends.
    pub path: String,
    pub rdma: bool,
    pub up: bool,
    /// Why it is not.
    pub cause: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ZeroCopy {
    pub bytes: u64,
    /// Sends.
    pub copied: u64,
    pub lost_bytes: u64,
}

/// Of a client, or of a worker.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Window {
    /// What a client read where workers have it.
    pub reads: Option<u64>,
    pub bytes: Option<u64>,
    /// The workers that a client may see.
    pub workers: Vec<WindowWorker>,
    /// Clients that see a worker's memory.
    pub connections: Option<u64>,
    /// What a worker keeps as it is for them.
    pub pinned_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct WindowWorker {
    pub worker: String,
    pub state: String,
    pub why: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Worker {
    pub requests: BTreeMap<String, u64>,
    pub failures: u64,
    pub rate_limited: BTreeMap<String, u64>,
    pub bytes_memory: u64,
    pub bytes_disk: u64,
    pub bytes_origin: u64,
    pub bytes_peers: u64,
    pub bytes_adopted: u64,
    pub blocks_freed: u64,
    pub bytes_freed: u64,
    pub bytes_uploaded: u64,
    pub fetches: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Store {
    pub blocks: u64,
    pub memory: Memory,
    pub disks: Vec<Disk>,
    pub disk_queue_bytes: u64,
    pub disk_write_skipped: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Disk {
    pub dir: PathBuf,
    pub capacity: u64,
    pub used: u64,
    pub runs_evicted: u64,
    pub bytes_written: u64,
    pub bytes_read: u64,
    pub corrupt_sectors: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    pub degraded: bool,
    /// It hangs, and is not used.
    pub out: bool,
    pub read_timeouts: u64,
    pub taken_out: u64,
    pub returned: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub counts: OriginCounts,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OriginCounts {
    pub bytes: u64,
    pub uploaded: u64,
    pub retries: u64,
    pub errors: u64,
    pub operations: Vec<OriginOperation>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct OriginOperation {
    pub operation: String,
    pub outcomes: Vec<(String, u64)>,
    pub latency: LatencySnapshot,
}

impl Report {
    /// What `report` says.
    ///
    /// # Errors
    /// When it is none.
    pub fn of(report: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(report)
    }

    /// It, and that of the worker in the same process.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
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
        let worker = report.worker.unwrap();
        assert_eq!((worker.bytes_disk, worker.rate_limited["refresh_below"]), (5, 0));
        assert_eq!(report.client.unwrap().data.latency.count(), 0);
        assert!(report.process.unwrap().threads > 0);
        assert!(report.rdma.unwrap().paths.is_some());
    }

    #[test]
    fn a_process_without_rdma_or_mount_reports_less() {
        let report = Report::of(&serde_json::json!({ "rdma": null, "worker": { "news": 1 }, "more": [] })).unwrap();
        assert!(report.rdma.is_none() && report.fuse.is_none() && report.worker.is_some());
        assert!(Report::of(&serde_json::json!([1])).is_err());
    }
}
