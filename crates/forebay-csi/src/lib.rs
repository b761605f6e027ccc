//! The CSI driver of a node: what a pod's volume is becomes a mount of forebay (ADR 0030).
//!
//! The kubelet calls over gRPC on a Unix socket. A PersistentVolume is *staged* once on a node, which is one mount by
//! one daemon, and *published* to each pod, which is a bind of that mount. A volume that is written in a pod itself
//! (*ephemeral*, *inline*) is published only, with a daemon of its own.
//!
//! What is mounted is what the kernel's table says, and nothing is kept besides: every call can come twice, and a
//! driver that was killed finds all that it left. A daemon is a process of `forebay mount-helper`, in a session of its
//! own, and the driver need not be there while it serves. When a daemon dies, a keeper in another pod has its mount, and
//! has the driver start the next one.
//!
//! Pure, without I/O:
//!
//! * `fields`: what a request says, within limits; `error`: why not, as a status of gRPC;
//! * `volume`: which mount the attributes, secrets and options of a volume mean; `inline`: which of them a pod may ask
//!   for;
//! * `mount_table`: what is mounted; `decision`: what a call still has to do.
//!
//! The shell around them: `directory` (paths below the kubelet's directory, no link followed), `binding` (binds),
//! `daemon` (programs that mount and unmount), `launcher` (starting again what died), `succession` (daemons that go on in
//! another process), `answers` (asking a mount that may hang), `pending` (one call for each volume), `listening`
//! (sockets), `identity`, `node` and `registration` (the services), `server` (all of it).

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod answers;
mod binding;
mod daemon;
mod decision;
mod directory;
mod error;
mod fields;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod generated;
mod identity;
mod inline;
mod launcher;
mod listening;
mod mount_table;
mod node;
mod pending;
mod registration;
mod server;
mod succession;
mod volume;

pub use inline::{InlinePolicy, NotAPolicy};
pub use server::{Probed, ServeError, Settings, probe, serve};
