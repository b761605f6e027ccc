//! The kernel mount: a client's namespace as a read-only file system.
//!
//! [`Mount::start`] mounts, serves and, through [`Mount::unmount`], takes away again. [`mount_table`] looks after
//! mountpoints from outside, among them those that a killed server left dead.
//!
//! Inside, what a request means is kept apart from who carries it:
//!
//! * `filesystem`: the file system itself; `inode`, `handles` and `listing` are what it holds;
//! * `device` and `serving`: feed it from `/dev/fuse`; another carrier would stand beside them;
//! * `stats`, `virtual_files` and `access_log`: what the mount counts, and the files at its root that tell of it;
//! * `attach` and `detach`: mounting and unmounting, as root or through `fusermount3`;
//! * `mount`: the threads, from start to end.

mod access_log;
mod attach;
mod detach;
mod device;
mod error;
mod filesystem;
mod handles;
mod inode;
mod listing;
mod mount;
pub mod mount_table;
mod options;
mod serving;
mod stale;
mod stats;
mod virtual_files;

pub use error::MountError;
pub use mount::{Mount, Unmounted};
pub use options::{MountOptions, ReportSource};
pub use stats::{MountStats, Operation, OperationStats};
