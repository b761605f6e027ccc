//! What can go wrong, in words that say what to do: what failed, and after `; ` what next.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use forebay_memory::PoolError;
use forebay_rdma::RdmaError;
use forebay_tcp::TcpError;

use crate::options::Kind;

/// Why a benchmark could not run, or did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options make no sense together.
    #[error("{0}")]
    Usage(String),
    /// No server answers there.
    #[error(
        "cannot connect to {address}: {reason}; start `forebay bench rdma` on that host, and check the address, \
         --remote-port and the firewall"
    )]
    Connect {
        /// The server's address.
        address: SocketAddr,
        /// The system's or UCX's reason.
        reason: String,
    },
    /// The server said no.
    #[error("{address} refused: {reason}")]
    Refused {
        /// The server's address.
        address: SocketAddr,
        /// Its reason, with a remedy.
        reason: String,
    },
    /// What answers there does not speak this protocol.
    #[error("{address} is not a benchmark server of this version: {reason}; run the same `forebay bench rdma` there")]
    Protocol {
        /// The peer's address.
        address: SocketAddr,
        /// What is wrong with what it sent.
        reason: String,
    },
    /// The server went away during a test.
    #[error("the server at {address} was lost: {reason}; look at its output, and run the test again")]
    Lost {
        /// Its address.
        address: SocketAddr,
        /// How that showed.
        reason: String,
    },
    /// An operation did not end.
    #[error("no end of an operation with {address} within {waited:?}; see that the server runs and the link is up")]
    TimedOut {
        /// The server's address.
        address: SocketAddr,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Bytes arrived that are not those that were sent.
    #[error(
        "{kind} of {bytes} bytes brought wrong data: byte {offset} is {found:#04x}, not {expected:#04x}; do not use this \
         link before the cause is found: try other --transports, another version of UCX, another cable"
    )]
    Mismatch {
        /// The kind of operation.
        kind: Kind,
        /// The size of the payload.
        bytes: u64,
        /// Where in the payload.
        offset: u64,
        /// What should be there.
        expected: u8,
        /// What is.
        found: u8,
    },
    /// The server cannot listen.
    #[error("cannot listen on {address}: {error}; choose another --local-port, --data-ports or --local-ip")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// UCX failed.
    #[error("{0}; `--transport tcp` measures without UCX")]
    Ucx(#[from] forebay_ucx::Error),
    /// An I/O thread, or its server, failed.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// The cache's TCP server failed.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// No memory for the buffers.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// The report could not be written, or a thread not started.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The caller asked for an end.
    #[error("the benchmark was stopped")]
    Stopped,
}
