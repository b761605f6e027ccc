//! How a read is pieced together from the tiers.
//!
//! Memory first; what it lacks comes from disk. A run on disk of which at least half is wanted, or that is wanted for
//! the second time, is read as a whole and stays in memory; of any other only the sectors that are wanted are read. A
//! run that turns out corrupt or unreadable, or whose disk does not answer, is dropped and the read is planned anew without
//! it: what is left is a right answer or a miss. What a disk has that was taken out because it hangs is passed over.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_memory::{Span, Spans};
use forebay_types::{BlockKey, SectorChecksums};
use futures::future::try_join_all;
use smallvec::SmallVec;

use crate::StoreError;
use crate::core::Core;
use crate::disk::{ReadFault, Slab};
use crate::index::{Runs, furthest, furthest_of};
use crate::run::{DiskRun, MemoryRun};
use crate::verify::Verify;

/// What a read found, and where.
#[derive(Clone, Debug)]
pub struct StoreRead {
    /// The bytes, in order: together exactly what was asked for.
    pub spans: Spans,
    /// How many of the bytes were in memory.
    pub from_memory: u32,
    /// How many came from disk.
    pub from_disk: u32,
}

/// A run in memory and the sector of it that is not what it was.
type Corrupt = (Arc<MemoryRun>, u32);

/// Where the bytes `offset..end` of a block, of which the run has all, lie in the run's.
fn piece(copy: &MemoryRun, offset: u32, end: u32, verify: &Verify) -> Result<Range<usize>, u32> {
    verify.check(copy, offset, end)?;
    copy.marks.visit();
    let start = copy.run.start();
    Ok((offset - start) as usize..(end - start) as usize)
}

/// Calls `take` with each of the views that together are the bytes `offset..end` of a block; `None` when memory lacks some.
fn pieces<'a>(
    runs: &'a Runs,
    offset: u32,
    end: u32,
    verify: &Verify,
    mut take: impl FnMut(&'a Span, Range<usize>),
) -> Option<Result<(), Corrupt>> {
    let mut at = offset;
    while at < end {
        let copy = furthest(&runs.memory, at)?;
        let stop = copy.run.end().min(end);
        match piece(copy, at, stop, verify) {
            Ok(range) => take(&copy.bytes, range),
            Err(sector) => return Some(Err((Arc::clone(copy), sector))),
        }
        at = stop;
    }
    Some(Ok(()))
}

/// From memory alone: all bytes, or `None`. The hot path.
pub(crate) fn try_read(
    core: &Core,
    key: &BlockKey,
    offset: u32,
    length: u32,
    admits: impl FnOnce(Option<u32>) -> bool,
) -> Option<Spans> {
    let end = offset.checked_add(length)?;
    // Out here, so that they are moved once, and not with each result that they would be in.
    let mut spans = Spans::new();
    let found = core.index.look(key, |runs| {
        if !admits(runs.label) {
            return None;
        }
        pieces(runs, offset, end, &core.verify, |bytes, range| spans.push(bytes.slice(range)))
    })?;
    found?.map_err(|(copy, sector)| core.drop_corrupt(&copy, sector)).ok()?;
    Some(spans)
}

/// The same where they lie, while `look` looks at them: the index keeps them meanwhile, so nothing at all is written to what
/// readers share.
pub(crate) fn try_look<R>(
    core: &Core,
    key: &BlockKey,
    offset: u32,
    length: u32,
    admits: impl FnOnce(Option<u32>) -> bool,
    look: impl FnOnce(&[&[u8]]) -> R,
) -> Option<R> {
    let end = offset.checked_add(length)?;
    let found = core.index.look(key, |runs| {
        if !admits(runs.label) {
            return None;
        }
        let mut slices: SmallVec<[&[u8]; 2]> = SmallVec::new();
        let found = pieces(runs, offset, end, &core.verify, |bytes, range| slices.push(&bytes[range]))?;
        Some(found.map(|()| look(&slices)))
    })?;
    found?.map_err(|(copy, sector)| core.drop_corrupt(&copy, sector)).ok()
}

