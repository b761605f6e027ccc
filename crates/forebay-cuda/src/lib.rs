//! Memory of GPUs: bytes of the cache are copied to it by the GPU, while the next ones are read.
//!
//! * [`Cuda`] is what is asked of CUDA: one interface, which [`Driver`] (the library that the machine has, loaded at run time) and `fake`
//!   implement. `conformance` is the suite that both pass: the driver's with a library of fake functions (`tests/fake/cuda.c`), and with
//!   the real one where there is a GPU;
//! * [`Pipeline`] decides: which piece of a transfer is read when, what becomes of what has come, and when a transfer has ended, well
//!   or not. Pure;
//! * [`Copier`] is a device's thread: the only one that calls CUDA for it. It registers memory, begins copies, and sees when they have
//!   ended. What a copy reads from is held until then, and so is the lease of a worker's memory;
//! * [`Outstanding`]: who gave memory of a device to copies waits here for their end before it says that nothing writes there any more.
//!
//! A copy reads from one of two kinds of memory. Bytes in the memory of a worker on this host are copied from where they lie
//! (`registered.rs`): the window is registered once, a piece at a time. All other bytes go through a buffer of a ring of pinned ones
//! (`staging.rs`), which is as large as the [`Pipeline`] has slots, and is made when it is first needed.
//!
//! ADR 0041 has the reasons.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod card;
mod commands;
#[cfg(test)]
pub mod conformance;
mod copier;
mod driver;
mod error;
#[cfg(test)]
pub mod fake;
mod handles;
mod outstanding;
mod pipeline;
mod registered;
mod staging;
mod traits;

pub use commands::{Ended, Source};
pub use copier::Copier;
pub use driver::{Driver, LIBRARY_OF_TESTS};
pub use error::Error;
pub use handles::{Access, Context, Device, DeviceAddress, Event, Stream};
pub use outstanding::{Outstanding, Ticket};
pub use pipeline::{Begun, Come, Pipeline};
pub use staging::{STAGING_SIZE, StagingBuffer};
pub use traits::Cuda;
