//! A worker of UCX that carries one call at a time, of a thread that waits for the answer itself: it posts the request, progresses the
//! worker, and sleeps in `poll(2)` on its descriptor.
//!
//! It has a connection to each server that it was asked for, and one worker for all of them: a worker takes tens of MiB of registered
//! memory for what it receives, on cards that receive into memory of the worker, and a connection next to nothing. One thread has it at
//! a time. Between two calls nobody looks at it. What a server has said meanwhile is found by the next call, which goes another way if
//! its connection has ended: only reads come this way, and UCX knows the buffer of a call only while it fetches into it.
//!
//! A call whose answer does not come in time is taken on by the I/O thread, with the worker ([`Lone::ended`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_transport::driving::Waits;
use forebay_transport::wire::CONNECTION_ID;
use forebay_transport::{LinkError, Request};
use forebay_ucx::{Context, Fetch, Incoming, LoneWorker, MessageReceiver, Registration, Version};
use tokio::sync::oneshot::{Receiver, error::TryRecvError};
use tokio_util::sync::CancellationToken;

use crate::caller_memory::CallerMemory;
use crate::client_link::{Answer, Call, LinkState};
use crate::gauges::{Counted, Gauges};
use crate::options::ClientOptions;
use crate::serving::to_an_address;
use crate::ucx::exchange::{self, Announced, outgoing};
use crate::wire::{self, Received};

/// How many rounds of progress make one look: between two looks a busy-polling thread gives way, and looks at the clock.
const ROUNDS: usize = 16;

/// See above.
pub(crate) struct Lone {
    worker: LoneWorker<Exchange>,
    /// Its connections, by the numbers of their links.
    connections: HashMap<u64, usize>,
    /// A connection was closed, and its server does not know of it yet.
    is_closing: bool,
}

/// What came of a call.
pub(crate) enum Came {
    /// Its answer.
    Answered(Answer),
    /// Nothing yet, or not all of it. The call is with the worker.
    Late,
    /// There is no connection any more. Nothing writes to the call's buffer.
    Gone(Call),
}

/// What all of an I/O thread's are made of.
pub(crate) struct Parts {
    pub(crate) context: Context,
    pub(crate) client_id: NonZeroU64,
    pub(crate) registration: Registration,
    pub(crate) caller_memory: Arc<CallerMemory>,
    pub(crate) gauges: Arc<Gauges>,
}

/// The link that a connection is for.
pub(crate) struct Linked<'a> {
    pub(crate) number: u64,
    pub(crate) peer: &'a Arc<str>,
    pub(crate) options: &'a ClientOptions,
    /// Cancelled when the link is closed.
    pub(crate) stop: &'a CancellationToken,
    pub(crate) client_id: NonZeroU64,
}

impl Lone {
    /// Without connections. Takes some milliseconds.
    ///
    /// # Errors
    /// UCX's.
    pub(crate) fn new(parts: &Parts) -> Result<Self, forebay_ucx::Error> {
        let exchange = Exchange {
            gauges: Arc::clone(&parts.gauges),
            version: parts.context.library().version(),
            registration: parts.registration.clone(),
            caller_memory: Arc::clone(&parts.caller_memory),
            held: HashMap::new(),
            fetching: None,
        };
        let ids = [wire::WELCOME, wire::REPLY];
        let worker = LoneWorker::new(&parts.context, Some(parts.client_id), &ids, exchange)?;
        Ok(Self { worker, connections: HashMap::new(), is_closing: false })
    }

    /// Whether it has a connection for a link, well or not.
    pub(crate) fn serves(&self, link: u64) -> bool {
        self.connections.contains_key(&link)
    }

    /// Whether nothing of it is under way, and no link that it serves was closed.
    pub(crate) fn is_tidy(&self) -> bool {
        !self.is_closing
            && self.worker.operations() == 0
            && self.worker.receiver().held.values().all(|held| !held.stop.is_cancelled())
    }

