//! The server: accepts connections, within its bounds, and owns their tasks.
//!
//! It accepts on the runtime of its caller. Connections are served there, too, or on I/O threads ([`crate::io_threads`]).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_transport::Service;
use forebay_transport::wire::{Hello, MAX_UPLOAD_BODY};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::in_flight::{Counts, ZeroCopyCounts};
use crate::io_threads::{IoThreads, ThreadHandles, report};
use crate::options::ServerOptions;
use crate::serve::{ServerShared, serve};
use crate::{TcpError, socket};

/// Connections beyond the limit that are being told so at once; further ones are closed without a word.
const MAX_REFUSALS: usize = 16;
/// How long accepting rests after an error, such as too many open files, that would only come back at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Bytes of large bodies that may be held at once. One of the longest has room when nothing else is held.
fn body_memory(options: &ServerOptions) -> usize {
    let bytes = options.body_memory.as_u64().max(u64::from(MAX_UPLOAD_BODY));
    usize::try_from(bytes).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

/// A listening server. Dropping it ends its tasks without waiting for them.
pub struct TcpServer {
    address: SocketAddr,
    stop: CancellationToken,
    connections: Arc<AtomicUsize>,
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
        let (io_threads, handles) = IoThreads::start(options.io_threads).map_err(TcpError::Threads)?;
        let stop = CancellationToken::new();
        let connections = Arc::new(AtomicUsize::new(0));
        let zero_copy = Arc::new(Counts::default());
        let shared = Arc::new(ServerShared {
            hello: Hello::ours(&options.cluster, options.block_size),
            service,
            runtime: Handle::current(),
            stop: stop.clone(),
            memory: Arc::new(Semaphore::new(body_memory(&options))),
            places: Arc::new(Semaphore::new(options.max_requests.clamp(1, Semaphore::MAX_PERMITS))),
            options,
            zero_copy: Arc::clone(&zero_copy),
        });
        let accepting = tokio::spawn(accept(listener, shared, io_threads, Arc::clone(&connections)));
        Ok(Self { address, stop, connections, accepting: Mutex::new(Some(accepting)), handles, zero_copy })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many connections there are now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The same as a gauge that may outlive the server.
    pub fn connection_gauge(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let connections = Arc::clone(&self.connections);
        move || connections.load(Ordering::Relaxed)
    }

    /// What became of payloads that the kernel was to send from where they lie, as a function that may outlive the server.
    pub fn zero_copy_counts(&self) -> impl Fn() -> ZeroCopyCounts + Send + Sync + 'static {
        let counts = Arc::clone(&self.zero_copy);
        move || counts.now()
    }

    /// Stops listening, closes every connection and drops the requests in flight. Returns when no task and
    /// no thread is left.
    pub async fn close(&self) {
        self.stop.cancel();
        let accepting = self.accepting.lock().take();
        if let Some(accepting) = accepting {
            // It ends by panic only when accepting itself does, and then there is nothing left to wait for.
            let _ = accepting.await;
        }
        self.handles.join().await;
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

/// Counts a connection for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a connection has of its server, besides what all have in common.
struct Admission {
    peer: SocketAddr,
    /// `None` for one too many, which is told so.
    counted: Option<Counted>,
    refusal: Option<OwnedSemaphorePermit>,
}

impl Admission {
    async fn serve(self, stream: TcpStream, shared: Arc<ServerShared>) {
        serve(stream, self.peer, shared, self.counted.is_none()).await;
        drop((self.counted, self.refusal));
    }

    /// The same on another runtime than the one that accepted `stream`.
    async fn serve_elsewhere(self, stream: std::net::TcpStream, shared: Arc<ServerShared>) {
        match TcpStream::from_std(stream) {
            Ok(stream) => self.serve(stream, shared).await,
            Err(error) => tracing::warn!(peer = %self.peer, %error, "cannot serve a connection"),
        }
    }
}

async fn accept(
    listener: TcpListener,
    shared: Arc<ServerShared>,
    io_threads: IoThreads,
    connections: Arc<AtomicUsize>,
) {
    // However this task ends, also when its runtime goes away under it: I/O threads do not serve on.
    let _ends = shared.stop.clone().drop_guard();
    let mut tasks = JoinSet::new();
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
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
        let full = connections.load(Ordering::Relaxed) >= shared.options.max_connections;
        let refusal = if full { Arc::clone(&refusals).try_acquire_owned().ok() } else { None };
        if full && refusal.is_none() {
            continue;
        }
        let counted = (!full).then(|| {
            connections.fetch_add(1, Ordering::Relaxed);
            Counted(Arc::clone(&connections))
        });
        let admission = Admission { peer, counted, refusal };
        let shared = Arc::clone(&shared);
        if io_threads.is_empty() {
            tasks.spawn(admission.serve(stream, shared));
            continue;
        }
        match stream.into_std() {
            Ok(stream) => io_threads.spawn(admission.serve_elsewhere(stream, shared)),
            Err(error) => tracing::warn!(%peer, %error, "cannot serve a connection"),
        }
    }
    drop((listener, io_threads));
    while tasks.join_next().await.is_some() {}
}
