//! An S3 endpoint in front of the cache: what knows how to speak S3 reads through it with its own client.
//!
//! ```text
//!   boto3, rclone, DuckDB …
//!      │ HTTP, or TLS with the certificates of this process            forebay-metrics: places, seats, slow clients
//!      ▼
//!   endpoint.rs ── gate.rs: what must be signed ── the library s3s: signatures, URLs, headers, XML (ADR 0027)
//!      │                                  └── reread.rs: after the signature, in which it would read something else
//!      │ an operation, with its input                                  operations.rs
//!      ▼
//!   served.rs: who asks (keyring.rs), for what (bucket.rs), and may they (access.rs)
//!      ├── reads.rs    conditions.rs, etag.rs ── body.rs: views of cached memory, piece by piece
//!      ├── lists.rs    listing.rs: keys in order, from directories in any order
//!      ├── changes.rs  receive.rs, checksums.rs ── sending.rs: through to the origin
//!      ├── uploads.rs  pending.rs: what the origin has of uploads in parts
//!      └── copies.rs, part_copy.rs  read as a body is, and sent on
//!      ▼
//!   forebay-client
//! ```
//!
//! | question | file |
//! | --- | --- |
//! | Which bucket and key is which path? | `bucket.rs`, `hosts.rs` |
//! | Who signs, and what may they? | `keyring.rs`, `access.rs` |
//! | What is refused before it is looked at, and what passed over? | `gate.rs`, `ranges.rs` |
//! | What does the library read otherwise than Amazon? | `reread.rs` |
//! | What is an object's entity tag, and a part's? | `etag.rs` |
//! | How much memory do bodies have? | `memory.rs`, `chunks.rs` |
//! | What is a failure of the cache to a client? | `failure.rs` |
//! | What is recorded of a request, and counted? | `asked.rs`, `stats.rs` |

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod access;
mod asked;
mod body;
mod bucket;
mod changes;
mod checksums;
mod chunks;
mod conditions;
mod copies;
mod endpoint;
mod etag;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gate;
mod hosts;
mod keyring;
mod listing;
mod lists;
mod memory;
mod operations;
mod part_copy;
mod pending;
mod ranges;
mod reads;
mod receive;
mod reread;
mod sending;
mod served;
mod stats;
mod uploads;

pub use access::{AccessLists, Denies};
pub use bucket::{Buckets, is_bucket_name};
pub use endpoint::{Endpoint, EndpointOptions};
pub use keyring::{Keyring, KeyringError, NewKeyError, new_line};
