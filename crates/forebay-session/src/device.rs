//! Reads into memory of a GPU.
//!
//! A read is cut into pieces, each within a block and no longer than a pinned buffer. A [`Pipeline`] says which of them are under way: while
//! some are copied to the device, others are read. What lies in the memory of a worker on this host is copied from there, all else from a
//! pinned buffer (`forebay-cuda`). Either is held until its copy has ended, whatever becomes of the read.
//!
//! When the future has ended, or was dropped, nothing writes to the device's memory: [`Outstanding`] waits for copies that are under way,
//! which is some milliseconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::OpenFile;
use forebay_cuda::{
    Begun, Come, Copier, Device, DeviceAddress, Ended, Outstanding, Pipeline, STAGING_SIZE, Source, Stream, Ticket,
};
use forebay_memory::Spans;
use forebay_types::{Failure, FailureKind};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio_util::task::AbortOnDropHandle;

use crate::batch;
use crate::devices::{InUse, device_of};
use crate::error::Error;
use crate::session::{Place, Session, of_path, of_version};

/// Pieces that are under way to a device at once: 64 MiB of a session's reads, as into memory of the host.
const SLOTS: usize = 16;
/// How often it is looked whether a copy takes too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A read into memory of a GPU.
pub struct DeviceRead {
    place: Place,
    offset: u64,
    length: usize,
    to: DeviceAddress,
}

/// A stream of the caller's, by CUDA's handle.
#[derive(Clone, Copy, Debug)]
pub struct DeviceStream(Stream);

impl DeviceRead {
    /// `length` bytes at `offset` of a file, to the device's memory at `address`.
    ///
    /// # Safety
    /// Until the future that has it has ended or was dropped, that memory is allocated, and nobody relies on what is there.
    #[must_use]
    pub unsafe fn new(place: Place, offset: u64, length: usize, address: u64) -> Self {
        Self { place, offset, length, to: DeviceAddress(address) }
    }
}

impl DeviceStream {
    /// A stream of the device's primary context, such as torch's; 0 is the default stream.
    ///
    /// # Safety
    /// It is one, for as long as the call takes that it is given to.
    #[must_use]
    pub unsafe fn new(stream: usize) -> Self {
        Self(Stream(stream))
    }
}

/// A piece of a read.
#[derive(Clone)]
struct Piece {
    file: Arc<OpenFile>,
    /// Which read it is of.
    read: usize,
    offset: u64,
    /// Within a block, and no more than a pinned buffer has.
    length: u32,
    to: DeviceAddress,
}

/// What has come of a slot's piece.
enum Happened {
    Read(Result<Source, Error>),
    Copied(Result<(), Error>),
}

impl Session {
    /// Carries out all of `reads`, into memory of `device`, or of that which the first address is of; how many bytes each got: fewer than
    /// it wants only at the end of the file. Copies come after what `stream` has when this is called. When it has ended, the bytes are
    /// there for every stream.
    ///
    /// If a file that is named by its path was replaced since the path was looked up, all is read once more.
    ///
    /// # Errors
    /// As [`Session::read`]; ENODEV without a driver or a device, EFAULT for addresses that are not the device's, and what CUDA refuses, by
    /// the driver's name of it.
    pub async fn read_into_device(
        self: Arc<Self>,
        reads: Vec<DeviceRead>,
        device: Option<u32>,
        stream: DeviceStream,
    ) -> Result<Vec<usize>, Error> {
        let Some(first) = reads.iter().find(|read| read.length > 0) else { return Ok(vec![0; reads.len()]) };
        let device = match device {
            Some(number) => Device(number),
            None => device_of(first.to).await?,
        };
        let in_use = self.devices.get(device).await?;
        for read in &reads {
            in_use.copier.check(read.to, read.length)?;
        }
        let files = self.files_of(&reads).await?;
        match transfer(&in_use, &reads, &files, stream).await {
            Err((error, read)) if error.errno == libc::ESTALE => {
                let Place::Path(path) = &reads[read].place else { return Err(error) };
                self.renewed(path, &files[read]).await?;
                let files = self.files_of(&reads).await?;
                transfer(&in_use, &reads, &files, stream).await
            }
            outcome => outcome,
        }
        .map_err(|(error, read)| match &reads[read].place {
            // As the caller wrote it.
            Place::Path(path) => error.about(path),
            Place::File(_) => error,
        })
    }

