//! The server: a control port, and behind it the memory that clients read and write.
//!
//! * a task for each control connection, with the session that lasts as long as it (`control`);
//! * a thread with one UCX worker for one-sided access by all clients (`one_sided`), and one for those by verbs (`verbs`);
//! * a thread for each plain socket of READ and WRITE over TCP (`stream`);
//! * the cache's own servers, over UCX and TCP, with a service that has everything in memory (`service`).
//!
//! Memory is bounded, and taken at the start: [`BLOCKS`] frames of 4 MiB to read one-sidedly, as many for the cache's
//! service, and [`AREA_FRAMES`] for each of [`MAX_CLIENTS`] to write. A plain socket that writes has as much of its own while it
//! lasts, and there are at most `MAX_STREAMS` of them.

mod control;
mod one_sided;
mod service;
mod sessions;
mod shared;
mod stream;
mod verbs;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_memory::FRAME_SIZE;
use forebay_rdma::verbs::VerbsServer;
use forebay_rdma::{IoThread, Library, RdmaServer, Resource};
use forebay_tcp::TcpServer;
use forebay_transport::Service;
use forebay_types::{ByteSize, MAX_BLOCK_SIZE};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::Error;
use crate::memory;
use crate::options::{ServerOptions, TransportChoice};
use crate::plan::{self, AREA_FRAMES, BLOCKS, CONNECT_DEADLINE, MAX_CLIENTS, OPERATION_DEADLINE};
use crate::server::one_sided::OneSided;
use crate::server::service::Blocks;
use crate::server::sessions::Sessions;
use crate::server::shared::{ServerShared, UcxPorts};
use crate::server::verbs::VerbsMemoryServer;
use crate::ucx::{context, io_thread};
use crate::verbs::verbs_thread;
use crate::wire::{BENCH_CLUSTER, VerbsOffer};

/// Connections at once, those included that have not yet said what they are for.
const MAX_CONNECTIONS: usize = 512;
/// Plain sockets for READ and WRITE at once.
const MAX_STREAMS: usize = 256;
/// How long accepting rests after an error, such as too many open files, that would only come back at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How long connections may take to end.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 256;

/// A running server. Close it to end its threads; a drop only tells them to end.
pub struct Server {
    address: SocketAddr,
    shared: Arc<ServerShared>,
    tcp: TcpServer,
    ucx: Option<Ucx>,
    verbs: Option<Verbs>,
    tasks: TaskTracker,
}

/// What needs verbs.
struct Verbs {
    memory: Option<VerbsMemoryServer>,
    server: VerbsServer,
}

/// What needs UCX.
struct Ucx {
    one_sided: OneSided,
    io_thread: Arc<IoThread>,
    server: RdmaServer,
}

