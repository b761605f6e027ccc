//! The interface between clients and workers.
//!
//! A client speaks to a worker through [`Transport`]: one small [`Request`], one [`Reply`], and payload bytes that land
//! in the caller's own buffer. A worker is a [`Service`]: it answers requests with views of its memory, and the
//! transport takes them to the other side. Neither knows whether a NIC, a socket or nothing at all lies between.
//!
//! * [`LocalTransport`]: client and worker in one process; a reply is a view of the worker's memory, nothing is copied;
//! * `forebay-tcp`: framed messages over sockets, to [`wire`]'s layout;
//! * [`fake`]: a service behind programmable delays, losses and deaths, for tests and simulation.
//!
//! A server's side tells whoever keeps a record of it what is asked for, each transport in the same way ([`ConnectionAudit`]).
//!
//! Where a thread may wait for the answer to a call itself, it says so by [`driving`].
//!
//! [`conformance`] is the suite that every implementation passes: it is the contract in executable form.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod answer;
mod audit;
mod caller;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod connection;
pub mod driving;
mod error;
pub mod fake;
mod file_slice;
mod limits;
mod local;
pub mod located;
mod look;
pub mod message;
mod op;
mod permission;
mod reply;
mod request;
mod subject;
mod traits;
pub mod wire;

pub use answer::answer;
pub use audit::{ConnectionAudit, PendingRecord};
pub use caller::{Caller, ProvedCaller};
pub use error::{CallError, LinkError};
pub use file_slice::FileSlice;
pub use local::LocalTransport;
pub use look::Look;
pub use op::{Flags, Op};
pub use reply::{Payload, Provenance, Reply, Response, ResponsePayload};
pub use request::Request;
pub use subject::subject_of;
pub use traits::{PeerMemory, Service, Transport, TransportKind};
