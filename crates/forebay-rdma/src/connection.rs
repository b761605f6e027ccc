//! A client's connection to one worker: what is sent over it and what arrives.
//!
//! Replies arrive in the I/O thread's handler, which finds the connection by its endpoint and the call by its number. A reply that
//! is to be fetched has a task of its own, which owns the caller's buffer until the operation has ended.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_identity::Pass;
use forebay_memory::SpanMut;
use forebay_transport::connection::{Liveness, Outstanding};
use forebay_transport::wire::{CONNECTION_ID, Hello, RequestHeader, set_tag};
use forebay_transport::{CallError, LinkError, Payload, Provenance, Reply, Request};
use forebay_types::FailureKind;
use forebay_ucx::{Data, Endpoint, Message, Protocol, Rendezvous};
use smallvec::smallvec;
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use crate::RdmaError;
use crate::io_thread::Core;
use crate::trace::{Outcome, Timing};
use crate::wire::{self, Packed};

/// A call that waits for its answer, and what it owns until then.
pub(crate) struct Call {
    /// Where payload goes.
    pub(crate) into: Option<SpanMut>,
    /// The most payload that was asked for.
    pub(crate) limit: u32,
    /// Where the answer goes.
    pub(crate) answer: oneshot::Sender<Result<Reply, CallError>>,
    /// Its way through the stages, if that is recorded.
    pub(crate) timing: Option<Timing>,
    /// Its place among the calls under way.
    pub(crate) _permit: OwnedSemaphorePermit,
}

impl Call {
    /// Ends it. Its caller may have left: then its buffer goes back to its pool here.
    pub(crate) fn end(self, result: Result<Reply, CallError>) {
        if let Some(timing) = self.timing {
            let moved = |reply: &Reply| match &reply.payload {
                Payload::Landed(bytes) => bytes.len() as u64,
                Payload::None | Payload::Shared(_) => 0,
            };
            timing.ended(match &result {
                _ if self.answer.is_closed() => Outcome::abandoned(),
                Ok(reply) => Outcome::Moved(moved(reply)),
                Err(error) => Outcome::of_error(error),
            });
        }
        // The caller's next call finds this one's place, and its buffer, given back.
        drop((self._permit, self.into));
        let _ = self.answer.send(result);
    }

    fn has_caller(&self) -> bool {
        !self.answer.is_closed()
    }

    /// Returns when the caller has been gone for `patience`.
    async fn forsaken(&mut self, patience: Duration) {
        self.answer.closed().await;
        tokio::time::sleep(patience).await;
    }
}

/// What callers want of a connection.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all of them are calls, and a box would be an allocation for each"
)]
pub(crate) enum Command {
    /// Send this request.
    Call(Request, Call),
    /// Some caller has left.
    Sweep,
    /// End, and say so.
    Close(oneshot::Sender<()>),
}

