//! A mount's links to workers, over RDMA and TCP.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use forebay_client::Connector;
use forebay_client::paths::{
    Fallback, Path, PathKind, PathMaker, PathOptions, PathPolicy, PathStats, WorkerLink, WorkerPaths, WorkerReport,
};
use forebay_cluster::Member;
use forebay_config::{Config, RdmaFallback};
use forebay_doctor::Root;
use forebay_memory::Pool;
use forebay_rdma::{Lane, RdmaTransport, Trace};
use forebay_tcp::TcpTransport;
use forebay_transport::Transport;
use forebay_transport::message::{PathAddress, PathsReply};
use forebay_types::ByteSize;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::cards::{Machine, report};
use super::trace::Tracing;
use super::{is_wanted, library, or_tcp};
use crate::assembly;

/// How often it is looked whether a pool has grown beyond what is registered.
const GROWTH_INTERVAL: Duration = Duration::from_millis(500);

/// Connects to workers over RDMA and TCP.
pub(crate) struct RdmaConnector {
    tcp: forebay_tcp::ClientOptions,
    maker: Arc<Maker>,
    options: PathOptions,
    stats: Arc<PathStats>,
    /// Every link made, while it is used.
    links: Mutex<Vec<Weak<WorkerLink>>>,
    /// Grows the registrations with the pool.
    growing: Vec<tokio::task::JoinHandle<()>>,
    _tracing: Option<Tracing>,
}

/// A lane, and the address to connect from.
#[derive(Clone)]
struct Outlet {
    lane: Arc<Lane>,
    bind: Option<IpAddr>,
}

struct Maker {
    data: Vec<Outlet>,
    metadata: Option<Outlet>,
    /// The version of UCX here.
    ucx: String,
    options: forebay_rdma::ClientOptions,
}

impl RdmaConnector {
    /// Lanes on every card, if RDMA is asked for. `pool` is the client's.
    ///
    /// # Errors
    /// When it cannot be had and must be.
    pub(crate) async fn start(
        config: &Config,
        pool: &Pool,
        tcp: &forebay_tcp::ClientOptions,
    ) -> anyhow::Result<Option<Self>> {
        if !is_wanted(config) {
            return Ok(None);
        }
        or_tcp(config, Self::open(config, pool, tcp).await)
    }

    async fn open(config: &Config, pool: &Pool, tcp: &forebay_tcp::ClientOptions) -> anyhow::Result<Self> {
        let tracing = Tracing::start(config);
        let trace = tracing.as_ref().map(|tracing| Arc::clone(&tracing.trace));
        let outlets = tokio::task::spawn_blocking({
            let (config, pool, trace) = (config.clone(), pool.clone(), trace.clone());
            move || outlets(&config, &pool, trace.as_ref())
        });
        let (data, metadata) = outlets.await.context("starting RDMA panicked")??;
        let growing = data.iter().map(|outlet| tokio::spawn(grow(Arc::clone(&outlet.lane), pool.clone()))).collect();
        let options = forebay_rdma::ClientOptions {
            require_rdma: config.network_rdma_data_transports.is_empty(),
            connect_timeout: config.network_rdma_data_connect_timeout,
            keepalive: config.network_tcp_keepalive,
            dead_after: config.network_tcp_dead_after,
            trace,
            ..forebay_rdma::ClientOptions::new(config.cluster_name.as_str(), assembly::block_size(config))
        };
        let ucx = library(config)?.version().to_string();
        let names: Vec<_> = data.iter().chain(&metadata).map(|outlet| outlet.lane.name()).collect();
        info!(transport = "RDMA", cards = names.join(", "), ucx, "client started");
        let fallback = match config.network_rdma_data_fallback {
            RdmaFallback::Never if config.network_rdma_data_enabled => Fallback::Never,
            _ => Fallback::Auto,
        };
        Ok(Self {
            maker: Arc::new(Maker { data, metadata, ucx, options }),
            tcp: tcp.clone(),
            options: PathOptions {
                policy: PathPolicy { fallback, retry_after: config.network_rdma_data_retry_duration },
                operation_timeout: config.network_rdma_data_operation_timeout,
            },
            stats: Arc::default(),
            links: Mutex::default(),
            growing,
            _tracing: tracing,
        })
    }
}

/// A lane on each card: for data, where it knows the pool's memory, and one for metadata. Blocks while that is registered.
fn outlets(config: &Config, pool: &Pool, trace: Option<&Arc<Trace>>) -> anyhow::Result<(Vec<Outlet>, Option<Outlet>)> {
    let machine = Machine::look(&Root::default())?;
    let (mut data, mut metadata) = (Vec::new(), None);
    if config.network_rdma_data_enabled {
        let registered = config.network_rdma_data_buffer_pool_initial_size.min(pool.capacity());
        for card in machine.data_cards(config)? {
            let lane = card.lane(config, card.name.clone(), pool, registered, trace)?;
            data.push(Outlet { lane, bind: card.address });
        }
    }
    if config.network_rdma_metadata_enabled {
        let card = machine.metadata_card(config)?;
        let lane = card.lane(config, format!("{} metadata", card.name), pool, ByteSize::default(), trace)?;
        metadata = Some(Outlet { lane, bind: card.address });
    }
    Ok((data, metadata))
}

