//! The RDMA listeners of a worker, by each library: one for the data of each card, and one for attributes and listings.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_config::{Config, Host, Loaded};
use forebay_doctor::Root;
use forebay_doctor::facts::RdmaListener;
use forebay_identity::Auditing;
use forebay_memory::Pool;
use forebay_rdma::{
    Driven, Listening, Provider, RdmaError, ServerOptions, ServerSecurity, ServerStats, Trace, UcxError,
};
use forebay_transport::Service;
use forebay_transport::message::{PathAddress, PathsReply, VERBS_VERSION, VerbsPaths};
use forebay_types::ByteSize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::cards::{Card, Machine, are_named, at_bind_host, report};
use super::trace::Tracing;
use super::{by_any, is_wanted, library, metadata_or_tcp, or_tcp, provider};
use crate::binding::{Moving, Ports, WorkerAddresses};
use crate::block_size::block_size;
use crate::error::{Exit, Fault};

const DATA_PORT: &str = "network.rdma.data.port";
const METADATA_PORT: &str = "network.rdma.metadata.port";

/// The listeners.
pub struct Servers {
    servers: Vec<Arc<dyn Listening>>,
    tracing: Option<Tracing>,
    /// What clients are told of them.
    pub paths: PathsReply,
    /// Whom they accept; `None`: everybody.
    security: Option<ServerSecurity>,
    /// Where is recorded who asks them for what.
    audit: Option<Auditing>,
}

/// A card, where to listen on it, and what is registered with it.
struct Place {
    card: Card,
    /// The setting that names its port.
    port: &'static str,
    /// The setting that names its address.
    host: &'static str,
    /// The listener's name in logs.
    name: String,
    address: SocketAddr,
    registered: ByteSize,
}

/// A listener, and the card that it is on.
type Listener = (Arc<dyn Listening>, Card);

impl Servers {
    /// Listens on every card, if RDMA is asked for. What is wrong with metadata alone costs no more than metadata over RDMA.
    ///
    /// # Errors
    /// When it cannot be had for data and must be.
    pub async fn start(
        loaded: &Loaded,
        ports: Ports,
        pool: &Pool,
        service: Arc<dyn Service>,
        security: Option<ServerSecurity>,
        audit: Option<Auditing>,
    ) -> anyhow::Result<Option<Self>> {
        let config = &loaded.config;
        if !is_wanted(config) {
            return Ok(None);
        }
        let (servers, tracing, paths) = (Vec::new(), Tracing::start(config), PathsReply::default());
        let mut all = Self { servers, tracing, paths, security, audit };
        if config.network_rdma_data_enabled {
            let places = |provider, beside| data_places(config, pool, provider, beside);
            let listening = all.listen_by(provider::of_data(config), loaded, ports, pool, places, &service).await;
            let listening = or_tcp(config, listening)?.unwrap_or_default();
            for provider in [Provider::Ucx, Provider::Verbs] {
                let cards = listening.iter().filter(|(_, card)| card.provider == provider).count();
                for (server, card) in listening.iter().filter(|(_, card)| card.provider == provider) {
                    let hostname = config.network_rdma_data_hostname.as_ref();
                    let address = offered(config, hostname, card, &**server, cards);
                    match provider {
                        Provider::Ucx => all.paths.data.push(address),
                        Provider::Verbs => by_verbs(&mut all.paths).data.push(address),
                    }
                }
            }
            all.servers.extend(listening.into_iter().map(|(server, _)| server));
        }
        if config.network_rdma_metadata_enabled {
            let places = |provider, beside| Ok(vec![metadata_place(config, provider, beside)?]);
            let listening = all.listen_by(provider::of_metadata(config), loaded, ports, pool, places, &service).await;
            for (server, card) in metadata_or_tcp(listening).unwrap_or_default() {
                let address = Some(offered(config, None, &card, &*server, 1));
                match card.provider {
                    Provider::Ucx => all.paths.metadata = address,
                    Provider::Verbs => by_verbs(&mut all.paths).metadata = address,
                }
                all.servers.push(server);
            }
        }
        if all.servers.is_empty() {
            return Ok(None);
        }
        if all.servers.iter().any(|server| server.thread().provider() == Provider::Ucx) {
            all.paths.ucx = Some(library(config)?.version().to_string());
        }
        Ok(Some(all))
    }

