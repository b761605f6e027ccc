//! Configuration: one table of keys, from which everything else about configuration follows.
//!
//! [`KEYS`] (in `keys.rs`, and `keys/network.rs`) has a line for each setting: its field in [`Config`], its dotted name,
//! its type, its default, its limits and its documentation. From that line come
//!
//! * the field of the typed [`Config`] that the program reads, so a key cannot exist without a reader's place for it;
//! * the parsing of `forebay.toml`, of the environment (`worker.memory.size` is `FOREBAY_WORKER_MEMORY_SIZE`) and of
//!   `-o key=value` flags, in this rising precedence, over the default;
//! * what `forebay conf show` prints: [`Loaded::show`], with where each value came from;
//! * the documented example file: [`example_toml`], checked in as `docs/forebay.example.toml`.
//!
//! [`Config::load`] reports every problem at once ([`ConfigErrors`]), each with its file and line, variable or flag,
//! and the nearest valid name. [`import::alluxio_properties`] turns an `alluxio-site.properties` into a `forebay.toml`.
//!
//! The only I/O is reading the file that the caller names, or this machine's ([`Sources::of_machine`]).

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod assignment;
mod bucket_path;
mod defaults;
mod endpoints;
mod environment;
mod error;
mod example;
mod file;
pub mod import;
mod key;
mod keys;
mod limits;
mod load;
mod modes;
mod mount_endpoint;
mod nearest;
mod origin;
mod partition;
mod permissions;
mod prefetch;
mod rdma;
mod rules;
mod table;
mod value;

pub use bucket_path::BucketPath;
pub use endpoints::{ClusterName, Disk, GroupName, Host, HostPort, Interface, ListedWorker, Mount, Room};
pub use error::{ConfigErrors, Problem};
pub use example::example_toml;
pub use key::Key;
pub use keys::{Config, KEYS};
pub use load::{Loaded, Row, Sources};
pub use modes::{
    LogFormat, LogLevel, OnStop, RdmaFallback, RdmaProvider, RdmaStriping, SecurityMode, SharedMemory, WriteMode,
};
pub use mount_endpoint::MountEndpoint;
pub use origin::Origin;
pub use partition::PartitionKey;
pub use permissions::Permissions;
pub use table::KeyOf;
