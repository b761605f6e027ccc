//! The worker: what it is made of, and what its owner tells it while it runs.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_engine::{EngineOptions, FetchPolicy, Keeping, ReadEngine};
use forebay_store::Store;
use forebay_transport::message::PathsReply;
use forebay_types::{BlockKey, FileId, FsPath, PolicyTable, Tenure};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::drain::{DrainOptions, DrainProgress, DrainTargets, drain};
use crate::heat::{Heat, Rate};
use crate::metadata::{Metadata, MetadataOptions};
use crate::namespace::Namespace;
use crate::peers::{Asked, Peers};
use crate::rates::Rates;
use crate::scope::{Scope, Scopes};
use crate::source::Origins;
use crate::stats::{Counters, WorkerCounts};
use crate::unaided::Unaided;
use crate::versions::Versions;

/// Files between two yields to other tasks when all of them are gone through.
const BATCH: usize = 256;

/// How a worker behaves.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// Bytes in a block; the same in the whole cluster.
    pub block_size: u32,
    /// The shape of requests to the origin.
    pub fetch: FetchPolicy,
    /// How long a read may wait for the origin.
    pub deadline: Duration,
    /// How metadata is cached.
    pub metadata: MetadataOptions,
    /// Whether the worker changes what it serves, and takes uploads.
    pub takes_changes: bool,
}

/// A cache node.
pub struct Worker {
    pub(crate) engine: ReadEngine,
    pub(crate) scopes: Arc<Scopes>,
    pub(crate) metadata: Metadata,
    pub(crate) versions: Versions,
    pub(crate) peers: Arc<OnceLock<Asked>>,
    pub(crate) unaided: Arc<Unaided>,
    pub(crate) block_size: u32,
    pub(crate) deadline: Duration,
    pub(crate) counters: Counters,
    pub(crate) rates: Rates,
    pub(crate) heat: Heat,
    pub(crate) paths: OnceLock<Offered>,
    pub(crate) instance: u64,
}

/// The ways to the worker besides TCP.
pub(crate) struct Offered {
    pub(crate) paths: PathsReply,
    pub(crate) report: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
}

/// A block that is read much just now.
#[derive(Clone, Debug, PartialEq)]
pub struct HotBlock {
    /// The block.
    pub key: BlockKey,
    /// Where its file shows, if the worker knows.
    pub path: Option<FsPath>,
    /// How often it is read, by estimate.
    pub reads_per_minute: f64,
}

/// A file that is read much just now.
#[derive(Clone, Debug, PartialEq)]
pub struct HotFile {
    /// The file version.
    pub file: FileId,
    /// Where it shows, if the worker knows.
    pub path: Option<FsPath>,
    /// How often one of its blocks is read, by estimate.
    pub reads_per_minute: f64,
    /// How much of it is served, by estimate.
    pub bytes_per_minute: f64,
}

impl Worker {
    /// A worker that caches `namespace` in `store`.
    #[must_use]
    pub fn new(store: Store, namespace: Namespace, options: WorkerOptions) -> Self {
        let scopes = Arc::new(Scopes::new(namespace, options.metadata.ttl, options.takes_changes));
        let peers = Arc::new(OnceLock::new());
        let unaided = Arc::new(Unaided::default());
        let (asked, marked) = (Arc::clone(&peers), Arc::clone(&unaided));
        let source = Arc::new(Origins { scopes: Arc::clone(&scopes), peers: asked, unaided: marked });
        let engine_options = EngineOptions { policy: options.fetch, deadline: options.deadline };
        Self {
            engine: ReadEngine::new(store, source, engine_options),
            metadata: Metadata::new(Arc::clone(&scopes), options.metadata.entries),
            scopes,
            versions: Versions::new(),
            peers,
            unaided,
            block_size: options.block_size,
            deadline: options.deadline,
            counters: Counters::default(),
            rates: Rates::new(),
            heat: Heat::default(),
            paths: OnceLock::new(),
            // Seeded by the system, and never zero, which stands for none.
            instance: RandomState::new().hash_one(std::process::id()) | 1,
        }
    }

    /// A number that no other worker has, nor this one after a restart: what it answers to a ping, in eight bytes, little-endian.
    #[must_use]
    pub fn instance(&self) -> u64 {
        self.instance
    }

    /// Tells clients from now on how they reach this worker besides TCP, and shows what `report` counts of it among the
    /// worker's counters. Once; later calls have no effect.
    pub fn offer_paths(&self, paths: PathsReply, report: impl Fn() -> serde_json::Value + Send + Sync + 'static) {
        let _ = self.paths.set(Offered { paths, report: Box::new(report) });
    }

