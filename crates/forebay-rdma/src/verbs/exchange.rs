//! A request and its answer over verbs, whoever receives: the I/O thread, or the thread that asks.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use forebay_identity::Pass;
use forebay_memory::SpanMut;
use forebay_transport::wire::{ReplyHeader, RequestHeader, set_tag};
use forebay_transport::{CallError, LinkError, Reply, Request};
use forebay_verbs::Remote;

use crate::client_link::{Call, landed};
use crate::gauges::Gauges;
use crate::verbs::channel::Outgoing;
use crate::verbs::frame::Kind;
use crate::verbs::payload::{PayloadError, Piece, check_reply, place_of};

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

/// Copies a piece of payload that has come by itself to where it belongs in the buffer of its `call`, if there is that one. What comes
/// for a caller that has left is dropped.
///
/// # Errors
/// How it breaks the protocol.
pub(super) fn land(
    in_messages: bool,
    call: Option<&mut Call>,
    piece: &Piece<'_>,
    gauges: &Gauges,
) -> Result<(), String> {
    if !in_messages {
        return Err("payload comes in a message, which is to be written to its place".to_owned());
    }
    let call = call.ok_or_else(|| PayloadError::Call(piece.call).to_string())?;
    let place = place_of(piece, call.came, call.limit).map_err(|error| error.to_string())?;
    call.came += piece.bytes.len() as u32;
    if !call.has_caller() {
        call.into = None;
    }
    if let Some(room) = call.into.as_mut().and_then(|into| into.get_mut(place)) {
        room.copy_from_slice(piece.bytes);
        gauges.in_messages.fetch_add(piece.bytes.len() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// What an answer says.
pub(super) struct Answered<'a> {
    pub(super) header: ReplyHeader,
    pub(super) body: Bytes,
    /// The payload that came with it.
    pub(super) inside: &'a [u8],
    /// The payload was written to the caller's buffer, or went before.
    pub(super) is_written: bool,
    /// Payload comes in messages over this connection.
    pub(super) in_messages: bool,
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
        let Self { header, body, inside, is_written, in_messages } = self;
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
        let length = header.payload_len as usize;
        if in_messages {
            let said = if is_written { header.payload_len } else { 0 };
            if let Err(error) = check_reply(said, call.came) {
                drop(into);
                return breaks(call, &error.to_string());
            }
        } else if is_written && call.window.is_none() {
            drop(into);
            return breaks(call, "a payload was written where nobody offered a place for it");
        }
        if let Some(failure) = header.failure(&body) {
            drop(into);
            call.end(Err(CallError::Service(failure)));
            return Ok(());
        }
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
        (Call { into, window, came: 0, limit: 100, answer, timing: None, _permit: permit }, answered)
    }

    fn answer(inside: &[u8], payload_len: u32, is_written: bool) -> Answered<'_> {
        let provenance = Provenance::default();
        let header = ReplyHeader { id: 1, failure: None, body_len: 0, payload_len, provenance };
        Answered { header, body: Bytes::new(), inside, is_written, in_messages: false }
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
    fn payload_in_messages_lands_in_order_and_its_reply_says_how_much_there_was() {
        let (pool, gauges) = (pool(), Gauges::default());
        let piece = |call, offset, bytes| Piece { call, offset, bytes };
        let (mut asked, answered) = call(Some(buffer(&pool, 1)), None);
        land(true, Some(&mut asked), &piece(1, 0, &[7; 40]), &gauges).unwrap();
        land(true, Some(&mut asked), &piece(1, 40, &[8; 60]), &gauges).unwrap();
        let said = Answered { in_messages: true, ..answer(&[], 100, true) };
        said.end(asked, "peer", |_| None).unwrap();
        assert_eq!(payload(answered), [[7_u8; 40].as_slice(), &[8; 60]].concat());
        assert_eq!(gauges.in_messages.load(Ordering::Relaxed), 100);
        // Of a caller that has left nothing is kept, and its buffer is free.
        let (mut asked, answered) = call(Some(buffer(&pool, 1)), None);
        drop(answered);
        land(true, Some(&mut asked), &piece(1, 0, &[7; 40]), &gauges).unwrap();
        assert_eq!((pool.used(), asked.came), (0, 40));
        Answered { in_messages: true, ..answer(&[], 40, true) }.end(asked, "peer", |_| None).unwrap();
        assert_eq!(gauges.in_messages.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn payload_that_nobody_asked_for_or_in_another_order_or_another_amount_breaks_the_protocol() {
        let (pool, gauges) = (pool(), Gauges::default());
        let piece = |offset, bytes| Piece { call: 1, offset, bytes };
        let (mut asked, mut answered) = call(Some(buffer(&pool, 1)), None);
        assert!(land(true, None, &piece(0, &[7; 40]), &gauges).is_err());
        assert!(land(false, Some(&mut asked), &piece(0, &[7; 40]), &gauges).is_err());
        assert!(land(true, Some(&mut asked), &piece(1, &[7; 40]), &gauges).is_err());
        assert!(land(true, Some(&mut asked), &piece(0, &[7; 101]), &gauges).is_err());
        assert_eq!(asked.came, 0);
        land(true, Some(&mut asked), &piece(0, &[7; 40]), &gauges).unwrap();
        let said = Answered { in_messages: true, ..answer(&[], 41, true) };
        assert!(said.end(asked, "peer", |_| None).is_err());
        let result = answered.try_recv().unwrap();
        assert!(matches!(&result, Err(CallError::Link(LinkError::Protocol { .. }))), "{result:?}");
        assert_eq!(pool.used(), 0);
        // What says that nothing went before, when something did.
        let (mut asked, _answered) = call(Some(buffer(&pool, 1)), None);
        land(true, Some(&mut asked), &piece(0, &[7; 40]), &gauges).unwrap();
        let inside = Answered { in_messages: true, ..answer(&[7; 3], 3, false) };
        assert!(inside.end(asked, "peer", |_| None).is_err());
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
