//! Buffers of a caller, with a worker that is reached over a network card: bytes land in them if they are registered with the card.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use forebay_client::{Client, ClientOptions, Connector, ReadPayload};
use forebay_cluster::{Member, StaticMembership};
use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_store::{Store, StoreOptions};
use forebay_transport::{CallError, LinkError, Op, Payload, Provenance, Reply, Request, Transport, TransportKind};
use forebay_types::{ByteSize, FileVersion, VersionTag};

const SIZE: u64 = 8 << 20;
const READ: u32 = 64 << 10;

/// A worker over a network card: all of its bytes are 7.
#[derive(Default)]
struct OverCard {
    /// Where the last one landed.
    landed: Mutex<usize>,
    fails: AtomicBool,
}

#[async_trait::async_trait]
impl Transport for OverCard {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        if self.fails.swap(false, Ordering::Relaxed) {
            let (peer, reason) = ("card".to_owned(), "the path is down".to_owned());
            return Err(LinkError::OtherPath { peer, reason }.into());
        }
        assert_eq!(request.op, Op::Read);
        let mut into = into.unwrap();
        assert_eq!(into.len(), request.length as usize);
        into.fill(7);
        *self.landed.lock() = into.as_ptr().addr();
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        Ok(Reply { provenance, body: bytes::Bytes::new(), payload: Payload::Landed(into) })
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Ucx
    }

    fn peer(&self) -> &str {
        "card"
    }

    async fn close(&self) {}
}

/// With its card, what was asked about before is registered.
#[derive(Default)]
struct Card {
    worker: Arc<OverCard>,
    registered: Mutex<Option<Pool>>,
    asked: AtomicU32,
}

impl Connector for Card {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.worker) as Arc<dyn Transport>
    }

    fn register(&self, memory: &Pool) {
        *self.registered.lock() = Some(memory.clone());
    }

    fn is_registered(&self, buffer: &[u8]) -> bool {
        let pool = self.registered.lock();
        let (base, length) = pool.as_ref().unwrap().mapping();
        let at = buffer.as_ptr().addr() - base.as_ptr().addr();
        assert!(at + buffer.len() <= length, "it is asked about buffers of the caller only");
        self.asked.fetch_add(1, Ordering::Relaxed) > 0
    }
}

#[tokio::test]
async fn a_callers_buffer_is_landed_in_once_it_is_registered_and_short_replies_at_once() {
    let card = Arc::new(Card::default());
    let pool = |mib| Pool::new(PoolOptions::fixed(ByteSize::mib(mib))).unwrap();
    let buffers = Store::open(StoreOptions::in_memory(pool(16))).await.unwrap();
    let (members, runtime) = (Arc::new(StaticMembership::new(["card"])), tokio::runtime::Handle::current());
    let connector = Arc::clone(&card) as Arc<dyn Connector>;
    let client = Client::new(members, connector, buffers, ClientOptions::default(), runtime);
    let caller = pool(8);
    client.register(&caller);
    let tag = VersionTag::Etag("\"1\"".into());
    let file = client.open(FileVersion { origin: "s3://b".into(), path: b"file".as_slice().into(), size: SIZE, tag });
    // Whether the bytes at `offset` land in the caller's memory, and how often the card was asked about it.
    let lands = async |offset: u64, length: u32| {
        let before = card.asked.load(Ordering::Relaxed);
        let read = file.read_into(offset, length, &mut || caller.try_alloc(1 << 20)).await.unwrap();
        let ReadPayload::Landed(bytes) = read else { panic!("it is in nobody else's memory") };
        assert!(bytes.len() == length as usize && bytes.iter().all(|byte| *byte == 7));
        let at = card.worker.landed.lock().wrapping_sub(caller.mapping().0.as_ptr().addr());
        (at < caller.mapping().1, card.asked.load(Ordering::Relaxed) - before)
    };
    assert_eq!(lands(3 << 20, 4096).await, (true, 0), "it is copied from the message in any case");
    assert_eq!(lands(6 << 20, READ).await, (false, 1));
    assert_eq!(lands(1 << 20, READ).await, (true, 1));
    card.worker.fails.store(true, Ordering::Relaxed);
    assert_eq!(lands(4 << 20, READ).await, (true, 2), "the next attempt asks anew");
    assert_eq!(caller.used(), 0);
    client.close().await;
}
