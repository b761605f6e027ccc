//! Where bytes lie on disk, for readers that send from the file itself.

use std::fs::File;
use std::sync::Arc;

use forebay_types::{BlockKey, SectorChecksums};

use crate::ServeMode;
use crate::core::Core;
use crate::disk::Slab;
use crate::index::furthest_of;
use crate::run::DiskRun;

/// Bytes of a block in a slab file. While it is held they are not overwritten. After that, a page of the file that is
/// still in a socket's queue keeps its bytes all the same, because slabs are written past the page cache.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DiskSlice {
    /// The slab file, open for buffered reads.
    pub file: Arc<File>,
    /// Where the bytes start in it.
    pub offset: u64,
    /// How many there are.
    pub length: u32,
    /// The checksums of its sectors, if it is whole sectors.
    pub checksums: Option<SectorChecksums>,
    /// Keeps the extent.
    _run: Arc<DiskRun>,
}

/// See [`Store::disk_slice`](crate::Store::disk_slice).
pub(crate) async fn disk_slice(core: &Core, key: &BlockKey, offset: u32, length: u32) -> Option<DiskSlice> {
    if core.serve == ServeMode::Dio {
        return None;
    }
    let end = offset.checked_add(length)?;
    let found = core.index.look(key, |runs| {
        let copy = furthest_of(&runs.disk, offset, |copy| core.is_readable(copy));
        copy.filter(|copy| copy.run.end() >= end).map(Arc::clone)
    });
    let copy = found??;
    let run = &copy.run;
    let slab = &core.slabs[copy.extent.disk()];
    if !slab.can_splice {
        return None;
    }
    let (sectors, _) = run.sectors_of(offset, end)?;
    if !copy.was_checked(sectors) {
        let into = core.pool.alloc(Slab::landing_len(run, sectors), core.deadline).await.ok()?;
        if let Err(fault) = slab.read(&copy, sectors, into).await {
            core.drop_unreadable(&copy, &fault);
            return None;
        }
    }
    copy.marks.visit();
    let checksums = run.checksums_of(offset, end);
    let start = copy.extent.slot().sectors_offset() + u64::from(offset - run.start());
    let file = slab.file.as_ref().map(Arc::clone)?;
    slab.note_sent_from();
    Some(DiskSlice { file, offset: start, length, checksums, _run: copy })
}
