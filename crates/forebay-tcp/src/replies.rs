//! What a client receives: finds the replies in the bytes and brings each to its call. Pure.
//!
//! Payload is received straight into the caller's buffer; behind it, in the same system call, whatever comes next goes
//! to the staging buffer. A caller that left before has taken its buffer along, and what comes for it is thrown away.

use std::io::{self, IoSliceMut};

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_transport::wire::{CONNECTION_ID, ReplyHeader};
use forebay_transport::{CallError, Payload, Reply};
use forebay_types::{Failure, FailureKind};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::choice::Load;
use crate::staging::Staging;

/// The longest reason that a peer may give for closing the connection.
const MAX_GOODBYE: u32 = 4096;

/// How a call ended on its connection.
pub(crate) type Ended = Result<Result<Reply, CallError>, Unread>;

/// A call that the peer has not looked at and never will: it may be made again, on another connection.
#[derive(Debug)]
pub(crate) struct Unread {
    /// Where payload goes.
    pub(crate) into: Option<SpanMut>,
    /// Its place among the calls under way.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// A call that waits for its answer, and what it owns until then.
#[derive(Debug)]
pub(crate) struct Call {
    /// Where payload goes.
    pub(crate) into: Option<SpanMut>,
    /// The most payload that was asked for.
    pub(crate) limit: u32,
    /// Where the answer goes.
    pub(crate) answer: oneshot::Sender<Ended>,
    /// Its share of what its connection has to do.
    pub(crate) load: Option<Load>,
    /// Its place among the calls under way.
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Call {
    /// Ends the call. Its caller may have left.
    pub(crate) fn fail(self, error: CallError) {
        self.end(|_| Err(error));
    }

    /// The peer closes the connection and has not looked at it: gives it back to its caller. If that has left, the buffer
    /// goes back to its pool here.
    pub(crate) fn give_back(self) {
        let Self { into, answer, load, permit, .. } = self;
        drop(load);
        let _ = answer.send(Err(Unread { into, permit }));
    }

    /// Ends the call with what `result` makes of its buffer. Its caller may have left: then the buffer goes back to its
    /// pool here.
    fn end(self, result: impl FnOnce(Option<SpanMut>) -> Result<Reply, CallError>) {
        let Self { into, answer, load, permit, .. } = self;
        // Before the caller knows: its next call must find this connection idle, and memory given back.
        drop((load, permit));
        let _ = answer.send(Ok(result(into)));
    }
}

/// Why a connection cannot go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The peer sent what the protocol does not allow.
    Protocol(String),
    /// The peer said why it is about to close the connection.
    Goodbye(Failure),
}

/// The decoder of one connection.
#[derive(Debug)]
pub(crate) struct Replies {
    staging: Staging,
    current: Option<Arriving>,
}

/// A reply of which the header has arrived.
#[derive(Debug)]
struct Arriving {
    header: ReplyHeader,
    /// `None` for a message about the connection.
    call: Option<Call>,
    body: Vec<u8>,
    body_filled: usize,
    payload_filled: usize,
    /// Where payload goes that is not wanted any more.
    aside: Vec<u8>,
}

impl Arriving {
    /// Where the next bytes go; `None` when all have arrived.
    fn target(&mut self) -> Option<&mut [u8]> {
        if self.body_filled < self.body.len() {
            return Some(&mut self.body[self.body_filled..]);
        }
        let payload = self.payload_filled..self.header.payload_len as usize;
        let into = match &mut self.call.as_mut()?.into {
            Some(into) => &mut **into,
            None => &mut self.aside,
        };
        into.get_mut(payload).filter(|rest| !rest.is_empty())
    }

    fn filled(&mut self, count: usize) {
        if self.body_filled < self.body.len() {
            self.body_filled += count;
        } else {
            self.payload_filled += count;
        }
    }

    /// Everything has arrived: brings it to the caller.
    fn finish(self) -> Result<(), Broken> {
        let Self { header, call, body, .. } = self;
        let failure = header.failure(&body);
        let Some(call) = call else { return failure.map_or(Ok(()), |why| Err(Broken::Goodbye(why))) };
        call.end(|into| match failure {
            Some(failure) => Err(CallError::Service(failure)),
            None => {
                let payload = into.map_or(Payload::None, |mut span| {
                    span.truncate(header.payload_len as usize);
                    Payload::Landed(span)
                });
                Ok(Reply { provenance: header.provenance, body: Bytes::from(body), payload })
            }
        });
        Ok(())
    }
}

impl Replies {
    pub(crate) fn new() -> Self {
        Self { staging: Staging::new(), current: None }
    }

    /// Whether a reply has arrived in part.
    pub(crate) fn is_partial(&self) -> bool {
        self.current.is_some() || !self.staging.is_empty()
    }

    /// The call whose reply had arrived in part when the connection ended.
    pub(crate) fn into_call(self) -> Option<Call> {
        self.current.and_then(|arriving| arriving.call)
    }

