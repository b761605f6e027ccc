//! A cache node: what stands between the transports and the store and origins.
//!
//! [`Worker`] is a [`Service`](forebay_transport::Service). It answers reads from its block store through a
//! [`ReadEngine`](forebay_engine::ReadEngine) whose source is the origins, and questions about names from a metadata
//! cache in front of them:
//!
//! * `namespace.rs`: which origin is behind which path;
//! * `metadata.rs`: attributes and listings, believed for a configured time, asked for once for everyone;
//! * `versions.rs`: the descriptions of file versions that clients attached to their requests;
//! * `source.rs`: the origins as the engine's source;
//! * `worker.rs`: the requests.
//!
//! A worker trusts no request: offsets and lengths are checked against the description, and a description against the
//! id that it claims (invariant 7).

mod metadata;
mod namespace;
mod source;
mod stats;
mod versions;
mod worker;

pub use metadata::MetadataOptions;
pub use namespace::{Namespace, NamespaceError};
pub use stats::{OpCounts, WorkerCounts};
pub use worker::{Worker, WorkerOptions};
