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
