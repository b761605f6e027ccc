//! What is fetched before anybody waits for it: a whole model that is touched all over, and ranges that a program announced.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Connector, FetchTo, OpenFile, PrefetchOptions};
use forebay_cluster::{Member, StaticMembership};
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_store::{Store, StoreOptions};
use forebay_transport::{CallError, Op, Payload, Provenance, Reply, Request, Transport, TransportKind};
use forebay_types::{ByteSize, FailureKind, FileVersion, VersionTag};
use tokio::sync::Semaphore;

const BLOCK: u64 = 4 << 20;
const BLOCKS: u64 = 100;
const SOON: Duration = Duration::from_secs(30);

/// A worker in another process, which notes what it was asked to have, and has it once it is let.
struct Worker {
    let_through: Semaphore,
    filled: Mutex<BTreeSet<u64>>,
    under_way: Mutex<(usize, usize)>,
}

impl Worker {
    fn filled(&self) -> usize {
        self.filled.lock().unwrap().len()
    }

    fn most_under_way(&self) -> usize {
        self.under_way.lock().unwrap().1
    }
}

#[async_trait::async_trait]
impl Transport for Worker {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let provenance = Provenance { origin: request.length, ..Provenance::default() };
        if let Some(mut into) = into {
            into.fill(7);
            return Ok(Reply { provenance, body: bytes::Bytes::new(), payload: Payload::Landed(into) });
        }
        assert_eq!(request.op, Op::Fill);
        {
            let mut under_way = self.under_way.lock().unwrap();
            under_way.0 += 1;
            under_way.1 = under_way.1.max(under_way.0);
        }
        self.let_through.acquire().await.unwrap().forget();
        self.under_way.lock().unwrap().0 -= 1;
        self.filled.lock().unwrap().insert(request.block.index);
        Ok(Reply { provenance, body: bytes::Bytes::new(), payload: Payload::None })
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        "worker"
    }

    async fn close(&self) {}
}

struct Connects(Arc<Worker>);

impl Connector for Connects {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0) as Arc<dyn Transport>
    }
}

async fn client(worker: &Arc<Worker>, prefetch: PrefetchOptions) -> Client {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64))).unwrap();
    let buffers = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
    let members = Arc::new(StaticMembership::new(["worker"]));
    let options = ClientOptions { prefetch, ..ClientOptions::default() };
    Client::new(members, Arc::new(Connects(Arc::clone(worker))), buffers, options, tokio::runtime::Handle::current())
}

fn worker(permits: usize) -> Arc<Worker> {
    let let_through = Semaphore::new(permits);
    Arc::new(Worker { let_through, filled: Mutex::default(), under_way: Mutex::default() })
}

fn open(client: &Client, name: &str) -> Arc<OpenFile> {
    let (size, tag) = (BLOCKS * BLOCK, VersionTag::Etag("\"1\"".into()));
    client.open(FileVersion { origin: "s3://b".into(), path: name.as_bytes().into(), size, tag })
}

/// As page faults of a program that takes its tensors in any order: `count` of them.
async fn touch(file: &Arc<OpenFile>, count: u64) {
    for fault in 0..count {
        file.read(fault * 37 % BLOCKS * BLOCK, 128 << 10).await.unwrap();
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_model_that_is_touched_all_over_is_fetched_whole_by_the_workers() {
    let worker = worker(usize::MAX >> 4);
    let client = client(&worker, PrefetchOptions::default()).await;
    let (model, other) = (open(&client, "model.safetensors"), open(&client, "tokens.bin"));
    touch(&other, 40).await;
    touch(&model, 5).await;
    assert_eq!(worker.filled(), 0, "a few tensors are no reason");
    touch(&model, 40).await;
    eventually("all blocks are fetched", || worker.filled() == BLOCKS as usize).await;
    client.close().await;
}

#[tokio::test]
async fn it_is_not_where_that_is_turned_off() {
    let worker = worker(usize::MAX >> 4);
    let client = client(&worker, PrefetchOptions { models: false, ..PrefetchOptions::default() }).await;
    touch(&open(&client, "model.safetensors"), 40).await;
    client.close().await;
    assert_eq!(worker.filled(), 0);
}

#[tokio::test]
async fn no_more_of_it_is_under_way_than_there_are_places_and_nothing_begins_once_it_is_closed() {
    let worker = worker(0);
    let client = client(&worker, PrefetchOptions::default()).await;
    let model = open(&client, "model.safetensors");
    touch(&model, 40).await;
    eventually("it begins", || worker.most_under_way() == 16).await;
    drop(model);
    worker.let_through.add_permits(1000);
    client.close().await;
    let (filled, most) = (worker.filled(), worker.most_under_way());
    assert!(filled <= 17 && most == 16, "{filled} blocks, {most} at once");
}

#[tokio::test]
async fn a_range_is_fetched_to_the_workers_or_here() {
    let worker = worker(usize::MAX >> 4);
    let client = client(&worker, PrefetchOptions::default()).await;
    let file = open(&client, "tokens.bin");
    file.fetch(BLOCK - 5, BLOCK + 10, FetchTo::Workers).await.unwrap();
    assert_eq!(*worker.filled.lock().unwrap(), BTreeSet::from([0, 1, 2]));
    file.fetch(BLOCKS * BLOCK, 10, FetchTo::Workers).await.unwrap();
    assert_eq!(worker.filled(), 3, "there is nothing beyond the end");
    assert!(file.try_read(BLOCK - 5, 10).is_none());
    file.fetch(BLOCK - 5, 10, FetchTo::Here).await.unwrap();
    assert!(file.try_read(BLOCK - 5, 10).is_some(), "it is in memory of this process");
    client.close().await;
    let closed = file.fetch(0, 10, FetchTo::Workers).await.unwrap_err();
    assert_eq!(closed.kind(), FailureKind::Unavailable);
}
