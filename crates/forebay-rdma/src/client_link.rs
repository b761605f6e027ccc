//! What a client's connection is made of, whatever carries its messages: UCX or verbs.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_identity::Pass;
use forebay_memory::SpanMut;
use forebay_transport::connection::{Liveness, Outstanding};
use forebay_transport::wire::{Hello, ReplyHeader};
use forebay_transport::{CallError, LinkError, Payload, Reply, Request};
use forebay_types::{Failure, FailureKind};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use crate::options::ClientOptions;
use crate::trace::{Outcome, Timing};

/// What a call comes to.
pub(crate) type Answer = Result<Reply, CallError>;

/// A call that waits for its answer, and what it owns until then.
pub(crate) struct Call {
    /// Where payload goes.
    pub(crate) into: Option<SpanMut>,
    /// Over verbs: the window through which the peer writes to the buffer, which the card has then.
    pub(crate) window: Option<usize>,
    /// Over verbs, where payload comes in messages: how many bytes of it have come.
    pub(crate) came: u32,
    /// The most payload that was asked for.
    pub(crate) limit: u32,
    /// Where the answer goes.
    pub(crate) answer: oneshot::Sender<Answer>,
    /// Its way through the stages, if that is recorded.
    pub(crate) timing: Option<Timing>,
    /// Its place among the calls under way.
    pub(crate) _permit: OwnedSemaphorePermit,
}

