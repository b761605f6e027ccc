//! What a fuzzer feeds to the decoders of this transport: streams of bytes, received in pieces of any size. Each is held against a
//! reading of the same bytes in one go.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forebay_identity::{Pass, Passes, Peer};
use forebay_locks::Mutex;
use forebay_memory::Pool;
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, MAX_UPLOAD_BODY, ReplyHeader, RequestHeader, WireError};
use forebay_transport::{CallError, Payload};
use forebay_types::FailureKind;
use tokio::sync::oneshot::Receiver;
use tokio::sync::{Semaphore, oneshot};

use crate::admit;
use crate::options::LARGE_BODY;
use crate::replies::{Broken, Call, Ended, Replies};
use crate::requests::Requests;

/// What a server gives for large bodies: the largest one, and no more.
const LEAVE: usize = MAX_UPLOAD_BODY as usize;

/// A server receives `stream` in pieces of the sizes in `cuts`, again and again.
///
/// # Panics
/// When a request comes out that is not in the stream, or one does not that is; when memory is taken without leave.
pub fn requests(stream: &[u8], cuts: &[u16]) {
    let (expected, end) = requests_in(stream);
    let mut expected = expected.into_iter();
    let memory = Arc::new(Semaphore::new(LEAVE));
    let (mut rest, mut requests) = (stream, Requests::new());
    for cut in sizes(cuts) {
        if rest.is_empty() {
            break;
        }
        let count = requests.receive(|buffers| Ok(fill(buffers, &mut rest, cut))).unwrap_or_default();
        assert!(count > 0, "there is always room to receive to");
        loop {
            let next = match requests.next() {
                Ok(next) => next,
                Err(error) => {
                    assert!(expected.next().is_none(), "the stream was good for longer");
                    assert_eq!(end.as_ref(), Err(&error));
                    return;
                }
            };
            match (next, requests.awaits()) {
                (Some(got), _) => assert_eq!(Some(got), expected.next()),
                (None, Some(length)) => {
                    assert!(length as usize > LARGE_BODY && length <= MAX_UPLOAD_BODY);
                    // All of it: what was received before is given back.
                    let leave = Arc::clone(&memory).try_acquire_many_owned(length);
                    requests.allocate(leave.unwrap_or_else(|_| unreachable!("a body that is gone keeps its leave")));
                }
                (None, None) => break,
            }
        }
    }
    assert!(expected.next().is_none(), "a request did not come out");
    assert_eq!(end.map_err(|_| ()), Ok(requests.is_partial()));
}

/// The requests of `stream`, and whether it ends within one, or the error that it ends with.
fn requests_in(mut stream: &[u8]) -> (Vec<(RequestHeader, Bytes)>, Result<bool, WireError>) {
    let mut found = Vec::new();
    while let Some((header, rest)) = stream.split_first_chunk::<HEADER_LEN>() {
        let header = match RequestHeader::decode(header) {
            Ok(header) => header,
            Err(error) => return (found, Err(error)),
        };
        assert!(header.body_len <= header.op.max_body());
        let Some((body, rest)) = rest.split_at_checked(header.body_len as usize) else { return (found, Ok(true)) };
        found.push((header, Bytes::copy_from_slice(body)));
        stream = rest;
    }
    (found, Ok(!stream.is_empty()))
}

/// The receiver of an encrypted connection gets what a peer sends of `messages`, with one bit changed in it, if `flip` says so, and
/// `tail` behind it, in pieces of the sizes in `cuts`.
///
/// # Panics
/// When anything comes out that is not in the messages, or one does not that came before all that is wrong.
pub fn records(messages: &[&[u8]], flip: Option<usize>, tail: &[u8], cuts: &[u16]) {
    let (mut stream, ends) = crate::records::fuzzing::sealed(messages);
    let flip = flip.filter(|_| !stream.is_empty()).map(|bit| bit % (8 * stream.len()));
    if let Some(bit) = flip {
        stream[bit / 8] ^= 1 << (bit % 8);
    }
    stream.extend_from_slice(tail);
    let received = crate::records::fuzzing::received(&stream, sizes(cuts));
    let sound = ends.iter().take_while(|end| flip.is_none_or(|bit| bit / 8 >= **end)).count();
    let expected = messages[..sound].concat();
    let (got, sent) = (received.len(), expected.len());
    assert!(received == expected, "{got} bytes came out, and {sent} were sent before anything was wrong");
}

/// What becomes of a call.
#[derive(Debug)]
enum Outcome {
    /// Its answer: header and body, and the payload.
    Reply(ReplyHeader, Vec<u8>, Vec<u8>),
    /// None.
    Waiting,
}

