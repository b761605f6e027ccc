//! Verbs, safely: reliable connections over InfiniBand, RoCE and iWARP, without a library of messages in between.
//!
//! * [`Library`]: libibverbs and librdmacm, loaded at run time; [`Device`]: a card;
//! * [`Domain`]: what belongs together on it; [`Registration`]: memory of a pool that the card may use;
//! * [`CompletionQueue`], on a [`CompletionChannel`] that can be waited for;
//! * [`EventChannel`], [`Id`]: connections by IP addresses, as rdma_cm makes them;
//! * [`QueuePair`]: messages both ways, writes to the peer's memory, and windows through which the peer writes to ours.
//!
//! What the types ensure, so that no code above this crate needs `unsafe`:
//!
//! * Memory that the card may read or write is owned by the queue pair: from the call that posts it until the completion
//!   that ends its use, until the peer has ended the use of its window's key, or until the queue pair was destroyed, after
//!   which a card does nothing more for it (invariant 3). No timeout gives memory back.
//! * Nothing that is registered may be read by peers but what a queue pair shows to its own ([`QueuePair::show`]): through windows,
//!   too, that let nobody write.
//! * Nothing that is registered may be written to by peers. They write through windows of type 2 alone, each of which is bound
//!   to one buffer that waits, belongs to one queue pair, and has a new key each time. On cards without them
//!   ([`Device::has_windows`]) they write nowhere: what they send lands in receives.
//! * A queue pair and what is of it are used by one thread at a time, which may be another one each time; devices, domains,
//!   registrations, channels and completion queues may be shared.
//! * Parts hold what they are part of.
//!
//! A peer that died is noticed when a message to it is not acknowledged, and one that hangs never: deadlines are the caller's
//! business.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod address;
mod cm;
mod completion;
mod device;
mod domain;
mod error;
mod forking;
mod frames;
mod queue_pair;
mod readiness;
mod reads;
mod registration;
mod requests;
mod shown;
mod waiting;
mod windows;

pub use cm::{Event, EventChannel, EventKind, Id};
pub use completion::{Completion, CompletionChannel, CompletionQueue};
pub use device::{Device, Library};
pub use domain::Domain;
pub use error::Error;
pub use queue_pair::QueuePair;
pub use readiness::Readiness;
pub use reads::{Read, ReadDone};
pub use registration::Registration;
pub use requests::{Ended, Exposure, Handshake, PathOptions, Plain, Post, QueuePairOptions, Reading, Remote};
pub use shown::{ReadableBoard, Shown};
pub use waiting::{wait_for_completion, wait_for_either};
