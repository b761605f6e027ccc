//! What a client and its open files share: the way to the workers, the buffers, what was shown ahead, and the bounds of all of it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forebay_engine::ReadEngine;
use forebay_locks::{Mutex, RwLock};
use forebay_materialise::Kept;
use forebay_types::FileId;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::listed::Pages;
use crate::options::ClientOptions;
use crate::pace::Pace;
use crate::prefetch_budget::PrefetchBudget;
use crate::router::Router;
use crate::small::SmallFiles;
use crate::stats::ClientStats;
use crate::views::Views;
use crate::walks::Walks;

/// One for each client.
pub(crate) struct ClientShared {
    pub(crate) router: Arc<Router>,
    /// Holds what was prefetched from other processes.
    pub(crate) engine: ReadEngine,
    pub(crate) options: ClientOptions,
    pub(crate) stats: Arc<ClientStats>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) prefetches: Arc<Semaphore>,
    /// Fetches of plans and of whole files that may be under way: nobody waits for them yet, so they take no place from streams.
    pub(crate) announced: Semaphore,
    /// Blocks that are fetched for materialised files at once: what readers wait for soon does not queue behind them.
    pub(crate) fills: Semaphore,
    /// Reads across blocks that may be under way at once. Each holds the bytes of one block while it waits for those of the next, beside
    /// the pool where memory is short ([`crate::crossing`]): so they hold no more than the pool does.
    pub(crate) crossings: Semaphore,
    /// How many reads wait.
    pub(crate) waiting: AtomicUsize,
    /// Held by the one reader that found no memory and tries again.
    pub(crate) starved: Semaphore,
    /// How much may be fetched ahead, among all handles.
    pub(crate) prefetch_budget: PrefetchBudget,
    pub(crate) tasks: TaskTracker,
    pub(crate) small: SmallFiles,
    /// What was prefetched from workers whose memory this process sees.
    pub(crate) views: Views,
    /// Pages of directories that were listed lately.
    pub(crate) pages: Pages,
    /// The directories whose files are opened in order.
    pub(crate) walks: Mutex<Walks>,
    /// How long the fetches of their files take; nothing goes by it.
    pub(crate) walks_pace: Arc<Pace>,
    /// The files that the kernel reads by itself.
    pub(crate) kept: RwLock<Option<Kept>>,
    /// When the client was made.
    pub(crate) began: Instant,
}

impl ClientShared {
    /// Whether the kernel reads a file by itself when it is opened next, so that it is not worth fetching before that.
    pub(crate) fn keeps(&self, file: FileId) -> bool {
        self.kept.read().as_ref().is_some_and(|kept| kept.has(file))
    }
}
