//! A client's connection to one worker over UCX: what is sent over it and what arrives.
//!
//! Replies arrive in the I/O thread's handler, which finds the connection by its endpoint and the call by its number. A reply that
//! is to be fetched has a task of its own, which owns the caller's buffer until the operation has ended.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_transport::connection::Liveness;
use forebay_transport::wire::CONNECTION_ID;
use forebay_transport::{LinkError, Request};
use forebay_ucx::{Data, Endpoint, Message, Protocol, Rendezvous};
use smallvec::smallvec;
use tokio_util::sync::CancellationToken;

use crate::RdmaError;
use crate::client_link::{Call, ClientLink, Command, LinkState};
use crate::io_thread::Core;
use crate::options::ClientOptions;
use crate::ucx::exchange::{self, Announced, outgoing};
use crate::ucx::fetches::Fetches;
use crate::wire;

/// An open connection.
pub(crate) struct Connection {
    state: LinkState,
    pub(crate) endpoint: Endpoint,
    /// Replies whose payload is being fetched.
    fetches: Fetches,
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
                let version = core.worker.context().library().version();
                exchange::welcome(&connection.state, &core.gauges, version, message.header);
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

    /// A reply, or a message about the connection; why it breaks the protocol.
    fn on_reply(self: &Rc<Self>, core: &Rc<Core>, header: &[u8], data: Data<'_>) -> Result<(), String> {
        let announced = exchange::answer(&self.state, &core.gauges, header, (&data).into())?;
        if let (Some(announced), Data::Rendezvous(rendezvous)) = (announced, data) {
            self.fetch(core, announced, rendezvous);
        }
        Ok(())
    }

    /// Fetches a payload into the caller's buffer, which the operation owns meanwhile.
    fn fetch(self: &Rc<Self>, core: &Rc<Core>, mut announced: Announced, rendezvous: Rendezvous) {
        // There is one: payload is within the limit, and a limit comes with a buffer.
        let Some(into) = announced.call.into.take() else { return };
        let of_caller = if core.registration.covers(&into) { None } else { core.caller_memory.fetch(&into) };
        let registration = of_caller.as_ref().unwrap_or(&core.registration);
        let receiving = rendezvous.receive(smallvec![into], Some(registration));
        let connection = Rc::clone(self);
        connection.fetches.begin();
        tokio::task::spawn_local(async move {
            let Self { state, fetches, patience, .. } = &*connection;
            // Whenever it ends without them, the operation keeps the buffers until it has ended, too.
            match fetches.end(state, &mut announced.call, *patience, receiving).await {
                Ok((mut buffers, outcome)) => {
                    state.heard.set(Instant::now());
                    announced.ended(state, buffers.pop(), outcome);
                }
                Err(why) => announced.call.end(Err(why.into())),
            }
        });
    }

    fn send(&self, core: &Core, id: u64, request: &Request) {
        let packed = outgoing(id, request, self.state.pass.as_ref(), core.worker.max_header());
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
        let lanes = exchange::check_lanes(&self.state, &lanes, require_rdma)?;
        tracing::info!(peer = &*self.state.peer, lanes, "RDMA client connected");
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
            fetches: Fetches::default(),
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
        self.state.calls.borrow_mut().watch() || self.fetches.are_under_way()
    }

    fn is_spent(&self) -> bool {
        self.state.calls.borrow().is_spent() && !self.fetches.are_awaited()
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
