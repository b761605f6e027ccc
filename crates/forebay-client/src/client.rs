//! The client: the namespace, and the way to open files.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use forebay_cluster::{Backoff, Membership, PlacementKey};
use forebay_engine::{EngineOptions, FetchPolicy, ReadEngine};
use forebay_store::Store;
use forebay_transport::message::{CoverageReply, ListReply, ListRequest, StatReply};
use forebay_transport::{Flags, Op, Request};
use forebay_types::{BlockKey, BlockLayout, Failure, FileVersion, FsPath, MAX_BLOCK_SIZE};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::open_file::OpenFile;
use crate::prefetch::PrefetchOptions;
use crate::router::{Connector, Router};
use crate::source::Workers;
use crate::stats::ClientStats;

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct ClientOptions {
    /// Bytes in a block; the same in the whole cluster.
    pub block_size: u32,
    /// How long a request may take in all, over all workers that it is sent to.
    pub request_timeout: Duration,
    /// How long a worker that failed is left out.
    pub backoff: Backoff,
    /// How far to fetch ahead.
    pub prefetch: PrefetchOptions,
    /// How many requests may run ahead of the readers at once.
    pub max_prefetches: usize,
    /// How many bytes may be fetched ahead of all readers together: less than what holds them can keep.
    pub prefetch_budget: u64,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            block_size: MAX_BLOCK_SIZE,
            request_timeout: Duration::from_secs(30),
            backoff: Backoff { initial: Duration::from_millis(500), max: Duration::from_secs(30) },
            prefetch: PrefetchOptions::default(),
            max_prefetches: 32,
            prefetch_budget: 128 << 20,
        }
    }
}

/// The client. Clones are the same client.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) router: Arc<Router>,
    /// Holds what was prefetched from other processes.
    pub(crate) engine: ReadEngine,
    pub(crate) options: ClientOptions,
    pub(crate) stats: Arc<ClientStats>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) prefetches: Arc<Semaphore>,
    /// Reads across blocks that may wait for memory at once. Each holds the bytes of one block while it waits for those
    /// of the next: too many of them would hold all the memory that they wait for.
    pub(crate) crossings: Semaphore,
    /// Held by the one reader that found no memory and tries again.
    pub(crate) starved: Semaphore,
    /// Bytes fetched ahead of the readers of all handles.
    pub(crate) ahead: AtomicU64,
    pub(crate) tasks: TaskTracker,
}

/// What is cached of a block, and by whom.
#[derive(Clone, Debug)]
pub struct BlockLocation {
    /// The worker.
    pub worker: Arc<str>,
    /// Whether the worker owns the block; the others are asked only when it cannot be reached.
    pub owner: bool,
    /// What it holds, or why it did not say.
    pub coverage: Result<CoverageReply, Failure>,
}

impl Client {
    /// A client of the workers of `membership`. `buffers` holds what is prefetched from other processes. Prefetching
    /// runs on `runtime`.
    #[must_use]
    pub fn new(
        membership: Arc<dyn Membership>,
        connector: Arc<dyn Connector>,
        buffers: Store,
        options: ClientOptions,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let stats = Arc::new(ClientStats::default());
        let router = Router::new(membership, connector, options.backoff, options.request_timeout, Arc::clone(&stats));
        let router = Arc::new(router);
        let frames = buffers.pool().capacity().as_u64() / u64::from(MAX_BLOCK_SIZE);
        let crossings = Semaphore::new((frames / 4).clamp(1, 1 << 10) as usize);
        let engine_options = EngineOptions { policy: FetchPolicy::peer(), deadline: options.request_timeout };
        let engine = ReadEngine::new(buffers, Arc::new(Workers(Arc::clone(&router))), engine_options);
        let prefetches = Arc::new(Semaphore::new(options.max_prefetches));
        let tasks = TaskTracker::new();
        let ahead = AtomicU64::new(0);
        Self {
            shared: Arc::new(Shared {
                router,
                engine,
                options,
                stats,
                runtime,
                prefetches,
                crossings,
                starved: Semaphore::new(1),
                ahead,
                tasks,
            }),
        }
    }