/// Whether memory has all of these bytes. They are not checked.
pub(crate) fn is_in_memory(
    core: &Core,
    key: &BlockKey,
    offset: u32,
    length: u32,
    admits: impl FnOnce(Option<u32>) -> bool,
) -> bool {
    let Some(end) = offset.checked_add(length) else { return false };
    let is_here = core.index.look(key, |runs| {
        if !admits(runs.label) {
            return false;
        }
        let mut at = offset;
        while at < end {
            let Some(copy) = furthest(&runs.memory, at) else { return false };
            at = copy.run.end();
        }
        true
    });
    is_here.unwrap_or(false)
}

/// Whole sectors of one run in memory and their checksums, unchecked.
pub(crate) fn try_read_checksummed(
    core: &Core,
    key: &BlockKey,
    offset: u32,
    length: u32,
    admits: impl FnOnce(Option<u32>) -> bool,
) -> Option<(Span, SectorChecksums)> {
    let end = offset.checked_add(length)?;
    core.index.look(key, |runs| {
        if !admits(runs.label) {
            return None;
        }
        let copy = furthest(&runs.memory, offset).filter(|copy| copy.run.end() >= end)?;
        let checksums = copy.run.checksums_of(offset, end)?;
        copy.marks.visit();
        let start = copy.run.start();
        Some((copy.bytes.slice((offset - start) as usize..(end - start) as usize), checksums))
    })?
}

/// Where a part of a read is.
enum Part {
    Memory(Span),
    Disk { copy: Arc<DiskRun>, offset: u32, end: u32, is_second_hit: bool },
}

/// Where the bytes `offset..end` are; `None` when some are nowhere.
fn plan(core: &Core, runs: &Runs, offset: u32, end: u32) -> Result<Option<SmallVec<[Part; 4]>>, Corrupt> {
    let mut parts: SmallVec<[Part; 4]> = SmallVec::new();
    let mut at = offset;
    while at < end {
        if let Some(copy) = furthest(&runs.memory, at) {
            let stop = copy.run.end().min(end);
            let range = piece(copy, at, stop, &core.verify).map_err(|sector| (Arc::clone(copy), sector))?;
            parts.push(Part::Memory(copy.bytes.slice(range)));
            at = stop;
            continue;
        }
        let Some(copy) = furthest_of(&runs.disk, at, |copy| core.is_readable(copy)) else { return Ok(None) };
        // Up to where memory takes over again.
        let resumes = runs.memory.iter().map(|copy| copy.run.start()).filter(|start| *start > at).min();
        let stop = copy.run.end().min(end).min(resumes.unwrap_or(end));
        // Two parts of one read that lie in one run are one hit.
        let same_run = parts.iter().find_map(|part| match part {
            Part::Disk { copy: other, is_second_hit, .. } if Arc::ptr_eq(copy, other) => Some(*is_second_hit),
            _ => None,
        });
        let is_second_hit = same_run.unwrap_or_else(|| copy.hit_before.swap(true, Ordering::Relaxed));
        parts.push(Part::Disk { copy: Arc::clone(copy), offset: at, end: stop, is_second_hit });
        at = stop;
    }
    Ok(Some(parts))
}

/// Why a part could not be had.
enum Fault {
    Run(Arc<DiskRun>, ReadFault),
    Store(StoreError),
    /// There was no memory at once, and the read does not wait.
    NoRoom,
}

/// Whether a read waits for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Up to the store's deadline.
    Waits,
    /// No: what would have to be waited for is taken for a miss. Nor does it bring anything up to memory: the reader is
    /// another worker, which keeps the bytes itself.
    None,
}

/// From memory and disk together; `None` when some byte is nowhere.
pub(crate) async fn read(
    core: &Core,
    key: &BlockKey,
    offset: u32,
    length: u32,
    patience: Patience,
) -> Result<Option<StoreRead>, StoreError> {
    let Some(end) = offset.checked_add(length) else { return Ok(None) };
    if length == 0 {
        return Ok(Some(StoreRead { spans: Spans::new(), from_memory: 0, from_disk: 0 }));
    }
    // Each turn but the last drops a run, or its disk was taken out meanwhile, so this ends.
    loop {
        let Some(runs) = core.index.runs(key) else { return Ok(None) };
        let parts = match plan(core, &runs, offset, end) {
            Ok(Some(parts)) => parts,
            Ok(None) => return Ok(None),
            Err((copy, sector)) => {
                core.drop_corrupt(&copy, sector);
                continue;
            }
        };
        drop(runs);
        let from_disk = parts.iter().map(|part| match part {
            Part::Memory(_) => 0,
            Part::Disk { offset, end, .. } => end - offset,
        });
        let from_disk = from_disk.sum();
        let spans = try_join_all(parts.into_iter().map(|part| async move {
            match part {
                Part::Memory(span) => Ok(span),
                Part::Disk { copy, offset, end, is_second_hit } => {
                    read_from_disk(core, copy, offset..end, is_second_hit, patience).await
                }
            }
        }));
        match spans.await {
            Ok(spans) => {
                return Ok(Some(StoreRead { spans: spans.into(), from_memory: length - from_disk, from_disk }));
            }
            Err(Fault::Run(copy, fault)) => core.drop_unreadable(&copy, &fault),
            Err(Fault::Store(error)) => return Err(error),
            Err(Fault::NoRoom) => return Ok(None),
        }
    }
}

