//! Replies on their way out of one connection, in the order in which they became ready.
//!
//! Headers, bodies and payload of many replies leave by one system call, gathered from where they lie. Bytes of a file
//! are sent by the kernel; where it cannot (the file system does not let it), they are read and sent in pieces.
//!
//! A large payload that the kernel is to send without a copy ([`crate::in_flight`]) leaves by a system call of its own, after
//! what precedes it. On a connection that is encrypted, bytes of files are read, too.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_memory::Spans;
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, ReplyHeader};
use forebay_transport::{Provenance, Response, ResponsePayload};
use forebay_types::Failure;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::channel::Channel;
use crate::in_flight::ZeroCopySends;
use crate::socket;

/// Slices in one system call: header, body and payload of about 20 replies.
const MAX_SLICES: usize = 64;
/// Bytes after which the connection looks at its other work again.
const TURN: usize = 4 << 20;
/// Bytes of a file read at once where the kernel cannot send it itself.
const PIECE: usize = 256 << 10;

/// A reply to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    head: [u8; HEADER_LEN],
    body: Bytes,
    payload: ResponsePayload,
    /// Bytes that the socket has taken, of header, body and payload together.
    sent: usize,
    length: usize,
    /// Of a file that the kernel does not send itself: the piece read last, and where in the payload it starts.
    piece: Option<(usize, Bytes)>,
}

impl Outgoing {
    /// The service's answer to request `id`.
    pub(crate) fn answer(id: u64, answer: Result<Response, Failure>) -> Self {
        let (failure, provenance, body, payload) = match answer {
            Ok(Response { provenance, body, payload }) => (None, provenance, body, payload),
            Err(failure) => {
                let message = Bytes::copy_from_slice(failure.message().as_bytes());
                (Some(failure.kind()), Provenance::default(), message, ResponsePayload::None)
            }
        };
        // Both are far below 4 GiB: `Response::fitting` was asked.
        let (body_len, payload_len) = (body.len() as u32, payload.len() as u32);
        let head = ReplyHeader { id, failure, body_len, payload_len, provenance }.encode();
        let length = HEADER_LEN + body.len() + payload.len();
        Self { head, body, payload, sent: 0, length, piece: None }
    }

    /// Says that we are alive.
    pub(crate) fn alive() -> Self {
        Self::answer(CONNECTION_ID, Ok(Response::of_body(Bytes::new())))
    }

    /// Says why we close the connection.
    pub(crate) fn goodbye(why: Failure) -> Self {
        Self::answer(CONNECTION_ID, Err(why))
    }

    /// Bytes before the payload.
    fn front(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    /// The payload, if what is not sent of it is to be sent without a copy.
    fn zero_copy_payload(&self, zero_copy: &ZeroCopySends) -> Option<&Spans> {
        match &self.payload {
            ResponsePayload::Spans(spans) if zero_copy.takes(self.length - self.sent.max(self.front())) => Some(spans),
            _ => None,
        }
    }

    /// Adds what lies in memory and is not sent yet, the payload if `whole`, as far as there is room. False when more of the reply
    /// follows.
    fn gather<'a>(&'a self, slices: &mut SmallVec<[IoSlice<'a>; MAX_SLICES]>, whole: bool) -> bool {
        let (mut skip, mut gathered) = (self.sent, 0);
        let mut add = |bytes: &'a [u8]| {
            let skipped = skip.min(bytes.len());
            skip -= skipped;
            if skipped < bytes.len() && slices.len() < MAX_SLICES {
                slices.push(IoSlice::new(&bytes[skipped..]));
                gathered += bytes.len() - skipped;
            }
        };
        add(&self.head);
        add(&self.body);
        match &self.payload {
            ResponsePayload::Spans(spans) if whole => spans.iter().for_each(|span| add(span)),
            ResponsePayload::None | ResponsePayload::Spans(_) => {}
            ResponsePayload::File(_) => {
                if let Some((start, piece)) = &self.piece
                    && let Some(at) = self.sent.checked_sub(self.front() + start)
                    && let Some(rest) = piece.get(at..)
                {
                    // What precedes it has been sent, and skipped above.
                    slices.push(IoSlice::new(rest));
                    gathered += rest.len();
                }
            }
        }
        self.sent + gathered == self.length
    }