    /// Sends `request` for a link and waits for its answer, which goes to `answered`, until then.
    pub(crate) fn call(
        &mut self,
        link: u64,
        request: &Request,
        mut call: Call,
        answered: &mut Receiver<Answer>,
        (waits, until): (&Waits, Instant),
    ) -> Came {
        let Some(&key) = self.connections.get(&link) else { return Came::Gone(call) };
        // What has come since the last call: that the server goes, or has gone.
        for _ in 0..ROUNDS {
            if self.worker.progress() == 0 {
                break;
            }
        }
        if !self.is_well(key) {
            drop(self.leave(link));
            return Came::Gone(call);
        }
        if let Some(timing) = &mut call.timing {
            timing.sent();
        }
        let (id, packed) = {
            let receiver = self.worker.receiver();
            let Some(Held { state, .. }) = receiver.held.get(&key) else { return Came::Gone(call) };
            let begun = state.calls.borrow_mut().begin(call);
            match begun {
                Ok(begun) => (begun.id, outgoing(begun.id, request, state.pass.as_ref(), self.worker.max_header())),
                Err(call) => return Came::Gone(call),
            }
        };
        self.worker.send(key, wire::REQUEST, packed.header(), packed.rest.clone());
        let worker = RefCell::new(&mut self.worker);
        // The answer, or that there will be none.
        let look = || {
            let mut worker = worker.borrow_mut();
            for round in 0..ROUNDS {
                // The first is asked after in any case: it may have come with what was sent.
                if worker.progress() == 0 && round > 0 {
                    continue;
                }
                match answered.try_recv() {
                    Ok(answer) => return Some(Some(answer)),
                    Err(TryRecvError::Empty) => {}
                    Err(TryRecvError::Closed) => return Some(None),
                }
            }
            is_broken(&worker, key).then_some(None)
        };
        // If it cannot sleep, there are more looks than one.
        let sleep = |left| drop(worker.borrow_mut().sleep(left));
        match waits.wait(until, look, sleep) {
            Some(Some(answer)) => {
                // It may have ended behind the answer.
                if !self.is_well(key) {
                    drop(self.leave(link));
                }
                Came::Answered(answer)
            }
            Some(None) => match self.take_back(key, id) {
                Some(call) => {
                    drop(self.leave(link));
                    Came::Gone(call)
                }
                // Its buffer is being fetched into: it is UCX's until that has ended.
                None => Came::Late,
            },
            None => Came::Late,
        }
    }

    /// A call that has no answer yet.
    fn take_back(&self, key: usize, id: u64) -> Option<Call> {
        let receiver = self.worker.receiver();
        receiver.held.get(&key)?.state.calls.borrow_mut().take(id)
    }

    /// Whether a connection takes another call.
    fn is_well(&self, key: usize) -> bool {
        let receiver = self.worker.receiver();
        let held = receiver.held.get(&key);
        let is_left = held.is_none_or(|held| held.state.outlived.get() || held.state.retires.get());
        drop(receiver);
        !is_left && !is_broken(&self.worker, key)
    }

    /// Connects for a link, and exchanges hellos; on the I/O thread. What has begun is under way still when this fails.
    ///
    /// # Errors
    /// As for any connection.
    pub(crate) async fn connect(&mut self, link: &Linked<'_>) -> Result<(), LinkError> {
        let connected = to_an_address(link.peer, link.options, async |address| self.greet(link, address).await).await;
        if connected.is_err() {
            drop(self.leave(link.number));
        }
        connected
    }

