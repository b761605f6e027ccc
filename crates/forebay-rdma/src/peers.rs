//! A server's connections, on its I/O thread: what each has said, and what is being done for it. What carries their messages, UCX or
//! verbs, is a [`PeerLink`].
//!
//! A request is looked at in the handler of its message. What the service has in memory leaves from there, by the time the
//! handler returns; for the rest, the service is asked on the runtime that the server was started on, and a task of the
//! I/O thread sends what it says.

mod look_over;
mod record;
mod telling;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use forebay_memory::Spans;
use forebay_metrics::LatencyHistogram;
use forebay_one_sided::Location;
use forebay_transport::connection::{Admission, AdmissionLimits, Arrival, LastUse};
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, Hello, ReplyHeader, set_tag};
use forebay_transport::{
    Caller, ConnectionAudit, Flags, PendingRecord, Provenance, Request, Response, ResponsePayload, Service, answer,
    located,
};
use forebay_types::{Failure, FailureKind};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::gauges::Gauges;
use crate::options::ServerOptions;
use crate::peer_link::{OutgoingReply, PeerLink, Taken};
use crate::security::Proved;
use crate::trace::{Kind, Outcome, Recorder, Stage};
use crate::wire::{self, Received};

/// How long a connection that is to be closed stays open for the reason to arrive.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long the peer has to hear the reason and to close the connection itself.
const LINGER: Duration = Duration::from_millis(300);
/// As whom those are counted and recorded whose address is not known.
const UNNAMED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The server's side of an I/O thread.
pub(crate) struct Peers<L> {
    gauges: Arc<Gauges>,
    options: ServerOptions,
    service: Arc<dyn Service>,
    /// Where the service is asked what it cannot answer at once.
    runtime: tokio::runtime::Handle,
    counts: Arc<Counts>,
    peers: RefCell<HashMap<usize, Rc<Peer<L>>>>,
    /// Who is to be told to go is notified.
    admission: RefCell<Admission<Rc<Notify>>>,
}

/// The place of a connection that was not accepted yet.
pub(crate) struct PendingPeer {
    number: u64,
    from: SocketAddr,
    client_id: Option<NonZeroU64>,
    done: Rc<Notify>,
}

/// What a server counts, for monitoring.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) connections: AtomicUsize,
    pub(crate) requests: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    pub(crate) replies: AtomicU64,
    pub(crate) bytes_sent: AtomicU64,
    /// From a request's arrival until its reply was given to what sends it.
    pub(crate) latency: LatencyHistogram,
}

/// A connection.
pub(crate) struct Peer<L> {
    name: String,
    /// Where it came from.
    from: SocketAddr,
    endpoint: L,
    /// Where answers to it are recorded.
    recorder: Option<Recorder>,
    /// The client id that it came with.
    client_id: Option<NonZeroU64>,
    /// Whom it is from, once it has said hello. `None`: it had to prove nothing.
    proved: OnceCell<Proved>,
    /// Who records what it asks for, once it has said hello. None, if nobody does.
    audit: OnceCell<Arc<ConnectionAudit>>,
    greeted: Cell<bool>,
    /// It broke the protocol, or has to go: nothing more of it is looked at.
    dismissed: Cell<bool>,
    /// Whom it is from may not be here any more: it gets no more answers.
    denied: Cell<bool>,
    /// When it was told to come again.
    told: Cell<Option<Instant>>,
    /// Requests that the service is thinking about.
    asked: Cell<usize>,
    /// Replies that it takes: when one was last seen to have gone, and how many had by then.
    taken: Cell<(Instant, u64)>,
    /// Its number among those that were taken in.
    number: u64,
    /// It is never idle: a client does not connect again here without its readers noticing.
    last_use: Arc<LastUse>,
    /// It is to be closed.
    done: Rc<Notify>,
}

impl<L: PeerLink> Peers<L> {
    /// No connections yet.
    pub(crate) fn new(
        gauges: Arc<Gauges>,
        options: ServerOptions,
        service: Arc<dyn Service>,
        runtime: tokio::runtime::Handle,
        counts: Arc<Counts>,
    ) -> Rc<Self> {
        let limits = AdmissionLimits {
            greeted: options.max_connections,
            greeted_per_client: options.max_connections_per_client,
            greeting: options.max_greeting,
            greeting_per_client: options.max_greeting_per_client,
            makes_way_after: Duration::MAX,
        };
        let admission = RefCell::new(Admission::new(limits));
        Rc::new(Self { gauges, options, service, runtime, counts, peers: RefCell::default(), admission })
    }

    /// The connection whose link has this key, if it is to be listened to.
    pub(crate) fn find(&self, key: usize) -> Option<Rc<Peer<L>>> {
        let peer = self.peers.borrow().get(&key).map(Rc::clone);
        peer.filter(|peer| !peer.dismissed.get())
    }

