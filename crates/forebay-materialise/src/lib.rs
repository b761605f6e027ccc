//! Files that a node keeps whole for itself, so that the kernel can read them without a request to the mount.
//!
//! Whatever a FUSE server does, buffered and mapped reads through it run at 1 to 3 GB/s. A file that lies whole on a local
//! file system can be *passed through*: the kernel reads it where it is, at the speed of memory. So files that are worth it
//! are *materialised*: fetched whole, checked, and named by their version, on a huge-page tmpfs of our own or on a local disk.
//! This crate knows neither FUSE nor workers. What serves opens asks it; what reads blocks is its [`Source`].
//!
//! How it is used:
//!
//! * [`Local::open`] once for a mount; [`Local::close`] at its end.
//! * At each open for reading of a version that may be passed through, [`Local::opened`] counts the open and answers with a
//!   [`Verdict`]. `Ready` has the [`LocalFile`]: a descriptor, and the promise that the file stays as long as it lives. Keep it
//!   with the inode from its first handle that is passed through to its last, and drop it then: there is no other pin.
//! * `Waiting` is a file that is worth waiting for; [`Waiting::done`] gives up in time. `No` is the ordinary way.
//! * [`Local::closed`] tells what a handle read that was served the ordinary way, and [`Local::reads`] what it has read so far: a
//!   file that is read from its start, or mapped, is filled meanwhile.
//! * [`Local::forget`] when a version was written over, replaced or removed: no program will open it any more.
//! * [`Local::want`], [`Local::drop_file`], [`Local::drop_all`], [`Local::list`] are for people and jobs.
//! * [`Local::kept`] is for who fetches what is likely to be opened next: not what is here.
//! * [`Local::turn_off`] when the kernel refuses to pass files through at all: nothing is filled for nothing.
//!
//! Never a file with holes: a file gets its name only when each of its sectors was written and checked. A version never
//! changes, so neither does its file; a new version is a new file. A file that is open, or that a program has mapped,
//! is never changed or cut, only unlinked.
//!
//! Pure, without I/O and without a clock:
//!
//! * `policy`: which files are worth it;
//! * `index`: the cached files: what is there, what comes, what has to go for it;
//! * `name`, `record`: how a file and its checksums are called and written down.
//!
//! The shell around them:
//!
//! * `local`: the handle; `shared`: carries out what `index` decides;
//! * `fill`, `check`: one file from its source to its place, and every byte again and again;
//! * `backend`: the trait of what stores files; `memory`, `directory`: the two backends; `tree`: what they share; `clone`: a
//!   read-only view of a directory;
//! * `options`, `file`, `listed`, `stats`, `error`, `source`: what goes in and out; `lender`: whose memory files share.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod backend;
mod check;
mod clone;
mod directory;
mod error;
mod file;
mod fill;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod index;
mod kept;
mod lender;
mod listed;
mod local;
mod memory;
mod name;
mod options;
mod policy;
mod record;
mod shared;
mod source;
mod stats;
mod tree;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

pub use backend::BackendKind;
pub use error::LocalError;
pub use file::{LocalFile, NotTaken, Reading, Verdict, Waiting, Why};
pub use kept::Kept;
pub use lender::{Lender, WantedBack};
pub use listed::{Listed, LocalState};
pub use local::{Local, NOT_PERMITTED, may_pass_through};
pub use options::LocalOptions;
pub use policy::SMALL_FILE;
pub use source::{Blocks, Checksummed, Source};
pub use stats::{Bytes, FILL_SECONDS, Files, Fills, LocalStats, Opens, Refused};