/// An open connection.
pub(crate) struct Connection {
    pub(crate) peer: Arc<str>,
    /// What we say to the peer, and what it must agree with.
    pub(crate) hello: Hello,
    /// What each side shows in its messages. `None`: nothing.
    pub(crate) pass: Option<Pass>,
    pub(crate) endpoint: Endpoint,
    pub(crate) calls: RefCell<Outstanding<Call>>,
    pub(crate) heard: Cell<Instant>,
    /// Replies whose payload is being fetched.
    pub(crate) fetching: Cell<usize>,
    /// How long a fetch may go on after its caller has left.
    pub(crate) patience: Duration,
    /// Whether the peer's hello has come and was right.
    pub(crate) greeted: Cell<bool>,
    /// The peer wants its client to come again: over another connection, while what was asked over this one is answered.
    pub(crate) outlived: Cell<bool>,
    /// Why it cannot go on.
    pub(crate) broken: RefCell<Option<LinkError>>,
    /// Something of the above has changed.
    pub(crate) changed: Notify,
    /// Cancelled when the connection has ended, so that callers whose payload is being fetched hear of it at once.
    pub(crate) ended: CancellationToken,
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
            connection.heard.set(Instant::now());
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
                connection.protocol(reason);
            }
        })?;
        Ok(())
    }

    /// The peer's hello.
    fn on_welcome(&self, core: &Core, hello: &[u8]) {
        if self.greeted.get() && self.pass.is_some() {
            return core.count_forged(&self.peer);
        }
        match wire::check_hello(&self.hello, core.worker.context().library().version(), hello) {
            Ok(tag) if self.pass.is_none_or(|pass| pass.server == tag) => {
                self.greeted.set(true);
                self.changed.notify_one();
            }
            Ok(_) => {
                let reason = "it does not know the pass that the worker gave over TCP; see which process listens there";
                self.break_off(self.refused(reason.to_owned()));
            }
            Err(error) => self.break_off(self.refused(error.to_string())),
        }
    }

    pub(crate) fn refused(&self, reason: String) -> LinkError {
        LinkError::Refused { peer: self.peer.to_string(), reason }
    }

    pub(crate) fn lost(&self, reason: impl Into<String>) -> LinkError {
        LinkError::Lost { peer: self.peer.to_string(), reason: reason.into() }
    }

    fn protocol(&self, reason: String) {
        self.break_off(LinkError::Protocol { peer: self.peer.to_string(), reason });
    }

    pub(crate) fn break_off(&self, why: LinkError) {
        self.broken.borrow_mut().get_or_insert(why);
        self.changed.notify_one();
    }

    /// A reply, or a message about the connection; why it breaks the protocol.
    fn on_reply(self: &Rc<Self>, core: &Rc<Core>, header: &[u8], data: Data<'_>) -> Result<(), String> {
        // Before it has greeted, a peer need not know the pass: it may only say why it does not.
        if self.greeted.get() && self.pass.is_some_and(|pass| !wire::carries(header, pass.server)) {
            core.count_forged(&self.peer);
            return Ok(());
        }
        let (header, body, has_payload) = wire::reply(header, (&data).into())?;
        let payload = has_payload.then_some(data);
        if header.id == CONNECTION_ID {
            match header.failure(&body) {
                Some(why) if why.kind() == FailureKind::NotReady => {
                    self.outlived.set(true);
                    self.changed.notify_one();
                }
                Some(why) => self.break_off(self.refused(why.message().to_owned())),
                None => {}
            }
            return Ok(());
        }
        let Some(mut call) = self.calls.borrow_mut().take(header.id) else {
            return Err(format!("it answered call {}, which there is not", header.id));
        };
        if let Some(failure) = header.failure(&body) {
            call.end(Err(CallError::Service(failure)));
            return Ok(());
        }
        if header.payload_len > call.limit {
            let reason = format!("it sent {} bytes, {} were asked for", header.payload_len, call.limit);
            call.end(Err(LinkError::Protocol { peer: self.peer.to_string(), reason: reason.clone() }.into()));
            return Err(reason);
        }
        let (provenance, length) = (header.provenance, header.payload_len as usize);
        match payload {
            // A buffer is not touched for a caller that has left; the peer's operation ends all the same.
            _ if !call.has_caller() => call.end(Err(self.lost("its caller has left").into())),
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

    /// Whether silence would mean anything: an answer is waited for, or its payload is on its way.
    pub(crate) fn watch(&self) -> bool {
        self.calls.borrow_mut().watch() || self.fetching.get() > 0
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
            // Whenever it ends without them, the operation keeps the buffers until it has ended, too.
            let received = tokio::select! {
                received = receiving => Ok(received),
                () = connection.ended.cancelled() => Err(connection.lost("it ended while a reply was being fetched")),
                () = call.forsaken(connection.patience) => {
                    let why = connection.lost(format!("a reply had not arrived {:?} after its caller left", connection.patience));
                    connection.break_off(why.clone());
                    Err(why)
                }
            };
            connection.fetching.update(|count| count - 1);
            let result = received.and_then(|(mut buffers, outcome)| {
                connection.heard.set(Instant::now());
                match outcome {
                    Ok(received) if received == length => {
                        Ok(Reply { provenance, body, payload: landed(buffers.pop(), length) })
                    }
                    Ok(received) => Err(connection.lost(format!("{received} of {length} bytes arrived"))),
                    Err(error) => Err(connection.lost(error.to_string())),
                }
            });
            call.end(result.map_err(CallError::from));
        });
    }

    /// Sends a request, or gives its call back when the connection takes no more.
    pub(crate) fn start(
        &self,
        core: &Core,
        request: Request,
        mut call: Call,
        liveness: &mut Liveness,
    ) -> Option<Command> {
        if let Some(timing) = &mut call.timing {
            timing.sent();
        }
        let begun = match self.calls.borrow_mut().begin(call) {
            Ok(begun) => begun,
            Err(call) => return Some(Command::Call(request, call)),
        };
        if begun.watch {
            liveness.heard(Instant::now());
        }
        self.send(core, begun.id, &request);
        None
    }

    pub(crate) fn send(&self, core: &Core, id: u64, request: &Request) {
        let mut header = RequestHeader::of(id, request).encode();
        if let Some(pass) = &self.pass {
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

    /// Gives their buffers back to those calls whose caller has left: nothing is written to them before their reply begins.
    pub(crate) fn sweep(&self) {
        let mut calls = self.calls.borrow_mut();
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
}

/// The caller's buffer with what arrived in it.
fn landed(into: Option<SpanMut>, length: usize) -> Payload {
    into.map_or(Payload::None, |mut span| {
        span.truncate(length);
        Payload::Landed(span)
    })
}
