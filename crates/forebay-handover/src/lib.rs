//! A mount goes from one process to the next, and programs that have files open notice nothing (ADR 0028).
//!
//! The kernel's connection is a descriptor, which any process may have; what it relies on is what the process knows: numbers of
//! inodes, handles, positions in directories. Both go over a Unix socket.
//!
//! Pure, without I/O and without a clock:
//!
//! * `state` and `fields`: what is handed over, as types that hold nothing wrong; `encoding`: its bytes and their version;
//! * `journal`: what changed since, for a process that has no time to write a state when it ends;
//! * `identity`: the options that must be the same;
//! * `message`: what both processes say;
//! * `giving` and `taking`: what each of them does when; `keeping`: what a keeper does.
//!
//! The shell around them: `sealed` (memory that nobody changes any more), `wire` (messages and descriptors over a socket), and
//! `exchange`, which drives both ends.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod encoding;
mod exchange;
mod fields;
mod giving;
mod identity;
mod journal;
mod keeping;
mod message;
mod sealed;
mod state;
mod taking;
#[cfg(test)]
mod tests;
mod wire;

pub use encoding::{FORMAT, Malformed, OLDEST_FORMAT, decode, encode};
pub use exchange::{Given, GivingSide, Held, Holding, give, take};
pub use giving::Outcome;
pub use identity::{Difference, Identity};
pub use journal::{Record, replay};
pub use keeping::{Keeper, KeeperAction, KeeperEvent};
pub use message::{Order, Refusal};
pub use sealed::{read_sealed, sealed};
pub use state::{
    Agreed, DirectoryHandle, FileHandle, HandleNumbers, Handles, HeldInode, Named, Names, Nonsense, Open, ReadSoFar,
    Reads, State, Suspect, VirtualHandle,
};
pub use taking::NotTaken;
