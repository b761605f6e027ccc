//! Another host, as it was asked and measured from here.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::facts::route::{PathMtu, Route};

/// Another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerProbe {
    /// As it was named.
    pub name: String,
    /// Its addresses; the first one is asked.
    pub addresses: Vec<IpAddr>,
    /// Why it has none.
    pub unknown: Option<String>,
    /// The address that it is connected to from, where the configuration says one.
    pub from: Option<IpAddr>,
    /// The way to it.
    pub route: Option<Route>,
    /// The ports that were tried.
    pub ports: Vec<PeerPort>,
    /// How large the packets are that the way takes.
    pub path_mtu: Option<PathMtu>,
    /// The worker there, if its port is open.
    pub worker: Option<PeerWorker>,
    /// What was measured with the benchmark's server there, by TCP, by UCX and by verbs.
    pub measured: Vec<PeerMeasured>,
}

/// What became of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reached {
    /// It was made.
    #[default]
    Open,
    /// The host is there, and no process listens.
    Refused,
    /// No answer at all.
    Silent,
    /// The system's words.
    Failed(String),
}

/// A port of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerPort {
    /// What is expected there: `worker`, `benchmark`, `metrics`.
    pub service: String,
    /// Where.
    pub address: SocketAddr,
    /// What became of a connection.
    pub reached: Reached,
    /// How long that took, in microseconds.
    pub took_us: u64,
}

/// What a worker said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerWorker {
    /// Why it did not let us in.
    pub error: Option<String>,
    /// How long it took to answer a question over TCP, in microseconds: the shortest of a few.
    pub ping_us: Option<u64>,
    /// The version of UCX that it runs; `None` where it offers none.
    pub ucx: Option<String>,
    /// The version of what it speaks over verbs; `None` where it offers none.
    #[serde(default)]
    pub verbs: Option<u8>,
    /// The ways to it by RDMA.
    pub listeners: Vec<PeerListener>,
}

/// A listener of a worker for RDMA.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerListener {
    /// Its network card, by the worker's name for it.
    pub card: String,
    /// Whether it is one of verbs, and not of UCX.
    #[serde(default)]
    pub is_verbs: bool,
    /// Where it listens.
    pub address: String,
    /// The card here that it was connected from; `any` where UCX chose.
    pub from: String,
    /// Why it could not be connected to; `None` also where it was not tried.
    pub error: Option<String>,
    /// How long it took to connect, in microseconds; `None` where it was not tried, or failed.
    pub connect_us: Option<u64>,
    /// How long it took to answer a question, in microseconds: the shortest of a few.
    pub ping_us: Option<u64>,
}

/// What was measured over one transport.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerMeasured {
    /// `tcp`, `ucx` or `verbs`.
    pub transport: String,
    /// Why nothing was.
    pub error: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
    /// Forebay's version there.
    pub version: Option<String>,
    /// What carried the bytes, as UCX names it: `rc_mlx5/mlx5_0:1`; by verbs, `verbs/mlx5_0:1`.
    pub lanes: Vec<String>,
    /// Whether network cards moved them.
    pub is_rdma: bool,
    /// Payloads that were compared byte for byte.
    pub verified: u32,
    /// How long operations took one after the other.
    pub latency: Vec<PeerLatency>,
    /// How much many at once moved.
    pub bandwidth: Vec<PeerBandwidth>,
    /// The bytes of the bandwidth tests.
    pub moved_bytes: u64,
    /// The bytes that the interface, or the port, of the way there counted meanwhile, both directions together.
    pub counted_bytes: Option<u64>,
    /// Which one that was.
    pub counted_at: Option<String>,
}

/// The direction and manner of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerOperation {
    /// To the peer.
    #[default]
    Write,
    /// From the peer.
    Read,
    /// From the peer, as a request of the cache and its reply.
    Cache,
}

/// How long operations took, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLatency {
    /// Direction and manner.
    pub operation: PeerOperation,
    /// Bytes of each.
    pub bytes: u64,
    /// Half took no longer.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
}

/// How much was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerBandwidth {
    /// Direction and manner.
    pub operation: PeerOperation,
    /// Bytes of each operation.
    pub bytes: u64,
    /// Millions of bits a second.
    pub mbps: u64,
}

impl PeerProbe {
    /// The port where this service is expected.
    #[must_use]
    pub fn port(&self, service: &str) -> Option<&PeerPort> {
        self.ports.iter().find(|port| port.service == service)
    }
}

impl PeerMeasured {
    /// The most of all sizes that was moved in this direction and manner, in Mb/s.
    #[must_use]
    pub fn best_mbps(&self, operation: PeerOperation) -> Option<u64> {
        self.bandwidth.iter().filter(|test| test.operation == operation).map(|test| test.mbps).max()
    }

    /// The latency of the smallest operations of this kind.
    #[must_use]
    pub fn smallest(&self, operation: PeerOperation) -> Option<PeerLatency> {
        let of_kind = self.latency.iter().filter(|test| test.operation == operation);
        of_kind.min_by_key(|test| test.bytes).copied()
    }
}

impl PeerOperation {
    /// How a person reads it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "to it",
            Self::Read => "from it",
            Self::Cache => "as the cache reads",
        }
    }
}
