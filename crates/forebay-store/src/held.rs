//! Going through all that a store holds, and checking it.
//!
//! A drain walks the store for hours while readers read and eviction evicts. It holds no lock on the way and little memory:
//! it asks for some blocks after the last one that it saw, in an order that does not change.

use forebay_types::{BlockKey, SectorRange};

use crate::core::Core;
use crate::coverage::merge;
use crate::disk::Slab;
use crate::index::Runs;
use crate::run::Run;
use crate::{Coverage, StoreError};

/// What is held of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlock {
    /// The block.
    pub key: BlockKey,
    /// What is held of it in memory and on disk together: in order, and with holes between.
    pub runs: Vec<HeldRun>,
}

/// Consecutive sectors that are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRun {
    /// The sectors.
    pub sectors: SectorRange,
    /// Where their last byte ends, in bytes from the start of the block: what a store knows of the block's length.
    pub end: u32,
    /// Whether memory has all of them.
    pub in_memory: bool,
    /// Whether the disks have all of them.
    pub on_disk: bool,
}

impl HeldRun {
    /// How many bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.end - self.sectors.byte_offset()
    }
}

/// See [`Store::held`](crate::Store::held).
pub(crate) fn held(core: &Core, last: Option<&BlockKey>, most: usize) -> Vec<HeldBlock> {
    let mut last = last.copied();
    loop {
        let keys = core.index.after(last.as_ref(), most);
        let of = |key: &BlockKey| core.index.look(key, |runs| HeldBlock { key: *key, runs: held_of(core, runs) });
        let blocks = keys.iter().filter_map(of);
        let blocks: Vec<_> = blocks.filter(|block| !block.runs.is_empty()).collect();
        // When all of them have gone meanwhile, those after them have not been looked at.
        match keys.last() {
            Some(key) if blocks.is_empty() && keys.len() == most => last = Some(*key),
            _ => return blocks,
        }
    }
}

fn held_of(core: &Core, runs: &Runs) -> Vec<HeldRun> {
    let memory = || runs.memory.iter().map(|copy| &*copy.run);
    let disk = || on_disk(core, runs);
    let in_memory = merge(memory().map(|run| run.sectors));
    let on_disk = merge(disk().map(|run| run.sectors));
    let has = |held: &[SectorRange], sectors| held.iter().any(|range: &SectorRange| range.contains(sectors));
    let together = merge(in_memory.iter().chain(&on_disk).copied());
    let run = |sectors: SectorRange| {
        let within = memory().chain(disk()).filter(|run| sectors.contains(run.sectors));
        let end = within.map(|run| run.end()).max().unwrap_or(sectors.byte_offset());
        HeldRun { sectors, end, in_memory: has(&in_memory, sectors), on_disk: has(&on_disk, sectors) }
    };
    together.into_iter().map(run).collect()
}

/// What disks have that answer.
fn on_disk<'a>(core: &'a Core, runs: &'a Runs) -> impl Iterator<Item = &'a Run> {
    runs.disk.iter().filter(|copy| core.is_readable(copy)).map(|copy| &*copy.run)
}

/// See [`Store::scrub`](crate::Store::scrub).
pub(crate) fn scrub(core: &Core, key: &BlockKey) {
    let Some(runs) = core.index.runs(key) else { return };
    for copy in &runs.memory {
        match copy.run.check(copy.run.sectors.start, &copy.bytes) {
            Ok(()) => copy.renew_seal(),
            Err(sector) => core.drop_corrupt(copy, sector),
        }
    }
}

/// See [`Store::audit`](crate::Store::audit).
pub(crate) async fn audit(core: &Core, key: &BlockKey) -> Result<Coverage, StoreError> {
    scrub(core, key);
    let on_disk = core.index.look(key, |runs| runs.disk.clone()).unwrap_or_default();
    for copy in on_disk.iter().filter(|copy| core.is_readable(copy)) {
        let landing = core.pool.alloc(Slab::landing_len(&copy.run, copy.run.sectors), core.deadline).await;
        core.notice_use();
        let slab = &core.slabs[copy.extent.disk()];
        if let Err(fault) = slab.read(copy, copy.run.sectors, landing?).await {
            core.drop_unreadable(copy, &fault);
        }
    }
    Ok(coverage(core, key))
}

/// See [`Store::coverage`](crate::Store::coverage).
pub(crate) fn coverage(core: &Core, key: &BlockKey) -> Coverage {
    let coverage = core.index.look(key, |runs| Coverage {
        memory: merge(runs.memory.iter().map(|copy| copy.run.sectors)),
        disk: merge(on_disk(core, runs).map(|run| run.sectors)),
    });
    coverage.unwrap_or_default()
}
