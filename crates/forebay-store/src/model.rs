//! The copies of a block under a scheduler that tries orders out (shuttle): `make model`.
//!
//! Readers, eviction, removal and the writer of a disk meet at the same block, whose list, residents, extents and marks
//! are the product's own. A thread that waits for ever is a deadlock, which shuttle reports with the order that led to
//! it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_memory::{FRAME_SIZE, Pool, PoolOptions, Sharing, SpanMut};
use forebay_types::{BlockKey, ByteSize, FileId, SECTOR_SIZE, SectorRange};
use futures::future::BoxFuture;
use shuttle::future::{block_on, spawn, yield_now};
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use tempfile::TempDir;

use crate::core::Core;
use crate::disk::Slab;
use crate::io::{DiskIo, Watch, WriteBuffer};
use crate::queue::DiskQueue;
use crate::read::{self, Patience};
use crate::run::{MemoryRun, Run};
use crate::{Eviction, Keep, StoreOptions, writer};

/// Says how many orders were tried, also when one of them failed.
struct Said(String, Arc<AtomicUsize>);

impl Drop for Said {
    fn drop(&mut self) {
        println!("model: {}: {} orders", self.0, self.1.load(Ordering::Relaxed));
    }
}

/// Tries `model` in some thousand orders, half of them by priorities that change at a few random places, which finds deep bugs.
fn in_many_orders(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let orders = std::env::var("FOREBAY_MODEL_ORDERS").ok().and_then(|orders| orders.parse().ok()).unwrap_or(2_000);
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

const PAGE: usize = 4096;

/// A disk whose operations take as long as the scheduler likes, before and after.
#[derive(Clone, Default)]
struct Disk {
    pages: Arc<std::sync::Mutex<BTreeMap<u64, Vec<u8>>>>,
    watch: Arc<Watch>,
}

impl DiskIo for Disk {
    fn read_at(&self, offset: u64, mut into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>> {
        let disk = self.clone();
        Box::pin(async move {
            yield_now().await;
            let pages = disk.pages.lock().unwrap().clone();
            for (number, page) in into.chunks_mut(PAGE).enumerate() {
                match pages.get(&(offset / PAGE as u64 + number as u64)) {
                    Some(bytes) => page.copy_from_slice(bytes),
                    None => page.fill(0),
                }
            }
            yield_now().await;
            Ok(into)
        })
    }

    fn write_at(&self, offset: u64, from: WriteBuffer) -> BoxFuture<'static, io::Result<()>> {
        let disk = self.clone();
        Box::pin(async move {
            // Two pieces: others may read in between.
            let bytes = from.parts().concat();
            for (number, page) in bytes.chunks(PAGE).enumerate() {
                if number < 2 {
                    yield_now().await;
                }
                disk.pages.lock().unwrap().insert(offset / PAGE as u64 + number as u64, page.to_vec());
            }
            yield_now().await;
            drop(from);
            Ok(())
        })
    }

    fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }
}

struct Rig {
    core: Arc<Core>,
    writer: Option<shuttle::future::JoinHandle<()>>,
    _dir: TempDir,
}

const KEY: BlockKey = BlockKey { file: FileId([4; 16]), index: 0 };
const LENGTH: u32 = SECTOR_SIZE;

fn key(index: u64) -> BlockKey {
    BlockKey { index, ..KEY }
}

impl Rig {
    /// A store with one frame of memory and so many disks.
    fn new(disks: usize) -> Self {
        let size = ByteSize::bytes(FRAME_SIZE as u64);
        let options = PoolOptions { initial: size, max: size, huge_pages: false, sharing: Sharing::Private };
        let memory = Pool::new(options).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let slabs = (0..disks).map(|number| Slab::over(number, Arc::new(Disk::default()), dir.path(), 2).unwrap());
        let (queue, jobs) = DiskQueue::new(disks, size);
        let options = StoreOptions { alloc_deadline: Duration::MAX, ..StoreOptions::in_memory(memory) };
        let core = Arc::new(Core::new(options, slabs.collect(), queue, None));
        let writer = jobs.into_iter().next().map(|mut jobs| {
            let core = Arc::clone(&core);
            spawn(async move {
                while let Some(job) = jobs.recv().await {
                    writer::carry_out(&core, 0, job).await;
                }
            })
        });
        Self { core, writer, _dir: dir }
    }

