//! What a store is made of.

use std::path::PathBuf;
use std::time::Duration;

use forebay_memory::Pool;
use forebay_types::{BlockLayout, ByteSize, IoBackend, MAX_BLOCK_SIZE, ServeMode};

use crate::StoreError;
use crate::io::Limits;

/// Bytes that are read from one disk at a time at most: what the fastest one delivers in some 10 ms.
const MAX_READ: u64 = 64 << 20;

/// One slab directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskOptions {
    /// The directory; it is created if need be, in one that is there.
    pub dir: PathBuf,
    /// The size of its slab file, rounded down to whole frames of 4160 KiB.
    pub size: ByteSize,
}

/// Which runs leave memory first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Those that were not read again: for a cache.
    #[default]
    Sieve,
    /// The oldest: for what was fetched ahead of streams, which is read once, soon after it came.
    Fifo,
}

/// When the kernel is to back a store's memory. What it does not back yet it clears when a thread fills it for the first time, and that
/// thread waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prewarm {
    /// As it is filled.
    #[default]
    AsFilled,
    /// All of it in the background, once a tenth is in use: then it is going to be filled, and faster than it is cleared.
    OnceUsed,
    /// All of it in the background, from the start on.
    AtStart,
}

/// What a store is made of.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Where the memory tier's runs live, and scratch memory comes from. Clones of one pool are one pool; a pool is
    /// best used by one store, whose eviction answers its pressure. If it has a board, peers may read runs by themselves.
    pub memory: Pool,
    /// The slab directories; none makes a store of memory alone.
    pub disks: Vec<DiskOptions>,
    /// Bytes of a block, between 256 KiB and 4 MiB. A slab that was filled with another size starts empty: what its block
    /// numbers stand for lies elsewhere in the files.
    pub block_size: u32,
    /// How slab files are read and written.
    pub io: IoBackend,
    /// How bytes on disk get to a reader.
    pub serve: ServeMode,
    /// When the kernel is to back the pool with memory.
    pub prewarm: Prewarm,
    /// Whether reads from memory check the CRC of the sectors that they touch. Reads from disk always do.
    pub verify_reads: bool,
    /// A sector that was found right is not checked again for up to so long; zero: each read checks. The time passes on the
    /// store's runtime.
    pub verify_interval: Duration,
    /// Which runs leave memory first. Disks always keep what is read again.
    pub eviction: Eviction,
    /// Eviction starts when a tier is fuller than this, in percent.
    pub high_watermark: u8,
    /// Eviction stops when a tier is no fuller than this, in percent.
    pub low_watermark: u8,
    /// How long a fill or a read waits for memory.
    pub alloc_deadline: Duration,
    /// How many bytes may wait to be written to disk. They stay in memory meanwhile, so this is best well below the
    /// size of the pool.
    pub disk_queue: ByteSize,
    /// How long a reader waits for a disk that has its read. After that the read is a miss; a disk that says nothing is not
    /// used until it answers again. Zero: a reader waits for ever.
    pub disk_read_timeout: Duration,
}

impl StoreOptions {
    /// Memory of a store that is to cache on disks alone, for blocks on their way: the documentation of `worker.memory.size` names it.
    pub const MEMORY_OF_DISKS_ALONE: ByteSize = ByteSize::mib(64);

    /// A store of memory alone, with the defaults: blocks of 4 MiB, not prewarmed, no check of reads from memory, watermarks of 90 % and 80 %, 5 s for
    /// memory, a disk queue of an eighth of the pool, and 2 s for a disk (both of no effect until `disks` has some).
    #[must_use]
    pub fn in_memory(memory: Pool) -> Self {
        let disk_queue = ByteSize::bytes(memory.capacity().as_u64() / 8);
        Self {
            memory,
            disks: Vec::new(),
            block_size: MAX_BLOCK_SIZE,
            io: IoBackend::default(),
            serve: ServeMode::default(),
            prewarm: Prewarm::AsFilled,
            verify_reads: false,
            verify_interval: Duration::ZERO,
            eviction: Eviction::default(),
            high_watermark: 90,
            low_watermark: 80,
            alloc_deadline: Duration::from_secs(5),
            disk_queue,
            disk_read_timeout: Duration::from_secs(2),
        }
    }

    /// What each of so many disks may have. Together their reads leave half of the memory to others, should all of them
    /// hang; and more than [`MAX_READ`] at a time makes no disk faster.
    pub(crate) fn disk_limits(&self, disks: usize) -> Limits {
        let share = self.memory.capacity().as_u64() / 2 / (disks.max(1) as u64);
        Limits { read_timeout: self.disk_read_timeout, read_bytes: share.min(MAX_READ) }
    }

    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let (high, low) = (self.high_watermark, self.low_watermark);
        if low >= high || high > 100 {
            return Err(StoreError::Watermarks { high, low });
        }
        if !BlockLayout::is_block_size(self.block_size) {
            return Err(StoreError::BlockSize { size: ByteSize::bytes(u64::from(self.block_size)) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_memory::PoolOptions;

    #[test]
    fn watermarks_must_be_in_order() {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4))).unwrap();
        let options = StoreOptions::in_memory(pool);
        assert!(options.check().is_ok());
        for (high_watermark, low_watermark) in [(80, 80), (70, 80), (101, 80)] {
            assert!(StoreOptions { high_watermark, low_watermark, ..options.clone() }.check().is_err());
        }
    }

    #[test]
    fn a_block_size_must_be_one() {
        let options = StoreOptions::in_memory(Pool::new(PoolOptions::fixed(ByteSize::mib(4))).unwrap());
        for block_size in [0, 3 << 20, 8 << 20] {
            let refused = StoreOptions { block_size, ..options.clone() }.check();
            assert!(matches!(refused, Err(StoreError::BlockSize { .. })), "{refused:?}");
        }
    }
}
