//! The report of a run, for programs: the whole of it is one JSON document.

use serde::Serialize;

use crate::options::{Case, Kind, TransportChoice};
use crate::statistics::{Bandwidth, Latency};

/// A run from beginning to end.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Forebay's version on this side.
    pub version: &'static str,
    /// When it began: RFC 3339.
    pub started: String,
    /// What carried the bytes, where `verbs` is null.
    pub transport: TransportChoice,
    /// The other side.
    pub server: ServerReport,
    /// UCX, if it carried them.
    pub ucx: Option<UcxReport>,
    /// The card over which they went by verbs, if they did.
    pub verbs: Option<String>,
    /// Which tests.
    pub case: Case,
    /// How long each test was to take, in seconds.
    pub duration_seconds: f64,
    /// Payloads that came back as they were written.
    pub verified: Vec<Verified>,
    /// Latency tests.
    pub latency: Vec<LatencyResult>,
    /// Bandwidth tests.
    pub bandwidth: Vec<BandwidthResult>,
}

/// The server.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// Its control address.
    pub address: String,
    /// Forebay's version there.
    pub version: String,
    /// The delay that it adds, in microseconds.
    pub delay_us: u64,
}

/// UCX on this side.
#[derive(Clone, Debug, Serialize)]
pub struct UcxReport {
    /// Its version.
    pub version: String,
    /// The library that was loaded.
    pub library: String,
    /// What carried one-sided operations, as `TRANSPORT/DEVICE`.
    pub lanes: Vec<String>,
    /// Whether a network card moved the bytes.
    pub rdma: bool,
}

/// Payloads that were compared byte for byte.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Verified {
    /// The kind of operation.
    pub kind: Kind,
    /// Bytes of payload.
    pub bytes: u64,
    /// How many were compared.
    pub transfers: u32,
}

/// A latency test.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencyResult {
    /// The kind of operation.
    pub kind: Kind,
    /// Bytes of payload.
    pub bytes: u64,
    /// What was measured.
    #[serde(flatten)]
    pub latency: Latency,
}

/// A bandwidth test.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BandwidthResult {
    /// The kind of operation.
    pub kind: Kind,
    /// Bytes of payload.
    pub bytes: u64,
    /// Threads.
    pub jobs: u32,
    /// Operations that each had under way.
    pub depth: u32,
    /// What was measured.
    #[serde(flatten)]
    pub bandwidth: Bandwidth,
}
