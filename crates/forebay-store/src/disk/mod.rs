//! The disk tier: slab files.
//!
//! * `geometry.rs`: where extents lie; `space.rs`: which are free, and what holds them;
//! * `header.rs`: the superblock and the header of an extent, as bytes;
//! * `lock.rs`: which process has a directory; `file.rs`: making, sizing and opening its slab file; `recovery.rs`:
//!   finding out what is in it;
//! * `slab.rs`: one slab at work; `unburied.rs`: what it could not forget yet; `health.rs`: when a disk that fails is left alone;
//!   `choice.rs`: which disk a run goes to.

mod choice;
mod file;
mod geometry;
mod header;
mod health;
mod lock;
mod recovery;
mod slab;
mod space;
mod unburied;

pub(crate) use choice::choose;
pub use file::slab_path;
#[cfg(feature = "simulation")]
pub(crate) use geometry::{PAGE, file_size};
#[cfg(feature = "simulation")]
pub(crate) use slab::Opened;
pub(crate) use slab::{ReadFault, Slab, WriteFault};
pub(crate) use space::DiskExtent;

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    pub(crate) use super::geometry::{CLASSES, HEADER_SIZE, PAGE, SUPERBLOCK_SIZE, Slot, extents};
    pub(crate) use super::header::{Header, Superblock, encode};
}
