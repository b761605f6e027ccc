//! A connection that carries one call at a time, of a thread that waits for the answer itself: it posts the request, polls the
//! completion queues, which are the connection's own, and sleeps in `poll(2)` on its channel.
//!
//! One thread has it at a time, so nothing of it needs a lock. Between two calls nobody looks at it, and nothing wakes anybody. What the
//! worker has said meanwhile is found by the next call, which goes over another connection if this one has ended: only reads come this
//! way, and the buffer is its caller's again once the queue pair was destroyed. Where payload comes in messages, the thread copies it.
//!
//! A call whose answer does not come in time is taken on by the I/O thread, with the connection and all that is under way on it
//! ([`Parts`]).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_identity::Pass;
use forebay_transport::driving::{Dozing, Step, Waits};
use forebay_transport::wire::CONNECTION_ID;
use forebay_transport::{LinkError, Request};
use forebay_verbs::{Completion, Ended, Exposure, QueuePair};
use tokio::sync::oneshot::Receiver;

use crate::client_link::{Answer, Call, unasked};
use crate::gauges::{Counted, Gauges};
use crate::verbs::channel::{Channel, Incoming, takes_credit};
use crate::verbs::connection::parts;
use crate::verbs::exchange::{Answered, land, outgoing};
use crate::verbs::frame::{Kind, MAX_INSIDE};
use crate::verbs::links::{NO_REASON, post_all};
use crate::verbs::own_queue::OwnQueue;
use crate::wire;

/// How often a batch of completions is taken in before the thread looks at the clock: a peer may send without end.
const BURST: usize = 8;

/// See above.
pub(crate) struct Lone {
    exchange: Exchange,
    own: OwnQueue,
    /// The I/O thread was told that it has.
    has_ended: Arc<AtomicBool>,
    counted: Counted,
}

/// What came of a call.
pub(crate) enum Came {
    /// Its answer. The connection takes another call, if it is there: it may have ended behind the answer.
    Answered(Option<Lone>, Answer),
    /// Nothing yet. The call is with the connection.
    Late(Lone),
    /// The connection has ended. Nothing writes to the call's buffer any more.
    Gone(Option<Call>),
    /// It has no place for the answer now. Nothing was sent.
    Full(Lone, Call),
}

/// What a connection that a thread has given up is made of.
pub(crate) struct Parts {
    pub(crate) peer: Arc<str>,
    // Before what its completions come to.
    pub(crate) pair: QueuePair,
    pub(crate) channel: Channel,
    pub(crate) own: OwnQueue,
    pub(crate) pass: Option<Pass>,
    pub(crate) has_ended: Arc<AtomicBool>,
    /// The call that waits, and its number on the wire.
    pub(crate) call: Option<Call>,
    pub(crate) id: u64,
    pub(crate) counted: Counted,
}

impl Lone {
    /// Of a connection that has greeted, and has nothing under way.
    pub(crate) fn new(
        peer: &Arc<str>,
        (pair, channel): (QueuePair, Channel),
        own: OwnQueue,
        (pass, in_messages): (Option<Pass>, bool),
        (has_ended, counted): (Arc<AtomicBool>, Counted),
    ) -> Self {
        let peer = Arc::clone(peer);
        // As of any connection, whose calls have numbers from 1 on.
        let (id, came) = (0, Vec::new());
        let exchange = Exchange { peer, pair, channel, pass, in_messages, id, call: None, came, is_leaving: false };
        Self { exchange, own, has_ended, counted }
    }

    /// Whether it is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends it. What the card could use is free when this returns.
    pub(crate) fn end(mut self) {
        self.exchange.pair.disconnect();
    }

