//! RDMA for worker and mount: from the configuration to lanes, listeners and paths.
//!
//! RDMA that is asked for and cannot be had is an error at start, with the remedy, unless `network.rdma.data.fallback` is
//! `tcp-at-start`. A worker with RDMA always listens on TCP too: clients without it just work, and those with it ask over
//! TCP where to connect.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_client::Connector;
use forebay_client::paths::{
    DiscoveringTransport, Fallback, Path, PathKind, PathMaker, PathOptions, PathPolicy, PathStats,
};
use forebay_cluster::Member;
use forebay_config::{Config, RdmaFallback};
use forebay_memory::Pool;
use forebay_rdma::devices::Devices;
use forebay_rdma::{Lane, LaneOptions, Library, RdmaServer, RdmaTransport};
use forebay_tcp::TcpTransport;
use forebay_transport::message::{PathAddress, PathsReply};
use forebay_transport::{Service, Transport};
use forebay_types::ByteSize;
use tracing::{info, warn};

use crate::assembly::first_address;
use crate::exit::{Exit, Fault};

/// How often it is looked whether a pool has grown beyond what is registered.
const GROWTH_INTERVAL: Duration = Duration::from_millis(500);

/// One network card to use, or all that UCX chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    /// Its name in logs.
    name: String,
    /// UCX's name of it; none leaves the choice to UCX.
    device: Option<String>,
    /// Its first address.
    address: Option<IpAddr>,
}

/// Whether RDMA was asked for.
pub(crate) fn is_wanted(config: &Config) -> bool {
    config.network_rdma_data_enabled
}

/// What came of the attempt to have RDMA: `None` when it was not asked for, or could not be had and need not be.
fn or_tcp<T>(config: &Config, attempt: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match attempt {
        Ok(had) => Ok(Some(had)),
        Err(error) if config.network_rdma_data_fallback == RdmaFallback::TcpAtStart => {
            warn!(cause = format!("{error:#}"), "RDMA cannot be had, TCP is used");
            Ok(None)
        }
        Err(error) => {
            let next = "mend it, or set network.rdma.data.fallback = \"tcp-at-start\" to run on TCP, \
                        or network.rdma.data.enabled = false";
            Err(Fault::new(Exit::Failed, format!("RDMA cannot be had: {error:#}"), next).into())
        }
    }
}

/// libucp, as configured.
pub(crate) fn library(config: &Config) -> anyhow::Result<&'static Library> {
    Ok(Library::load(config.ucx_library.as_deref())?)
}

/// Loads libucp while the process has one thread, where it is going to be needed: only then can UCX be told to leave
/// `malloc` alone. What is wrong with it is told when it is needed.
pub(crate) fn load_early(config: &Config) {
    if is_wanted(config) {
        let _ = library(config);
    }
}

