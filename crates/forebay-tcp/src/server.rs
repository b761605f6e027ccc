//! The server: accepts connections, within its bounds, and owns their tasks.
//!
//! It accepts on the runtime of its caller. Connections are served there, too, or on I/O threads ([`crate::io_threads`]).

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_identity::Standing;
use forebay_locks::Mutex;
use forebay_private::PrivateListener;
use forebay_transport::Service;
use forebay_transport::wire::{Hello, MAX_UPLOAD_BODY};
use forebay_types::TcpZeroCopy;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::closings::CloseReason;
use crate::connections::{Connections, Place};
use crate::in_flight::{Counts, ZeroCopyCounts};
use crate::io_threads::{IoThreads, ThreadHandles, report};
use crate::options::ServerOptions;
use crate::serve::serve;
use crate::shared::ServerShared;
use crate::{TcpError, socket};

/// How long accepting rests after an error, such as too many open files, that would only come back at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Within the time that a connection may be idle, the server looks so often for those that were.
const SWEEPS: u32 = 5;
/// It looks no more often than this …
const MIN_SWEEP: Duration = Duration::from_millis(10);
/// … and no more rarely than this.
const MAX_SWEEP: Duration = Duration::from_secs(60);

/// How long what it serves is waited for at the end. More than it takes, unless a disk hangs that is sent from.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How often those who proved who they are are looked over: whoever is denied is gone within five seconds.
const LOOK_OVER: Duration = Duration::from_secs(2);

/// Bytes of large bodies that may be held at once. One of the longest has room when nothing else is held.
fn body_memory(options: &ServerOptions) -> usize {
    let bytes = options.body_memory.as_u64().max(u64::from(MAX_UPLOAD_BODY));
    usize::try_from(bytes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

/// As whom those are counted who come over a Unix socket: they are on this host, and of one user.
const THIS_HOST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What connections come to.
enum Listener {
    Tcp(TcpListener),
    Private(PrivateListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => listener.accept().await,
            Self::Private(listener) => Ok((socket::of_unix(listener.accept().await?)?, THIS_HOST)),
        }
    }
}

/// A listening server. Dropping it ends its tasks without waiting for them.
pub struct TcpServer {
    /// `None`: a Unix socket.
    address: Option<SocketAddr>,
    stop: CancellationToken,
    connections: Arc<Connections>,
    /// One permit for each byte of a large body, and how many permits there are.
    memory: (Arc<Semaphore>, usize),
    accepting: Mutex<Option<JoinHandle<()>>>,
    handles: ThreadHandles,
    zero_copy: Arc<Counts>,
}

impl TcpServer {
    /// Listens as `options` say and has `service` answer. Must be called within a tokio runtime, on which the service is asked
    /// what it cannot answer at once.
    ///
    /// # Errors
    /// [`TcpError`] when it cannot listen there, or has no threads to serve.
    pub fn bind(options: ServerOptions, service: Arc<dyn Service>) -> Result<Self, TcpError> {
        let listen_error = |error| TcpError::Listen { address: options.address, error };
        let listener = socket::listen(options.address)?;
        let listener = TcpListener::from_std(listener).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        Self::serve(Listener::Tcp(listener), Some(address), options, service)
    }

    /// The same for processes of this user and of root alone, who come to a Unix socket. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`TcpError::Threads`].
    pub fn private(
        listener: PrivateListener,
        options: ServerOptions,
        service: Arc<dyn Service>,
    ) -> Result<Self, TcpError> {
        // The kernel copies what goes over such a socket.
        let options = ServerOptions { zero_copy: TcpZeroCopy::Off, ..options };
        Self::serve(Listener::Private(listener), None, options, service)
    }

    fn serve(
        listener: Listener,
        address: Option<SocketAddr>,
        options: ServerOptions,
        service: Arc<dyn Service>,
    ) -> Result<Self, TcpError> {
        let (io_threads, handles) = IoThreads::start(options.io_threads).map_err(TcpError::Threads)?;
        let stop = CancellationToken::new();
        let connections = Connections::new(&options);
        let body_memory = body_memory(&options);
        let memory = Arc::new(Semaphore::new(body_memory));
        let zero_copy = Arc::new(Counts::default());
        let shared = Arc::new(ServerShared {
            hello: Hello::ours(&options.cluster, options.block_size),
            service,
            runtime: Handle::current(),
            stop: stop.clone(),
            memory: Arc::clone(&memory),
            places: Arc::new(Semaphore::new(options.max_requests.clamp(1, Semaphore::MAX_PERMITS))),
            options,
            zero_copy: Arc::clone(&zero_copy),
            connections: Arc::clone(&connections),
        });
        let accepting = Mutex::new(Some(tokio::spawn(accept(listener, shared, io_threads))));
        Ok(Self { address, stop, connections, memory: (memory, body_memory), accepting, handles, zero_copy })
    }

    /// Where it listens; nowhere that has an address (`0.0.0.0:0`) if that is a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0))
    }

    /// How many connections there are now that have said hello.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.greeted()
    }

    /// How many there are that have not said hello yet.
    #[must_use]
    pub fn greeting(&self) -> usize {
        self.connections.greeting()
    }

    /// [`TcpServer::connections`] as a gauge that may outlive the server.
    pub fn connection_gauge(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let connections = Arc::clone(&self.connections);
        move || connections.greeted()
    }

    /// How many connections there are now whose peers had to prove nothing, as a gauge that may outlive the server.
    pub fn unauthenticated_gauge(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let connections = Arc::clone(&self.connections);
        move || connections.unauthenticated()
    }

    /// How many connections it closed or refused, by reason, as a function that may outlive it.
    pub fn closed_counts(&self) -> impl Fn() -> [(CloseReason, u64); CloseReason::ALL.len()] + Send + Sync + 'static {
        let connections = Arc::clone(&self.connections);
        move || connections.closed()
    }

    /// How many bytes of memory large bodies have, as a gauge that may outlive the server.
    pub fn body_memory_gauge(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let (memory, whole) = (Arc::clone(&self.memory.0), self.memory.1);
        move || whole.saturating_sub(memory.available_permits())
    }

    /// What became of payloads that the kernel was to send from where they lie, as a function that may outlive the server.
    pub fn zero_copy_counts(&self) -> impl Fn() -> ZeroCopyCounts + Send + Sync + 'static {
        let counts = Arc::clone(&self.zero_copy);
        move || counts.now()
    }

    /// Stops listening, closes every connection and drops the requests in flight. Returns when no task and
    /// no thread is left; or after 5 s, when a disk hangs from which bytes are sent. Such a connection keeps what it sends until the
    /// kernel lets go of it, and ends then.
    pub async fn close(&self) {
        self.stop.cancel();
        let accepting = self.accepting.lock().take();
        let ended = async {
            if let Some(accepting) = accepting {
                // It ends by panic only when accepting itself does, and then there is nothing left to wait for.
                let _ = accepting.await;
            }
            self.handles.join().await;
        };
        if tokio::time::timeout(END_WITHIN, ended).await.is_err() {
            tracing::warn!("a disk hangs: connections on which it is sent from are not waited for");
        }
    }
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        // Also ends what a dropped `close` was waiting for.
        self.stop.cancel();
        if let Some(accepting) = self.accepting.lock().take() {
            accepting.abort();
        }
    }
}

