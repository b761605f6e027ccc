//! The network: links between processes as TCP gives them, over machines that lose each other.
//!
//! A message takes a while, and messages overtake each other, as those of several connections do. TCP delivers what it was given or
//! breaks, so what can be lost is a request or an answer together with its connection: the caller learns that the connection is
//! gone, and not whether its request was acted upon. Where two machines cannot reach each other, in one direction or in both, what
//! is sent is held until they can; a caller that waits for an answer looks every two seconds whether the peer gives a sign of life, and gives
//! the connection up after six, as `forebay-tcp` does by default. A process that is killed resets its connections; one whose machine is off
//! says nothing.
//!
//! As with real links, a buffer that a reply may land in belongs to the operation until that has ended.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_client::Connector;
use forebay_cluster::Member;
use forebay_memory::SpanMut;
use forebay_transport::{
    CallError, LinkError, Payload, Provenance, Reply, Request, Response, ResponsePayload, Service, Transport,
    TransportKind, answer,
};
use forebay_types::Failure;
use rand::Rng;
use tokio::sync::oneshot;

use crate::kernel::{self, Process};

/// Half a round trip, at least and at most. One in a hundred takes up to a hundred times as long.
const TRAVEL: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(400));
/// What a link moves in a second.
const BANDWIDTH: u64 = 2 << 30;
/// As `forebay-tcp` has them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE: Duration = Duration::from_secs(2);
const DEAD_AFTER: Duration = Duration::from_secs(6);

#[derive(Default)]
struct Net {
    listeners: BTreeMap<String, Listener>,
    /// Which machine does not reach which: what one sends does not arrive at the other.
    cuts: BTreeSet<(usize, usize)>,
    /// Machines that are off, so that nothing answers for their processes.
    off: BTreeSet<usize>,
    calls: BTreeMap<u64, Call>,
    /// Tasks that answer.
    serving: BTreeMap<Process, usize>,
    /// From which machine to which, how many answers were sent, and the latest of them that has arrived.
    order: BTreeMap<(usize, usize), (u64, u64)>,
    next: u64,
    /// Once in so many messages a connection breaks; 0 is never.
    breaks: u32,
    counts: Counts,
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) answers: u64,
    pub(crate) bytes: u64,
    pub(crate) broken: u64,
    pub(crate) held: u64,
    /// Answers that arrived after one that was sent later between the same machines.
    pub(crate) overtaken: u64,
}

#[derive(Clone)]
struct Listener {
    process: Process,
    service: Arc<dyn Service>,
}

/// A request under way.
struct Call {
    link: u64,
    from: Process,
    to: Process,
    peer: String,
    into: Option<SpanMut>,
    done: oneshot::Sender<Result<Reply, CallError>>,
    silent_since: Option<Duration>,
}

/// An answer on its way.
struct Sent {
    provenance: Provenance,
    body: Bytes,
    payload: Option<Vec<u8>>,
}

thread_local! {
    static NET: RefCell<Net> = RefCell::default();
}

fn net<T>(with: impl FnOnce(&mut Net) -> T) -> T {
    NET.with_borrow_mut(with)
}

/// The process that runs answers at `address`.
pub(crate) fn listen(address: &str, service: Arc<dyn Service>) {
    let listener = Listener { process: kernel::current(), service };
    let before = net(|net| net.listeners.insert(address.to_owned(), listener));
    drop(before);
}

/// No process answers at `address` any more.
pub(crate) fn close(address: &str) {
    let listener = net(|net| net.listeners.remove(address));
    drop(listener);
}

/// What `from` sends does not arrive at `to`, or does again.
pub(crate) fn cut(from: usize, to: usize, is_cut: bool) {
    net(|net| if is_cut { net.cuts.insert((from, to)) } else { net.cuts.remove(&(from, to)) });
}

/// Whether what `from` sends arrives at `to`.
pub(crate) fn reaches(from: usize, to: usize) -> bool {
    net(|net| net.reaches(from, to))
}

/// How often connections break.
pub(crate) fn break_once_in(times: u32) {
    net(|net| net.breaks = times);
}

/// What was sent so far.
pub(crate) fn counts() -> Counts {
    net(|net| net.counts)
}

