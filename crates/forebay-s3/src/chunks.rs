//! Bodies in the encoding `aws-chunked`, before the library reads them.
//!
//! The library keeps a chunk whole before it hands on any of it, and a chunk may say that it has 4 GiB; several clients
//! send an object as one. So a chunk without a signature leaves here as many: each is what has just come. One that is
//! signed can only be taken whole, and has to be short, as those of all clients are.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// The longest chunk with a signature of its own, in bytes. Clients send 64 or 128 KiB.
pub(crate) const MAX_SIGNED: u64 = 1 << 20;
/// The longest line before a chunk: its size in hexadecimal, and a signature.
const MAX_HEAD: usize = 256;
/// The most digits of a size.
const MAX_DIGITS: usize = 16;
/// The same where the line goes on as it is: the library reads so many, and passes over what follows.
const MAX_DIGITS_SIGNED: usize = 8;
/// What ends a line, and a chunk.
const END: &[u8] = b"\r\n";

/// What is wrong with a body in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ChunkError {
    /// A chunk with a signature is too long.
    #[error("a signed chunk of the body has more than 1 MiB")]
    TooLong,
    /// It is no chunk.
    #[error("the body is not in the encoding `aws-chunked`")]
    Malformed,
}

/// What comes next.
#[derive(Debug)]
enum Next {
    /// The line before a chunk, of which this has come.
    Head(Vec<u8>),
    /// So many bytes of a chunk.
    Chunk { left: u64, is_signed: bool },
    /// What ends a chunk, of which so many bytes have come.
    End(usize),
    /// What follows the last chunk.
    Rest,
}

/// Chunks on their way through.
#[derive(Debug)]
pub(crate) struct Chunks {
    next: Next,
}

impl Chunks {
    pub(crate) fn new() -> Self {
        Self { next: Next::Head(Vec::new()) }
    }

    /// Hands on the next of what `came`, which has bytes: a chunk of it at most. Short ones take more memory, each in pieces of its own,
    /// than they have bytes, so they are not all taken apart at once.
    pub(crate) fn step(&mut self, came: &mut Bytes, on: &mut VecDeque<Bytes>) -> Result<(), ChunkError> {
        self.next = match std::mem::replace(&mut self.next, Next::Rest) {
            Next::Head(line) => head(line, came, on)?,
            Next::Chunk { left, is_signed } => chunk(left, is_signed, came, on),
            Next::End(have) => end(have, came)?,
            Next::Rest => {
                on.push_back(std::mem::take(came));
                Next::Rest
            }
        };
        Ok(())
    }
}

fn head(mut line: Vec<u8>, came: &mut Bytes, on: &mut VecDeque<Bytes>) -> Result<Next, ChunkError> {
    let line_end = came.iter().position(|byte| *byte == b'\n');
    let length = line_end.map_or(came.len(), |at| at + 1);
    if line.len() + length > MAX_HEAD {
        return Err(ChunkError::Malformed);
    }
    line.extend_from_slice(&came.split_to(length));
    if line_end.is_none() {
        return Ok(Next::Head(line));
    }
    let (left, is_signed) = parse(&line).ok_or(ChunkError::Malformed)?;
    if is_signed && left > MAX_SIGNED {
        return Err(ChunkError::TooLong);
    }
    // Those without a signature get lines of their own.
    if is_signed || left == 0 {
        on.push_back(Bytes::from(line));
    }
    Ok(if left == 0 { Next::Rest } else { Next::Chunk { left, is_signed } })
}

/// How many bytes a chunk has, by the line before it, and whether it is signed.
fn parse(line: &[u8]) -> Option<(u64, bool)> {
    let text = std::str::from_utf8(line.strip_suffix(END)?).ok()?;
    let (size, is_signed) = text.split_once(';').map_or((text, false), |(size, _)| (size, true));
    let most = if is_signed { MAX_DIGITS_SIGNED } else { MAX_DIGITS };
    let is_size = (1..=most).contains(&size.len()) && size.bytes().all(|digit| digit.is_ascii_hexdigit());
    let size = u64::from_str_radix(size, 16).ok().filter(|_| is_size)?;
    Some((size, is_signed))
}

