//! Why RDMA, the mount or the origin does not work here, and what to type.
//!
//! Three steps, of which only the first touches the machine:
//!
//! 1. [`Facts::gather`] reads sysfs and procfs below a [`Root`], so no tool needs to be installed and a recorded tree
//!    ([`recording`]) serves as well as a machine. What only system calls and libraries tell ([`Outside`]: addresses, drivers, the clock,
//!    libucp, identities, what an origin or another host answers) is handed in; most of it has a function here that finds it.
//! 2. [`checks::check`] makes verdicts of facts and configuration: pure functions, a file for each part of the machine.
//! 3. [`Report`] prints both, for people or as one JSON document.
//!
//! [`demand`] is also asked by processes that start: whether the memory that they are to take can be had.
//!
//! What is missing is no failure by itself. A machine without a card is fine until the configuration asks for RDMA.
//!
//! Files are read by name and taken as hostile: whatever is too long is cut, what is not UTF-8 is shown as well as it can
//! be, what cannot be read is unknown.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

pub mod checks;
pub mod demand;
pub mod facts;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod netlink;
pub mod recording;
mod report;
mod root;
mod text;

pub use checks::{Check, Section, Verdict};
pub use facts::{Facts, Outside};
pub use report::{Counts, Report};
pub use root::{Access, Answers, Ownership, Root};