    /// The part of the file that comes next, when all before it has been sent: file, offset in it, length.
    fn file(&self) -> Option<(Arc<File>, u64, usize)> {
        let ResponsePayload::File(slice) = &self.payload else { return None };
        let done = self.sent.checked_sub(self.front())?;
        if self.piece.as_ref().is_some_and(|(start, piece)| done < start + piece.len()) {
            return None;
        }
        Some((Arc::clone(&slice.file), slice.offset + done as u64, self.length - self.sent))
    }
}

/// What one system call sends.
struct Gathered<'a> {
    slices: SmallVec<[IoSlice<'a>; MAX_SLICES]>,
    /// Whether the rest of a reply follows at once.
    more: bool,
    /// The payload that all of it is of, if that is to be sent without a copy.
    payload: Option<&'a Spans>,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Outbox {
    channel: Arc<Channel>,
    queue: VecDeque<Outgoing>,
    zero_copy: ZeroCopySends,
}

impl Outbox {
    pub(crate) fn new(channel: Arc<Channel>, zero_copy: ZeroCopySends) -> Self {
        Self { channel, queue: VecDeque::new(), zero_copy }
    }

    pub(crate) fn push(&mut self, reply: Outgoing) {
        self.queue.push_back(reply);
    }

    /// Whether the socket has all there was.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.channel.is_flushed()
    }

    /// Replies that are not sent, and sends with whose payload the kernel is not done: each may keep a block from being evicted.
    pub(crate) fn held(&self) -> usize {
        self.queue.len() + self.zero_copy.outstanding()
    }

    /// Those that the kernel is not done with.
    pub(crate) fn unsettled(&self) -> usize {
        self.zero_copy.outstanding()
    }

    /// Whether there is anything to wait for with [`Outbox::ready`].
    pub(crate) fn awaits(&self) -> bool {
        self.held() > 0 || !self.channel.is_flushed()
    }

    /// Waits until [`Outbox::send`] may send something, or [`Outbox::look`] find something.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        if self.zero_copy.is_watched() && !self.is_empty() && !self.zero_copy.is_full() {
            return Ok(());
        }
        self.zero_copy.ready(self.channel.stream()).await
    }

    /// Lets go of payloads that the kernel is done with. Costs nothing where there are none.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        self.zero_copy.look()
    }

    /// Drops what was not sent, and waits until the kernel is done with all payloads; see [`ZeroCopySends::settle`].
    pub(crate) async fn settle(&mut self, patience: Duration, stop: &CancellationToken) {
        self.queue = VecDeque::new();
        self.zero_copy.settle(patience, stop).await;
    }

    /// Since when the kernel was done with none of the payloads that it has.
    pub(crate) fn stands_since(&self) -> Option<Instant> {
        self.zero_copy.stands_since()
    }

    /// Sends what the socket takes now, up to a turn's worth; gives back how many bytes that was. Files are read on `runtime`.
    ///
    /// Not to be cancelled while it reads a file: those bytes would be sent twice.
    ///
    /// # Errors
    /// Those of the socket, and of a file that is shorter than its reply said.
    pub(crate) async fn send(&mut self, runtime: &Handle) -> io::Result<usize> {
        let mut total = 0;
        if self.queue.is_empty() {
            self.channel.flush()?;
        }
        while total < TURN && !self.queue.is_empty() && !self.zero_copy.is_full() {
            let outcome = match self.queue.front().and_then(Outgoing::file) {
                Some((file, offset, length)) => self.send_file(runtime, file, offset, length).await,
                None => {
                    let Gathered { slices, more, payload } = gather(&self.queue, &self.zero_copy);
                    self.zero_copy.send(&self.channel, &slices, more, payload)
                }
            };
            match outcome {
                Ok(sent) => {
                    total += sent;
                    self.sent(sent);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.zero_copy.filled();
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(total)
    }

    /// Sends from a file. On a thread that may wait for the disk.
    async fn send_file(&mut self, runtime: &Handle, file: Arc<File>, offset: u64, length: usize) -> io::Result<usize> {
        let channel = Arc::clone(&self.channel);
        let by_pieces = channel.is_encrypted() || self.queue.front().is_some_and(|reply| reply.piece.is_some());
        let send = if self.zero_copy.is_watched() { socket::send_file_unasked } else { socket::send_file };
        let work = move || match by_pieces {
            true => read_piece(&file, offset, length).map(Sent::Piece),
            false => match send(channel.stream(), &file, offset, length) {
                Ok(0) => Err(too_short(offset)),
                Ok(sent) => Ok(Sent::Bytes(sent)),
                Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
                    read_piece(&file, offset, length).map(Sent::Piece)
                }
                Err(error) => Err(error),
            },
        };
        match runtime.spawn_blocking(work).await.map_err(io::Error::other)?? {
            Sent::Bytes(sent) => Ok(sent),
            Sent::Piece(piece) => {
                if let Some(reply) = self.queue.front_mut() {
                    reply.piece = Some((reply.sent - reply.front(), piece));
                }
                Ok(0)
            }
        }
    }

    fn sent(&mut self, mut count: usize) {
        while let Some(reply) = self.queue.front_mut() {
            let taken = count.min(reply.length - reply.sent);
            reply.sent += taken;
            count -= taken;
            if reply.sent < reply.length {
                return;
            }
            self.queue.pop_front();
        }
    }
}

/// What lies in memory, up to the first file, or payload that is to be sent without a copy.
fn gather<'a>(queue: &'a VecDeque<Outgoing>, zero_copy: &ZeroCopySends) -> Gathered<'a> {
    let mut slices = SmallVec::new();
    for reply in queue {
        if slices.len() == MAX_SLICES {
            break;
        }
        let uncopied = reply.zero_copy_payload(zero_copy);
        // Only the first reply may have sent its front already.
        let payload = uncopied.filter(|_| reply.sent >= reply.front());
        if !reply.gather(&mut slices, uncopied.is_none() || payload.is_some()) {
            return Gathered { slices, more: true, payload };
        }
        if payload.is_some() {
            return Gathered { slices, more: false, payload };
        }
    }
    Gathered { slices, more: false, payload: None }
}

