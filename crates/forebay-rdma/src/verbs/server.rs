//! The server over verbs: listens on an I/O thread, within its bounds.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_memory::Spans;
use forebay_metrics::LatencySnapshot;
use forebay_one_sided::Location;
use forebay_transport::Service;
use forebay_transport::wire::{HEADER_LEN, Hello, RequestHeader};
use forebay_verbs::{Error, Event, EventKind, Id, QueuePair, Reading, Remote};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::RdmaError;
use crate::options::ServerOptions;
use crate::peer_link::{OutgoingReply, PeerLink, Seen, Taken, Unfit};
use crate::peers::{Counts, Peers};
use crate::server::{LISTEN_AGAIN, LOOK_OVER, ServerStats, is_elsewhere};
use crate::verbs::channel::{Channel, Incoming, Outgoing};
use crate::verbs::core::Core;
use crate::verbs::frame::{Kind, MAX_INSIDE, Offer, check_hello, hello};
use crate::verbs::links::{Link, Receiver};
use crate::verbs::options::{End, OF_SERVER};
use crate::verbs::payload::Leaving;
use crate::verbs::teller::Teller;
use crate::verbs::thread::VerbsThread;
use crate::wire::Received;

/// Places for the payload of answers that a client may have offered at once: more than it has requests under way.
const MAX_WINDOWS: usize = 16_384;
/// Bytes in messages that count as getting on, as over TCP: a peer that takes less of them within the time for it holds memory that
/// others wait for.
const PROGRESS: u32 = 64 << 10;

/// A listening server. It ends with its I/O thread.
pub struct VerbsServer {
    address: SocketAddr,
    thread: Arc<VerbsThread>,
    counts: Arc<Counts>,
}