    async fn greet(&mut self, link: &Linked<'_>, address: SocketAddr) -> Result<(), LinkError> {
        drop(self.leave(link.number));
        let Linked { number, peer, options, .. } = *link;
        let failed =
            |error: forebay_ucx::Error| LinkError::Connect { peer: peer.to_string(), reason: error.to_string() };
        let pass = options.pass(link.client_id, peer).await?;
        let key = self.worker.connect(address, options.bind, pass.is_some()).map_err(failed)?;
        self.connections.insert(number, key);
        let state = LinkState::new(peer, pass, options);
        let hello = self.worker.receiver().hold(key, state, link.stop);
        self.worker.send(key, wire::HELLO, &hello, Bytes::new());
        self.worker.until(|worker| greeted(worker, key)).await.map_err(failed)??;
        let lanes = self.worker.lanes(key).map_err(failed)?;
        let receiver = self.worker.receiver();
        let Some(Held { state, .. }) = receiver.held.get(&key) else { return Ok(()) };
        let lanes = exchange::check_lanes(state, &lanes, options.require_rdma)?;
        tracing::debug!(peer = &**peer, lanes, "RDMA client connected, for threads that wait for answers themselves");
        Ok(())
    }

    /// Returns when the call of a link has ended, or cannot: why, then; on the I/O thread, for a call that is late.
    pub(crate) async fn ended(&mut self, link: u64) -> Option<LinkError> {
        let &key = self.connections.get(&link)?;
        let ended = self.worker.until(|worker| ended(worker, key)).await;
        ended.unwrap_or_else(|error| Some(self.lost(key, error.to_string())))
    }

    fn lost(&self, key: usize, reason: String) -> LinkError {
        let receiver = self.worker.receiver();
        match receiver.held.get(&key) {
            Some(held) => held.state.lost(reason),
            None => LinkError::Lost { peer: String::new(), reason },
        }
    }

    /// When its server was last heard.
    pub(crate) fn heard(&self, link: u64) -> Option<Instant> {
        let receiver = self.worker.receiver();
        Some(receiver.held.get(self.connections.get(&link)?)?.state.heard.get())
    }

    /// Asks the server of a link whether it lives.
    pub(crate) fn ping(&mut self, link: u64, request: &Request) {
        let Some(&key) = self.connections.get(&link) else { return };
        let pass = self.worker.receiver().held.get(&key).and_then(|held| held.state.pass);
        let packed = outgoing(CONNECTION_ID, request, pass.as_ref(), self.worker.max_header());
        self.worker.send(key, wire::REQUEST, packed.header(), packed.rest.clone());
    }

    /// Ends the connection of a link, and its call by `why`. Its buffer is its pool's again, or is when the fetch into it has ended.
    pub(crate) fn give_up(&mut self, link: u64, why: &LinkError) {
        self.leave(link).into_iter().for_each(|call| call.end(Err(why.clone().into())));
    }

    /// Ends the connection of a link, if there is one: the calls that were under way on it.
    fn leave(&mut self, link: u64) -> Vec<Call> {
        let Some(key) = self.connections.remove(&link) else { return Vec::new() };
        let left = self.worker.receiver().let_go(key);
        self.worker.close(key);
        self.is_closing = true;
        left
    }

    /// Ends the connections of links that were closed, and returns when nothing is under way; on the I/O thread.
    ///
    /// # Errors
    /// UCX's.
    pub(crate) async fn tidy(&mut self) -> Result<(), forebay_ucx::Error> {
        let is_closed = |key: &usize| {
            let receiver = self.worker.receiver();
            receiver.held.get(key).is_none_or(|held| held.stop.is_cancelled())
        };
        let closed: Vec<u64> =
            self.connections.iter().filter(|(_, key)| is_closed(key)).map(|(link, _)| *link).collect();
        closed.into_iter().for_each(|link| drop(self.leave(link)));
        self.worker.until(|worker| (worker.operations() == 0).then_some(())).await?;
        // Closing a connection has ended before UCX has told the server, which it does in the round after that. Nobody progresses
        // a worker that rests: the server would learn of it by its own questions, after 20 s.
        for _ in 0..ROUNDS {
            if self.worker.progress() == 0 {
                break;
            }
        }
        self.is_closing = false;
        Ok(())
    }
}

/// Whether a connection has ended, or broke the protocol.
fn is_broken(worker: &LoneWorker<Exchange>, key: usize) -> bool {
    let broke = worker.receiver().held.get(&key).is_none_or(|held| held.state.broken.borrow().is_some());
    broke || worker.failure(key).is_some()
}

