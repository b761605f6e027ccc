//! A client's connection to one worker over UCX: what is sent over it and what arrives.
//!
//! Replies arrive in the I/O thread's handler, which finds the connection by its endpoint and the call by its number. A reply that
//! is to be fetched has a task of its own, which owns the caller's buffer until the operation has ended.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_transport::connection::Liveness;
use forebay_transport::wire::{CONNECTION_ID, RequestHeader, set_tag};
use forebay_transport::{CallError, LinkError, Provenance, Reply, Request};
use forebay_ucx::{Data, Endpoint, Message, Protocol, Rendezvous};
use smallvec::smallvec;
use tokio_util::sync::CancellationToken;

use crate::RdmaError;
use crate::client_link::{Call, ClientLink, Command, LinkState, landed};
use crate::io_thread::Core;
use crate::options::ClientOptions;
use crate::wire::{self, Packed};

/// An open connection.
pub(crate) struct Connection {
    state: LinkState,
    pub(crate) endpoint: Endpoint,
    /// Replies whose payload is being fetched.
    fetching: Cell<usize>,
    /// How long a fetch may go on after its caller has left.
    patience: Duration,
}

impl Connection {
    /// Has the I/O thread's worker bring hellos and replies to their connections.
    ///
    /// # Errors
    /// UCX's.
    pub(crate) fn receive_replies(core: &Rc<Core>) -> Result<(), RdmaError> {
        let find = |core: &Weak<Core>, message: &Message<'_>| {
            let core = core.upgrade()?;
            let connection = core.connection(message.from.as_ref()?.key())?;
            connection.state.heard.set(Instant::now());
            Some((core, connection))
        };
        let weak = Rc::downgrade(core);
        core.worker.on_message(wire::WELCOME, move |message| {
            if let Some((core, connection)) = find(&weak, &message) {
                connection.on_welcome(&core, message.header);
            }
        })?;
        let weak = Rc::downgrade(core);
        core.worker.on_message(wire::REPLY, move |message| {
            if let Some((core, connection)) = find(&weak, &message)
                && let Err(reason) = connection.on_reply(&core, message.header, message.data)
            {
                connection.state.protocol(reason);
            }
        })?;
        Ok(())
    }

    /// The peer's hello.
    fn on_welcome(&self, core: &Core, hello: &[u8]) {
        let state = &self.state;
        if state.greeted.get() && state.pass.is_some() {
            return core.gauges.count_forged(&state.peer);
        }
        let version = core.worker.context().library().version();
        state.welcomed(wire::check_hello(&state.hello, version, hello).map_err(|error| error.to_string()));
    }

    /// A reply, or a message about the connection; why it breaks the protocol.
    fn on_reply(self: &Rc<Self>, core: &Rc<Core>, header: &[u8], data: Data<'_>) -> Result<(), String> {
        let state = &self.state;
        // Before it has greeted, a peer need not know the pass: it may only say why it does not.
        if state.greeted.get() && state.pass.is_some_and(|pass| !wire::carries(header, pass.server)) {
            core.gauges.count_forged(&state.peer);
            return Ok(());
        }
        let (header, body, has_payload) = wire::reply(header, (&data).into())?;
        let payload = has_payload.then_some(data);
        if header.id == CONNECTION_ID {
            state.told(header.failure(&body));
            return Ok(());
        }
        let mut call = state.answered(&header)?;
        if let Some(failure) = header.failure(&body) {
            call.end(Err(CallError::Service(failure)));
            return Ok(());
        }
        let (provenance, length) = (header.provenance, header.payload_len as usize);
        match payload {
            // A buffer is not touched for a caller that has left; the peer's operation ends all the same.
            _ if !call.has_caller() => call.end(Err(state.lost("its caller has left").into())),
            None => {
                let payload = landed(call.into.take(), 0);
                call.end(Ok(Reply { provenance, body, payload }));
            }
            Some(Data::Eager(bytes)) => {
                let mut into = call.into.take();
                if let Some(room) = into.as_mut().and_then(|into| into.get_mut(..length)) {
                    room.copy_from_slice(bytes);
                }
                call.end(Ok(Reply { provenance, body, payload: landed(into, length) }));
            }
            Some(Data::Rendezvous(rendezvous)) => self.fetch(core, call, rendezvous, (provenance, body, length)),
        }
        Ok(())
    }

    /// Fetches a payload into the caller's buffer, which the operation owns meanwhile. A mount cannot answer the kernel
    /// while its payload is in use here, not even with what another worker answered. So a fetch that goes on for
    /// `patience` after its caller has left ends the connection.
    fn fetch(
        self: &Rc<Self>,
        core: &Rc<Core>,
        mut call: Call,
        rendezvous: Rendezvous,
        (provenance, body, length): (Provenance, Bytes, usize),
    ) {
        // There is one: payload is within the limit, and a limit comes with a buffer.
        let Some(into) = call.into.take() else { return };
        let of_caller = if core.registration.covers(&into) { None } else { core.caller_memory.fetch(&into) };
        let registration = of_caller.as_ref().unwrap_or(&core.registration);
        let receiving = rendezvous.receive(smallvec![into], Some(registration));
        let connection = Rc::clone(self);
        connection.fetching.update(|count| count + 1);
        tokio::task::spawn_local(async move {
            let state = &connection.state;
            // Whenever it ends without them, the operation keeps the buffers until it has ended, too.
            let received = tokio::select! {
                received = receiving => Ok(received),
                () = state.ended.cancelled() => Err(state.lost("it ended while a reply was being fetched")),
                () = call.forsaken(connection.patience) => {
                    let why = state.lost(format!("a reply had not arrived {:?} after its caller left", connection.patience));
                    state.break_off(why.clone());
                    Err(why)
                }
            };
            connection.fetching.update(|count| count - 1);
            let result = received.and_then(|(mut buffers, outcome)| {
                state.heard.set(Instant::now());
                match outcome {
                    Ok(received) if received == length => {
                        Ok(Reply { provenance, body, payload: landed(buffers.pop(), length) })
                    }
                    Ok(received) => Err(state.lost(format!("{received} of {length} bytes arrived"))),
                    Err(error) => Err(state.lost(error.to_string())),
                }
            });
            call.end(result.map_err(CallError::from));
        });
    }

    fn send(&self, core: &Core, id: u64, request: &Request) {
        let mut header = RequestHeader::of(id, request).encode();
        if let Some(pass) = &self.state.pass {
            set_tag(&mut header, pass.client);
        }
        let body = match request.tail.is_empty() {
            true => request.body.clone(),
            false => [&request.body[..], &request.tail].concat().into(),
        };
        let packed = Packed::new(&header, body, core.worker.max_header());
        // If it fails, so does the endpoint, which is noticed.
        self.endpoint.am_send(wire::REQUEST, packed.header(), packed.rest.clone(), None, Protocol::Eager).detach();
    }

    /// Returns when the peer's hello has come and was right.
    async fn greeted(&self) -> Result<(), LinkError> {
        loop {
            if let Some(error) = self.state.broken.borrow_mut().take() {
                return Err(error);
            }
            if self.state.greeted.get() {
                return Ok(());
            }
            tokio::select! {
                () = self.state.changed.notified() => {}
                status = self.endpoint.failed() => return Err(self.connect_failed(status.to_string())),
            }
        }
    }

    fn connect_failed(&self, reason: String) -> LinkError {
        LinkError::Connect { peer: self.state.peer.to_string(), reason }
    }

    /// Tells the log by which transports it goes, and refuses those that are not RDMA where that is demanded.
    fn check_lanes(&self, require_rdma: bool) -> Result<(), LinkError> {
        let lanes = self.endpoint.lanes().map_err(|error| self.connect_failed(error.to_string()))?;
        let named: Vec<_> = lanes.iter().map(ToString::to_string).collect();
        if require_rdma && !lanes.iter().any(forebay_ucx::Resource::is_rdma) {
            let reason =
                format!("UCX reaches it by {}, which is not RDMA; check the cards of both sides", named.join(", "));
            return Err(self.state.refused(reason));
        }
        tracing::info!(peer = &*self.state.peer, lanes = named.join(", "), "RDMA client connected");
        Ok(())
    }
}