/// These bytes of a block, of which the run on disk has all.
async fn read_from_disk(
    core: &Core,
    copy: Arc<DiskRun>,
    Range { start: offset, end }: Range<u32>,
    is_second_hit: bool,
    patience: Patience,
) -> Result<Span, Fault> {
    let run = &copy.run;
    let slab = &core.slabs[copy.extent.disk()];
    let Some((sectors, wanted)) = run.sectors_of(offset, end) else {
        return Err(Fault::Run(Arc::clone(&copy), ReadFault::Corrupt(run.sectors.start)));
    };
    copy.marks.visit();
    let alloc = async |length| {
        if patience == Patience::None {
            let landing = core.pool.try_alloc(length);
            core.notice_use();
            return landing.ok_or(Fault::NoRoom);
        }
        let landing = core.pool.alloc(length, core.deadline).await;
        core.notice_use();
        landing.map_err(|error| Fault::Store(error.into()))
    };
    if patience == Patience::Waits && (is_second_hit || wanted >= run.byte_len / 2) {
        // One reader reads the run, others that come meanwhile find it in memory.
        let _promoting = copy.promotion.lock().await;
        if copy.given_up.load(Ordering::Acquire) || slab.is_out() {
            return Err(Fault::Run(Arc::clone(&copy), ReadFault::Silent));
        }
        let promoted = core.index.look(&run.key, |runs| {
            let held = furthest(&runs.memory, offset).filter(|held| held.run.end() >= end)?;
            piece(held, offset, end, &core.verify).ok().map(|range| held.bytes.slice(range))
        });
        if let Some(span) = promoted.flatten() {
            return Ok(span);
        }
        let length = Slab::landing_len(run, run.sectors);
        let landing = if sectors == run.sectors { Some(alloc(length).await?) } else { core.pool.try_alloc(length) };
        if let Some(into) = landing {
            let read = slab.read(&copy, run.sectors, into).await;
            let bytes = read.map_err(|fault| Fault::Run(Arc::clone(&copy), fault))?;
            if core.hold(Arc::clone(run), bytes.clone(), copy.marks.keep(), Some(&copy)).is_some() {
                core.counters.runs_promoted.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(bytes.slice((offset - run.start()) as usize..(end - run.start()) as usize));
        }
    }
    let into = alloc(Slab::landing_len(run, sectors)).await?;
    let bytes = slab.read(&copy, sectors, into).await.map_err(|fault| Fault::Run(Arc::clone(&copy), fault))?;
    let start = sectors.byte_offset();
    Ok(bytes.slice((offset - start) as usize..(end - start) as usize))
}

/// The checksums of whole sectors, from whatever runs hold them: runs of one block hold the same bytes. `None` when the range is
/// not whole sectors, or some are nowhere.
pub(crate) fn checksums(core: &Core, key: &BlockKey, offset: u32, length: u32) -> Option<SectorChecksums> {
    let end = offset.checked_add(length)?;
    core.index.look(key, |runs| {
        let mut checksums = Vec::new();
        let mut at = offset;
        while at < end {
            let memory = furthest(&runs.memory, at).map(|copy| &copy.run);
            let disk = furthest(&runs.disk, at).map(|copy| &copy.run);
            let run = memory.into_iter().chain(disk).max_by_key(|run| run.end())?;
            let stop = run.end().min(end);
            checksums.extend_from_slice(run.checksums_of(at, stop)?.as_bytes());
            at = stop;
        }
        SectorChecksums::from_bytes(checksums.into())
    })?
}
