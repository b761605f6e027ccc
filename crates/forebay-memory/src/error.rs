//! Why there is no memory, told with what helps.

use std::time::Duration;

use forebay_types::ByteSize;

/// Why a pool could not be made, or an extent not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The kernel gave no address space or memory.
    #[error("cannot map {size} of memory: {error}; make the pool smaller or raise `ulimit -v`")]
    Map {
        /// The size asked for.
        size: ByteSize,
        /// The kernel's answer.
        error: rustix::io::Errno,
    },
    /// `initial` ≤ `max` does not hold, or the pool is smaller than one frame.
    #[error("a memory pool wants initial <= max and at least 4MiB, not {initial} and {max}")]
    Sizes {
        /// The size at start.
        initial: ByteSize,
        /// The largest size.
        max: ByteSize,
    },
    /// Larger than any extent.
    #[error("{0} bytes are more than the largest extent, 4MiB")]
    TooLarge(usize),
    /// Every extent stayed in use until the deadline.
    #[error("no free memory in the pool of {capacity} within {waited:?}; raise its size or lower the concurrency")]
    Exhausted {
        /// The size of the pool.
        capacity: ByteSize,
        /// How long the request waited.
        waited: Duration,
    },
}