    /// Has `read` fill the buffers that come next; gives back what it returned. [`Replies::deliver`] must follow.
    pub(crate) fn receive(
        &mut self,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let Some((arriving, rest)) = self.current.as_mut().and_then(|arriving| {
            let rest = arriving.target()?.len();
            Some((arriving, rest))
        }) else {
            let count = read(&mut [IoSliceMut::new(self.staging.space())])?;
            self.staging.received(count);
            return Ok(count);
        };
        let target = arriving.target().unwrap_or_default();
        let count = read(&mut [IoSliceMut::new(target), IoSliceMut::new(self.staging.space())])?;
        arriving.filled(count.min(rest));
        self.staging.received(count.saturating_sub(rest));
        Ok(count)
    }

    /// Brings what has arrived to its calls, which `take` hands out by id.
    ///
    /// # Errors
    /// [`Broken`], after which nothing in the stream can be trusted.
    pub(crate) fn deliver(&mut self, mut take: impl FnMut(u64) -> Option<Call>) -> Result<(), Broken> {
        loop {
            let Some(arriving) = &mut self.current else {
                let Some(bytes) = self.staging.take() else { return Ok(()) };
                let header = ReplyHeader::decode(&bytes).map_err(|error| Broken::Protocol(error.to_string()))?;
                let call =
                    match header.id {
                        CONNECTION_ID => None,
                        id => Some(take(id).ok_or_else(|| {
                            Broken::Protocol(format!("it answered call {id}, which is not under way"))
                        })?),
                    };
                let refusal = refusal(&header, call.as_ref());
                let is_unwanted = call.as_ref().is_some_and(|call| call.into.is_none());
                let (body, aside) = match refusal {
                    Some(_) => (0, 0),
                    None => (header.body_len, if is_unwanted { header.payload_len } else { 0 }),
                };
                let (body, aside) = (vec![0; body as usize], vec![0; aside as usize]);
                self.current = Some(Arriving { header, call, body, body_filled: 0, payload_filled: 0, aside });
                match refusal {
                    Some(reason) => return Err(Broken::Protocol(reason)),
                    None => continue,
                }
            };
            match arriving.target() {
                Some(target) => {
                    let moved = self.staging.move_to(target);
                    if moved == 0 {
                        return Ok(());
                    }
                    arriving.filled(moved);
                }
                None => {
                    if let Some(arriving) = self.current.take() {
                        arriving.finish()?;
                    }
                }
            }
        }
    }
}

/// What is wrong with a reply of this header, before any of its bytes are believed.
pub(crate) fn refusal(header: &ReplyHeader, call: Option<&Call>) -> Option<String> {
    let Some(call) = call else {
        let fits = header.payload_len == 0 && header.body_len <= MAX_GOODBYE;
        return (!fits).then(|| "it sent payload that belongs to no call".to_owned());
    };
    let limit = if header.failure.is_some() { 0 } else { call.limit };
    (header.payload_len > limit)
        .then(|| format!("it answered with {} bytes of payload where {limit} are allowed", header.payload_len))
}

/// What a goodbye means for the calls that wait: that the peer would not have us, or that it went away.
pub(crate) fn is_refusal(goodbye: &Failure) -> bool {
    !matches!(goodbye.kind(), FailureKind::Unavailable | FailureKind::NotReady)
}

/// Whether it promises that the peer has looked at no request that it did not answer, whose answer has arrived, then.
pub(crate) fn is_unread(broken: &Broken) -> bool {
    matches!(broken, Broken::Goodbye(why) if why.kind() == FailureKind::NotReady)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transport::Provenance;
    use forebay_transport::conformance::pool;
    use proptest::prelude::*;
    use std::collections::HashMap;
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    type Answer = oneshot::Receiver<Ended>;

    fn call(into: Option<SpanMut>) -> (Call, Answer) {
        let (answer, answered) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let limit = into.as_ref().map_or(0, |span| span.len() as u32);
        (Call { into, limit, answer, load: None, permit }, answered)
    }

    fn header(id: u64, body_len: usize, payload_len: usize) -> ReplyHeader {
        let (body_len, payload_len) = (body_len as u32, payload_len as u32);
        ReplyHeader { id, failure: None, body_len, payload_len, provenance: Provenance::default() }
    }

    /// Hands out `bytes` in pieces of the given sizes, the end of one and the start of the next in one go.
    fn feed(replies: &mut Replies, bytes: &mut &[u8], size: usize) {
        let received = replies.receive(|buffers| {
            let mut total = 0;
            for buffer in buffers {
                let count = buffer.len().min(size - total).min(bytes.len());
                buffer[..count].copy_from_slice(&bytes[..count]);
                *bytes = &bytes[count..];
                total += count;
            }
            Ok(total)
        });
        assert!(received.unwrap() > 0);
    }

    proptest! {
        #[test]
        fn replies_reach_their_calls_however_their_bytes_are_cut(
            lengths in prop::collection::vec((
                prop_oneof![Just(0usize), 1usize..100, 10_000usize..40_000],
                prop_oneof![Just(0usize), 1usize..100, 10_000usize..100_000],
            ), 1..8),
            cuts in prop::collection::vec(1usize..50_000, 1..20),
        ) {
            let memory = pool(8);
            let (mut waiting, mut answers, mut stream) = (HashMap::new(), Vec::new(), Vec::new());
            for (id, (body, payload)) in lengths.iter().enumerate() {
                // Room for more than comes.
                let (call, answer) = call(memory.try_alloc(payload + 10));
                waiting.insert(id as u64 + 1, call);
                answers.push(answer);
                stream.extend_from_slice(&header(id as u64 + 1, *body, *payload).encode());
                stream.extend(std::iter::repeat_n(0xb0 + id as u8, *body));
                stream.extend(std::iter::repeat_n(id as u8, *payload));
                stream.extend_from_slice(&header(CONNECTION_ID, 0, 0).encode());
            }
            let (mut rest, mut replies) = (&stream[..], Replies::new());
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break }
                feed(&mut replies, &mut rest, *cut);
                prop_assert_eq!(replies.deliver(|id| waiting.remove(&id)), Ok(()));
            }
            prop_assert!(!replies.is_partial() && waiting.is_empty());
            for (id, (mut answer, (body, payload))) in answers.into_iter().zip(lengths).enumerate() {
                let reply = answer.try_recv().unwrap().unwrap().unwrap();
                prop_assert!(reply.body.len() == body && reply.body.iter().all(|byte| *byte == 0xb0 + id as u8));
                let Payload::Landed(span) = reply.payload else { panic!("no payload") };
                prop_assert!(span.len() == payload && span.iter().all(|byte| *byte == id as u8));
            }
            prop_assert_eq!(memory.used(), 0);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 1..300), cut in 1usize..100) {
            let (mut rest, mut replies) = (&bytes[..], Replies::new());
            while !rest.is_empty() {
                feed(&mut replies, &mut rest, cut);
                if replies.deliver(|_| None).is_err() { break }
            }
        }
    }

    #[test]
    fn what_comes_for_a_caller_that_has_left_is_thrown_away_and_the_next_reply_is_found() {
        let memory = pool(1);
        let stream = [&header(1, 3, 50_000).encode()[..], &[1; 50_003], &header(2, 0, 10).encode(), &[2; 10]].concat();
        for cut in [7, 4096, stream.len()] {
            let (mut left, gone) = call(memory.try_alloc(60_000));
            (left.into, _) = (None, drop(gone));
            let (next, mut answer) = call(memory.try_alloc(10));
            let mut waiting = HashMap::from([(1, left), (2, next)]);
            let (mut rest, mut replies) = (&stream[..], Replies::new());
            while !rest.is_empty() {
                feed(&mut replies, &mut rest, cut);
                assert_eq!(replies.deliver(|id| waiting.remove(&id)), Ok(()));
            }
            let Payload::Landed(span) = answer.try_recv().unwrap().unwrap().unwrap().payload else {
                panic!("no payload")
            };
            assert_eq!(*span, [2; 10]);
        }
    }

    #[test]
    fn a_call_whose_reply_is_refused_is_given_back_to_be_failed() {
        let memory = pool(1);
        let (call, _answer) = call(memory.try_alloc(10));
        let (mut call, mut replies) = (Some(call), Replies::new());
        feed(&mut replies, &mut &header(1, 0, 11).encode()[..], 64);
        assert!(matches!(replies.deliver(|_| call.take()), Err(Broken::Protocol(_))));
        assert!(replies.into_call().is_some());
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_goodbye_is_passed_on_with_its_reason() {
        let why = Failure::new(FailureKind::OutOfResources, "too many");
        let header = ReplyHeader { failure: Some(why.kind()), ..header(CONNECTION_ID, 8, 0) };
        let bytes = [&header.encode()[..], b"too many"].concat();
        let mut replies = Replies::new();
        feed(&mut replies, &mut &bytes[..], bytes.len());
        assert!(is_refusal(&why));
        assert_eq!(replies.deliver(|_| None), Err(Broken::Goodbye(why)));
    }

    #[test]
    fn only_a_peer_that_says_so_has_not_looked_at_what_it_did_not_answer() {
        let goodbye = |kind| Broken::Goodbye(Failure::new(kind, "bye"));
        assert!(is_unread(&goodbye(FailureKind::NotReady)));
        for kind in [FailureKind::Unavailable, FailureKind::InvalidArgument, FailureKind::OutOfResources] {
            assert!(!is_unread(&goodbye(kind)));
        }
        assert!(!is_unread(&Broken::Protocol("it makes no sense".to_owned())));
    }

    #[test]
    fn a_call_that_is_given_back_has_its_buffer_and_one_whose_caller_left_gives_it_to_the_pool() {
        let memory = pool(1);
        let (waiting, mut answer) = call(memory.try_alloc(10));
        waiting.give_back();
        let unread = answer.try_recv().unwrap().unwrap_err();
        assert_eq!(unread.into.map(|into| into.len()), Some(10));
        let (left, answer) = call(memory.try_alloc(10));
        drop(answer);
        left.give_back();
        assert_eq!(memory.used(), 0);
    }
}