/// Forgets a connection that did not come to be.
struct Greeting<'a> {
    core: &'a Core,
    key: Option<usize>,
}

impl Drop for Greeting<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.forget(key);
        }
    }
}

impl ClientLink for Connection {
    type Core = Core;

    fn stop(core: &Core) -> &CancellationToken {
        &core.stop
    }

    async fn greet(
        core: &Rc<Core>,
        peer: &Arc<str>,
        address: SocketAddr,
        options: &ClientOptions,
    ) -> Result<Rc<Self>, LinkError> {
        let pass = options.pass(core.client_id, peer).await?;
        let endpoint = match pass {
            Some(_) => core.worker.connect_with_id(address, options.bind),
            None => core.worker.connect(address, options.bind),
        };
        let failed = |reason: String| LinkError::Connect { peer: peer.to_string(), reason };
        let endpoint = endpoint.map_err(|error| failed(error.to_string()))?;
        let connection = Rc::new(Self {
            state: LinkState::new(peer, pass, options),
            endpoint: endpoint.clone(),
            fetching: Cell::new(0),
            patience: options.dead_after,
        });
        core.remember(&connection);
        let mut greeting = Greeting { core, key: Some(endpoint.key()) };
        let tag = pass.map_or(0, |pass| pass.client);
        let hello = wire::hello_with(&connection.state.hello, core.worker.context().library().version(), tag);
        endpoint.am_send(wire::HELLO, &hello, Bytes::new(), None, Protocol::Eager).detach();
        connection.greeted().await?;
        connection.check_lanes(options.require_rdma)?;
        greeting.key = None;
        Ok(connection)
    }

