//! Two channels and the cards between them, in virtual time: what a reliable connection does, and what it does when it breaks.
//!
//! A card carries out what is posted in order, sooner or later, tells of some of it, and, when the connection breaks, of all that is left
//! at once. It never loses or reorders anything by itself: to a reliable connection that *is* to break.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use forebay_memory::{Pool, Spans};
use forebay_transport::wire::{RequestHeader, set_tag, tag};
use forebay_transport::{Op, Request, conformance};
use forebay_verbs::{Post, Remote};
use proptest::prelude::*;

use super::{Channel, Incoming, Next, Outgoing, takes_credit};
use crate::verbs::credits::RESERVE;
use crate::verbs::frame::{Kind, Offer};
use crate::verbs::payload::{Leaving, place_of};

/// The key of a window, and what was written through it.
type Written = (u32, Vec<u8>);

/// Messages that a card has room for.
const ROOM: usize = 5;

/// A message on its way, with what was posted with it.
struct Posted {
    frame: Vec<u8>,
    post: Post,
}

/// One end: a channel, and its card.
struct End {
    channel: Channel,
    frame_length: usize,
    receives: u16,
    /// What the card has not carried out.
    posted: VecDeque<Posted>,
    /// What it has carried out and not told of.
    untold: usize,
    /// Messages that have come and were not looked at, and the key that each has ended.
    arrived: VecDeque<(Vec<u8>, Option<u32>)>,
    /// The keys under which the peer may write here, and what was written.
    windows: BTreeMap<u32, Vec<u8>>,
    /// What has come in frames of its own, by the calls that it is of.
    landed: BTreeMap<u64, Vec<u8>>,
    next_key: u32,
    is_broken: bool,
}

impl End {
    fn new(ours: &Offer, theirs: &Offer) -> Self {
        Self {
            channel: Channel::new(ours, theirs),
            frame_length: theirs.frame_length as usize,
            receives: ours.credits + RESERVE,
            posted: VecDeque::new(),
            untold: 0,
            arrived: VecDeque::new(),
            windows: BTreeMap::new(),
            landed: BTreeMap::new(),
            next_key: 1,
            is_broken: false,
        }
    }

    /// Posts what may be.
    fn flush(&mut self) {
        while !self.is_broken && self.posted.len() + self.untold < ROOM {
            let mut frame = vec![0; self.frame_length];
            let (post, length) = match self.channel.next() {
                None => return,
                Some(Next::Credits) => (Post::default(), self.channel.fill_credits(&mut frame)),
                Some(Next::Frame { .. }) => (self.channel.begin(), self.channel.fill(&mut frame)),
            };
            frame.truncate(length);
            self.posted.push_back(Posted { frame, post });
        }
    }

    /// The card carries out the next of what was posted.
    fn carry_out(&mut self, peer: &mut Self) {
        let Some(Posted { frame, post }) = self.posted.pop_front() else { return };
        self.untold += 1;
        if let Some((spans, Remote { key, .. })) = post.write {
            let window = peer.windows.get_mut(&key).expect("a peer writes to what waits for it, and to nothing else");
            spans.iter().for_each(|span| window.extend_from_slice(span));
        }
        assert!(peer.receives > 0, "a receive queue has run dry");
        peer.receives -= 1;
        if let Some(key) = post.invalidate {
            assert!(peer.windows.contains_key(&key), "the use of a key ends once");
        }
        peer.arrived.push_back((frame, post.invalidate));
        // That of the last message is always asked for; others come with it, or as the card likes.
        if post.signalled || self.posted.is_empty() {
            self.untold = 0;
        }
    }

    /// Looks at the next message that has come, if it is whole by now: what was written for it, too.
    fn look(&mut self) -> Option<(Incoming, Option<Written>)> {
        let (frame, ended) = self.arrived.pop_front()?;
        let message = self.channel.received(&frame).expect("both ends keep to the protocol");
        if let Some(piece) = self.channel.piece(&frame) {
            let landed = self.landed.entry(piece.call).or_default();
            let place = place_of(&piece, landed.len() as u32, u32::MAX).expect("pieces come in order");
            assert_eq!(place.start, landed.len());
            landed.extend_from_slice(piece.bytes);
        }
        let written = ended.map(|key| (key, self.windows.remove(&key).expect("it was looked at above")));
        self.receives += 1;
        self.channel.receives_again(takes_credit(&frame));
        Some((message?, written))
    }

    /// The connection breaks: what was posted ends, and nothing comes any more.
    fn break_off(&mut self) {
        self.is_broken = true;
        self.posted.clear();
        self.arrived.clear();
        self.untold = 0;
    }
}

fn offer(credits: u16) -> Offer {
    Offer { credits, frame_length: 256, client_id: None, one_sided: false, in_messages: false, mtu: None }
}

/// A request with this number and a body of so many bytes, which offers a window for its answer.
fn request(end: &mut End, number: u64, body: usize) {
    let body = Bytes::from((0..body).map(|at| (at as u64 ^ number) as u8).collect::<Vec<_>>());
    let mut head = RequestHeader::of(1, &Request::on_path(Op::Stat, body.clone(), Duration::ZERO)).encode();
    set_tag(&mut head, number);
    let key = end.next_key;
    end.next_key += 1;
    end.windows.insert(key, Vec::new());
    let offered = Some((Remote { address: number, key }, 0));
    end.channel.push(Outgoing { body, offered, ..Outgoing::new(Kind::Request, &head) });
}

/// The payload of the answer to a request.
fn payload(memory: &Pool, number: u64) -> Spans {
    let mut span = memory.try_alloc(100).expect("answers are few and short");
    span.fill(number as u8);
    Spans::from_iter([span.freeze()])
}

