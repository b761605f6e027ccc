//! A worker whose memory holds some files, and a client of it in the same process: a hit as `forebay up` has it.

#![allow(dead_code, reason = "each bench, example and test uses a part of it")]

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Connector, OpenFile};
use forebay_cluster::{Member, StaticMembership};
use forebay_engine::FetchPolicy;
use forebay_memory::{Pool, PoolOptions};
use forebay_origin::{FakeOrigin, Origin};
use forebay_store::{Store, StoreOptions};
use forebay_transport::{Caller, LocalTransport, Op, Request, Service, Transport};
use forebay_types::{
    AccessList, BlockKey, ByteSize, FileId, FileVersion, FsPath, MAX_BLOCK_SIZE, Role, SectorRange, VersionTag,
};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};
use tokio::runtime::Runtime;

pub(crate) const FILES: usize = 4;
const BLOCKS: u64 = 8;
/// Bytes of each file.
pub(crate) const SIZE: u64 = BLOCKS * MAX_BLOCK_SIZE as u64;

pub(crate) struct Scene {
    pub(crate) worker: Arc<Worker>,
    pub(crate) client: Client,
    pub(crate) files: Vec<FileVersion>,
    ids: Vec<FileId>,
    pub(crate) runtime: Runtime,
}

struct Here(Arc<dyn Service>);

impl Connector for Here {
    fn connect(&self, _member: &Member) -> Arc<dyn Transport> {
        Arc::new(LocalTransport::new(Arc::clone(&self.0)))
    }
}

impl Scene {
    /// The settings are those of a worker that is told nothing. The runtime stands still, so a hit can be counted alone.
    pub(crate) fn new() -> Self {
        Self::on(tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"))
    }

    /// The same on a runtime that runs.
    pub(crate) fn running() -> Self {
        Self::on(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime"))
    }

    fn on(runtime: Runtime) -> Self {
        let files: Vec<_> = (0..FILES).map(version).collect();
        let (worker, client) = runtime.block_on(start(&files));
        let ids = files.iter().map(FileVersion::id).collect();
        Self { worker, client, files, ids, runtime }
    }

    pub(crate) fn open(&self, file: usize) -> Arc<OpenFile> {
        self.client.open(self.files[file % FILES].clone())
    }

    pub(crate) fn request(&self, file: usize, offset: u64, length: u32) -> Request {
        let block = u64::from(MAX_BLOCK_SIZE);
        let key = BlockKey { file: self.ids[file % FILES], index: offset / block };
        // Below the block size, which is a u32.
        Request::on_block(Op::Read, key, (offset % block) as u32, length, Duration::from_secs(1))
    }
}

/// A worker whose first file is of a mount with an access list, and those who ask for it.
pub(crate) struct Listed {
    pub(crate) scene: Scene,
    pub(crate) reader: Caller,
    pub(crate) stranger: Caller,
}

impl Listed {
    pub(crate) fn new() -> Self {
        let somebody = |name: &str| {
            Caller::proved(Role::Reader, name, &format!("spiffe://example.org/forebay/prod/reader/{name}"))
        };
        let (scene, reader, stranger) = (Scene::new(), somebody("team-a"), somebody("team-b"));
        let at = FsPath::new("/listed").unwrap();
        let origin = Arc::new(FakeOrigin::new("fake://bucket")) as Arc<dyn Origin>;
        let list = AccessList::new(&["team-a"], &[]).unwrap();
        let namespace = Namespace::new([(at.clone(), origin)]).unwrap().with_access([(at, list)]);
        scene.runtime.block_on(async {
            scene.worker.set_namespace(namespace).await;
            // Whose the blocks are, the worker learns from who describes the file.
            for block in (0..SIZE).step_by(MAX_BLOCK_SIZE as usize) {
                let described = scene.request(0, block, 4 << 10).with_body(scene.files[0].encode().into());
                scene.worker.handle(described.by(reader.clone()), false).await.unwrap();
            }
        });
        Self { scene, reader, stranger }
    }
}

async fn start(files: &[FileVersion]) -> (Arc<Worker>, Client) {
    let pool = |mib| Pool::new(PoolOptions::fixed(ByteSize::mib(mib))).expect("a pool");
    let verify_interval = Duration::from_secs(10);
    let options = StoreOptions { verify_reads: true, verify_interval, ..StoreOptions::in_memory(pool(256)) };
    let store = Store::open(options).await.expect("a store of memory alone opens");
    for file in files {
        for index in 0..BLOCKS {
            let mut landing = store.landing(MAX_BLOCK_SIZE).await.expect("the pool is large enough");
            landing.fill(index as u8);
            let key = BlockKey { file: file.id(), index };
            store.publish(key, SectorRange { start: 0, end: 128 }, MAX_BLOCK_SIZE, landing);
        }
    }
    let options = WorkerOptions {
        block_size: MAX_BLOCK_SIZE,
        fetch: FetchPolicy::origin(64 << 10, 4 << 20),
        deadline: Duration::from_secs(20),
        metadata: MetadataOptions { ttl: Duration::from_secs(60), entries: 1000 },
        takes_changes: false,
    };
    let worker = Arc::new(Worker::new(store, Namespace::new([]).expect("no mounts at all"), options));
    let buffers = Store::open(StoreOptions::in_memory(pool(64))).await.expect("a store of memory alone opens");
    let here = Arc::new(Here(Arc::clone(&worker) as Arc<dyn Service>));
    let membership = Arc::new(StaticMembership::new(["local"]));
    let runtime = tokio::runtime::Handle::current();
    (worker, Client::new(membership, here, buffers, ClientOptions::default(), runtime))
}

fn version(file: usize) -> FileVersion {
    FileVersion {
        origin: "fake://bucket".into(),
        path: format!("file{file}").into_bytes().into(),
        size: SIZE,
        tag: VersionTag::Etag("\"1\"".into()),
    }
}

thread_local! {
    static TURN: Cell<u64> = const { Cell::new(1) };
}

/// Somewhere in a file, aligned to `length`; another place each time (the multiplier of Knuth's MMIX).
pub(crate) fn somewhere(length: u32) -> u64 {
    TURN.with(|turn| {
        turn.set(turn.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (turn.get() >> 33) % (SIZE / u64::from(length)) * u64::from(length)
    })
}
