//! Bodies on their way in.
//!
//! A body is collected in memory, a part at a time, since an origin takes a part whole; the share of memory is had
//! before anything is read. It must have as many bytes as it said, and what checksums it came with are compared when
//! all of it has come: nothing is made of a body before that.

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, TrailingHeaders};

use crate::asked::Unread;
use crate::checksums::{Checking, Declared};
use crate::stats::Stats;

/// A body that is being received.
pub(crate) struct Incoming<'a> {
    blob: Option<StreamingBlob>,
    /// Bytes that are still to come.
    left: u64,
    /// What has come, and belongs to the next part.
    spare: Bytes,
    checking: Checking,
    trailers: Option<TrailingHeaders>,
    stats: &'a Stats,
}

impl<'a> Incoming<'a> {
    /// A body of `length` bytes.
    pub(crate) fn new(
        blob: Option<StreamingBlob>,
        length: u64,
        declared: Declared,
        trailers: Option<TrailingHeaders>,
        stats: &'a Stats,
    ) -> Self {
        Self { blob, left: length, spare: Bytes::new(), checking: Checking::new(declared), trailers, stats }
    }

    /// The next `length` bytes, or those that are left.
    ///
    /// # Errors
    /// When the client breaks off, is too slow, or sends another number of bytes than it said.
    pub(crate) async fn part(&mut self, length: u64) -> Result<Bytes, S3Error> {
        let length = length.min(self.left);
        // Parts are at most 64 MiB.
        let room = usize::try_from(length).unwrap_or(usize::MAX);
        if self.spare.len() >= room {
            self.left -= length;
            return Ok(self.spare.split_to(room));
        }
        let mut part = BytesMut::with_capacity(room);
        part.extend_from_slice(&std::mem::take(&mut self.spare));
        while part.len() < room {
            let mut bytes = self.next().await?.ok_or_else(incomplete)?;
            self.spare = bytes.split_off(bytes.len().min(room - part.len()));
            part.extend_from_slice(&bytes);
        }
        self.left -= length;
        Ok(part.freeze())
    }

    /// Checks it, when all of it has come.
    ///
    /// # Errors
    /// When there is more, or it is not what the client meant.
    pub(crate) async fn finish(mut self) -> Result<(), S3Error> {
        // To its end: what is at fault with a signature of the whole, and trailers, come there.
        let more = !self.spare.is_empty() || self.next().await?.is_some();
        if more || self.left > 0 {
            return Err(incomplete());
        }
        self.checking.finish(self.trailers.as_ref())
    }

    async fn next(&mut self) -> Result<Option<Bytes>, S3Error> {
        let Some(blob) = &mut self.blob else { return Ok(None) };
        loop {
            match blob.next().await {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    self.stats.received(bytes.len());
                    self.checking.update(&bytes);
                    return Ok(Some(bytes));
                }
                Some(Err(error)) => return Err(broken(&*error)),
                None => return Ok(None),
            }
        }
    }
}

fn incomplete() -> S3Error {
    S3Error::with_message(S3ErrorCode::IncompleteBody, "the body does not have the number of bytes that it should")
}

fn too_slow() -> S3Error {
    S3Error::with_message(S3ErrorCode::RequestTimeout, "the body did not come in time")
}

fn not_as_signed() -> S3Error {
    let message = "the bytes that came are not those that were signed";
    S3Error::with_message(S3ErrorCode::SignatureDoesNotMatch, message)
}

/// What a client is told whose list was not read.
pub(crate) fn of_list(unread: Unread) -> S3Error {
    match unread {
        Unread::Late => too_slow(),
        Unread::BrokenOff => incomplete(),
        Unread::NotAsSigned => not_as_signed(),
    }
}

/// Why a body ends early: the client was too slow, left, or what it sent is not what it signed.
fn broken(error: &(dyn std::error::Error + Send + Sync)) -> S3Error {
    let text = error.to_string();
    if text.contains("did not come in time") {
        return too_slow();
    }
    if text.contains("Sha256Mismatch") || text.contains("SignatureMismatch") {
        return not_as_signed();
    }
    if text.contains("signed chunk of the body") {
        let message = "a chunk with a signature has at most 1 MiB; send shorter ones, or sign the whole";
        return S3Error::with_message(S3ErrorCode::InvalidRequest, message);
    }
    tracing::debug!(error = text, "a body over S3 breaks off");
    incomplete()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn blob(chunks: Vec<Vec<u8>>) -> Option<StreamingBlob> {
        let chunks = chunks.into_iter().map(|chunk| Ok::<_, std::io::Error>(Bytes::from(chunk)));
        Some(StreamingBlob::wrap(futures::stream::iter(chunks)))
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        futures::executor::block_on(future)
    }

    /// The parts of a body that is said to have `length` bytes, or the code of its error.
    fn received(chunks: Vec<Vec<u8>>, length: u64, part: u64) -> Result<Vec<Bytes>, String> {
        let stats = Stats::default();
        let mut incoming = Incoming::new(blob(chunks), length, Declared::default(), None, &stats);
        let code = |error: S3Error| error.code().as_str().to_owned();
        let mut parts = Vec::new();
        while incoming.left > 0 {
            parts.push(now(incoming.part(part)).map_err(code)?);
        }
        now(incoming.finish()).map_err(code)?;
        Ok(parts)
    }

    #[test]
    fn a_body_has_the_bytes_that_it_says_and_no_others() {
        assert_eq!(received(vec![b"abc".to_vec()], 3, 8), Ok(vec![Bytes::from_static(b"abc")]));
        assert_eq!(received(vec![], 0, 8), Ok(vec![]));
        for (chunks, length) in [(vec![b"abc".to_vec()], 4), (vec![b"abc".to_vec()], 2), (vec![b"a".to_vec()], 0)] {
            assert_eq!(received(chunks, length, 8), Err("IncompleteBody".to_owned()), "{length}");
        }
        let stats = Stats::default();
        let none = Incoming::new(None, 1, Declared::default(), None, &stats);
        assert!(now(none.finish()).is_err());
    }

    #[test]
    fn a_client_that_is_too_slow_is_told_so() {
        let slow = std::io::Error::other("the body of the request did not come in time");
        assert_eq!(broken(&slow).code().as_str(), "RequestTimeout");
        assert_eq!(broken(&std::io::Error::other("reset")).code().as_str(), "IncompleteBody");
        let long = std::io::Error::other(crate::chunks::ChunkError::TooLong);
        assert_eq!(broken(&long).code().as_str(), "InvalidRequest");
    }

    proptest! {
        #[test]
        fn parts_are_the_body_however_it_comes(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
            part in 1u64..12,
        ) {
            let whole = chunks.concat();
            let parts = received(chunks, whole.len() as u64, part).unwrap();
            prop_assert_eq!(parts.concat(), whole);
            let (last, full) = parts.split_last().map_or((None, &[][..]), |(last, full)| (Some(last), full));
            prop_assert!(full.iter().all(|bytes| bytes.len() as u64 == part));
            prop_assert!(last.is_none_or(|last| !last.is_empty() && last.len() as u64 <= part));
        }
    }
}
