//! A read into memory of the caller's: what is in memory of this process at once, the rest as it comes.
//!
//! A read of any length is cut at the edges of blocks. A piece that is here is copied where it is found, without waiting. The others
//! are *gaps*; those of all reads of a session are under way together, up to [`IN_FLIGHT`] bytes of them, so that a read of a terabyte
//! holds no more memory than one of a gigabyte. Pieces arrive in any order, and each is copied and let go of before anything else is
//! waited for.

use std::sync::Arc;

use forebay_client::OpenFile;
use forebay_memory::Spans;
use forebay_types::{Failure, FailureKind, Piece};
use futures::stream::{self, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use crate::caller_memory::CallerMemory;

/// Bytes that a session waits for at once: enough for 100 Gb/s over 5 ms.
const IN_FLIGHT: u32 = 64 << 20;
/// What they are counted in.
const UNIT: u32 = 32 << 10;
/// Gaps of one read that are under way at once.
const GAPS_AT_ONCE: usize = 64;
/// Longer pieces are held while they are copied. Shorter ones are copied where they lie, which keeps them from eviction but writes to
/// nothing that readers share.
const LOOKED_AT: u32 = 64 << 10;

/// What one session waits for at once.
pub(crate) fn in_flight() -> Arc<Semaphore> {
    Arc::new(Semaphore::new((IN_FLIGHT / UNIT) as usize))
}

/// A piece of a read that is not in memory of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Where in the caller's memory.
    at: usize,
    /// Where in the file.
    offset: u64,
    /// How many bytes: within one block.
    length: u32,
}

impl Gap {
    /// Where it is in its block.
    pub(crate) fn piece(&self, file: &OpenFile) -> Piece {
        let block_size = u64::from(file.layout().block_size());
        // Below the size of a block, which is a u32.
        Piece { index: self.offset / block_size, offset: (self.offset % block_size) as u32, length: self.length }
    }
}

/// How many bytes a read of `wanted` at `offset` gets: fewer only at the end of the file.
pub(crate) fn expected(file: &OpenFile, offset: u64, wanted: usize) -> usize {
    let left = file.version().size.saturating_sub(offset);
    wanted.min(usize::try_from(left).unwrap_or(usize::MAX))
}

/// Copies what is here. What is not, in order.
pub(crate) fn copy_hits(file: &OpenFile, offset: u64, into: &mut CallerMemory) -> Vec<Gap> {
    let pieces = pieces(u64::from(file.layout().block_size()), offset, expected(file, offset, into.len()));
    pieces.filter(|gap| !copy_hit(file, *gap, into)).collect()
}

/// The pieces of a read of `length` bytes at `offset`, cut where blocks begin.
fn pieces(block_size: u64, offset: u64, length: usize) -> impl Iterator<Item = Gap> {
    let mut at = 0_usize;
    std::iter::from_fn(move || {
        (at < length).then(|| {
            let offset = offset + at as u64;
            let in_block = block_size - offset % block_size;
            // Within a block, whose size is a u32.
            let piece = Gap { at, offset, length: in_block.min((length - at) as u64) as u32 };
            at += piece.length as usize;
            piece
        })
    })
}

fn copy_hit(file: &OpenFile, piece: Gap, into: &mut CallerMemory) -> bool {
    if piece.length <= LOOKED_AT {
        let looked = file.try_look(piece.offset, piece.length, |parts| copy(piece, parts.iter().copied(), into));
        return looked == Some(true);
    }
    let spans = file.try_read(piece.offset, piece.length);
    spans.is_some_and(|spans| copy(piece, spans.iter().map(|span| &**span), into))
}

/// Copies the bytes of a piece, if they are all of it.
fn copy<'a>(piece: Gap, parts: impl Iterator<Item = &'a [u8]> + Clone, into: &mut CallerMemory) -> bool {
    if parts.clone().map(<[u8]>::len).sum::<usize>() != piece.length as usize {
        return false;
    }
    let mut at = piece.at;
    for part in parts {
        into.write(at, part);
        at += part.len();
    }
    true
}

/// Waits for `gaps` and fills them.
///
/// # Errors
/// The first failure. What has come by then is in place; nothing is written after that.
pub(crate) async fn fill(
    file: Arc<OpenFile>,
    gaps: Vec<Gap>,
    mut into: CallerMemory,
    in_flight: Arc<Semaphore>,
) -> Result<CallerMemory, (CallerMemory, Failure)> {
    if let [gap] = gaps[..] {
        let filled = read(file, gap, in_flight).await.and_then(|come| put(&come, &mut into));
        return match filled {
            Ok(()) => Ok(into),
            Err(failure) => Err((into, failure)),
        };
    }
    // Tasks of their own: checksums of one piece are computed while another one is copied here.
    let reads = gaps.into_iter().map(move |gap| {
        let (file, in_flight) = (Arc::clone(&file), Arc::clone(&in_flight));
        async move {
            let task = AbortOnDropHandle::new(tokio::spawn(read(file, gap, in_flight)));
            task.await
                .unwrap_or_else(|error| Err(Failure::new(FailureKind::Internal, format!("a read ended: {error}"))))
        }
    });
    let mut arriving = std::pin::pin!(stream::iter(reads).buffer_unordered(GAPS_AT_ONCE));
    while let Some(come) = arriving.next().await {
        if let Err(failure) = come.and_then(|come| put(&come, &mut into)) {
            return Err((into, failure));
        }
    }
    Ok(into)
}

/// The bytes of a gap, and the right to hold them.
struct Come {
    gap: Gap,
    spans: Spans,
    _permit: Option<OwnedSemaphorePermit>,
}

async fn read(file: Arc<OpenFile>, gap: Gap, in_flight: Arc<Semaphore>) -> Result<Come, Failure> {
    // Never closed; without a permit the read would merely be one too many.
    let permit = in_flight.acquire_many_owned(gap.length.div_ceil(UNIT)).await.ok();
    let spans = file.read(gap.offset, gap.length).await?;
    Ok(Come { gap, spans, _permit: permit })
}

fn put(come: &Come, into: &mut CallerMemory) -> Result<(), Failure> {
    if copy(come.gap, come.spans.iter().map(|span| &**span), into) {
        return Ok(());
    }
    let (offset, length) = (come.gap.offset, come.gap.length);
    let got: usize = come.spans.iter().map(|span| span.len()).sum();
    Err(Failure::new(FailureKind::Corrupt, format!("a read of {length} bytes at {offset} gave {got}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_cut_where_blocks_begin() {
        let cut = |offset, length| {
            pieces(100, offset, length).map(|gap| (gap.at, gap.offset, gap.length)).collect::<Vec<_>>()
        };
        assert_eq!(cut(0, 0), []);
        assert_eq!(cut(30, 70), [(0, 30, 70)]);
        assert_eq!(cut(99, 102), [(0, 99, 1), (1, 100, 100), (101, 200, 1)]);
    }
}
