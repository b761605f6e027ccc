//! A read that hits memory: the client's share of it, over a service in the same process that does nothing but look into a store.
//!
//! `cargo bench -p forebay-client --bench hit`; with a real worker: `cargo bench -p forebay-worker --bench hit`.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use divan::{Bencher, black_box, counter::ItemsCount};
use forebay_client::{Client, ClientOptions, Connector, OpenFile};
use forebay_cluster::{Member, StaticMembership};
use forebay_memory::{Pool, PoolOptions, Spans};
use forebay_store::{Store, StoreOptions};
use forebay_transport::{LocalTransport, Look, Request, Response, Service, Transport};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, FileVersion, MAX_BLOCK_SIZE, SectorRange, VersionTag};
use tokio::runtime::Runtime;

const FILES: usize = 4;
const BLOCKS: u64 = 8;
const SIZE: u64 = BLOCKS * MAX_BLOCK_SIZE as u64;
const LENGTHS: [u32; 2] = [4 << 10, 1 << 20];

fn main() {
    divan::main();
}

/// A service that has everything in memory.
struct Hits(Store);

#[async_trait::async_trait]
impl Service for Hits {
    fn try_read(&self, block: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        self.0.try_read(block, offset, length)
    }

    fn try_look(&self, block: &BlockKey, offset: u32, length: u32, look: Look<'_>) -> bool {
        self.0.try_look(block, offset, length, look).is_some()
    }

    fn holds(&self, block: &BlockKey, offset: u32, length: u32) -> bool {
        self.0.is_in_memory(block, offset, length)
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        Err(Failure::new(FailureKind::Internal, format!("{:?} of {} missed", request.op, request.block)))
    }
}

struct Here(Arc<Hits>);

impl Connector for Here {
    fn connect(&self, _member: &Member) -> Arc<dyn Transport> {
        Arc::new(LocalTransport::new(Arc::clone(&self.0) as Arc<dyn Service>))
    }
}

/// Handles for threads, each on the file that `file_of` says.
fn handles(file_of: fn(usize) -> usize) -> (Runtime, Vec<Arc<OpenFile>>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let files: Vec<_> = (0..FILES).map(version).collect();
    let client = runtime.block_on(client(&files));
    let handles = (0..FILES).map(|handle| client.open(files[file_of(handle)].clone())).collect();
    (runtime, handles)
}

async fn client(files: &[FileVersion]) -> Client {
    let store = async |mib| {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(mib))).expect("a pool");
        Store::open(StoreOptions::in_memory(pool)).await.expect("a store of memory alone opens")
    };
    let held = store(256).await;
    for file in files {
        for index in 0..BLOCKS {
            let mut landing = held.landing(MAX_BLOCK_SIZE).await.expect("the pool is large enough");
            landing.fill(index as u8);
            let key = BlockKey { file: file.id(), index };
            held.publish(key, SectorRange { start: 0, end: 128 }, MAX_BLOCK_SIZE, landing);
        }
    }
    let (membership, here) = (Arc::new(StaticMembership::new(["local"])), Arc::new(Here(Arc::new(Hits(held)))));
    let runtime = tokio::runtime::Handle::current();
    Client::new(membership, here, store(64).await, ClientOptions::default(), runtime)
}

fn version(file: usize) -> FileVersion {
    FileVersion {
        origin: "fake://bucket".into(),
        path: format!("file{file}").into_bytes().into(),
        size: SIZE,
        tag: VersionTag::Etag("\"1\"".into()),
    }
}

/// Somewhere in a file, aligned to `length`; another place each time (the multiplier of Knuth's MMIX).
fn somewhere(length: u32) -> u64 {
    thread_local! {
        static TURN: Cell<u64> = const { Cell::new(1) };
    }
    TURN.with(|turn| {
        turn.set(turn.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
        (turn.get() >> 33) % (SIZE / u64::from(length)) * u64::from(length)
    })
}

/// The thread's own handle.
fn mine(handles: &[Arc<OpenFile>]) -> &OpenFile {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    &handles[MINE.with(Cell::get) % handles.len()]
}

/// Threads with a handle each, all on one file.
#[divan::bench(args = LENGTHS, threads = [1, 4], sample_size = 1000)]
fn read_one_file(bencher: Bencher, length: u32) {
    read(bencher, length, |_| 0);
}

/// Threads with a handle each, each on a file of its own.
#[divan::bench(args = LENGTHS, threads = [1, 4], sample_size = 1000)]
fn read_files(bencher: Bencher, length: u32) {
    read(bencher, length, |handle| handle);
}

fn read(bencher: Bencher, length: u32, file_of: fn(usize) -> usize) {
    let (_runtime, handles) = handles(file_of);
    bencher.counter(ItemsCount::new(1u32)).bench(|| {
        black_box(mine(&handles).try_read(somewhere(length), length).expect("it is in memory"));
    });
}

/// As [`read_one_file`], without taking hold of the bytes.
#[divan::bench(args = LENGTHS, threads = [1, 4], sample_size = 1000)]
fn look_at_one_file(bencher: Bencher, length: u32) {
    let (_runtime, handles) = handles(|_| 0);
    bencher.counter(ItemsCount::new(1u32)).bench(|| {
        let looked = mine(&handles).try_look(somewhere(length), length, |bytes| black_box(bytes).len());
        looked.expect("it is in memory")
    });
}

/// A file from its start to its end, again and again.
#[divan::bench(args = LENGTHS, sample_size = 1000)]
fn read_in_order(bencher: Bencher, length: u32) {
    let (_runtime, handles) = handles(|_| 0);
    let mut at = 0;
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        black_box(handles[0].try_read(at, length).expect("it is in memory"));
        at = (at + u64::from(length)) % SIZE;
    });
}
