//! What one process tells another of bytes that both can see.

/// Where bytes lie in the mapping of a pool: what one process tells another of a [`Span`](crate::Span).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// From the start of the mapping.
    pub offset: u64,
    /// How many.
    pub length: u32,
}