impl VerbsServer {
    /// Listens on `thread` as `options` say and has `service` answer; a port that is taken is tried again each second. What the
    /// service cannot answer at once it is asked on the runtime of the caller.
    ///
    /// # Errors
    /// [`RdmaError::NotHere`] at once, [`RdmaError::ListenByVerbs`] after `options.listen_within`.
    pub async fn bind(
        thread: Arc<VerbsThread>,
        options: ServerOptions,
        service: Arc<dyn Service>,
    ) -> Result<Self, RdmaError> {
        let (address, within) = (options.address, options.listen_within);
        if is_elsewhere(address.ip()) {
            return Err(RdmaError::NotHere { address });
        }
        let runtime = tokio::runtime::Handle::current();
        let started = tokio::time::Instant::now();
        let counts = Arc::new(Counts::default());
        loop {
            let waited = started.elapsed();
            let (options, service) = (options.clone(), Arc::clone(&service));
            let (runtime, counted) = (runtime.clone(), Arc::clone(&counts));
            let listening = thread.ask(move |core| listen(core, options, service, runtime, counted)).await;
            match listening.unwrap_or_else(|| Err(RdmaError::Thread("the I/O thread has ended".to_owned()))) {
                Ok(address) => {
                    tracing::info!(%address, card = thread.name(), "RDMA server listening by verbs");
                    return Ok(Self { address, thread, counts });
                }
                Err(RdmaError::Verbs(reason @ Error::Address { is_taken: true, .. })) => {
                    if waited >= within {
                        return Err(RdmaError::ListenByVerbs { waited: within, reason });
                    }
                    tracing::info!(%address, "RDMA port is not free yet, trying again");
                    tokio::time::sleep(LISTEN_AGAIN.min(within.saturating_sub(started.elapsed()))).await;
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many connections there are now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.counts.connections.load(Ordering::Relaxed)
    }

    /// What it has counted.
    #[must_use]
    pub fn stats(&self) -> ServerStats {
        ServerStats::of(&self.counts)
    }

    /// How long requests took, from their arrival until their replies were posted.
    #[must_use]
    pub fn latency(&self) -> LatencySnapshot {
        self.counts.latency.snapshot()
    }

    /// The I/O thread that it listens on.
    #[must_use]
    pub fn thread(&self) -> &Arc<VerbsThread> {
        &self.thread
    }

    /// Closes every connection, and the I/O thread.
    pub async fn close(&self) {
        self.thread.close().await;
    }
}

/// Starts listening; where.
fn listen(
    core: &Rc<Core>,
    options: ServerOptions,
    service: Arc<dyn Service>,
    runtime: tokio::runtime::Handle,
    counts: Arc<Counts>,
) -> Result<SocketAddr, RdmaError> {
    let listener = Id::new(&core.events)?;
    listener.listen(options.address)?;
    let address = listener.local_address().unwrap_or(options.address);
    let events = core.links.listen_to(&listener);
    let peers = Peers::new(Arc::clone(&core.gauges), options, service, runtime, Arc::clone(&counts));
    let server = Rc::new(Server { core: Rc::clone(core), peers, counts });
    tokio::task::spawn_local(server.accept(listener, events));
    Ok(address)
}

/// A server, on its I/O thread.
struct Server {
    core: Rc<Core>,
    peers: Rc<Peers<VerbsPeer>>,
    counts: Arc<Counts>,
}

impl Server {
    async fn accept(self: Rc<Self>, listener: Id, mut events: mpsc::UnboundedReceiver<Event>) {
        let mut serving = JoinSet::new();
        let mut look = tokio::time::interval(LOOK_OVER);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { break };
                    match (event.kind, event.request) {
                        (EventKind::ConnectRequest, Some(request)) => {
                            if let Some(peer) = self.take_in(request, &event.private_data) {
                                serving.spawn_local(Rc::clone(&self.peers).serve(peer));
                            }
                        }
                        (EventKind::Failed, _) => tracing::error!(event = event.name, "an RDMA listener has failed"),
                        _ => {}
                    }
                }
                () = self.core.stop.cancelled() => break,
                _ = look.tick(), if self.peers.proves() || self.core.board.is_some() => {
                    self.peers.look_over();
                    if self.core.board.is_some() {
                        self.peers.look_at_readers();
                    }
                }
                Some(ended) = serving.join_next(), if !serving.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the task of an RDMA connection failed");
                    }
                }
            }
            self.counts.connections.store(serving.len(), Ordering::Relaxed);
        }
        // Nobody connects any more; those who are there see that their connections are broken.
        self.core.links.forget_id(listener.key());
        drop(listener);
        while serving.join_next().await.is_some() {}
        self.counts.connections.store(0, Ordering::Relaxed);
    }

    /// Accepts the connection that somebody wants, or tells it why not.
    fn take_in(self: &Rc<Self>, request: Id, said: &[u8]) -> Option<VerbsPeer> {
        let from = request.peer_address();
        let name = from.map_or_else(|| "an unnamed peer".to_owned(), |from| from.to_string());
        let refuse = |request: Id, reason: &str| {
            tracing::warn!(peer = name, reason, "refused an RDMA connection");
            self.peers.turned_away(from, &reason);
            request.reject(reason.as_bytes());
        };
        let theirs = match Offer::decode(said) {
            Ok(theirs) => theirs,
            Err(reason) => {
                refuse(request, &reason);
                return None;
            }
        };
        let pending = match self.peers.arrive(from, theirs.client_id) {
            Ok(pending) => pending,
            Err(reason) => {
                refuse(request, reason);
                return None;
            }
        };
        match self.connect(request, &theirs) {
            Ok(peer) => {
                let receiver: Weak<Self> = Rc::downgrade(self);
                peer.link.set_receiver(receiver);
                self.peers.admit(name, &peer, pending);
                Some(peer)
            }
            Err(error) => {
                self.peers.give_up(&pending);
                tracing::warn!(peer = name, %error, "cannot accept an RDMA connection");
                self.peers.turned_away(from, &error);
                None
            }
        }
    }

    fn connect(&self, request: Id, theirs: &Offer) -> Result<VerbsPeer, Error> {
        self.core.fabric.set(&request);
        let board = self.core.board.as_ref().filter(|_| theirs.one_sided && !theirs.in_messages);
        let mtu = self.core.fabric.mtu_for(theirs.mtu);
        let in_messages = theirs.in_messages;
        let ours = Offer { one_sided: board.is_some(), in_messages, mtu, ..OF_SERVER };
        let reading = if ours.one_sided { Reading::Theirs } else { Reading::None };
        let options = End::Server.queue_pair(&ours, theirs, reading);
        let queue = self.core.queue_for(&options)?;
        let pair = QueuePair::new(request, &self.core.registration, &queue, &options)?;
        let path = self.core.fabric.path(mtu);
        pair.accept(self.core.fabric.handshake(&ours.encode(), reading, path))?;
        let link = self.core.links.add(pair, Channel::new(&ours, theirs));
        let teller = board.map(|board| Rc::new(Teller::new(board)));
        let frames_of_progress = if in_messages { (PROGRESS / theirs.frame_length).max(1) } else { 1 };
        Ok(VerbsPeer { link, in_messages, frames_of_progress, windows: Rc::default(), teller })
    }
}

