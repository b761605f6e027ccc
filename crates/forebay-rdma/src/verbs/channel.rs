//! One connection over verbs, as far as it can be thought: which frame goes next, and what the frames that come say. Pure: what is to
//! be posted is handed out, what has come is handed in, and nothing here knows of a card.
//!
//! Messages leave in the order in which they were given. One that is longer than the peer's frames leaves in several, between which
//! no other begins. What is written to the peer's memory is posted before a message's first frame, and the use of its key ends with
//! the last one: a reliable connection keeps that order, so whoever has the last frame has all of the payload, and nobody writes
//! to it after that. Payload that goes in frames of its own (`payload.rs`) goes before the first frame of its message, too.

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bytes::Bytes;
use forebay_memory::Spans;
use forebay_transport::wire::{HEADER_LEN, MAX_REQUEST_BODY, ReplyHeader, RequestHeader, WireError};
use forebay_verbs::{Post, Remote};
use smallvec::SmallVec;

use crate::verbs::credits::Credits;
use crate::verbs::frame::{FRAME_HEADER, FrameError, FrameHeader, Kind, MAX_INSIDE, Offer};
use crate::verbs::payload::{Leaving, Piece};

/// What is kept of the memory of a message that was looked at, for the next one.
const MAX_SPARE: usize = 64 << 10;

/// A message that is to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) kind: Kind,
    /// A header, or a hello.
    pub(crate) head: SmallVec<[u8; HEADER_LEN]>,
    pub(crate) body: Bytes,
    /// Payload that goes with it.
    pub(crate) payload: Spans,
    /// Payload that is written before it, and where.
    pub(crate) write: Option<(Spans, Remote)>,
    /// Payload that goes before it, in frames of its own.
    pub(crate) before: Option<Leaving>,
    /// The key whose use ends with it.
    pub(crate) invalidate: Option<u32>,
    /// Where the answer's payload may be written, and the window that lets it be.
    pub(crate) offered: Option<(Remote, usize)>,
    /// The window through which the peer may read from now on.
    pub(crate) shows: Option<usize>,
}

impl Outgoing {
    /// A message with nothing but its head.
    pub(crate) fn new(kind: Kind, head: &[u8]) -> Self {
        Self {
            kind,
            head: SmallVec::from_slice(head),
            body: Bytes::new(),
            payload: Spans::new(),
            write: None,
            before: None,
            invalidate: None,
            offered: None,
            shows: None,
        }
    }

    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        [&self.head[..], &self.body[..]].into_iter().chain(self.payload.iter().map(|span| &span[..]))
    }

    /// Copies what comes after the first `sent` bytes, as much as fits; how much that is.
    fn copy(&self, sent: usize, into: &mut [u8]) -> usize {
        let (mut begins, mut copied) = (0, 0);
        for part in self.parts() {
            let wanted = sent + copied;
            if wanted < begins + part.len() && copied < into.len() {
                let rest = &part[wanted - begins..];
                let length = rest.len().min(into.len() - copied);
                into[copied..copied + length].copy_from_slice(&rest[..length]);
                copied += length;
            }
            begins += part.len();
        }
        copied
    }
}

/// One that waits for its turn.
struct Queued {
    message: Outgoing,
    length: usize,
    is_written: bool,
}

impl Queued {
    /// The payload that is to go before it, as far as it has not gone.
    fn before(&self) -> Option<&Leaving> {
        self.message.before.as_ref().filter(|payload| !payload.is_gone())
    }
}

/// A message that has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Incoming {
    /// That of its first frame.
    pub(crate) header: FrameHeader,
    /// All of it.
    pub(crate) bytes: Vec<u8>,
}

/// What is to be posted next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A frame of a message: whether it binds a window, and how many spans are written before it.
    Frame { binds: bool, spans: usize },
    /// One of credits alone.
    Credits,
}

/// The state of one end of a connection.
pub(crate) struct Channel {
    credits: Credits,
    /// Bytes of a message that fit into a frame of the peer's.
    room: usize,
    queue: VecDeque<Queued>,
    /// Frames that those make which wait.
    frames: usize,
    /// How much of the first of them was sent.
    sent: usize,
    /// A message of which more is to come, and how long it will be.
    begun: Option<(Incoming, usize)>,
    spare: Vec<u8>,
    /// The peer has broken the protocol. What it sends until it is gone is not looked at, and gets no credits: frames beyond its credits
    /// would be given back, without end.
    is_broken: bool,
}