    /// Listens by each of `providers` at its places, which are told whether there is another library beside it. By one of them is
    /// enough; after an error nothing listens.
    async fn listen_by(
        &self,
        providers: &'static [Provider],
        loaded: &Loaded,
        ports: Ports,
        pool: &Pool,
        places: impl Fn(Provider, bool) -> anyhow::Result<Vec<Place>>,
        service: &Arc<dyn Service>,
    ) -> anyhow::Result<Vec<Listener>> {
        let (mut attempts, mut listening) = (Vec::new(), Vec::new());
        for provider in provider::by_start(providers) {
            let attempt = match places(provider, providers.len() > 1) {
                Ok(places) => self.listen(loaded, ports, pool, places, service).await,
                Err(error) => Err(error),
            };
            listening.extend(attempt.iter().flatten().map(|(server, _)| Arc::clone(server)));
            attempts.push((provider, attempt));
        }
        let outcome = by_any(attempts);
        if outcome.is_err() {
            futures::future::join_all(listening.iter().map(|server| server.close())).await;
        }
        outcome
    }

    /// Listens at each of `places`, or at none: the listeners, each with its card.
    async fn listen(
        &self,
        loaded: &Loaded,
        ports: Ports,
        pool: &Pool,
        places: Vec<Place>,
        service: &Arc<dyn Service>,
    ) -> anyhow::Result<Vec<Listener>> {
        let config = &loaded.config;
        let traced = |place: Place| {
            let trace = self.tracing.as_ref().map(|tracing| tracing.of(&place.name));
            (place, trace)
        };
        let places: Vec<_> = places.into_iter().map(traced).collect();
        let given_up = CancellationToken::new();
        let _waits = given_up.clone().drop_guard();
        let io_threads = tokio::task::spawn_blocking({
            let (config, pool) = (config.clone(), pool.clone());
            move || {
                let io_thread = |(place, trace): (Place, Option<Arc<Trace>>)| {
                    let name = place.name.clone();
                    let io_thread =
                        place.card.io_thread(&config, name, &pool, place.registered, trace.as_ref(), &given_up)?;
                    Ok((place, io_thread, trace))
                };
                places.into_iter().map(io_thread).collect::<anyhow::Result<Vec<_>>>()
            }
        });
        let io_threads = io_threads.await.context("starting RDMA panicked")??;
        let mut listening: Vec<Listener> = Vec::new();
        for (place, io_thread, trace) in io_threads {
            let options = ServerOptions {
                max_connections: config.worker_max_connections as usize,
                max_connections_per_client: config.worker_max_connections_per_client as usize,
                security: self.security.clone(),
                audit: self.audit.clone(),
                trace,
                ..ServerOptions::new(place.address, config.cluster_name.as_str(), block_size(config))
            };
            match bind(&io_thread, options, ports.of(loaded, place.port), service).await {
                Ok(server) => listening.push((server, place.card)),
                Err(error) => {
                    futures::future::join_all(listening.iter().map(|(server, _)| server.close())).await;
                    return Err(told(error, &place));
                }
            }
        }
        Ok(listening)
    }

    /// The listeners and what they count, as JSON.
    pub fn report(&self) -> Value {
        let server = |server: &Arc<dyn Listening>| {
            let mut listener = report(&*server.thread());
            listener["address"] = json!(server.local_addr().to_string());
            let ServerStats { connections, requests, bytes_received, replies, bytes_sent } = server.stats();
            listener["connections"] = json!(connections);
            listener["requests"] = json!(requests);
            listener["bytes_received"] = json!(bytes_received);
            listener["replies"] = json!(replies);
            listener["bytes_sent"] = json!(bytes_sent);
            listener["latency"] = json!(server.latency());
            listener
        };
        let verbs = self.paths.verbs.as_ref().map(|verbs| verbs.version);
        let listeners: Vec<_> = self.servers.iter().map(server).collect();
        json!({ "ucx": self.paths.ucx, "verbs": verbs, "listeners": listeners })
    }

    /// Closes them, with every connection.
    pub async fn close(&self) {
        futures::future::join_all(self.servers.iter().map(|server| server.close())).await;
    }
}

/// What clients are told of verbs.
fn by_verbs(paths: &mut PathsReply) -> &mut VerbsPaths {
    paths.verbs.get_or_insert_with(|| VerbsPaths { version: VERBS_VERSION, ..VerbsPaths::default() })
}