impl Server {
    /// Listens and serves until it is closed.
    ///
    /// # Errors
    /// [`Error`]: the port is taken, UCX is not there, memory cannot be had.
    pub async fn start(options: ServerOptions) -> Result<Self, Error> {
        let listen_error = |error| Error::Listen { address: options.address, error };
        let listener = listen(options.address).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        // One port after the other, or free ones.
        let port = |number: u16| {
            SocketAddr::new(address.ip(), options.data_port.map_or(0, |first| first.saturating_add(number)))
        };
        let pool = memory::pool(ByteSize::bytes((BLOCKS * FRAME_SIZE) as u64))?;
        let blocks = Arc::new(Blocks::new(&pool, BLOCKS, options.delay)?);
        let service = Arc::clone(&blocks) as Arc<dyn Service>;
        let sessions = Arc::new(Sessions::default());
        let requests = 2 * plan::MAX_OPERATIONS as usize;
        let cache = |address| forebay_rdma::ServerOptions {
            max_requests_per_connection: requests,
            hello_timeout: CONNECT_DEADLINE,
            stall_timeout: OPERATION_DEADLINE,
            ..forebay_rdma::ServerOptions::new(address, BENCH_CLUSTER, MAX_BLOCK_SIZE)
        };
        let verbs = match options.verbs {
            None => None,
            Some(card) => {
                let [address, memory_address] = [3, 4].map(|number| SocketAddr::new(card.address, port(number).port()));
                let starting = tokio::task::spawn_blocking({
                    let (pool, sessions) = (pool.clone(), Arc::clone(&sessions));
                    move || {
                        let memory = VerbsMemoryServer::start(&card, memory_address, sessions)?;
                        Ok::<_, Error>((verbs_thread(&card, &pool)?, memory))
                    }
                });
                let (thread, memory) = starting.await.map_err(io::Error::other)??;
                let server = VerbsServer::bind(thread, cache(address), Arc::clone(&service)).await?;
                Some(Verbs { memory, server })
            }
        };
        let (ucx, ports) = match options.transport {
            TransportChoice::Tcp => (None, None),
            TransportChoice::Ucx => {
                let library = Library::load(options.ucx.library.as_deref())?;
                let one_sided_port = port(1);
                let starting = tokio::task::spawn_blocking({
                    let (pool, ucx, sessions) = (pool.clone(), options.ucx.clone(), Arc::clone(&sessions));
                    move || {
                        let io_thread = io_thread(library, &ucx, &pool)?;
                        Ok::<_, Error>((
                            io_thread,
                            OneSided::start(&context(library, &ucx)?, one_sided_port, sessions)?,
                        ))
                    }
                });
                let (io_thread, (one_sided, memory)) = starting.await.map_err(io::Error::other)??;
                let io_thread = Arc::new(io_thread);
                let server = RdmaServer::bind(Arc::clone(&io_thread), cache(port(2)), Arc::clone(&service)).await?;
                let ports = UcxPorts {
                    version: library.version().to_string(),
                    port: memory.port,
                    cache_port: server.local_addr().port(),
                    blocks: memory.blocks,
                    areas: memory.areas,
                };
                (Some(Ucx { one_sided, io_thread, server }), Some(ports))
            }
        };
        let tcp = TcpServer::bind(
            forebay_tcp::ServerOptions {
                max_requests: MAX_CLIENTS * requests,
                hello_timeout: CONNECT_DEADLINE,
                stall_timeout: OPERATION_DEADLINE,
                ..forebay_tcp::ServerOptions::new(port(0), BENCH_CLUSTER, MAX_BLOCK_SIZE)
            },
            service,
        )?;
        let shared = Arc::new(ServerShared {
            delay: options.delay,
            stop: CancellationToken::new(),
            sessions,
            blocks,
            tcp_port: tcp.local_addr().port(),
            ucx: ports,
            verbs: verbs.as_ref().map(|Verbs { memory, server }| VerbsOffer {
                cache: server.local_addr(),
                memory: memory.as_ref().map(VerbsMemoryServer::address),
            }),
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        });
        let tasks = TaskTracker::new();
        tasks.spawn(accept(listener, Arc::clone(&shared), tasks.clone()));
        Ok(Self { address, shared, tcp, ucx, verbs, tasks })
    }

    /// Where it listens for clients.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Where UCX listens, and the UCX that it is; `None` without.
    #[must_use]
    pub fn ucx(&self) -> Option<(u16, &str)> {
        self.shared.ucx.as_ref().map(|ucx| (ucx.port, ucx.version.as_str()))
    }

    /// Where verbs listen; `None` without.
    #[must_use]
    pub fn verbs(&self) -> Option<SocketAddr> {
        self.shared.verbs.map(|verbs| verbs.memory.unwrap_or(verbs.cache))
    }

    /// Every port that clients need, that for control first: all that a firewall has to let through.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        let ucx = self.shared.ucx.iter().flat_map(|ucx| [ucx.port, ucx.cache_port]);
        let verbs = self.shared.verbs.iter().flat_map(|verbs| [Some(verbs.cache), verbs.memory]);
        let verbs = verbs.flatten().map(|address| address.port());
        [self.address.port(), self.shared.tcp_port].into_iter().chain(ucx).chain(verbs).collect()
    }

    /// Whether UCX has RDMA here.
    #[must_use]
    pub fn has_rdma(&self) -> bool {
        self.ucx.as_ref().is_some_and(|ucx| ucx.io_thread.resources().iter().any(Resource::is_rdma))
    }

    /// The memory that clients may access, over UCX.
    #[must_use]
    pub fn exposed(&self) -> ByteSize {
        ByteSize::bytes(((BLOCKS + MAX_CLIENTS * AREA_FRAMES) * FRAME_SIZE) as u64)
    }

    /// Ends every connection, and waits for tasks and threads.
    pub async fn close(self) {
        self.shared.stop.cancel();
        self.tasks.close();
        let close = async {
            self.tasks.wait().await;
            self.tcp.close().await;
            if let Some(verbs) = &self.verbs {
                verbs.server.close().await;
                if let Some(memory) = &verbs.memory {
                    memory.close().await;
                }
            }
            if let Some(ucx) = &self.ucx {
                ucx.server.close().await;
                ucx.io_thread.close().await;
                ucx.one_sided.close().await;
            }
        };
        if tokio::time::timeout(CLOSE_WITHIN, close).await.is_err() {
            tracing::warn!("some connections of the benchmark did not end in time");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

async fn accept(listener: TcpListener, shared: Arc<ServerShared>, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                // One more than there may be is closed without a word.
                let Ok(place) = Arc::clone(&shared.connections).try_acquire_owned() else { continue };
                let shared = Arc::clone(&shared);
                tasks.spawn(async move {
                    if let Err(reason) = control::serve(stream, &shared).await {
                        tracing::debug!(%peer, reason, "a connection of the benchmark ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection; if files are short, raise `ulimit -n`");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}
