//! The read engine: answers reads of blocks from a store, and fills the store from a source, each range once.
//!
//! The same engine runs at two places. In a worker the source is the origin; in a mount whose workers are other
//! processes it is those workers, and the store is a small one that holds what was prefetched.
//!
//! A read that hits is a call into the store ([`ReadEngine::try_read`]). A read that misses asks `plan.rs` which ranges
//! to fetch, joins the fetches that are already under way, starts the others as tasks of their own (`in_flight.rs`),
//! and waits for all of them. So one miss is one request to the source, however many read it at once (invariant 5), and
//! a reader that goes away disturbs no other: the fetch goes on and its bytes are cached.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod engine;
mod in_flight;
#[cfg(all(test, shuttle))]
mod model;
mod patience;
mod plan;
mod sync;

pub use engine::{BlockSource, EngineFill, EngineOptions, EngineRead, Fetch, Fetched, Keeping, ReadEngine};
pub use plan::FetchPolicy;
