//! What the kernel's FUSE says, and how it is carried: over `/dev/fuse` or over io_uring.
//!
//! Nothing in here knows what is served. From the bottom up:
//!
//! * [`protocol`]: what the kernel's messages mean and how answers are laid out, as functions of bytes;
//! * `attributes` and `errno`: what answers are made of;
//! * `reply`: the interface: what serves a mount is handed a [`Request`], and gives an [`Answer`];
//! * `channel`: what carries both: `/dev/fuse`, and io_uring's rings;
//! * `notifier` and `backing`: what the kernel is told unasked, and files that it reads by itself;
//! * `handover`: a connection that goes on in another process;
//! * `session`: a mount from the first request to the last; `served` tells how.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod attributes;
mod backing;
mod channel;
#[cfg(test)]
mod conformance;
mod errno;
#[cfg(test)]
mod fakes;
mod handover;
mod notifier;
pub mod protocol;
mod reply;
mod served;
mod session;

pub use attributes::{Attributes, Kind, OpenedFlags, Statfs};
pub use backing::{Backing, Backings};
pub use channel::pause::Stopped;
#[cfg(feature = "fuzzing")]
pub use channel::ring::fuzzing;
pub use channel::ring::{NoUring, RingShape};
pub use errno::Errno;
pub use forebay_types::FuseIo;
pub use handover::{Adopted, Pauser};
pub use notifier::Notifier;
pub use protocol::init::ReadDirPlus;
pub use protocol::request::{CopyRange, Forgets, Header, Malformed, Operation, SetAttr, SetTime, may_be_repeated};
pub use reply::{Answer, Dispatch, HeldBytes, Names, Now, Opened, Reply, Request};
pub use served::{Channel, ChannelInUse, NoPassthrough, RingCounts, Served};
pub use session::{Session, SessionError, SessionOptions};