impl Call {
    /// Ends it. Its caller may have left: then its buffer goes back to its pool here.
    pub(crate) fn end(self, result: Answer) {
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

    pub(crate) fn has_caller(&self) -> bool {
        !self.answer.is_closed()
    }

    /// The call, if the reply with this header brings no more than was asked for.
    ///
    /// # Errors
    /// How it breaks the protocol, with which the call has ended, too.
    pub(crate) fn within_limit(self, header: &ReplyHeader, peer: &str) -> Result<Self, String> {
        if header.failure.is_some() || header.payload_len <= self.limit {
            return Ok(self);
        }
        let reason = format!("it sent {} bytes, {} were asked for", header.payload_len, self.limit);
        self.end(Err(LinkError::Protocol { peer: peer.to_owned(), reason: reason.clone() }.into()));
        Err(reason)
    }

    /// Returns when the caller has been gone for `patience`.
    pub(crate) async fn forsaken(&mut self, patience: Duration) {
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

/// What is known of an open connection.
pub(crate) struct LinkState {
    pub(crate) peer: Arc<str>,
    /// What we say to the peer, and what it must agree with.
    pub(crate) hello: Hello,
    /// What each side shows in its messages. `None`: nothing.
    pub(crate) pass: Option<Pass>,
    pub(crate) calls: RefCell<Outstanding<Call>>,
    pub(crate) heard: Cell<Instant>,
    /// Whether the peer's hello has come and was right.
    pub(crate) greeted: Cell<bool>,
    /// The peer wants its client to come again: over another connection, while what was asked over this one is answered.
    pub(crate) outlived: Cell<bool>,
    /// It takes no more calls, while what was asked over it is answered.
    pub(crate) retires: Cell<bool>,
    /// Why it cannot go on.
    pub(crate) broken: RefCell<Option<LinkError>>,
    /// Something of the above has changed.
    pub(crate) changed: Notify,
    /// Cancelled when the connection has ended, so that callers whose payload is being fetched hear of it at once.
    pub(crate) ended: CancellationToken,
}

impl LinkState {
    pub(crate) fn new(peer: &Arc<str>, pass: Option<Pass>, options: &ClientOptions) -> Self {
        Self {
            peer: Arc::clone(peer),
            hello: Hello::ours(&options.cluster, options.block_size),
            pass,
            calls: RefCell::new(Outstanding::new(options.max_abandoned)),
            heard: Cell::new(Instant::now()),
            greeted: Cell::new(false),
            outlived: Cell::new(false),
            retires: Cell::new(false),
            broken: RefCell::new(None),
            changed: Notify::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Of a connection that has greeted, over which a thread has made one call by the number `id`. It takes no others.
    pub(crate) fn of_late(peer: &Arc<str>, pass: Option<Pass>, options: &ClientOptions, id: u64, call: Call) -> Self {
        let mut calls = Outstanding::beginning_at(id, options.max_abandoned);
        // It takes its first.
        drop(calls.begin(call));
        calls.retire();
        Self { calls: RefCell::new(calls), greeted: Cell::new(true), ..Self::new(peer, pass, options) }
    }

    pub(crate) fn refused(&self, reason: String) -> LinkError {
        LinkError::Refused { peer: self.peer.to_string(), reason }
    }

    pub(crate) fn lost(&self, reason: impl Into<String>) -> LinkError {
        LinkError::Lost { peer: self.peer.to_string(), reason: reason.into() }
    }

    pub(crate) fn broke_protocol(&self, reason: String) -> LinkError {
        LinkError::Protocol { peer: self.peer.to_string(), reason }
    }

    pub(crate) fn protocol(&self, reason: String) {
        self.break_off(self.broke_protocol(reason));
    }

    pub(crate) fn break_off(&self, why: LinkError) {
        self.broken.borrow_mut().get_or_insert(why);
        self.changed.notify_one();
    }

    /// Has it take no more calls: they go over another connection, and this one ends with the last that has a caller.
    pub(crate) fn retire(&self, reason: &str) {
        if !self.retires.replace(true) {
            tracing::warn!(peer = &*self.peer, reason, "an RDMA connection takes no more calls; another one is made");
            self.changed.notify_one();
        }
    }

    /// The peer's hello, as it was read: the tag that it shows, or why it will not do.
    pub(crate) fn welcomed(&self, hello: Result<u64, String>) {
        match hello {
            Ok(tag) if self.pass.is_none_or(|pass| pass.server == tag) => {
                self.greeted.set(true);
                self.changed.notify_one();
            }
            Ok(_) => {
                let reason = "it does not know the pass that the worker gave over TCP; see which process listens there";
                self.break_off(self.refused(reason.to_owned()));
            }
            Err(reason) => self.break_off(self.refused(reason)),
        }
    }

    /// A message of the peer's about the connection itself; as a failure, it says `why` it goes.
    pub(crate) fn told(&self, why: Option<Failure>) {
        match why {
            Some(why) if why.kind() == FailureKind::NotReady => {
                self.outlived.set(true);
                self.changed.notify_one();
            }
            Some(why) => self.break_off(self.refused(why.message().to_owned())),
            None => {}
        }
    }

    /// The call that a reply answers, if that brings no more than was asked for.
    ///
    /// # Errors
    /// How it breaks the protocol.
    pub(crate) fn answered(&self, header: &ReplyHeader) -> Result<Call, String> {
        let call = self.calls.borrow_mut().take(header.id);
        call.ok_or_else(|| unasked(header.id))?.within_limit(header, &self.peer)
    }
}

/// How a peer breaks the protocol that answers what nobody asked.
pub(crate) fn unasked(id: u64) -> String {
    format!("it answered call {id}, which there is not")
}

/// A client's connection. Of the I/O thread that has it.
pub(crate) trait ClientLink: Sized + 'static {
    /// What the I/O thread works with.
    type Core: 'static;

    /// Cancelled when the I/O thread ends.
    fn stop(core: &Self::Core) -> &CancellationToken;

    /// Connects and exchanges hellos.
    fn greet(
        core: &Rc<Self::Core>,
        peer: &Arc<str>,
        address: SocketAddr,
        options: &ClientOptions,
    ) -> impl Future<Output = Result<Rc<Self>, LinkError>>;

    /// What is known of it.
    fn state(&self) -> &LinkState;

    /// Sends a request, or gives its call back when the connection takes no more.
    fn start(
        self: &Rc<Self>,
        core: &Rc<Self::Core>,
        request: Request,
        call: Call,
        liveness: &mut Liveness,
    ) -> Option<Command>;

    /// Asks the peer whether it lives.
    fn ping(&self, core: &Self::Core, request: &Request);

    /// Gives their buffers back to those calls whose caller has left, as far as the peer cannot write to them.
    fn sweep(&self);

    /// Whether silence would mean anything: an answer is waited for, or its payload is on its way.
    fn watch(&self) -> bool;

    /// Whether it takes no more calls, and no caller waits for one that it has: for an answer, for payload that is on its way, or to
    /// begin.
    fn is_spent(&self) -> bool;

    /// Takes the calls that wait to begin.
    fn take_waiting(&self) -> VecDeque<(Request, Call)>;

    /// No message finds it any more.
    fn forget(&self, core: &Self::Core);

    /// Returns when the connection is broken; how it broke.
    fn failed(&self) -> impl Future<Output = String>;

    /// Ends it, and returns when nothing of it is under way any more.
    fn close(&self) -> impl Future<Output = ()>;
}

/// The caller's buffer with what arrived in it.
pub(crate) fn landed(into: Option<SpanMut>, length: usize) -> Payload {
    into.map_or(Payload::None, |mut span| {
        span.truncate(length);
        Payload::Landed(span)
    })
}