/// Checks a request, and answers it.
fn answer(end: &mut End, memory: &Pool, Incoming { header, bytes }: Incoming, expected: u64) {
    let (head, body) = bytes.split_first_chunk().unwrap();
    assert_eq!(tag(head), expected, "requests come in order");
    assert!(body.iter().enumerate().all(|(at, byte)| *byte == (at as u64 ^ expected) as u8), "and whole");
    let remote = header.window().unwrap();
    // Any message does as an answer, as nobody reads it: a request without a body.
    let head = RequestHeader { body_len: 0, ..RequestHeader::decode(head).unwrap() }.encode();
    let write = Some((payload(memory, expected), remote));
    end.channel.push(Outgoing { write, invalidate: Some(remote.key), ..Outgoing::new(Kind::Request, &head) });
}

proptest! {
    #[test]
    fn requests_and_answers_arrive_whole_and_in_order_until_the_connection_breaks(
        credits in (2u16..8, 2u16..8),
        steps in prop::collection::vec((0u8..6, 0usize..1500), 1..300),
        breaks_at in prop::option::of(0usize..300),
    ) {
        let (of_client, of_server) = (offer(credits.0), offer(credits.1));
        let (mut client, mut server) = (End::new(&of_client, &of_server), End::new(&of_server, &of_client));
        let memory = conformance::pool(4);
        let (mut asked, mut answered, mut told) = (0, 0, 0);
        let mut is_broken = false;
        // After the steps that were drawn, whatever can be done is done.
        let rest = std::iter::repeat_n([2, 3, 4, 5], 20_000).flatten().map(|step| (step, 0));
        for (number, (step, size)) in steps.iter().copied().chain(rest).enumerate() {
            if breaks_at == Some(number) {
                client.break_off();
                server.break_off();
                is_broken = true;
            }
            if is_broken || (number > steps.len() && told == asked) {
                break;
            }
            match step {
                0 | 1 if asked - answered < 40 => {
                    asked += 1;
                    request(&mut client, asked, size);
                }
                2 => client.carry_out(&mut server),
                3 => server.carry_out(&mut client),
                4 => if let Some((message, written)) = server.look() {
                    answered += 1;
                    prop_assert!(written.is_none());
                    answer(&mut server, &memory, message, answered);
                },
                5 => if let Some((_, written)) = client.look() {
                    told += 1;
                    let (_, bytes) = written.expect("an answer ends the use of its key");
                    prop_assert_eq!(bytes, vec![told as u8; 100]);
                },
                _ => {}
            }
            client.flush();
            server.flush();
        }
        if is_broken {
            // Nothing is on its way any more that could write to them.
            prop_assert!(client.posted.is_empty() && server.posted.is_empty());
            prop_assert_eq!(client.windows.len() as u64, asked - told, "they are here until then");
        } else {
            prop_assert_eq!((answered, told), (asked, asked), "nobody waits for ever");
            prop_assert!(client.windows.is_empty());
        }
        drop((client, server));
        prop_assert_eq!(memory.used(), 0, "what was posted is given back");
    }

    #[test]
    fn payload_in_messages_arrives_whole_before_its_answer_and_nobody_waits_for_ever(
        credits in (2u16..8, 2u16..8),
        steps in prop::collection::vec((0u8..6, 0usize..2000), 1..300),
    ) {
        let (of_client, of_server) = (offer(credits.0), offer(credits.1));
        let (mut client, mut server) = (End::new(&of_client, &of_server), End::new(&of_server, &of_client));
        let memory = conformance::pool(4);
        // How much is asked for by each.
        let (mut asked, mut answered, mut told) = (Vec::new(), 0, 0);
        let rest = std::iter::repeat_n([2, 3, 4, 5], 40_000).flatten().map(|step| (step, 0));
        for (number, (step, size)) in steps.iter().copied().chain(rest).enumerate() {
            if number > steps.len() && told == asked.len() {
                break;
            }
            match step {
                0 | 1 if asked.len() - answered < 40 => {
                    asked.push(size);
                    let head = RequestHeader::of(1, &Request::on_path(Op::Stat, Bytes::new(), Duration::ZERO)).encode();
                    client.channel.push(Outgoing::new(Kind::Request, &head));
                }
                2 => client.carry_out(&mut server),
                3 => server.carry_out(&mut client),
                4 => if let Some((message, _)) = server.look() {
                    let mut span = memory.try_alloc(asked[answered].max(1)).expect("answers are few and short");
                    span.fill(answered as u8);
                    let span = span.freeze().slice(0..asked[answered]);
                    let before = Some(Leaving::new(answered as u64, Spans::from_iter([span])));
                    // Any message does as an answer, as nobody reads it.
                    server.channel.push(Outgoing { before, ..Outgoing::new(Kind::Request, &message.bytes) });
                    answered += 1;
                },
                5 if client.look().is_some() => {
                    let landed = client.landed.remove(&(told as u64)).unwrap_or_default();
                    prop_assert_eq!(landed, vec![told as u8; asked[told]]);
                    prop_assert!(client.landed.is_empty(), "what comes is of the next answer");
                    told += 1;
                }
                _ => {}
            }
            client.flush();
            server.flush();
            prop_assert_eq!(server.channel.frames_waiting() == 0, server.channel.waiting() == 0);
        }
        prop_assert_eq!((answered, told), (asked.len(), asked.len()), "nobody waits for ever");
        drop((client, server));
        prop_assert_eq!(memory.used(), 0, "what was sent is given back");
    }
}
