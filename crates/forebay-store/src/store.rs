//! The store: its verbs, and who owns its tasks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_memory::{Pool, Span, SpanMut, Spans};
use forebay_types::{BlockKey, ByteSize, FileId, SectorRange, SectorSums};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::core::Core;
use crate::coverage::{Coverage, merge};
use crate::disk::Slab;
use crate::queue::{DiskQueue, Job};
use crate::run::{DiskRun, Run};
use crate::stats::{DiskStats, MemoryStats};
use crate::{DiskSlice, StoreError, StoreOptions, StoreRead, StoreStats, evict, read, slice, writer};

/// A block store. Clones are one store; when the last is dropped its tasks are stopped.
#[derive(Clone)]
pub struct Store {
    tasks: Arc<Tasks>,
    core: Arc<Core>,
}

/// The store's tasks; dropping it stops them.
struct Tasks {
    stop: CancellationToken,
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.stop.cancel();
        self.handles.get_mut().iter().for_each(JoinHandle::abort);
    }
}

impl Store {
    /// Opens a store, with what its slabs still hold. To be called in a runtime, which then runs its tasks.
    ///
    /// # Errors
    /// [`StoreError`] when the options make no sense or a slab directory cannot be used. A damaged slab is no error: it
    /// loses what is damaged.
    pub async fn open(options: StoreOptions) -> Result<Self, StoreError> {
        options.check()?;
        let open = options.disks.iter().cloned().enumerate().map(|(number, disk)| {
            Slab::open(number, disk, options.serve, options.io, &options.memory, options.alloc_deadline)
        });
        let opened = futures::future::try_join_all(open).await?;
        Ok(Self::start(options, opened))
    }

    /// A store of slabs that are open, and the runs in them.
    pub(crate) fn start(options: StoreOptions, opened: Vec<(Slab, Vec<DiskRun>)>) -> Self {
        let (slabs, found): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let (queue, ends) = DiskQueue::new(slabs.len(), options.disk_queue);
        let prewarm = options.prewarm;
        let core = Arc::new(Core::new(options, slabs, queue));
        for copy in found.into_iter().flatten() {
            let extent = Arc::clone(&copy.extent);
            if !core.hold_on_disk(copy, || true) {
                // Another run has all of it.
                core.queue.bury(extent);
            }
        }
        core.need_room.notify_one();
        let tasks = Arc::new(Tasks::start(&core, ends, prewarm));
        Self { tasks, core }
    }

    /// The bytes `offset..offset + length` of a block if memory has them all. Takes no lock and never waits.
    #[must_use]
    pub fn try_read(&self, key: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        read::try_read(&self.core, key, offset, length)
    }

    /// The same for whole sectors, which are not checked but come with their sums: whoever gets them in the end checks
    /// them, and reads again with [`Store::read`] those that are wrong. `None` also when they are not whole, or not in
    /// one run.
    #[must_use]
    pub fn try_read_summed(&self, key: &BlockKey, offset: u32, length: u32) -> Option<(Span, SectorSums)> {
        read::try_read_summed(&self.core, key, offset, length)
    }

    /// Checks what memory holds of a block, also when reads do not, and drops the runs that are corrupt.
    pub fn scrub(&self, key: &BlockKey) {
        let Some(runs) = self.core.index.runs(key) else { return };
        for copy in &runs.memory {
            if let Err(sector) = copy.run.check(copy.run.sectors.start, &copy.bytes) {
                self.core.drop_corrupt(copy, sector);
            }
        }
    }

    /// The bytes `offset..offset + length` of a block from memory and disk together; `None` when some are in neither.
    ///
    /// # Errors
    /// [`StoreError::Memory`] when no memory to read into came free in time. A disk that fails is a miss.
    pub async fn read(&self, key: &BlockKey, offset: u32, length: u32) -> Result<Option<StoreRead>, StoreError> {
        read::read(&self.core, key, offset, length).await
    }

    /// Where the bytes `offset..offset + length` of a block lie in a slab file, if one run on disk has them all and the
    /// store serves from files: not with [`ServeMode::Dio`](crate::ServeMode::Dio), nor, with
    /// [`ServeMode::Splice`](crate::ServeMode::Splice), on a file system without direct I/O. Their sectors were read
    /// and found right at least once since the store opened, now if not before.
    pub async fn disk_slice(&self, key: &BlockKey, offset: u32, length: u32) -> Option<DiskSlice> {
        slice::disk_slice(&self.core, key, offset, length).await
    }

    /// Which sectors of a block are held where.
    #[must_use]
    pub fn coverage(&self, key: &BlockKey) -> Coverage {
        let coverage = self.core.index.look(key, |runs| Coverage {
            memory: merge(runs.memory.iter().map(|copy| copy.run.sectors)),
            disk: merge(runs.disk.iter().map(|copy| copy.run.sectors)),
        });
        coverage.unwrap_or_default()
    }

    /// Memory of exactly `length` bytes to fill, of the pool; waits in line while eviction makes room. What is published
    /// from it is one run: a fill that is to become two takes two.
    ///
    /// # Errors
    /// [`StoreError::Memory`] when none came free in time or `length` is beyond a block.
    pub async fn landing(&self, length: u32) -> Result<SpanMut, StoreError> {
        let landing = self.core.pool.alloc(length as usize, self.core.deadline).await;
        self.core.notice_use();
        Ok(landing?)
    }

    /// The same, now or not at all.
    #[must_use]
    pub fn try_landing(&self, length: u32) -> Option<SpanMut> {
        let landing = self.core.pool.try_alloc(length as usize);
        self.core.notice_use();
        landing
    }

