//! The store: its verbs, and the owner of its tasks.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use forebay_locks::Mutex;
use forebay_memory::{Pool, Span, SpanMut, Spans};
use forebay_types::{BlockKey, ByteSize, FileId, SectorChecksums, SectorRange};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::core::Core;
use crate::coverage::Coverage;
use crate::disk::Slab;
use crate::queue::{DiskQueue, Job};
use crate::read::Patience;
use crate::run::{DiskRun, MemoryRun, Run};
use crate::seal_queue::SealQueue;
use crate::stats::{AccountStats, DiskStats, MemoryStats, Removed};
use crate::{
    Account, DiskSlice, HeldBlock, Keep, Prewarm, Shown, StoreError, StoreOptions, StoreRead, StoreStats, adopted,
    ahead, attend, evict, held, read, sealer, slice, writer,
};

/// The part of memory that shows that it is going to be filled.
const USED_PART: u64 = 10;

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
        let open = options.disks.iter().cloned().enumerate().map(|(number, disk)| Slab::open(number, disk, &options));
        let opened = futures::future::try_join_all(open).await?;
        Ok(Self::start(options, opened))
    }

    /// A store of slabs that are open, and the runs in them.
    pub(crate) fn start(options: StoreOptions, opened: Vec<(Slab, Vec<(DiskRun, Keep)>)>) -> Self {
        let (slabs, found): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
        let (queue, ends) = DiskQueue::new(slabs.len(), options.disk_queue);
        let prewarm = options.prewarm;
        let (to_seal, wanted) = options.memory.board().cloned().map(SealQueue::new).unzip();
        let core = Arc::new(Core::new(options, slabs, queue, to_seal));
        for (copy, keep) in found.into_iter().flatten() {
            let extent = Arc::clone(&copy.extent);
            if !core.hold_on_disk(copy, keep, || true) {
                // Another run has all of it.
                core.queue.bury(extent);
            }
        }
        core.need_room.notify_one();
        let tasks = Arc::new(Tasks::start(&core, ends, wanted, prewarm));
        Self { tasks, core }
    }

    /// What of the store is shown to a reader: `admits` is asked with the label of a block ([`Store::label`]) whenever the block
    /// is looked for, and a block that it does not admit is as good as not held.
    pub fn shown<F: Fn(Option<u32>) -> bool>(&self, admits: F) -> Shown<'_, F> {
        Shown { core: &self.core, admits }
    }

    /// The bytes `offset..offset + length` of a block if memory has them all. Takes no lock and never waits.
    #[must_use]
    pub fn try_read(&self, key: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        read::try_read(&self.core, key, offset, length, |_| true)
    }

    /// The same where they lie in memory: calls `look` with them, in order, and returns what it returns. For as long as it takes
    /// they stay as they are, whatever is evicted, and so does memory that others wait for: it is best short.
    pub fn try_look<R>(&self, key: &BlockKey, offset: u32, length: u32, look: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        read::try_look(&self.core, key, offset, length, |_| true, look)
    }

    /// Whether memory has the bytes `offset..offset + length` of a block. Takes no lock, and counts for no hit.
    #[must_use]
    pub fn is_in_memory(&self, key: &BlockKey, offset: u32, length: u32) -> bool {
        read::is_in_memory(&self.core, key, offset, length, |_| true)
    }

    /// The same as [`Store::try_read`] for whole sectors, which are not checked but come with their checksums. The
    /// reader that gets them in the end checks them, and reads again with [`Store::read`] those that are wrong. `None`
    /// also when they are not whole, or not in one run.
    #[must_use]
    pub fn try_read_checksummed(&self, key: &BlockKey, offset: u32, length: u32) -> Option<(Span, SectorChecksums)> {
        read::try_read_checksummed(&self.core, key, offset, length, |_| true)
    }

    /// Checks what memory holds of a block, also when reads do not, and drops the runs that are corrupt.
    pub fn scrub(&self, key: &BlockKey) {
        held::scrub(&self.core, key);
    }

    /// Checks all that memory and disk hold of a block, drops the runs that are corrupt or cannot be read, and says what is
    /// left.
    ///
    /// # Errors
    /// [`StoreError::Memory`] when no memory to read into came free in time.
    pub async fn audit(&self, key: &BlockKey) -> Result<Coverage, StoreError> {
        held::audit(&self.core, key).await
    }

    /// What is held of the next `most` blocks in a fixed order: the first ones, or those after the block `last`. Empty
    /// at the end. Takes its locks for microseconds, so that a walk through the whole store holds nothing meanwhile;
    /// blocks that come and go on the way may be told of or not.
    #[must_use]
    pub fn held(&self, last: Option<&BlockKey>, most: usize) -> Vec<HeldBlock> {
        held::held(&self.core, last, most)
    }

    /// The bytes `offset..offset + length` of a block from memory and disk together; `None` when some are in neither.
    ///
    /// # Errors
    /// [`StoreError::Memory`] when no memory to read into came free in time. A disk that fails is a miss.
    pub async fn read(&self, key: &BlockKey, offset: u32, length: u32) -> Result<Option<StoreRead>, StoreError> {
        read::read(&self.core, key, offset, length, Patience::Waits).await
    }

    /// The same without ever waiting for memory to read into: where that would be needed it is a miss. So a caller that
    /// holds memory while it waits for the answer cannot be waiting for itself.
    pub async fn read_at_once(&self, key: &BlockKey, offset: u32, length: u32) -> Option<StoreRead> {
        // Without a wait for memory there is no wait to fail.
        read::read(&self.core, key, offset, length, Patience::None).await.ok().flatten()
    }

    /// The checksums of the sectors `offset..offset + length` of a block, if those are whole sectors and all are held, in memory or
    /// on disk: what was computed when they were published, so a reader's bytes can be checked against them.
    #[must_use]
    pub fn checksums(&self, key: &BlockKey, offset: u32, length: u32) -> Option<SectorChecksums> {
        read::checksums(&self.core, key, offset, length)
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
        held::coverage(&self.core, key)
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
        self.publish_as(key, sectors, block_length, filled, None, Keep::default())
    }

    /// The same for bytes that were just checked against these checksums, one for each of `sectors`.
    pub fn publish_checksummed(
        &self,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        filled: SpanMut,
        checksums: SectorChecksums,
    ) -> Span {
        self.publish_as(key, sectors, block_length, filled, Some(checksums), Keep::default())
    }

    /// The same for bytes that are to be kept in a certain way, whose checksums may be known. They are not kept at all when their
    /// account has no room for them.
    pub fn publish_as(
        &self,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        filled: SpanMut,
        checksums: Option<SectorChecksums>,
        keep: Keep,
    ) -> Span {
        let length = sectors.byte_len(block_length) as usize;
        let bytes = filled.freeze();
        if length == 0 || bytes.len() < length {
            tracing::error!(block = %key, ?sectors, block_length, bytes = bytes.len(), "a fill is too short for its sectors");
            return bytes;
        }
        let bytes = bytes.slice(0..length);
        let run = Arc::new(match checksums {
            Some(checksums) if checksums.len() == sectors.len() as usize => {
                Run::checksummed(key, sectors, &bytes, checksums)
            }
            _ => Run::of(key, sectors, &bytes),
        });
        if let Some(copy) = self.core.hold(run, bytes.clone(), keep, None) {
            self.core.counters.runs_published.fetch_add(1, Ordering::Relaxed);
            self.core.verify.was_checked(&copy);
            // When it is refused now it is offered again at its eviction.
            self.core.offer_to_disk(&copy);
        }
        bytes
    }

    /// Forgets a block, for good: it does not come back after a restart either, once the store was flushed. Readers
    /// keep what they have of it (invariant 4). What is being fetched just now still arrives. Returns the bytes that
    /// were held, in memory and on disk together.
    pub fn remove(&self, key: &BlockKey) -> ByteSize {
        ByteSize::bytes(self.core.remove(key))
    }

    /// Forgets all blocks of a file in the same way; how many there were, and how many bytes they held.
    pub fn remove_file(&self, file: FileId) -> Removed {
        let (blocks, bytes) = self.core.remove_file(file);
        Removed { blocks, bytes: ByteSize::bytes(bytes) }
    }

    /// Keeps all that is held of a file in another way from now on. The headers on disk are not written anew: a restart
    /// finds how the runs were published.
    pub fn reclass_file(&self, file: FileId, keep: Keep) {
        self.core.index.of_file(file).iter().for_each(|key| self.core.reclass(key, keep));
    }

    /// Has [`Store::label`] tell this number of a block until nothing of it is held any more; no effect when nothing
    /// is. It is forgotten at the end of the process.
    pub fn set_label(&self, key: &BlockKey, label: u32) {
        self.core.index.change(key, |runs| runs.label = Some(label));
    }

    /// The number that a block was given since something of it is held. Takes no lock.
    #[inline]
    #[must_use]
    pub fn label(&self, key: &BlockKey) -> Option<u32> {
        self.core.index.look(key, |runs| runs.label).flatten()
    }

    /// Has a whole block lie in memory that is not the pool's, such as that of a file that is mapped: `bytes` are all of it, were just
    /// checked against these checksums, and stay as they are. It takes the place of what memory has of the block, is read and checked
    /// like that, and stays until [`Store::disown`]: eviction does not know it. Whether it was taken; not where a policy pins the block
    /// in memory, or the checksums are of other bytes.
    pub fn adopt(&self, key: BlockKey, bytes: Span, checksums: SectorChecksums) -> bool {
        adopted::adopt(&self.core, key, bytes, checksums)
    }

    /// Forgets what was adopted of a file. Readers keep what they have of it, and what no disk has yet is offered to one.
    pub fn disown(&self, file: FileId) {
        adopted::disown(&self.core, file);
    }

    /// Files of which something that was adopted turned out corrupt since the last call: whoever has them shall not show them to others
    /// either.
    #[must_use]
    pub fn take_wrong(&self) -> BTreeSet<FileId> {
        std::mem::take(&mut *self.core.wrong.lock())
    }

    /// Evicts what memory has of a block, but what is read just now, is pinned or was adopted: the same bytes are elsewhere.
    pub fn give_up(&self, key: &BlockKey) {
        adopted::give_up(&self.core, key);
    }

    /// So many frames of the memory tier are lent: they hold nothing, so a share of the others only may have pins.
    /// The watermarks are of the others, too.
    pub fn set_lent_frames(&self, frames: u64) {
        adopted::set_lent_frames(&self.core, frames);
    }

    /// Whether memory is fuller than it is to be, so that eviction makes room.
    #[must_use]
    pub fn is_above_watermark(&self) -> bool {
        self.core.is_above_watermark()
    }

    /// Bytes of memory that could be lent before eviction makes room for anything: what is below the watermark, in frames that are free.
    #[must_use]
    pub fn spare_memory(&self) -> u64 {
        adopted::spare_memory(&self.core)
    }

    /// Sets how many bytes each account may have, in memory and on disk each; accounts that are not named have no bound. What
    /// is over it goes soon after, and never fails a reader.
    pub fn set_quotas(&self, quotas: impl IntoIterator<Item = (Account, ByteSize)>) {
        let quotas = quotas.into_iter().map(|(account, quota)| (account, quota.as_u64())).collect();
        self.core.quotas.store(Arc::new(quotas));
        self.core.need_room.notify_one();
    }

    /// What counts against an account.
    #[must_use]
    pub fn account(&self, account: Account) -> AccountStats {
        let disks = self.core.slabs.iter().map(|slab| slab.residents.use_of(account).bytes);
        AccountStats { memory: self.core.memory.use_of(account).bytes, disk: disks.sum() }
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
            pinned_bytes: holding.pinned_bytes,
            runs_published: count(&core.counters.runs_published),
            runs_promoted: count(&core.counters.runs_promoted),
            runs_evicted: count(&core.counters.runs_evicted),
            bytes_evicted: count(&core.counters.bytes_evicted),
            corrupt_sectors: count(&core.counters.corrupt_sectors),
            waiting: occupancy.waiting as u64,
            waits: occupancy.waits,
            failures: occupancy.failures,
        };
        let disks = core.slabs.iter().map(|slab| {
            let (usage, holding, counters) = (slab.usage(), slab.residents.holding(), &slab.counters);
            let watched = slab.watched();
            DiskStats {
                dir: slab.dir.clone(),
                serve: slab.serve.as_str(),
                capacity: usage.capacity,
                used: usage.used,
                runs: holding.runs,
                run_bytes: holding.bytes,
                pinned_bytes: holding.pinned_bytes,
                runs_written: count(&counters.runs_written),
                bytes_written: count(&counters.bytes_written),
                bytes_read: count(&counters.bytes_read),
                runs_evicted: count(&counters.runs_evicted),
                corrupt_sectors: count(&counters.corrupt_sectors),
                read_errors: count(&counters.read_errors),
                write_errors: count(&counters.write_errors),
                degraded: slab.is_degraded(),
                out: watched.is_out,
                read_timeouts: watched.reads_given_up,
                taken_out: watched.taken_out,
                returned: watched.returned,
                under_way: watched.under_way,
                unburied: slab.unburied() as u64,
            }
        });
        StoreStats {
            blocks: core.index.len() as u64,
            memory,
            disks: disks.collect(),
            disk_queue_bytes: core.queue.bytes(),
            disk_write_skipped: count(&core.counters.disk_write_skipped),
            over_quota: count(&core.counters.over_quota),
            bytes_removed: count(&core.counters.bytes_removed),
        }
    }

    /// Waits until everything that is queued for disk has been written, or has failed to be, as it has once a disk was taken
    /// out. Returns at once when the store is closed.
    pub async fn flush(&self) {
        self.core.queue.flush().await;
    }

    /// Stops the store's tasks and waits for them. What is queued for disk and not written is lost: call
    /// [`Store::flush`] first to keep it. When this is the last clone, its directories are free for others afterwards,
    /// or as soon as the last [`DiskSlice`] of them is dropped. Each disk that hangs is waited for no longer than 5 s: what the
    /// kernel has of it keeps its memory, and its directory, until the kernel or the process has ended.
    pub async fn close(self) {
        let Self { tasks, core } = self;
        tasks.stop.cancel();
        let handles = std::mem::take(&mut *tasks.handles.lock());
        for handle in handles {
            // An error would be a panic of the task, which has been reported, or its abortion.
            let _ = handle.await;
        }
        drop(tasks);
        if core.slabs.iter().all(|slab| slab.file.is_none()) {
            return;
        }
        for slab in core.slabs.iter().filter(|slab| slab.unburied() > 0) {
            let (dir, extents) = (slab.dir.display(), slab.unburied());
            tracing::warn!(%dir, extents, "disk hangs or fails: what was removed is found on it again by a restart");
        }
        // Dropping a slab waits for disk operations under way, here or where the last clone is dropped.
        let _ = tokio::task::spawn_blocking(move || drop(core)).await;
    }
}