/// The process at `node` was killed, and its machine with it if `off`. Callers that wait for it learn that only if the
/// machine is on.
pub(crate) fn killed(node: usize, off: bool) {
    let (gone, lost) = net(|net| {
        if off {
            net.off.insert(node);
        }
        let gone: Vec<String> = net.at(node).map(|(address, _)| address.clone()).collect();
        let gone: Vec<_> = gone.iter().filter_map(|address| net.listeners.remove(address)).collect();
        let lost: Vec<u64> = net.calls.iter().filter(|(_, call)| call.to.node == node).map(|(id, _)| *id).collect();
        (gone, lost)
    });
    drop(gone);
    if !off {
        lost.into_iter().for_each(|id| lose(id, "the peer closed the connection"));
    }
    // The calls of the killed process itself, which nothing waits for any more.
    let own: Vec<_> = net(|net| {
        let own: Vec<u64> = net.calls.iter().filter(|(_, call)| call.from.node == node).map(|(id, _)| *id).collect();
        own.iter().filter_map(|id| net.calls.remove(id)).collect()
    });
    drop(own);
}

/// The machine of `node` is on.
pub(crate) fn on(node: usize) {
    net(|net| net.off.remove(&node));
}

impl Net {
    fn at(&self, node: usize) -> impl Iterator<Item = (&String, &Listener)> {
        self.listeners.iter().filter(move |(_, listener)| listener.process.node == node)
    }

    /// An answer arrives that was the so many-th from one machine to another.
    fn arrived(&mut self, way: (usize, usize), number: u64) {
        let (_, latest) = self.order.entry(way).or_default();
        self.counts.overtaken += u64::from(number < *latest);
        *latest = number.max(*latest);
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        !self.cuts.contains(&(from, to)) && !self.off.contains(&from) && !self.off.contains(&to)
    }
}

fn travel(bytes: u64) -> Duration {
    let slow = kernel::once_in(100);
    let time = kernel::between(TRAVEL.0, TRAVEL.1)
        * if slow { kernel::chance(|random| random.random_range(1..100)) } else { 1 };
    time + Duration::from_nanos(bytes * 1_000_000_000 / BANDWIDTH)
}

/// Ends a call whose connection is gone, where it was made.
fn lose(id: u64, reason: &'static str) {
    let Some(from) = net(|net| net.calls.get(&id).map(|call| call.from)) else { return };
    kernel::after_at(from, travel(0), move || {
        if let Some(call) = net(|net| net.calls.remove(&id)) {
            let error = LinkError::Lost { peer: call.peer, reason: reason.to_owned() };
            _ = call.done.send(Err(error.into()));
        }
    });
}

/// The connection `link` of this call breaks: all that is under way on it is lost.
fn break_link(link: u64) {
    let lost: Vec<u64> = net(|net| {
        net.counts.broken += 1;
        net.calls.iter().filter(|(_, call)| call.link == link).map(|(id, _)| *id).collect()
    });
    lost.into_iter().for_each(|id| lose(id, "connection reset"));
}

/// Does `arrive` when a message that is sent now from one machine arrives at the other. `id` is the call that it belongs to: when that
/// has ended, it does not arrive.
fn send(id: u64, from: usize, to: usize, bytes: u64, arrive: impl FnOnce() + 'static) {
    if !net(|net| net.calls.contains_key(&id)) {
        return;
    }
    let breaks = net(|net| net.breaks);
    if breaks > 0 && kernel::once_in(breaks) {
        let link = net(|net| net.calls.get(&id).map(|call| call.link));
        return link.into_iter().for_each(break_link);
    }
    kernel::after(travel(bytes), move || {
        if reaches(from, to) {
            return arrive();
        }
        net(|net| net.counts.held += 1);
        // It is sent again, until it arrives or the connection is given up.
        kernel::after(Duration::from_millis(300), move || send(id, from, to, bytes, arrive));
    });
}

/// Looks whether the peer of a call gives a sign of life, for as long as the call is under way.
fn watch(id: u64) {
    kernel::after(KEEPALIVE, move || {
        let Some((from, to, link)) = net(|net| net.calls.get(&id).map(|call| (call.from, call.to, call.link))) else {
            return;
        };
        if !kernel::is_alive(from) {
            return;
        }
        let speaks = kernel::is_alive(to)
            && !kernel::is_stopped(to.node)
            && reaches(from.node, to.node)
            && reaches(to.node, from.node);
        let now = kernel::now();
        let silent = net(|net| {
            let call = net.calls.get_mut(&id)?;
            if speaks {
                call.silent_since = None;
            }
            (!speaks).then(|| now - *call.silent_since.get_or_insert(now))
        });
        // A process that stands still gives nothing up.
        if silent.is_some_and(|silent| silent + KEEPALIVE >= DEAD_AFTER) && !kernel::is_stopped(from.node) {
            break_link(link);
        } else {
            watch(id);
        }
    });
}