fn chunk(left: u64, is_signed: bool, came: &mut Bytes, on: &mut VecDeque<Bytes>) -> Next {
    let length = usize::try_from(left).map_or(came.len(), |left| left.min(came.len()));
    let bytes = came.split_to(length);
    let left = left - length as u64;
    if !is_signed {
        on.extend([Bytes::from(format!("{length:x}\r\n")), bytes, Bytes::from_static(END)]);
    } else {
        on.push_back(bytes);
        on.extend((left == 0).then(|| Bytes::from_static(END)));
    }
    if left == 0 { Next::End(0) } else { Next::Chunk { left, is_signed } }
}

/// It was handed on with the chunk.
fn end(have: usize, came: &mut Bytes) -> Result<Next, ChunkError> {
    if came.split_to(1)[..] != END[have..=have] {
        return Err(ChunkError::Malformed);
    }
    Ok(if have + 1 == END.len() { Next::Head(Vec::new()) } else { Next::End(have + 1) })
}

/// A body of chunks none of which is long.
pub(crate) struct ShortChunks<B> {
    body: B,
    chunks: Chunks,
    /// What has come of the body, and was not looked at.
    came: Bytes,
    /// What goes on next.
    on: VecDeque<Bytes>,
}

impl<B> ShortChunks<B> {
    /// Those of `body`, which is in the encoding `aws-chunked`.
    pub(crate) fn of(body: B) -> Self {
        Self { body, chunks: Chunks::new(), came: Bytes::new(), on: VecDeque::new() }
    }
}