/// Listens. A port that may move does so when it is taken: clients ask over TCP where to connect.
async fn bind(
    io_thread: &Arc<dyn Driven>,
    options: ServerOptions,
    port: Moving,
    service: &Arc<dyn Service>,
) -> Result<Arc<dyn Listening>, RdmaError> {
    let listen_within = if port == Moving::AtOnce { Duration::ZERO } else { options.listen_within };
    let first = ServerOptions { listen_within, ..options.clone() };
    match Arc::clone(io_thread).listen(first, Arc::clone(service)).await {
        Err(error) if port != Moving::Never && is_taken(&error) => {
            let taken = options.address;
            let server = ServerOptions { address: SocketAddr::new(taken.ip(), 0), ..options };
            let server = Arc::clone(io_thread).listen(server, Arc::clone(service)).await?;
            warn!(%taken, address = %server.local_addr(), "the default port for RDMA is taken: a free one is used");
            Ok(server)
        }
        bound => bound,
    }
}

/// Whether another process has the port. rdma_cm says only that it cannot listen, but the kernel lists all listeners of
/// rdma_cm.
fn is_taken(error: &RdmaError) -> bool {
    match error {
        RdmaError::Listen { reason: UcxError::PortBusy { .. }, .. } | RdmaError::ListenByVerbs { .. } => true,
        RdmaError::Listen { address, .. } => {
            RdmaListener::of_this_machine().iter().any(|listener| listener.port == address.port())
        }
        _ => false,
    }
}

/// The error as a person is told it, with the setting that it is about.
fn told(error: RdmaError, place: &Place) -> anyhow::Error {
    match &error {
        RdmaError::Listen { .. } | RdmaError::ListenByVerbs { .. } if is_taken(&error) => {
            let port = place.port;
            let next = format!(
                "`ss -tlnp` and `rdma resource show cm_id` show who has it: end that, or set {port} to another port, or to 0, \
                 which takes a free one"
            );
            Fault::new(Exit::Busy, format!("{port}: {error}"), next).into()
        }
        RdmaError::Listen { .. } => {
            let next = format!(
                "set {} to an address of an RDMA device, and {} to a port that is free",
                place.host, place.port
            );
            Fault::new(Exit::Failed, format!("{}: {error}", place.port), next).into()
        }
        RdmaError::NotHere { .. } => {
            let next = format!("`ip addr` lists those that there are; set {} to one of them", place.host);
            Fault::new(Exit::Usage, format!("{}: {error}", place.host), next).into()
        }
        _ => error.into(),
    }
}

/// Where to listen for data by `provider`, and with what memory. With another library `beside` it, verbs leave the port to UCX.
fn data_places(config: &Config, pool: &Pool, provider: Provider, beside: bool) -> anyhow::Result<Vec<Place>> {
    let mut cards = Machine::look(&Root::default())?.data_cards_by(config, provider)?;
    if provider == Provider::Verbs && !are_named(config) {
        cards = at_bind_host(config, cards);
    }
    // Clients pair cards of one subnet in this order, and do the same with theirs.
    cards.sort_by_key(|card| card.numa_node);
    let addresses = data_addresses(config, &cards)?;
    // With both libraries, it is said of UCX's, unless these are what UCX chooses.
    if !(beside && provider == Provider::Verbs && are_named(config)) {
        for (key, what) in unused(config, &cards) {
            warn!(key, "{what}");
        }
    }
    let place = |(card, address): (Card, SocketAddr)| {
        let (name, registered) = (card.thread_name(), pool.capacity());
        let address = SocketAddr::new(address.ip(), port_by(provider, beside, address.port()));
        Place { card, port: DATA_PORT, host: "network.rdma.data.bind.host", name, address, registered }
    };
    Ok(cards.into_iter().zip(addresses).map(place).collect())
}

/// The port by `provider` where `configured` is the one for data, or metadata. Both libraries listen through rdma_cm, which has one
/// table of ports; clients are told which is whose, and no firewall on the way sees them.
fn port_by(provider: Provider, beside: bool, configured: u16) -> u16 {
    if beside && provider == Provider::Verbs { 0 } else { configured }
}

/// Where to listen for metadata.
fn metadata_place(config: &Config, provider: Provider, beside: bool) -> anyhow::Result<Place> {
    let card = Machine::look(&Root::default())?.metadata_card_by(config, provider)?;
    let address = metadata_address(config, &card)?;
    // The queue pairs of a card are made at its addresses alone.
    let own = card.address.filter(|_| provider == Provider::Verbs);
    let address = SocketAddr::new(own.unwrap_or(address.ip()), port_by(provider, beside, address.port()));
    // Its answers come from no pool.
    let (name, registered) = (format!("{} metadata", card.thread_name()), ByteSize::default());
    Ok(Place { card, port: METADATA_PORT, host: "worker.rpc.bind.host", name, address, registered })
}