    /// Sends `request` and waits for its answer, which goes to `answered`, until then.
    pub(crate) fn call(
        mut self,
        request: &Request,
        call: Call,
        answered: &mut Receiver<Answer>,
        waits: &Waits,
        until: Instant,
    ) -> Came {
        // Credits, and whether the worker goes.
        if let Err(reason) = self.exchange.take_in(&self.own, &self.counted.0) {
            self.exchange.call = Some(call);
            return self.gone(&reason);
        }
        if self.exchange.is_leaving || self.has_ended() {
            self.end();
            return Came::Gone(Some(call));
        }
        if self.exchange.wants_window(request) && !self.exchange.pair.has_window() {
            return Came::Full(self, call);
        }
        match self.exchange.send(request, call) {
            Ok(()) => {}
            Err(NotSent::Refused) => return self.ended(answered),
            Err(NotSent::Broken(reason)) => return self.gone(&reason),
        }
        let Self { exchange, own, counted, .. } = &mut self;
        let (own, gauges, reason) = (&*own, &*counted.0, Cell::new(String::new()));
        let mut dozing = Dozing::default();
        let look = || {
            for _ in 0..BURST {
                match exchange.take_in(own, gauges) {
                    // The answer, or nothing.
                    Ok(has_ended) if exchange.call.is_none() || !has_ended => {
                        return exchange.call.is_none().then_some(true);
                    }
                    Ok(_) => {}
                    Err(broken) => {
                        reason.set(broken);
                        return Some(false);
                    }
                }
            }
            None
        };
        let doze = |left: Duration| match dozing.found_nothing() {
            Step::Arm => own.arm(),
            Step::Sleep => own.sleep(left),
        };
        match waits.wait(until, look, doze) {
            Some(true) => self.ended(answered),
            Some(false) if self.exchange.call.is_none() => {
                let result = answer(answered, &self.exchange.peer);
                self.end();
                Came::Answered(None, result)
            }
            Some(false) => self.gone(&reason.into_inner()),
            None => Came::Late(self),
        }
    }

    /// The call has ended.
    fn ended(self, answered: &mut Receiver<Answer>) -> Came {
        let result = answer(answered, &self.exchange.peer);
        let goes_on = !self.exchange.is_leaving && !self.has_ended();
        if goes_on {
            return Came::Answered(Some(self), result);
        }
        self.end();
        Came::Answered(None, result)
    }

    /// The connection has. Its queue pair is destroyed, so the call has its buffer again.
    #[cold]
    fn gone(self, reason: &str) -> Came {
        let Exchange { peer, mut pair, call, .. } = self.exchange;
        // Its caller gets no error, so nobody else says so.
        if reason == NO_REASON {
            tracing::debug!(%peer, reason, "a connection of a thread that waits for answers itself has ended");
        } else {
            tracing::warn!(%peer, reason, "a connection of a thread that waits for answers itself is given up");
        }
        let Some(mut call) = call else {
            pair.disconnect();
            return Came::Gone(None);
        };
        // What has come of its payload comes again.
        call.came = 0;
        let Some(window) = call.window.take() else {
            pair.disconnect();
            return Came::Gone(Some(call));
        };
        call.into = pair.destroy(window);
        if call.into.is_none() {
            let reason = "it has ended, and its card does not let go of a buffer".to_owned();
            call.end(Err(LinkError::Lost { peer: peer.to_string(), reason }.into()));
            return Came::Gone(None);
        }
        Came::Gone(Some(call))
    }

    /// What it is made of, for who goes on with its call.
    pub(crate) fn into_parts(self) -> Parts {
        let Self { exchange: Exchange { peer, pair, channel, pass, id, call, .. }, own, has_ended, counted } = self;
        Parts { peer, pair, channel, own, pass, has_ended, call, id, counted }
    }
}

/// The answer to a call that has ended.
fn answer(answered: &mut Receiver<Answer>, peer: &Arc<str>) -> Answer {
    let lost = || LinkError::Lost { peer: peer.to_string(), reason: "its call has ended without an answer".to_owned() };
    answered.try_recv().unwrap_or_else(|_| Err(lost().into()))
}

/// Why a request was not sent.
enum NotSent {
    /// The call has ended with the reason.
    Refused,
    /// The connection has ended.
    Broken(String),
}

/// The queue pair, what goes over it, and the call that waits.
struct Exchange {
    peer: Arc<str>,
    pair: QueuePair,
    channel: Channel,
    pass: Option<Pass>,
    /// Payload comes in messages.
    in_messages: bool,
    /// The number of the last call.
    id: u64,
    call: Option<Call>,
    /// What has ended; empty but for the memory, which is used again.
    came: Vec<Completion>,
    /// The worker wants no more calls over this connection.
    is_leaving: bool,
}