/// Serves a connection on another runtime than the one that accepted it.
async fn serve_elsewhere(stream: std::net::TcpStream, place: Place, shared: Arc<ServerShared>) {
    match TcpStream::from_std(stream) {
        Ok(stream) => serve(stream, place, shared).await,
        Err(error) => tracing::warn!(peer = %place.peer(), %error, "cannot serve a connection"),
    }
}

async fn accept(listener: Listener, shared: Arc<ServerShared>, io_threads: IoThreads) {
    // However this task ends, also when its runtime goes away under it: I/O threads do not serve on.
    let _ends = shared.stop.clone().drop_guard();
    let mut tasks = JoinSet::new();
    let idle_timeout = shared.options.idle_timeout;
    let mut sweep = tokio::time::interval((idle_timeout / SWEEPS).clamp(MIN_SWEEP, MAX_SWEEP));
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut look = tokio::time::interval(LOOK_OVER);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            _ = sweep.tick() => {
                shared.connections.expire(idle_timeout);
                continue;
            }
            _ = look.tick(), if shared.options.security.is_some() => {
                let now = SystemTime::now();
                let security = shared.options.security.as_ref();
                let standing = |peer: &_| security.map_or(Standing::Good, |security| security.standing(peer, now));
                shared.connections.look_over(standing);
                continue;
            }
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                report(ended);
                continue;
            }
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; if files are short, raise `ulimit -n`");
                tokio::time::sleep(ACCEPT_REST).await;
                continue;
            }
        };
        let Some(place) = shared.connections.arrive(peer, &shared.stop).await else { continue };
        let shared = Arc::clone(&shared);
        if io_threads.is_empty() {
            tasks.spawn(serve(stream, place, shared));
            continue;
        }
        match stream.into_std() {
            Ok(stream) => io_threads.spawn(serve_elsewhere(stream, place, shared)),
            Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
        }
    }
    drop((listener, io_threads));
    while tasks.join_next().await.is_some() {}
}
