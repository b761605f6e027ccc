//! An http server on loopback with threads of its own. The other servers of this crate are handlers in it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use forebay_locks::Mutex;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, JoinSet};

/// A body of an answer. An error in it, or in place of an answer, closes the connection.
pub(crate) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// Answers requests.
#[async_trait::async_trait]
pub(crate) trait Handler: Send + Sync + 'static {
    async fn handle(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> Result<Response<Body>, std::io::Error>;
}

/// The connection that a request came on.
#[derive(Clone)]
pub(crate) struct Connection(Arc<socket2::Socket>);

impl Connection {
    /// Closing the connection sends RST from now on, in place of FIN.
    pub(crate) fn reset_when_closed(&self) {
        // A socket that is gone already needs no reset.
        let _ = self.0.set_linger(Some(Duration::ZERO));
    }
}

/// The server.
pub(crate) struct LoopbackServer {
    address: SocketAddr,
    handler: Arc<dyn Handler>,
    accepting: Mutex<Option<JoinHandle<()>>>,
    runtime: Option<Runtime>,
}

impl LoopbackServer {
    /// Serves on `127.0.0.1:port`; port 0 takes a free one.
    pub(crate) fn start(name: &str, port: u16, handler: Arc<dyn Handler>) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(format!("testkit-{name}"))
            .enable_all()
            .build()
            .context("cannot start the server's threads")?;
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
        let address = listener.local_addr()?;
        let accepting = runtime.spawn(accept(listener, Arc::clone(&handler)));
        Ok(Self { address, handler, accepting: Mutex::new(Some(accepting)), runtime: Some(runtime) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the listener and all connections: new ones are refused.
    pub(crate) fn stop(&self) {
        if let Some(accepting) = self.accepting.lock().take() {
            accepting.abort();
            // The listener is closed when the task is gone.
            let deadline = std::time::Instant::now() + Duration::from_secs(10);
            while !accepting.is_finished() && std::time::Instant::now() < deadline {
                std::thread::yield_now();
            }
        }
    }

    /// Listens again, on the same port.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        let mut accepting = self.accepting.lock();
        if let (None, Some(runtime)) = (&*accepting, &self.runtime) {
            let listener = bind(self.address)?;
            *accepting = Some(runtime.spawn(accept(listener, Arc::clone(&self.handler))));
        }
        Ok(())
    }
}

impl Drop for LoopbackServer {
    fn drop(&mut self) {
        // Does not wait, which would panic in a test's own runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn bind(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let bind = || -> std::io::Result<std::net::TcpListener> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        // The port of a server that was stopped is still held by its old connections.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    bind().with_context(|| format!("cannot listen on {address}"))
}

async fn accept(listener: std::net::TcpListener, handler: Arc<dyn Handler>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    // Aborting this task drops the set, which aborts the connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    connections.spawn(serve(stream, Arc::clone(&handler)));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, handler: Arc<dyn Handler>) {
    // Without it the last part of an answer waits for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let Ok(socket) = socket2::SockRef::from(&stream).try_clone() else { return };
    let connection = Connection(Arc::new(socket));
    let service = service_fn(move |request| {
        let (handler, connection) = (Arc::clone(&handler), connection.clone());
        async move { handler.handle(request, &connection).await }
    });
    // A connection that the client or a fault broke is no error of the server.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}
