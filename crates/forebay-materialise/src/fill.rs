//! One file, from its source to its name.
//!
//! Blocks are asked for ahead, a few at a time, and written in order; each is then read back from the backend and compared with
//! the checksums that came along, so that what is checked is what will be read. A block that is wrong is asked for once more, and
//! the worker that has it checks its copy first. Only a whole file gets its name.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use forebay_types::{BlockKey, BlockLayout, Failure, FailureKind, FileVersion, SECTOR_SIZE, SectorChecksums};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::backend::{FileBackend, Part, View};
use crate::file::NotTaken;
use crate::index::room_of;
use crate::lender::Lender;
use crate::name::Name;
use crate::record::Record;
use crate::source::{Blocks, Checksummed, Source};
use crate::stats::Counts;

/// Blocks of one file that are asked for at once: enough to cover the way to a worker, and bounded, since they are buffers that
/// readers could have.
const IN_FLIGHT: usize = 4;
/// Read back at once: it is still in the processor's cache when its checksum is computed.
const PIECE: u32 = 8 * SECTOR_SIZE;

/// A fill, and what it needs.
pub(crate) struct Fill {
    pub(crate) name: Name,
    pub(crate) version: FileVersion,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) backend: Arc<dyn FileBackend>,
    pub(crate) runtime: Handle,
    pub(crate) tasks: TaskTracker,
    pub(crate) counts: Arc<Counts>,
    /// Whether what was written is read back; what came is checked otherwise.
    pub(crate) reads_back: bool,
    /// Who lends the room that it takes, if anybody does.
    pub(crate) lender: Option<Arc<dyn Lender>>,
    /// Whether the lender may evict for it.
    pub(crate) may_evict: bool,
    pub(crate) cancelled: CancellationToken,
}

/// What is known of a file that was filled.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) layout: BlockLayout,
    pub(crate) checksums: SectorChecksums,
}

/// Room that a fill has of its lender so far: given back, unless the fill succeeds.
struct Loan<'a> {
    lender: Option<&'a Arc<dyn Lender>>,
    may_evict: bool,
    bytes: u64,
}

impl Loan<'_> {
    async fn more(&mut self, bytes: u64) -> Result<(), Failed> {
        let Some(lender) = self.lender else { return Ok(()) };
        if !lender.lend(bytes, self.may_evict).await {
            return Err(Failed::NoRoom);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// It is the file's from now on.
    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        if let Some(lender) = self.lender.filter(|_| self.bytes > 0) {
            lender.give_back(self.bytes);
        }
    }
}

/// Why a file was not filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    Cancelled,
    Changed,
    NoRoom,
    Corrupt(String),
    Other(String),
}

impl Fill {
    /// Fills the file, and tells how many bytes are written after each block. What failed has left nothing.
    pub(crate) async fn run(&self, progress: impl Fn(u64)) -> Result<Whole, Failed> {
        let blocks = self.source.open(&self.version);
        let layout = blocks.layout();
        if layout.file_size() != self.name.size {
            return Err(Failed::Other("the blocks are of another file".to_owned()));
        }
        let (backend, name) = (Arc::clone(&self.backend), self.name);
        // Before the part, so that what it takes is free when the loan is given back.
        let mut loan = Loan { lender: self.lender.as_ref(), may_evict: self.may_evict, bytes: 0 };
        // What is spare may be less than the file needs: then nothing is begun in vain.
        let of_blocks = if self.may_evict { name.size } else { 0 };
        loan.more(room_of(name.size) - of_blocks).await?;
        let mut part = Some(self.blocking(move || backend.begin(name)).await?.map_err(backend_failure)?);
        let mut checksums = BytesMut::new();
        let written = self.write_all(&mut part, &blocks, layout, &mut checksums, (&mut loan, progress)).await;
        match (part, written) {
            (Some(part), Ok(())) => {
                let checksums = SectorChecksums::from_bytes(checksums.freeze())
                    .ok_or_else(|| Failed::Other("odd checksums".to_owned()))?;
                let whole = Whole { layout, checksums: checksums.clone() };
                let record = Record { version: self.version.clone(), checksums };
                self.blocking(move || part.publish(&record)).await?.map_err(backend_failure)?;
                loan.keep();
                Ok(whole)
            }
            (part, written) => {
                // To remove it may take a while, and its room is not free before.
                self.blocking(move || drop(part)).await?;
                Err(written.err().unwrap_or_else(|| Failed::Other("the part is gone".to_owned())))
            }
        }
    }

