//! A mount goes from one process to the next, and programs that have files open notice nothing (ADR 0028).
//!
//! The kernel's connection is a descriptor, which any process may have; what it relies on is what the process knows: numbers of
//! inodes, handles, positions in directories. Both go over a Unix socket.
//!
//! Pure, without I/O and without a clock:
//!
//! * `state` and `fields`: what is handed over, as types that hold nothing wrong; `encoding`: its bytes and their version;
//! * `journal`: what changed since, for a process that has no time to write a state when it ends, or to give it;
//! * `identity`: the options that must be the same;
//! * `message`: what both processes say;
//! * `giving` and `taking`: what each of them does when; `keeping`: what a keeper does.
//!
//! The shell around them: `sealed` (memory that nobody changes any more), `wire` (messages and descriptors over a socket),
//! `peer` (who is at its other end), and `exchange`, which drives both ends. For a process that dies: `memory` (state and
//! journal where they outlive it), `kept` (what it gives to a keeper), `keeper` (which has it until the next process comes),
//! `restart` (how that is started) and `launching` (by whom).

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod encoding;
mod exchange;
mod fields;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod giving;
mod identity;
mod journal;
mod keeper;
mod keeping;
mod kept;
mod launching;
mod memory;
mod message;
mod peer;
mod restart;
mod sealed;
mod state;
mod taking;
#[cfg(test)]
mod tests;
mod wire;

pub use encoding::{FORMAT, Malformed, OLDEST_FORMAT, decode, encode};
pub use exchange::{Accepts, Given, GivingSide, Held, Holding, give, take, take_if};
pub use giving::Outcome;
pub use identity::{Difference, Identity};
pub use journal::{Record, recover, replay};
pub use keeper::{KeeperProcess, Visitors};
pub use kept::{KeeperLink, Keeps, Kept, Taken};
pub use launching::{Launched, launch};
pub use memory::{Journal, Unreadable, read_kept, spend, was_left};
pub use message::{Order, Refusal};
pub use peer::{Peer, peer_of};
pub use restart::Restart;
pub use sealed::{read_sealed, sealed};
pub use state::{
    Agreed, DirectoryHandle, FileHandle, HandleNumbers, Handles, HeldInode, Named, Names, Nonsense, Open, ReadSoFar,
    Reads, State, Suspect, VirtualHandle, Written,
};
pub use taking::{LETS_GO_WITHIN, NotTaken};
