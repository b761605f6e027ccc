//! A worker behind two cards and TCP: what becomes of large reads, in virtual time.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_client::paths::{
    CardTraffic, Fallback, Path, PathKind, PathOptions, PathPolicy, PathStats, PathsTransport,
};
use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_origin::FakeOrigin;
use forebay_transport::fake::FakeTransport;
use forebay_transport::{CallError, Flags, LinkError, Op, Payload, Reply, Request, Service, Transport, TransportKind};
use forebay_types::{ByteSize, FileVersion, SectorChecksums};
use forebay_worker::Worker;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use common::{BLOCK, SECOND, block, origin, pattern, worker};

/// Bytes a microsecond over a card that is well: a part takes many of the milliseconds that tokio's time goes by.
const SPEED: u64 = 100;
const BLOCKS: u64 = 6;

/// A card: payload takes its time, one after the other.
struct Card {
    fake: Arc<FakeTransport>,
    /// Bytes a microsecond.
    speed: AtomicU64,
    free_at: Mutex<Instant>,
}

#[async_trait::async_trait]
impl Transport for Card {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let reply = self.fake.call(request, into).await?;
        let bytes = match &reply.payload {
            Payload::Landed(span) => span.len() as u64,
            _ => 0,
        };
        let due = {
            let mut free_at = self.free_at.lock();
            *free_at = free_at.max(Instant::now()) + Duration::from_micros(bytes / self.speed.load(Ordering::Relaxed));
            *free_at
        };
        tokio::time::sleep_until(due).await;
        Ok(reply)
    }

    fn kind(&self) -> TransportKind {
        self.fake.kind()
    }

    fn peer(&self) -> &str {
        self.fake.peer()
    }

    async fn close(&self) {
        self.fake.close().await;
    }
}

struct Scene {
    origin: Arc<FakeOrigin>,
    worker: Arc<Worker>,
    version: FileVersion,
    bytes: Vec<u8>,
    cards: [Arc<Card>; 2],
    traffic: [Arc<CardTraffic>; 2],
    tcp: Arc<FakeTransport>,
    stats: Arc<PathStats>,
    pool: Pool,
    link: PathsTransport,
}

impl Scene {
    async fn new(is_striped: bool) -> Self {
        let origin = origin();
        let bytes = pattern(BLOCKS as usize * BLOCK as usize, 3);
        let version = origin.put("f", bytes.clone());
        let worker = worker(&origin).await;
        let fake = |name: &str| Arc::new(FakeTransport::new(name, Arc::clone(&worker) as Arc<dyn Service>));
        let card = |name: &str| {
            let (speed, free_at) = (AtomicU64::new(SPEED), Mutex::new(Instant::now()));
            Arc::new(Card { fake: fake(name), speed, free_at })
        };
        let (cards, tcp) = ([card("card0"), card("card1")], fake("tcp"));
        let traffic = [0, 1].map(|_| Arc::new(CardTraffic::next_to(None)));
        let path = |number: usize| Path {
            name: format!("mlx5_{number}:1"),
            kind: PathKind::Rdma,
            link: Arc::clone(&cards[number]) as Arc<dyn Transport>,
            card: Some(Arc::clone(&traffic[number])),
        };
        let over_tcp = Arc::clone(&tcp) as Arc<dyn Transport>;
        let over_tcp = Path { name: "tcp".to_owned(), kind: PathKind::Tcp, link: over_tcp, card: None };
        let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) }).unwrap();
        let policy = PathPolicy { fallback: Fallback::Auto, retry_after: 300 * SECOND, silence: SECOND };
        let options = PathOptions { policy, operation_timeout: 5 * SECOND, striping: is_striped.then(|| pool.clone()) };
        let stats = Arc::new(PathStats::default());
        let paths = vec![path(0), path(1), over_tcp];
        let link = PathsTransport::new("worker", paths, options, Arc::clone(&stats), TaskTracker::new());
        Self { origin, worker, version, bytes, cards, traffic, tcp, stats, pool, link }
    }

    /// With all of the file in the worker's memory.
    async fn warm(is_striped: bool) -> Self {
        let scene = Self::new(is_striped).await;
        for index in 0..BLOCKS {
            common::read(&scene.worker, &scene.version, index, 0, BLOCK).await.unwrap();
        }
        scene
    }

    /// Reads `length` bytes of a block and compares them, as a client does: once more where another path is to be
    /// asked. How long that took.
    async fn read(&self, index: u64, length: u32) -> Duration {
        let began = Instant::now();
        for _ in 0..4 {
            let request = Request::on_block(Op::Read, block(&self.version, index), 0, length, 60 * SECOND);
            let request = request.with_flags(Flags::CHECKSUMS).with_body(self.version.encode().into());
            let room = self.pool.try_alloc(length as usize).expect("memory for a reader");
            let reply = match self.link.call(request, Some(room)).await {
                Err(CallError::Link(LinkError::OtherPath { .. })) => continue,
                answer => answer.unwrap(),
            };
            let Payload::Landed(landed) = reply.payload else { panic!("it landed nowhere") };
            let at = index as usize * BLOCK as usize;
            assert!(landed[..] == self.bytes[at..at + length as usize], "block {index}");
            let checksums = SectorChecksums::from_bytes(reply.body).unwrap();
            assert_eq!((checksums.len(), checksums.check(&landed)), (length.div_ceil(32 << 10) as usize, Ok(())));
            return began.elapsed();
        }
        panic!("no path answers");
    }

    fn calls(&self) -> [u64; 3] {
        let [first, second] = &self.cards;
        [&first.fake, &second.fake, &self.tcp].map(|link| link.calls(Op::Read))
    }

    /// Reads that were divided, and parts that were late, failed, and were not cached.
    fn counted(&self) -> [u64; 4] {
        let counts = &self.stats.striping;
        [&counts.reads, &counts.late, &counts.failed, &counts.not_cached].map(|count| count.load(Ordering::Relaxed))
    }

    /// Ends the link: then nothing is under way, and all memory is back.
    async fn end(self) {
        self.link.close().await;
        assert!(self.traffic.iter().all(|card| card.in_flight() == 0));
        assert_eq!(self.pool.used(), 0);
    }
}

