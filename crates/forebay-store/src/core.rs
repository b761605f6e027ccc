//! What all parts of a store share: the tiers, and how runs enter and leave them.
//!
//! A copy enters and leaves a block's list and its tier's residents under the block's lock, or leaves the residents
//! first and the list at once after: so a copy that is in a list alone is on its way out.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use forebay_locks::Mutex;
use forebay_memory::{FRAME_SIZE, Pool, Span};
use forebay_types::{BlockKey, FileId};
use tokio::sync::Notify;

use crate::disk::{DiskExtent, ReadFault, Slab, choose};
use crate::index::{Index, Runs, covered, covers, put_in, take_out};
use crate::queue::DiskQueue;
use crate::residents::{Residents, Terms};
use crate::run::{DiskRun, Held as _, IN_INDEX, MemoryRun, Run};
use crate::seal_queue::SealQueue;
use crate::verify::Verify;
use crate::{Account, Eviction, Keep, ServeMode, StoreOptions};

pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) index: Index,
    pub(crate) memory: Residents<MemoryRun>,
    pub(crate) slabs: Vec<Slab>,
    pub(crate) queue: DiskQueue,
    /// Most bytes of each account, in memory and on disk each.
    pub(crate) quotas: ArcSwap<HashMap<Account, u64>>,
    /// Bytes of the pool's frames that are lent: they are used, and hold no runs.
    pub(crate) lent: AtomicU64,
    /// Files of which an adopted run was found corrupt, until they are asked for. No more of them than were adopted.
    pub(crate) wrong: Mutex<BTreeSet<FileId>>,
    /// Notified when a tier has filled up.
    pub(crate) need_room: Notify,
    pub(crate) counters: Counters,
    pub(crate) serve: ServeMode,
    pub(crate) verify: Verify,
    /// Runs that clients are to read by themselves. `None`: they may read none.
    pub(crate) to_seal: Option<SealQueue>,
    pub(crate) eviction: Eviction,
    pub(crate) high_watermark: u8,
    pub(crate) low_watermark: u8,
    pub(crate) deadline: Duration,
}

/// What happened in the memory tier since the store opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) runs_published: AtomicU64,
    pub(crate) runs_promoted: AtomicU64,
    pub(crate) runs_evicted: AtomicU64,
    /// What the extents of those runs took.
    pub(crate) bytes_evicted: AtomicU64,
    pub(crate) corrupt_sectors: AtomicU64,
    pub(crate) disk_write_skipped: AtomicU64,
    /// On memory and disk together.
    pub(crate) over_quota: AtomicU64,
    pub(crate) bytes_removed: AtomicU64,
}

impl Core {
    pub(crate) fn new(options: StoreOptions, slabs: Vec<Slab>, queue: DiskQueue, to_seal: Option<SealQueue>) -> Self {
        let frames = options.memory.capacity().as_u64() / FRAME_SIZE as u64;
        Self {
            pool: options.memory,
            index: Index::new(),
            memory: Residents::new(frames),
            slabs,
            queue,
            quotas: ArcSwap::default(),
            lent: AtomicU64::new(0),
            wrong: Mutex::default(),
            need_room: Notify::new(),
            counters: Counters::default(),
            serve: options.serve,
            verify: Verify::new(options.verify_reads, options.verify_interval),
            to_seal,
            eviction: options.eviction,
            high_watermark: options.high_watermark,
            low_watermark: options.low_watermark,
            deadline: options.alloc_deadline,
        }
    }

    /// `percent` of a capacity.
    pub(crate) fn share(capacity: u64, percent: u8) -> u64 {
        capacity / 100 * u64::from(percent)
    }

    /// Tells eviction when memory is fuller than it should be.
    pub(crate) fn notice_use(&self) {
        if self.is_above_watermark() {
            self.need_room.notify_one();
        }
    }

    /// Whether memory is fuller than it should be.
    pub(crate) fn is_above_watermark(&self) -> bool {
        let (used, capacity) = self.memory_use();
        used > Self::share(capacity, self.high_watermark)
    }

    /// What is used of memory, and how much there is, in bytes, without the frames that are lent.
    pub(crate) fn memory_use(&self) -> (u64, u64) {
        let lent = self.lent.load(Ordering::Relaxed);
        (self.pool.used().saturating_sub(lent), self.pool.capacity().as_u64().saturating_sub(lent))
    }

