//! Workers that ask one another before the origin, and take over from one another.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::*;
use forebay_engine::{Fetch, Fetched};
use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions};
use forebay_origin::FakeOrigin;
use forebay_store::{Store, StoreOptions};
use forebay_transport::message::{AdoptRequest, CoverageReply};
use forebay_transport::{Flags, Op, Request};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, SECTOR_SIZE, SectorChecksums, SectorRange};
use forebay_worker::{
    AdoptOutcome, DrainOptions, DrainProgress, DrainTargets, DrainVerdict, PEERS_DEADLINE, Peers, Worker,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Peers within this process, by name.
#[derive(Default)]
struct Near {
    workers: OnceLock<HashMap<&'static str, Arc<Worker>>>,
    /// The worker to ask before the origin.
    before_origin: Option<&'static str>,
    corrupts: bool,
    delay: Duration,
    asked: Mutex<u32>,
}

impl Near {
    fn knows(&self, workers: &[(&'static str, &Arc<Worker>)]) {
        let workers = workers.iter().map(|(name, worker)| (*name, Arc::clone(worker))).collect();
        assert!(self.workers.set(workers).is_ok());
    }
}

#[async_trait::async_trait]
impl Peers for Near {
    async fn cached(&self, fetch: &Fetch, _replicas: u8, buffers: &Store) -> Option<Fetched> {
        let from = self.before_origin?;
        let block_length = fetch.layout.block_len(fetch.key.index);
        self.cached_by(from, fetch.key, fetch.sectors, block_length, buffers).await.ok().flatten()
    }

    async fn cached_by(
        &self,
        from: &str,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        buffers: &Store,
    ) -> Result<Option<Fetched>, Failure> {
        *self.asked.lock() += 1;
        tokio::time::sleep(self.delay).await;
        let worker = self.workers.get().and_then(|workers| workers.get(from));
        let worker = worker.ok_or_else(|| Failure::new(FailureKind::InvalidArgument, format!("no worker {from}")))?;
        let length = sectors.byte_len(block_length);
        let response = match ask(worker, cached(key, sectors.byte_offset(), length)).await {
            Err(failure) if failure.kind() == FailureKind::NotCached => return Ok(None),
            response => response?,
        };
        let mut filled = buffers.landing(length).await?;
        filled[..length as usize].copy_from_slice(&bytes_of(&response));
        if self.corrupts {
            filled[5] ^= 1;
        }
        let checksums = SectorChecksums::from_bytes(response.body).filter(|checksums| !checksums.is_empty());
        Ok(Some(Fetched { filled, checksums, from_cache: 0 }))
    }
}

#[tokio::test]
async fn a_question_for_cached_bytes_is_answered_from_memory_and_disk_with_sums_and_never_from_the_origin() {
    let dir = tempfile::tempdir().unwrap();
    let origin = origin();
    let bytes = pattern(100_000, 3);
    let version = origin.put("f", bytes.clone());
    let key = block(&version, 0);
    let worker = worker_of(store(64, Some(dir.path())).await, &origin);
    let not_cached = ask(&worker, cached(key, 0, 100_000)).await.unwrap_err();
    assert_eq!((not_cached.kind(), origin.counts().gets), (FailureKind::NotCached, 0));
    assert_eq!(worker.counts().failures, 0);
    read(&worker, &version, 0, 0, 100_000).await.unwrap();
    let check = async |worker: &Worker, memory, disk| {
        let response = ask(worker, cached(key, 0, 100_000)).await.unwrap();
        let checksums = SectorChecksums::from_bytes(response.body.clone()).unwrap();
        assert_eq!((checksums.len(), checksums.check(&bytes_of(&response))), (4, Ok(())));
        assert!(bytes_of(&response) == bytes);
        assert_eq!((response.provenance.memory, response.provenance.disk), (memory, disk));
    };
    check(&worker, 100_000, 0).await;
    worker.store().flush().await;
    worker.close().await;
    let Ok(worker) = Arc::try_unwrap(worker) else { panic!("the worker is in use") };
    let first = worker.store().clone();
    drop(worker);
    first.close().await;
    // After a restart no request has described the file, and none need to.
    let again = worker_of(store(64, Some(dir.path())).await, &origin);
    for _ in 0..3 {
        check(&again, 0, 100_000).await;
    }
    assert_eq!(origin.counts().gets, 1);
    let audit = Request::on_block(Op::Coverage, key, 0, 0, SECOND).with_flags(Flags::SCRUB);
    let held = CoverageReply::decode(&ask(&again, audit).await.unwrap().body).unwrap();
    assert_eq!((held.memory, held.disk), (vec![], vec![SectorRange { start: 0, end: 4 }]));
}

#[tokio::test]
async fn a_peer_that_has_the_bytes_saves_a_request_to_the_origin() {
    let origin = origin();
    let bytes = pattern(9 << 20, 4);
    let version = origin.put("f", bytes.clone());
    let (warm, cold) = (worker(&origin).await, worker(&origin).await);
    for index in 0..3 {
        read(&warm, &version, index, 0, if index < 2 { BLOCK } else { 1 << 20 }).await.unwrap();
    }
    let gets = origin.counts().gets;
    let near = Arc::new(Near { before_origin: Some("warm"), ..Near::default() });
    near.knows(&[("warm", &warm)]);
    cold.ask_peers(near, PEERS_DEADLINE);
    for index in 0..2 {
        let at = index as usize * BLOCK as usize;
        assert!(read(&cold, &version, index, 0, BLOCK).await.unwrap() == bytes[at..at + BLOCK as usize]);
    }
    let fill = Request::on_block(Op::Fill, block(&version, 2), 0, 1 << 20, SECOND);
    ask(&cold, fill.with_body(version.encode().into())).await.unwrap();
    let counts = cold.counts();
    assert_eq!((counts.bytes_peers, counts.bytes_origin), (9 << 20, 0));
    assert_eq!(origin.counts().gets, gets);
    assert_eq!(stats(&cold).await["worker"]["bytes_peers"], 9 << 20);
}

/// Invariant 2.
#[tokio::test]
async fn what_a_peer_sends_corrupt_is_fetched_from_the_origin() {
    let origin = origin();
    let bytes = pattern(1 << 20, 5);
    let version = origin.put("f", bytes.clone());
    let (warm, cold) = (worker(&origin).await, worker(&origin).await);
    read(&warm, &version, 0, 0, 1 << 20).await.unwrap();
    let near = Arc::new(Near { before_origin: Some("warm"), corrupts: true, ..Near::default() });
    near.knows(&[("warm", &warm)]);
    cold.ask_peers(Arc::clone(&near) as Arc<dyn Peers>, PEERS_DEADLINE);
    assert!(read(&cold, &version, 0, 0, 1 << 20).await.unwrap() == bytes);
    assert_eq!((*near.asked.lock(), cold.counts().bytes_peers, origin.counts().gets), (1, 0, 2));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_answer_soon_has_nothing() {
    let origin = origin();
    let bytes = pattern(1 << 20, 6);
    let version = origin.put("f", bytes.clone());
    let cold = worker(&origin).await;
    let near = Arc::new(Near { before_origin: Some("hung"), delay: 3600 * SECOND, ..Near::default() });
    cold.ask_peers(near, PEERS_DEADLINE);
    let start = tokio::time::Instant::now();
    assert!(read(&cold, &version, 0, 0, 1 << 20).await.unwrap() == bytes);
    assert!(start.elapsed() >= PEERS_DEADLINE && start.elapsed() < 2 * PEERS_DEADLINE);
}

/// How long a reader waits: a third of it for memory.
const LONG: Duration = Duration::from_secs(180);

/// Two cold workers that each ask the other before the origin, in memory for a quarter of what is asked of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_ask_one_another_do_not_wait_for_one_another() {
    let origin = origin();
    let bytes = pattern(64 << 20, 7);
    let version = origin.put("f", bytes.clone());
    let store = async || {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(16))).unwrap();
        Store::open(StoreOptions { alloc_deadline: LONG / 3, ..StoreOptions::in_memory(pool) }).await.unwrap()
    };
    let workers = [worker_of(store().await, &origin), worker_of(store().await, &origin)];
    for (at, worker) in workers.iter().enumerate() {
        let near = Arc::new(Near { before_origin: Some("other"), ..Near::default() });
        near.knows(&[("other", &workers[1 - at])]);
        worker.ask_peers(near, PEERS_DEADLINE);
    }
    let start = std::time::Instant::now();
    let reads = (0..16u64).flat_map(|index| [0, 1].map(|at| (at, index)));
    let reads = reads.map(|(at, index)| {
        let (worker, version) = (&workers[at], &version);
        async move { (index, read_within(LONG, worker, version, index, 0, BLOCK).await.unwrap()) }
    });
    for (index, read) in futures::future::join_all(reads).await {
        let at = index as usize * BLOCK as usize;
        assert!(read == bytes[at..at + BLOCK as usize]);
    }
    // Workers that wait for one another do so until the first deadline.
    assert!(start.elapsed() < LONG / 3, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_worker_adopts_what_it_lacks_and_nothing_else() {
    let origin = origin();
    let bytes = pattern(100_001, 8);
    let version = origin.put("f", bytes.clone());
    let (old, new) = (worker(&origin).await, worker(&origin).await);
    read(&old, &version, 0, 0, 100_001).await.unwrap();
    let near = Arc::new(Near::default());
    near.knows(&[("old", &old)]);
    let adopt = |index, offset, length, block_length| {
        let body = AdoptRequest { from: "old".into(), block_length }.encode();
        Request::on_block(Op::Adopt, block(&version, index), offset, length, SECOND).with_body(body)
    };
    let kind = async |request| ask(&new, request).await.unwrap_err().kind();
    assert_eq!(kind(adopt(0, 0, 100_001, 100_001)).await, FailureKind::Unsupported, "it knows nobody");
    new.ask_peers(Arc::clone(&near) as Arc<dyn Peers>, PEERS_DEADLINE);
    let taken = async |request| ask(&new, request).await.unwrap().provenance;
    assert_eq!(taken(adopt(0, 0, 2 * SECTOR_SIZE, 100_001)).await.memory, 2 * SECTOR_SIZE);
    assert_eq!(taken(adopt(0, 0, 100_001, 100_001)).await.memory, 100_001 - 2 * SECTOR_SIZE);
    assert_eq!(taken(adopt(0, 0, 100_001, 100_001)).await.memory, 0);
    assert_eq!((*near.asked.lock(), new.counts().bytes_adopted), (2, 100_001));
    assert!(read(&new, &version, 0, 0, 100_001).await.unwrap() == bytes);
    assert_eq!(origin.counts().gets, 1);
    assert_eq!(kind(adopt(1, 0, SECTOR_SIZE, BLOCK)).await, FailureKind::NotCached);
    for (offset, length, block_length) in
        [(1, SECTOR_SIZE, BLOCK), (0, 5, BLOCK), (0, 0, BLOCK), (0, SECTOR_SIZE, BLOCK + 1), (u32::MAX, 1, 1)]
    {
        let refused = kind(adopt(0, offset, length, block_length)).await;
        assert_eq!(refused, FailureKind::InvalidArgument, "{offset} {length} {block_length}");
    }
}

/// The other worker takes over whatever the drained one has.
struct Takes {
    new: Arc<Worker>,
    /// So many fail before one works.
    failures: Mutex<u32>,
}

#[async_trait::async_trait]
impl DrainTargets for Takes {
    async fn adopt(&self, key: BlockKey, sectors: SectorRange, block_length: u32) -> Result<AdoptOutcome, Failure> {
        {
            let mut failures = self.failures.lock();
            if *failures > 0 {
                *failures -= 1;
                return Err(Failure::new(FailureKind::Unavailable, "not now"));
            }
        }
        let body = AdoptRequest { from: "old".into(), block_length }.encode();
        let (offset, length) = (sectors.byte_offset(), sectors.byte_len(block_length));
        let request = Request::on_block(Op::Adopt, key, offset, length, 10 * SECOND).with_body(body);
        match ask(&self.new, request).await?.provenance.memory {
            0 => Ok(AdoptOutcome::Held),
            bytes => Ok(AdoptOutcome::Adopted(bytes)),
        }
    }
}

struct Move {
    old: Arc<Worker>,
    takes: Arc<Takes>,
    progress: watch::Sender<DrainProgress>,
    stop: CancellationToken,
}

impl Move {
    async fn new(old: Store, origin: &Arc<FakeOrigin>, failures: u32) -> Self {
        let (old, new) = (worker_of(old, origin), worker(origin).await);
        let near = Arc::new(Near::default());
        near.knows(&[("old", &old)]);
        new.ask_peers(near, PEERS_DEADLINE);
        let takes = Arc::new(Takes { new, failures: Mutex::new(failures) });
        Self { old, takes, progress: watch::Sender::default(), stop: CancellationToken::new() }
    }

    async fn drain(&self, options: DrainOptions) -> DrainProgress {
        let targets = Arc::clone(&self.takes) as Arc<dyn DrainTargets>;
        self.old.drain(targets, options, &self.progress, &self.stop).await
    }
}

#[tokio::test]
async fn a_drained_worker_leaves_all_it_had_and_goes_on_answering() {
    let dir = tempfile::tempdir().unwrap();
    let origin = origin();
    let bytes = pattern(30 << 20, 3);
    let version = origin.put("f", bytes.clone());
    // Memory for less than half: the rest is on disk only.
    let moved = Move::new(store(16, Some(dir.path())).await, &origin, 5).await;
    for index in 0..8 {
        let length = if index == 7 { 2 << 20 } else { BLOCK };
        read(&moved.old, &version, index, 0, length).await.unwrap();
        moved.old.store().flush().await;
    }
    let gets = origin.counts().gets;
    let (progress, ()) = tokio::join!(moved.drain(DrainOptions::default()), async {
        for index in 0..7 {
            let at = index as usize * BLOCK as usize;
            assert!(read(&moved.old, &version, index, 0, BLOCK).await.unwrap() == bytes[at..at + BLOCK as usize]);
        }
    });
    assert_eq!(progress.verdict, DrainVerdict::Complete, "{progress:?}");
    assert_eq!((progress.bytes_adopted, progress.runs_failed), (30 << 20, 0), "{progress:?}");
    assert!(progress.pass >= 2 && progress.runs_done == progress.runs_held + progress.runs_skipped, "{progress:?}");
    assert_eq!(*moved.progress.borrow(), progress);
    for index in 0..7 {
        let at = index as usize * BLOCK as usize;
        let read = read(&moved.takes.new, &version, index, 0, BLOCK).await.unwrap();
        assert!(read == bytes[at..at + BLOCK as usize]);
    }
    assert_eq!(origin.counts().gets, gets, "nothing was fetched from the origin again");
    let again = moved.drain(DrainOptions::default()).await;
    assert_eq!((again.verdict, again.pass, again.bytes_adopted), (DrainVerdict::Complete, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_keeps_to_its_bandwidth_and_stops_when_told() {
    let origin = origin();
    let version = origin.put("f", pattern(32 << 20, 3));
    let moved = Move::new(store(64, None).await, &origin, 0).await;
    for index in 0..8 {
        read(&moved.old, &version, index, 0, BLOCK).await.unwrap();
    }
    let slow = DrainOptions { bandwidth: Some(ByteSize::mib(4)), at_once: 2 };
    let start = tokio::time::Instant::now();
    let (progress, ()) = tokio::join!(moved.drain(slow), async {
        tokio::time::sleep(Duration::from_millis(3500)).await;
        moved.stop.cancel();
    });
    assert_eq!((progress.verdict, start.elapsed()), (DrainVerdict::Stopped, Duration::from_millis(3500)));
    assert!((3..=5).contains(&progress.runs_adopted), "{progress:?}");
}

#[tokio::test]
async fn a_drain_without_anybody_to_take_over_says_that_it_is_stuck() {
    let origin = origin();
    let version = origin.put("f", pattern(1 << 20, 3));
    let moved = Move::new(store(64, None).await, &origin, 1).await;
    read(&moved.old, &version, 0, 0, 1 << 20).await.unwrap();
    let progress = moved.drain(DrainOptions::default()).await;
    assert_eq!((progress.verdict, progress.runs_failed), (DrainVerdict::Stuck, 1));
    assert_eq!(moved.drain(DrainOptions::default()).await.verdict, DrainVerdict::Complete, "later it works");
}
