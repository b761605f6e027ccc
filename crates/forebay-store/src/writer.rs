//! Writing runs to disk: one task a disk takes jobs from its queue, some at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::stream::{self, StreamExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

use crate::core::Core;
use crate::disk::WriteFault;
use crate::queue::{Job, WriteJob};

/// Jobs under way on one disk. Runs are mostly megabytes: a few keep a drive busy, more would only hold up reads.
const TOGETHER: usize = 8;

/// Does the jobs of one disk until it is told to stop.
pub(crate) async fn run(core: Arc<Core>, disk: usize, mut queue: UnboundedReceiver<Job>, stop: CancellationToken) {
    let core = &*core;
    let jobs = stream::poll_fn(|context| queue.poll_recv(context));
    let work = jobs.for_each_concurrent(TOGETHER, |job| carry_out(core, disk, job));
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Does a job of this disk.
pub(crate) async fn carry_out(core: &Core, disk: usize, job: Job) {
    match job {
        Job::Write(job) => write(core, disk, &job).await,
        Job::Bury(extent, _pending) => core.slabs[disk].bury(extent).await,
    }
}

async fn write(core: &Core, disk: usize, job: &WriteJob) {
    let (slab, copy) = (&core.slabs[disk], &job.copy);
    let (is_wanted, keep) = (|| core.is_wanted(copy), copy.marks.keep());
    if !is_wanted() || core.is_on_disk(copy) || !core.has_quota_on_disk(&copy.run, keep) {
        return;
    }
    let usage = slab.usage();
    if usage.used > Core::share(usage.capacity, core.high_watermark) {
        core.need_room.notify_one();
    }
    match slab.write(Arc::clone(&copy.run), keep, &job.bytes, core.deadline, &core.need_room).await {
        Ok(written) => {
            let extent = Arc::clone(&written.extent);
            if !core.hold_on_disk(written, keep, is_wanted) {
                // Removed, replaced by a larger run, or over its account's quota, while it was being written.
                slab.bury(extent).await;
            }
        }
        Err(WriteFault::Full) => {
            tracing::debug!(block = %copy.run.key, dir = %slab.dir.display(), "no extent came free in time");
            core.counters.disk_write_skipped.fetch_add(1, Ordering::Relaxed);
        }
        Err(WriteFault::Silent(extent)) => {
            core.counters.disk_write_skipped.fetch_add(1, Ordering::Relaxed);
            if let Some(extent) = extent {
                core.give_up_write(copy, &extent);
            }
        }
        Err(WriteFault::Failed(extent)) => {
            core.counters.disk_write_skipped.fetch_add(1, Ordering::Relaxed);
            core.give_up_write(copy, &extent);
        }
    }
}
