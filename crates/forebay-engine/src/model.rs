//! In-flight fetches under a scheduler that tries orders out (shuttle): `make model`.
//!
//! Readers of overlapping ranges meet at the table. Each sector is fetched once (invariant 5). No reader waits for
//! ever, which would be a deadlock. The readers of a fetch that is abandoned hear of it, and the next reader tries
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_memory::{FRAME_SIZE, Pool, PoolOptions, Sharing};
use forebay_types::{BlockKey, ByteSize, FileId, SectorRange};
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::{Config, Runner, thread};

use crate::in_flight::{FetchGuard, FetchedSectors, InFlightFetches};
use crate::plan::FetchPolicy;

/// Says how many orders were tried, also when one of them failed.
struct Said(String, Arc<AtomicUsize>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: {}: {} orders", self.0, self.1.load(Ordering::Relaxed));
    }
}

/// Tries `model` in some thousand orders, half of them by priorities that change at a few random places, which finds deep bugs.
fn in_many_orders(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let orders = std::env::var("FOREBAY_MODEL_ORDERS").ok().and_then(|orders| orders.parse().ok()).unwrap_or(5_000);
    let tried = Arc::new(AtomicUsize::new(0));
    let _said = Said(name.to_owned(), Arc::clone(&tried));
    let model = Arc::new(move || {
        tried.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let again = Arc::clone(&model);
    let mut config = Config::new();
    // Coroutines have little otherwise.
    config.stack_size = 512 << 10;
    Runner::new(RandomScheduler::new(orders), config.clone()).run(move || model());
    Runner::new(PctScheduler::new(3, orders), config).run(move || again());
}

const KEY: BlockKey = BlockKey { file: FileId([1; 16]), index: 0 };
const POLICY: FetchPolicy = FetchPolicy { unit: 2, max: 4, bridge: 0 };
const SECTORS: u32 = 16;

/// What a store and a source are to the table: what is held, and how often each sector was fetched.
struct World {
    fetches: Arc<InFlightFetches>,
    pool: Pool,
    held: Mutex<Vec<SectorRange>>,
    fetched: Mutex<[u32; SECTORS as usize]>,
}

impl World {
    fn new() -> Arc<Self> {
        let size = ByteSize::bytes(FRAME_SIZE as u64);
        let options = PoolOptions { initial: size, max: size, huge_pages: false, sharing: Sharing::Private };
        let pool = Pool::new(options).unwrap();
        Arc::new(Self { fetches: InFlightFetches::new(), pool, held: Mutex::default(), fetched: Mutex::default() })
    }

    fn carry_out(&self, guard: FetchGuard) {
        let sectors = guard.sectors;
        thread::yield_now();
        for sector in sectors.start..sectors.end {
            self.fetched.lock().unwrap()[sector as usize] += 1;
        }
        self.held.lock().unwrap().push(sectors);
        let bytes = self.pool.try_alloc(1).unwrap().freeze();
        guard.complete(Ok(FetchedSectors { bytes, from_cache: 0 }));
    }

    /// As the engine reads: again and again until all is held. `abandons`: the first fetch that it starts is given up.
    fn read(&self, wanted: SectorRange, mut abandons: bool) {
        loop {
            let cached = || self.held.lock().unwrap().clone();
            let (waits, guards) = self.fetches.join_or_start(KEY, wanted, SECTORS, &POLICY, cached);
            if waits.is_empty() {
                return;
            }
            for guard in guards {
                if std::mem::take(&mut abandons) {
                    thread::yield_now();
                    drop(guard);
                } else {
                    self.carry_out(guard);
                }
            }
            for fetch in waits {
                let _ = block_on(fetch.wait());
            }
        }
    }
}

fn range(start: u32, end: u32) -> SectorRange {
    SectorRange::new(start, end).unwrap()
}

fn readers(world: &Arc<World>, ranges: impl IntoIterator<Item = (SectorRange, bool)>) {
    let threads: Vec<_> = ranges
        .into_iter()
        .map(|(wanted, abandons)| {
            let world = Arc::clone(world);
            thread::spawn(move || world.read(wanted, abandons))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(world.fetches.count(), 0);
}

#[test]
fn each_sector_is_fetched_once_whoever_reads_what() {
    in_many_orders("fetches: three readers of overlapping ranges", || {
        let world = World::new();
        readers(&world, [(range(0, 6), false), (range(3, 9), false), (range(4, 5), false)]);
        let fetched = world.fetched.lock().unwrap();
        assert!(fetched[..10].iter().all(|times| *times == 1) && fetched[10..].iter().all(|times| *times == 0));
    });
}

#[test]
fn a_fetch_that_is_abandoned_is_carried_out_by_somebody_else_and_nobody_waits_for_ever() {
    in_many_orders("fetches: one that is abandoned", || {
        let world = World::new();
        readers(&world, [(range(0, 6), true), (range(2, 6), false), (range(0, 2), false)]);
        assert!(world.fetched.lock().unwrap()[..6].iter().all(|times| *times == 1));
    });
}