/// The request has arrived where the service is.
fn serve(id: u64, service: Arc<dyn Service>, request: Request) {
    kernel::detail(request.op.name(), id, u64::from(request.offset) << 32 | u64::from(request.length));
    let Request { body, tail, .. } = &request;
    // As it comes from the wire: in one piece.
    let body = if tail.is_empty() { body.clone() } else { [&body[..], &tail[..]].concat().into() };
    let request = Request { body, tail: Bytes::new(), ..request };
    let serving = Serving::begin(kernel::current());
    tokio::spawn(async move {
        let _serving = serving;
        let response = match service.try_handle(&request) {
            Some(response) => response.fitting(&request),
            None => answer(&*service, request, false).await,
        };
        reply(id, response);
    });
}

/// A task that answers.
struct Serving(Process);

impl Serving {
    fn begin(process: Process) -> Self {
        net(|net| *net.serving.entry(process).or_default() += 1);
        Self(process)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        net(|net| {
            let tasks = net.serving.entry(self.0).or_default();
            *tasks -= 1;
            if *tasks == 0 {
                net.serving.remove(&self.0);
            }
        });
    }
}

/// How many tasks of a process answer a request.
pub(crate) fn serving(process: Process) -> usize {
    net(|net| net.serving.get(&process).copied().unwrap_or(0))
}

fn reply(id: u64, response: Result<Response, Failure>) {
    let sent = response.map(|Response { provenance, body, payload }| {
        let payload = match payload {
            ResponsePayload::Spans(spans) => Some(spans.iter().flat_map(|span| span.iter().copied()).collect()),
            ResponsePayload::None | ResponsePayload::File(_) => None,
        };
        Sent { provenance, body, payload }
    });
    let Some((from, to)) = net(|net| net.calls.get(&id).map(|call| (call.from, call.to))) else { return };
    let bytes = sent.as_ref().map_or(0, |sent| sent.payload.as_ref().map_or(0, Vec::len) + sent.body.len()) as u64;
    let way = (to.node, from.node);
    let number = net(|net| {
        net.counts.answers += 1;
        net.counts.bytes += bytes;
        let (sent, _) = net.order.entry(way).or_default();
        *sent += 1;
        *sent
    });
    send(id, to.node, from.node, bytes, move || {
        net(|net| net.arrived(way, number));
        kernel::after_at(from, Duration::ZERO, move || {
            let Some(call) = net(|net| net.calls.remove(&id)) else { return };
            kernel::detail("answer", id, bytes);
            let Call { into, done, .. } = call;
            _ = done.send(sent.map(|sent| land(sent, into)).map_err(CallError::Service));
        });
    });
}

fn land(sent: Sent, into: Option<SpanMut>) -> Reply {
    let Sent { provenance, body, payload } = sent;
    let payload = match (payload, into) {
        (Some(payload), Some(mut into)) => {
            into[..payload.len()].copy_from_slice(&payload);
            into.truncate(payload.len());
            Payload::Landed(into)
        }
        (None, Some(mut into)) => {
            into.truncate(0);
            Payload::Landed(into)
        }
        (_, None) => Payload::None,
    };
    Reply { provenance, body, payload }
}

/// The link of a process to the process that listens at an address.
struct SimulatedLink {
    number: u64,
    peer: String,
    /// The process that it is connected to: its life, and 0 before.
    connected: AtomicU64,
    closed: AtomicBool,
}

impl SimulatedLink {
    fn new(peer: String) -> Self {
        let number = net(|net| {
            net.next += 1;
            net.next
        });
        Self { number, peer, connected: AtomicU64::new(0), closed: AtomicBool::new(false) }
    }

    fn connect_error(&self, reason: impl Into<String>) -> CallError {
        LinkError::Connect { peer: self.peer.clone(), reason: reason.into() }.into()
    }

