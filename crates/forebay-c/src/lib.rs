//! The C API: what `include/forebay.h` declares, over `forebay-session`.
//!
//! * `client.rs`: clients, names and listings;
//! * `file.rs`: files that are open;
//! * `read.rs`: reads into memory of the caller's, waited for or under way, and ranges that are fetched ahead;
//! * `ending.rs`: eventfds that are told of the end of what is under way;
//! * `write.rs`: files that are written, in one call or piece by piece;
//! * `view.rs`: bytes where they lie in the cache;
//! * `error.rs`: what a call returns, and the words for it;
//! * `arguments.rs`: pointers of C, looked at.
//!
//! Every function returns 0 or a negative errno, and no panic crosses into C. What a function makes, another one frees, and a pointer
//! that may be NULL says so. The header is what cbindgen makes of this crate (`tests/header.rs`), so comments here are written for its
//! readers. A forked child uses nothing of its parent's: each call says so, and what it frees is forgotten.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod arguments;
mod client;
mod ending;
mod error;
mod file;
mod read;
mod view;
mod write;

pub use client::*;
pub use error::*;
pub use file::*;
pub use read::*;
pub use view::*;
pub use write::*;
