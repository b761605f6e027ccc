//! A request and its answer over UCX, whoever receives: the I/O thread, or the thread that asks.

use bytes::Bytes;
use forebay_identity::Pass;
use forebay_memory::SpanMut;
use forebay_transport::wire::{CONNECTION_ID, RequestHeader, set_tag};
use forebay_transport::{CallError, LinkError, Provenance, Reply, Request};
use forebay_ucx::{Resource, Status, Version};

use crate::client_link::{Call, LinkState, landed};
use crate::gauges::Gauges;
use crate::wire::{self, Packed, Received};

/// The message of a request that goes by the number `id`.
pub(crate) fn outgoing(id: u64, request: &Request, pass: Option<&Pass>, max_header: usize) -> Packed {
    let mut header = RequestHeader::of(id, request).encode();
    if let Some(pass) = pass {
        set_tag(&mut header, pass.client);
    }
    let body = match request.tail.is_empty() {
        true => request.body.clone(),
        false => [&request.body[..], &request.tail].concat().into(),
    };
    Packed::new(&header, body, max_header)
}

/// The peer's hello.
pub(crate) fn welcome(state: &LinkState, gauges: &Gauges, version: Version, hello: &[u8]) {
    if state.greeted.get() && state.pass.is_some() {
        return gauges.count_forged(&state.peer);
    }
    state.welcomed(wire::check_hello(&state.hello, version, hello).map_err(|error| error.to_string()));
}

/// A reply whose payload is to be fetched into the buffer of its call.
pub(crate) struct Announced {
    pub(crate) call: Call,
    provenance: Provenance,
    body: Bytes,
    length: usize,
}

/// A reply, or a message about the connection: the call that it answers is ended, unless there is something to fetch.
///
/// # Errors
/// Why it breaks the protocol.
pub(crate) fn answer(
    state: &LinkState,
    gauges: &Gauges,
    header: &[u8],
    data: Received<'_>,
) -> Result<Option<Announced>, String> {
    // Before it has greeted, a peer need not know the pass: it may only say why it does not.
    if state.greeted.get() && state.pass.is_some_and(|pass| !wire::carries(header, pass.server)) {
        gauges.count_forged(&state.peer);
        return Ok(None);
    }
    let (header, body, has_payload) = wire::reply(header, data)?;
    if header.id == CONNECTION_ID {
        state.told(header.failure(&body));
        return Ok(None);
    }
    let mut call = state.answered(&header)?;
    if let Some(failure) = header.failure(&body) {
        call.end(Err(CallError::Service(failure)));
        return Ok(None);
    }
    let (provenance, length) = (header.provenance, header.payload_len as usize);
    match data {
        // A buffer is not touched for a caller that has left; the peer's operation ends all the same.
        _ if !call.has_caller() => call.end(Err(state.lost("its caller has left").into())),
        _ if !has_payload => {
            let payload = landed(call.into.take(), 0);
            call.end(Ok(Reply { provenance, body, payload }));
        }
        Received::Here(bytes) => {
            let mut into = call.into.take();
            if let Some(room) = into.as_mut().and_then(|into| into.get_mut(..length)) {
                room.copy_from_slice(bytes);
            }
            call.end(Ok(Reply { provenance, body, payload: landed(into, length) }));
        }
        Received::Announced(_) => return Ok(Some(Announced { call, provenance, body, length })),
    }
    Ok(None)
}

impl Announced {
    /// The fetch has ended.
    pub(crate) fn ended(self, state: &LinkState, into: Option<SpanMut>, outcome: Result<usize, forebay_ucx::Error>) {
        let Self { call, provenance, body, length } = self;
        let result = match outcome {
            Ok(received) if received == length => Ok(Reply { provenance, body, payload: landed(into, length) }),
            Ok(received) => Err(state.lost(format!("{received} of {length} bytes arrived"))),
            Err(error) => {
                // UCX then takes neither another attempt nor a refusal: the sender is rid of its payload when the connection ends.
                if error == forebay_ucx::Error::Ended(Status::NO_MEMORY) {
                    state.retire("UCX has no memory to fetch a reply");
                }
                Err(state.lost(error.to_string()))
            }
        };
        call.end(result.map_err(CallError::from));
    }
}

/// By which transports a connection goes, in words; those that are not RDMA are refused where that is demanded.
///
/// # Errors
/// [`LinkError::Refused`].
pub(crate) fn check_lanes(state: &LinkState, lanes: &[Resource], require_rdma: bool) -> Result<String, LinkError> {
    let named = lanes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if require_rdma && !lanes.iter().any(Resource::is_rdma) {
        let reason = format!("UCX reaches it by {named}, which is not RDMA; check the cards of both sides");
        return Err(state.refused(reason));
    }
    Ok(named)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, oneshot};

    use super::*;
    use crate::options::ClientOptions;

    #[test]
    fn a_connection_over_which_a_reply_is_not_fetched_for_want_of_memory_takes_no_more_calls() {
        for (status, retires) in [(Status::NO_MEMORY, true), (Status::CANCELED, false)] {
            let state = LinkState::new(&Arc::from("127.0.0.1:1"), None, &ClientOptions::new("test", 1 << 20));
            let (answer, mut answered) = oneshot::channel();
            let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
            let call = Call { into: None, window: None, came: 0, limit: 1, answer, timing: None, _permit: permit };
            let announced = Announced { call, provenance: Provenance::default(), body: Bytes::new(), length: 1 };
            announced.ended(&state, None, Err(forebay_ucx::Error::Ended(status)));
            assert!(matches!(answered.try_recv(), Ok(Err(CallError::Link(LinkError::Lost { .. })))));
            assert_eq!(state.retires.get(), retires, "{status}");
        }
    }
}