    fn quota(&self, account: Option<Account>) -> Option<u64> {
        self.quotas.load().get(&account?).copied()
    }

    /// Puts a run into memory; `None` when memory has all of it already, or its account no room for it. One that was read
    /// `from` disk is not put there when it was removed meanwhile.
    pub(crate) fn hold(
        &self,
        run: Arc<Run>,
        bytes: Span,
        keep: Keep,
        from: Option<&DiskRun>,
    ) -> Option<Arc<MemoryRun>> {
        let key = run.key;
        let copy = MemoryRun::new(run, bytes);
        let copy = Arc::new(if self.to_seal.is_some() { copy.awaiting_seal() } else { copy });
        let quota = self.quota(keep.account);
        let (held, gone, _replaced) = self.index.change(&key, |runs| {
            let was_removed = from.is_some_and(|from| from.removed.load(Ordering::Relaxed));
            if was_removed || covers(&runs.memory, &copy.run) {
                return (false, Vec::new(), Vec::new());
            }
            let replaced = covered(&runs.memory, &copy.run);
            let is_pinned_elsewhere = is_pinned_on_disk(runs, &copy.run);
            let terms = Terms { keep, is_pinned_elsewhere, quota };
            let Some(gone) = self.memory.insert(&copy, terms, &replaced) else {
                self.counters.over_quota.fetch_add(1, Ordering::Relaxed);
                return (false, Vec::new(), Vec::new());
            };
            put_in(&mut runs.memory, Arc::clone(&copy));
            for old in &replaced {
                old.removed.store(true, Ordering::Release);
                old.end_seal();
            }
            (true, gone, replaced)
        });
        gone.into_iter().for_each(|copy| self.let_go(copy));
        self.notice_use();
        held.then_some(copy)
    }

