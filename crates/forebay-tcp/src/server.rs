//! The server: accepts connections, within its bounds, and owns their tasks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_transport::Service;
use forebay_transport::wire::{Hello, MAX_UPLOAD_BODY};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::options::ServerOptions;
use crate::serve::{Shared, serve};
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
}

impl TcpServer {
    /// Listens as `options` say and has `service` answer. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`TcpError`] when it cannot listen there.
    pub fn bind(options: ServerOptions, service: Arc<dyn Service>) -> Result<Self, TcpError> {
        let listen_error = |error| TcpError::Listen { address: options.address, error };
        let listener = socket::listen(options.address)?;
        let listener = TcpListener::from_std(listener).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let stop = CancellationToken::new();
        let connections = Arc::new(AtomicUsize::new(0));
        let shared = Arc::new(Shared {
            hello: Hello::ours(&options.cluster, options.block_size),
            service,
            stop: stop.clone(),
            memory: Arc::new(Semaphore::new(body_memory(&options))),
            places: Arc::new(Semaphore::new(options.max_requests.clamp(1, Semaphore::MAX_PERMITS))),
            options,
        });
        let accepting = tokio::spawn(accept(listener, shared, Arc::clone(&connections)));
        Ok(Self { address, stop, connections, accepting: Mutex::new(Some(accepting)) })
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

    /// The same for whoever watches, for as long as he likes.
    pub fn connection_gauge(&self) -> impl Fn() -> usize + Send + Sync + 'static {
        let connections = Arc::clone(&self.connections);
        move || connections.load(Ordering::Relaxed)
    }

    /// Stops listening, closes every connection and drops the requests in flight. Returns when no task is left.
    pub async fn close(&self) {
        self.stop.cancel();
        let accepting = self.accepting.lock().take();
        if let Some(accepting) = accepting {
            // It ends by panic only when accepting itself does, and then there is nothing left to wait for.
            let _ = accepting.await;
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

/// Counts a connection for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, connections: Arc<AtomicUsize>) {
    let mut tasks = JoinSet::new();
    let refusals = Arc::new(Semaphore::new(MAX_REFUSALS));
    loop {
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "the task of a connection failed");
                }
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
        let shared = Arc::clone(&shared);
        tasks.spawn(async move {
            serve(stream, peer, shared, full).await;
            drop((counted, refusal));
        });
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}