/// A client with calls 1, 2, … receives `stream` in pieces of the sizes in `cuts`. Of each call: the most payload that it takes,
/// and whether its caller has left.
///
/// # Panics
/// When a call gets what was not sent for it, or nothing though it was; when a buffer of `pool` stays in use.
pub fn replies(stream: &[u8], cuts: &[u16], calls: &[(u16, bool)], pool: &Pool) {
    let (expected, breaks) = replies_in(stream, calls);
    let (mut waiting, mut answers) = (HashMap::new(), Vec::new());
    for (id, (limit, has_left)) in (1..).zip(calls) {
        let (call, answer) = call(pool, *limit, *has_left);
        waiting.insert(id, call);
        answers.push(answer);
    }
    let (mut rest, mut replies, mut is_broken) = (stream, Replies::new(), false);
    for cut in sizes(cuts) {
        if rest.is_empty() || is_broken {
            break;
        }
        let count = replies.receive(|buffers| Ok(fill(buffers, &mut rest, cut))).unwrap_or_default();
        assert!(count > 0, "there is always room to receive to");
        match replies.deliver(|id| waiting.remove(&id)) {
            Ok(()) => {}
            Err(Broken::Protocol(_)) => is_broken = true,
            Err(Broken::Goodbye(why)) => {
                is_broken = true;
                assert_eq!(Some(why.kind()), breaks.flatten());
            }
        }
    }
    assert_eq!(is_broken, breaks.is_some(), "it ends where it should");
    for ((mut answer, expected), (_, has_left)) in answers.into_iter().zip(expected).zip(calls) {
        match (answer.try_recv(), expected) {
            (Ok(Ok(Ok(reply))), Outcome::Reply(header, body, payload)) => {
                assert!(header.failure.is_none());
                assert_eq!((reply.provenance, &reply.body[..]), (header.provenance, &body[..]));
                match reply.payload {
                    Payload::Landed(span) => assert_eq!(*span, payload),
                    Payload::None => assert!(*has_left, "a caller that waits gets its buffer back"),
                    Payload::Shared(_) => unreachable!("nothing is shared over TCP"),
                }
            }
            (Ok(Ok(Err(CallError::Service(failure)))), Outcome::Reply(header, body, _)) => {
                assert_eq!(header.failure(&body), Some(failure));
            }
            (Err(_), Outcome::Waiting) => {}
            (answer, expected) => unreachable!("{answer:?} where {expected:?} was sent"),
        }
    }
    drop((replies, waiting));
    assert_eq!(pool.used(), 0, "a buffer stays in use");
}

/// What becomes of each call, and whether the stream breaks the connection: by a goodbye of this kind, or the protocol.
fn replies_in(mut stream: &[u8], calls: &[(u16, bool)]) -> (Vec<Outcome>, Option<Option<forebay_types::FailureKind>>) {
    let mut outcomes: Vec<_> = calls.iter().map(|_| Outcome::Waiting).collect();
    while let Some((header, rest)) = stream.split_first_chunk::<HEADER_LEN>() {
        let Ok(header) = ReplyHeader::decode(header) else { return (outcomes, Some(None)) };
        let (body_len, payload_len) = (header.body_len as usize, header.payload_len as usize);
        let number = usize::try_from(header.id).unwrap_or(usize::MAX).checked_sub(1);
        let is_allowed = match number {
            None => payload_len == 0 && body_len <= 4096,
            Some(number) => match (outcomes.get(number), calls.get(number)) {
                (Some(Outcome::Waiting), Some((limit, _))) => {
                    payload_len == 0 || header.failure.is_none() && payload_len <= usize::from(*limit)
                }
                _ => false,
            },
        };
        if !is_allowed {
            return (outcomes, Some(None));
        }
        let Some((message, rest)) = rest.split_at_checked(body_len + payload_len) else { break };
        let (body, payload) = message.split_at(body_len);
        match (number, header.failure) {
            (None, Some(kind)) => return (outcomes, Some(Some(kind))),
            (None, None) => {}
            (Some(number), _) => outcomes[number] = Outcome::Reply(header, body.to_vec(), payload.to_vec()),
        }
        stream = rest;
    }
    (outcomes, None)
}

fn call(pool: &Pool, limit: u16, has_left: bool) -> (Call, Receiver<Ended>) {
    let (answer, answered) = oneshot::channel();
    let permit = Arc::new(Semaphore::new(1)).try_acquire_owned();
    let permit = permit.unwrap_or_else(|_| unreachable!("it is the only one"));
    let into = if has_left { None } else { pool.try_alloc(limit.into()) };
    let limit = if has_left || into.is_some() { limit.into() } else { 0 };
    (Call { into, limit, answer, load: None, permit }, answered)
}

/// Each size again and again, and none of nothing.
fn sizes(cuts: &[u16]) -> impl Iterator<Item = usize> {
    let whole = [u16::MAX];
    let cuts: Vec<u16> = if cuts.is_empty() { whole.to_vec() } else { cuts.to_vec() };
    cuts.into_iter().cycle().map(|cut| usize::from(cut).max(1))
}

/// Hands out at most `most` of `bytes`.
fn fill(buffers: &mut [IoSliceMut<'_>], bytes: &mut &[u8], most: usize) -> usize {
    let mut total = 0;
    for buffer in buffers {
        let count = buffer.len().min(most - total).min(bytes.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        *bytes = &bytes[count..];
        total += count;
    }
    total
}

const _: () = assert!(CONNECTION_ID == 0, "calls are told from the connection's own messages by their number");

/// `peer`, who proved that it is, asks for a pass with `body`.
///
/// # Panics
/// When it gets one that is not good for one connection of the client id that it named, or is refused one though it named one.
pub fn admission(peer: &Peer, body: &[u8]) {
    let passes = Mutex::new(Passes::default());
    assert!(admit::admit(None, Some(peer.clone()), body).is_err(), "where nobody needs a pass there is none");
    assert!(admit::admit(Some(&passes), None, body).is_err(), "who proves nothing gets none");
    let client_id = body.try_into().map_or(0, u64::from_le_bytes);
    let answer = admit::admit(Some(&passes), Some(peer.clone()), body);
    match answer {
        Err(failure) => assert!(client_id == 0 && failure.kind() == FailureKind::InvalidArgument, "{failure}"),
        Ok(response) => {
            let pass = Pass::decode(&response.body);
            let (mut passes, now) = (passes.into_inner(), Instant::now());
            assert!(client_id != 0 && !passes.arrive(client_id.wrapping_add(1), now));
            assert!(passes.arrive(client_id, now) && !passes.arrive(client_id, now), "it is good for one connection");
            let redeemed = pass.and_then(|pass| passes.redeem(client_id, pass.client, now));
            assert_eq!(redeemed, pass.map(|pass| (pass, peer.clone())));
            assert!(redeemed.is_some(), "what it got is a pass");
        }
    }
}
