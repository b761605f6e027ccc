//! The server: listens on an I/O thread, within its bounds.

use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_metrics::LatencySnapshot;
use forebay_transport::Service;
use forebay_ucx::{Error, Listener, Message};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::RdmaError;
use crate::io_thread::{Core, IoThread};
use crate::options::ServerOptions;
use crate::peers::{Counts, Peer, Peers};
use crate::ucx_peer::UcxPeer;
use crate::wire;

/// How long between two attempts.
pub(crate) const LISTEN_AGAIN: Duration = Duration::from_secs(1);

/// How often those are looked over who proved who they are: whoever is denied is gone within five seconds.
pub(crate) const LOOK_OVER: Duration = Duration::from_secs(2);

/// A listening server. It ends with its I/O thread.
pub struct RdmaServer {
    address: SocketAddr,
    io_thread: Arc<IoThread>,
    counts: Arc<Counts>,
}

/// What a server counts, from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Connections now.
    pub connections: usize,
    /// Requests that arrived.
    pub requests: u64,
    /// Bytes of those.
    pub bytes_received: u64,
    /// Replies that were sent.
    pub replies: u64,
    /// Bytes of those.
    pub bytes_sent: u64,
}

impl ServerStats {
    pub(crate) fn of(counts: &Counts) -> Self {
        let Counts { connections, requests, bytes_received, replies, bytes_sent, .. } = counts;
        let [requests, bytes_received, replies, bytes_sent] =
            [requests, bytes_received, replies, bytes_sent].map(|counter| counter.load(Ordering::Relaxed));
        Self { connections: connections.load(Ordering::Relaxed), requests, bytes_received, replies, bytes_sent }
    }
}

impl RdmaServer {
    /// Listens on `io_thread` as `options` say and has `service` answer; a port that is taken is tried again each second. What
    /// the service cannot answer at once it is asked on the runtime of the caller.
    ///
    /// # Errors
    /// [`RdmaError::NotHere`] at once, [`RdmaError::Listen`] after `options.listen_within`.
    pub async fn bind(
        io_thread: Arc<IoThread>,
        options: ServerOptions,
        service: Arc<dyn Service>,
    ) -> Result<Self, RdmaError> {
        // rdma_cm gives one answer for an address that is not here and for a port that is taken.
        if is_elsewhere(options.address.ip()) {
            return Err(RdmaError::NotHere { address: options.address });
        }
        let runtime = tokio::runtime::Handle::current();
        let started = tokio::time::Instant::now();
        let counts = Arc::new(Counts::default());
        loop {
            let waited = started.elapsed();
            let within = options.listen_within;
            let (options, service) = (options.clone(), Arc::clone(&service));
            let (address, runtime, counted) = (options.address, runtime.clone(), Arc::clone(&counts));
            let listening = io_thread.ask(move |core| listen(core, options, service, runtime, counted)).await;
            match listening.unwrap_or_else(|| Err(RdmaError::Thread("the I/O thread has ended".to_owned()))) {
                Ok(address) => {
                    tracing::info!(%address, card = io_thread.name(), "RDMA server listening");
                    return Ok(Self { address, io_thread, counts });
                }
                Err(RdmaError::Ucx(reason @ (Error::PortBusy { .. } | Error::Listen { .. }))) => {
                    if waited >= within {
                        return Err(RdmaError::Listen { address, waited: within, reason });
                    }
                    tracing::info!(%address, reason = crate::why(&reason), "RDMA port is not free yet, trying again");
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

    /// How long requests took, from their arrival until their replies were given to what sends them.
    #[must_use]
    pub fn latency(&self) -> LatencySnapshot {
        self.counts.latency.snapshot()
    }

    /// The I/O thread that it listens on.
    #[must_use]
    pub fn io_thread(&self) -> &Arc<IoThread> {
        &self.io_thread
    }

    /// Closes every connection, and the I/O thread.
    pub async fn close(&self) {
        self.io_thread.close().await;
    }
}

/// Whether no interface of this machine has `address`.
pub(crate) fn is_elsewhere(address: IpAddr) -> bool {
    let bound = std::net::UdpSocket::bind((address, 0));
    bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable)
}

/// Starts listening; where.
fn listen(
    core: &Rc<Core>,
    options: ServerOptions,
    service: Arc<dyn Service>,
    runtime: tokio::runtime::Handle,
    counts: Arc<Counts>,
) -> Result<SocketAddr, RdmaError> {
    let listener = core.worker.listen(options.address)?;
    let peers = Peers::new(Arc::clone(&core.gauges), options, service, runtime, Arc::clone(&counts));
    receive_requests(core, &peers)?;
    let address = listener.address();
    tokio::task::spawn_local(accept(Rc::clone(core), listener, peers, counts));
    Ok(address)
}

/// Has the I/O thread's worker bring hellos and requests to `peers`; fails when the I/O thread has a server already.
fn receive_requests(core: &Rc<Core>, peers: &Rc<Peers<UcxPeer>>) -> Result<(), RdmaError> {
    let weak = Rc::downgrade(peers);
    core.worker.on_message(wire::HELLO, move |message| {
        if let Some((peers, peer)) = sender(&weak, &message) {
            peers.on_hello(&peer, message.header, !message.data.is_empty());
        }
    })?;
    let weak = Rc::downgrade(peers);
    core.worker.on_message(wire::REQUEST, move |message| {
        if let Some((peers, peer)) = sender(&weak, &message)
            && let Err(reason) = peers.on_request(&peer, message.header, (&message.data).into())
        {
            peers.dismiss(&peer, reason);
        }
    })?;
    Ok(())
}

/// A connection, and those that it is one of.
type Sender = (Rc<Peers<UcxPeer>>, Rc<Peer<UcxPeer>>);

/// The connection that a message says it is of.
fn sender(peers: &Weak<Peers<UcxPeer>>, message: &Message<'_>) -> Option<Sender> {
    let peers = peers.upgrade()?;
    let peer = peers.find(message.from.as_ref()?.key())?;
    Some((peers, peer))
}

async fn accept(core: Rc<Core>, listener: Listener, peers: Rc<Peers<UcxPeer>>, counts: Arc<Counts>) {
    let mut serving = JoinSet::new();
    let mut look = tokio::time::interval(LOOK_OVER);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            request = listener.accept() => {
                let name = request.peer().map_or_else(|| "an unnamed peer".to_owned(), |peer| peer.to_string());
                let pending = match peers.arrive(request.peer(), request.client_id()) {
                    Ok(pending) => pending,
                    Err(reason) => {
                        tracing::warn!(peer = name, reason, "refused an RDMA connection");
                        peers.turned_away(request.peer(), &reason);
                        request.reject();
                        continue;
                    }
                };
                match request.accept() {
                    Ok(endpoint) => {
                        let endpoint = UcxPeer::new(&core, endpoint);
                        peers.admit(name, &endpoint, pending);
                        serving.spawn_local(Rc::clone(&peers).serve(endpoint));
                    }
                    Err(error) => {
                        peers.give_up(&pending);
                        tracing::warn!(peer = name, %error, "cannot accept an RDMA connection");
                    }
                }
            }
            _ = look.tick(), if peers.proves() => peers.look_over(),
            Some(ended) = serving.join_next(), if !serving.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "the task of an RDMA connection failed");
                }
            }
        }
        counts.connections.store(serving.len(), Ordering::Relaxed);
    }
}