/// Where to listen for the data of each of `cards`. Only keys of RDMA decide: the network of the group is for TCP and
/// may be one without RDMA, where no client could connect. `network.rdma.data.bind.host` is for a single card. Several
/// cards listen at their own addresses, and clients are told each of them, because the connections of one card go
/// through no other.
fn data_addresses(config: &Config, cards: &[Card]) -> anyhow::Result<Vec<SocketAddr>> {
    let (host, port) = (config.network_rdma_data_bind_host.as_str(), config.network_rdma_data_port);
    let configured = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
    let configured = configured.with_context(|| format!("network.rdma.data.bind.host: `{host}` has no address"))?;
    if let [card] = cards {
        let own = card.address.filter(|_| configured.ip().is_unspecified());
        return Ok(vec![SocketAddr::new(own.unwrap_or(configured.ip()), port)]);
    }
    let own = |card: &Card| {
        let none = || format!("card {} has no IP address to listen on; give its interface one", card.name);
        Ok(SocketAddr::new(card.address.with_context(none)?, port))
    };
    cards.iter().map(own).collect()
}

/// The keys that name an address for one listener and, with several `cards`, are not the address of any: each with what happens
/// instead.
fn unused(config: &Config, cards: &[Card]) -> Vec<(&'static str, String)> {
    let listed: Vec<_> = cards.iter().filter_map(|card| Some(format!("{} at {}", card.name, card.address?))).collect();
    let listed = listed.join(", ");
    let is_of_none = |host: &Host| {
        let mut addresses = (host.as_str(), 0).to_socket_addrs().into_iter().flatten();
        let is_used = |ip: IpAddr| ip.is_unspecified() || cards.iter().any(|card| card.address == Some(ip));
        cards.len() > 1 && !addresses.any(|address| is_used(address.ip()))
    };
    let mut unused = Vec::new();
    let host = &config.network_rdma_data_bind_host;
    if is_of_none(host) {
        let what = format!("`{host}` is the address of none of the cards: each listens at its own: {listed}");
        unused.push(("network.rdma.data.bind.host", what));
    }
    if let Some(host) = config.network_rdma_data_hostname.as_ref().filter(|host| is_of_none(host)) {
        let what = format!("`{host}` is the address of none of the cards: clients are told the cards' own: {listed}");
        unused.push(("network.rdma.data.hostname", what));
    }
    unused
}

/// What clients are told of a listener, one of those for so many `cards`.
fn offered(config: &Config, hostname: Option<&Host>, card: &Card, server: &dyn Listening, cards: usize) -> PathAddress {
    let bound = server.local_addr();
    let host = told_host(hostname, config.worker_hostname.as_ref(), bound.ip(), cards);
    PathAddress { card: card.name.clone(), host, port: bound.port() }
}

/// Where to listen for metadata: the worker's own address, or the card's when the worker listens on every one.
fn metadata_address(config: &Config, card: &Card) -> anyhow::Result<SocketAddr> {
    let worker = WorkerAddresses::of(config)?.rpc.ip();
    let address = card.address.filter(|_| worker.is_unspecified()).unwrap_or(worker);
    Ok(SocketAddr::new(address, config.network_rdma_metadata_port))
}

