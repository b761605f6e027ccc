//! The client: the namespace, and the way to open files.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use forebay_cluster::{Membership, PlacementKey, Topology};
use forebay_engine::{EngineOptions, FetchPolicy, ReadEngine};
use forebay_locks::{Mutex, RwLock};
use forebay_memory::Pool;
use forebay_store::Store;
use forebay_transport::message::{CoverageReply, ListReply, PartReply, StatReply};
use forebay_transport::{Flags, Op, Request};
use forebay_types::{BlockKey, BlockLayout, Failure, FilePart, FileVersion, FsPath, MAX_BLOCK_SIZE};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::connector::Connector;
use crate::downloads::Downloads;
use crate::listed::{Listed, Pages};
use crate::lookup;
use crate::open_file::OpenFile;
use crate::options::ClientOptions;
use crate::pace::Pace;
use crate::prefetch_budget::PrefetchBudget;
use crate::router::{Away, Router};
use crate::shared::ClientShared;
use crate::small::SmallFiles;
use crate::source::Workers;
use crate::stats::ClientStats;
use crate::views::Views;
use crate::walking;
use crate::walks::Walks;

/// The client. Clones are the same client.
#[derive(Clone)]
pub struct Client {
    pub(crate) shared: Arc<ClientShared>,
}

/// What is cached of a block, and by which worker.
#[derive(Clone, Debug)]
pub struct BlockLocation {
    /// The worker.
    pub worker: Arc<str>,
    /// Whether the worker is one of those that own the block; the others are asked only when these cannot be reached.
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
        Self::with_resort(membership, connector, buffers, options, Away::Fail, runtime)
    }

    /// The same; `away` is what becomes of its requests while no worker can be reached.
    #[must_use]
    pub fn with_resort(
        membership: Arc<dyn Membership>,
        connector: Arc<dyn Connector>,
        buffers: Store,
        options: ClientOptions,
        away: Away,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let stats = Arc::new(ClientStats::default());
        let router = {
            let (backoff, timeout) = (options.backoff, options.request_timeout);
            Router::new(membership, connector, backoff, timeout, Arc::clone(&stats), runtime.clone())
                .limited_to(options.max_concurrency.map_or_else(Downloads::unlimited, Downloads::at_most))
                .hedged(options.hedge)
                .when_away(away)
        };
        let router = Arc::new(router);
        let frames = buffers.pool().capacity().as_u64() / u64::from(MAX_BLOCK_SIZE);
        // The largest read has as many bytes as a frame.
        let crossings = Semaphore::new(frames.clamp(1, 1 << 10) as usize);
        let engine_options = EngineOptions { policy: FetchPolicy::peer(), deadline: options.request_timeout };
        let engine = ReadEngine::new(buffers, Arc::new(Workers(Arc::clone(&router))), engine_options);
        let prefetches = Arc::new(Semaphore::new(options.max_prefetches));
        let fills = Semaphore::new((options.max_prefetches / 4).max(1));
        let announced = Semaphore::new(options.max_prefetches.max(1));
        let tasks = TaskTracker::new();
        Self {
            shared: Arc::new(ClientShared {
                router,
                engine,
                options,
                stats,
                runtime,
                prefetches,
                announced,
                fills,
                crossings,
                waiting: AtomicUsize::new(0),
                starved: Semaphore::new(1),
                prefetch_budget: PrefetchBudget::new(),
                tasks,
                small: SmallFiles::new(options.small_file_size),
                views: Views::default(),
                pages: Pages::new(),
                walks: Mutex::new(Walks::default()),
                walks_pace: Arc::new(Pace::new()),
                kept: RwLock::new(None),
                began: Instant::now(),
            }),
        }
    }

    /// What `path` is. With `revalidate`, the origin is asked whatever a metadata cache says.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::NotFound`] and whatever kept the workers from saying.
    pub async fn stat(&self, path: &FsPath, revalidate: bool) -> Result<StatReply, Failure> {
        let flags = if revalidate { Flags::REVALIDATE } else { Flags::default() };
        lookup::stat(&self.shared, path, flags).await
    }

    /// One page of the directory `path`, of at most `max` names, starting where `token` says. With `revalidate`, the origin is
    /// asked whatever a metadata cache says.
    ///
    /// # Errors
    /// As for [`Client::stat`], and [`forebay_types::FailureKind::NotADirectory`].
    pub async fn list(
        &self,
        path: &FsPath,
        token: Option<String>,
        max: u32,
        revalidate: bool,
    ) -> Result<ListReply, Failure> {
        let Listed { page, valid_for } = self.list_page(path, token, max, revalidate).await?;
        Ok(page.reply(valid_for))
    }

    /// The same, as the page that the client keeps, for who lists a directory again and again.
    ///
    /// # Errors
    /// As for [`Client::list`].
    pub async fn list_page(
        &self,
        path: &FsPath,
        token: Option<String>,
        max: u32,
        revalidate: bool,
    ) -> Result<Listed, Failure> {
        let flags = if revalidate { Flags::REVALIDATE } else { Flags::default() };
        walking::list(&self.shared, path, token, max, flags).await
    }

    /// Where part `number`, counted from 1, of a file of this version lies that was uploaded in several parts; `None` if it has not
    /// as many. The origin is asked.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::VersionChanged`] when the file is no longer this version,
    /// [`forebay_types::FailureKind::Unsupported`] by an origin that does not tell, and whatever kept the workers from saying.
    pub async fn locate_part(&self, version: &FileVersion, number: u32) -> Result<Option<FilePart>, Failure> {
        let first = BlockKey { file: version.id(), index: 0 };
        let request = Request::on_block(Op::Part, first, number, 0, self.shared.options.request_timeout);
        let request = request.with_body(version.encode().into());
        let reply = self.shared.router.call(PlacementKey::from(&first), request, None).await?;
        Ok(PartReply::decode(&reply.body)?.0)
    }

    /// A file of this version is opened without [`Client::open`]: the kernel reads a copy of it. What is likely to be opened next is
    /// fetched all the same.
    pub fn opened_elsewhere(&self, version: &FileVersion) {
        walking::opened(&self.shared, version);
    }

    /// A handle on `version`, each of whose blocks is on one worker. Does no I/O itself; a small file begins to be fetched.
    #[must_use]
    pub fn open(&self, version: FileVersion) -> Arc<OpenFile> {
        self.open_replicated(version, 1)
    }

    /// A handle on `version`, each of whose blocks is on `replicas` workers, as [`forebay_types::Attr::replicas`] says. Does
    /// no I/O itself; a small file begins to be fetched.
    #[must_use]
    pub fn open_replicated(&self, version: FileVersion, replicas: u8) -> Arc<OpenFile> {
        let file = Arc::new(OpenFile::new(Arc::clone(&self.shared), version, replicas));
        lookup::fetch_small(&self.shared, &file);
        walking::opened(&self.shared, file.version());
        file
    }

    /// How a file of `size` bytes is cut into blocks.
    #[must_use]
    pub fn layout(&self, size: u64) -> BlockLayout {
        BlockLayout::new(size, self.shared.options.block_size)
    }

    /// Readers pass pieces of `memory` from now on, for replies to land in ([`crate::CallerBuffer`]). Call it before the first read
    /// that does.
    pub fn register(&self, memory: &Pool) {
        self.shared.router.connector.register(memory);
    }

    /// The members of the cluster as the client knows them.
    #[must_use]
    pub fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.shared.router.routes().topology)
    }

    /// How often blocks have come to have other owners, as far as the client knows: what was loaded before that may be on workers
    /// that are not asked for it any more.
    #[must_use]
    pub fn placement(&self) -> u64 {
        self.shared.router.routes().placement
    }

    /// The client's counters.
    #[must_use]
    pub fn stats(&self) -> &ClientStats {
        &self.shared.stats
    }

    /// What the client counts, and its buffers, as a JSON object. The counts of its links are known to the code that
    /// made its connector.
    #[must_use]
    pub fn report(&self) -> serde_json::Value {
        serde_json::json!({
            "client": &*self.shared.stats,
            "buffers": self.shared.engine.store().stats().memory,
        })
    }

    /// Ends prefetching and the links to the workers. Handles that are still open fail from now on.
    pub async fn close(&self) {
        self.shared.router.judge.outage.close();
        self.shared.prefetches.close();
        self.shared.announced.close();
        self.shared.fills.close();
        self.shared.engine.close().await;
        self.shared.tasks.close();
        self.shared.views.clear();
        self.shared.router.close().await;
        self.shared.tasks.wait().await;
    }
}
