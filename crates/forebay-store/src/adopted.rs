//! Blocks that lie in memory of others: a file that is mapped has its bytes, so the pool need not have them as well.
//!
//! An adopted copy is in its block's list like any other, so reads find it, check it and drop it when it is corrupt. It stands in
//! no order of eviction, because its end would free none of the pool's memory: whoever has it adopted takes it back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_memory::{FRAME_SIZE, Span};
use forebay_types::{BlockKey, FileId, SectorChecksums, SectorRange};
use smallvec::SmallVec;

use crate::core::Core;
use crate::evict::reserve;
use crate::index::{covered, put_in};
use crate::run::{MemoryRun, Run};

/// See [`Store::adopt`](crate::Store::adopt).
pub(crate) fn adopt(core: &Core, key: BlockKey, bytes: Span, checksums: SectorChecksums) -> bool {
    let length = u32::try_from(bytes.len()).ok();
    let Some(sectors) = length.and_then(|length| SectorRange::covering(0, length)) else { return false };
    if checksums.len() != sectors.len() as usize || bytes.place().is_some() {
        return false;
    }
    let run = Arc::new(Run::checksummed(key, sectors, &bytes, checksums));
    let copy = Arc::new(MemoryRun::new(run, bytes));
    core.verify.was_checked(&copy);
    // What is replaced is dropped without the block's lock: its memory may be the last view of something large.
    let replaced = core.index.change(&key, |runs| {
        let replaced = covered(&runs.memory, &copy.run);
        if replaced.iter().any(|old| old.marks.is_pinned()) {
            return None;
        }
        // A disk gets it when it leaves, to be kept as what was there.
        let in_memory = replaced.first().map(|old| old.marks.keep());
        let keep = in_memory.or_else(|| runs.disk.first().map(|old| old.marks.keep()));
        copy.marks.place.lock().keep = keep.unwrap_or_default();
        put_in(&mut runs.memory, Arc::clone(&copy));
        for old in &replaced {
            core.memory.remove(old);
            // It may be on its way to a disk, and goes on with that unless the block is removed.
            old.left_at.store(core.index.removals(&key), Ordering::Release);
        }
        Some(replaced)
    });
    // Whoever still looks at them or writes them to a disk: clients read by themselves only what is in the index.
    replaced.iter().flatten().for_each(|old| old.end_seal());
    replaced.is_some()
}

/// See [`Store::disown`](crate::Store::disown).
pub(crate) fn disown(core: &Core, file: FileId) {
    for key in core.index.of_file(file) {
        for copy in of_block(core, &key, MemoryRun::is_adopted) {
            core.let_go(copy);
        }
    }
}

/// See [`Store::give_up`](crate::Store::give_up).
pub(crate) fn give_up(core: &Core, key: &BlockKey) {
    let may_go = |copy: &MemoryRun| !copy.is_adopted() && !copy.has_readers() && !copy.marks.is_pinned();
    for copy in of_block(core, key, may_go) {
        // Eviction may have taken it meanwhile.
        if core.memory.remove(&copy) {
            core.let_go(copy);
        }
    }
}

fn of_block(core: &Core, key: &BlockKey, wanted: impl Fn(&MemoryRun) -> bool) -> SmallVec<[Arc<MemoryRun>; 1]> {
    core.index.look(key, |runs| runs.memory.iter().filter(|copy| wanted(copy)).cloned().collect()).unwrap_or_default()
}

/// See [`Store::set_lent_frames`](crate::Store::set_lent_frames).
pub(crate) fn set_lent_frames(core: &Core, frames: u64) {
    let frame = FRAME_SIZE as u64;
    let all = core.pool.capacity().as_u64() / frame;
    core.lent.store(frames.min(all) * frame, Ordering::Relaxed);
    core.memory.resize(all.saturating_sub(frames));
    core.notice_use();
}

/// See [`Store::spare_memory`](crate::Store::spare_memory).
pub(crate) fn spare_memory(core: &Core) -> u64 {
    let (used, capacity) = core.memory_use();
    // The watermark is never 0.
    let at_watermark = used.saturating_mul(100).div_ceil(u64::from(core.high_watermark.max(1)));
    let frame = FRAME_SIZE as u64;
    let free = u64::from(core.pool.occupancy().free_frames).saturating_sub(reserve(core, capacity / frame));
    capacity.saturating_sub(at_watermark).min(free * frame)
}
