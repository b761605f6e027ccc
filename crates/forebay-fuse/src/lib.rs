//! The kernel mount: a client's namespace as a file system.
//!
//! [`Mount::start`] mounts, serves and, through [`Mount::unmount`], takes away again. [`mount_table`] looks after
//! mountpoints from outside, among them those that a killed server left dead.
//!
//! Inside, what a request means is kept apart from who carries it:
//!
//! * `filesystem` and `directories`: the file system itself; `inode`, `inodes`, `handles` and `listing` are what it holds;
//! * `writing`, `changing` and `renaming`: what changes it: bytes, names, and where names lead; `writers`: whose closes count;
//! * `device`, `changes` and `serving`: feed it from `/dev/fuse`; another carrier would stand beside them;
//! * `stats`, `virtual_files` and `access_log`: what the mount counts, and the files at its root that tell of it;
//! * `attach` and `detach`: mounting and unmounting, as root or through `fusermount3`;
//! * `mount`: the threads, from start to end.

mod access_log;
mod attach;
mod changes;
mod changing;
mod detach;
mod device;
mod directories;
mod error;
mod filesystem;
mod handles;
mod inode;
mod inodes;
mod listing;
mod mount;
pub mod mount_table;
mod options;
mod renaming;
mod serving;
mod stale;
mod stats;
mod virtual_files;
mod writers;
mod writing;

pub use error::MountError;
pub use mount::{Mount, Unmounted};
pub use options::{MountOptions, ReportSource, WritingOptions};
pub use stats::{MountStats, Operation, OperationStats};
