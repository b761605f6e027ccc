//! The kernel mount: a client's namespace as a file system.
//!
//! [`Mount::start`] mounts, serves and, through [`Mount::unmount`], takes away again. [`mount_table`] looks after
//! mountpoints from outside, among them those that a killed server left dead.
//!
//! Inside, what a request means is kept apart from what carries it:
//!
//! * `filesystem` and `directories`: the file system itself; `inode` and `inodes`, `handle` and `handles`, and `listing` are what it
//!   holds, `described` and `failures` what it says;
//! * `opening`, with `mode`, `pinned` and `materialised`: how files are opened for reading: served by us, or passed
//!   through by the kernel; `materialise_requests` and `local_files`: requests to materialise files, and their outcome;
//!   `mapped`: whether a program maps a file;
//! * `room`: what `statfs` shows;
//! * `writing`, `changing` and `renaming`: what changes it: bytes, names, and where names lead; `writers`: whose closes count;
//! * `dispatch`, `changes` and `serving`: feed it with requests, whatever carries them ([`forebay_fuse_io`]); `interrupts`: those
//!   whose program is killed;
//! * `stats`, `virtual_files` and `access_log`: what the mount counts, and the files at its root that tell of it;
//! * `handing` and `handover`: a mount that goes to the next process ([`forebay_handover`]), and what that one must know; `keeping` and
//!   `surviving`: what is kept for the case that this process dies;
//! * `attach` and `detach`: mounting and unmounting, as root or through `fusermount3`;
//! * `mount` and `supervising`: the threads, from start to end; `outside`: what may not lie below it.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod access_log;
mod attach;
mod described;
mod detach;
mod directories;
mod directory_ops;
mod dispatch;
mod dispatcher;
mod error;
mod failures;
mod filesystem;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handing;
mod handle;
mod handles;
mod handover;
mod inode;
mod inodes;
mod interrupts;
mod keeping;
mod listing;
mod local_files;
mod mapped;
mod materialise_requests;
mod materialised;
mod mode;
mod mount;
pub mod mount_table;
mod opening;
mod options;
mod outside;
mod pinned;
mod renaming;
mod room;
mod serving;
mod stale;
mod stats;
mod supervising;
mod surviving;
mod virtual_files;
mod write_requests;
mod writers;
mod writing;

pub use error::MountError;
pub use forebay_fuse_io::{Channel, ChannelInUse, FuseIo, Served};
pub use handing::HandOver;
pub use keeping::Survival;
pub use local_files::{Kept, LocalFiles};
pub use materialise_requests::MaterialiseProgress;
pub use mount::{Mount, Successor, Unmounted};
pub use options::{LocalOptions, MountOptions, ReportSource, WritingOptions, largest_read, read_ahead};
pub use outside::is_outside;
pub use stats::{MountStats, Operation, OperationStats};
