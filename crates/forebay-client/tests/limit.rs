//! A limit on what is fetched at once, as for a mount that shares a slow link with others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Member, StaticMembership};
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_store::{Store, StoreOptions};
use forebay_transport::{CallError, Payload, Provenance, Reply, Request, Transport, TransportKind};
use forebay_types::{ByteSize, FailureKind, FileVersion, VersionTag};
use tokio::sync::Semaphore;

const READERS: u64 = 12;
const BLOCK: u64 = 4 << 20;

/// A worker that answers when it is let.
struct Gated {
    let_through: Semaphore,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait::async_trait]
impl Transport for Gated {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let under_way = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(under_way, Ordering::Relaxed);
        self.let_through.acquire().await.unwrap().forget();
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        let mut into = into.unwrap();
        into.fill(7);
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        Ok(Reply { provenance, body: bytes::Bytes::new(), payload: Payload::Landed(into) })
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        "gated"
    }

    async fn close(&self) {}
}

struct Connects(Arc<Gated>);

impl Connector for Connects {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0) as Arc<dyn Transport>
    }
}

/// Has as many readers at once, each of a block of its own, and says how many requests were under way together.
async fn most_under_way(max_concurrency: Option<usize>) -> usize {
    let (let_through, under_way, most) = (Semaphore::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let worker = Arc::new(Gated { let_through, under_way, most });
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64))).unwrap();
    let buffers = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
    let members = Arc::new(StaticMembership::new(["gated"]));
    let connector = Arc::new(Connects(Arc::clone(&worker)));
    let options = ClientOptions { max_concurrency, ..ClientOptions::default() };
    let client = Client::new(members, connector, buffers, options, tokio::runtime::Handle::current());
    let tag = VersionTag::Etag("\"1\"".into());
    let size = READERS * BLOCK;
    let file = client.open(FileVersion { origin: "s3://b".into(), path: b"file".as_slice().into(), size, tag });
    let reads = (0..READERS).map(|reader| file.read(reader * BLOCK, 4096));
    let expected = max_concurrency.map_or(READERS as usize, |most| most.min(READERS as usize));
    let gate = async {
        while worker.under_way.load(Ordering::Relaxed) < expected {
            tokio::task::yield_now().await;
        }
        // Reads that wait have had every chance to come through.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        worker.let_through.add_permits(READERS as usize * 2);
    };
    let both = async { tokio::join!(futures::future::join_all(reads), gate).0 };
    let read = tokio::time::timeout(Duration::from_secs(60), both).await.expect("all readers get their bytes");
    assert!(read.into_iter().all(|read| read.is_ok()));
    client.close().await;
    worker.most.load(Ordering::Relaxed)
}

#[tokio::test]
async fn no_more_is_fetched_at_once_than_the_limit_says_and_everybody_has_a_turn() {
    assert_eq!(most_under_way(Some(2)).await, 2);
    assert_eq!(most_under_way(None).await, READERS as usize);
}

#[tokio::test]
async fn who_has_no_turn_in_time_is_told_which_limit_it_is() {
    let worker =
        Arc::new(Gated { let_through: Semaphore::new(0), under_way: AtomicUsize::new(0), most: AtomicUsize::new(0) });
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64))).unwrap();
    let buffers = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
    let members = Arc::new(StaticMembership::new(["gated"]));
    let connector = Arc::new(Connects(Arc::clone(&worker)));
    let request_timeout = Duration::from_millis(300);
    let options = ClientOptions { max_concurrency: Some(1), request_timeout, ..ClientOptions::default() };
    let client = Client::new(members, connector, buffers, options, tokio::runtime::Handle::current());
    let tag = VersionTag::Etag("\"1\"".into());
    let file =
        client.open(FileVersion { origin: "s3://b".into(), path: b"file".as_slice().into(), size: 2 * BLOCK, tag });
    let both = futures::future::select(Box::pin(file.read(0, 4096)), Box::pin(file.read(BLOCK, 4096)));
    let failure = tokio::time::timeout(Duration::from_secs(60), both).await.unwrap().factor_first().0.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::TimedOut);
    assert!(failure.message().contains("client.max_concurrency"), "{failure:?}");
    worker.let_through.add_permits(10);
    client.close().await;
}