/// What the server has said to our hello.
fn greeted(worker: &LoneWorker<Exchange>, key: usize) -> Option<Result<(), LinkError>> {
    let receiver = worker.receiver();
    let state = &receiver.held.get(&key)?.state;
    if let Some(error) = state.broken.borrow_mut().take() {
        return Some(Err(error));
    }
    if state.greeted.get() {
        return Some(Ok(()));
    }
    let reason = worker.failure(key)?.to_string();
    Some(Err(LinkError::Connect { peer: state.peer.to_string(), reason }))
}

/// Whether a call has ended (`None`), or why it cannot.
fn ended(worker: &LoneWorker<Exchange>, key: usize) -> Option<Option<LinkError>> {
    let receiver = worker.receiver();
    let Some(Held { state, .. }) = receiver.held.get(&key) else { return Some(None) };
    if let Some(error) = state.broken.borrow_mut().take() {
        return Some(Some(error));
    }
    if receiver.fetching.is_none() && !state.calls.borrow_mut().watch() {
        return Some(None);
    }
    Some(Some(state.lost(worker.failure(key)?.to_string())))
}

/// What its messages come to.
struct Exchange {
    gauges: Arc<Gauges>,
    version: Version,
    registration: Registration,
    caller_memory: Arc<CallerMemory>,
    held: HashMap<usize, Held>,
    /// The answer whose payload is being fetched, and its connection.
    fetching: Option<(usize, Announced)>,
}

/// A connection.
struct Held {
    state: LinkState,
    /// Cancelled when its link is closed.
    stop: CancellationToken,
    _counted: Counted,
}

impl Exchange {
    /// Notes a connection; the hello to send over it.
    fn hold(&mut self, key: usize, state: LinkState, stop: &CancellationToken) -> [u8; wire::UCX_HELLO_LEN] {
        let hello = wire::hello_with(&state.hello, self.version, state.pass.map_or(0, |pass| pass.client));
        self.gauges.count_connection();
        let counted = Counted::new(&self.gauges);
        self.held.insert(key, Held { state, stop: stop.clone(), _counted: counted });
        hello
    }

    /// Forgets a connection; the calls that were under way on it.
    fn let_go(&mut self, key: usize) -> Vec<Call> {
        let held = self.held.remove(&key);
        let mut left = held.map_or_else(Vec::new, |held| held.state.calls.into_inner().end());
        left.extend(self.fetching.take_if(|(of, _)| *of == key).map(|(_, announced)| announced.call));
        left
    }
}

impl MessageReceiver for Exchange {
    fn message(&mut self, from: usize, id: u16, header: &[u8], data: Incoming<'_>) -> Option<Fetch> {
        let state = &self.held.get(&from)?.state;
        state.heard.set(Instant::now());
        if id == wire::WELCOME {
            exchange::welcome(state, &self.gauges, self.version, header);
            return None;
        }
        let data = match data {
            Incoming::Here(bytes) => Received::Here(bytes),
            Incoming::Announced(length) => Received::Announced(length),
        };
        let mut announced = match exchange::answer(state, &self.gauges, header, data) {
            Ok(announced) => announced?,
            Err(reason) => {
                state.protocol(reason);
                return None;
            }
        };
        // There is one: payload is within the limit, and a limit comes with a buffer.
        let into = announced.call.into.take()?;
        let of_caller = if self.registration.covers(&into) { None } else { self.caller_memory.fetch(&into) };
        let registration = Some(of_caller.unwrap_or_else(|| self.registration.clone()));
        self.fetching = Some((from, announced));
        Some(Fetch { into, registration })
    }

    fn fetched(&mut self, into: Option<SpanMut>, outcome: Result<usize, forebay_ucx::Error>) {
        // Without either, its connection was given up: then the buffer goes back to its pool here.
        let Some((from, announced)) = self.fetching.take() else { return };
        let Some(Held { state, .. }) = self.held.get(&from) else { return };
        state.heard.set(Instant::now());
        announced.ended(state, into, outcome);
    }
}
