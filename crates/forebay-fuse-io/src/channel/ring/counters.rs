//! What a ring thread counts of itself. Only that thread writes the counters; the code that shows how the mount is
//! served reads them. They are on cache lines of their own, so that threads do not slow each other down by counting.

use std::sync::atomic::AtomicU64;

/// What a ring thread has done.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// Requests served.
    pub(crate) requests: AtomicU64,
    /// Requests that were not answered at once.
    pub(crate) kept: AtomicU64,
    /// System calls.
    pub(crate) submits: AtomicU64,
    /// Times it was woken for an answer of another thread.
    pub(crate) bells: AtomicU64,
    /// Times the kernel was left without any entry of a queue: what comes next there waits for an answer to something else.
    pub(crate) starved: AtomicU64,
    /// Entries whose request made no sense.
    pub(crate) malformed: AtomicU64,
}
