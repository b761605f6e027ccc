//! One-sided reads, as far as they can be thought: which bytes of a worker's memory a client reads by itself, and when
//! it believes them (ADR 0035). Pure but for the board, which is memory that cards read: no I/O, no clock.
//!
//! A worker tells of a run in its memory *where* that lies: a [`Location`]. Clients keep some of them
//! ([`KnownLocations`]) and have their card read the bytes, and after them their *seals*: a line of 64 bytes for each
//! sector of the slab, on a [`Board`] beside it. A seal has a generation, which is there for as long as the bytes are
//! ([`Sealed`]) and never comes again, and checksums. [`Plan::judge`] believes what was read if each seal is the one
//! that the location speaks of.
//!
//! * `seal.rs`, `board.rs`: what a seal says, and where seals are kept;
//! * `location.rs`, `reach.rs`: what a client is told, and the two reads that it makes of that;
//! * `known.rs`: what a client keeps of it, and for how long;
//! * `warmth.rs`, `giving.rs`: what a worker tells to whom, and how it takes that back;
//! * `model.rs`, `threads.rs`: eviction, overwriting, half-done reads and bits that flip, at any time, and no wrong byte
//!   comes out.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod board;
mod giving;
mod known;
mod location;
#[cfg(all(test, not(shuttle)))]
mod model;
#[cfg(all(test, shuttle))]
#[path = "threads.rs"]
mod model;
mod reach;
mod seal;
mod sync;
mod warmth;

pub use board::{Board, SealError, Sealed};
pub use giving::{Action, Giving, Peer, Why};
pub use known::{KnownLocations, KnownOptions};
pub use location::{LOCATION_LEN, Location, LocationError, Plan};
pub use reach::{Memory, OPENED_LEN, Opened, Reach, ReachError, RemotePlace, Requests};
pub use seal::{Fault, Generation, PAGE_SIZE, SEAL_SIZE};
pub use warmth::{Next, Warmth};
