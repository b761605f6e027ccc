//! A cache node: what stands between the transports and the store and origins.
//!
//! [`Worker`] is a [`Service`](forebay_transport::Service). It answers reads from its block store through a
//! [`ReadEngine`](forebay_engine::ReadEngine) whose source is the origins, and questions about names from a metadata
//! cache in front of them:
//!
//! * `namespace.rs`: which origin is behind which path; `scope.rs`: that and the policies, as they are now;
//! * `access.rs`: which callers may read what is cached, and change what is mounted; `permission.rs`: who asks, looked
//!   at by that;
//! * `metadata.rs`: attributes and listings, believed for a time, asked for once for everyone; `invalidation_log.rs`: which of them
//!   are not believed any more, `list_ahead.rs`: when a directory is listed instead of being asked about each of its names,
//!   `coalescing.rs`: one request for all who want to know what the origin says now;
//! * `writes.rs`: changes of the namespace and uploads, which go through to the origin;
//! * `versions.rs`: the descriptions of file versions that clients attached to their requests;
//! * `source.rs`: the origins as the engine's source, and `peers.rs`: the other workers before them;
//! * `drain.rs`: handing over what is cached before the worker leaves;
//! * `rates.rs`: how often each caller may ask for what costs everybody;
//! * `small.rs`: the bytes of a small file beside its attributes;
//! * `heat.rs`: which files and blocks are read most;
//! * `worker.rs`: the worker; `requests.rs`: the requests; `moves.rs`: those by which blocks are freed and taken over;
//!   `stats.rs`: what is counted.
//!
//! A worker trusts no request: offsets and lengths are checked against the description, and a description against the
//! id that it claims (invariant 7).

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod access;
mod coalescing;
mod drain;
mod fast_access;
mod heat;
mod invalidation_log;
mod list_ahead;
mod metadata;
mod moves;
mod namespace;
mod peers;
mod permission;
mod rates;
mod requests;
mod scope;
mod small;
mod source;
mod stats;
mod unaided;
mod versions;
mod weight;
mod worker;
mod writes;

pub use drain::{AdoptOutcome, DrainOptions, DrainProgress, DrainTargets, DrainVerdict};
pub use metadata::MetadataOptions;
pub use namespace::{Namespace, NamespaceError};
pub use peers::{PEERS_DEADLINE, Peers};
pub use rates::LimitedCounts;
pub use stats::{OpCounts, WorkerCounts};
pub use worker::{HotBlock, HotFile, Worker, WorkerOptions};
