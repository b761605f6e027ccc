//! Whether UCX's own connections over sockets are safe.
//!
//! Before 1.18 UCX aborts a process that has several workers, by chance, while connections over sockets come and go: the event of
//! a socket that was closed meanwhile is delivered to the worker that has its number now, and an assertion fails
//! (`handler->async == async`, [openucx#9942](https://github.com/openucx/ucx/pull/9942)). A peer that closes and connects again
//! and again makes that likely, so it is not only chance which process is hit. 1.13 also aborts where a rendezvous over TCP is
//! cut off at the wrong moment. `rdmacm`, by which connections over RDMA are made, has one descriptor for all of them and is not
//! concerned.

use forebay_ucx_sys::Version;

/// Whether connections over sockets may come and go in a process with several workers.
#[must_use]
pub fn sockets_are_sound(version: Version) -> bool {
    (version.major, version.minor) >= (1, 18)
}