impl Receiver for Server {
    fn message(&self, link: &Rc<Link>, message: &Incoming, _receive: u32) -> Result<(), String> {
        let Some(peer) = self.peers.find(link.number() as usize) else { return Ok(()) };
        match message.header.kind {
            Kind::Hello => {
                self.peers.on_hello(&peer, &message.bytes, false);
                Ok(())
            }
            Kind::Request => {
                if let Some(window) = message.header.window() {
                    peer.link().remember(&message.bytes, window)?;
                }
                self.peers.on_request(&peer, &message.bytes, Received::Here(&[]))
            }
            Kind::Forgotten if peer.link().teller.is_some() => {
                peer.link().forgotten();
                Ok(())
            }
            Kind::Reply
            | Kind::Welcome
            | Kind::Credits
            | Kind::More
            | Kind::Opened
            | Kind::Forget
            | Kind::Forgotten
            | Kind::Payload => Err(format!("a message of kind {} is not for a server", message.header.kind as u8)),
        }
    }

    fn broke_protocol(&self, link: &Rc<Link>, reason: String) {
        if let Some(peer) = self.peers.find(link.number() as usize) {
            self.peers.dismiss(&peer, reason);
        }
    }
}

/// A server's connection over verbs.
#[derive(Clone)]
pub(crate) struct VerbsPeer {
    link: Rc<Link>,
    /// Its client's card has no memory windows: payload goes in frames of its own.
    in_messages: bool,
    /// So many frames that it has taken count as getting on.
    frames_of_progress: u32,
    /// Where the payload of answers may be written, by the numbers of their requests.
    windows: Rc<RefCell<HashMap<u64, Remote>>>,
    /// What its client may read by itself. `None`: it cannot, or nobody may.
    teller: Option<Rc<Teller>>,
}

impl VerbsPeer {
    fn forgotten(&self) {
        if let Some(teller) = &self.teller {
            teller.forgotten(&self.link);
        }
    }

    /// Keeps where the payload of the answer to this request may be written.
    ///
    /// # Errors
    /// How the request breaks the protocol.
    fn remember(&self, request: &[u8], window: Remote) -> Result<(), String> {
        let header = request.first_chunk::<HEADER_LEN>().ok_or("a request's header is cut off")?;
        let id = RequestHeader::decode(header).map_err(|error| error.to_string())?.id;
        if self.in_messages {
            return Err("it offers a place for payload, which was to come in messages".to_owned());
        }
        let mut windows = self.windows.borrow_mut();
        if windows.len() >= MAX_WINDOWS {
            return Err(format!("it has offered {MAX_WINDOWS} places for answers"));
        }
        match windows.insert(id, window) {
            None => Ok(()),
            Some(_) => Err(format!("it asks twice under the number {id}")),
        }
    }
}

impl PeerLink for VerbsPeer {
    fn key(&self) -> usize {
        self.link.number() as usize
    }

    fn check_hello(&self, ours: &Hello, said: &[u8]) -> Result<u64, String> {
        check_hello(ours, said)
    }

    fn welcome(&self, ours: &Hello, tag: u64) {
        self.link.send(Outgoing::new(Kind::Welcome, &hello(ours, tag)));
    }

    fn reply(&self, reply: OutgoingReply, is_watched: bool) -> Result<Option<Taken>, Unfit> {
        let length: usize = reply.payload.iter().map(|span| span.len()).sum();
        let window = self.windows.borrow().get(&reply.id).copied();
        let is_long = length > MAX_INSIDE as usize;
        if window.is_none() && is_long && !self.in_messages {
            return Err(Unfit);
        }
        self.windows.borrow_mut().remove(&reply.id);
        let mut message = Outgoing { body: reply.body, ..Outgoing::new(Kind::Reply, &reply.header) };
        match window {
            Some(window) => {
                // The use of its key ends, whether there is something to write or not.
                message.invalidate = Some(window.key);
                let payload: Spans = reply.payload.into_iter().filter(|span| !span.is_empty()).collect();
                message.write = (!payload.is_empty()).then_some((payload, window));
            }
            None if is_long => message.before = Some(Leaving::new(reply.id, reply.payload)),
            None => message.payload = reply.payload,
        }
        self.link.send(message);
        if !is_watched {
            return Ok(None);
        }
        let link = Rc::clone(&self.link);
        Ok(Some(Box::pin(async move { link.taken().await })))
    }

    fn may_tell(&self, seen: Seen) -> bool {
        self.teller.as_ref().is_some_and(|teller| teller.may_tell(seen))
    }

    fn open(&self, location: &Location) -> bool {
        self.teller.as_ref().is_some_and(|teller| teller.open(&self.link, location))
    }

    fn look(&self, seen: Seen, now: Instant) {
        if let Some(teller) = &self.teller {
            teller.look(&self.link, seen, now);
        }
    }

    fn operations(&self) -> usize {
        self.link.under_way()
    }

    fn ended(&self) -> u64 {
        self.link.ended_count() / u64::from(self.frames_of_progress)
    }

    async fn failed(&self) -> String {
        self.link.failed().await
    }

    async fn flush(&self) {
        self.link.taken().await;
    }

    async fn close(&self) {
        self.link.close().await;
    }
}
