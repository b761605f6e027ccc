//! A mount's links to workers, over RDMA and TCP.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context as _;
use forebay_client::Connector;
use forebay_client::paths::{
    CardTraffic, Fallback, Path, PathKind, PathMaker, PathOptions, PathPolicy, PathStats, WorkerLink, WorkerPaths,
    WorkerReport,
};
use forebay_cluster::Member;
use forebay_config::{Config, RdmaFallback, RdmaStriping};
use forebay_doctor::Root;
use forebay_locks::Mutex;
use forebay_memory::Pool;
use forebay_rdma::{ClientSecurity, Driven, Provider, Trace};
use forebay_tcp::TcpTransport;
use forebay_transport::Transport;
use forebay_transport::message::{PathAddress, PathsReply, VERBS_VERSION};
use forebay_types::ByteSize;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::cards::{Card, Machine, report};
use super::provider::{self, End};
use super::rails::{self, Rail};
use super::trace::Tracing;
use super::{by_any, is_wanted, library, metadata_or_tcp, or_tcp};
use crate::block_size::block_size;
use crate::driving::drive_options;
use crate::security;

/// How often it is looked whether a pool has grown beyond what is registered.
const GROWTH_INTERVAL: Duration = Duration::from_millis(500);

/// When one of several cards has been silent for this part of the time after which a silent link is given up, each card
/// is asked whether it lives. A card that does not answer within a second such part is no longer preferred. So the
/// others are in doubt before the first one is given up, and still no card is suspected for a pause of usual length.
const SILENCES: u32 = 4;

/// Connects to workers over RDMA and TCP.
pub struct RdmaConnector {
    tcp: forebay_tcp::ClientOptions,
    maker: Arc<Maker>,
    options: PathOptions,
    stats: Arc<PathStats>,
    /// Every link made, while it is used.
    links: Mutex<Vec<Weak<WorkerLink>>>,
    /// Grows the registrations with the pool.
    growing: Vec<tokio::task::JoinHandle<()>>,
    _tracing: Option<Arc<Tracing>>,
}

/// An I/O thread, the address to connect from, and where that leads.
#[derive(Clone)]
struct Outlet {
    io_thread: Arc<dyn Driven>,
    bind: Option<IpAddr>,
    rail: Rail,
    trace: Option<Arc<Trace>>,
    /// What goes over it, to all workers.
    traffic: Arc<CardTraffic>,
}

impl Outlet {
    fn new(io_thread: Arc<dyn Driven>, card: &Card, trace: Option<Arc<Trace>>) -> Self {
        let (rail, traffic) = (card.rail(), Arc::new(CardTraffic::next_to(card.numa_node)));
        Self { io_thread, bind: card.address, rail, trace, traffic }
    }
}

struct Maker {
    /// For data, by every library that there is here.
    data: Vec<Outlet>,
    /// For metadata, one by each library.
    metadata: Vec<Outlet>,
    /// The version of UCX here, if it is used.
    ucx: Option<String>,
    options: forebay_rdma::ClientOptions,
    /// Whether workers admit a connection over TCP first.
    is_admitted: bool,
}

impl RdmaConnector {
    /// I/O threads on every card, if RDMA is asked for. `pool` is the client's. What is wrong with metadata alone costs no more
    /// than metadata over RDMA.
    ///
    /// # Errors
    /// When it cannot be had for data and must be.
    pub async fn start(config: &Config, pool: &Pool, tcp: &forebay_tcp::ClientOptions) -> anyhow::Result<Option<Self>> {
        if !is_wanted(config) {
            return Ok(None);
        }
        let tracing = Tracing::start(config).map(Arc::new);
        let (mut data, mut metadata) = (Vec::new(), Vec::new());
        if config.network_rdma_data_enabled {
            let providers = provider::of_data(config);
            data = or_tcp(config, outlets(config, pool, &tracing, providers, data_outlets).await)?.unwrap_or_default();
        }
        if config.network_rdma_metadata_enabled {
            let providers = provider::of_metadata(config);
            let attempt = outlets(config, pool, &tracing, providers, metadata_outlets).await;
            metadata = metadata_or_tcp(attempt).unwrap_or_default();
        }
        if data.is_empty() && metadata.is_empty() {
            return Ok(None);
        }
        Self::over(config, pool, tcp, (data, metadata), tracing).map(Some)
    }

