//! Eviction: makes room ahead of need, in a task of its own.
//!
//! Each tier is kept below its high watermark: when it is above, runs go in SIEVE's order until it is below the low
//! one. Room is of use only where it fits. So a few frames are kept wholly free, and when an allocation waits though
//! there is room, the frame that holds least is emptied for it. Runs with readers are passed over, for evicting them
//! frees no memory now. Only for allocations that wait are they unlinked too, one frame for each that had to, so that
//! memory comes back with their last reader. Pinned runs never go: they are fewer than would leave no room
//! (`residents.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::Eviction;
use crate::core::Core;
use crate::disk::Slab;
use crate::run::{Held, MemoryRun};

/// Victims between two yields to other tasks.
const BATCH: usize = 256;
/// How soon to look again when an allocation still waits: runs that could not go may now.
const RETRY: Duration = Duration::from_millis(5);
/// How soon to look again otherwise, in case two stores share a pool and the other one got the call.
const IDLE: Duration = Duration::from_secs(1);

/// Makes room until it is told to stop.
pub(crate) async fn run(core: Arc<Core>, stop: CancellationToken) {
    let mut forced = core.pool.occupancy().waits;
    loop {
        let someone_waits = core.pool.occupancy().waiting > 0 || core.slabs.iter().any(Slab::has_waiting_writes);
        let pause = if someone_waits { RETRY } else { IDLE };
        tokio::select! {
            () = stop.cancelled() => return,
            () = core.need_room.notified() => {}
            () = core.pool.pressure() => {}
            () = tokio::time::sleep(pause) => {}
        }
        enforce_quotas(&core).await;
        offer_pinned(&core);
        let ran_dry = evict_memory(&core, &mut forced).await;
        for slab in &core.slabs {
            evict_disk(&core, slab).await;
        }
        if ran_dry {
            // Everything has readers: looking again at once, at every call, would only burn time.
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }
}

/// Makes room in memory; whether it ran out of victims before there was enough. `forced` counts the waits for which runs
/// with readers were unlinked.
async fn evict_memory(core: &Core, forced: &mut u64) -> bool {
    let mut ran_dry = false;
    let unread = |copy: &MemoryRun| !copy.has_readers();
    let (used, capacity) = core.memory_use();
    if used > Core::share(capacity, core.high_watermark) {
        let mut excess = used.saturating_sub(Core::share(capacity, core.low_watermark));
        let mut victims = 0;
        while excess > 0 {
            let Some(copy) = core.memory.evict(core.eviction, unread) else {
                ran_dry = true;
                break;
            };
            excess = excess.saturating_sub(copy.extent_size());
            core.let_go(copy);
            pause_after(&mut victims).await;
        }
    }
    let frames = capacity / forebay_memory::FRAME_SIZE as u64;
    for _ in 0..reserve(core, frames) {
        if u64::from(core.pool.occupancy().free_frames) >= reserve(core, frames) {
            break;
        }
        core.memory.evict_frame(unread).into_iter().for_each(|copy| core.let_go(copy));
        tokio::task::yield_now().await;
    }
    let occupancy = core.pool.occupancy();
    for _ in 0..occupancy.waiting {
        let mut victims = core.memory.evict_frame(unread);
        if victims.is_empty() && *forced < occupancy.waits {
            *forced += 1;
            victims = core.memory.evict_frame(|_| true);
        }
        if victims.is_empty() {
            break;
        }
        victims.into_iter().for_each(|copy| core.let_go(copy));
        tokio::task::yield_now().await;
        if core.pool.occupancy().waiting == 0 {
            break;
        }
    }
    if occupancy.waiting == 0 {
        *forced = occupancy.waits;
    }
    ran_dry
}

/// Lets accounts give up what they have over their quotas: those may have shrunk.
async fn enforce_quotas(core: &Core) {
    let quotas = core.quotas.load_full();
    let mut victims = 0;
    for (account, quota) in &*quotas {
        while let Some(copy) = core.memory.evict_of(*account, *quota) {
            core.let_go(copy);
            pause_after(&mut victims).await;
        }
        let mut room = *quota;
        for slab in &core.slabs {
            while let Some(copy) = slab.residents.evict_of(*account, room) {
                core.let_go_from_disk(&copy);
                pause_after(&mut victims).await;
            }
            room = room.saturating_sub(slab.residents.use_of(*account).bytes);
        }
    }
}

/// What is pinned in memory, though there are disks, did not get there yet: the queue was full, or writing failed. It is
/// never evicted, so this is its way to the disk.
fn offer_pinned(core: &Core) {
    if core.slabs.is_empty() {
        return;
    }
    for copy in core.memory.pinned(BATCH) {
        if !copy.queued.load(Ordering::Acquire) && !core.offer_to_disk(&copy) {
            break;
        }
    }
}

/// Makes room on a disk.
async fn evict_disk(core: &Core, slab: &Slab) {
    let mut victims = 0;
    let usage = slab.usage();
    if usage.used > Core::share(usage.capacity, core.high_watermark) {
        let mut excess = usage.used.saturating_sub(Core::share(usage.capacity, core.low_watermark));
        while excess > 0 {
            let Some(copy) = slab.residents.evict(Eviction::Sieve, |_| true) else { break };
            excess = excess.saturating_sub(copy.extent_size());
            core.let_go_from_disk(&copy);
            pause_after(&mut victims).await;
        }
    }
    let reserve = reserve(core, u64::from(usage.frames));
    for _ in 0..reserve.max(1) {
        let is_short = u64::from(slab.usage().free_frames) < reserve;
        if !is_short && !slab.has_waiting_writes() {
            break;
        }
        for copy in slab.residents.evict_frame(|_| true) {
            core.let_go_from_disk(&copy);
        }
        tokio::task::yield_now().await;
    }
}

/// How many frames of a tier to keep wholly free: half of what lies above the high watermark, so that a tier of large
/// runs has them by its watermark alone. None in a small tier, where a frame is too much to keep empty.
pub(crate) fn reserve(core: &Core, frames: u64) -> u64 {
    frames * u64::from(100 - core.high_watermark) / 200
}

async fn pause_after(victims: &mut usize) {
    *victims += 1;
    if victims.is_multiple_of(BATCH) {
        tokio::task::yield_now().await;
    }
}
