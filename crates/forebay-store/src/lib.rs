//! The block store: what a cache node holds, in memory and on disk.
//!
//! A **run** is a consecutive, wholly valid, immutable range of sectors of one block, held in one extent. A block is a
//! set of runs. A fill lands bytes in a [`SpanMut`](forebay_memory::SpanMut) that nothing else sees and then publishes
//! them as a run, so there are no half-valid extents and no reader ever sees bytes being written. Runs of one block may
//! overlap: they are of one file version, so they hold the same bytes. A new run that covers older ones replaces them.
//!
//! There are two tiers. *Memory* holds runs as [`Span`](forebay_memory::Span)s of a [`Pool`](forebay_memory::Pool).
//! *Disk* holds them in slab files, one a directory, each extent with a header of its own from which the index is
//! rebuilt after a restart or a crash. The way through the files:
//!
//! * [`Store`] (`store.rs`): the verbs; `core.rs`: how runs enter and leave the tiers; `read.rs`: how a read is pieced together from the tiers;
//! * `run.rs`, `index.rs`: what is held, and how a hit finds it without a lock;
//! * `sieve.rs`, `place.rs`, `residents.rs`, `evict.rs`: what goes when room is needed, always ahead of need, never inside a read;
//! * `ahead.rs`: memory that is taken from the kernel before it is needed;
//! * `verify.rs`: when a hit in memory is checked;
//! * `adopted.rs`: blocks that lie in memory of others, and what is given up because it is elsewhere;
//! * `sealing.rs`, `seal_queue.rs`, `sealer.rs`: which runs clients may read by themselves, and where they lie;
//! * `keep.rs`: priorities, pins and accounts, by which some go before others;
//! * `held.rs`: going through all that is held, and checking it;
//! * `queue.rs`, `writer.rs`: how runs get from memory to disk without a read ever waiting for it;
//! * `disk/`: the format of a slab, its allocator, its recovery and its health;
//! * `io/`: the interface to the kernel, by io_uring or by threads, and whether a disk answers;
//! * `attend.rs`: looking after disks that hang, which are taken out and come back (ADR 0040).
//!
//! Every sector has a CRC32C, computed when its run is published and kept with it. It is checked on each read from disk
//! and, when asked for, on reads from memory, on each one or once an interval; a sector that fails takes its run with it and is a miss (invariant
//! 2). An extent with a reader is unlinked by eviction and freed by its last reader (invariant 4).

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod adopted;
mod ahead;
mod attend;
mod core;
mod coverage;
mod disk;
mod error;
mod evict;
#[cfg(test)]
mod faults;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(all(test, not(shuttle)))]
mod hanging;
mod held;
mod index;
mod io;
mod keep;
#[cfg(all(test, shuttle))]
mod model;
mod options;
mod place;
mod queue;
mod read;
mod residents;
mod run;
mod seal_queue;
mod sealer;
mod sealing;
mod shown;
mod sieve;
mod slice;
mod stats;
mod store;
mod sync;
mod verify;
mod writer;

pub use coverage::Coverage;
pub use disk::slab_path;
pub use error::StoreError;
pub use forebay_types::{IoBackend, ServeMode};
pub use held::{HeldBlock, HeldRun};
#[cfg(feature = "simulation")]
pub use io::medium::{Medium, SlabMedium};
pub use keep::{Account, Keep};
pub use options::{DiskOptions, Eviction, Prewarm, StoreOptions};
pub use read::StoreRead;
pub use shown::Shown;
pub use slice::DiskSlice;
pub use stats::{AccountStats, DiskStats, MemoryStats, Removed, StoreStats};
pub use store::Store;