    fn over(
        config: &Config,
        pool: &Pool,
        tcp: &forebay_tcp::ClientOptions,
        (data, metadata): (Vec<Outlet>, Vec<Outlet>),
        tracing: Option<Arc<Tracing>>,
    ) -> anyhow::Result<Self> {
        let growing =
            data.iter().map(|outlet| tokio::spawn(grow(Arc::clone(&outlet.io_thread), pool.clone()))).collect();
        let options = forebay_rdma::ClientOptions {
            require_rdma: config.network_rdma_data_transports.is_empty(),
            connect_timeout: config.network_rdma_data_connect_timeout,
            one_sided: config.network_rdma_data_one_sided,
            keepalive: config.network_tcp_keepalive,
            dead_after: config.network_tcp_dead_after,
            drive: drive_options(config),
            ..forebay_rdma::ClientOptions::new(config.cluster_name.as_str(), block_size(config))
        };
        let is_by_ucx = data.iter().chain(&metadata).any(|outlet| outlet.io_thread.provider() == Provider::Ucx);
        let ucx = if is_by_ucx { Some(library(config)?.version().to_string()) } else { None };
        let names: Vec<_> = data.iter().chain(&metadata).map(|outlet| outlet.io_thread.name()).collect();
        info!(transport = "RDMA", cards = names.join(", "), ucx, "client started");
        let fallback = match config.network_rdma_data_fallback {
            RdmaFallback::Never if config.network_rdma_data_enabled => Fallback::Never,
            _ => Fallback::Auto,
        };
        Ok(Self {
            maker: Arc::new(Maker { data, metadata, ucx, options, is_admitted: tcp.security.is_some() }),
            tcp: tcp.clone(),
            options: PathOptions {
                policy: PathPolicy {
                    fallback,
                    retry_after: config.network_rdma_data_retry_duration,
                    silence: config.network_tcp_dead_after / SILENCES,
                },
                operation_timeout: config.network_rdma_data_operation_timeout,
                striping: striping(config, pool),
            },
            stats: Arc::default(),
            links: Mutex::default(),
            growing,
            _tracing: tracing,
        })
    }
}

/// Where reads land that are divided among cards, if any are: the client's pool, which is registered with each card.
fn striping(config: &Config, pool: &Pool) -> Option<Pool> {
    (config.network_rdma_data_striping == RdmaStriping::Auto).then(|| pool.clone())
}

/// What starts I/O threads by one library.
type Start = fn(&Config, Provider, &Pool, Option<&Tracing>, &CancellationToken) -> anyhow::Result<Vec<Outlet>>;

/// I/O threads by each of `providers` that can be had. Blocks a thread while memory is registered; if the future is dropped, that
/// ends, too.
async fn outlets(
    config: &Config,
    pool: &Pool,
    tracing: &Option<Arc<Tracing>>,
    providers: &'static [Provider],
    start: Start,
) -> anyhow::Result<Vec<Outlet>> {
    let (config, pool, tracing) = (config.clone(), pool.clone(), tracing.clone());
    let given_up = CancellationToken::new();
    let _waits = given_up.clone().drop_guard();
    let started = tokio::task::spawn_blocking(move || {
        let attempt = |provider| (provider, start(&config, provider, &pool, tracing.as_deref(), &given_up));
        by_any(provider::by_start(providers).map(attempt))
    });
    started.await.context("starting RDMA panicked")?
}

/// An I/O thread on each card for data, with which the pool's memory is registered.
fn data_outlets(
    config: &Config,
    provider: Provider,
    pool: &Pool,
    tracing: Option<&Tracing>,
    given_up: &CancellationToken,
) -> anyhow::Result<Vec<Outlet>> {
    let registered = config.network_rdma_data_buffer_pool_initial_size.min(pool.capacity());
    let outlet = |card: Card| {
        let name = card.thread_name();
        let trace = tracing.map(|tracing| tracing.of(&name));
        let io_thread = card.io_thread(config, name, pool, registered, trace.as_ref(), given_up)?;
        Ok(Outlet::new(io_thread, &card, trace))
    };
    Machine::look(&Root::default())?.data_cards_by(config, provider)?.into_iter().map(outlet).collect()
}