/// The cards that the configuration names.
fn cards(config: &Config, devices: &Devices) -> anyhow::Result<Vec<Card>> {
    let interfaces = if_addrs::get_if_addrs().context("cannot list the network interfaces")?;
    let address_of = |interface: &str| first_address(&interfaces, interface);
    let is_interface = |name: &str| interfaces.iter().any(|found| found.name == name);
    let ports = devices.ports();
    let mut cards = Vec::new();
    for interface in &config.network_rdma_data_network {
        let name = interface.as_str();
        // With transports of the user's choice a card need not be one of RDMA.
        let device = devices.port_of(name).or_else(|| {
            (!config.network_rdma_data_transports.is_empty() && is_interface(name)).then(|| name.to_owned())
        });
        let Some(device) = device else {
            anyhow::bail!("no RDMA device belongs to interface `{name}`; RDMA devices here: {}", listed(&ports));
        };
        cards.push(Card { name: name.to_owned(), device: Some(device), address: address_of(name) });
    }
    for device in &config.network_rdma_data_bind_device {
        let full = if device.contains(':') { device.clone() } else { format!("{device}:1") };
        let is_there = ports.contains(&full) || is_interface(device);
        anyhow::ensure!(is_there, "there is no RDMA device `{device}`; RDMA devices here: {}", listed(&ports));
        let (ucx, interface) = match ports.contains(&full) {
            true => (full.clone(), devices.interface(&full)),
            false => (device.clone(), Some(device.clone())),
        };
        cards.push(Card {
            name: device.clone(),
            device: Some(ucx),
            address: interface.as_deref().and_then(address_of),
        });
    }
    if cards.is_empty() {
        cards.push(Card { name: "any".to_owned(), device: None, address: None });
    }
    Ok(cards)
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// A lane for each card. Blocks while memory is registered.
fn lanes(config: &Config, cards: &[Card], pool: &Pool, registered: ByteSize) -> anyhow::Result<Vec<Arc<Lane>>> {
    let library = library(config)?;
    let lane = |card: &Card| {
        let options = LaneOptions {
            name: card.name.clone(),
            devices: card.device.iter().cloned().collect(),
            transports: config.network_rdma_data_transports.clone(),
            pool: pool.clone(),
            registered,
        };
        let lane = Lane::start(library, options).with_context(|| format!("card {}", card.name))?;
        let is_rdma = lane.resources().iter().any(forebay_rdma::Resource::is_rdma);
        if !is_rdma && config.network_rdma_data_transports.is_empty() {
            let found: Vec<_> = lane.resources().iter().map(ToString::to_string).collect();
            anyhow::bail!(
                "UCX {} ({}) offers no RDMA on card {}: it found {}; `ucx_info -d` lists what it sees",
                library.version(),
                library.path().display(),
                card.name,
                listed(&found)
            );
        }
        Ok(Arc::new(lane))
    };
    cards.iter().map(lane).collect()
}

/// The RDMA listeners of a worker.
pub(crate) struct Servers {
    servers: Vec<RdmaServer>,
    /// What clients are told of them.
    pub(crate) paths: PathsReply,
}

impl Servers {
    /// Listens on every card, if RDMA is asked for.
    ///
    /// # Errors
    /// When it cannot be had and must be.
    pub(crate) async fn start(config: &Config, pool: &Pool, service: Arc<dyn Service>) -> anyhow::Result<Option<Self>> {
        if !is_wanted(config) {
            return Ok(None);
        }
        or_tcp(config, Self::listen(config, pool, service).await)
    }

    async fn listen(config: &Config, pool: &Pool, service: Arc<dyn Service>) -> anyhow::Result<Self> {
        let cards = cards(config, &Devices::default())?;
        let lanes = tokio::task::spawn_blocking({
            let (config, cards, pool) = (config.clone(), cards.clone(), pool.clone());
            move || lanes(&config, &cards, &pool, pool.capacity())
        });
        let lanes = lanes.await.context("starting RDMA panicked")??;
        let (mut servers, mut data) = (Vec::new(), Vec::new());
        for (card, lane) in cards.iter().zip(lanes) {
            let address = listen_address(config, card, cards.len())?;
            let options = forebay_rdma::ServerOptions {
                max_connections: config.worker_max_connections as usize,
                ..forebay_rdma::ServerOptions::new(address, config.cluster_name.as_str())
            };
            let server = RdmaServer::bind(lane, options, Arc::clone(&service)).await?;
            let bound = server.local_addr();
            let host = match &config.network_rdma_data_hostname {
                Some(host) => host.to_string(),
                None if bound.ip().is_unspecified() => String::new(),
                None => bound.ip().to_string(),
            };
            data.push(PathAddress { card: card.name.clone(), host, port: bound.port() });
            servers.push(server);
        }
        let ucx = Some(library(config)?.version().to_string());
        Ok(Self { servers, paths: PathsReply { ucx, data } })
    }

    /// Closes them, with every connection.
    pub(crate) async fn close(&self) {
        futures::future::join_all(self.servers.iter().map(RdmaServer::close)).await;
    }
}

/// Where to listen for `card`, one of `cards`: its own address where it has one, `network.rdma.data.bind.host` if that is
/// set.
fn listen_address(config: &Config, card: &Card, cards: usize) -> anyhow::Result<SocketAddr> {
    let (host, port) = (&config.network_rdma_data_bind_host, config.network_rdma_data_port);
    let host = host.as_str();
    let configured = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
    let configured = configured.with_context(|| format!("network.rdma.data.bind.host: `{host}` has no address"))?;
    match card.address {
        Some(own) if configured.ip().is_unspecified() => Ok(SocketAddr::new(own, port)),
        None if cards > 1 && configured.ip().is_unspecified() => anyhow::bail!(
            "card {} has no IP address to listen on; give its interface one, or use a single card with \
             network.rdma.data.bind.host",
            card.name
        ),
        _ => Ok(configured),
    }
}

/// Connects to workers over RDMA and TCP.
pub(crate) struct RdmaConnector {
    tcp: forebay_tcp::ClientOptions,
    maker: Arc<Maker>,
    options: PathOptions,
    stats: Arc<PathStats>,
    /// Grows the registrations with the pool.
    growing: Vec<tokio::task::JoinHandle<()>>,
}

struct Maker {
    lanes: Vec<(Arc<Lane>, Option<IpAddr>)>,
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
        let cards = cards(config, &Devices::default())?;
        let initial = config.network_rdma_data_buffer_pool_initial_size.min(pool.capacity());
        let lanes = tokio::task::spawn_blocking({
            let (config, cards, pool) = (config.clone(), cards.clone(), pool.clone());
            move || lanes(&config, &cards, &pool, initial)
        });
        let lanes = lanes.await.context("starting RDMA panicked")??;
        let growing = lanes.iter().map(|lane| tokio::spawn(grow(Arc::clone(lane), pool.clone()))).collect();
        let lanes: Vec<_> = lanes.into_iter().zip(cards.iter().map(|card| card.address)).collect();
        let options = forebay_rdma::ClientOptions {
            require_rdma: config.network_rdma_data_transports.is_empty(),
            connect_timeout: config.network_rdma_data_connect_timeout,
            keepalive: config.network_tcp_keepalive,
            dead_after: config.network_tcp_dead_after,
            ..forebay_rdma::ClientOptions::new(config.cluster_name.as_str())
        };
        let names: Vec<_> = lanes.iter().map(|(lane, _)| lane.name().to_owned()).collect();
        info!(transport = "RDMA", cards = names.join(", "), ucx = %library(config)?.version(), "client started");
        Ok(Self {
            maker: Arc::new(Maker { lanes, options }),
            tcp: tcp.clone(),
            options: PathOptions {
                policy: PathPolicy {
                    fallback: match config.network_rdma_data_fallback {
                        RdmaFallback::Never => Fallback::Never,
                        RdmaFallback::Auto | RdmaFallback::TcpAtStart => Fallback::Auto,
                    },
                    retry_after: config.network_rdma_data_retry_duration,
                },
                operation_timeout: config.network_rdma_data_operation_timeout,
                metadata: config.network_rdma_metadata_enabled,
            },
            stats: Arc::default(),
            growing,
        })
    }
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
        Arc::new(DiscoveringTransport::new(tcp, maker, self.options, Arc::clone(&self.stats)))
    }
}

