//! A request and its answer over verbs, whoever receives: the I/O thread, or the thread that asks.

use bytes::Bytes;
use forebay_identity::Pass;
use forebay_memory::SpanMut;
use forebay_transport::wire::{ReplyHeader, RequestHeader, set_tag};
use forebay_transport::{CallError, LinkError, Reply, Request};
use forebay_verbs::Remote;

use crate::client_link::{Call, landed};
use crate::verbs::channel::Outgoing;
use crate::verbs::frame::Kind;

/// The message of a request that goes by the number `id`, with the window through which its answer's payload may be written.
pub(super) fn outgoing(id: u64, request: &Request, offered: Option<(Remote, usize)>, pass: Option<&Pass>) -> Outgoing {
    let mut header = RequestHeader::of(id, request).encode();
    if let Some(pass) = pass {
        set_tag(&mut header, pass.client);
    }
    let body = match request.tail.is_empty() {
        true => request.body.clone(),
        false => [&request.body[..], &request.tail].concat().into(),
    };
    Outgoing { body, offered, ..Outgoing::new(Kind::Request, &header) }
}

/// What an answer says.
pub(super) struct Answered<'a> {
    pub(super) header: ReplyHeader,
    pub(super) body: Bytes,
    /// The payload that came with it.
    pub(super) inside: &'a [u8],
    /// The payload was written to the caller's buffer.
    pub(super) is_written: bool,
}

impl Answered<'_> {
    /// Ends `call` by it. `take_back` gives the buffer that a window was bound to, if the answer has ended the use of its key.
    ///
    /// # Errors
    /// How it breaks the protocol, with which the call has ended, too.
    pub(super) fn end(
        self,
        mut call: Call,
        peer: &str,
        take_back: impl FnOnce(usize) -> Option<SpanMut>,
    ) -> Result<(), String> {
        let Self { header, body, inside, is_written } = self;
        let breaks = |call: Call, reason: &str| {
            let (peer, told) = (peer.to_owned(), reason.to_owned());
            call.end(Err(LinkError::Protocol { peer, reason: told }.into()));
            Err(reason.to_owned())
        };
        let mut into = match call.window {
            None => call.into.take(),
            Some(window) => match take_back(window) {
                Some(span) => Some(span),
                // The card has the buffer until the connection was drained.
                None => return breaks(call, "an answer leaves its payload's key in use"),
            },
        };
        if is_written && call.window.is_none() {
            return breaks(call, "a payload was written where nobody offered a place for it");
        }
        if let Some(failure) = header.failure(&body) {
            drop(into);
            call.end(Err(CallError::Service(failure)));
            return Ok(());
        }
        let length = header.payload_len as usize;
        if !is_written && let Some(room) = into.as_mut().and_then(|into| into.get_mut(..length)) {
            room.copy_from_slice(inside);
        }
        call.end(Ok(Reply { provenance: header.provenance, body, payload: landed(into, length) }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_memory::{Pool, PoolOptions};
    use forebay_transport::{Payload, Provenance};
    use forebay_types::ByteSize;
    use tokio::sync::{Semaphore, oneshot};

    use super::*;

    type Receiver = oneshot::Receiver<Result<Reply, CallError>>;

    fn call(into: Option<SpanMut>, window: Option<usize>) -> (Call, Receiver) {
        let (answer, answered) = oneshot::channel();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        (Call { into, window, limit: 100, answer, timing: None, _permit: permit }, answered)
    }

    fn answer(inside: &[u8], payload_len: u32, is_written: bool) -> Answered<'_> {
        let provenance = Provenance::default();
        let header = ReplyHeader { id: 1, failure: None, body_len: 0, payload_len, provenance };
        Answered { header, body: Bytes::new(), inside, is_written }
    }

    fn buffer(pool: &Pool, byte: u8) -> SpanMut {
        let mut buffer = pool.try_alloc(100).unwrap();
        buffer.fill(byte);
        buffer
    }

    fn payload(mut answered: Receiver) -> Vec<u8> {
        match answered.try_recv().unwrap().unwrap().payload {
            Payload::Landed(bytes) => bytes.to_vec(),
            _ => panic!("it has no payload"),
        }
    }

    fn pool() -> Pool {
        Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(8)) }).unwrap()
    }

    #[test]
    fn what_comes_within_a_message_is_copied_and_what_was_written_is_taken_back() {
        let pool = pool();
        let (inside, answered) = call(Some(buffer(&pool, 1)), None);
        answer(&[7; 3], 3, false).end(inside, "peer", |_| None).unwrap();
        assert_eq!(payload(answered), [7; 3]);
        let (written, answered) = call(None, Some(5));
        let take_back = |window| (window == 5).then(|| buffer(&pool, 2));
        answer(&[], 4, true).end(written, "peer", take_back).unwrap();
        assert_eq!(payload(answered), [2; 4]);
        // A window that was not needed.
        let (inside, answered) = call(None, Some(5));
        answer(&[7; 3], 3, false).end(inside, "peer", |_| Some(buffer(&pool, 2))).unwrap();
        assert_eq!(payload(answered), [7; 3]);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn who_leaves_a_key_in_use_or_writes_where_nothing_waits_breaks_the_protocol() {
        let pool = pool();
        for (is_written, window) in [(true, None), (true, Some(5)), (false, Some(5))] {
            let into = window.is_none().then(|| buffer(&pool, 1));
            let (asked, mut answered) = call(into, window);
            let broken = answer(&[], 0, is_written).end(asked, "peer", |_| None);
            assert!(broken.is_err());
            let result = answered.try_recv().unwrap();
            assert!(matches!(&result, Err(CallError::Link(LinkError::Protocol { .. }))), "{result:?}");
        }
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_reply_that_brings_more_than_was_asked_for_ends_its_call() {
        let header = |payload_len| answer(&[], payload_len, false).header;
        let (asked, _answered) = call(None, None);
        assert!(asked.within_limit(&header(100), "peer").is_ok());
        let (asked, mut answered) = call(None, None);
        assert!(asked.within_limit(&header(101), "peer").is_err());
        assert!(matches!(answered.try_recv().unwrap(), Err(CallError::Link(LinkError::Protocol { .. }))));
    }
}
