//! Windows onto workers' memory: those that a worker opens to processes on its host, and those that a mount looks through.
//!
//! A worker shares its pool if `network.shared_memory` lets it; then there is a window beside each of its listeners, at
//! the socket of that address, all with one bound. A client tries one for each worker whose address may be one of this host, whatever else it would reach it by; what
//! is no read, or no longer to be seen, goes the other way. A window that cannot be had is told in the log and costs nothing but
//! copies, unless `network.shared_memory` is `on`.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use forebay_client::Connector;
use forebay_cluster::Member;
use forebay_config::{Config, SharedMemory};
use forebay_identity::Auditing;
use forebay_locks::Mutex;
use forebay_memory::{Pool, Sharing, SpanMut};
use forebay_shm::{
    ClientOptions, NearTransport, ServerOptions, WindowReport, WindowServer, default_directory, socket_path,
};
use forebay_transport::{CallError, Op, PeerMemory, Reply, Request, Service, Transport, TransportKind};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::block_size::block_size;
use crate::driving::drive_options;
use crate::security::{self, Security};

/// Whether a worker's pool is to be shared that others may use.
pub fn sharing(config: &Config) -> Sharing {
    match config.network_shared_memory {
        SharedMemory::Auto => Sharing::IfHuge,
        SharedMemory::On => Sharing::Always,
        SharedMemory::Off => Sharing::Private,
    }
}

/// Where the sockets of this user's workers lie.
fn directory(config: &Config) -> PathBuf {
    config.network_shared_memory_dir.clone().unwrap_or_else(default_directory)
}

/// A worker's windows.
#[derive(Default)]
pub struct Windows {
    /// All of them.
    server: Option<WindowServer>,
    /// How many there are.
    sockets: usize,
}

impl Windows {
    /// A window beside each of the listeners at `addresses`, if `pool` is shared. `instance`: the worker's. `security`: what clients
    /// have to prove. `audit`: where is recorded who looks through it.
    ///
    /// # Errors
    /// When there can be none and must be.
    pub fn open(
        config: &Config,
        pool: &Pool,
        addresses: impl IntoIterator<Item = SocketAddr>,
        instance: u64,
        service: &Arc<dyn Service>,
        security: Option<&Security>,
        audit: Option<&Auditing>,
    ) -> anyhow::Result<Self> {
        let must = config.network_shared_memory == SharedMemory::On;
        if pool.descriptor().is_none() {
            anyhow::ensure!(
                !must,
                "network.shared_memory is `on`, and this machine gives no memory that can be shared"
            );
            return Ok(Self::default());
        }
        let (mut windows, directory) = (Self::default(), directory(config));
        for address in addresses {
            let path = socket_path(&directory, address);
            let opened = match &windows.server {
                Some(server) => server.also_listen(&path),
                None => {
                    let defaults = ServerOptions::new(path.clone(), config.cluster_name.as_str(), block_size(config));
                    let max_connections = config.worker_max_connections as usize;
                    let (security, audit) = (security.map(Security::window_server), audit.cloned());
                    let options = ServerOptions { instance, max_connections, security, audit, ..defaults };
                    WindowServer::bind(options, pool, Arc::clone(service)).map(|server| windows.server = Some(server))
                }
            };
            match opened {
                Ok(()) => windows.sockets += 1,
                Err(error) if must => return Err(error).context("clients on this host cannot be shown memory"),
                Err(error) => {
                    warn!(path = %path.display(), %error, "clients on this host cannot be shown memory, they get copies");
                }
            }
        }
        if windows.sockets > 0 {
            let (pages, directory) = (pool.pages(), directory.display());
            info!(%pages, %directory, "clients on this host that run as the same user see this worker's memory");
        }
        Ok(windows)
    }

    /// How many of the clients had to prove nothing.
    pub(crate) fn unauthenticated(&self) -> usize {
        self.server.as_ref().map_or(0, WindowServer::unauthenticated)
    }

    /// The clients that look through them, and what must stay as it is meanwhile.
    pub fn report(&self) -> Value {
        json!({
            "servers": self.sockets,
            "connections": self.server.as_ref().map_or(0, WindowServer::connections),
            "pinned_bytes": self.server.as_ref().map_or(0, WindowServer::pinned),
        })
    }

    /// Closes them. What clients still see stays as it is for as long as this process runs.
    pub async fn close(&self) {
        if let Some(server) = &self.server {
            server.close().await;
        }
    }
}

/// Connects as `others` does, and looks into the memory of workers on this host.
pub struct NearConnector {
    others: Arc<dyn Connector>,
    options: ClientOptions,
    patience: Patience,
    links: Mutex<Links>,
}

/// The links that were made.
#[derive(Default)]
struct Links {
    /// Those in use.
    open: Vec<Arc<NearTransport>>,
    /// What was read through others.
    reads: u64,
    bytes: u64,
}

impl NearConnector {
    /// One over `others`, if the configuration wants one. `security`: what is proved to workers.
    pub fn over(others: Arc<dyn Connector>, config: &Config, security: Option<&Security>) -> Option<Self> {
        if config.network_shared_memory == SharedMemory::Off {
            return None;
        }
        let options = ClientOptions::new(config.cluster_name.as_str(), block_size(config));
        let connect_timeout = options.connect_timeout.min(config.client_request_timeout);
        let security = security.and_then(Security::window_client);
        let drive = drive_options(config);
        let options = ClientOptions { directory: directory(config), connect_timeout, security, drive, ..options };
        let patience = Patience { silence: config.network_tcp_keepalive, answer: config.network_tcp_dead_after };
        Some(Self { others, options, patience, links: Mutex::default() })
    }

