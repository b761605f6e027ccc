//! What all parts of a store share: the tiers, and how runs enter and leave them.
//!
//! A copy enters and leaves a block's list and its tier's residents under the block's lock, or leaves the residents
//! first and the list at once after: so a copy that is in a list alone is on its way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_memory::{Pool, Span};
use forebay_types::{BlockKey, FileId};
use tokio::sync::Notify;

use crate::disk::{ReadFault, Slab, choose};
use crate::index::{Index, Runs, covers, put_in, take_out};
use crate::queue::DiskQueue;
use crate::residents::Residents;
use crate::run::{DiskRun, MemoryRun, Run};
use crate::{Eviction, ServeMode, StoreOptions};

pub(crate) struct Core {
    pub(crate) pool: Pool,
    pub(crate) index: Index,
    pub(crate) memory: Residents<MemoryRun>,
    pub(crate) slabs: Vec<Slab>,
    pub(crate) queue: DiskQueue,
    /// Notified when a tier has filled up.
    pub(crate) need_room: Notify,
    pub(crate) counters: Counters,
    pub(crate) serve: ServeMode,
    pub(crate) verify_reads: bool,
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
    pub(crate) corrupt_sectors: AtomicU64,
    pub(crate) disk_write_skipped: AtomicU64,
}

impl Core {
    pub(crate) fn new(options: StoreOptions, slabs: Vec<Slab>, queue: DiskQueue) -> Self {
        Self {
            pool: options.memory,
            index: Index::new(),
            memory: Residents::new(),
            slabs,
            queue,
            need_room: Notify::new(),
            counters: Counters::default(),
            serve: options.serve,
            verify_reads: options.verify_reads,
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
        if self.pool.used() > Self::share(self.pool.capacity().as_u64(), self.high_watermark) {
            self.need_room.notify_one();
        }
    }

    /// Puts a run into memory; `None` when memory has all of it already.
    pub(crate) fn hold(&self, run: Arc<Run>, bytes: Span) -> Option<Arc<MemoryRun>> {
        let key = run.key;
        let copy = Arc::new(MemoryRun::new(run, bytes));
        let (held, _replaced) = self.index.change(&key, |runs| {
            if covers(&runs.memory, &copy.run) {
                return (false, Vec::new());
            }
            self.memory.insert(&copy);
            let replaced = put_in(&mut runs.memory, Arc::clone(&copy));
            for old in &replaced {
                old.removed.store(true, Ordering::Release);
                self.memory.remove(old);
            }
            (true, replaced)
        });
        self.notice_use();
        held.then_some(copy)
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

    /// Whether a disk has all of a run.
    pub(crate) fn is_on_disk(&self, copy: &MemoryRun) -> bool {
        self.index.look(&copy.run.key, |runs| covers(&runs.disk, &copy.run)).unwrap_or(false)
    }

    /// Puts a run that was written, or found by recovery, into the index; `false` when a disk has all of it already,
    /// or `is_wanted` says no. It is asked when nothing else changes the block.
    pub(crate) fn hold_on_disk(&self, copy: DiskRun, is_wanted: impl FnOnce() -> bool) -> bool {
        let (key, copy) = (copy.run.key, Arc::new(copy));
        let (held, replaced) = self.index.change(&key, |runs| {
            if !is_wanted() || covers(&runs.disk, &copy.run) {
                return (false, Vec::new());
            }
            self.slabs[copy.extent.disk()].residents.insert(&copy);
            let replaced = put_in(&mut runs.disk, Arc::clone(&copy));
            for old in &replaced {
                self.slabs[old.extent.disk()].residents.remove(old);
            }
            (true, replaced)
        });
        // Else a restart would find them again.
        replaced.iter().for_each(|old| self.queue.bury(Arc::clone(&old.extent)));
        held
    }

    /// Takes out of the index a run that has left memory's residents.
    pub(crate) fn unlink_from_memory(&self, copy: &Arc<MemoryRun>) {
        self.index.change(&copy.run.key, |runs| _ = take_out(&mut runs.memory, copy));
    }

    /// Takes out of the index a run that has left its disk's residents.
    pub(crate) fn unlink_from_disk(&self, copy: &Arc<DiskRun>) {
        self.index.change(&copy.run.key, |runs| _ = take_out(&mut runs.disk, copy));
    }

    /// Drops a run in memory whose bytes have changed.
    #[cold]
    pub(crate) fn drop_corrupt(&self, copy: &Arc<MemoryRun>, sector: u32) {
        self.counters.corrupt_sectors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(block = %copy.run.key, tier = "memory", sector, "a sector is corrupt, its run is dropped");
        copy.removed.store(true, Ordering::Release);
        self.memory.remove(copy);
        self.unlink_from_memory(copy);
    }

    /// Drops a run on disk that could not be read.
    #[cold]
    pub(crate) fn drop_unreadable(&self, copy: &Arc<DiskRun>, fault: &ReadFault) {
        let slab = &self.slabs[copy.extent.disk()];
        let (block, dir) = (copy.run.key, slab.dir.display());
        slab.residents.remove(copy);
        self.unlink_from_disk(copy);
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
        }
    }

    /// Removes all that is held of a block; bytes of extents that are freed by it.
    pub(crate) fn remove(&self, key: &BlockKey) -> u64 {
        let runs = self.index.change(key, |runs| {
            for copy in &runs.memory {
                copy.removed.store(true, Ordering::Release);
                self.memory.remove(copy);
            }
            for copy in &runs.disk {
                self.slabs[copy.extent.disk()].residents.remove(copy);
            }
            std::mem::take(runs)
        });
        for copy in &runs.disk {
            self.queue.bury(Arc::clone(&copy.extent));
        }
        let Runs { memory, disk } = runs;
        memory.iter().map(|copy| u64::from(copy.run.byte_len)).sum::<u64>()
            + disk.iter().map(|copy| u64::from(copy.run.byte_len)).sum::<u64>()
    }

    /// Removes all that is held of a file.
    pub(crate) fn remove_file(&self, file: FileId) -> u64 {
        self.index.keys(Some(file)).iter().map(|key| self.remove(key)).sum()
    }
}