    /// What `path` is. With `revalidate`, the origin is asked whatever a metadata cache says.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::NotFound`] and whatever kept the workers from saying.
    pub async fn stat(&self, path: &FsPath, revalidate: bool) -> Result<StatReply, Failure> {
        let flags = if revalidate { Flags::REVALIDATE } else { Flags::default() };
        // A directory's listing tells the attributes of its names, so one worker is asked about all of them.
        let key = PlacementKey::from(&path.parent());
        let body = self.shared.router.ask(key, Op::Stat, path.as_bytes().to_vec().into(), flags).await?;
        StatReply::decode(&body)
    }

    /// One page of the directory `path`, of at most `max` names, starting where `token` says.
    ///
    /// # Errors
    /// As for [`Client::stat`], and [`forebay_types::FailureKind::NotADirectory`].
    pub async fn list(&self, path: &FsPath, token: Option<String>, max: u32) -> Result<ListReply, Failure> {
        let request = ListRequest { path: path.as_bytes().to_vec(), token, max };
        let key = PlacementKey::from(path);
        let body = self.shared.router.ask(key, Op::List, request.encode(), Flags::default()).await?;
        ListReply::decode(&body)
    }

    /// A handle on `version`. Does no I/O.
    #[must_use]
    pub fn open(&self, version: FileVersion) -> Arc<OpenFile> {
        Arc::new(OpenFile::new(Arc::clone(&self.shared), version))
    }

    /// How a file of `size` bytes is cut into blocks.
    #[must_use]
    pub fn layout(&self, size: u64) -> BlockLayout {
        BlockLayout::new(size, self.shared.options.block_size)
    }

    /// The workers in the order in which they own a block, each with what it holds of it.
    pub async fn locate(&self, key: BlockKey) -> Vec<BlockLocation> {
        let routes = Arc::clone(&self.shared.router.routes());
        let ranked = routes.ring.ranked(&key);
        let asks = ranked.into_iter().enumerate().map(|(rank, at)| {
            let link = Arc::clone(&routes.links[at]);
            async move {
                let timeout = self.shared.router.timeout();
                let request = Request::on_block(Op::Coverage, key, 0, 0, timeout);
                let answer = self.shared.router.ask_member(&link, request).await;
                let coverage = answer.and_then(|reply| CoverageReply::decode(&reply.body));
                BlockLocation { worker: Arc::clone(&link.member), owner: rank == 0, coverage }
            }
        });
        futures::future::join_all(asks).await
    }

    /// Every worker's counters, as JSON text, or why it did not say.
    pub async fn worker_stats(&self) -> Vec<(Arc<str>, Result<String, Failure>)> {
        let routes = Arc::clone(&self.shared.router.routes());
        let asks = routes.links.iter().map(|link| async {
            let request = Request::on_path(Op::Stats, bytes::Bytes::new(), self.shared.router.timeout());
            let answer = self.shared.router.ask_member(link, request).await;
            (Arc::clone(&link.member), answer.map(|reply| String::from_utf8_lossy(&reply.body).into_owned()))
        });
        futures::future::join_all(asks).await
    }

    /// The client's counters.
    #[must_use]
    pub fn stats(&self) -> &ClientStats {
        &self.shared.stats
    }

    /// What the client counts, its buffers and its links to workers, as a JSON object.
    #[must_use]
    pub fn report(&self) -> serde_json::Value {
        serde_json::json!({
            "client": &*self.shared.stats,
            "buffers": self.shared.engine.store().stats().memory,
            "rdma": self.shared.router.connector.report(),
        })
    }

    /// Ends prefetching and the links to the workers. Handles that are still open fail from now on.
    pub async fn close(&self) {
        self.shared.prefetches.close();
        self.shared.engine.close().await;
        self.shared.tasks.close();
        let routes = Arc::clone(&self.shared.router.routes());
        futures::future::join_all(routes.links.iter().map(|link| link.transport.close())).await;
        self.shared.tasks.wait().await;
        self.shared.router.connector.close().await;
    }
}
