//! What a fuzzer feeds to the readers of frames, of offers and of hellos over verbs, and to one end of a connection, whose peer is
//! anybody. And to a client whose payload comes in messages.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use bytes::Bytes;
use forebay_memory::{Pool, PoolOptions, Spans};
use forebay_transport::wire::{HEADER_LEN, Hello, MAX_REPLY_BODY, MAX_REQUEST_BODY};
use forebay_types::ByteSize;
use forebay_verbs::{Post, Remote};

use crate::verbs::channel::{Channel, Incoming, Next, Outgoing, takes_credit};
use crate::verbs::connection::parts;
use crate::verbs::frame::{FrameError, FrameHeader, Kind, MAX_INSIDE, Offer, VERBS_HELLO_LEN, check_hello, hello};
use crate::verbs::payload::{Leaving, PayloadError, Piece, check_reply, place_of};
use crate::wire::{self, Received};

/// The longest frames of a peer here.
const MAX_FRAME: usize = 64 << 10;
/// Messages that wait, at most.
const MAX_WAITING: usize = 16;
/// The longest payload here.
const MAX_PAYLOAD: usize = 64 << 10;
/// What the memory of a call is filled with, and what is around it.
const UNTOUCHED: u8 = 0xee;

thread_local! {
    /// Where payload that is sent lies.
    static POOL: Pool = {
        let options = PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(8)) };
        Pool::new(options).unwrap_or_else(|error| unreachable!("{error}"))
    };
}

/// A frame comes by itself.
///
/// # Panics
/// When it is not written again as it was, or what it carries is not the rest of it.
pub fn frame(bytes: &[u8]) {
    match FrameHeader::decode(bytes) {
        Ok((header, rest)) => {
            assert_eq!([&header.encode()[..], rest].concat(), bytes);
            assert_eq!(header.window().is_some(), header.remote.key != 0);
            assert_eq!(takes_credit(bytes), header.kind != Kind::Credits);
        }
        Err(error) => assert!(matches!(error, FrameError::Short(_) | FrameError::Kind(..)), "{error}"),
    }
}

/// A peer tells rdma_cm this.
///
/// # Panics
/// When what is taken of it is not written again as it was, or makes no sense; when a refusal is more than a line of a log.
pub fn offer(bytes: &[u8]) {
    match Offer::decode(bytes) {
        Ok(offer) => {
            assert!((2..=1024).contains(&offer.credits) && (256..=64 << 10).contains(&offer.frame_length));
            assert_eq!(offer.client_id.map(NonZeroU64::get), Some(u64_at(bytes, 16)).filter(|id| *id != 0));
            // Four bytes of it mean nothing, or little.
            let (encoded, said) = (offer.encode(), &bytes[..offer.encode().len()]);
            assert_eq!((&encoded[..12], &encoded[16..]), (&said[..12], &said[16..]));
            assert_eq!((offer.one_sided, offer.in_messages), (said[12] & 1 != 0, said[12] & 2 != 0));
        }
        Err(reason) => assert!(!reason.contains(char::is_control), "{reason:?}"),
    }
}

/// A member of cluster `ours` is told a hello, or welcome.
///
/// # Panics
/// When it takes what it would not say itself; when a refusal is more than a line of a log.
pub fn greeting(ours: &Hello, bytes: &[u8]) {
    match check_hello(ours, bytes) {
        Ok(tag) => {
            assert_eq!(bytes.len(), VERBS_HELLO_LEN);
            assert_eq!(check_hello(ours, &hello(ours, tag)), Ok(tag));
        }
        Err(reason) => assert!(!reason.contains(char::is_control), "{reason:?}"),
    }
}

/// What happens to one end of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// A frame comes, as it was sent.
    Receive(&'a [u8]),
    /// A message is to be sent, with so many bytes behind its header.
    Send {
        /// How many.
        body: usize,
        /// The key of a window, in it or ended by it; 0 for none.
        key: u32,
    },
    /// An answer is to be sent, with so many bytes of payload before it, in frames of their own.
    Answer {
        /// How many.
        payload: usize,
    },
    /// The card has room for so many frames.
    Post(usize),
}

