//! The TCP transport: [`forebay_transport::wire`]'s messages over sockets. It works everywhere and needs nothing.
//!
//! * [`TcpTransport`] is the client: a few connections to one worker, requests multiplexed over them, payload received
//!   straight into the caller's buffer;
//! * [`TcpServer`] is the worker's side: payload sent straight from the service's memory, or from a file, by a thread that the
//!   connection stays on.
//!
//! A thread that may wait for the answer to a short read itself ([`forebay_transport::driving`]) has a connection of its own for it
//! (`driven`), which the runtime does not watch: then the calling thread receives the answer, and no other thread of this side has
//! to do with it.
//!
//! What decides is pure and knows no socket: `choice` (which connection takes the next call), `requests` and `replies` (where
//! received bytes belong), `zero_copy` (what the kernel sends from where it lies), `patience` (how long a peer may
//! take), and what all connections share, [`forebay_transport::connection`]: among it, which of them a server takes in; and which connection
//! a thread drives ([`forebay_transport::driving::Berths`]).
//! The rest is the shell around it: one task for each connection on either side, bytes over a `channel`, and system calls in
//! `socket`.
//!
//! How few system calls a read costs: the caller's own task sends the request; one `readv` on the other side takes it,
//! and whatever else has arrived; the answer leaves by one `sendmsg` that gathers header, body and payload; one `readv`
//! receives the payload into the caller's buffer and, behind it, the next header. Where the kernel sends large payloads from where
//! they lie (`in_flight`), the answer is two `sendmsg`: what comes before the payload is copied.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod admit;
mod by_record;
mod channel;
mod choice;
mod client;
mod closings;
mod connection;
mod connections;
mod driven;
mod end;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod greeting;
mod in_flight;
mod io_threads;
mod lone;
mod opening;
mod options;
mod outbox;
mod patience;
mod places;
mod protection;
mod records;
mod replies;
mod requests;
mod security;
mod serve;
mod server;
mod shared;
mod socket;
mod staging;
mod unsent;
mod zero_copy;

use std::net::SocketAddr;

pub use client::TcpTransport;
pub use closings::CloseReason;
pub use forebay_types::{TcpSecurity, TcpZeroCopy};
pub use in_flight::ZeroCopyCounts;
pub use options::{ClientOptions, ServerOptions};
pub use security::{ClientSecurity, ServerSecurity};
pub use server::TcpServer;

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum TcpError {
    /// Another socket listens there already.
    #[error(
        "cannot listen on {address}: the port is in use; stop the process that has it (`ss -ltnp 'sport = :{port}'` \
         names it) or choose another port",
        port = address.port()
    )]
    AddressInUse {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The kernel refused for another reason.
    #[error(
        "cannot listen on {address}: {error}; it must be an address of this host, and a port that its user may use"
    )]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// The kernel's answer.
        error: std::io::Error,
    },
    /// The system has no threads for it.
    #[error("cannot start the threads that serve connections: {0}; `network.tcp.io_threads` says how many there are")]
    Threads(std::io::Error),
}
