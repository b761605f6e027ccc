//! The body of an object on its way out, without a copy.
//!
//! A piece at a time is read, and leaves as views of where the cache has it: the HTTP library hands them to the kernel
//! in one call with what goes before them (`writev`), as replies over TCP do. The next piece is read when the client
//! has taken most of this one; what is read ahead, the handle decides ([`OpenFile`] recognises sequential readers). With
//! TLS the bytes are copied once, into its records.
//!
//! A request says how much it wants, so nobody has to recognise that: where the first bytes are not in this process, few
//! of them are read first, to be sent soon, and what follows is fetched meanwhile. That is not held for this reader, and
//! takes none of the memory of bodies.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use forebay_client::{FetchTo, OpenFile};
use forebay_memory::{Span, Spans};
use forebay_types::{Failure, FailureKind};
use s3s::dto::StreamingBlob;
use tokio::task::JoinSet;

use crate::memory::{BodyMemory, Share};
use crate::stats::Stats;

/// The most bytes that are read at once. Pieces end where multiples of this do, so that each lies in one block.
const PIECE: u64 = 1 << 20;
/// How much of a longer answer is read first where it is not here. Less would be read past the client's buffers.
const FIRST: u64 = 256 << 10;
/// How much of what follows it is fetched meanwhile: two blocks, until the handle has seen that it is read in order.
const AHEAD: u64 = 8 << 20;

/// Bytes of an object that are being read.
pub(crate) struct ObjectReader {
    file: Arc<OpenFile>,
    range: Range<u64>,
    read: VecDeque<Bytes>,
    has_begun: bool,
    /// What follows, on its way. It ends with this, and goes on while the client takes nothing: what is under way has places that
    /// others want, and blocks that others may wait for.
    ahead: JoinSet<()>,
    memory: BodyMemory,
    stats: Arc<Stats>,
}

/// A view of cached bytes, with the share of memory that its piece has.
struct Held {
    span: Span,
    _share: Arc<Share>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.span
    }
}

impl ObjectReader {
    /// The bytes `range` of a file, which lie within it.
    pub(crate) fn new(file: Arc<OpenFile>, range: Range<u64>, memory: BodyMemory, stats: Arc<Stats>) -> Self {
        Self { file, range, read: VecDeque::new(), has_begun: false, ahead: JoinSet::new(), memory, stats }
    }

    /// Reads the first piece: while nothing has been sent, what is wrong can still be told.
    ///
    /// # Errors
    /// As [`OpenFile::read`].
    pub(crate) async fn begin(&mut self) -> Result<(), Failure> {
        if self.range.is_empty() { Ok(()) } else { self.read_piece().await }
    }

    /// All of it, in memory of its own, for which the caller has a share.
    ///
    /// # Errors
    /// As [`OpenFile::read`].
    pub(crate) async fn collect(mut self) -> Result<Bytes, Failure> {
        let length = self.range.end.saturating_sub(self.range.start);
        let mut bytes = BytesMut::with_capacity(usize::try_from(length).unwrap_or_default());
        while !self.range.is_empty() {
            self.read_piece().await?;
            self.read.drain(..).for_each(|piece| bytes.extend_from_slice(&piece));
        }
        Ok(bytes.freeze())
    }

    /// What is sent.
    pub(crate) fn into_blob(self) -> StreamingBlob {
        let pieces = futures::stream::try_unfold(self, |mut reader| async move {
            let next = reader.next().await.map_err(std::io::Error::other)?;
            Ok::<_, std::io::Error>(next.map(|bytes| (bytes, reader)))
        });
        // The library wants bodies that several threads may look at, and nobody does.
        let body = axum::body::Body::from_stream(pieces);
        StreamingBlob::from(s3s::Body::http_body_unsync(body))
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        if self.read.is_empty() && !self.range.is_empty() {
            let read = self.read_piece().await;
            read.inspect_err(|failure| {
                tracing::warn!(%failure, file = %self.file.id(), "an answer over S3 breaks off");
            })?;
        }
        let next = self.read.pop_front();
        self.stats.sent(next.as_ref().map_or(0, Bytes::len));
        Ok(next)
    }

    async fn read_piece(&mut self) -> Result<(), Failure> {
        let Range { start, end } = self.range;
        let mut length = piece(start, end);
        let share = Arc::new(self.memory.share(u64::from(length)).await?);
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let spans = match self.file.try_read(start, length) {
            Some(spans) => spans,
            None => {
                let mut follows = None;
                if is_first && u64::from(length) < end - start {
                    length = first(length);
                    follows = Some(start + u64::from(length)..end);
                }
                self.read_absent(start, length, follows).await?
            }
        };
        let read: usize = spans.iter().map(|span| span.len()).sum();
        if read != length as usize {
            let message = format!("{read} bytes of {length} were read at {start} of {}", self.file.id());
            return Err(Failure::new(FailureKind::Corrupt, message));
        }
        self.range.start += u64::from(length);
        self.read = held(spans, &share);
        Ok(())
    }

    /// Reads what is not here, and begins to bring nearer what `follows` it, unless nothing is to be fetched before it is read.
    async fn read_absent(&mut self, start: u64, length: u32, follows: Option<Range<u64>>) -> Result<Spans, Failure> {
        let mut read = std::pin::pin!(self.file.read(start, length));
        // It is asked for first: it is what the client waits for.
        if let Poll::Ready(read) = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await {
            return read;
        }
        if let Some(Range { start, end }) = follows.filter(|_| self.file.prefetches()) {
            let (file, length) = (Arc::clone(&self.file), AHEAD.min(end - start));
            // Whoever reads it will meet the same failure.
            self.ahead.spawn(async move { drop(file.fetch(start, length, FetchTo::Here).await) });
        }
        read.await
    }
}

/// How long the first piece is where it has to be waited for.
fn first(length: u32) -> u32 {
    // Below the length of a piece.
    u64::from(length).min(FIRST) as u32
}

fn held(spans: Spans, share: &Arc<Share>) -> VecDeque<Bytes> {
    let held = |span| Bytes::from_owner(Held { span, _share: Arc::clone(share) });
    spans.into_iter().filter(|span| !span.is_empty()).map(held).collect()
}

/// How long the piece is that begins at `start`, of bytes up to `end`.
fn piece(start: u64, end: u64) -> u32 {
    // Below the length of a piece.
    (end - start).min(PIECE - start % PIECE) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_waited_for_first_is_short_and_whole_sectors() {
        assert_eq!((first(10), first(PIECE as u32)), (10, FIRST as u32));
        assert_eq!(u64::from(piece(FIRST, 2 * PIECE)), PIECE - FIRST, "the next one ends where pieces do");
    }

    proptest! {
        #[test]
        fn pieces_are_the_whole_and_none_crosses_a_block(start in 0u64..(8 << 20), length in 1u64..(8 << 20)) {
            let (mut at, end) = (start, start + length);
            while at < end {
                let length = u64::from(piece(at, end));
                prop_assert!(length > 0 && length <= PIECE);
                prop_assert_eq!(at / PIECE, (at + length - 1) / PIECE);
                at += length;
            }
            prop_assert_eq!(at, end);
        }
    }
}