    /// A place for a connection of `peer`, if there is one, and if it was admitted where that is needed.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn arrive(
        &self,
        peer: Option<SocketAddr>,
        client_id: Option<NonZeroU64>,
    ) -> Result<PendingPeer, &'static str> {
        let full = || {
            self.gauges.count_no_room();
            "this server has all that it may have"
        };
        let now = Instant::now();
        let mut admission = self.admission.borrow_mut();
        if admission.greeted_count() >= self.options.max_connections {
            return Err(full());
        }
        if self.options.security.as_ref().is_some_and(|security| !security.lets_in(client_id, now)) {
            self.gauges.count_unadmitted();
            return Err("nobody with its client id was admitted over TCP just now");
        }
        let from = peer.unwrap_or(UNNAMED);
        let done = Rc::new(Notify::new());
        match admission.arrive(from.ip(), &done, now) {
            Arrival::Taken { number, makes_way } => {
                makes_way.iter().for_each(|oldest| self.makes_way(oldest));
                Ok(PendingPeer { number, from, client_id, done })
            }
            Arrival::Refused | Arrival::Later(_) => Err(full()),
        }
    }

    /// It could not be accepted.
    pub(crate) fn give_up(&self, pending: &PendingPeer) {
        self.admission.borrow_mut().leave(pending.number);
    }

    /// Takes a connection in, before its hello can arrive; it is to be served right after.
    pub(crate) fn admit(&self, name: String, endpoint: &L, pending: PendingPeer) {
        let PendingPeer { number, from, client_id, done } = pending;
        let last_use = Arc::new(LastUse::new(Instant::now()));
        last_use.set(None);
        let recorder = self.options.trace.as_ref().map(|trace| Recorder::new(trace, &name));
        let peer = Rc::new(Peer {
            name,
            from,
            endpoint: endpoint.clone(),
            recorder,
            client_id,
            proved: OnceCell::new(),
            audit: OnceCell::new(),
            greeted: Cell::new(false),
            dismissed: Cell::new(false),
            denied: Cell::new(false),
            told: Cell::new(None),
            asked: Cell::new(0),
            taken: Cell::new((Instant::now(), 0)),
            number,
            last_use,
            done,
        });
        self.peers.borrow_mut().insert(endpoint.key(), peer);
        self.gauges.count_connection();
    }

    /// Serves a connection that was admitted, until it ends.
    pub(crate) async fn serve(self: Rc<Self>, endpoint: L) {
        let admitted = self.peers.borrow().get(&endpoint.key()).map(Rc::clone);
        let Some(peer) = admitted else { return };
        let _forget = Forget { peers: &self, key: endpoint.key() };
        let ServerOptions { hello_timeout, stall_timeout, .. } = self.options;
        let watch = async {
            tokio::time::sleep(hello_timeout).await;
            if !peer.greeted.get() {
                return format!("it sent no hello within {hello_timeout:?}");
            }
            loop {
                tokio::time::sleep(stall_timeout / 4).await;
                let (since, before) = peer.taken.get();
                let ended = endpoint.ended();
                if endpoint.operations() == 0 || ended != before {
                    peer.taken.set((Instant::now(), ended));
                } else if since.elapsed() > stall_timeout {
                    return format!("it did not take any of its replies for {stall_timeout:?}");
                }
            }
        };
        tokio::select! {
            status = endpoint.failed() => tracing::debug!(peer = peer.name, %status, "RDMA connection ended"),
            // What it is told of the reason should arrive; a peer that takes nothing does not hold this up.
            () = peer.done.notified() => {
                let _ = tokio::time::timeout(FAREWELL, endpoint.flush()).await;
                // Flushed is not arrived: over TCP, a close at once may overtake what the peer has not read yet.
                let _ = tokio::time::timeout(LINGER, endpoint.failed()).await;
            }
            reason = watch => tracing::warn!(peer = peer.name, reason, "closed an RDMA connection"),
        }
        endpoint.close().await;
    }

    /// A hello, and whether it came with something else.
    pub(crate) fn on_hello(&self, peer: &Peer<L>, hello: &[u8], has_data: bool) {
        if peer.proved.get().is_some() {
            // It showed its pass, which is good for one hello.
            return self.gauges.count_forged(&peer.name);
        }
        if peer.greeted.get() || has_data {
            return self.dismiss(peer, "it said hello twice, or more than hello".to_owned());
        }
        let ours = Hello::ours(&self.options.cluster, self.options.block_size);
        match peer.endpoint.check_hello(&ours, hello).and_then(|tag| self.take_in(peer, tag)) {
            Ok(tag) => {
                peer.greeted.set(true);
                peer.admitted();
                peer.endpoint.welcome(&ours, tag);
            }
            Err(reason) => self.dismiss(peer, reason),
        }
    }

    /// Takes in a connection whose hello shows `tag`, if there is room for it, and it is from somebody who may be here; the tag
    /// that it is shown. Why not, otherwise.
    fn take_in(&self, peer: &Peer<L>, tag: u64) -> Result<u64, String> {
        let now = Instant::now();
        let proved = match &self.options.security {
            Some(security) => security.identify(peer.client_id, tag, now)?,
            None => None,
        };
        // From here on it is recorded by its name, also if it may not stay.
        if let Some(audit) = self.audit(peer.from, proved.as_ref()) {
            // It is set here alone, and was not.
            let _ = peer.audit.set(audit);
        }
        if let (Some(security), Some(proved)) = (&self.options.security, &proved) {
            security.takes_in(proved, SystemTime::now())?;
        }
        self.admission.borrow_mut().greeted(peer.number, &peer.last_use, now).map_err(|why| self.no_room(why))?;
        let tag = proved.as_ref().map_or(0, |proved| proved.pass.server);
        if let Some(proved) = proved {
            tracing::debug!(peer = peer.name, identity = %proved.identity(), "RDMA connection admitted");
            // This, too.
            let _ = peer.proved.set(proved);
        }
        Ok(tag)
    }

    /// Whether somebody has to prove who they are.
    pub(crate) fn proves(&self) -> bool {
        self.options.security.is_some()
    }

    /// Tells a peer why, and closes its connection.
    pub(crate) fn dismiss(&self, peer: &Peer<L>, reason: String) {
        self.dismiss_as(peer, FailureKind::InvalidArgument, reason);
    }

    fn dismiss_as(&self, peer: &Peer<L>, kind: FailureKind, reason: String) {
        tracing::warn!(peer = peer.name, reason, "closed an RDMA connection");
        self.sent_away(peer, &reason);
        peer.dismissed.set(true);
        self.reply(peer, CONNECTION_ID, Err(Failure::new(kind, reason)));
        peer.done.notify_one();
    }

    /// A request.
    ///
    /// # Errors
    /// Why it breaks the protocol.
    pub(crate) fn on_request(
        self: &Rc<Self>,
        peer: &Rc<Peer<L>>,
        header: &[u8],
        data: Received<'_>,
    ) -> Result<(), String> {
        if !peer.greeted.get() {
            return Err("it did not say hello first".to_owned());
        }
        let proved = peer.proved.get();
        if proved.is_some_and(|proved| !wire::carries(header, proved.pass.client)) {
            self.gauges.count_forged(&peer.name);
            return Ok(());
        }
        let (header, body) = wire::request(header, data)?;
        let id = header.id;
        let (limit, waiting) = (self.options.max_requests_per_connection, peer.endpoint.operations());
        if waiting >= 2 * limit {
            return Err(format!("it asks on and takes none of its {waiting} answers"));
        }
        if id == CONNECTION_ID {
            self.reply(peer, CONNECTION_ID, Ok(Response::of_body(Bytes::new())));
            return Ok(());
        }
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes_received.fetch_add((HEADER_LEN + body.len()) as u64, Ordering::Relaxed);
        if peer.asked.get() + waiting >= limit {
            let message = format!("this connection has its {limit} requests under way");
            self.reply(peer, id, Err(Failure::new(FailureKind::OutOfResources, message)));
            return Ok(());
        }
        let caller = proved.map_or_else(Caller::default, |proved| proved.caller.clone());
        let request = header.with_body(body).by(caller);
        if let Some(refused) = proved.and_then(|proved| proved.refusal(request.op, request.flags)) {
            peer.refused(&request, &refused);
            self.reply(peer, id, Err(refused));
            return Ok(());
        }
        let arrived = Instant::now();
        let pending = peer.audit.get().and_then(|audit| audit.begin(&request));
        match self.service.try_handle(&request) {
            Some(response) => {
                peer.trace_asked(arrived, arrived);
                let answer = response.fitting(&request);
                PendingRecord::answered(pending, &answer);
                let is_located = request.flags.contains(Flags::LOCATE) && answer.is_ok();
                let location = if is_located { self.locate(peer, &request) } else { None };
                self.reply_with(peer, id, answer, location);
                self.counts.latency.record(arrived.elapsed());
            }
            None => self.ask(peer, id, request, arrived, pending),
        }
        Ok(())
    }

    /// Has the service answer in its own time. `pending` is recorded when the answer is on its way.
    fn ask(
        self: &Rc<Self>,
        peer: &Rc<Peer<L>>,
        id: u64,
        request: Request,
        arrived: Instant,
        pending: Option<Box<PendingRecord>>,
    ) {
        let service = Arc::clone(&self.service);
        let answer = AbortOnDropHandle::new(self.runtime.spawn(async move {
            let asked = Instant::now();
            (asked, answer(&*service, request, false).await)
        }));
        peer.asked.set(peer.asked.get() + 1);
        let (peers, peer) = (Rc::clone(self), Rc::clone(peer));
        tokio::task::spawn_local(async move {
            let answer = tokio::select! {
                answer = answer => answer,
                _ = peer.endpoint.failed() => return,
            };
            peer.asked.set(peer.asked.get() - 1);
            // A task panics or is aborted only at the end of its runtime: `answer` catches the service's panics.
            if let Ok((asked, answer)) = answer
                && !peer.denied.get()
            {
                peer.trace_asked(arrived, asked);
                PendingRecord::answered(pending, &answer);
                peers.reply(&peer, id, answer);
                peers.counts.latency.record(arrived.elapsed());
            }
        });
    }

    fn reply(&self, peer: &Peer<L>, id: u64, answer: Result<Response, Failure>) {
        self.reply_with(peer, id, answer, None);
    }

    /// The same with where the payload lies.
    fn reply_with(&self, peer: &Peer<L>, id: u64, answer: Result<Response, Failure>, location: Option<Location>) {
        let (failure, provenance, body, payload) = match answer {
            Ok(Response { provenance, body, payload }) => (None, provenance, body, payload),
            Err(failure) => {
                let message = Bytes::copy_from_slice(failure.message().as_bytes());
                (Some(failure.kind()), Provenance::default(), message, ResponsePayload::None)
            }
        };
        // Both are far below 4 GiB: `Response::fitting` was asked.
        let (body_len, payload_len) = (body.len() as u32, payload.len() as u32);
        let mut header = ReplyHeader { id, failure, body_len, payload_len, provenance }.encode();
        if let Some(location) = location {
            located::set_location(&mut header, &location);
        }
        if let Some(proved) = peer.proved.get() {
            set_tag(&mut header, proved.pass.server);
        }
        let unfit = || {
            let message = "the service answered with what this transport does not take".to_owned();
            self.reply(peer, id, Err(Failure::new(FailureKind::Internal, message)));
        };
        let payload = match payload {
            ResponsePayload::Spans(spans) => spans,
            ResponsePayload::None => Spans::new(),
            // It was not offered to the service.
            ResponsePayload::File(_) => return unfit(),
        };
        let recorder = peer.recorder.as_ref().filter(|_| id != CONNECTION_ID);
        let reply = OutgoingReply { id, header, body, payload };
        let Ok(taken) = peer.endpoint.reply(reply, recorder.is_some()) else { return unfit() };
        if id != CONNECTION_ID {
            self.counts.replies.fetch_add(1, Ordering::Relaxed);
            let sent = HEADER_LEN as u64 + u64::from(body_len) + u64::from(payload_len);
            self.counts.bytes_sent.fetch_add(sent, Ordering::Relaxed);
        }
        if let Some((recorder, taken)) = recorder.zip(taken) {
            trace_sent(recorder.clone(), taken, failure, payload_len);
        }
    }
}