/// The host that clients are told of a listener at `bound`; empty for the one that they know the worker by. With several
/// `cards`, `hostname` stands for the one whose address it is.
fn told_host(hostname: Option<&Host>, worker: Option<&Host>, bound: IpAddr, cards: usize) -> String {
    let is_this = |host: &&Host| {
        let mut addresses = (host.as_str(), 0).to_socket_addrs().into_iter().flatten();
        cards <= 1 || addresses.any(|address| address.ip() == bound)
    };
    match hostname.filter(is_this).or(worker.filter(|_| bound.is_unspecified())) {
        Some(host) => host.to_string(),
        None if bound.is_unspecified() => String::new(),
        None => bound.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[&str]) -> Config {
        let sources = forebay_config::Sources::new().flags(settings.iter().map(|setting| (*setting).to_owned()));
        Config::load(&sources).unwrap().config
    }

    fn card(address: Option<&str>) -> Card {
        let address = address.map(|address| address.parse().unwrap());
        Card { name: "mlx5_0:1".into(), device: Some("mlx5_0:1".into()), address, ..Card::default() }
    }

    #[test]
    fn a_listener_has_its_cards_address_unless_one_is_configured() {
        let addresses = |settings: &[&str], cards: &[Card]| -> Result<Vec<String>, String> {
            let found = data_addresses(&config(settings), cards).map_err(|error| error.to_string())?;
            Ok(found.iter().map(SocketAddr::to_string).collect())
        };
        let (own, none) = (card(Some("10.0.0.1")), card(None));
        assert_eq!(addresses(&[], std::slice::from_ref(&own)).unwrap(), ["10.0.0.1:59999"]);
        let configured = ["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0"];
        assert_eq!(addresses(&configured, std::slice::from_ref(&own)).unwrap(), ["127.0.0.1:0"]);
        assert_eq!(addresses(&[], std::slice::from_ref(&none)).unwrap(), ["0.0.0.0:59999"]);
        let two = [own.clone(), card(Some("10.1.0.1"))];
        let each = ["10.0.0.1:59999", "10.1.0.1:59999"];
        assert_eq!(addresses(&[], &two).unwrap(), each);
        assert_eq!(addresses(&["network.rdma.data.bind.host=10.1.0.1"], &two).unwrap(), each);
        assert_eq!(addresses(&configured, &two).unwrap(), ["10.0.0.1:0", "10.1.0.1:0"]);
        assert!(addresses(&[], &[own, none.clone()]).unwrap_err().contains("no IP address"));
        let of_tcp = ["network.group_network=lo"];
        assert_eq!(addresses(&of_tcp, &[none]).unwrap(), ["0.0.0.0:59999"], "that is no network of RDMA");
    }

    #[test]
    fn with_several_cards_an_address_of_none_of_them_is_said_to_be_unused_with_what_is_used() {
        let two = [card(Some("10.0.0.1")), card(Some("10.1.0.1"))];
        let said = |settings: &[&str], cards: &[Card]| {
            let unused = unused(&config(settings), cards);
            unused.into_iter().map(|(key, what)| format!("{key}: {what}")).collect::<Vec<_>>()
        };
        let recipe = ["network.rdma.data.bind.host=192.168.0.9", "network.rdma.data.hostname=192.168.0.9"];
        let both = said(&recipe, &two);
        assert_eq!(both.len(), 2, "{both:?}");
        for (said, key) in both.iter().zip(["data.bind.host: `192.168.0.9`", "data.hostname: `192.168.0.9`"]) {
            assert!(said.contains(key) && said.contains("10.0.0.1") && said.contains("10.1.0.1"), "{said}");
        }
        assert_eq!(said(&recipe, &two[..1]), [""; 0], "a single card listens where it is told to");
        let of_a_card = ["network.rdma.data.bind.host=10.1.0.1", "network.rdma.data.hostname=10.0.0.1"];
        assert_eq!(said(&of_a_card, &two), [""; 0]);
        assert_eq!(said(&[], &two), [""; 0]);
    }

    #[test]
    fn beside_ucx_verbs_take_a_free_port_and_alone_the_one_that_is_set() {
        let ports = |beside| [Provider::Ucx, Provider::Verbs].map(|provider| port_by(provider, beside, 59999));
        assert_eq!(ports(true), [59999, 0]);
        assert_eq!(ports(false), [59999, 59999]);
    }

    #[test]
    fn metadata_listens_where_the_worker_does() {
        let everywhere = metadata_address(&config(&[]), &card(None)).unwrap();
        assert_eq!(everywhere, "0.0.0.0:29995".parse().unwrap());
        let of_card = metadata_address(&config(&[]), &card(Some("10.0.0.1"))).unwrap();
        assert_eq!(of_card, "10.0.0.1:29995".parse().unwrap());
        let bound = config(&["worker.rpc.bind.host=127.0.0.1", "network.rdma.metadata.port=0"]);
        assert_eq!(metadata_address(&bound, &card(Some("10.0.0.1"))).unwrap(), "127.0.0.1:0".parse().unwrap());
    }

    #[test]
    fn clients_are_told_what_is_configured_or_bound() {
        let (bound, any) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0, 0, 0, 0]));
        let named = config(&["network.rdma.data.hostname=10.0.0.1", "worker.hostname=node1"]);
        let (hostname, worker) = (named.network_rdma_data_hostname.as_ref(), named.worker_hostname.as_ref());
        let told = |hostname, worker, bound, cards| told_host(hostname, worker, bound, cards);
        assert_eq!(told(hostname, worker, IpAddr::from([192, 168, 0, 1]), 1), "10.0.0.1");
        assert_eq!(told(None, worker, bound, 1), "10.0.0.1");
        assert_eq!(told(None, worker, any, 1), "node1");
        assert_eq!(told(None, None, any, 1), "");
        // With two cards, a name is the one's whose address it is.
        assert_eq!(told(hostname, worker, bound, 2), "10.0.0.1");
        assert_eq!(told(hostname, worker, IpAddr::from([10, 1, 0, 1]), 2), "10.1.0.1");
    }
}