impl<B: Body<Data = Bytes, Error = std::io::Error> + Unpin> Body for ShortChunks<B> {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = self.get_mut();
        loop {
            if let Some(bytes) = this.on.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if !this.came.is_empty() {
                if let Err(error) = this.chunks.step(&mut this.came, &mut this.on) {
                    this.came = Bytes::new();
                    return Poll::Ready(Some(Err(std::io::Error::other(error))));
                }
                continue;
            }
            match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => this.came = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                over => return Poll::Ready(over),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.on.is_empty() && self.came.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIGNATURE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// What goes on of a body that comes in pieces of `piece` bytes.
    fn passed(body: &[u8], piece: usize) -> Result<Vec<Bytes>, ChunkError> {
        let (mut chunks, mut on) = (Chunks::new(), VecDeque::new());
        for came in body.chunks(piece) {
            let mut came = Bytes::copy_from_slice(came);
            while !came.is_empty() {
                chunks.step(&mut came, &mut on)?;
            }
        }
        Ok(on.into())
    }

    fn wrong(body: &str) -> Option<ChunkError> {
        passed(body.as_bytes(), 7).err()
    }

    /// What a body in chunks says, and how long its longest chunk is.
    fn decoded(mut body: &[u8]) -> (Vec<u8>, usize, Vec<u8>) {
        let (mut all, mut longest) = (Vec::new(), 0);
        loop {
            let at = body.iter().position(|byte| *byte == b'\n').unwrap();
            let (size, _) = parse(&body[..=at]).unwrap();
            let size = size as usize;
            body = &body[at + 1..];
            if size == 0 {
                return (all, longest, body.to_vec());
            }
            all.extend_from_slice(&body[..size]);
            longest = longest.max(size);
            body = body[size..].strip_prefix(END).unwrap();
        }
    }

    #[test]
    fn a_chunk_that_is_long_goes_on_as_it_comes() {
        let size = 3 << 20;
        let (mut body, bytes) = (format!("{size:X}\r\n").into_bytes(), vec![7; size]);
        body.extend_from_slice(&bytes);
        body.extend_from_slice(b"\r\n0\r\nx-amz-checksum-crc32:AA==\r\n\r\n");
        let on = passed(&body, 64 << 10).unwrap().concat();
        let (all, longest, rest) = decoded(&on);
        assert!(all == bytes, "it is another one");
        assert_eq!(rest, b"x-amz-checksum-crc32:AA==\r\n\r\n");
        assert!(longest <= 64 << 10, "{longest}");
        // What says that it is long costs nothing.
        assert_eq!(passed(b"ffffffffffffffff\r\nabc", 64).unwrap().concat(), b"3\r\nabc\r\n");
    }

    #[test]
    fn a_chunk_that_is_signed_stays_as_it_is_and_is_short() {
        let body = format!("5;chunk-signature={SIGNATURE}\r\nhello\r\n0;chunk-signature={SIGNATURE}\r\n\r\n");
        for piece in [1, 2, 50, 1000] {
            assert_eq!(passed(body.as_bytes(), piece).unwrap().concat(), body.as_bytes(), "{piece}");
        }
        assert_eq!(wrong(&format!("100000;chunk-signature={SIGNATURE}\r\n")), None);
        assert_eq!(wrong(&format!("100001;chunk-signature={SIGNATURE}\r\n")), Some(ChunkError::TooLong));
    }

    #[test]
    fn the_size_of_a_signed_chunk_is_what_the_library_reads_of_it() {
        assert_eq!(wrong(&format!("00000005;chunk-signature={SIGNATURE}\r\nhello")), None);
        // The library would take this for the last chunk, and what follows for trailers.
        assert_eq!(wrong(&format!("000000005;chunk-signature={SIGNATURE}\r\nhello")), Some(ChunkError::Malformed));
        assert_eq!(wrong("000000005\r\nhello"), None);
    }

    #[test]
    fn of_many_short_chunks_no_more_is_taken_apart_than_goes_on() {
        let (mut chunks, mut on) = (Chunks::new(), VecDeque::new());
        let mut came = Bytes::from("1\r\na\r\n".repeat(1000));
        let mut all = 0;
        while !came.is_empty() {
            chunks.step(&mut came, &mut on).unwrap();
            assert!(on.len() <= 3, "{}", on.len());
            all += on.drain(..).map(|bytes| bytes.len()).sum::<usize>();
        }
        assert_eq!(all, 6000);
    }

    #[test]
    fn what_is_no_chunk_is_refused() {
        let long = "0".repeat(MAX_HEAD + 1);
        for body in
            ["\r\n", "x\r\n", "5\nhello", "+5\r\n", "00000000000000005\r\n", "1\r\nab\r\n", "1\r\na\n", ";s\r\n", &long]
        {
            assert_eq!(wrong(body), Some(ChunkError::Malformed), "{body:?}");
        }
        assert_eq!(wrong(""), None);
    }

    proptest! {
        #[test]
        fn all_of_a_body_goes_on_however_it_comes(
            chunks in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..40), any::<bool>()), 0..6),
            piece in 1usize..60,
        ) {
            let (mut body, mut whole) = (Vec::new(), Vec::new());
            for (bytes, is_signed) in &chunks {
                let signature = if *is_signed { format!(";chunk-signature={SIGNATURE}") } else { String::new() };
                body.extend_from_slice(format!("{:x}{signature}\r\n", bytes.len()).as_bytes());
                body.extend_from_slice(bytes);
                body.extend_from_slice(END);
                whole.extend_from_slice(bytes);
            }
            body.extend_from_slice(b"0\r\nrest");
            let (all, _, rest) = decoded(&passed(&body, piece).unwrap().concat());
            prop_assert_eq!(all, whole);
            prop_assert_eq!(rest, b"rest");
        }

        #[test]
        fn no_body_makes_it_panic(body in "[0-9a-f;\r\n]{0,60}", piece in 1usize..20) {
            let _ = passed(body.as_bytes(), piece);
        }
    }
}