    /// Writes all blocks. Nothing is left in `part` when its thread died.
    async fn write_all(
        &self,
        part: &mut Option<Box<dyn Part>>,
        blocks: &Arc<dyn Blocks>,
        layout: BlockLayout,
        checksums: &mut BytesMut,
        (loan, progress): (&mut Loan<'_>, impl Fn(u64)),
    ) -> Result<(), Failed> {
        let mut asked = VecDeque::with_capacity(IN_FLIGHT);
        let mut next = 0..layout.blocks();
        for index in 0..layout.blocks() {
            while asked.len() < IN_FLIGHT
                && let Some(index) = next.next()
            {
                asked.push_back(self.ask(blocks, index, false));
            }
            let Some(block) = asked.pop_front() else { break };
            let offset = index * u64::from(layout.block_size());
            let block = self.arrival(block).await?;
            if self.may_evict {
                loan.more(u64::from(layout.block_len(index))).await?;
            }
            let block = match self.write(part, offset, layout.block_len(index), block).await? {
                Ok(checksums) => checksums,
                Err(sector) => {
                    self.found_wrong(index, sector);
                    let again = self.arrival(self.ask(blocks, index, true)).await?;
                    self.write(part, offset, layout.block_len(index), again).await?.map_err(|sector| {
                        self.found_wrong(index, sector);
                        Failed::Corrupt(format!(
                            "sector {sector} of block {index} was not what its checksum says, twice"
                        ))
                    })?
                }
            };
            checksums.extend_from_slice(block.as_bytes());
            let key = BlockKey { file: self.name.id, index };
            self.lender.iter().for_each(|lender| lender.is_doubled(key));
            progress(offset + u64::from(layout.block_len(index)));
        }
        Ok(())
    }

    fn ask(
        &self,
        blocks: &Arc<dyn Blocks>,
        index: u64,
        scrub: bool,
    ) -> AbortOnDropHandle<Result<Checksummed, Failure>> {
        let blocks = Arc::clone(blocks);
        AbortOnDropHandle::new(self.tasks.spawn_on(async move { blocks.read(index, scrub).await }, &self.runtime))
    }

    async fn arrival(&self, block: AbortOnDropHandle<Result<Checksummed, Failure>>) -> Result<Checksummed, Failed> {
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(Failed::Cancelled),
            arrived = block => match arrived {
                Ok(Ok(block)) => Ok(block),
                Ok(Err(failure)) if failure.kind() == FailureKind::VersionChanged => Err(Failed::Changed),
                Ok(Err(failure)) if failure.kind() == FailureKind::Corrupt => {
                    Err(Failed::Corrupt(failure.message().to_owned()))
                }
                Ok(Err(failure)) => Err(Failed::Other(failure.message().to_owned())),
                Err(error) => Err(Failed::Other(format!("the task that reads a block ended: {error}"))),
            },
        }
    }

    /// Writes a block and checks it: its checksums, or the sector that is wrong.
    async fn write(
        &self,
        part: &mut Option<Box<dyn Part>>,
        offset: u64,
        length: u32,
        block: Checksummed,
    ) -> Result<Result<SectorChecksums, u32>, Failed> {
        let bytes: usize = block.spans.iter().map(|span| span.len()).sum();
        if bytes != length as usize || block.checksums.len() != length.div_ceil(SECTOR_SIZE) as usize {
            return Err(Failed::Other(format!("a block of {length} bytes came as {bytes}")));
        }
        let (reads_back, Some(mut writing)) = (self.reads_back, part.take()) else {
            return Err(Failed::Other("the part is gone".to_owned()));
        };
        let checksums = block.checksums.clone();
        let work = move || {
            let wrong = lay(&mut *writing, offset, length, &block, reads_back);
            (writing, wrong)
        };
        let (written, wrong) = self.blocking(work).await?;
        *part = Some(written);
        Ok(wrong.map_err(backend_failure)?.map_or(Ok(checksums), Err))
    }

    fn found_wrong(&self, index: u64, sector: u32) {
        Counts::add(&self.counts.corrupt_sectors, 1);
        tracing::warn!(file = %self.name, block = index, sector, "a sector was not what its checksum says when it was written");
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failed> {
        let done = self.tasks.spawn_blocking_on(work, &self.runtime).await;
        done.map_err(|error| Failed::Other(format!("a task of a fill ended: {error}")))
    }
}

impl From<Failed> for NotTaken {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Cancelled => Self::Dropped,
            Failed::Changed => Self::Changed,
            Failed::NoRoom => Self::NoRoom,
            Failed::Corrupt(why) | Failed::Other(why) => Self::Failed(why),
        }
    }
}

fn backend_failure(error: io::Error) -> Failed {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Failed::NoRoom,
        _ => Failed::Other(error.to_string()),
    }
}

/// Writes a block, and looks at what was written; the first sector that is wrong.
fn lay(
    part: &mut dyn Part,
    offset: u64,
    length: u32,
    block: &Checksummed,
    reads_back: bool,
) -> io::Result<Option<u32>> {
    let mut at = offset;
    for span in &block.spans {
        part.write(at, span)?;
        at += span.len() as u64;
    }
    if reads_back {
        return check(part.view()?, offset, length, &block.checksums);
    }
    let mut first = 0;
    for span in &block.spans {
        // Spans end where sectors do, so each has whole ones.
        let sectors = u32::try_from(span.len()).unwrap_or(u32::MAX).div_ceil(SECTOR_SIZE);
        let Some(checksums) = block.checksums.slice(first..first + sectors) else { return Ok(Some(first)) };
        if let Err(sector) = checksums.check(span) {
            return Ok(Some(first + sector));
        }
        first += sectors;
    }
    Ok(None)
}

/// Compares `length` bytes with their checksums, a piece at a time: the first sector that is wrong.
fn check(view: &mut dyn View, offset: u64, length: u32, checksums: &SectorChecksums) -> io::Result<Option<u32>> {
    let mut at = 0;
    while at < length {
        let piece = PIECE.min(length - at);
        let first = at / SECTOR_SIZE;
        let bytes = view.at(offset + u64::from(at), piece as usize)?;
        let Some(checksums) = checksums.slice(first..first + piece.div_ceil(SECTOR_SIZE)) else {
            return Ok(Some(first));
        };
        if let Err(sector) = checksums.check(bytes) {
            return Ok(Some(first + sector));
        }
        at += piece;
    }
    Ok(None)
}
