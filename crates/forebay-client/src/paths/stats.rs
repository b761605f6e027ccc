//! What is counted of the paths to all workers, and how they are now.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_metrics::LatencyHistogram;
use serde::{Serialize, Serializer};

use super::PathKind;

/// Counters of paths and of the switches between them, shared by the links to all workers. A worker has one set of paths
/// for data and one for metadata.
#[derive(Debug, Default, Serialize)]
pub struct PathStats {
    /// Sets that went from RDMA to TCP.
    pub fell_back: AtomicU64,
    /// Sets that came back to RDMA.
    pub failed_back: AtomicU64,
    /// How often a network card was left out while others remained.
    pub left_out: AtomicU64,
    /// How often one was used again while others had remained.
    pub taken_back: AtomicU64,
    /// Sets of which no RDMA path was up while the policy allows no other.
    pub unreachable: AtomicU64,
    /// Workers whose paths turned out to be others than before.
    pub renewed: AtomicU64,
    /// What went over RDMA.
    pub rdma: Traffic,
    /// What went over TCP.
    pub tcp: Traffic,
    /// Reads that were divided among several cards.
    pub striping: StripingStats,
    /// The last switch, in words.
    #[serde(serialize_with = "text")]
    last_switch: Mutex<Option<String>>,
}

/// What went over the paths of one kind.
#[derive(Debug, Default, Serialize)]
pub struct Traffic {
    /// Calls that were answered.
    pub calls: AtomicU64,
    /// Bytes that came with the answers.
    pub bytes_received: AtomicU64,
    /// From call to answer.
    pub latency: LatencyHistogram,
}

/// What became of large reads to workers that are reached over several cards.
#[derive(Debug, Default, Serialize)]
pub struct StripingStats {
    /// Reads that were divided, and came so.
    pub reads: AtomicU64,
    /// The parts that they were divided into.
    pub parts: AtomicU64,
    /// Parts that were asked for over another path as well, because they were late.
    pub late: AtomicU64,
    /// Parts that were asked for over another path, because theirs failed.
    pub failed: AtomicU64,
    /// Reads that were divided, and asked for as a whole then, because the worker had not all of it.
    pub not_cached: AtomicU64,
}

impl PathStats {
    /// A call over a path of this kind was answered.
    pub(super) fn answered(&self, kind: PathKind, bytes: usize, took: Duration) {
        let traffic = match kind {
            PathKind::Rdma => &self.rdma,
            PathKind::Tcp => &self.tcp,
        };
        traffic.calls.fetch_add(1, Ordering::Relaxed);
        traffic.bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
        traffic.latency.record(took);
    }

    /// There was a switch.
    pub(super) fn switched(&self, counter: &AtomicU64, what: String) {
        counter.fetch_add(1, Ordering::Relaxed);
        *self.last_switch.lock() = Some(what);
    }
}

fn text<S: Serializer>(text: &Mutex<Option<String>>, serializer: S) -> Result<S::Ok, S::Error> {
    text.lock().serialize(serializer)
}

/// How one path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathReport {
    /// What it is: `tcp`, or the network cards at both ends.
    pub path: String,
    /// Whether it is one of those that are preferred.
    pub rdma: bool,
    /// Whether it is used.
    pub up: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What it carries, by what was measured; only of several cards among which reads are divided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
}

impl PathReport {
    pub(super) fn new(name: &str, kind: PathKind, cause: Option<String>, bytes_per_second: Option<u64>) -> Self {
        let (path, rdma, up) = (name.to_owned(), kind == PathKind::Rdma, cause.is_none());
        Self { path, rdma, up, cause, bytes_per_second }
    }
}

/// How the paths to one worker are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkerReport {
    /// Its address over TCP.
    pub worker: String,
    /// The paths of data; none before the worker was first asked for any.
    pub data: Vec<PathReport>,
    /// The paths of attributes and listings.
    pub metadata: Vec<PathReport>,
}