/// How long `bytes` take over cards of so many bytes a microsecond together.
fn takes(bytes: u32, speed: u64) -> Duration {
    Duration::from_micros(u64::from(bytes) / speed)
}

#[tokio::test(start_paused = true)]
async fn a_large_read_comes_over_both_cards_in_half_the_time_and_a_small_one_over_one() {
    let scene = Scene::warm(true).await;
    for index in 0..BLOCKS {
        let took = scene.read(index, BLOCK).await;
        assert!(took <= takes(BLOCK, 2 * SPEED) * 5 / 4, "{took:?}");
    }
    assert_eq!((scene.calls(), scene.counted()), ([BLOCKS, BLOCKS, 0], [BLOCKS, 0, 0, 0]));
    let [first, second] = [0, 1].map(|card| scene.traffic[card].received());
    assert!(first.abs_diff(second) < u64::from(BLOCK) && first + second > BLOCKS * u64::from(BLOCK));
    scene.read(0, 256 << 10).await;
    assert_eq!((scene.calls().iter().sum::<u64>(), scene.counted()[0]), (2 * BLOCKS + 1, BLOCKS));
    assert!(scene.link.report()[..2].iter().all(|path| path.bytes_per_second.is_some()), "it is told");
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_read_into_memory_of_somebody_elses_goes_whole_so_that_no_late_part_keeps_it() {
    let scene = Scene::warm(true).await;
    let theirs = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(8)) }).unwrap();
    let request = Request::on_block(Op::Read, block(&scene.version, 0), 0, BLOCK, 60 * SECOND);
    let reply = scene.link.call(request, theirs.try_alloc(BLOCK as usize)).await.unwrap();
    let Payload::Landed(landed) = reply.payload else { panic!("it landed nowhere") };
    assert!(landed.is_of(&theirs) && landed[..] == scene.bytes[..BLOCK as usize]);
    assert_eq!((scene.calls().iter().sum::<u64>(), scene.counted()), (1, [0; 4]));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn without_striping_no_read_is_ever_split() {
    let scene = Scene::warm(false).await;
    for index in 0..BLOCKS {
        assert!(scene.read(index, BLOCK).await >= takes(BLOCK, SPEED));
    }
    assert_eq!((scene.calls().iter().sum::<u64>(), scene.counted()), (BLOCKS, [0; 4]));
    assert!(scene.link.report().iter().all(|path| path.bytes_per_second.is_none()));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_cold_read_is_one_request_to_the_origin() {
    let scene = Scene::new(true).await;
    scene.read(0, BLOCK).await;
    assert_eq!((scene.origin.reads().len(), scene.counted()), (1, [0, 0, 0, 1]));
    for index in 1..BLOCKS {
        scene.read(index, BLOCK).await;
    }
    assert_eq!(scene.origin.reads().len() as u64, BLOCKS);
    assert_eq!(scene.counted(), [0, 0, 0, 1], "that the worker lacks something is found out once");
    for index in 0..BLOCKS {
        scene.read(index, BLOCK).await;
    }
    assert_eq!(scene.counted(), [BLOCKS - 4, 0, 0, 1], "and that it has all, by some whole reads");
    assert_eq!(scene.origin.reads().len() as u64, BLOCKS);
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_card_of_a_quarter_of_the_speed_gets_a_fifth_of_each_read() {
    let scene = Scene::warm(true).await;
    scene.cards[1].speed.store(SPEED / 4, Ordering::Relaxed);
    for _ in 0..4 {
        scene.read(0, BLOCK).await;
    }
    let before = [0, 1].map(|card| scene.traffic[card].received());
    for round in 0..4 * BLOCKS {
        let took = scene.read(round % BLOCKS, BLOCK).await;
        assert!(took <= takes(BLOCK, SPEED + SPEED / 4) * 5 / 4, "{took:?}");
    }
    let [fast, slow] = [0, 1].map(|card| scene.traffic[card].received() - before[card]);
    assert!((3 * slow..=5 * slow).contains(&fast), "{fast} and {slow}");
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_card_that_becomes_slow_in_the_middle_costs_its_part_and_not_the_read() {
    let scene = Scene::warm(true).await;
    scene.read(0, BLOCK).await;
    scene.cards[1].speed.store(1, Ordering::Relaxed);
    // Two seconds for its half; what is late is known after three times as long as the other card took.
    let took = scene.read(1, BLOCK).await;
    assert!(took <= 4 * takes(BLOCK, SPEED), "{took:?}");
    assert_eq!(scene.counted()[1..3], [1, 0]);
    for index in 2..BLOCKS {
        let took = scene.read(index, BLOCK).await;
        assert!(took <= 4 * takes(BLOCK, SPEED), "{took:?}");
    }
    let [fast, slow] = [0, 1].map(|card| scene.traffic[card].received());
    assert!(fast > 3 * slow, "{fast} and {slow}");
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_card_that_dies_in_the_middle_costs_its_part_and_not_the_read() {
    let scene = Scene::warm(true).await;
    scene.read(0, BLOCK).await;
    let before = scene.calls();
    scene.cards[1].fake.drop_requests(1);
    let dies = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        scene.cards[1].fake.kill();
    };
    let (took, ()) = tokio::join!(scene.read(1, BLOCK), dies);
    assert!(took <= takes(BLOCK, SPEED) + Duration::from_millis(2), "{took:?}");
    assert_eq!(scene.counted()[1..3], [0, 1]);
    assert_eq!(scene.calls(), [before[0] + 2, before[1] + 1, 0], "the part over the other card, and nothing twice");
    assert_eq!(scene.stats.left_out.load(Ordering::Relaxed), 1);
    scene.read(2, BLOCK).await;
    assert_eq!(scene.calls(), [before[0] + 3, before[1] + 1, 0], "one card is left, and a read is one request");
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn when_all_cards_die_in_the_middle_the_parts_come_over_tcp() {
    let scene = Scene::warm(true).await;
    scene.read(0, BLOCK).await;
    scene.cards.iter().for_each(|card| card.fake.drop_requests(1));
    let die = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        scene.cards.iter().for_each(|card| card.fake.kill());
    };
    let (took, ()) = tokio::join!(scene.read(1, BLOCK), die);
    assert!(took < SECOND, "{took:?}");
    assert_eq!((scene.calls()[2], scene.stats.fell_back.load(Ordering::Relaxed)), (2, 1));
    scene.end().await;
}

#[tokio::test(start_paused = true)]
async fn many_readers_at_once_get_every_byte_while_a_card_comes_and_goes() {
    let scene = Scene::warm(true).await;
    let comes_and_goes = async {
        for round in 0..6 {
            tokio::time::sleep(Duration::from_millis(70)).await;
            if round % 2 == 0 { scene.cards[1].fake.kill() } else { scene.cards[1].fake.revive() }
        }
    };
    let reader = |first: u64| {
        let scene = &scene;
        async move {
            for round in 0..20 {
                scene.read((first + round) % BLOCKS, if round % 3 == 0 { 1 << 20 } else { BLOCK }).await;
            }
        }
    };
    tokio::join!(comes_and_goes, reader(0), reader(1), reader(2), reader(3));
    assert!(scene.counted()[0] > 0, "{:?}", scene.counted());
    scene.end().await;
}
