//! Slab memory: the buffers that bytes land in, stay in and are served from.
//!
//! A [`Pool`] is one mapping (huge pages when there are some) cut into frames of 4 MiB, and frames into extents of one
//! power-of-two size, from one sector to one block. Everything that a NIC or a disk may write to or read from is an
//! extent of a pool, so that a transport can register the mapping once and never again.
//!
//! The types say which code may touch which bytes:
//!
//! * [`SpanMut`]: the only view of some bytes; it is filled, then [`SpanMut::freeze`] turns it into
//! * [`Span`]: a shared view of bytes that no longer change, cheap to clone and to slice.
//!
//! An extent returns to its pool when its last view is gone. So bytes with a reader are never reused (invariant 4), and
//! the buffer of an operation that owns its `SpanMut` until it has ended is never handed out again before that
//! (invariant 3).
//!
//! A pool's mapping may be memory that other processes can look at (`shared.rs`). To them a [`Window`] is what a pool is here: it
//! makes the same [`Span`]s, of memory that they can only read.
//!
//! A GPU's driver may register that memory, too, so that the GPU reads it by itself ([`Registrable`]).
//!
//! On a machine with several NUMA nodes the mapping is spread over those that the process runs on (`numa.rs`).
//!
//! A frame that is free can be lent to the kernel ([`SpanMut::lend`]): it counts as used, and its memory is free for something
//! else, such as files in memory. So two that take turns in one budget need no second pool. Memory that is taken ahead
//! ([`Pool::warm_up`]) is that of the other frames (`lent.rs`).
//!
//! A pool is bounded (invariant 6): [`Pool::alloc`] waits in a queue, first come first served, until an extent is free
//! or its deadline passes; [`Pool::try_alloc`] is for callers that can do with less.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod error;
mod frames;
mod lent;
mod mapping;
#[cfg(all(test, shuttle))]
mod model;
mod numa;
mod options;
mod pages;
mod place;
mod pool;
mod region;
mod registrable;
mod shared;
mod span;
mod sync;
mod window;

pub use error::PoolError;
pub use frames::{FRAME_SIZE, MIN_EXTENT};
pub use options::PoolOptions;
pub use pages::PageKind;
pub use place::Place;
pub use pool::{Occupancy, Pool};
pub use registrable::Registrable;
pub use shared::Sharing;
pub use span::{LentFrame, Span, SpanMut, Spans};
pub use window::Window;
