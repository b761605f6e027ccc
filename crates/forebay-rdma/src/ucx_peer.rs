//! A server's connection over UCX.

use std::rc::Rc;

use bytes::Bytes;
use forebay_transport::wire::Hello;
use forebay_ucx::{Endpoint, Payload, Protocol};

use crate::io_thread::Core;
use crate::peer_link::{OutgoingReply, PeerLink, Taken, Unfit};
use crate::wire::{self, Packed};

/// One endpoint.
#[derive(Clone)]
pub(crate) struct UcxPeer {
    core: Rc<Core>,
    endpoint: Endpoint,
}

impl UcxPeer {
    pub(crate) fn new(core: &Rc<Core>, endpoint: Endpoint) -> Self {
        Self { core: Rc::clone(core), endpoint }
    }
}

impl PeerLink for UcxPeer {
    fn key(&self) -> usize {
        self.endpoint.key()
    }

    fn check_hello(&self, ours: &Hello, hello: &[u8]) -> Result<u64, String> {
        let version = self.core.worker.context().library().version();
        wire::check_hello(ours, version, hello).map_err(|error| error.to_string())
    }

    fn welcome(&self, ours: &Hello, tag: u64) {
        let welcome = wire::hello_with(ours, self.core.worker.context().library().version(), tag);
        self.endpoint.am_send(wire::WELCOME, &welcome, Bytes::new(), None, Protocol::Eager).detach();
    }

    fn reply(&self, reply: OutgoingReply, is_watched: bool) -> Result<Option<Taken>, Unfit> {
        let packed = Packed::new(&reply.header, reply.body, self.core.worker.max_header());
        let (data, protocol) = match reply.payload.is_empty() {
            true => (Payload::Bytes(packed.rest.clone()), Protocol::Eager),
            false if packed.rest.is_empty() => (Payload::Spans(reply.payload), Protocol::Auto),
            // A payload beside a body that does not fit has nowhere to go.
            false => return Err(Unfit),
        };
        let registration = Some(&self.core.registration);
        let sending = self.endpoint.am_send(wire::REPLY, packed.header(), data, registration, protocol);
        if !is_watched {
            sending.detach();
            return Ok(None);
        }
        Ok(Some(Box::pin(async move { sending.await.is_ok() })))
    }

    fn operations(&self) -> usize {
        self.endpoint.operations()
    }

    fn ended(&self) -> u64 {
        self.endpoint.ended()
    }

    async fn failed(&self) -> String {
        self.endpoint.failed().await.to_string()
    }

    async fn flush(&self) {
        // That it fails is noticed otherwise.
        let _ = self.endpoint.flush().await;
    }

    async fn close(&self) {
        self.endpoint.close(true).await;
    }
}