    /// As `Store::publish` does: a run of one sector, whose bytes are the number of the block.
    fn publish(&self, key: BlockKey) {
        publish(&self.core, key, block_on(self.core.pool.alloc(LENGTH as usize, Duration::MAX)).unwrap());
    }

    fn thread(&self, work: impl FnOnce(&Arc<Core>) + Send + 'static) -> thread::JoinHandle<()> {
        let core = Arc::clone(&self.core);
        thread::spawn(move || work(&core))
    }

    /// Once the writer has done all, memory and disk hold exactly what the index says, which is `runs` copies.
    fn holds(mut self, runs: (usize, usize)) {
        block_on(self.core.queue.flush());
        if let Some(writer) = self.writer.take() {
            writer.abort();
            let _ = block_on(writer);
        }
        let core = &self.core;
        let (mut memory, mut disk) = (0, 0);
        for key in core.index.after(None, usize::MAX) {
            core.index.look(&key, |runs| {
                memory += runs.memory.len();
                disk += runs.disk.len();
                assert!(!runs.is_empty(), "a block without runs is listed");
            });
        }
        assert_eq!((memory, disk), runs);
        assert_eq!(core.memory.holding().runs as usize, memory, "what eviction knows of");
        assert_eq!(core.pool.used(), memory as u64 * u64::from(SECTOR_SIZE), "memory is lost");
        for slab in &core.slabs {
            assert_eq!(slab.residents.holding().runs as usize, disk, "what eviction from disk knows of");
            assert_eq!(slab.usage().used > 0, disk > 0, "extents are lost");
        }
    }
}

fn publish(core: &Core, key: BlockKey, landing: SpanMut) {
    if let Some(copy) = publish_to_memory(core, key, landing) {
        core.offer_to_disk(&copy);
    }
}

/// As it is when the queue of the disks is full.
fn publish_to_memory(core: &Core, key: BlockKey, mut landing: SpanMut) -> Option<Arc<MemoryRun>> {
    landing.fill(key.index as u8 + 1);
    let bytes = landing.freeze();
    let run = Arc::new(Run::of(key, SectorRange { start: 0, end: 1 }, &bytes));
    core.hold(run, bytes, Keep::default(), None)
}

/// As eviction does: all that has no reader; or that too.
fn evict(core: &Core, with_readers: bool) {
    while let Some(copy) = core.memory.evict(Eviction::Fifo, |copy| with_readers || !copy.has_readers()) {
        core.let_go(copy);
    }
}

fn wait_a_while() {
    (0..shuttle::rand::thread_rng().gen_range(0..60)).for_each(|_| thread::yield_now());
}

fn is_of(key: BlockKey, bytes: &[u8]) -> bool {
    [0, bytes.len() / 2, bytes.len() - 1].iter().all(|at| bytes[*at] == key.index as u8 + 1)
}

#[test]
fn what_was_removed_is_nowhere_whatever_eviction_and_the_writer_were_doing() {
    in_many_orders("the store: a removal, an eviction and a write to disk", || {
        let rig = Rig::new(1);
        // Eviction is what offers it to the disk, and another eviction what lets it go there. What is early gets no further than
        // to find nothing, so all but the first come at any time.
        publish_to_memory(&rig.core, KEY, rig.core.pool.try_alloc(LENGTH as usize).unwrap()).unwrap();
        let evictor = rig.thread(|core| evict(core, false));
        let evictor_from_disk = rig.thread(|core| {
            wait_a_while();
            while let Some(copy) = core.slabs[0].residents.evict(Eviction::Fifo, |_| true) {
                core.let_go_from_disk(&copy);
            }
        });
        let remover = rig.thread(|core| {
            wait_a_while();
            core.remove(&KEY);
            assert!(read::try_read(core, &KEY, 0, LENGTH, |_| true).is_none());
        });
        [evictor, evictor_from_disk, remover].into_iter().for_each(|thread| thread.join().unwrap());
        block_on(rig.core.queue.flush());
        assert_eq!(block_on(rig.core.slabs[0].found_again(&rig.core.pool)), 0, "a restart would find it");
        rig.holds((0, 0));
    });
}

