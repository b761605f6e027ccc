//! The client: what a mount, the command line and a program's own code read through.
//!
//! * [`Client`] answers `stat` and `list`, and opens files; it changes names and takes files to the origin, for itself and as the
//!   [`Remote`](forebay_staging::Remote) of files that are being written;
//! * [`OpenFile`] is a handle pinned to one file version: every byte it ever returns is of that version (invariant 1);
//! * [`Streams`] recognises sequential readers of a handle and says what to fetch ahead for them; `walks` does the same of readers that
//!   open the files of a directory in order;
//! * [`Peers`] are the links of a worker to the others, which it asks for blocks before the origin;
//! * as the [`Source`](forebay_materialise::Source) of materialised files it reads whole blocks with their checksums;
//! * [`Connector`] makes links to workers, so that the client knows no transport by name.
//!
//! A read of a block goes to the worker that owns it. When that one cannot be reached, it goes to the next in
//! rendezvous order, which fetches from the origin what it does not hold; the reader sees latency, never an error, as
//! long as any worker lives (invariant 8). One that answers late is not waited for, either: the read goes to another as well. So do
//! questions about names.
//!
//! Bytes that a worker in this process holds are handed out as they lie in its memory, and so are those of a worker whose memory
//! this process sees. They are fetched ahead there, and copied nowhere; of the latter's, the client keeps views for a moment of what
//! was shown ahead of readers (`views`). Bytes from other processes are buffered, for sequential readers only, in a small
//! [`Store`](forebay_store::Store) that a [`ReadEngine`](forebay_engine::ReadEngine) fills from the workers, so that a block that was
//! prefetched for one reader serves all.
//!
//! A thread that may block for a moment polls a read within [`driving::permitted`]: then it may have a worker's answer itself.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod attempts;
mod blocks;
mod client;
mod connector;
mod crossing;
mod downloads;
mod fast_path;
mod fetching;
mod habits;
mod hedging;
mod judge;
mod landing;
mod listed;
mod local;
mod lookup;
mod members;
mod missed;
mod names;
mod open_file;
mod options;
mod order;
mod outage;
mod pace;
pub mod paths;
mod peers;
mod prefetch;
mod prefetch_budget;
mod router;
mod routes;
mod run;
mod scattered;
mod shared;
mod showing;
mod small;
mod source;
mod speed;
mod staging;
mod stats;
mod views;
mod walk;
mod walking;
mod walks;
mod writes;

pub use client::{BlockLocation, Client};
pub use connector::Connector;
pub use fetching::FetchTo;
pub use forebay_transport::driving;
pub use landing::CallerBuffer;
pub use listed::{Listed, ListedName, Page};
pub use members::{Loaded, OriginRoom};
pub use open_file::{OpenFile, ReadPayload};
pub use options::ClientOptions;
pub use peers::Peers;
pub use prefetch::{Ahead, PrefetchOptions, Streams};
pub use router::Away;
pub use stats::{ClientStats, ReadSource};
pub use writes::Refreshed;
