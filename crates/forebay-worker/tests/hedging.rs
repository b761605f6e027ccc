//! Readers of a worker that stands still, or is slow: others answer for it, with the right bytes, and it costs few requests
//! while nothing is wrong.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{BLOCK, SECOND, ask, block, bytes_of, origin, path, pattern, store, worker};
use forebay_client::{Away, Client, ClientOptions, ClientStats, Connector, OpenFile};
use forebay_cluster::{Backoff, HedgeOptions, Member, StaticMembership};
use forebay_engine::{Fetch, Fetched};
use forebay_origin::FakeOrigin;
use forebay_store::Store;
use forebay_transport::fake::{Delay, FakeTransport};
use forebay_transport::{CallError, Flags, LocalTransport, Op, Request, Service, Transport};
use forebay_types::{BlockKey, Failure, FailureKind, FileVersion, SectorRange};
use forebay_worker::Peers;
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a request and its answer travel.
const TRAVEL: Duration = Duration::from_millis(1);
const BLOCKS: usize = 8;
const BYTES: usize = BLOCKS * BLOCK as usize;
const LENGTH: usize = 10_000;
/// What the budget has at first, and may owe.
const BURST: u64 = 32 + 256;

struct Links(Vec<(&'static str, Arc<FakeTransport>)>);

impl Connector for Links {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        let (_, link) = self.0.iter().find(|(name, _)| **name == *member.name).expect("a link for each member");
        Arc::clone(link) as Arc<dyn Transport>
    }
}

struct Scene {
    client: Client,
    /// Where answers land.
    buffers: Store,
    file: Arc<OpenFile>,
    bytes: Vec<u8>,
    links: Vec<Arc<FakeTransport>>,
    reads: AtomicU64,
}

impl Scene {
    async fn new(names: &[&'static str], hedge: Option<HedgeOptions>, away: impl FnOnce(Away) -> Away) -> Self {
        let origin = origin();
        let bytes = pattern(BYTES, 7);
        origin.put("f", bytes.clone());
        let mut links = Vec::new();
        for name in names {
            let link = FakeTransport::new(*name, worker(&origin).await as Arc<dyn Service>);
            link.delay(Delay::Fixed(TRAVEL));
            links.push((*name, Arc::new(link)));
        }
        let backoff = Backoff { initial: SECOND, max: 10 * SECOND };
        let options = ClientOptions { backoff, request_timeout: TIMEOUT, hedge, ..ClientOptions::default() };
        let direct = Away::Origin(Arc::new(LocalTransport::new(direct(&origin).await)));
        let members = Arc::new(StaticMembership::new(names));
        let all = links.iter().map(|(_, link)| Arc::clone(link)).collect();
        let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
        let landed = buffers.clone();
        let client = Client::with_resort(members, Arc::new(Links(links)), landed, options, away(direct), runtime);
        let attr = client.stat(&path("/s3/f"), false).await.unwrap().attr;
        let file = client.open(attr.version().unwrap().clone());
        Self { client, buffers, file, bytes, links: all, reads: AtomicU64::new(0) }
    }

    async fn of_three(hedge: Option<HedgeOptions>) -> Self {
        Self::new(&["a", "b", "c"], hedge, |_| Away::Fail).await
    }

    /// Reads a piece of each block, in an order that no reader in order has. The longest time that one read took.
    async fn read_all(&self) -> Duration {
        let mut longest = Duration::ZERO;
        for index in [7, 5, 3, 1, 6, 4, 2, 0] {
            let at = index * BLOCK as usize + 1_000_000;
            let began = Instant::now();
            let spans = self.file.read(at as u64, LENGTH as u32).await.unwrap();
            longest = longest.max(began.elapsed());
            let read: Vec<u8> = spans.iter().flat_map(|span| span.iter().copied()).collect();
            assert!(read == self.bytes[at..at + LENGTH], "{LENGTH} bytes at {at}");
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        longest
    }

    /// Until all is cached where it belongs, and it is known how long it takes.
    async fn warm_up(&self) {
        for _ in 0..100 {
            self.read_all().await;
        }
    }

    /// The link to the worker that is read from most.
    fn busiest(&self) -> &Arc<FakeTransport> {
        self.links.iter().max_by_key(|link| link.calls(Op::Read)).unwrap()
    }

    fn count(&self, of: impl Fn(&ClientStats) -> &AtomicU64) -> u64 {
        of(self.client.stats()).load(Ordering::Relaxed)
    }

    fn assert_within_budget(&self) {
        let (sent, reads) = (self.count(|stats| &stats.hedges_sent), self.reads.load(Ordering::Relaxed));
        assert!(sent <= reads / 20 + BURST, "{sent} hedges for {reads} reads");
        let ended = self.count(|stats| &stats.hedges_won) + self.count(|stats| &stats.hedges_wasted);
        assert_eq!(ended, sent, "each was for something or for nothing");
    }
}

/// What reads the origin for a client.
async fn direct(origin: &Arc<FakeOrigin>) -> Arc<dyn Service> {
    worker(origin).await
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stands_still_holds_up_its_readers_for_a_moment_and_is_used_again_when_it_goes_on() {
    let scene = Scene::of_three(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let still = scene.busiest();
    still.hang(true);
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        longest = longest.max(scene.read_all().await);
    }
    assert!(longest <= Duration::from_millis(250), "{longest:?}");
    assert_eq!(scene.count(|stats| &stats.slow_workers), 1);
    assert!(scene.count(|stats| &stats.avoided_reads) > 50);
    scene.assert_within_budget();
    still.hang(false);
    let asked = still.calls(Op::Read);
    for _ in 0..60 {
        scene.read_all().await;
        tokio::time::sleep(SECOND).await;
    }
    assert!(still.calls(Op::Read) > asked + 50, "it owns blocks as before");
    assert_eq!(scene.count(|stats| &stats.failed_reads), 0);
}

#[tokio::test(start_paused = true)]
async fn where_there_is_no_memory_for_a_second_answer_a_reader_leaves_a_worker_that_stands_still() {
    let scene = Scene::of_three(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let still = scene.busiest();
    let mut at = 1_000_000;
    loop {
        let asked = still.calls(Op::Read);
        scene.file.read(at, LENGTH as u32).await.unwrap();
        if still.calls(Op::Read) > asked {
            break;
        }
        at += u64::from(BLOCK);
    }
    still.hang(true);
    let mut read = std::pin::pin!(scene.file.read(at, LENGTH as u32));
    let mut taken = Vec::new();
    let spans = loop {
        match tokio::time::timeout(Duration::from_micros(100), read.as_mut()).await {
            Ok(spans) => break spans.unwrap(),
            Err(_) => assert!(taken.len() < 1_000_000),
        }
        // Until it leaves, others have whatever is evicted.
        if scene.count(|stats| &stats.failovers) == 0 {
            taken.extend(std::iter::from_fn(|| scene.buffers.try_landing(LENGTH as u32)));
        } else {
            taken.clear();
        }
    };
    let read: Vec<u8> = spans.iter().flat_map(|span| span.iter().copied()).collect();
    assert!(read == scene.bytes[at as usize..at as usize + LENGTH]);
    assert_eq!(scene.count(|stats| &stats.hedges_sent), 0);
    assert!(scene.count(|stats| &stats.failovers) > 0);
}

#[tokio::test(start_paused = true)]
async fn without_hedges_readers_wait_for_a_worker_that_stands_still() {
    let scene = Scene::of_three(None).await;
    scene.warm_up().await;
    scene.busiest().hang(true);
    assert!(tokio::time::timeout(5 * SECOND, scene.read_all()).await.is_err());
    assert_eq!(scene.count(|stats| &stats.hedges_sent), 0);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_takes_200_ms_for_each_answer_is_left_out_while_it_does() {
    let scene = Scene::of_three(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let slow = scene.busiest();
    slow.delay(Delay::Fixed(Duration::from_millis(200)));
    for _ in 0..20 {
        scene.read_all().await;
    }
    let asked = slow.calls(Op::Read);
    let mut longest = Duration::ZERO;
    for _ in 0..200 {
        longest = longest.max(scene.read_all().await);
    }
    // Those that find out how it is now wait 100 ms for it.
    assert!(longest <= Duration::from_millis(150), "{longest:?}");
    assert!(slow.calls(Op::Read) < asked + 30, "one now and then finds out");
    scene.assert_within_budget();
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_wrong_hardly_any_read_is_sent_twice() {
    let scene = Scene::of_three(Some(HedgeOptions::default())).await;
    for (seed, link) in scene.links.iter().enumerate() {
        let (least, most) = (Duration::from_micros(100), Duration::from_millis(20));
        link.delay(Delay::Random { seed: seed as u64, least, most });
    }
    for _ in 0..500 {
        scene.read_all().await;
    }
    let (sent, reads) = (scene.count(|stats| &stats.hedges_sent), scene.reads.load(Ordering::Relaxed));
    assert!(sent <= reads / 100, "{sent} hedges for {reads} reads");
    assert_eq!(scene.count(|stats| &stats.slow_workers), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hedge_that_fails_costs_a_read_nothing() {
    let scene = Scene::of_three(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let slow = Arc::clone(scene.busiest());
    slow.delay(Delay::Fixed(Duration::from_millis(50)));
    let no = CallError::Service(Failure::new(FailureKind::Unavailable, "no memory"));
    scene.links.iter().filter(|link| !Arc::ptr_eq(link, &slow)).for_each(|link| link.fail_next(1000, &no));
    let longest = scene.read_all().await;
    assert!(longest <= Duration::from_millis(300), "{longest:?}: the answer of the slow one counts");
    assert!(scene.count(|stats| &stats.hedges_wasted) > 0);
    assert_eq!(scene.count(|stats| &stats.failed_reads), 0);
    assert_eq!(scene.count(|stats| &stats.slow_workers), 0, "nobody was faster");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_may_read_the_origin_does_so_for_its_only_worker() {
    let scene = Scene::new(&["only"], Some(HedgeOptions::default()), |direct| direct).await;
    scene.warm_up().await;
    assert_eq!(scene.count(|stats| &stats.direct_requests), 0);
    scene.links[0].hang(true);
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        longest = longest.max(scene.read_all().await);
    }
    // Until it is clear that it stands still, and has not merely too much to do.
    assert!(longest <= Duration::from_millis(1_500), "{longest:?}");
    assert_eq!(scene.count(|stats| &stats.slow_workers), 1);
    let mut longest = Duration::ZERO;
    for _ in 0..50 {
        longest = longest.max(scene.read_all().await);
    }
    assert!(longest <= Duration::from_millis(150), "{longest:?}");
    assert_eq!(scene.count(|stats| &stats.outages), 0, "it is slow, and not away");
    scene.assert_within_budget();
}

#[tokio::test(start_paused = true)]
async fn the_only_worker_keeps_its_readers_when_it_has_too_much_to_do_though_they_may_read_the_origin() {
    let scene = Scene::new(&["only"], Some(HedgeOptions::default()), |direct| direct).await;
    scene.warm_up().await;
    scene.links[0].delay(Delay::Fixed(Duration::from_millis(200)));
    for _ in 0..50 {
        scene.read_all().await;
    }
    assert_eq!(scene.count(|stats| &stats.slow_workers), 0, "the origin is faster, and that is no reason to leave it");
    let (direct, reads) = (scene.count(|stats| &stats.direct_requests), scene.reads.load(Ordering::Relaxed));
    assert!(direct > 0 && direct <= reads / 20 + 32, "{direct} for {reads} reads");
    scene.assert_within_budget();
}

/// Peers of which none ever answers.
struct Silent;

#[async_trait::async_trait]
impl Peers for Silent {
    async fn cached(&self, _: &Fetch, _: u8, _: &Store) -> Option<Fetched> {
        std::future::pending().await
    }

    async fn cached_by(
        &self,
        _: &str,
        _: BlockKey,
        _: SectorRange,
        _: u32,
        _: &Store,
    ) -> Result<Option<Fetched>, Failure> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_wants_no_help_waits_for_no_peer_and_neither_do_those_who_wait_already() {
    let origin = origin();
    let bytes = pattern(100_000, 3);
    origin.put("f", bytes.clone());
    let worker = worker(&origin).await;
    worker.ask_peers(Arc::new(Silent), TIMEOUT / 2);
    let attr = common::stat(&worker, "/s3/f").await.unwrap().attr;
    let version: FileVersion = attr.version().unwrap().clone();
    let read = async |flags: Flags| {
        let request = Request::on_block(Op::Read, block(&version, 0), 0, 50_000, TIMEOUT).with_flags(flags);
        bytes_of(&ask(&worker, request.with_body(version.encode().into())).await.unwrap())
    };
    let began = Instant::now();
    let unaided = async {
        tokio::time::sleep(SECOND).await;
        read(Flags::UNAIDED).await
    };
    let (waited, unaided) = tokio::join!(read(Flags::default()), unaided);
    assert!(waited == bytes[..50_000] && unaided == waited);
    assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    assert_eq!(origin.counts().gets, 1, "one fetch for both");
    worker.close().await;
}