/// An I/O thread for metadata.
fn metadata_outlets(
    config: &Config,
    provider: Provider,
    pool: &Pool,
    tracing: Option<&Tracing>,
    given_up: &CancellationToken,
) -> anyhow::Result<Vec<Outlet>> {
    let card = Machine::look(&Root::default())?.metadata_card_by(config, provider)?;
    let name = format!("{} metadata", card.thread_name());
    let trace = tracing.map(|tracing| tracing.of(&name));
    let io_thread = card.io_thread(config, name, pool, ByteSize::default(), trace.as_ref(), given_up)?;
    Ok(vec![Outlet::new(io_thread, &card, trace)])
}

impl RdmaConnector {
    /// How the links are and what was counted of them, for people and monitoring.
    pub fn report(&self) -> Value {
        let links: Vec<_> = self.links.lock().iter().filter_map(Weak::upgrade).collect();
        let workers: Vec<WorkerReport> = links.iter().map(|link| link.report()).collect();
        let outlets = self.maker.data.iter().chain(&self.maker.metadata);
        let card = |outlet: &Outlet| {
            let mut card = report(&*outlet.io_thread);
            card["bytes_received"] = json!(outlet.traffic.received());
            card["bytes_in_flight"] = json!(outlet.traffic.in_flight());
            card
        };
        let cards: Vec<_> = outlets.map(card).collect();
        let rdma =
            || workers.iter().flat_map(|worker| worker.data.iter().chain(&worker.metadata)).filter(|path| path.rdma);
        let (up, down) = (rdma().filter(|path| path.up).count(), rdma().filter(|path| !path.up).count());
        let mut paths = json!(&*self.stats);
        // As they are now, beside what was counted.
        paths["paths_up"] = json!(up);
        paths["paths_down"] = json!(down);
        let verbs = self.maker.end(&self.maker.data).verbs.or(self.maker.end(&self.maker.metadata).verbs);
        json!({ "ucx": self.maker.ucx, "verbs": verbs, "cards": cards, "paths": paths, "workers": workers })
    }
}

impl Drop for RdmaConnector {
    fn drop(&mut self) {
        // They hold I/O threads, which end with their last holder.
        self.growing.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Connector for RdmaConnector {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        let tcp = Arc::new(TcpTransport::new(Arc::clone(&member.address), security::options_for(&self.tcp, member)));
        let maker = Arc::clone(&self.maker) as Arc<dyn PathMaker>;
        let link = Arc::new(WorkerLink::new(tcp, maker, self.options.clone(), Arc::clone(&self.stats)));
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&link));
        link
    }

    fn register(&self, memory: &Pool) {
        self.maker.data.iter().for_each(|outlet| outlet.io_thread.register(memory));
    }

    fn is_registered(&self, buffer: &[u8]) -> bool {
        // A call takes whichever path it likes. So it is registered with all, and where one cannot, no other pins it for nothing.
        let io_threads = || self.maker.data.iter().map(|outlet| &outlet.io_thread);
        let registered = io_threads().all(|io_thread| io_thread.is_registered(buffer));
        if !registered && io_threads().all(|io_thread| io_thread.can_register()) {
            io_threads().for_each(|io_thread| io_thread.register_frame(buffer));
        }
        registered && !self.maker.data.is_empty()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.growing.iter().for_each(tokio::task::JoinHandle::abort);
            let outlets = self.maker.data.iter().chain(&self.maker.metadata);
            futures::future::join_all(outlets.map(|outlet| outlet.io_thread.close())).await;
        })
    }
}

