//! The engine over a real store in memory and a source whose every fetch the test controls.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_engine::{BlockSource, EngineFill, EngineOptions, Fetch, FetchPolicy, Fetched, Keeping, ReadEngine};
use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions, Spans};
use forebay_store::{Store, StoreOptions};
use forebay_types::{
    BlockKey, BlockLayout, ByteSize, Failure, FailureKind, FileId, FileVersion, MAX_BLOCK_SIZE, SECTOR_SIZE,
    SectorChecksums, SectorRange, VersionTag,
};
use tokio::sync::Semaphore;

/// The byte at `offset` of the test file: differs between neighbours, sectors and blocks.
fn byte_at(offset: u64) -> u8 {
    (offset ^ (offset >> 7) ^ (offset >> 15) ^ (offset >> 22)) as u8
}

struct Source {
    /// Each fetch waits for a permit.
    gate: Semaphore,
    failures: Mutex<VecDeque<Failure>>,
    fetches: Mutex<Vec<(u64, SectorRange)>>,
    waiting: AtomicUsize,
    keeping: Mutex<Keeping>,
    /// How many bytes of each fetch come from a cache of the source's own.
    from_cache: AtomicUsize,
}

#[async_trait::async_trait]
impl BlockSource for Source {
    async fn fetch(&self, fetch: &Fetch, buffers: &Store) -> Result<Fetched, Failure> {
        self.fetches.lock().push((fetch.key.index, fetch.sectors));
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.expect("the gate is never closed").forget();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        if let Some(failure) = self.failures.lock().pop_front() {
            return Err(failure);
        }
        let mut filled = buffers.landing(fetch.length()).await?;
        let start = fetch.layout.file_range(fetch.key.index, fetch.sectors).start;
        for (at, byte) in filled.iter_mut().enumerate() {
            *byte = byte_at(start + at as u64);
        }
        let from_cache = self.from_cache.load(Ordering::SeqCst) as u32;
        Ok(Fetched { filled, checksums: None, from_cache })
    }

    fn keeping(&self, _file: FileId, _version: &FileVersion) -> Keeping {
        *self.keeping.lock()
    }
}

struct Bench {
    source: Arc<Source>,
    engine: ReadEngine,
    version: Arc<FileVersion>,
    layout: BlockLayout,
}

impl Bench {
    /// A file of `size` bytes behind a cache of `memory`; `permits` fetches may go through at once.
    async fn new(size: u64, memory: ByteSize, permits: usize) -> Self {
        let pool = Pool::new(PoolOptions::fixed(memory)).unwrap();
        let store = StoreOptions { alloc_deadline: Duration::from_secs(60), ..StoreOptions::in_memory(pool) };
        let store = Store::open(store).await.unwrap();
        let source = Arc::new(Source {
            gate: Semaphore::new(permits),
            failures: Mutex::default(),
            fetches: Mutex::default(),
            waiting: AtomicUsize::new(0),
            keeping: Mutex::default(),
            from_cache: AtomicUsize::new(0),
        });
        let policy = FetchPolicy::origin(64 << 10, 4 << 20);
        let options = EngineOptions { policy, deadline: Duration::from_secs(20) };
        let engine = ReadEngine::new(store, Arc::clone(&source) as Arc<dyn BlockSource>, options);
        let tag = VersionTag::Etag("\"1\"".into());
        let version = FileVersion { origin: "fake://o".into(), path: b"f".as_slice().into(), size, tag };
        Self { source, engine, version: Arc::new(version), layout: BlockLayout::new(size, MAX_BLOCK_SIZE) }
    }

    fn key(&self, index: u64) -> BlockKey {
        BlockKey { file: self.version.id(), index }
    }

    async fn read(&self, index: u64, offset: u32, length: u32) -> Result<Vec<u8>, Failure> {
        let read = self.engine.read(&self.version, self.key(index), self.layout, offset, length).await?;
        Ok(bytes_of(&read.spans))
    }

    fn expected(&self, index: u64, offset: u32, length: u32) -> Vec<u8> {
        let start = index * u64::from(MAX_BLOCK_SIZE) + u64::from(offset);
        (start..start + u64::from(length)).map(byte_at).collect()
    }

    async fn until_waiting(&self, count: usize) {
        tokio::time::timeout(Duration::from_secs(10), async {
            while self.source.waiting.load(Ordering::SeqCst) < count {
                tokio::task::yield_now().await;
            }
        })
        .await
        .expect("fetches did not start");
    }
}

fn bytes_of(spans: &Spans) -> Vec<u8> {
    spans.iter().flat_map(|span| span.iter().copied()).collect()
}

const UNLIMITED: usize = Semaphore::MAX_PERMITS;

