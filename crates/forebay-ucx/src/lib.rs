//! UCX, safely: connections over InfiniBand, RoCE, EFA, shared memory or TCP, by one interface.
//!
//! * [`Library`]: libucp, found and loaded at run time;
//! * [`Context`]: devices and transports, with [`Options`]; [`Registration`]: memory that their NICs may access;
//! * [`Worker`]: the progress engine of one thread, which a current-thread tokio runtime drives;
//! * [`LoneWorker`]: one that threads hand to one another, with all that is of it;
//! * [`Listener`], [`Endpoint`]: connections;
//! * [`Endpoint::am_send`], [`Worker::on_message`], [`Rendezvous`]: active messages, of which the cache's requests and
//!   replies are made;
//! * [`RemoteKey`], [`Exposed`]: one-sided access, which only the benchmark uses. Never put without a flush: over shared
//!   memory, a message that follows a put can overtake it.
//!
//! What the types ensure, so that no code above this crate needs `unsafe`:
//!
//! * Memory that an operation uses is owned by the operation until UCX has called back (invariant 3). Futures are tickets
//!   to operations, and may be dropped at any time.
//! * A worker, and all that is of it, stays in the thread that made it, or moves as a whole; contexts and registrations may be
//!   shared.
//! * Parts hold what they are part of: a worker its context, an endpoint its worker, an operation its endpoint's state.
//! * A panic in a handler, a waker or an owner of memory is caught before it reaches C.
//!
//! UCX notices a peer that died, within seconds, but never one that hangs: every wait for a peer needs a deadline, which is
//! the caller's business, and after it [`Endpoint::close`] by force.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod address;
mod context;
mod driving;
mod endpoint;
mod error;
mod exit;
mod fabric;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod library;
mod listener;
mod lone;
mod memlock;
mod message;
mod operation;
mod options;
mod registration;
mod remote;
mod resource;
mod sockets;
mod text;
mod worker;

pub use context::Context;
pub use endpoint::{Endpoint, Protocol};
pub use error::{Error, Status};
pub use fabric::Fabric;
pub use forebay_locks::spin::{Patience, Spin};
pub use forebay_ucx_sys::{LIBRARY_VARIABLE, LoadError, Version};
pub use library::Library;
pub use listener::{ConnectionRequest, Listener};
pub use lone::{Fetch, Incoming, LoneWorker, MessageReceiver};
pub use memlock::LockLimit;
pub use message::{Data, Message, Rendezvous};
pub use operation::{Payload, Receiving, Sending, SpansMut};
pub use options::Options;
pub use registration::{Exposed, Registration};
pub use remote::RemoteKey;
pub use resource::Resource;
pub use sockets::sockets_are_sound;
pub use worker::Worker;