    async fn files_of(&self, reads: &[DeviceRead]) -> Result<Vec<Arc<OpenFile>>, Error> {
        let mut files = Vec::with_capacity(reads.len());
        for read in reads {
            files.push(match &read.place {
                Place::File(file) => Arc::clone(file),
                Place::Path(path) => self.known(path).await?,
            });
        }
        Ok(files)
    }
}

/// Reads and copies all of it. An error comes with the number of its read.
async fn transfer(
    in_use: &Arc<InUse>,
    reads: &[DeviceRead],
    files: &[Arc<OpenFile>],
    stream: DeviceStream,
) -> Result<Vec<usize>, (Error, usize)> {
    let _turn = in_use.turn().await;
    // SAFETY: who made the stream's handle said that it is one of the device.
    unsafe { in_use.copier.follow(stream.0) }.await.map_err(|error| (error.into(), 0))?;
    let counts: Vec<usize> =
        reads.iter().zip(files).map(|(read, file)| batch::expected(file, read.offset, read.length)).collect();
    let pieces: Vec<Piece> = reads
        .iter()
        .zip(files)
        .enumerate()
        .flat_map(|(number, (read, file))| pieces_of(number, read, file, counts[number]))
        .collect();
    // Dropped after what is under way, and before the turn: it waits for copies that nobody waits for any more.
    let outstanding = Outstanding::default();
    let mut under_way: FuturesUnordered<BoxFuture<'static, (usize, usize, Happened)>> = FuturesUnordered::new();
    let (mut pipeline, mut failure) = (Pipeline::new(SLOTS, pieces.len()), None);
    while !pipeline.is_settled() {
        while let Some(Begun { slot, piece }) = pipeline.begin() {
            under_way.push(Box::pin(read(Arc::clone(in_use), slot, piece, pieces[piece].clone())));
        }
        let ended = tokio::select! {
            ended = under_way.next() => ended,
            () = tokio::time::sleep(LOOK_EVERY) => {
                for piece in pipeline.overdue(Instant::now()) {
                    let device = in_use.copier.device();
                    tracing::warn!(%device, offset = pieces[piece].offset, "a copy to the device takes long");
                }
                continue;
            }
        };
        let Some((slot, piece, happened)) = ended else { break };
        let failed = match happened {
            Happened::Read(Ok(source)) => {
                if pipeline.come(slot, Instant::now()) == Come::Copy(piece) {
                    let (in_use, of, ticket) = (Arc::clone(in_use), pieces[piece].clone(), outstanding.ticket());
                    let again = outstanding.ticket();
                    under_way.push(Box::pin(copy(in_use, slot, piece, of, source, [ticket, again])));
                }
                continue;
            }
            Happened::Copied(Ok(())) => {
                pipeline.copied(slot);
                continue;
            }
            Happened::Read(Err(error)) | Happened::Copied(Err(error)) => error,
        };
        pipeline.failed(slot);
        failure.get_or_insert((failed, pieces[piece].read));
    }
    match failure {
        Some(failure) => Err(failure),
        None if pipeline.is_complete() => Ok(counts),
        None => Err((Error::lost("a transfer to a GPU"), 0)),
    }
}

/// The pieces of a read: cut where blocks begin, and where a pinned buffer ends.
fn pieces_of(
    number: usize,
    read: &DeviceRead,
    file: &Arc<OpenFile>,
    length: usize,
) -> impl Iterator<Item = Piece> + use<> {
    let (file, offset, to) = (Arc::clone(file), read.offset, read.to.0);
    let block_size = u64::from(file.layout().block_size());
    cut(block_size, offset, length).map(move |(at, length)| Piece {
        file: Arc::clone(&file),
        read: number,
        offset: offset + at,
        length,
        to: DeviceAddress(to + at),
    })
}