impl PathMaker for Maker {
    fn paths(&self, worker: &str, offered: &PathsReply) -> Vec<Path> {
        let Some((ours, _)) = self.lanes.first() else { return Vec::new() };
        let ours = ours.library().version().to_string();
        let dialect = |version: &str| version.rsplit_once('.').map(|(dialect, _)| dialect.to_owned());
        match &offered.ucx {
            None => {
                info!(worker, "worker offers no RDMA");
                return Vec::new();
            }
            Some(theirs) if dialect(theirs) != dialect(&ours) => {
                let next = "install the same UCX release on both sides";
                warn!(worker, theirs, ours, next, "RDMA is not used: the worker's UCX is of another release");
                return Vec::new();
            }
            Some(_) => {}
        }
        let known = worker.rsplit_once(':').map_or(worker, |(host, _)| host);
        // Card by card: the first of ours to the first of theirs, and so on, round where one side has more.
        let count = if offered.data.is_empty() { 0 } else { self.lanes.len().max(offered.data.len()) };
        (0..count)
            .map(|index| {
                let (lane, bind) = &self.lanes[index % self.lanes.len()];
                let there = &offered.data[index % offered.data.len()];
                let host = if there.host.is_empty() { known } else { &there.host };
                let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.into() };
                let options = forebay_rdma::ClientOptions { bind: *bind, ..self.options.clone() };
                let link = RdmaTransport::new(format!("{host}:{}", there.port), Arc::clone(lane), options);
                let name = format!("{} to {}", lane.name(), there.card);
                Path { name, kind: PathKind::Rdma, link: Arc::new(link) }
            })
            .collect()
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
        let registration = lane.registration().clone();
        let grown = tokio::task::spawn_blocking(move || registration.grow_to(size)).await;
        if let Ok(Err(error)) = grown {
            warn!(%error, card = lane.name(), "no more memory can be registered; what is beyond costs a copy");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[&str]) -> Config {
        let sources = forebay_config::Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()));
        Config::load(&sources).unwrap().config
    }

    #[test]
    fn a_card_that_is_not_there_is_named_with_those_that_are() {
        let none = Devices::below("/nonexistent");
        let wanted = config(&["network.rdma.data.bind.device=mlx5_0:1"]);
        let error = cards(&wanted, &none).unwrap_err().to_string();
        assert!(error.contains("mlx5_0:1") && error.contains("none"), "{error}");
        let error = cards(&config(&["network.rdma.data.network=ib0"]), &none).unwrap_err().to_string();
        assert!(error.contains("ib0"), "{error}");
        let any = cards(&config(&[]), &none).unwrap();
        assert_eq!(any, [Card { name: "any".into(), device: None, address: None }]);
    }

    #[test]
    fn a_listener_has_its_cards_address_unless_one_is_configured() {
        let card = |address: Option<&str>| Card {
            name: "mlx5_0:1".into(),
            device: Some("mlx5_0:1".into()),
            address: address.map(|address| address.parse().unwrap()),
        };
        let own = card(Some("10.0.0.1"));
        assert_eq!(listen_address(&config(&[]), &own, 1).unwrap(), "10.0.0.1:59999".parse().unwrap());
        let configured = config(&["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0"]);
        assert_eq!(listen_address(&configured, &own, 1).unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(listen_address(&config(&[]), &card(None), 1).unwrap(), "0.0.0.0:59999".parse().unwrap());
        assert!(listen_address(&config(&[]), &card(None), 2).is_err());
    }
}