impl Drop for RdmaConnector {
    fn drop(&mut self) {
        // They hold lanes, whose threads end with their last holder.
        self.growing.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Connector for RdmaConnector {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        let tcp = Arc::new(TcpTransport::new(Arc::clone(&member.address), self.tcp.clone()));
        let maker = Arc::clone(&self.maker) as Arc<dyn PathMaker>;
        let link = Arc::new(WorkerLink::new(tcp, maker, self.options, Arc::clone(&self.stats)));
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        link
    }

    fn lends(&self, memory: &Pool) {
        self.maker.data.iter().for_each(|outlet| outlet.lane.lends(memory));
    }

    fn knows(&self, lent: &[u8]) -> bool {
        // A call takes whichever path it likes. So all come to know it, and where one cannot, no other pins it for nothing.
        let lanes = || self.maker.data.iter().map(|outlet| &outlet.lane);
        let known = lanes().all(|lane| lane.knows(lent));
        if !known && lanes().all(|lane| lane.learns()) {
            lanes().for_each(|lane| lane.learn(lent));
        }
        known && !self.maker.data.is_empty()
    }

    fn report(&self) -> Value {
        let links: Vec<_> = self.links.lock().iter().filter_map(Weak::upgrade).collect();
        let workers: Vec<WorkerReport> = links.iter().map(|link| link.report()).collect();
        let outlets = self.maker.data.iter().chain(&self.maker.metadata);
        let cards: Vec<_> = outlets.map(|outlet| report(&outlet.lane)).collect();
        json!({ "ucx": self.maker.ucx, "cards": cards, "paths": &*self.stats, "workers": workers })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.growing.iter().for_each(tokio::task::JoinHandle::abort);
            let outlets = self.maker.data.iter().chain(&self.maker.metadata);
            futures::future::join_all(outlets.map(|outlet| outlet.lane.close())).await;
        })
    }
}

impl Maker {
    /// The path from `here` to the listener `there` of a worker known as `known`.
    fn path(&self, here: &Outlet, there: &PathAddress, known: &str) -> Path {
        let host = if there.host.is_empty() { known } else { &there.host };
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.into() };
        let options = forebay_rdma::ClientOptions { bind: here.bind, ..self.options.clone() };
        let link = RdmaTransport::new(format!("{host}:{}", there.port), Arc::clone(&here.lane), options);
        let name = format!("{} to {}", here.lane.name(), there.card);
        Path { name, kind: PathKind::Rdma, link: Arc::new(link) }
    }
}

impl PathMaker for Maker {
    fn paths(&self, worker: &str, offered: &PathsReply) -> WorkerPaths {
        let dialect = |version: &str| version.rsplit_once('.').map(|(dialect, _)| dialect.to_owned());
        let without = |reason: &str| WorkerPaths { data: Err(reason.to_owned()), metadata: Vec::new() };
        match &offered.ucx {
            None => {
                info!(worker, "worker offers no RDMA");
                return without("the worker offers no RDMA");
            }
            Some(theirs) if dialect(theirs) != dialect(&self.ucx) => {
                let (ours, next) = (&self.ucx, "install the same UCX release on both sides");
                warn!(worker, theirs, ours, next, "RDMA is not used: the worker's UCX is of another release");
                return without(&format!("the worker runs UCX {theirs}, we run {ours}; {next}"));
            }
            Some(_) => {}
        }
        let known = worker.rsplit_once(':').map_or(worker, |(host, _)| host);
        // Card by card: the first of ours to the first of theirs, and so on, round where one side has more.
        let both = !self.data.is_empty() && !offered.data.is_empty();
        let count = if both { self.data.len().max(offered.data.len()) } else { 0 };
        let data = (0..count).map(|index| {
            let (here, there) = (&self.data[index % self.data.len()], &offered.data[index % offered.data.len()]);
            self.path(here, there, known)
        });
        let metadata = self.metadata.as_ref().zip(offered.metadata.as_ref());
        let metadata = metadata.map(|(here, there)| self.path(here, there, known));
        let data = match (self.data.is_empty(), offered.data.is_empty()) {
            (true, _) => Err("RDMA is not enabled for data here".to_owned()),
            (_, true) => Err("the worker offers RDMA for metadata only".to_owned()),
            (false, false) => Ok(data.collect()),
        };
        WorkerPaths { data, metadata: metadata.into_iter().collect() }
    }
}

/// Registers what a pool grows by.
async fn grow(lane: Arc<Lane>, pool: Pool) {
    loop {
        tokio::time::sleep(GROWTH_INTERVAL).await;
        let size = pool.size();
        if size <= lane.registration().size() {
            continue;
        }
        let growing = Arc::clone(&lane);
        let grown = tokio::task::spawn_blocking(move || growing.grow_to(size)).await;
        if let Ok(Err(error)) = grown {
            warn!(%error, card = lane.name(), "no more memory can be registered; what is beyond costs a copy");
            return;
        }
    }
}
