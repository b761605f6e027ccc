//! What a cluster agrees on: a small, consistent store of keys and values behind one trait.
//!
//! Members, mounts, policies and jobs are a few thousand small values that must survive crashes and that many processes
//! watch. [`StateStore`] is the trait: read, list, commit a transaction, hold a lease, watch. Its contract is written at
//! the trait, and `conformance` is the one test suite that every implementation runs.
//!
//! * [`FileStore`]: a directory of this machine, for one process: the embedded default; or that process's memory;
//! * [`EtcdStore`]: etcd, for a cluster;
//! * [`Election`]: one leader among several processes, over any store;
//! * [`membership`]: the workers of a cluster as a process knows them, and what a worker tells of itself.
//!
//! Keys are relative to the cluster: segments joined by `/`. A name that may hold anything (a path, a URL) becomes one
//! segment by [`encode_segment`]. What the values mean is the business of the crates above.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod coalesce;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod election;
mod entry;
mod error;
mod etcd;
mod file;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod key;
mod lease;
pub mod membership;
mod traits;
mod watch;

pub use election::{Election, LeaderUpdate, LeaderWatch, Leadership};
pub use entry::{Entry, Revision, Snapshot};
pub use error::StateError;
pub use etcd::{EtcdCertificates, EtcdOptions, EtcdStore, EtcdUser};
pub use file::{FileOptions, FileStore};
pub use key::{MAX_KEY_LENGTH, decode_segment, encode_segment};
pub use lease::{Lease, LeaseId, LeaseOwner};
pub use traits::{
    Committed, Condition, MAX_TRANSACTION_OPERATIONS, MAX_TRANSACTION_SIZE, MAX_VALUE_SIZE, StateStore, Transaction,
    Write,
};
pub use watch::{Update, Watch, WatchSender};

/// How long an operation of a store may take if its options do not say otherwise.
pub const DEFAULT_DEADLINE: std::time::Duration = std::time::Duration::from_secs(5);