impl<L> Peer<L> {
    /// What carries its messages.
    pub(crate) fn link(&self) -> &L {
        &self.endpoint
    }

    /// Records how long a request that was answered took to get to the service, and the service for it.
    fn trace_asked(&self, arrived: Instant, asked: Instant) {
        if let Some(recorder) = &self.recorder {
            recorder.stage(Kind::Answer, Stage::Queue, asked.duration_since(arrived));
            recorder.stage(Kind::Answer, Stage::Store, asked.elapsed());
        }
    }
}

/// Records the sending of an answer when it has ended.
#[cold]
fn trace_sent(recorder: Recorder, taken: Taken, failure: Option<FailureKind>, payload_len: u32) {
    let start = Instant::now();
    tokio::task::spawn_local(async move {
        let is_taken = taken.await;
        recorder.stage(Kind::Answer, Stage::Wire, start.elapsed());
        recorder.ended(
            Kind::Answer,
            match (failure, is_taken) {
                (Some(kind), _) => Outcome::of_service(kind),
                (None, true) => Outcome::Moved(payload_len.into()),
                (None, false) => Outcome::Failed("link: not taken".to_owned()),
            },
        );
    });
}

/// Forgets a connection.
struct Forget<'a, L> {
    peers: &'a Peers<L>,
    key: usize,
}

impl<L> Drop for Forget<'_, L> {
    fn drop(&mut self) {
        let known = self.peers.peers.borrow_mut().remove(&self.key);
        if let Some(peer) = known {
            self.peers.admission.borrow_mut().leave(peer.number);
            self.peers.gauges.discount_connection();
        }
    }
}