    /// Asks other workers before the origin from now on, and waits up to `deadline` for them:
    /// [`PEERS_DEADLINE`](crate::PEERS_DEADLINE) where nothing else is said. Once; later calls have no effect.
    pub fn ask_peers(&self, peers: Arc<dyn Peers>, deadline: Duration) {
        let _ = self.peers.set(Asked { peers, deadline });
    }

    /// Serves this namespace from now on. What is under way ends as it began; what was learned of names is forgotten,
    /// as it may not be so any more. Blocks stay: they belong to versions of objects, wherever those show. Those of an
    /// origin that no mount leads to any more are shown to nobody.
    pub async fn set_namespace(&self, namespace: Namespace) {
        let before = self.scopes.set_namespace(namespace);
        self.metadata.forget_all();
        self.reclass(&before).await;
    }

    /// Caches by these policies from now on; also what is cached already, as far as the worker knows whose it is. What it does
    /// not know is treated as when it was published, until a client describes it.
    pub async fn set_policies(&self, policies: PolicyTable) {
        let before = self.scopes.set_policies(policies);
        self.metadata.forget_all();
        let scope = self.scopes.current();
        self.store().set_quotas(scope.quotas().map(|(_, account, quota)| (account, quota)));
        self.reclass(&before).await;
    }

    /// Others take this worker for the owner of its names from now on, and no longer than during `tenure`: changes that were made
    /// before, and will be after, it does not hear of. What it knows of names is forgotten now and not believed after that.
    pub fn own_during(&self, tenure: &Arc<Tenure>) {
        self.metadata.own_during(tenure);
    }

    /// Keeps what is held of the known files as the scope says now, where it said something else before.
    async fn reclass(&self, before: &Scope) {
        for batch in self.versions.all().chunks(BATCH) {
            for (file, version) in batch {
                let now = self.scopes.of_file(*file, version);
                if before.of_file(version) != now {
                    match now.keeping {
                        Keeping::As(keep) => self.store().reclass_file(*file, keep),
                        Keeping::Not => drop(self.store().remove_file(*file)),
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// The worker's block store.
    #[must_use]
    pub fn store(&self) -> &Store {
        self.engine.store()
    }

    /// The worker's counters.
    #[must_use]
    pub fn counts(&self) -> WorkerCounts {
        self.counters.snapshot(self.engine.fetches(), self.rates.limited())
    }

    /// Has the new owners of what is cached adopt it, until there is nothing left that they lack or no way to hand it over.
    /// Tells `progress` after each run; returns the last of it. When `stop` says so it ends at once: what is being handed
    /// over then may still arrive. To be called again as often as one likes.
    pub async fn drain(
        &self,
        targets: Arc<dyn DrainTargets>,
        options: DrainOptions,
        progress: &watch::Sender<DrainProgress>,
        stop: &CancellationToken,
    ) -> DrainProgress {
        drain(self.store(), &targets, options, progress, stop).await
    }

    /// Counts reads of blocks from now on, for [`Worker::hot_blocks`], or no more.
    pub fn watch_hot_blocks(&self, watch: bool) {
        self.heat.watch_blocks(watch);
    }

    /// The blocks that are read most often just now, at most `most`; none while they are not watched. An estimate by a
    /// sample of the reads of the last minutes.
    #[must_use]
    pub fn hot_blocks(&self, most: usize) -> Vec<HotBlock> {
        let hot = |(key, rate): (BlockKey, Rate)| HotBlock {
            key,
            path: self.path_of(key.file),
            reads_per_minute: rate.reads_per_minute,
        };
        self.heat.blocks(most).into_iter().map(hot).collect()
    }

    /// The files of which most is served just now, at most `most`. An estimate like [`Worker::hot_blocks`].
    #[must_use]
    pub fn hot_files(&self, most: usize) -> Vec<HotFile> {
        let hot = |(file, rate): (FileId, Rate)| HotFile {
            file,
            path: self.path_of(file),
            reads_per_minute: rate.reads_per_minute,
            bytes_per_minute: rate.bytes_per_minute,
        };
        self.heat.files(most).into_iter().map(hot).collect()
    }

    fn path_of(&self, file: FileId) -> Option<FsPath> {
        self.scopes.current().path_of(&*self.versions.get(file)?)
    }

    /// Stops the fetches, and what is listed ahead of questions, and waits until they have ended. Close the servers first, the
    /// store after.
    pub async fn close(&self) {
        self.metadata.close().await;
        self.engine.close().await;
    }
}