/// One end, which takes `ours` frames, of a peer that takes `theirs`: how many, and how long.
///
/// # Panics
/// When more is sent than the peer takes, or not what was to be sent; when more is taken than the peer was let send, or another message
/// than it sent; when a message is longer than it may be.
pub fn connection(ours: (u16, u32), theirs: (u16, u32), steps: &[Step<'_>]) {
    let offer = |(credits, frame_length): (u16, u32)| Offer {
        credits: credits.clamp(2, 1024),
        frame_length: frame_length.clamp(256, MAX_FRAME as u32),
        client_id: None,
        one_sided: false,
        in_messages: false,
        mtu: None,
    };
    let (ours, theirs) = (offer(ours), offer(theirs));
    let mut end = End {
        channel: Channel::new(&ours, &theirs),
        frame_length: theirs.frame_length as usize,
        left: theirs.credits,
        theirs: theirs.credits,
        ours: ours.credits,
        allowed: ours.credits,
        coming: None,
        going: VecDeque::new(),
        gone: 0,
        poured: 0,
        sent: 0,
        is_broken: false,
    };
    for step in steps {
        match *step {
            Step::Receive(frame) => end.receive(&frame[..frame.len().min(ours.frame_length as usize)]),
            Step::Send { body, key } => end.send(body, key),
            Step::Answer { payload } => end.answer(payload.min(MAX_PAYLOAD)),
            Step::Post(room) => end.post(room),
        }
    }
}

/// A peer sends these frames to a client that has one call, number 7, which takes so many bytes, and then says that they were `said`.
///
/// # Panics
/// When a byte lands anywhere but behind those before it, or beyond what was asked for; when a reply is taken that says another number.
pub fn payload(limit: u16, frames: &[&[u8]], said: u32) {
    const CALL: u64 = 7;
    const AROUND: usize = 64;
    let limit = u32::from(limit);
    let (mut memory, mut came, mut whole) = (vec![UNTOUCHED; limit as usize + AROUND], 0, Vec::new());
    for frame in frames {
        let Ok((FrameHeader { kind: Kind::Payload, remote, .. }, bytes)) = FrameHeader::decode(frame) else { continue };
        let piece = Piece::of(remote, bytes);
        if piece.call != CALL {
            continue;
        }
        match place_of(&piece, came, limit) {
            Ok(place) => {
                assert_eq!((place.start, place.len()), (whole.len(), bytes.len()));
                memory[place].copy_from_slice(bytes);
                whole.extend_from_slice(bytes);
                came += bytes.len() as u32;
            }
            Err(PayloadError::Order { offset, .. }) => assert_ne!(offset as usize, whole.len()),
            Err(PayloadError::Limit { .. }) => assert!(whole.len() + bytes.len() > limit as usize),
            Err(error @ (PayloadError::Call(_) | PayloadError::Reply { .. })) => unreachable!("{error}"),
        }
    }
    assert!(memory.starts_with(&whole) && memory[whole.len()..].iter().all(|byte| *byte == UNTOUCHED));
    assert_eq!(check_reply(said, came).is_ok(), said as usize == whole.len());
}

/// A message on its way, the payload that goes before it, and the key that goes with it.
struct Going {
    kind: Kind,
    bytes: Vec<u8>,
    before: Vec<u8>,
    key: u32,
}

/// One end, and what is known of it from outside.
struct End {
    channel: Channel,
    frame_length: usize,
    /// Frames that the peer has room for.
    left: u16,
    theirs: u16,
    ours: u16,
    /// Frames that the peer may send, as it was told.
    allowed: u16,
    /// What has come of a message.
    coming: Option<(FrameHeader, Vec<u8>)>,
    going: VecDeque<Going>,
    /// Bytes of the first of them that have gone, and of the payload before it.
    gone: usize,
    poured: usize,
    /// Messages that were to be sent, ever.
    sent: u8,
    is_broken: bool,
}

impl End {
    fn receive(&mut self, frame: &[u8]) {
        let received = self.channel.received(frame);
        self.channel.receives_again(takes_credit(frame));
        if self.is_broken {
            return assert_eq!(received, Ok(None), "nothing is taken any more");
        }
        let Ok((header, piece)) = FrameHeader::decode(frame) else {
            self.is_broken = true;
            return assert!(received.is_err());
        };
        let returned = self.left.checked_add(header.credits).filter(|left| *left <= self.theirs);
        let allowed = self.allowed.checked_sub(u16::from(header.kind != Kind::Credits));
        let message = match (received, returned, allowed) {
            (Ok(message), Some(left), Some(allowed)) => {
                (self.left, self.allowed) = (left, allowed);
                message
            }
            (Err(_), ..) => {
                self.is_broken = true;
                return;
            }
            (Ok(_), ..) => unreachable!("credits are used or returned that there are not: {header:?}"),
        };
        if header.kind == Kind::Credits {
            return assert!(message.is_none() && piece.is_empty() && header.credits > 0);
        }
        if header.kind == Kind::Payload {
            assert!(message.is_none() && self.coming.is_none() && !piece.is_empty());
            return assert_eq!(self.channel.piece(frame), Some(Piece::of(header.remote, piece)));
        }
        assert_eq!(self.channel.piece(frame), None);
        match &mut self.coming {
            Some((_, bytes)) => {
                assert_eq!(header.kind, Kind::More);
                bytes.extend_from_slice(piece);
            }
            coming @ None => *coming = Some((header, piece.to_vec())),
        }
        let length = self.coming.as_ref().map_or(0, |(_, bytes)| bytes.len());
        assert!(length <= HEADER_LEN + MAX_REPLY_BODY as usize + MAX_INSIDE as usize);
        if let Some(message) = message {
            let (header, bytes) = self.coming.take().unwrap_or_else(|| unreachable!("a frame of it came just now"));
            let whole = Incoming { header, bytes };
            assert_eq!(message, whole);
            is_taken(&message);
            self.channel.recycle(message.bytes);
        }
    }

    fn send(&mut self, body: usize, key: u32) {
        if self.going.len() == MAX_WAITING {
            return;
        }
        self.sent = self.sent.wrapping_add(1);
        let (head, body) = ([self.sent; HEADER_LEN], Bytes::from(vec![!self.sent; body]));
        let message = Outgoing {
            body: body.clone(),
            offered: (key != 0).then_some((Remote { address: u64::from(key), key }, 0)),
            invalidate: (key != 0).then_some(key),
            ..Outgoing::new(Kind::Request, &head)
        };
        self.channel.push(message);
        let bytes = [&head[..], &body].concat();
        self.going.push_back(Going { kind: Kind::Request, bytes, before: Vec::new(), key });
    }

    fn answer(&mut self, payload: usize) {
        let span = POOL.with(|pool| pool.try_alloc(payload.max(1)));
        let Some(mut span) = span.filter(|_| self.going.len() < MAX_WAITING) else { return };
        self.sent = self.sent.wrapping_add(1);
        span.fill(self.sent);
        // In two pieces of memory, of which one may be empty.
        let whole = span.freeze();
        let (first, rest) = (whole.slice(0..payload / 3), whole.slice(payload / 3..payload));
        let head = [self.sent; HEADER_LEN];
        let before = Some(Leaving::new(self.sent.into(), Spans::from_iter([first, rest])));
        self.channel.push(Outgoing { before, ..Outgoing::new(Kind::Reply, &head) });
        let (bytes, before) = (head.to_vec(), vec![self.sent; payload]);
        self.going.push_back(Going { kind: Kind::Reply, bytes, before, key: 0 });
    }

    fn post(&mut self, room: usize) {
        for _ in 0..room {
            let mut frame = vec![0; self.frame_length];
            let (post, length) = match self.channel.next() {
                None => return,
                Some(Next::Credits) => (Post::default(), self.channel.fill_credits(&mut frame)),
                Some(Next::Frame { .. }) => (self.channel.begin(), self.channel.fill(&mut frame)),
            };
            self.went(&frame[..length], &post);
        }
    }

    /// What went is what was to go, and the peer has room for it.
    fn went(&mut self, frame: &[u8], post: &Post) {
        let (header, piece) = FrameHeader::decode(frame).unwrap_or_else(|error| unreachable!("{error}"));
        self.allowed = self.allowed.saturating_add(header.credits);
        assert!(self.allowed <= self.ours, "the peer is told of receives that there are not");
        if header.kind == Kind::Credits {
            assert!(piece.is_empty() && header.credits > 0 && post.bind.is_none() && post.invalidate.is_none());
            return;
        }
        self.left = self.left.checked_sub(1).unwrap_or_else(|| unreachable!("a frame goes without a credit"));
        let Some(Going { kind, bytes, before, key }) = self.going.front() else {
            unreachable!("nothing was to be sent")
        };
        if self.poured < before.len() {
            assert_eq!((header.kind, header.remote.address), (Kind::Payload, u64::from(bytes[0])));
            assert_eq!(header.remote.key as usize, self.poured);
            assert!(before[self.poured..].starts_with(piece) && !piece.is_empty());
            assert!(post.bind.is_none() && post.write.is_none() && post.invalidate.is_none());
            self.poured += piece.len();
            return;
        }
        let (begins, key) = (self.gone == 0, *key);
        assert_eq!(header.is_written, *kind == Kind::Reply);
        assert!(bytes[self.gone..].starts_with(piece) && !piece.is_empty());
        self.gone += piece.len();
        let ends = self.gone == bytes.len();
        assert_eq!(header.kind, if begins { *kind } else { Kind::More });
        assert_eq!(header.window().map(|window| window.key), (begins && key != 0).then_some(key));
        assert_eq!((post.bind.is_some(), post.invalidate.is_some()), (begins && key != 0, ends && key != 0));
        if ends {
            self.going.pop_front();
            (self.gone, self.poured) = (0, 0);
        }
        assert_eq!(self.channel.waiting(), self.going.len());
    }
}

/// Both sides read a message that is for them, and no byte beyond it.
fn is_taken(message: &Incoming) {
    match message.header.kind {
        Kind::Request => {
            let length = message.bytes.len();
            assert!((HEADER_LEN..=HEADER_LEN + MAX_REQUEST_BODY as usize).contains(&length));
            if let Ok((header, body)) = wire::request(&message.bytes, Received::Here(&[])) {
                assert_eq!((header.body_len as usize, HEADER_LEN + body.len()), (body.len(), length));
            }
        }
        Kind::Reply => {
            let Ok((header, body, inside)) = parts(message) else { return };
            let payload = if message.header.is_written { 0 } else { header.payload_len as usize };
            assert_eq!((body.len(), inside.len()), (header.body_len as usize, payload));
            assert!(inside.len() <= MAX_INSIDE as usize && (header.failure.is_none() || header.payload_len == 0));
        }
        Kind::Hello | Kind::Welcome | Kind::Opened | Kind::Forget | Kind::Forgotten => {}
        Kind::Credits | Kind::More | Kind::Payload => unreachable!("no message is of kind {:?}", message.header.kind),
    }
}

/// From bytes that were long enough for an offer.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}