impl Channel {
    /// Of a connection on which both ends have said what they take.
    pub(crate) fn new(ours: &Offer, theirs: &Offer) -> Self {
        Self {
            credits: Credits::new(ours.credits, theirs.credits),
            room: (theirs.frame_length as usize).saturating_sub(FRAME_HEADER).max(1),
            queue: VecDeque::new(),
            frames: 0,
            sent: 0,
            begun: None,
            spare: Vec::new(),
            is_broken: false,
        }
    }

    /// Has a message sent after those that wait.
    pub(crate) fn push(&mut self, message: Outgoing) {
        let length: usize = message.parts().map(<[u8]>::len).sum();
        let is_written = message.write.is_some() || message.before.is_some();
        let before = message.before.as_ref().map_or(0, |payload| payload.frames(self.room));
        // What has nothing goes in a frame, too.
        self.frames += before + length.div_ceil(self.room).max(1);
        self.queue.push_back(Queued { message, length, is_written });
    }

    /// Messages that have not been posted in whole.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Frames that they make.
    pub(crate) fn frames_waiting(&self) -> usize {
        self.frames
    }

    /// What is to be posted now, if anything may be.
    pub(crate) fn next(&self) -> Option<Next> {
        match self.queue.front() {
            Some(first) if self.credits.may_send() && first.before().is_some() => {
                Some(Next::Frame { binds: false, spans: 0 })
            }
            Some(first) if self.credits.may_send() => {
                let (message, begins) = (&first.message, self.sent == 0);
                let spans = message.write.as_ref().filter(|_| begins).map_or(0, |(spans, _)| spans.len());
                let binds = begins && (message.offered.is_some() || message.shows.is_some());
                Some(Next::Frame { binds, spans })
            }
            _ => self.credits.must_tell().then_some(Next::Credits),
        }
    }

    /// What goes with the next frame of a message; to be followed by [`Channel::fill`].
    pub(crate) fn begin(&mut self) -> Post {
        let waiting = self.queue.len();
        let (sent, room) = (self.sent, self.room);
        if let Some(payload) = self.queue.front().and_then(Queued::before) {
            return Post { signalled: payload.is_signalled(), ..Post::default() };
        }
        let Some(Queued { message, length, .. }) = self.queue.front_mut() else { return Post::default() };
        let (begins, ends) = (sent == 0, *length - sent <= room);
        Post {
            bind: message.offered.filter(|_| begins).map(|(_, window)| window),
            shows: message.shows.filter(|_| begins),
            write: if begins { message.write.take() } else { None },
            invalidate: message.invalidate.filter(|_| ends),
            // Those before it are told of by the same completion.
            signalled: ends && waiting == 1,
        }
    }

    /// Writes the next frame of a message; its length.
    pub(crate) fn fill(&mut self, into: &mut [u8]) -> usize {
        self.frames = self.frames.saturating_sub(1);
        if self.queue.front().is_some_and(|first| first.before().is_some()) {
            return self.fill_payload(into);
        }
        let Some(Queued { message, length, is_written }) = self.queue.front() else { return 0 };
        let begins = self.sent == 0;
        let kind = if begins { message.kind } else { Kind::More };
        let remote = message.offered.filter(|_| begins).map_or_else(Remote::default, |(remote, _)| remote);
        let header = FrameHeader { kind, is_written: *is_written, credits: self.credits.send(true), remote };
        let (place, rest) = into.split_at_mut(FRAME_HEADER);
        place.copy_from_slice(&header.encode());
        let room = rest.len().min(self.room);
        let copied = message.copy(self.sent, &mut rest[..room]);
        self.sent += copied;
        if self.sent >= *length {
            self.queue.pop_front();
            self.sent = 0;
        }
        FRAME_HEADER + copied
    }

    /// Writes the next frame of the payload that goes before the next message; its length.
    fn fill_payload(&mut self, into: &mut [u8]) -> usize {
        let Some(payload) = self.queue.front_mut().and_then(|first| first.message.before.as_mut()) else { return 0 };
        let (kind, credits) = (Kind::Payload, self.credits.send(true));
        let header = FrameHeader { kind, is_written: false, credits, remote: payload.place() };
        let (place, rest) = into.split_at_mut(FRAME_HEADER);
        place.copy_from_slice(&header.encode());
        let room = rest.len().min(self.room);
        FRAME_HEADER + payload.copy(&mut rest[..room])
    }