    /// What of workers' memory is seen from here, and how much was read there, for people and monitoring.
    pub fn report(&self) -> Value {
        let mut links = self.links.lock();
        links.settle();
        let workers: Vec<WindowReport> = links.open.iter().map(|link| link.report()).collect();
        let reads = links.reads + workers.iter().map(|worker| worker.reads).sum::<u64>();
        let bytes = links.bytes + workers.iter().map(|worker| worker.bytes).sum::<u64>();
        json!({ "reads": reads, "bytes": bytes, "workers": workers })
    }
}

impl Links {
    /// Drops the links that only this list still holds.
    fn settle(&mut self) {
        for link in self.open.extract_if(.., |link| Arc::strong_count(link) == 1) {
            let WindowReport { reads, bytes, .. } = link.report();
            self.reads += reads;
            self.bytes += bytes;
        }
    }
}

impl Connector for NearConnector {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        let other = self.others.connect(member);
        if is_elsewhere(&member.address) {
            return other;
        }
        let options = security::window_options_for(&self.options, member);
        let near = Arc::new(NearTransport::new(Arc::clone(&member.address), Arc::clone(&other), options));
        let mut links = self.links.lock();
        links.settle();
        links.open.push(Arc::clone(&near));
        Arc::new(Watched { near, other, patience: self.patience })
    }

    fn register(&self, memory: &Pool) {
        self.others.register(memory);
    }

    fn is_registered(&self, buffer: &[u8]) -> bool {
        self.others.is_registered(buffer)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.others.close()
    }
}

/// How long a worker may be silent that is read through a window.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Before it is asked whether it is there.
    silence: Duration,
    /// Before it must have said so.
    answer: Duration,
}

/// A link that sees a worker's memory. The kernel tells when a worker is gone, and not when it hangs; that it is slow may be an
/// origin's fault. So when a read is not answered for a while, the worker is asked over the link's other part whether it is there.
struct Watched {
    near: Arc<dyn Transport>,
    other: Arc<dyn Transport>,
    patience: Patience,
}

#[async_trait::async_trait]
impl Transport for Watched {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let is_seen = request.op == Op::Read && into.is_none();
        let mut call = pin!(self.near.call(request, into));
        if !is_seen {
            return call.await;
        }
        loop {
            if let Ok(answer) = tokio::time::timeout(self.patience.silence, &mut call).await {
                return answer;
            }
            let ping = self.other.call(Request::on_path(Op::Ping, Bytes::new(), self.patience.answer), None);
            tokio::select! {
                answer = &mut call => return answer,
                // What it says is of no interest, only whether it says anything.
                pong = ping => if let Err(CallError::Link(error)) = pong {
                    return Err(error.into());
                },
            }
        }
    }

    fn memory(&self) -> Option<&dyn PeerMemory> {
        self.near.memory()
    }

    fn kind(&self) -> TransportKind {
        self.near.kind()
    }

    fn peer(&self) -> &str {
        self.near.peer()
    }

    async fn close(&self) {
        self.near.close().await;
    }
}

/// Whether an address is written in numbers that are none of this host's, which spares large clusters a try for each worker.
fn is_elsewhere(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| UdpSocket::bind((address.ip(), 0)).is_err())
}

/// Whether `worker`, `HOST:PORT`, is this host.
pub async fn is_here(worker: &str) -> bool {
    match tokio::net::lookup_host(worker).await {
        Ok(mut addresses) => addresses.any(|address| UdpSocket::bind((address.ip(), 0)).is_ok()),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_transport::fake::FakeTransport;
    use forebay_transport::{LinkError, Response};
    use forebay_types::{BlockKey, Failure, FileId};

    const PATIENCE: Patience = Patience { silence: Duration::from_millis(20), answer: Duration::from_millis(60) };
    const SLOW: Duration = Duration::from_millis(200);
    const MINUTE: Duration = Duration::from_secs(60);

    /// A worker that takes its time for reads.
    struct Slow;

    #[async_trait::async_trait]
    impl Service for Slow {
        async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
            if request.op == Op::Read {
                tokio::time::sleep(SLOW).await;
            }
            Ok(Response::of_body(Bytes::new()))
        }
    }

    /// How long a read took through a link whose parts hang or not, and what came of it.
    async fn read(near_hangs: bool, other_hangs: bool) -> (Duration, Result<Reply, CallError>) {
        let fake = |hangs| {
            let fake = FakeTransport::new("worker", Arc::new(Slow));
            fake.hang(hangs);
            Arc::new(fake)
        };
        let (near, other) = (fake(near_hangs), fake(other_hangs));
        let link = Watched { near: near.clone(), other: other.clone(), patience: PATIENCE };
        let began = tokio::time::Instant::now();
        let answer = link
            .call(Request::on_block(Op::Read, BlockKey { file: FileId([0; 16]), index: 0 }, 0, 0, MINUTE), None)
            .await;
        let took = began.elapsed();
        near.hang(false);
        other.hang(false);
        (took, answer)
    }

    #[tokio::test]
    async fn a_worker_that_takes_its_time_is_waited_for_and_one_that_hangs_is_not() {
        let (took, answer) = read(false, false).await;
        assert!(answer.is_ok() && took >= SLOW, "{took:?}");
        let (took, answer) = read(true, true).await;
        assert!(matches!(answer, Err(CallError::Link(LinkError::TimedOut { .. }))), "{answer:?}");
        assert!(took < MINUTE / 2, "{took:?}");
    }

    #[test]
    fn an_address_that_cannot_be_listened_at_is_another_hosts_and_a_name_may_be_any() {
        assert!(is_elsewhere("192.0.2.1:29999"), "kept for documentation (RFC 5737)");
        for here in ["127.0.0.1:29999", "[::]:1", "localhost:29999", "node1:29999", "", "worker"] {
            assert!(!is_elsewhere(here), "{here}");
        }
    }
}
