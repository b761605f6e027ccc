//! What can be set.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use forebay_transport::driving::DriveOptions;
use serde::{Deserialize, Serialize};

/// Which tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Bytes written, read and compared.
    Basic,
    /// One operation after the other.
    Latency,
    /// Many at once, of every kind.
    Stress,
    /// Many at once, writing.
    StressWrite,
    /// Many at once, reading one-sidedly.
    StressRead,
    /// Many at once, by requests of the cache.
    StressCache,
    /// All of the above.
    All,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Basic => "basic",
            Self::Latency => "latency",
            Self::Stress => "stress",
            Self::StressWrite => "stress-write",
            Self::StressRead => "stress-read",
            Self::StressCache => "stress-cache",
            Self::All => "all",
        })
    }
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Into the server's memory.
    Write,
    /// Out of the server's memory.
    Read,
    /// The same and then, when all of it is here, what says whether it is right: as the cache's one-sided reads. By verbs alone.
    Seal,
    /// By a request of the cache.
    Cache,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Write => "WRITE",
            Self::Read => "READ",
            Self::Seal => "SEAL",
            Self::Cache => "CACHE",
        })
    }
}

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportChoice {
    /// OpenUCX: RDMA where there is a card for it.
    Ucx,
    /// TCP sockets.
    Tcp,
}

impl fmt::Display for TransportChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ucx => "UCX",
            Self::Tcp => "TCP",
        })
    }
}

/// What UCX is to use. What is empty is UCX's choice, or that of its environment (`UCX_TLS`, `UCX_NET_DEVICES`).
#[derive(Clone, Debug, Default)]
pub struct UcxOptions {
    /// libucp; `None` looks for the system's.
    pub library: Option<PathBuf>,
    /// UCX's names of devices: `mlx5_0:1`, `eth0`.
    pub devices: Vec<String>,
    /// UCX's names of transports: `rc_verbs`, `tcp`.
    pub transports: Vec<String>,
}

/// The card that verbs are to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsCard {
    /// The device: `mlx5_0`.
    pub device: String,
    /// Its address: where a server listens, and a client connects from.
    pub address: IpAddr,
}

/// What a person calls the network cards of this machine, for the first lines of a report.
#[derive(Clone, Debug, Default)]
pub struct CardNames {
    /// By UCX's name of the device: `mlx5_0:1`.
    pub devices: Vec<(String, String)>,
    /// By address.
    pub addresses: Vec<(IpAddr, String)>,
}

/// How a client runs.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The server's control address.
    pub server: SocketAddr,
    /// The address to connect from.
    pub bind: Option<IpAddr>,
    /// What carries the bytes.
    pub transport: TransportChoice,
    /// What UCX is to use.
    pub ucx: UcxOptions,
    /// Have all kinds go by verbs over this card, whatever `transport` says.
    pub verbs: Option<VerbsCard>,
    /// Which tests.
    pub case: Case,
    /// Tables of all sizes instead of lines for a few.
    pub all_sizes: bool,
    /// The sizes of payload, in bytes; empty chooses.
    pub sizes: Vec<u64>,
    /// How long each test may take, which is one kind of operation and one size; with tables, each table.
    pub duration: Duration,
    /// Operations of each latency test, however long they take; `None`: [`crate::plan::LATENCY_ITERATIONS`], or as many as there is
    /// time for.
    pub iterations: Option<u32>,
    /// The processors that the tests' threads are pinned to, in turn; empty pins none.
    pub cpus: Vec<usize>,
    /// What this machine's cards are called.
    pub cards: CardNames,
    /// Threads; `None` chooses.
    pub jobs: Option<u32>,
    /// Operations that each thread has under way; `None` chooses by payload.
    pub depth: Option<u32>,
    /// How a thread waits for the only answer of CACHE that it has under way, as a reader's thread does.
    pub drive: DriveOptions,
}

/// How a server runs.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes a free one.
    pub address: SocketAddr,
    /// The first of the ports that data goes over: one for CACHE over TCP, and with UCX the next two for READ and WRITE and for
    /// CACHE over UCX, and with verbs the two after these, for CACHE and for READ and WRITE. `None` takes free ones.
    pub data_port: Option<u16>,
    /// How long answering a request of the cache, or of the plain sockets, takes besides.
    pub delay: Duration,
    /// With [`TransportChoice::Tcp`] UCX is not loaded; otherwise clients may choose either.
    pub transport: TransportChoice,
    /// What UCX is to use.
    pub ucx: UcxOptions,
    /// Serve all kinds by verbs over this card, too.
    pub verbs: Option<VerbsCard>,
}