    /// Publishes `sectors` of a block of `block_length` bytes: from now on reads find them. `filled` starts with the
    /// first of them; bytes beyond the last are cut off. Returns the run's bytes. Queues the run for disk, if there is
    /// one. Computes the checksums, so it takes some 50 µs a MiB.
    ///
    /// When `filled` is too short for its sectors nothing is published: that is a fault of the caller, and logged.
    pub fn publish(&self, key: BlockKey, sectors: SectorRange, block_length: u32, filled: SpanMut) -> Span {
        self.put(key, sectors, block_length, filled, None)
    }

    /// The same for bytes that were just checked against these sums, one for each of `sectors`.
    pub fn publish_summed(
        &self,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        filled: SpanMut,
        sums: SectorSums,
    ) -> Span {
        self.put(key, sectors, block_length, filled, Some(sums))
    }

    fn put(
        &self,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        filled: SpanMut,
        sums: Option<SectorSums>,
    ) -> Span {
        let length = sectors.byte_len(block_length) as usize;
        let bytes = filled.freeze();
        if length == 0 || bytes.len() < length {
            tracing::error!(block = %key, ?sectors, block_length, bytes = bytes.len(), "a fill is too short for its sectors");
            return bytes;
        }
        let bytes = bytes.slice(0..length);
        let run = Arc::new(match sums {
            Some(sums) if sums.len() == sectors.len() as usize => Run::summed(key, sectors, &bytes, sums),
            _ => Run::of(key, sectors, &bytes),
        });
        if let Some(copy) = self.core.hold(run, bytes.clone()) {
            self.core.counters.runs_published.fetch_add(1, Ordering::Relaxed);
            // When it is refused now it is offered again at its eviction.
            self.core.offer_to_disk(&copy);
        }
        bytes
    }

    /// Forgets a block. Those who read it keep what they have. What is on its way between the tiers just now may still
    /// arrive, and a run that was evicted from disk before may be found again after a restart, for eviction does not
    /// erase: in either case its bytes are right.
    pub fn remove(&self, key: &BlockKey) {
        self.core.remove(key);
    }

    /// Forgets all blocks of a file; how many bytes they held, on both tiers together.
    pub fn remove_file(&self, file: FileId) -> ByteSize {
        ByteSize::bytes(self.core.remove_file(file))
    }

    /// The pool of the memory tier.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.core.pool
    }

    /// How full the store is and what happened in it.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        let core = &*self.core;
        let (occupancy, holding) = (core.pool.occupancy(), core.memory.holding());
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let memory = MemoryStats {
            capacity: occupancy.capacity,
            size: core.pool.size().as_u64(),
            used: occupancy.used,
            runs: holding.runs,
            run_bytes: holding.bytes,
            runs_published: count(&core.counters.runs_published),
            runs_promoted: count(&core.counters.runs_promoted),
            runs_evicted: count(&core.counters.runs_evicted),
            corrupt_sectors: count(&core.counters.corrupt_sectors),
            waiting: occupancy.waiting as u64,
            waits: occupancy.waits,
            failures: occupancy.failures,
        };
        let disks = core.slabs.iter().map(|slab| {
            let (usage, holding, counters) = (slab.usage(), slab.residents.holding(), &slab.counters);
            DiskStats {
                dir: slab.dir.clone(),
                capacity: usage.capacity,
                used: usage.used,
                runs: holding.runs,
                run_bytes: holding.bytes,
                runs_written: count(&counters.runs_written),
                bytes_written: count(&counters.bytes_written),
                bytes_read: count(&counters.bytes_read),
                runs_evicted: count(&counters.runs_evicted),
                corrupt_sectors: count(&counters.corrupt_sectors),
                read_errors: count(&counters.read_errors),
                write_errors: count(&counters.write_errors),
                degraded: slab.is_degraded(),
            }
        });
        StoreStats {
            blocks: core.index.len() as u64,
            memory,
            disks: disks.collect(),
            disk_queue_bytes: core.queue.bytes(),
            disk_write_skipped: count(&core.counters.disk_write_skipped),
        }
    }

    /// Waits until everything that is queued for disk has been written, or has failed to be. Returns at once when the
    /// store is closed.
    pub async fn flush(&self) {
        self.core.queue.flush().await;
    }

    /// Stops the store's tasks and waits for them. What is queued for disk and not written is lost: call
    /// [`Store::flush`] first to keep it. When this is the last clone, its directories are free for others afterwards,
    /// or as soon as the last [`DiskSlice`] of them is dropped.
    pub async fn close(self) {
        let Self { tasks, core } = self;
        tasks.stop.cancel();
        let handles = std::mem::take(&mut *tasks.handles.lock());
        for handle in handles {
            // An error would be a panic of the task, which has been reported, or its abortion.
            let _ = handle.await;
        }
        drop(tasks);
        // Dropping a slab waits for disk operations under way.
        let _ = tokio::task::spawn_blocking(move || drop(core)).await;
    }
}

impl Tasks {
    fn start(core: &Arc<Core>, ends: Vec<UnboundedReceiver<Job>>, prewarm: bool) -> Self {
        let stop = CancellationToken::new();
        let mut handles = vec![tokio::spawn(evict::run(Arc::clone(core), stop.clone()))];
        for (disk, end) in ends.into_iter().enumerate() {
            handles.push(tokio::spawn(writer::run(Arc::clone(core), disk, end, stop.clone())));
        }
        if prewarm {
            let (pool, stop) = (core.pool.clone(), stop.clone());
            handles.push(tokio::task::spawn_blocking(move || {
                if let Err(error) = pool.warm_up(|| !stop.is_cancelled()) {
                    tracing::warn!(%error, "cannot have all of the cache's memory now");
                }
            }));
        }
        Self { stop, handles: Mutex::new(handles) }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