#[test]
fn a_read_from_disk_brings_nothing_back_that_was_removed_meanwhile() {
    in_many_orders("the store: reads that promote, a removal and an eviction", || {
        let rig = Rig::new(1);
        rig.publish(KEY);
        block_on(rig.core.queue.flush());
        evict(&rig.core, false);
        assert!(!read::is_in_memory(&rig.core, &KEY, 0, LENGTH, |_| true));
        let readers = [0, 1].map(|_| {
            rig.thread(|core| {
                let read = block_on(read::read(core, &KEY, 0, LENGTH, Patience::Waits)).unwrap();
                assert!(read.is_none_or(|read| read.spans.iter().all(|span| is_of(KEY, span))));
            })
        });
        let evictor = rig.thread(|core| evict(core, true));
        let remover = rig.thread(|core| _ = core.remove(&KEY));
        readers.into_iter().chain([evictor, remover]).for_each(|thread| thread.join().unwrap());
        block_on(rig.core.queue.flush());
        assert_eq!(block_on(rig.core.slabs[0].found_again(&rig.core.pool)), 0, "a restart would find it");
        rig.holds((0, 0));
    });
}

#[test]
fn bytes_with_a_reader_stay_as_they_are_while_their_run_is_evicted_and_others_want_the_memory() {
    in_many_orders("the store: readers, an eviction that spares none, and one who wants all memory", || {
        let rig = Rig::new(0);
        rig.publish(key(0));
        let readers = [0, 1].map(|_| {
            rig.thread(|core| {
                if let Some(spans) = read::try_read(core, &key(0), 0, LENGTH, |_| true) {
                    thread::yield_now();
                    assert!(spans.iter().all(|span| is_of(key(0), span)), "it was given to somebody else");
                }
                let looked = read::try_look(
                    core,
                    &key(0),
                    0,
                    LENGTH,
                    |_| true,
                    |slices| {
                        thread::yield_now();
                        slices.iter().all(|slice| is_of(key(0), slice))
                    },
                );
                assert!(looked.unwrap_or(true), "it was given to somebody else");
            })
        });
        let filler = rig.thread(|core| {
            let mut all = block_on(core.pool.alloc(FRAME_SIZE, Duration::MAX)).unwrap();
            all[..LENGTH as usize].fill(99);
            thread::yield_now();
            drop(all);
            publish(core, key(1), block_on(core.pool.alloc(LENGTH as usize, Duration::MAX)).unwrap());
        });
        // As eviction does for an allocation that waits; the other block is to stay.
        while let Some(copy) = rig.core.memory.evict(Eviction::Fifo, |copy| copy.run.key == key(0)) {
            rig.core.let_go(copy);
        }
        readers.into_iter().for_each(|thread| thread.join().unwrap());
        filler.join().unwrap();
        assert!(read::try_read(&rig.core, &key(1), 0, LENGTH, |_| true).is_some_and(|spans| is_of(key(1), &spans[0])));
        rig.holds((1, 0));
    });
}

#[test]
fn what_is_published_again_and_again_while_it_is_evicted_and_written_is_counted_right() {
    in_many_orders("the store: two who publish the same, an eviction and a write to disk", || {
        let rig = Rig::new(1);
        let publishers = [0, 1].map(|_| {
            rig.thread(|core| {
                publish(core, KEY, block_on(core.pool.alloc(LENGTH as usize, Duration::MAX)).unwrap());
                let read = block_on(read::read(core, &KEY, 0, LENGTH, Patience::Waits)).unwrap();
                assert!(read.is_none_or(|read| read.spans.iter().all(|span| is_of(KEY, span))));
            })
        });
        let evictor = rig.thread(|core| evict(core, false));
        publishers.into_iter().chain([evictor]).for_each(|thread| thread.join().unwrap());
        block_on(rig.core.queue.flush());
        evict(&rig.core, false);
        assert_eq!(block_on(rig.core.slabs[0].found_again(&rig.core.pool)), 1);
        rig.holds((0, 1));
    });
}