    /// Unlinks a run that has left memory's residents, giving it a last chance to reach a disk.
    pub(crate) fn let_go(&self, copy: Arc<MemoryRun>) {
        self.unlink_from_memory(&copy);
        self.counters.runs_evicted.fetch_add(1, Ordering::Relaxed);
        if !copy.is_adopted() {
            self.counters.bytes_evicted.fetch_add(copy.extent_size(), Ordering::Relaxed);
        }
        let is_on_its_way = copy.queued.load(Ordering::Acquire);
        if !is_on_its_way && !copy.removed.load(Ordering::Acquire) && !self.offer_to_disk(&copy) {
            self.counters.disk_write_skipped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Unlinks a run that has left its disk's residents.
    pub(crate) fn let_go_from_disk(&self, copy: &Arc<DiskRun>) {
        let slab = &self.slabs[copy.extent.disk()];
        self.index.change(&copy.run.key, |runs| {
            // Under the lock, so that a removal finds it either here or there.
            if take_out(&mut runs.disk, copy) {
                slab.leave(copy);
            }
        });
        slab.counters.runs_evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Queues a run for writing to disk, if it is not there yet; `false` when it cannot be now.
    pub(crate) fn offer_to_disk(&self, copy: &Arc<MemoryRun>) -> bool {
        if self.slabs.is_empty() || self.is_on_disk(copy) {
            return true;
        }
        let now = Instant::now();
        let takers = self.slabs.iter().enumerate().filter(|(_, slab)| slab.takes_writes(now));
        let takers = takers.map(|(number, slab)| {
            let usage = slab.usage();
            (number, usage.capacity - usage.used)
        });
        choose(&copy.run.key, takers).is_some_and(|disk| self.queue.offer(disk, copy))
    }

    /// Whether a disk has all of a run. What a disk has that hangs is written to another one.
    pub(crate) fn is_on_disk(&self, copy: &MemoryRun) -> bool {
        self.index.look(&copy.run.key, |runs| self.is_readable_on_disk(runs, &copy.run)).unwrap_or(false)
    }

    fn is_readable_on_disk(&self, runs: &Runs, run: &Run) -> bool {
        runs.disk.iter().any(|held| held.run.sectors.contains(run.sectors) && self.is_readable(held))
    }

    /// Whether its disk answers.
    pub(crate) fn is_readable(&self, copy: &DiskRun) -> bool {
        !self.slabs[copy.extent.disk()].is_out()
    }

    /// A write has failed, or nobody waits any more for it, because its disk hangs. The kernel may have carried it out all the same,
    /// or may do so yet: then a restart would find the run, which is right unless its block was removed.
    pub(crate) fn give_up_write(&self, copy: &MemoryRun, extent: &Arc<DiskExtent>) {
        let (key, slab) = (copy.run.key, &self.slabs[extent.disk()]);
        let leftovers = self.index.change(&key, |_| {
            slab.leave_unwritten(extent, key);
            // A removal before this did not find it; one after it will.
            if self.is_wanted(copy) { Vec::new() } else { slab.leftovers(&key) }
        });
        leftovers.into_iter().for_each(|extent| self.queue.bury(extent));
    }

    /// Whether a run that left memory may reach the disk: not when its block was removed since.
    pub(crate) fn is_wanted(&self, copy: &MemoryRun) -> bool {
        let left_at = copy.left_at.load(Ordering::Acquire);
        !copy.removed.load(Ordering::Acquire) && (left_at == IN_INDEX || left_at == self.index.removals(&copy.run.key))
    }

    /// Whether a disk could keep this run, as far as its account goes.
    pub(crate) fn has_quota_on_disk(&self, run: &Run, keep: Keep) -> bool {
        let (Some(account), Some(quota)) = (keep.account, self.quota(keep.account)) else { return true };
        let pinned: u64 = self.slabs.iter().map(|slab| slab.residents.use_of(account).pinned).sum();
        pinned + u64::from(run.byte_len) <= quota
    }

    /// Puts a run that was written, or found by recovery, into the index; `false` when a disk has all of it already, its
    /// account has no room for it, or `is_wanted` says no. It is asked when nothing else changes the block.
    pub(crate) fn hold_on_disk(&self, copy: DiskRun, keep: Keep, is_wanted: impl FnOnce() -> bool) -> bool {
        let (key, copy) = (copy.run.key, Arc::new(copy));
        let slab = &self.slabs[copy.extent.disk()];
        // What the account has on the other disks leaves less room on this one.
        let quota = keep.account.and_then(|account| {
            let others = self.slabs.iter().filter(|other| !std::ptr::eq(*other, slab));
            let elsewhere: u64 = others.map(|other| other.residents.use_of(account).bytes).sum();
            Some(self.quota(Some(account))?.saturating_sub(elsewhere))
        });
        let (held, gone, replaced) = self.index.change(&key, |runs| {
            if !is_wanted() || self.is_readable_on_disk(runs, &copy.run) {
                return (false, Vec::new(), Vec::new());
            }
            let replaced = covered(&runs.disk, &copy.run);
            let (here, elsewhere): (Vec<_>, Vec<_>) =
                replaced.iter().cloned().partition(|old| old.extent.disk() == copy.extent.disk());
            let terms = Terms { keep, is_pinned_elsewhere: false, quota };
            let Some(gone) = slab.residents.insert(&copy, terms, &here) else {
                self.counters.over_quota.fetch_add(1, Ordering::Relaxed);
                return (false, Vec::new(), Vec::new());
            };
            put_in(&mut runs.disk, Arc::clone(&copy));
            for old in &elsewhere {
                self.slabs[old.extent.disk()].residents.remove(old);
            }
            self.unpin_in_memory(runs, &copy);
            (true, gone, replaced)
        });
        gone.iter().for_each(|copy| self.let_go_from_disk(copy));
        // Else a restart would find them again.
        replaced.iter().for_each(|old| self.queue.bury(Arc::clone(&old.extent)));
        held
    }

    /// What is pinned on disk need not be in memory too.
    fn unpin_in_memory(&self, runs: &Runs, on_disk: &DiskRun) {
        if !on_disk.marks.is_pinned() {
            return;
        }
        for copy in runs.memory.iter().filter(|copy| on_disk.run.sectors.contains(copy.run.sectors)) {
            self.memory.reclass(copy, copy.marks.keep(), true);
        }
    }

    /// Keeps all that is held of a block in another way from now on.
    pub(crate) fn reclass(&self, key: &BlockKey, keep: Keep) {
        self.index.change(key, |runs| {
            for copy in runs.disk.iter().filter(|copy| copy.marks.keep() != keep) {
                self.slabs[copy.extent.disk()].residents.reclass(copy, keep, false);
            }
            for copy in runs.memory.iter().filter(|copy| copy.marks.keep() != keep) {
                if copy.is_adopted() {
                    copy.marks.place.lock().keep = keep;
                } else {
                    self.memory.reclass(copy, keep, is_pinned_on_disk(runs, &copy.run));
                }
            }
        });
    }

    /// Takes out of the index a run that has left memory's residents.
    pub(crate) fn unlink_from_memory(&self, copy: &Arc<MemoryRun>) {
        let key = &copy.run.key;
        copy.end_seal();
        self.index.change(key, |runs| {
            if take_out(&mut runs.memory, copy) {
                copy.left_at.store(self.index.removals(key), Ordering::Release);
            }
        });
    }

    /// Drops a run in memory whose bytes have changed.
    #[cold]
    pub(crate) fn drop_corrupt(&self, copy: &Arc<MemoryRun>, sector: u32) {
        self.counters.corrupt_sectors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(block = %copy.run.key, tier = "memory", sector, "a sector is corrupt, its run is dropped");
        copy.removed.store(true, Ordering::Release);
        self.memory.remove(copy);
        self.unlink_from_memory(copy);
        if copy.is_adopted() {
            self.wrong.lock().insert(copy.run.key.file);
        }
    }

    /// Drops a run on disk that could not be read.
    #[cold]
    pub(crate) fn drop_unreadable(&self, copy: &Arc<DiskRun>, fault: &ReadFault) {
        let slab = &self.slabs[copy.extent.disk()];
        let (block, dir) = (copy.run.key, slab.dir.display());
        if matches!(fault, ReadFault::Silent) && slab.is_out() {
            // It is passed over as long as that lasts, with all that the disk has.
            return;
        }
        slab.residents.remove(copy);
        let was_held = self.index.change(&block, |runs| {
            let was_held = take_out(&mut runs.disk, copy);
            if was_held && !matches!(fault, ReadFault::Corrupt(_)) {
                slab.leave(copy);
            }
            was_held
        });
        match fault {
            ReadFault::Corrupt(sector) => {
                slab.counters.corrupt_sectors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%block, tier = "disk", %dir, sector, "a sector is corrupt, its run is dropped");
                self.queue.bury(Arc::clone(&copy.extent));
            }
            ReadFault::Io(error) => {
                slab.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%block, %dir, %error, "cannot read from disk, the run is dropped");
            }
            // Counted where it was waited for; and told once, however many wait for it.
            ReadFault::Silent if was_held => {
                tracing::warn!(%block, %dir, "disk does not answer in time, the run is dropped");
            }
            ReadFault::Silent => {}
        }
    }

    /// Removes all that is held of a file; blocks and bytes.
    pub(crate) fn remove_file(&self, file: FileId) -> (u64, u64) {
        let (mut blocks, mut bytes) = (0, 0);
        for key in self.index.of_file(file) {
            blocks += 1;
            bytes += self.remove(&key);
        }
        // Blocks of which nothing is held but what eviction left behind.
        for key in self.slabs.iter().flat_map(|slab| slab.left_of_file(file)) {
            self.remove(&key);
        }
        (blocks, bytes)
    }

    /// Removes all that is held of a block, and all that the disks still say of it; bytes of the runs.
    pub(crate) fn remove(&self, key: &BlockKey) -> u64 {
        let (runs, leftovers) = self.index.clear(key, |runs| {
            for copy in &runs.memory {
                copy.removed.store(true, Ordering::Release);
                copy.end_seal();
                self.memory.remove(copy);
            }
            for copy in &runs.disk {
                copy.removed.store(true, Ordering::Relaxed);
                self.slabs[copy.extent.disk()].residents.remove(copy);
            }
            let leftovers: Vec<_> = self.slabs.iter().flat_map(|slab| slab.leftovers(key)).collect();
            (std::mem::take(runs), leftovers)
        });
        let Runs { memory, disk, .. } = runs;
        for extent in disk.iter().map(|copy| Arc::clone(&copy.extent)).chain(leftovers) {
            self.queue.bury(extent);
        }
        let bytes = memory.iter().map(|copy| u64::from(copy.run.byte_len)).sum::<u64>()
            + disk.iter().map(|copy| u64::from(copy.run.byte_len)).sum::<u64>();
        self.counters.bytes_removed.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }
}

/// Whether a disk has all of a run, pinned.
fn is_pinned_on_disk(runs: &Runs, run: &Run) -> bool {
    runs.disk.iter().any(|copy| copy.run.sectors.contains(run.sectors) && copy.marks.is_pinned())
}
