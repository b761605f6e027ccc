//! How many rings a mount has and how long their queues are, to be shown.

/// How many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Serving threads.
    pub threads: usize,
    /// Queues: one for each CPU that the kernel may ever see.
    pub queues: usize,
    /// Entries of a queue with a thread of its own.
    pub depth: u32,
}
