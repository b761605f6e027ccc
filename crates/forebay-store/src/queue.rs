//! What is to be written to disk: bounded by bytes, never waited for by a read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_memory::Span;
use forebay_types::{ByteSize, MAX_BLOCK_SIZE};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use crate::disk::DiskExtent;
use crate::run::MemoryRun;

/// Something to do on one disk.
pub(crate) enum Job {
    /// Write a run.
    Write(WriteJob),
    /// Make an extent forgotten on disk too.
    Bury(Arc<DiskExtent>, Pending),
}

/// A run to be written. Its bytes stay in memory until it drops.
pub(crate) struct WriteJob {
    pub(crate) copy: Arc<MemoryRun>,
    /// A view besides the copy's own, so that eviction sees a reader.
    pub(crate) bytes: Span,
    _room: OwnedSemaphorePermit,
    _pending: Pending,
}

impl Drop for WriteJob {
    fn drop(&mut self) {
        self.copy.queued.store(false, Ordering::Release);
    }
}

/// The queues of all disks.
pub(crate) struct DiskQueue {
    disks: Vec<mpsc::UnboundedSender<Job>>,
    /// In KiB, so that the bound fits a permit count.
    room: Arc<Semaphore>,
    capacity: u32,
    pending: Arc<Jobs>,
}

#[derive(Default)]
struct Jobs {
    count: AtomicUsize,
    done: Notify,
}

/// One job that is not done yet.
pub(crate) struct Pending(Arc<Jobs>);

impl Pending {
    fn new(jobs: &Arc<Jobs>) -> Self {
        jobs.count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(jobs))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.done.notify_waiters();
        }
    }
}

impl DiskQueue {
    /// Queues for so many disks, which hold `bound` bytes together, but one block at least; and their other ends.
    pub(crate) fn new(disks: usize, bound: ByteSize) -> (Self, Vec<mpsc::UnboundedReceiver<Job>>) {
        let bound = bound.as_u64().max(u64::from(MAX_BLOCK_SIZE)) >> 10;
        let capacity = u32::try_from(bound).unwrap_or(u32::MAX);
        let (disks, ends) = (0..disks).map(|_| mpsc::unbounded_channel()).unzip();
        let room = Arc::new(Semaphore::new(capacity as usize));
        (Self { disks, room, capacity, pending: Arc::default() }, ends)
    }

    /// Queues a run; `false` when there is no room.
    pub(crate) fn offer(&self, disk: usize, copy: &Arc<MemoryRun>) -> bool {
        let size = copy.run.byte_len.div_ceil(1 << 10).min(self.capacity);
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(size) else { return false };
        if copy.queued.swap(true, Ordering::AcqRel) {
            return true;
        }
        let (copy, bytes) = (Arc::clone(copy), copy.bytes.clone());
        let job = WriteJob { copy, bytes, _room: room, _pending: Pending::new(&self.pending) };
        // When the writer has stopped the job drops, as it would have in the queue.
        self.disks[disk].send(Job::Write(job)).is_ok()
    }

    /// Queues the burial of an extent.
    pub(crate) fn bury(&self, extent: Arc<DiskExtent>) {
        let disk = extent.disk();
        let _ = self.disks[disk].send(Job::Bury(extent, Pending::new(&self.pending)));
    }

    /// Waits until no job is pending.
    pub(crate) async fn flush(&self) {
        loop {
            let mut done = std::pin::pin!(self.pending.done.notified());
            // From here on the last job is not missed.
            done.as_mut().enable();
            if self.pending.count.load(Ordering::Acquire) == 0 {
                return;
            }
            done.await;
        }
    }

    /// Bytes waiting or being written.
    pub(crate) fn bytes(&self) -> u64 {
        (u64::from(self.capacity) - self.room.available_permits() as u64) << 10
    }
}