    /// Writes a frame of credits alone; its length.
    pub(crate) fn fill_credits(&mut self, into: &mut [u8]) -> usize {
        let (kind, credits) = (Kind::Credits, self.credits.send(false));
        let header = FrameHeader { kind, is_written: false, credits, remote: Remote::default() };
        into[..FRAME_HEADER].copy_from_slice(&header.encode());
        FRAME_HEADER
    }

    /// A frame has come: the message that it completes, if it does.
    ///
    /// # Errors
    /// How the peer breaks the protocol. Once.
    pub(crate) fn received(&mut self, frame: &[u8]) -> Result<Option<Incoming>, FrameError> {
        if self.is_broken {
            return Ok(None);
        }
        let taken = self.take(frame);
        self.is_broken = taken.is_err();
        taken
    }

    fn take(&mut self, frame: &[u8]) -> Result<Option<Incoming>, FrameError> {
        let (header, piece) = FrameHeader::decode(frame)?;
        self.credits.received(header.kind != Kind::Credits, header.credits)?;
        let (mut message, length) = match (header.kind, self.begun.take()) {
            (Kind::Credits, begun) => {
                self.begun = begun;
                return if piece.is_empty() { Ok(None) } else { Err(FrameError::Length(piece.len(), 0)) };
            }
            (Kind::More, Some(begun)) if !piece.is_empty() => begun,
            (Kind::More, _) | (_, Some(_)) => return Err(FrameError::Order(header.kind as u8)),
            // It is no message: where it belongs, its receiver knows ([`Channel::piece`]).
            (Kind::Payload, None) if piece.is_empty() => return Err(FrameError::Length(0, 1)),
            (Kind::Payload, None) => return Ok(None),
            (_, None) => {
                let length = length_of(&header, piece)?;
                (Incoming { header, bytes: std::mem::take(&mut self.spare) }, length)
            }
        };
        let rest = length - message.bytes.len();
        if piece.len() > rest {
            return Err(FrameError::Length(piece.len(), rest));
        }
        message.bytes.extend_from_slice(piece);
        if message.bytes.len() == length {
            return Ok(Some(message));
        }
        self.begun = Some((message, length));
        Ok(None)
    }

    /// The payload in a frame that was received just now, if that is what it carries.
    pub(crate) fn piece<'a>(&self, frame: &'a [u8]) -> Option<Piece<'a>> {
        if self.is_broken || frame.first() != Some(&(Kind::Payload as u8)) {
            return None;
        }
        let (header, piece) = FrameHeader::decode(frame).ok()?;
        Some(Piece::of(header.remote, piece))
    }

    /// A message was looked at: its memory is for the next one.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() <= MAX_SPARE {
            bytes.clear();
            self.spare = bytes;
        }
    }

    /// The receive of a frame that took a credit, or not, is the card's again.
    pub(crate) fn receives_again(&mut self, took_credit: bool) {
        if took_credit && !self.is_broken {
            self.credits.receives_again();
        }
    }
}

/// Whether a frame took a credit, whatever else is wrong with it.
pub(crate) fn takes_credit(frame: &[u8]) -> bool {
    frame.first() != Some(&(Kind::Credits as u8))
}

/// How long the message is that begins with `piece`.
fn length_of(header: &FrameHeader, piece: &[u8]) -> Result<usize, FrameError> {
    let cut_off = FrameError::Length(piece.len(), HEADER_LEN);
    match header.kind {
        Kind::Request => {
            let request = RequestHeader::decode(piece.first_chunk().ok_or(cut_off)?)?;
            let body = within("request body", request.body_len, MAX_REQUEST_BODY)?;
            Ok(HEADER_LEN + body)
        }
        Kind::Reply => {
            let reply = ReplyHeader::decode(piece.first_chunk().ok_or(cut_off)?)?;
            let inside = if header.is_written { 0 } else { reply.payload_len };
            let inside = within("payload that was not written", inside, MAX_INSIDE)?;
            Ok(HEADER_LEN + reply.body_len as usize + inside)
        }
        Kind::Hello | Kind::Welcome | Kind::Credits | Kind::More | Kind::Payload => Ok(piece.len()),
        // In one frame, whatever is in it: who reads it sees.
        Kind::Opened | Kind::Forget | Kind::Forgotten => Ok(piece.len()),
    }
}

fn within(what: &'static str, length: u32, limit: u32) -> Result<usize, WireError> {
    if length <= limit { Ok(length as usize) } else { Err(WireError::Length { what, length, limit }) }
}
