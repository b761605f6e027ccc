//! What a store tells of itself, for metrics and for people.

use std::path::PathBuf;

use serde::Serialize;

/// A snapshot. Counters count from the opening of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreStats {
    /// Blocks of which something is held.
    pub blocks: u64,
    /// The memory tier.
    pub memory: MemoryStats,
    /// The disks, in the order of the options.
    pub disks: Vec<DiskStats>,
    /// Bytes waiting to be written to disk, or being written.
    pub disk_queue_bytes: u64,
    /// Runs that left memory without having reached a disk, because the queue was full, no disk took writes, or a write
    /// failed.
    pub disk_write_skipped: u64,
    /// Runs that were not kept, in memory or on disk, because their account had no room for them.
    pub over_quota: u64,
    /// Bytes that were removed on request, on all tiers together.
    pub bytes_removed: u64,
}

/// What counts against one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct AccountStats {
    /// Bytes in memory.
    pub memory: u64,
    /// Bytes on all disks together.
    pub disk: u64,
}

/// What a removal removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Blocks of which something was held.
    pub blocks: u64,
    /// Bytes, in memory and on disk together.
    pub bytes: forebay_types::ByteSize,
}

/// The memory tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryStats {
    /// Bytes that the pool may have.
    pub capacity: u64,
    /// Bytes that it has grown to.
    pub size: u64,
    /// Bytes of the pool in use, by runs and otherwise.
    pub used: u64,
    /// Runs held.
    pub runs: u64,
    /// Bytes in those runs.
    pub run_bytes: u64,
    /// Bytes in those of them that eviction passes by.
    pub pinned_bytes: u64,
    /// Runs published.
    pub runs_published: u64,
    /// Runs copied up from disk.
    pub runs_promoted: u64,
    /// Runs evicted.
    pub runs_evicted: u64,
    /// Memory that those runs took, in bytes.
    pub bytes_evicted: u64,
    /// Sectors whose bytes were not the ones that were published.
    pub corrupt_sectors: u64,
    /// Requests for memory that wait now.
    pub waiting: u64,
    /// Requests for memory that had to wait.
    pub waits: u64,
    /// Requests for memory that gave up.
    pub failures: u64,
}

/// One disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskStats {
    /// Its directory.
    pub dir: PathBuf,
    /// How its bytes get to readers: what was asked for, or `pagecache` where its file system has no direct I/O.
    pub serve: &'static str,
    /// Bytes of its slab.
    pub capacity: u64,
    /// Bytes in extents in use.
    pub used: u64,
    /// Runs held.
    pub runs: u64,
    /// Bytes in those runs.
    pub run_bytes: u64,
    /// Bytes in those of them that eviction passes by.
    pub pinned_bytes: u64,
    /// Runs written.
    pub runs_written: u64,
    /// Bytes in those runs.
    pub bytes_written: u64,
    /// Bytes read, for readers and for checks.
    pub bytes_read: u64,
    /// Runs evicted.
    pub runs_evicted: u64,
    /// Sectors whose bytes were not the ones that were written.
    pub corrupt_sectors: u64,
    /// Reads that the kernel failed.
    pub read_errors: u64,
    /// Writes that the kernel failed.
    pub write_errors: u64,
    /// Whether nothing is written to it for now because it failed.
    pub degraded: bool,
    /// Whether nothing is asked of it because it hangs: what it has counts as not held until it answers again.
    pub out: bool,
    /// Reads that it did not answer in time.
    pub read_timeouts: u64,
    /// How often it was taken out because it hung.
    pub taken_out: u64,
    /// How often it came back after that.
    pub returned: u64,
    /// Reads and writes that the kernel has.
    pub under_way: u64,
    /// Extents that say on disk that they hold what was removed, until it answers, or takes that, again.
    pub unburied: u64,
}
