//! A worker behind several paths: what its readers notice when one of them fails, in virtual time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use forebay_client::paths::{Fallback, Path, PathKind, PathOptions, PathPolicy, PathStats, PathsTransport};
use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Backoff, Member, StaticMembership};
use forebay_engine::FetchPolicy;
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_origin::{FakeOrigin, Origin};
use forebay_store::{Store, StoreOptions};
use forebay_transport::fake::{Delay, FakeTransport};
use forebay_transport::{CallError, LinkError, Op, Reply, Request, Service, Transport, TransportKind};
use forebay_types::{ByteSize, FailureKind, FsPath, MAX_BLOCK_SIZE};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};
use tokio_util::task::TaskTracker;

const SECOND: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(300);
const OPERATION: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(1500);

async fn store() -> Store {
    let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) }).unwrap();
    Store::open(StoreOptions::in_memory(pool)).await.unwrap()
}

/// The one link that there is.
struct Only(Arc<PathsTransport>);

impl Connector for Only {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0) as Arc<dyn Transport>
    }
}

/// A card's link, whose connection is given up when it has been silent for [`DEAD_AFTER`] although it was pinged.
struct Card(Arc<FakeTransport>);

const DEAD_AFTER: Duration = Duration::from_secs(4);

#[async_trait::async_trait]
impl Transport for Card {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let call = self.0.call(request, into);
        tokio::pin!(call);
        loop {
            if let Ok(answer) = tokio::time::timeout(DEAD_AFTER / 2, &mut call).await {
                return answer;
            }
            let ping = Request::on_path(Op::Ping, Bytes::new(), DEAD_AFTER / 2);
            if self.0.call(ping, None).await.is_err() {
                return Err(LinkError::Lost { peer: self.0.peer().to_owned(), reason: "it was silent".into() }.into());
            }
        }
    }

    fn kind(&self) -> TransportKind {
        self.0.kind()
    }

    fn peer(&self) -> &str {
        self.0.peer()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

/// A worker with a file of 8 MiB, and a client that reaches it over two cards and TCP.
struct Scene {
    cards: [Arc<FakeTransport>; 2],
    tcp: Arc<FakeTransport>,
    stats: Arc<PathStats>,
    link: Arc<PathsTransport>,
    client: Client,
    bytes: Vec<u8>,
}

impl Scene {
    async fn new(fallback: Fallback) -> Self {
        let origin = Arc::new(FakeOrigin::new("fake://bucket"));
        let bytes: Vec<u8> = (0..8u32 << 20).map(|at| (at ^ (at >> 9)) as u8).collect();
        origin.put("f", bytes.clone());
        let options = WorkerOptions {
            block_size: MAX_BLOCK_SIZE,
            fetch: FetchPolicy::origin(64 << 10, 4 << 20),
            deadline: 20 * SECOND,
            metadata: MetadataOptions { ttl: 3600 * SECOND, entries: 10 },
            takes_changes: true,
        };
        let namespace = Namespace::new([(FsPath::root(), origin as Arc<dyn Origin>)]).unwrap();
        let worker = Arc::new(Worker::new(store().await, namespace, options)) as Arc<dyn Service>;
        let fake = |name: &str| Arc::new(FakeTransport::new(name, Arc::clone(&worker)));
        let (cards, tcp) = ([fake("card0"), fake("card1")], fake("tcp"));
        let path = |kind, name: &str, link| Path { kind, name: name.to_owned(), link, card: None };
        let card = |card| Arc::new(Card(Arc::clone(card))) as Arc<dyn Transport>;
        let paths = vec![
            path(PathKind::Rdma, "mlx5_0:1", card(&cards[0])),
            path(PathKind::Rdma, "mlx5_1:1", card(&cards[1])),
            path(PathKind::Tcp, "tcp", Arc::clone(&tcp) as Arc<dyn Transport>),
        ];
        let policy = PathPolicy { fallback, retry_after: RETRY, silence: SILENCE };
        let stats = Arc::new(PathStats::default());
        let options = PathOptions { policy, operation_timeout: OPERATION, striping: None };
        let link = Arc::new(PathsTransport::new("worker", paths, options, Arc::clone(&stats), TaskTracker::new()));
        let backoff = Backoff { initial: SECOND, max: 30 * SECOND };
        let options = ClientOptions { backoff, request_timeout: 60 * SECOND, ..ClientOptions::default() };
        let connector = Arc::new(Only(Arc::clone(&link)));
        let membership = Arc::new(StaticMembership::new(["worker"]));
        let client = Client::new(membership, connector, store().await, options, tokio::runtime::Handle::current());
        Self { cards, tcp, stats, link, client, bytes }
    }

    /// Reads 4 KiB here and there, past the client's buffers; the kind of the first failure.
    async fn read(&self) -> Result<(), FailureKind> {
        let version = self.client.stat(&FsPath::new("/f").unwrap(), false).await.map_err(|failure| failure.kind())?;
        let file = self.client.open(version.attr.version().unwrap().clone());
        for at in (0..self.bytes.len()).step_by(1_000_003) {
            let end = (at + 4096).min(self.bytes.len());
            let spans = file.read(at as u64, 4096).await.map_err(|failure| failure.kind())?;
            let read: Vec<u8> = spans.iter().flat_map(|span| span.iter().copied()).collect();
            assert!(read == self.bytes[at..end], "at {at}");
        }
        Ok(())
    }

    fn calls(&self) -> [u64; 3] {
        [&self.cards[0], &self.cards[1], &self.tcp].map(|link| link.calls(Op::Read))
    }

    fn switches(&self) -> [u64; 4] {
        let PathStats { fell_back, failed_back, left_out, unreachable, .. } = &*self.stats;
        [fell_back, failed_back, left_out, unreachable].map(|counter| counter.load(Ordering::Relaxed))
    }
}

#[tokio::test(start_paused = true)]
async fn readers_see_no_error_when_cards_fail_and_come_back() {
    let scene = Scene::new(Fallback::Auto).await;
    scene.read().await.unwrap();
    assert_eq!(scene.calls()[2], 0, "no read over TCP while there are cards");
    scene.cards[0].kill();
    for _ in 0..4 {
        scene.read().await.unwrap();
    }
    assert_eq!(scene.switches(), [0, 0, 1, 0]);
    scene.cards[1].kill();
    let started = tokio::time::Instant::now();
    for _ in 0..4 {
        scene.read().await.unwrap();
    }
    assert_eq!(scene.switches(), [1, 0, 1, 0]);
    assert!(scene.calls()[2] > 0 && started.elapsed() < SECOND, "TCP took over at once: {:?}", scene.calls());
    scene.cards.iter().for_each(|card| card.revive());
    let before = scene.calls();
    scene.read().await.unwrap();
    assert_eq!(scene.calls()[..2], before[..2], "not before the time has come");
    tokio::time::sleep(RETRY).await;
    scene.read().await.unwrap();
    tokio::time::sleep(SECOND).await;
    let before = scene.calls();
    scene.read().await.unwrap();
    assert_eq!(scene.calls()[2], before[2], "over the cards again: {:?}", scene.calls());
    assert_eq!(scene.switches(), [1, 1, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_card_that_hangs_costs_one_operation_timeout() {
    let scene = Scene::new(Fallback::Auto).await;
    scene.read().await.unwrap();
    scene.cards.iter().for_each(|card| card.drop_requests(1));
    let started = tokio::time::Instant::now();
    scene.read().await.unwrap();
    let took = started.elapsed();
    assert!(took >= OPERATION && took < 2 * OPERATION + SECOND, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn with_never_reads_fail_with_the_reason_and_tcp_is_not_touched() {
    let scene = Scene::new(Fallback::Never).await;
    scene.read().await.unwrap();
    scene.cards.iter().for_each(|card| card.kill());
    assert_eq!(scene.read().await, Err(FailureKind::Unavailable));
    assert_eq!((scene.calls()[2], scene.switches()), (0, [0, 0, 1, 1]));
    scene.cards.iter().for_each(|card| card.revive());
    // No reads come meanwhile.
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(scene.switches(), [0, 1, 1, 1]);
    scene.read().await.unwrap();
    assert_eq!(scene.tcp.calls(Op::Ping) + scene.calls()[2], 0);
}

#[tokio::test(start_paused = true)]
async fn with_never_a_request_that_comes_while_a_probe_is_due_waits_for_it() {
    let scene = Scene::new(Fallback::Never).await;
    scene.read().await.unwrap();
    scene.cards.iter().for_each(|card| card.kill());
    assert_eq!(scene.read().await, Err(FailureKind::Unavailable));
    let failed = tokio::time::Instant::now();
    scene.cards.iter().for_each(|card| card.delay(Delay::Fixed(SECOND / 2)));
    scene.cards.iter().for_each(|card| card.revive());
    assert_eq!(
        scene.read().await,
        Err(FailureKind::Unavailable),
        "those who have another replica to ask do so at once"
    );
    tokio::time::sleep_until(failed + SECOND).await;
    scene.read().await.unwrap();
    assert!(failed.elapsed() >= SECOND * 3 / 2, "the probes took as long: {:?}", failed.elapsed());
    // A probe that is not answered delays no read for long.
    scene.cards.iter().for_each(|card| card.kill());
    assert_eq!(scene.read().await, Err(FailureKind::Unavailable));
    scene.cards.iter().for_each(|card| card.revive());
    scene.cards.iter().for_each(|card| card.hang(true));
    tokio::time::sleep(2 * SECOND).await;
    let began = tokio::time::Instant::now();
    assert_eq!(scene.read().await, Err(FailureKind::Unavailable));
    assert!(began.elapsed() <= 5 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn with_never_a_connection_that_is_lost_while_the_worker_lives_costs_no_reader_an_error() {
    let scene = Scene::new(Fallback::Never).await;
    scene.read().await.unwrap();
    let lost = LinkError::Lost { peer: "worker".into(), reason: "connection reset".into() };
    scene.cards.iter().for_each(|card| card.fail_next(1, &lost.clone().into()));
    scene.read().await.unwrap();
    assert_eq!((scene.calls()[2], scene.switches()[3]), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_card_that_is_back_is_used_again_though_nobody_read_meanwhile() {
    let scene = Scene::new(Fallback::Auto).await;
    scene.read().await.unwrap();
    scene.cards.iter().for_each(|card| card.kill());
    scene.read().await.unwrap();
    scene.cards.iter().for_each(|card| card.revive());
    tokio::time::sleep(RETRY + SECOND).await;
    let before = scene.calls();
    scene.read().await.unwrap();
    assert_eq!((scene.calls()[2], scene.switches()), (before[2], [1, 1, 1, 0]));
}

#[tokio::test(start_paused = true)]
async fn two_cards_that_fall_silent_at_once_cost_a_reader_one_timeout_and_not_two() {
    let scene = Scene::new(Fallback::Auto).await;
    scene.read().await.unwrap();
    scene.cards.iter().for_each(|card| card.hang(true));
    let began = tokio::time::Instant::now();
    scene.read().await.unwrap();
    let took = began.elapsed();
    assert!(took >= DEAD_AFTER && took < DEAD_AFTER + SECOND, "{took:?}");
    assert_eq!(scene.tcp.calls(Op::Ping), 0);
}

/// As where another worker is faster: a link is found dead by who waits for it.
#[tokio::test(start_paused = true)]
async fn cards_that_fall_silent_are_found_out_though_every_caller_leaves_before_that() {
    let scene = Scene::new(Fallback::Auto).await;
    scene.read().await.unwrap();
    scene.cards.iter().for_each(|card| card.hang(true));
    let began = tokio::time::Instant::now();
    while scene.switches()[0] == 0 {
        assert!(began.elapsed() < 60 * SECOND, "{:?}", scene.switches());
        let ping = Request::on_path(Op::Ping, Bytes::new(), OPERATION);
        drop(tokio::time::timeout(SECOND / 10, scene.link.call(ping, None)).await);
        tokio::time::sleep(SECOND / 10).await;
    }
    assert_eq!(scene.switches(), [1, 0, 1, 0]);
    let began = tokio::time::Instant::now();
    scene.read().await.unwrap();
    assert!(began.elapsed() < SECOND, "TCP has taken over: {:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_probes() {
    let scene = Scene::new(Fallback::Auto).await;
    scene.cards.iter().for_each(|card| card.kill());
    scene.read().await.unwrap();
    tokio::time::sleep(RETRY).await;
    scene.read().await.unwrap();
    scene.client.close().await;
    let ping = Request::on_path(Op::Ping, Bytes::new(), SECOND);
    assert!(scene.tcp.call(ping, None).await.is_err(), "every path is closed");
}