/// What became of a part of a file.
enum Sent {
    /// The kernel sent so many bytes of it.
    Bytes(usize),
    /// It was read, and is yet to be sent.
    Piece(Bytes),
}

fn read_piece(file: &File, offset: u64, length: usize) -> io::Result<Bytes> {
    let mut piece = vec![0; length.min(PIECE)];
    file.read_exact_at(&mut piece, offset).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => too_short(offset),
        _ => error,
    })?;
    Ok(piece.into())
}

fn too_short(offset: u64) -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, format!("a file to be sent ends at or after offset {offset}, too early"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transport::FileSlice;
    use forebay_types::TcpZeroCopy;
    use std::io::Write;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    fn reply(id: u64, payload: ResponsePayload) -> Outgoing {
        let body = Bytes::from_static(b"body");
        Outgoing::answer(id, Ok(Response { provenance: Provenance::default(), body, payload }))
    }

    #[tokio::test]
    async fn a_file_that_the_kernel_does_not_send_is_read_and_sent_in_pieces_between_other_replies() {
        const LENGTH: usize = 3 * PIECE + 1000;
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..LENGTH + 10).map(|at| (at % 251) as u8).collect();
        file.write_all(&bytes).unwrap();
        let slice = FileSlice { file: Arc::new(file), offset: 10, length: LENGTH as u32, pin: Box::new(()) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (client, server) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut client, server) = (client.unwrap(), Arc::new(Channel::new(server.unwrap().0, None)));
        let zero_copy = ZeroCopySends::new(TcpZeroCopy::Off, false, Arc::default());
        let mut outbox = Outbox::new(Arc::clone(&server), zero_copy);
        outbox.push(reply(1, ResponsePayload::None));
        let mut filed = reply(2, ResponsePayload::File(slice));
        filed.piece = Some((0, Bytes::new()));
        outbox.push(filed);
        outbox.push(reply(3, ResponsePayload::None));

        let mut received = vec![0; 3 * (HEADER_LEN + 4) + LENGTH];
        let sending = async {
            while !outbox.is_empty() {
                server.stream().writable().await.unwrap();
                outbox.send(&Handle::current()).await.unwrap();
            }
        };
        let (_, read) = tokio::join!(sending, client.read_exact(&mut received));
        read.unwrap();
        let payload = &received[2 * (HEADER_LEN + 4)..][..LENGTH];
        assert!(payload == &bytes[10..]);
        let last = received.last_chunk::<{ HEADER_LEN + 4 }>().unwrap();
        assert_eq!(ReplyHeader::decode(last.first_chunk().unwrap()).unwrap().id, 3);
    }
}