impl Maker {
    /// What there is here of `outlets`.
    fn end(&self, outlets: &[Outlet]) -> End<'_> {
        let has = |provider| outlets.iter().any(|outlet| outlet.io_thread.provider() == provider);
        End {
            verbs: has(Provider::Verbs).then_some(VERBS_VERSION),
            ucx: self.ucx.as_deref().filter(|_| has(Provider::Ucx)),
        }
    }

    /// The path from `here` to the listener `there` of the worker that `tcp` leads to.
    fn path(&self, here: &Outlet, there: &PathAddress, tcp: &Arc<dyn Transport>) -> Path {
        let known = tcp.peer().rsplit_once(':').map_or(tcp.peer(), |(host, _)| host);
        let host = if there.host.is_empty() { known } else { &there.host };
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.into() };
        let security = self.is_admitted.then(|| ClientSecurity::over(Arc::clone(tcp)));
        let (bind, trace) = (here.bind, here.trace.clone());
        let options = forebay_rdma::ClientOptions { bind, security, trace, ..self.options.clone() };
        let link = Arc::clone(&here.io_thread).link(format!("{host}:{}", there.port), options);
        let name = format!("{} to {}", here.io_thread.name(), there.card);
        Path { name, kind: PathKind::Rdma, link, card: Some(Arc::clone(&here.traffic)) }
    }

    /// The paths for data by `provider`: which of our cards talks to which listener.
    fn data_by(&self, provider: Provider, offered: &PathsReply, tcp: &Arc<dyn Transport>) -> Vec<Path> {
        let ours: Vec<_> = self.data.iter().filter(|outlet| outlet.io_thread.provider() == provider).collect();
        let theirs: &[PathAddress] = match (provider, &offered.verbs) {
            (Provider::Ucx, _) => &offered.data,
            (Provider::Verbs, Some(verbs)) => &verbs.data,
            (Provider::Verbs, None) => &[],
        };
        let rails: Vec<_> = ours.iter().map(|outlet| outlet.rail).collect();
        let hosts: Vec<_> = theirs.iter().map(|address| address.host.parse().ok()).collect();
        let pairs = rails::pair(&rails, &hosts).into_iter();
        pairs.map(|(here, there)| self.path(ours[here], &theirs[there], tcp)).collect()
    }

    /// The path for metadata, if there is one.
    fn metadata(&self, offered: &PathsReply, tcp: &Arc<dyn Transport>) -> Option<Path> {
        let worker = tcp.peer();
        if self.metadata.is_empty() {
            return None;
        }
        let there = End::of_metadata(offered);
        if there == End::default() {
            let next = "set network.rdma.metadata.enabled = true on the worker, too";
            info!(worker, next, "worker offers no RDMA for metadata, TCP is used for it");
            return None;
        }
        let provider = match provider::common(self.end(&self.metadata), there) {
            Ok(provider) => provider,
            Err(reason) => {
                warn!(
                    worker,
                    reason, "metadata does not go over RDMA: nothing is common to this process and the worker"
                );
                return None;
            }
        };
        let here = self.metadata.iter().find(|outlet| outlet.io_thread.provider() == provider)?;
        let there = match provider {
            Provider::Ucx => offered.metadata.as_ref()?,
            Provider::Verbs => offered.verbs.as_ref()?.metadata.as_ref()?,
        };
        Some(self.path(here, there, tcp))
    }
}

impl PathMaker for Maker {
    fn paths(&self, tcp: &Arc<dyn Transport>, offered: &PathsReply) -> WorkerPaths {
        let worker = tcp.peer();
        if offered.ucx.is_none() && offered.verbs.is_none() {
            info!(worker, "worker offers no RDMA");
        }
        let (here, there) = (self.end(&self.data), End::of_data(offered));
        let data = provider::for_data(here, there, offered);
        if let (Err(reason), false) = (&data, here == End::default() || there == End::default()) {
            warn!(worker, reason, "RDMA is not used: nothing is common to this process and the worker");
        }
        let data = data.map(|provider| self.data_by(provider, offered, tcp));
        WorkerPaths { data, metadata: self.metadata(offered, tcp).into_iter().collect() }
    }
}

/// Registers what a pool grows by.
async fn grow(io_thread: Arc<dyn Driven>, pool: Pool) {
    loop {
        tokio::time::sleep(GROWTH_INTERVAL).await;
        let size = pool.size();
        if size <= io_thread.registered() {
            continue;
        }
        let growing = Arc::clone(&io_thread);
        let grown = tokio::task::spawn_blocking(move || growing.grow_to(size)).await;
        if let Ok(Err(error)) = grown {
            warn!(%error, card = io_thread.name(), "no more memory can be registered; what is beyond costs a copy");
            return;
        }
    }
}