impl Exchange {
    /// Whether its answer is to be written to the buffer.
    fn wants_window(&self, request: &Request) -> bool {
        !self.in_messages && request.length > MAX_INSIDE
    }

    /// Posts a request. Where its answer needs a window, there is one.
    fn send(&mut self, request: &Request, mut call: Call) -> Result<(), NotSent> {
        // 2^64 calls do not happen in the life of a connection.
        self.id += 1;
        if let Some(timing) = &mut call.timing {
            timing.sent();
        }
        let mut offered = None;
        if let Some(into) = call.into.take_if(|_| self.wants_window(request)) {
            match self.pair.expose(into) {
                Ok(Exposure { window, remote }) => {
                    call.window = Some(window);
                    offered = Some((remote, window));
                }
                Err(error) => {
                    let (peer, reason) = (self.peer.to_string(), error.to_string());
                    call.end(Err(LinkError::Lost { peer, reason }.into()));
                    return Err(NotSent::Refused);
                }
            }
        }
        self.call = Some(call);
        self.channel.push(outgoing(self.id, request, offered, self.pass.as_ref()));
        self.post().map_err(NotSent::Broken)
    }

    fn post(&mut self) -> Result<(), String> {
        post_all(&mut self.pair, &mut self.channel)
    }

    /// Takes in what has ended, up to a batch of it; whether anything had.
    ///
    /// # Errors
    /// Why the connection cannot go on.
    fn take_in(&mut self, own: &OwnQueue, gauges: &Gauges) -> Result<bool, String> {
        let mut came = std::mem::take(&mut self.came);
        let polled = own.poll(&mut came).map_err(|error| error.to_string())?;
        if polled == 0 {
            self.came = came;
            return Ok(false);
        }
        for completion in came.drain(..) {
            match self.pair.ended(completion) {
                Ended::Received { receive, length } => self.arrived(receive, length, gauges)?,
                Ended::Sent => {}
                Ended::Failed(reason) => return Err(reason),
                Ended::Flushed => return Err(NO_REASON.to_owned()),
            }
        }
        self.came = came;
        self.post()?;
        Ok(true)
    }

    fn arrived(&mut self, receive: u32, length: usize, gauges: &Gauges) -> Result<(), String> {
        let frame = self.pair.message_in(receive, length);
        let took_credit = takes_credit(frame);
        let received = self.channel.received(frame).map_err(|error| error.to_string())?;
        if let Some(piece) = self.channel.piece(frame) {
            let call = self.call.as_mut().filter(|_| piece.call == self.id);
            land(self.in_messages, call, &piece, gauges)?;
        }
        if let Some(message) = received {
            let told = self.told(&message, receive, gauges);
            self.channel.recycle(message.bytes);
            told?;
        }
        self.pair.receive_again(receive).map_err(|error| error.to_string())?;
        self.channel.receives_again(took_credit);
        Ok(())
    }

    /// An answer, or a message about the connection; why it breaks the protocol.
    fn told(&mut self, message: &Incoming, receive: u32, gauges: &Gauges) -> Result<(), String> {
        if message.header.kind != Kind::Reply {
            return Err(format!("a message of kind {} is not for a client", message.header.kind as u8));
        }
        if self.pass.is_some_and(|pass| !wire::carries(&message.bytes, pass.server)) {
            gauges.count_forged(&self.peer);
            return Ok(());
        }
        let (header, body, inside) = parts(message)?;
        if header.id == CONNECTION_ID {
            // Why it goes is heard by the connection that is made instead.
            self.is_leaving |= header.failure.is_some();
            return Ok(());
        }
        let call = self.call.take_if(|_| header.id == self.id).ok_or_else(|| unasked(header.id))?;
        let call = call.within_limit(&header, &self.peer)?;
        let (is_written, in_messages) = (message.header.is_written, self.in_messages);
        let answered = Answered { header, body, inside, is_written, in_messages };
        answered.end(call, &self.peer, |window| self.pair.take_back(window, receive))
    }
}