/// Where the pieces of `length` bytes at `offset` of a file begin, from there on, and how long they are.
fn cut(block_size: u64, offset: u64, length: usize) -> impl Iterator<Item = (u64, u32)> {
    let (mut at, end) = (0, length as u64);
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let in_block = block_size - (offset + at) % block_size;
            let piece = in_block.min(end - at).min(STAGING_SIZE as u64);
            let start = at;
            at += piece;
            // No more than a pinned buffer.
            (start, piece as u32)
        })
    })
}

async fn read(in_use: Arc<InUse>, slot: usize, number: usize, piece: Piece) -> (usize, usize, Happened) {
    // A task of its own: checksums of one piece are computed, and bytes copied, while another one does the same.
    let task = AbortOnDropHandle::new(tokio::spawn(async move { bring(&in_use.copier, &piece).await }));
    let come = task.await.unwrap_or_else(|_| Err(Error::lost("a read into memory of a GPU")));
    (slot, number, Happened::Read(come))
}

/// The bytes of a piece, where a device can copy them from.
async fn bring(copier: &Copier, piece: &Piece) -> Result<Source, Error> {
    let Piece { file, offset, length, .. } = piece;
    let spans = match file.try_read(*offset, *length) {
        Some(spans) => spans,
        None => file.read(*offset, *length).await.map_err(|failure| of_version(failure, file))?,
    };
    let got: usize = spans.iter().map(|span| span.len()).sum();
    if got != *length as usize {
        let text = format!("a read of {length} bytes at {offset} gave {got}");
        return Err(of_path(Failure::new(FailureKind::Corrupt, text), &file.version().path));
    }
    if copier.takes_windows() && spans.iter().all(|span| span.registrable().is_some()) {
        return Ok(Source::Shared(spans));
    }
    staged(copier, &spans).await
}

/// The same bytes in a pinned buffer.
async fn staged(copier: &Copier, spans: &Spans) -> Result<Source, Error> {
    let mut buffer = copier.staging().await?;
    if buffer.fill(spans.iter().map(|span| &**span)) {
        return Ok(Source::Staged(buffer));
    }
    Err(Error::from(Failure::new(FailureKind::Internal, "a piece of a read is longer than a pinned buffer")))
}

async fn copy(
    in_use: Arc<InUse>,
    slot: usize,
    number: usize,
    piece: Piece,
    source: Source,
    tickets: [Ticket; 2],
) -> (usize, usize, Happened) {
    let copied = copied(in_use, piece.to, source, tickets).await;
    (slot, number, Happened::Copied(copied.map_err(|error| error.about(&piece.file.version().path))))
}

/// Copies what has come: from a pinned buffer in the end, if it lies where the driver cannot copy from.
async fn copied(in_use: Arc<InUse>, to: DeviceAddress, source: Source, tickets: [Ticket; 2]) -> Result<(), Error> {
    let (copier, [first, second]) = (&in_use.copier, tickets);
    // SAFETY: who made the read gave the memory away until no ticket is left, which is before its future ends.
    let spans = match unsafe { copier.copy(source, to, first) }.await? {
        Ended::Copied => return Ok(()),
        Ended::NotRegistered(spans) => spans,
    };
    // A task of its own, as `read`: other pieces are copied meanwhile.
    let of_task = Arc::clone(&in_use);
    let staging = AbortOnDropHandle::new(tokio::spawn(async move { staged(&of_task.copier, &spans).await }));
    let source = staging.await.unwrap_or_else(|_| Err(Error::lost("a read into memory of a GPU")))?;
    // SAFETY: as above.
    match unsafe { copier.copy(source, to, second) }.await? {
        Ended::Copied => Ok(()),
        Ended::NotRegistered(_) => Err(Error::lost("a copy to a GPU")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_cut_where_blocks_begin_and_where_a_buffer_ends() {
        let cut = |block_size, offset, length| cut(block_size, offset, length).collect::<Vec<_>>();
        assert_eq!(cut(100, 0, 0), []);
        assert_eq!(cut(100, 30, 70), [(0, 70)]);
        assert_eq!(cut(100, 99, 102), [(0, 1), (1, 100), (101, 1)]);
        let staging = STAGING_SIZE as u32;
        assert_eq!(cut(u64::from(staging) * 4, 0, STAGING_SIZE + 7), [(0, staging), (u64::from(staging), 7)]);
    }
}