#[tokio::test(flavor = "multi_thread")]
async fn one_miss_is_one_fetch_whoever_reads() {
    let bench = Arc::new(Bench::new(64 << 20, ByteSize::mib(64), 0).await);
    let readers: Vec<_> = (0..40)
        .map(|number| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move { bench.read(3, number * 1000, 1000).await })
        })
        .collect();
    bench.until_waiting(1).await;
    bench.source.gate.add_permits(1);
    for (number, reader) in readers.into_iter().enumerate() {
        assert_eq!(reader.await.unwrap().unwrap(), bench.expected(3, number as u32 * 1000, 1000));
    }
    assert_eq!(*bench.source.fetches.lock(), [(3, SectorRange { start: 0, end: 2 })]);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_were_announced_join_one_fetch_and_what_is_cached_starts_none() {
    let bench = Arc::new(Bench::new(64 << 20, ByteSize::mib(64), 0).await);
    let ranges = [(1 << 20, 4096), (0, 4096), (256 << 10, 4096), (4 << 20, 1)];
    let begin = || bench.engine.begin(&bench.version, bench.key(3), bench.layout, &ranges, 256 << 10);
    begin();
    bench.until_waiting(2).await;
    let readers: Vec<_> = ranges[..3]
        .iter()
        .map(|(offset, length)| {
            let (bench, offset, length) = (Arc::clone(&bench), *offset, *length);
            tokio::spawn(async move { (bench.read(3, offset, length).await, bench.expected(3, offset, length)) })
        })
        .collect();
    bench.source.gate.add_permits(2);
    for reader in readers {
        let (read, expected) = reader.await.unwrap();
        assert_eq!(read.unwrap(), expected);
    }
    begin();
    *bench.source.keeping.lock() = Keeping::Not;
    bench.engine.begin(&bench.version, bench.key(4), bench.layout, &ranges, 256 << 10);
    assert_eq!(bench.engine.fetches(), 0);
    let mut fetches = bench.source.fetches.lock().clone();
    fetches.sort_unstable();
    assert_eq!(fetches, [(3, SectorRange { start: 0, end: 10 }), (3, SectorRange { start: 32, end: 34 })]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_does_not_cancel_the_others() {
    let bench = Arc::new(Bench::new(64 << 20, ByteSize::mib(64), 0).await);
    let spawn = |bench: &Arc<Bench>| {
        let bench = Arc::clone(bench);
        tokio::spawn(async move { bench.read(0, 0, 4096).await })
    };
    let first = spawn(&bench);
    bench.until_waiting(1).await;
    let second = spawn(&bench);
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    bench.source.gate.add_permits(1);
    assert_eq!(second.await.unwrap().unwrap(), bench.expected(0, 0, 4096));
    assert_eq!(bench.source.fetches.lock().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_without_readers_still_fills_the_cache() {
    let bench = Arc::new(Bench::new(64 << 20, ByteSize::mib(64), 0).await);
    let reader = tokio::spawn({
        let bench = Arc::clone(&bench);
        async move { bench.read(0, 0, 4096).await }
    });
    bench.until_waiting(1).await;
    reader.abort();
    bench.source.gate.add_permits(1);
    tokio::time::timeout(Duration::from_secs(10), async {
        while bench.engine.try_read(&bench.key(0), 0, 4096).is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the fetch was lost with its reader");
}

#[tokio::test]
async fn a_failed_fetch_fails_its_readers_and_the_next_read_tries_again() {
    let bench = Bench::new(1 << 20, ByteSize::mib(16), UNLIMITED).await;
    bench.source.failures.lock().push_back(Failure::new(FailureKind::VersionChanged, "gone"));
    assert_eq!(bench.read(0, 0, 10).await.unwrap_err().kind(), FailureKind::VersionChanged);
    assert_eq!(bench.read(0, 0, 10).await.unwrap(), bench.expected(0, 0, 10));
}

/// Reads, the first of which fails with `kind` after ten seconds, and a fill: each asks at such a second. How they ended.
async fn asked_at(
    bench: &Bench,
    kind: FailureKind,
    seconds: &[u64],
    fill: u64,
) -> (Vec<Result<Vec<u8>, Failure>>, Result<EngineFill, Failure>) {
    bench.source.failures.lock().push_back(Failure::new(kind, "away"));
    let at = |second| tokio::time::sleep(Duration::from_secs(second));
    let reads = seconds.iter().map(|second| async {
        at(*second).await;
        bench.read(0, 0, 10).await
    });
    let filled = async {
        at(fill).await;
        bench.engine.fill(&bench.version, bench.key(0), bench.layout, 0, 10).await
    };
    let opened = async {
        at(10).await;
        bench.source.gate.add_permits(1);
        at(1).await;
        bench.source.gate.add_permits(1);
    };
    let (reads, filled, ()) = tokio::join!(futures::future::join_all(reads), filled, opened);
    (reads, filled)
}

/// What was in the way of a fetch may be gone before the time of those is over that joined it late.
#[tokio::test(start_paused = true)]
async fn who_asked_after_a_fetch_had_begun_does_not_share_its_failure() {
    let bench = Bench::new(1 << 20, ByteSize::mib(16), 0).await;
    let (mut reads, filled) = asked_at(&bench, FailureKind::Unavailable, &[0, 1, 2], 2).await;
    assert_eq!(reads.remove(0).unwrap_err().kind(), FailureKind::Unavailable, "it had its time");
    for read in reads {
        assert_eq!(read.unwrap(), bench.expected(0, 0, 10));
    }
    filled.unwrap();
    assert_eq!(bench.source.fetches.lock().len(), 2, "once more for all of them");

    let bench = Bench::new(1 << 20, ByteSize::mib(16), 0).await;
    let (reads, filled) = asked_at(&bench, FailureKind::VersionChanged, &[0, 1], 2).await;
    assert!(reads.iter().all(|read| read.as_ref().unwrap_err().kind() == FailureKind::VersionChanged));
    assert_eq!(filled.unwrap_err().kind(), FailureKind::VersionChanged, "a version that is gone stays gone");
    assert_eq!(bench.source.fetches.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_fetches_anew_has_no_more_time_for_it_and_tells_what_was_wrong_before() {
    let bench = Bench::new(1 << 20, ByteSize::mib(16), 0).await;
    bench.source.failures.lock().push_back(Failure::new(FailureKind::Unavailable, "away"));
    let began = tokio::time::Instant::now();
    let late = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        bench.read(0, 0, 10).await
    };
    let opened = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        bench.source.gate.add_permits(1);
    };
    let (first, late, ()) = tokio::join!(bench.read(0, 0, 10), late, opened);
    assert_eq!(late.unwrap_err(), first.unwrap_err());
    assert_eq!(began.elapsed(), Duration::from_secs(21));
    bench.engine.close().await;
}

#[tokio::test]
async fn a_read_outside_the_block_is_refused() {
    let bench = Bench::new(100, ByteSize::mib(16), UNLIMITED).await;
    for (index, offset, length) in
        [(0, 0, 101), (0, 100, 1), (1, 0, 1), (0, u32::MAX, u32::MAX), (u64::MAX, 0, 1), (0, 0, 0)]
    {
        let failure = bench.read(index, offset, length).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::InvalidArgument, "{index} {offset} {length}");
    }
    assert!(bench.source.fetches.lock().is_empty());
}

#[tokio::test]
async fn a_read_across_runs_is_put_together_in_order() {
    let bench = Bench::new(u64::from(MAX_BLOCK_SIZE), ByteSize::mib(32), UNLIMITED).await;
    // Islands of 64 KiB, then one read over all of them.
    for island in [1u32, 4, 5, 11, 30] {
        bench.read(0, island * 2 * SECTOR_SIZE + 7, 10).await.unwrap();
    }
    assert_eq!(bench.read(0, 3, MAX_BLOCK_SIZE - 5).await.unwrap(), bench.expected(0, 3, MAX_BLOCK_SIZE - 5));
    let read = bench.engine.try_read(&bench.key(0), 3, MAX_BLOCK_SIZE - 5).expect("all of it is cached now");
    assert_eq!(bytes_of(&read), bench.expected(0, 3, MAX_BLOCK_SIZE - 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn random_reads_of_a_file_far_larger_than_memory_are_right() {
    let bench = Arc::new(Bench::new(40 * u64::from(MAX_BLOCK_SIZE) + 12_345, ByteSize::mib(24), UNLIMITED).await);
    let readers: Vec<_> = (0..8u64)
        .map(|seed| {
            let bench = Arc::clone(&bench);
            tokio::spawn(async move {
                let mut state = seed;
                let mut random = |below: u64| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) % below
                };
                for _ in 0..60 {
                    let index = random(41);
                    let block_length = bench.layout.block_len(index);
                    let offset = random(u64::from(block_length)) as u32;
                    let length = 1 + random(u64::from(block_length - offset).min(300_000)) as u32;
                    assert_eq!(bench.read(index, offset, length).await.unwrap(), bench.expected(index, offset, length));
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_costs_one_deadline() {
    let bench = Bench::new(1 << 20, ByteSize::mib(16), 0).await;
    let failure = bench.read(0, 0, 10).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::TimedOut);
    bench.engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_the_fetches_and_their_readers() {
    let bench = Arc::new(Bench::new(1 << 20, ByteSize::mib(16), 0).await);
    let reader = tokio::spawn({
        let bench = Arc::clone(&bench);
        async move { bench.read(0, 0, 10).await }
    });
    bench.until_waiting(1).await;
    bench.engine.close().await;
    assert_eq!(reader.await.unwrap().unwrap_err().kind(), FailureKind::NotReady);
    assert_eq!(bench.engine.fetches(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_of_many_sizes_are_filled_and_read_in_memory_that_holds_two_of_them() {
    const SECTOR: u32 = SECTOR_SIZE;
    for fill in [true, false] {
        // Two frames; an extent of another size class takes another frame.
        let bench = Bench::new(4 << 20, ByteSize::mib(8), UNLIMITED).await;
        for sector in [0, 8, 40] {
            bench.read(0, sector * SECTOR, SECTOR).await.unwrap();
        }
        let whole = async {
            if fill {
                let filled = bench.engine.fill(&bench.version, bench.key(0), bench.layout, 0, 4 << 20).await;
                assert!(filled.unwrap().from_source > 0);
            }
            assert_eq!(bench.read(0, 0, 4 << 20).await.unwrap(), bench.expected(0, 0, 4 << 20));
        };
        // Below the 20 s after which a fetch gives up, and the minute after which a request for memory does.
        tokio::time::timeout(Duration::from_secs(18), whole).await.expect("the fetches wait for one another");
    }
}

/// Invariant 5.
#[tokio::test]
async fn what_is_not_kept_is_still_fetched_once_for_all_who_wait_for_it() {
    let bench = Bench::new(64 << 20, ByteSize::mib(64), 0).await;
    *bench.source.keeping.lock() = Keeping::Not;
    let mut readers: Vec<_> = (0..20).map(|number| Box::pin(bench.read(3, number * 1000, 1000))).collect();
    for reader in &mut readers {
        assert!(futures::poll!(reader).is_pending());
    }
    bench.source.gate.add_permits(100);
    for (number, bytes) in futures::future::join_all(readers).await.into_iter().enumerate() {
        assert_eq!(bytes.unwrap(), bench.expected(3, number as u32 * 1000, 1000));
    }
    assert_eq!(bench.source.fetches.lock().len(), 1);
    assert_eq!(bench.engine.store().stats().memory.runs_published, 0);
    let before = bench.source.fetches.lock().len();
    let filled = bench.engine.fill(&bench.version, bench.key(3), bench.layout, 0, 4 << 20).await.unwrap();
    assert_eq!((filled.from_source, bench.source.fetches.lock().len()), (0, before), "a fill would be for nothing");
    assert_eq!(bench.read(3, 5, (4 << 20) - 5).await.unwrap(), bench.expected(3, 5, (4 << 20) - 5));
    assert_eq!(bench.source.fetches.lock().len(), before + 1);
}

#[tokio::test]
async fn a_read_tells_what_its_source_had_cached() {
    let bench = Bench::new(8 << 20, ByteSize::mib(64), UNLIMITED).await;
    bench.source.from_cache.store(64 << 10, Ordering::SeqCst);
    let read = bench.engine.read(&bench.version, bench.key(0), bench.layout, 0, 1000).await.unwrap();
    assert_eq!((read.from_source, read.from_cache, read.from_memory), (1000, 1000, 0));
    let filled = bench.engine.fill(&bench.version, bench.key(1), bench.layout, 0, 64 << 10).await.unwrap();
    assert_eq!((filled.from_source, filled.from_cache), (64 << 10, 64 << 10));
}

#[tokio::test]
async fn fetched_bytes_are_checked_against_as_many_sums_as_sectors() {
    let bench = Bench::new(4 << 20, ByteSize::mib(16), UNLIMITED).await;
    let sectors = SectorRange { start: 2, end: 4 };
    let fetch = Fetch { version: Arc::clone(&bench.version), key: bench.key(0), sectors, layout: bench.layout };
    let fetched = async || bench.source.fetch(&fetch, bench.engine.store()).await.unwrap();
    let checksums = SectorChecksums::of(&fetched().await.filled);
    assert_eq!(
        fetched().await.checked(sectors, 2 * SECTOR_SIZE, checksums.clone()).unwrap().checksums,
        Some(checksums.clone())
    );
    let mut wrong = fetched().await;
    wrong.filled[SECTOR_SIZE as usize + 5] ^= 1;
    assert_eq!(wrong.checked(sectors, 2 * SECTOR_SIZE, checksums.clone()).unwrap_err(), 3);
    assert_eq!(fetched().await.checked(sectors, 2 * SECTOR_SIZE, checksums.slice(0..1).unwrap()).unwrap_err(), 2);
}
