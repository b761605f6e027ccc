//! The transports over RDMA, two of them: over UCX, which this page is about, and over verbs of our own ([`verbs`]). They have one client
//! and one server's logic, each over links of either kind (`client_link`, `peer_link`). Who has both need not know which is which:
//! [`Driven`] is an I/O thread of either, [`Listening`] a server.
//!
//! The UCX transport: [`forebay_transport::wire`]'s messages as UCX's active messages.
//!
//! * [`IoThread`]: a thread that drives one UCX worker, on one network card or on those that UCX chooses;
//! * [`RdmaTransport`]: the client's side of one worker on one I/O thread. A request is a message of 64 bytes and its body; the
//!   payload of its reply comes with it when it is small, and is fetched by the card into the caller's registered buffer when
//!   it is large: UCX chooses, neither program copies;
//! * [`RdmaServer`]: the worker's side. What the service has in memory is answered within the message's handler, sent from
//!   where it lies.
//!
//! Why active messages in both directions, and no one-sided access: replies are requested, so a buffer is written to
//! only from the time when its reply has begun to arrive until that operation has ended. Until then a caller that
//! leaves takes its buffer along; after that the operation owns it (invariant 3). And no peer holds a key to the memory
//! of another (invariant 7).
//!
//! UCX proves nothing about a peer. Where peers have to prove who they are, they do so over TCP, and get a pass there for one
//! connection here (`security`). Who has no pass is rejected before there is an endpoint, and each message shows it.
//!
//! [`wire`] is the layout. Everything that a peer sends is checked before it is used; a peer that breaks the protocol loses its
//! connection.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod caller_memory;
mod client;
mod client_link;
mod connection;
mod context;
mod driven;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod gauges;
mod growing;
mod io_thread;
mod options;
mod peer_link;
mod peers;
mod providers;
mod security;
mod server;
mod serving;
mod sockets;
pub mod trace;
mod ucx;
mod ucx_peer;
mod vanishing;
pub mod verbs;
pub mod wire;

pub use client::RdmaTransport;
pub use driven::{Driven, Listening, Provider};
pub use forebay_ucx::{Error as UcxError, Library, Resource};
pub use io_thread::{IoThread, IoThreadStats};
pub use options::{ClientOptions, FabricOptions, IoThreadOptions, ServerOptions};
pub use security::{ClientSecurity, ServerSecurity};
pub use server::{RdmaServer, ServerStats};
pub use trace::{OperationReport, PeerReport, StageReport, Trace, TraceReport};

use std::net::SocketAddr;
use std::time::Duration;

/// Why an I/O thread or a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum RdmaError {
    /// UCX refused.
    #[error(transparent)]
    Ucx(#[from] forebay_ucx::Error),
    /// Verbs did.
    #[error(transparent)]
    Verbs(#[from] forebay_verbs::Error),
    /// The I/O thread did not start, or has ended.
    #[error("cannot start an RDMA I/O thread: {0}")]
    Thread(String),
    /// UCX has nothing by which another process could be reached.
    #[error(
        "UCX finds nothing that reaches other processes with {settings}: only {found}; name a transport and a device that do \
         (`ucx_info -d` lists them)"
    )]
    Alone {
        /// What was asked for.
        settings: String,
        /// What it found.
        found: String,
    },
    /// A card whose connections UCX makes over sockets, which this version cannot do safely.
    #[error(
        "UCX {version} can abort the process where connections are made over its sockets, as EFA's are; install UCX 1.18 or newer, \
         or name its library as ucx.library"
    )]
    Sockets {
        /// That of UCX.
        version: forebay_ucx::Version,
    },
    /// The port is still taken, after all attempts.
    #[error("cannot listen on {address}: {} (tried for {waited:?})", why(reason))]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// How long it was tried.
        waited: Duration,
        /// The last attempt's reason.
        reason: forebay_ucx::Error,
    },
    /// The same of a server over verbs.
    #[error("{reason} (tried for {waited:?})")]
    ListenByVerbs {
        /// How long it was tried.
        waited: Duration,
        /// The last attempt's reason, which names the address.
        reason: forebay_verbs::Error,
    },
    /// Listening there can never work.
    #[error("cannot listen on {address}: no interface of this machine has that address")]
    NotHere {
        /// The address asked for.
        address: SocketAddr,
    },
}

/// Why UCX could not listen, without the address, which is named before.
fn why(reason: &forebay_ucx::Error) -> String {
    match reason {
        forebay_ucx::Error::PortBusy { .. } => "the port is in use".to_owned(),
        forebay_ucx::Error::Listen { status, .. } => status.to_string(),
        other => other.to_string(),
    }
}
