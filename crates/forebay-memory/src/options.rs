//! What a pool is made with.

use forebay_types::ByteSize;

use crate::shared::Sharing;

/// How large a pool is, and how it starts.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Where the pool starts; rounded up to whole frames.
    pub initial: ByteSize,
    /// Where it stops growing; rounded up to whole frames.
    pub max: ByteSize,
    /// Whether to use huge pages where there are some.
    pub huge_pages: bool,
    /// Whether other processes may look at it.
    pub sharing: Sharing,
}

impl PoolOptions {
    /// Two frames: with only one, a pool could hold blocks of one size class at a time. Code that takes a size from a
    /// user raises it to this one.
    pub const MIN_SIZE: ByteSize = ByteSize::mib(8);

    /// A private pool of one fixed size, backed by memory as it is used.
    #[must_use]
    pub fn fixed(size: ByteSize) -> Self {
        Self { initial: size, max: size, huge_pages: true, sharing: Sharing::Private }
    }
}
