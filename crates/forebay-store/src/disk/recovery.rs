//! Finding out what is in a slab, by reading the headers of its extents.
//!
//! Nothing is kept on disk for it but the headers themselves, so nothing can be stale: a process may die at any point.
//! A frame fills from its first extent, so the first header tells the frame's class and where the others are. Where
//! that header is torn, every class is tried. Of what is found the newest generation counts; the rest are leftovers
//! from before the frame was given to another class, and may be partly overwritten. Data is not read: what was torn
//! there fails its CRC when it is.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_memory::{Pool, SpanMut};
use futures::stream::{self, StreamExt};

use super::geometry::{CLASSES, PAGE, Slot, extents};
use super::header::{Header, SlabId};
use super::space::Frames;
use crate::io::{DiskIo, is_silent};
use crate::run::Run;
use crate::{Keep, StoreError};

/// Frames looked at together. Their scratch memory is one page in one smallest extent each.
const TOGETHER: usize = 32;

/// What was in a slab.
pub(crate) struct Found {
    pub(crate) frames: Frames,
    /// Each extent of `frames` that is in use, its run, and how that is to be kept.
    pub(crate) runs: Vec<(Slot, Run, Keep)>,
}

/// Reads all headers of a slab. Frames that cannot be read count as empty.
///
/// # Errors
/// When there is no memory to read into, or the disk hangs: what is on it is not known then.
pub(crate) async fn scan(
    io: &dyn DiskIo,
    memory: &Pool,
    deadline: Duration,
    id: SlabId,
    frames: u32,
    dir: &Path,
) -> Result<Found, StoreError> {
    let start = Instant::now();
    let mut found = Found { frames: Frames::new(frames), runs: Vec::new() };
    let mut scans = stream::iter(0..frames)
        .map(|number| async move {
            let page = memory.alloc(PAGE, deadline).await?;
            let mut scan = FrameScan { io, id, page: Some(page), memory, deadline, dir };
            Ok::<_, StoreError>((number, scan.headers(number).await?))
        })
        .buffer_unordered(TOGETHER);
    let report_every = (frames / 10).max(10_000);
    let mut done = 0;
    while let Some(scanned) = scans.next().await {
        let (number, headers) = scanned?;
        found.add(number, headers);
        done += 1;
        if done % report_every == 0 {
            tracing::info!(dir = %dir.display(), frames_read = done, frames, "reading the headers of a slab");
        }
    }
    drop(scans);
    tracing::info!(dir = %dir.display(), frames, runs = found.runs.len(), elapsed = ?start.elapsed(), "slab recovered");
    Ok(found)
}

impl Found {
    fn add(&mut self, number: u32, headers: Vec<Header>) {
        let Some(newest) = headers.iter().max_by_key(|header| header.generation) else { return };
        let (generation, class) = (newest.generation, newest.slot.class);
        let mut used = 0;
        for header in headers {
            if header.generation == generation
                && header.slot.class == class
                && let Some((run, keep)) = header.run
            {
                used |= 1 << header.slot.index;
                self.runs.push((header.slot, run, keep));
            }
        }
        self.frames.adopt(number, class, generation, used);
    }
}

struct FrameScan<'a> {
    io: &'a dyn DiskIo,
    id: SlabId,
    /// Scratch memory; gone when a read failed, for then the operation took it along.
    page: Option<SpanMut>,
    memory: &'a Pool,
    deadline: Duration,
    dir: &'a Path,
}

impl FrameScan<'_> {
    async fn headers(&mut self, frame: u32) -> Result<Vec<Header>, StoreError> {
        let (id, first) = (self.id, Slot { frame, index: 0, class: 0 });
        let Some(page) = self.read(first).await? else { return Ok(Vec::new()) };
        if page.iter().all(|byte| *byte == 0) {
            return Ok(Vec::new());
        }
        let known = (0..CLASSES).find_map(|class| Header::decode(id, Slot { class, ..first }, page));
        let mut headers = Vec::new();
        let classes = match known {
            Some(header) => {
                let class = header.slot.class;
                headers.push(header);
                class..class + 1
            }
            None => 0..CLASSES,
        };
        for class in classes {
            for index in 1..extents(class) {
                let slot = Slot { frame, index, class };
                headers.extend(self.read(slot).await?.and_then(|page| Header::decode(id, slot, page)));
            }
        }
        Ok(headers)
    }

    /// The page where the header of `slot` would be; `None` when it cannot be read.
    async fn read(&mut self, slot: Slot) -> Result<Option<&[u8]>, StoreError> {
        loop {
            let page = match self.page.take() {
                Some(page) => page,
                None => self.memory.alloc(PAGE, self.deadline).await?,
            };
            match self.io.read_at(slot.offset(), page).await {
                Ok(page) => {
                    self.page = Some(page);
                    break;
                }
                Err(error) if !is_silent(&error) => {
                    tracing::warn!(?slot, %error, "cannot read a header of a slab, taking it for empty");
                    return Ok(None);
                }
                // It may only be slow, and is asked again. If it hangs it is taken out soon, and this ends.
                Err(_) if self.io.watch().is_out() => return Err(StoreError::Silent { dir: self.dir.to_owned() }),
                Err(_) => {}
            }
        }
        Ok(self.page.as_deref())
    }
}