impl Tasks {
    fn start(
        core: &Arc<Core>,
        ends: Vec<UnboundedReceiver<Job>>,
        wanted: Option<Receiver<Weak<MemoryRun>>>,
        prewarm: Prewarm,
    ) -> Self {
        let stop = CancellationToken::new();
        let mut handles = vec![
            tokio::spawn(evict::run(Arc::clone(core), stop.clone())),
            tokio::spawn(count_epochs(Arc::clone(core), stop.clone())),
        ];
        for (disk, end) in ends.into_iter().enumerate() {
            handles.push(tokio::spawn(writer::run(Arc::clone(core), disk, end, stop.clone())));
            handles.push(tokio::spawn(attend::run(Arc::clone(core), disk, stop.clone())));
        }
        if let Some(wanted) = wanted {
            handles.push(tokio::spawn(sealer::run(Arc::clone(core), wanted, stop.clone())));
        }
        if prewarm != Prewarm::AsFilled {
            let from = if prewarm == Prewarm::AtStart { 0 } else { core.pool.capacity().as_u64() / USED_PART };
            handles.push(tokio::spawn(warm_up(core.pool.clone(), from, stop.clone())));
        }
        Self { stop, handles: Mutex::new(handles) }
    }
}

/// Has the kernel back all of the memory once so many bytes of it are in use.
async fn warm_up(pool: Pool, from: u64, stop: CancellationToken) {
    if stop.run_until_cancelled(pool.reaches(from)).await.is_none() {
        return;
    }
    let warming = tokio::task::spawn_blocking(move || ahead::take(&pool, &stop));
    // An error would be a panic, which has been reported.
    let _ = warming.await;
}

async fn count_epochs(core: Arc<Core>, stop: CancellationToken) {
    core.verify.count_epochs(stop).await;
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
