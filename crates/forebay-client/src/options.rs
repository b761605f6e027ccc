//! How a client behaves.

use std::time::Duration;

use forebay_cluster::{Backoff, HedgeOptions};
use forebay_types::MAX_BLOCK_SIZE;

use crate::prefetch::PrefetchOptions;

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Bytes in a block; the same in the whole cluster.
    pub block_size: u32,
    /// How long a request may take in all, over all workers that it is sent to.
    pub request_timeout: Duration,
    /// The same for a change, or for a part of a file on its way to the origin: the origin may take its time.
    pub change_timeout: Duration,
    /// How long a worker that failed is left out.
    pub backoff: Backoff,
    /// How reads that wait for their worker are sent to another one, too; none: they are not.
    pub hedge: Option<HedgeOptions>,
    /// How far to fetch ahead.
    pub prefetch: PrefetchOptions,
    /// How many requests may run ahead of the readers at once.
    pub max_prefetches: usize,
    /// How many requests for bytes of blocks may be under way to workers of other processes at once, from all readers; none: as many as
    /// are asked for.
    pub max_concurrency: Option<usize>,
    /// How many bytes may be fetched ahead of all readers together: less than what holds them can keep.
    pub prefetch_budget: u64,
    /// How many bytes of small files may be fetched ahead of readers that open the files of a directory in order, of all readers
    /// together; 0 turns that off.
    pub directory_budget: u64,
    /// The largest file, in bytes, whose bytes are asked for together with its name, and that is fetched whole when it is opened; 0
    /// turns both off.
    pub small_file_size: u32,
}

/// A reader stands in line for a client's buffer for this part of the time that it may wait in all. No reader holds a
/// buffer while it waits for another, so the line moves, and a reader that left it early would only stand at its end
/// again. With a limit of 1 s, readers starved when the pool was small and the origin slow.
const BUFFERS_WITHIN: u32 = 3;

impl ClientOptions {
    /// How long a reader waits for memory of the store that buffers what comes from other processes.
    #[must_use]
    pub fn buffer_deadline(&self) -> Duration {
        self.request_timeout / BUFFERS_WITHIN
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            block_size: MAX_BLOCK_SIZE,
            request_timeout: Duration::from_secs(90),
            change_timeout: Duration::from_secs(300),
            backoff: Backoff { initial: Duration::from_millis(500), max: Duration::from_secs(30) },
            hedge: Some(HedgeOptions::default()),
            prefetch: PrefetchOptions::default(),
            max_prefetches: 32,
            max_concurrency: None,
            prefetch_budget: 128 << 20,
            directory_budget: 32 << 20,
            small_file_size: 256 << 10,
        }
    }
}