    fn state(&self) -> &LinkState {
        &self.state
    }

    fn start(
        self: &Rc<Self>,
        core: &Rc<Core>,
        request: Request,
        mut call: Call,
        liveness: &mut Liveness,
    ) -> Option<Command> {
        if let Some(timing) = &mut call.timing {
            timing.sent();
        }
        let begun = match self.state.calls.borrow_mut().begin(call) {
            Ok(begun) => begun,
            Err(call) => return Some(Command::Call(request, call)),
        };
        if begun.watch {
            liveness.heard(Instant::now());
        }
        self.send(core, begun.id, &request);
        None
    }

    fn ping(&self, core: &Core, request: &Request) {
        self.send(core, CONNECTION_ID, request);
    }

    /// Nothing is written to a buffer before its reply begins.
    fn sweep(&self) {
        let mut calls = self.state.calls.borrow_mut();
        let mut left = Vec::new();
        for (id, call) in calls.calls_mut() {
            if !call.has_caller() {
                call.into = None;
                left.push(id);
            }
        }
        for id in left {
            calls.abandon(id);
        }
    }

    fn watch(&self) -> bool {
        self.state.calls.borrow_mut().watch() || self.fetching.get() > 0
    }

    fn is_spent(&self) -> bool {
        self.state.calls.borrow().is_spent() && self.fetching.get() == 0
    }

    /// Each begins at once.
    fn take_waiting(&self) -> VecDeque<(Request, Call)> {
        VecDeque::new()
    }

    fn forget(&self, core: &Core) {
        core.forget(self.endpoint.key());
    }

    async fn failed(&self) -> String {
        self.endpoint.failed().await.to_string()
    }

    async fn close(&self) {
        self.endpoint.close(true).await;
    }
}
