//! Workers whose memory the client sees, now and then: reads are right whatever a link says, and fails to hold to.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Connector, ReadPayload};
use forebay_cluster::{Member, StaticMembership};
use forebay_materialise::Source;
use forebay_memory::{Pool, PoolOptions, Span, SpanMut, Spans};
use forebay_store::{Store, StoreOptions};
use forebay_transport::fake::FakeTransport;
use forebay_transport::{
    CallError, LinkError, LocalTransport, Op, PeerMemory, Provenance, Reply, Request, Response, Service, Transport,
    TransportKind,
};
use forebay_types::{ByteSize, Failure, FileVersion, VersionTag};

const BLOCK: u32 = 1 << 20;
const SIZE: u64 = 5 * BLOCK as u64 + 12_345;
const READ: u32 = 128 << 10;

/// The bytes of the file.
static BYTES: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..SIZE).map(|at| (at ^ (at >> 8) ^ (at >> 16).wrapping_mul(31)) as u8).collect());

fn version() -> FileVersion {
    let tag = VersionTag::Etag("\"1\"".into());
    FileVersion { origin: "s3://b".into(), path: b"file".as_slice().into(), size: SIZE, tag }
}

/// A worker that has the file in its memory.
struct Holds {
    blocks: Vec<Span>,
    reads: AtomicU64,
    fills: AtomicU64,
}

impl Holds {
    fn new() -> Arc<Self> {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(16))).unwrap();
        let blocks = BYTES.chunks(BLOCK as usize).map(|bytes| {
            let mut block = pool.try_alloc(bytes.len()).unwrap();
            block.copy_from_slice(bytes);
            block.freeze()
        });
        Arc::new(Self { blocks: blocks.collect(), reads: AtomicU64::new(0), fills: AtomicU64::new(0) })
    }

    /// Whether these bytes lie in its own memory.
    fn shows(&self, bytes: &[u8]) -> bool {
        self.blocks.iter().any(|block| block.as_ptr_range().contains(&bytes.as_ptr()))
    }
}

#[async_trait::async_trait]
impl Service for Holds {
    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        let counter = if request.op == Op::Read { &self.reads } else { &self.fills };
        counter.fetch_add(1, Ordering::Relaxed);
        let Request { block, offset, length, .. } = request;
        let provenance = Provenance { memory: length, ..Provenance::default() };
        if request.op != Op::Read {
            return Ok(Response { provenance, ..Response::of_body(bytes::Bytes::new()) });
        }
        let bytes = self.blocks[block.index as usize].slice(offset as usize..(offset + length) as usize);
        Ok(Response::of_spans(Spans::from_iter([bytes]), provenance))
    }
}

/// When a link shows the worker's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shows {
    Always,
    /// It says that it does, and fails to.
    Never,
    /// Every so many questions and calls it is the other way round.
    InTurns(u32),
}

/// A link in two parts, as that to a worker on the same host is: one that shows memory, and another for what wants a buffer.
struct Near {
    shows: Shows,
    window: LocalTransport,
    other: FakeTransport,
    turn: AtomicU32,
    /// Calls that could not be answered as it was said they would.
    missed: AtomicU64,
}

impl Near {
    fn shows_now(&self) -> bool {
        match self.shows {
            Shows::Always => true,
            Shows::Never => false,
            Shows::InTurns(every) => (self.turn.fetch_add(1, Ordering::Relaxed) / every).is_multiple_of(2),
        }
    }
}

impl PeerMemory for Near {
    fn is_open(&self) -> bool {
        self.shows == Shows::Never || self.shows_now()
    }

    fn may_open(&self) -> bool {
        true
    }

    fn visible_bytes(&self) -> u64 {
        1 << 30
    }
}

#[async_trait::async_trait]
impl Transport for Near {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        if request.op != Op::Read || into.is_some() {
            return self.other.call(request, into).await;
        }
        if self.shows_now() {
            return self.window.call(request, None).await;
        }
        self.missed.fetch_add(1, Ordering::Relaxed);
        Err(LinkError::OtherPath { peer: self.peer().to_owned(), reason: "the window is closed".to_owned() }.into())
    }

    fn memory(&self) -> Option<&dyn PeerMemory> {
        Some(self)
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        "near"
    }

    async fn close(&self) {
        tokio::join!(self.window.close(), self.other.close());
    }
}

struct To(Arc<Near>);

impl Connector for To {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0) as Arc<dyn Transport>
    }
}

struct Scene {
    worker: Arc<Holds>,
    link: Arc<Near>,
    client: Client,
}

impl Scene {
    async fn new(shows: Shows) -> Self {
        let worker = Holds::new();
        let service = || Arc::clone(&worker) as Arc<dyn Service>;
        let (window, other) = (LocalTransport::new(service()), FakeTransport::new("near", service()));
        let link = Near { shows, window, other, turn: AtomicU32::new(0), missed: AtomicU64::new(0) };
        let (link, pool) = (Arc::new(link), Pool::new(PoolOptions::fixed(ByteSize::mib(16))).unwrap());
        let buffers = Store::open(StoreOptions { block_size: BLOCK, ..StoreOptions::in_memory(pool) }).await.unwrap();
        let options =
            ClientOptions { block_size: BLOCK, request_timeout: Duration::from_secs(10), ..Default::default() };
        let (members, runtime) = (Arc::new(StaticMembership::new(["near"])), tokio::runtime::Handle::current());
        let client = Client::new(members, Arc::new(To(Arc::clone(&link))), buffers, options, runtime);
        Self { worker, link, client }
    }