    /// A connection to the process that listens there now.
    async fn connect(&self) -> Result<Listener, CallError> {
        let me = kernel::current();
        let node = net(|net| net.listeners.get(&self.peer).map(|listener| listener.process.node))
            .or_else(|| node_of(&self.peer));
        let Some(node) = node else { return Err(self.connect_error("no such host")) };
        let known = net(|net| net.listeners.get(&self.peer).cloned());
        if let Some(known) = known
            && u64::from(known.process.life) == self.connected.load(Ordering::Relaxed)
        {
            return Ok(known);
        }
        // A hello there and back: where no process answers, it is tried until the time is over.
        let deadline = kernel::now() + CONNECT_TIMEOUT;
        loop {
            let peer = self.peer.clone();
            let try_it = move || {
                if !reaches(me.node, node) || !reaches(node, me.node) {
                    return None;
                }
                match net(|net| net.listeners.get(&peer).cloned()) {
                    Some(listener) if kernel::is_stopped(listener.process.node) => None,
                    listener => Some(listener),
                }
            };
            match kernel::ask(travel(0), travel(0), try_it).await {
                Some(Some(listener)) => {
                    self.connected.store(u64::from(listener.process.life), Ordering::Relaxed);
                    return Ok(listener);
                }
                Some(None) => return Err(self.connect_error("connection refused")),
                None if kernel::now() >= deadline => {
                    return Err(self.connect_error(format!("no answer within {CONNECT_TIMEOUT:?}")));
                }
                None => tokio::time::sleep(Duration::from_millis(250)).await,
            }
        }
    }
}

/// The machine that an address names: `w3:1` is that of node 3.
fn node_of(address: &str) -> Option<usize> {
    address.strip_prefix("node")?.split(':').next()?.parse().ok()
}

/// The address of what listens at a node.
pub(crate) fn address_of(node: usize) -> String {
    format!("node{node}:29999")
}

#[async_trait::async_trait]
impl Transport for SimulatedLink {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        request.payload_limit(into.as_ref()).map_err(CallError::Service)?;
        if self.closed.load(Ordering::Acquire) {
            return Err(LinkError::Lost { peer: self.peer.clone(), reason: "it was closed".to_owned() }.into());
        }
        let deadline = request.deadline;
        let began = tokio::time::Instant::now();
        let timed_out = || CallError::from(LinkError::TimedOut { peer: self.peer.clone(), waited: deadline });
        let Listener { process: to, service } =
            tokio::time::timeout(deadline, self.connect()).await.unwrap_or_else(|_| Err(timed_out()))?;
        let into = into.filter(|_| request.op.brings_payload());
        let (done, answered) = oneshot::channel();
        let from = kernel::current();
        let bytes = request.body_len() as u64;
        let id = net(|net| {
            net.next += 1;
            net.counts.requests += 1;
            net.counts.bytes += bytes;
            let call = Call { link: self.number, from, to, peer: self.peer.clone(), into, done, silent_since: None };
            net.calls.insert(net.next, call);
            net.next
        });
        watch(id);
        let request = Request { deadline: deadline.saturating_sub(began.elapsed()), ..request };
        send(id, from.node, to.node, bytes, move || {
            if kernel::is_alive(to) {
                kernel::after_at(to, Duration::ZERO, move || serve(id, service, request));
            } else {
                lose(id, "connection reset by peer");
            }
        });
        match tokio::time::timeout_at(began + deadline, answered).await {
            Ok(Ok(result)) => {
                if let Err(CallError::Link(_)) = &result {
                    self.connected.store(0, Ordering::Relaxed);
                }
                result
            }
            Ok(Err(_)) => Err(LinkError::Lost { peer: self.peer.clone(), reason: "it was closed".to_owned() }.into()),
            Err(_) => Err(timed_out()),
        }
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let ended: Vec<_> = net(|net| {
            let own: Vec<u64> =
                net.calls.iter().filter(|(_, call)| call.link == self.number).map(|(id, _)| *id).collect();
            own.iter().filter_map(|id| net.calls.remove(id)).collect()
        });
        drop(ended);
    }
}

/// Makes links over the simulated network.
pub(crate) struct SimulatedConnector;

impl Connector for SimulatedConnector {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        Arc::new(SimulatedLink::new(member.address.to_string()))
    }
}
