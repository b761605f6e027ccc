//! The body of an object on its way out, without a copy.
//!
//! A piece at a time is read, and leaves as views of where the cache has it: the HTTP library hands them to the kernel
//! in one call with what goes before them (`writev`), as replies over TCP do. The next piece is read when the client
//! has taken most of this one; what is read ahead, the handle decides ([`OpenFile`] recognises sequential readers).
//! With TLS the bytes are copied once, into its records.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use forebay_client::OpenFile;
use forebay_memory::{Span, Spans};
use forebay_types::{Failure, FailureKind};
use s3s::dto::StreamingBlob;

use crate::memory::{BodyMemory, Share};
use crate::stats::Stats;

/// The most bytes that are read at once. Pieces end where multiples of this do, so that each lies in one block.
const PIECE: u64 = 1 << 20;

/// Bytes of an object that are being read.
pub(crate) struct ObjectReader {
    file: Arc<OpenFile>,
    range: Range<u64>,
    read: VecDeque<Bytes>,
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
        Self { file, range, read: VecDeque::new(), memory, stats }
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
        let length = piece(start, end);
        let share = Arc::new(self.memory.share(u64::from(length)).await?);
        let spans = match self.file.try_read(start, length) {
            Some(spans) => spans,
            None => self.file.read(start, length).await?,
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