    /// Bytes that the client keeps.
    fn kept(&self) -> u64 {
        self.client.report()["buffers"]["used"].as_u64().unwrap()
    }
}

fn assert_right(bytes: &[u8], offset: u64) {
    assert!(*bytes == BYTES[offset as usize..][..bytes.len()], "{} bytes at {offset}", bytes.len());
}

#[tokio::test]
async fn what_a_near_worker_has_is_read_where_it_lies_and_kept_nowhere_else() {
    let scene = Scene::new(Shows::Always).await;
    let file = scene.client.open(version());
    let before = scene.kept();
    let mut ahead = 0;
    for offset in (0..SIZE).step_by(READ as usize) {
        let spans = match file.try_read(offset, READ) {
            Some(spans) => {
                ahead += 1;
                spans
            }
            None => file.read(offset, READ).await.unwrap(),
        };
        // Fetches ahead have their turn.
        tokio::task::yield_now().await;
        let mut at = offset;
        for span in &spans {
            assert!(scene.worker.shows(span));
            assert_right(span, at);
            at += span.len() as u64;
        }
        assert_eq!(at, (offset + u64::from(READ)).min(SIZE));
    }
    assert!(ahead > 0, "some of it was shown ahead of its reader");
    assert_eq!(scene.worker.fills.load(Ordering::Relaxed), 0, "what is shown need not be filled first");
    assert_eq!(scene.kept(), before);
    scene.client.close().await;
}

#[tokio::test]
async fn nearness_that_ends_between_the_question_and_the_call_is_no_error_and_no_wrong_byte() {
    for every in [1, 2, 3, 7] {
        let scene = Scene::new(Shows::InTurns(every)).await;
        let file = scene.client.open(version());
        let readers = (0..4_u64).map(|reader| {
            let (file, link) = (Arc::clone(&file), Arc::clone(&scene.link));
            async move {
                let mut at = reader + 1;
                for round in 0..100_u64 {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Others ask, too, so that a read meets its turns in any order.
                    if (at >> 40).is_multiple_of(3) {
                        link.is_open();
                    }
                    // Half of them jump about, some across blocks; the others go on.
                    let jump = (at >> 16) % SIZE;
                    let offset = if round % 2 == 0 { jump } else { (round * u64::from(READ)) % SIZE };
                    let length = [4096, READ, 3 * READ, BLOCK][round as usize % 4];
                    let spans = file.read(offset, length).await.unwrap();
                    let bytes: Vec<u8> = spans.iter().fold(Vec::new(), |all, span| [&all, &**span].concat());
                    assert_eq!(bytes.len() as u64, u64::from(length).min(SIZE - offset));
                    assert_right(&bytes, offset);
                }
            }
        });
        futures::future::join_all(readers).await;
        assert!(scene.link.missed.load(Ordering::Relaxed) > 0, "some were told wrong");
        assert_eq!(scene.client.stats().failed_reads.load(Ordering::Relaxed), 0);
        scene.client.close().await;
    }
}

#[tokio::test]
async fn what_a_near_worker_cannot_show_lands_in_the_callers_buffer_at_the_second_attempt() {
    let scene = Scene::new(Shows::Never).await;
    let file = scene.client.open(version());
    let caller = Pool::new(PoolOptions::fixed(ByteSize::mib(8))).unwrap();
    let offset = u64::from(BLOCK) + 4096;
    let asked = AtomicBool::new(false);
    let mut caller_buffer = || {
        asked.store(true, Ordering::Relaxed);
        caller.try_alloc(READ as usize)
    };
    let ReadPayload::Landed(bytes) = file.read_into(offset, READ, &mut caller_buffer).await.unwrap() else {
        panic!("it was shown")
    };
    assert_right(&bytes, offset);
    assert!(asked.load(Ordering::Relaxed));
    assert_eq!(scene.link.missed.load(Ordering::Relaxed), 1, "it is believed once for each read");
    scene.client.close().await;
}

#[tokio::test]
async fn a_file_that_is_kept_whole_is_copied_from_where_a_near_worker_has_it() {
    for shows in [Shows::Always, Shows::InTurns(1), Shows::Never] {
        let scene = Scene::new(shows).await;
        let blocks = Source::open(&scene.client, &version());
        for index in 0..SIZE.div_ceil(u64::from(BLOCK)) {
            let block = blocks.read(index, false).await.unwrap();
            let mut at = index * u64::from(BLOCK);
            for span in &block.spans {
                assert!(scene.worker.shows(span) || shows != Shows::Always);
                assert_right(span, at);
                at += span.len() as u64;
            }
            assert_eq!(at, ((index + 1) * u64::from(BLOCK)).min(SIZE), "{shows:?}");
        }
        scene.client.close().await;
    }
}
