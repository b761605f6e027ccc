//! The RDMA listeners of a worker: one for the data of each card, and one for attributes and listings.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::{Config, Host};
use forebay_doctor::Root;
use forebay_memory::Pool;
use forebay_rdma::{Lane, RdmaServer, ServerStats};
use forebay_transport::Service;
use forebay_transport::message::{PathAddress, PathsReply};
use forebay_types::ByteSize;

use serde_json::{Value, json};

use super::cards::{Card, Machine, report};
use super::trace::Tracing;
use super::{is_wanted, library, or_tcp};
use crate::assembly;
use crate::binding::WorkerAddresses;

/// The listeners.
pub(crate) struct Servers {
    servers: Vec<RdmaServer>,
    _tracing: Option<Tracing>,
    /// What clients are told of them.
    pub(crate) paths: PathsReply,
}

/// A card, where to listen on it, and what is registered with it.
struct Place {
    card: Card,
    /// The listener's name in logs.
    name: String,
    address: SocketAddr,
    registered: ByteSize,
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
        let machine = Machine::look(&Root::default())?;
        let mut places = Vec::new();
        if config.network_rdma_data_enabled {
            let cards = machine.data_cards(config)?;
            let registered = pool.capacity();
            for (card, address) in cards.iter().zip(data_addresses(config, &cards)?) {
                places.push(Place { card: card.clone(), name: card.name.clone(), address, registered });
            }
        }
        let for_data = places.len();
        if config.network_rdma_metadata_enabled {
            let card = machine.metadata_card(config)?;
            let address = metadata_address(config, &card)?;
            // Its answers come from no pool.
            let (name, registered) = (format!("{} metadata", card.name), ByteSize::default());
            places.push(Place { card, name, address, registered });
        }
        let tracing = Tracing::start(config);
        let trace = tracing.as_ref().map(|tracing| Arc::clone(&tracing.trace));
        let lanes = tokio::task::spawn_blocking({
            let (config, pool, trace) = (config.clone(), pool.clone(), trace.clone());
            move || {
                let lane = |place: Place| {
                    let (name, trace) = (place.name.clone(), trace.as_ref());
                    let lane = place.card.lane(&config, name, &pool, place.registered, trace)?;
                    Ok((place, lane))
                };
                places.into_iter().map(lane).collect::<anyhow::Result<Vec<(Place, Arc<Lane>)>>>()
            }
        });
        let lanes = lanes.await.context("starting RDMA panicked")??;
        let ucx = Some(library(config)?.version().to_string());
        let paths = PathsReply { ucx, data: Vec::new(), metadata: None };
        let mut listening = Self { servers: Vec::new(), _tracing: tracing, paths };
        let mut offered = Vec::new();
        for (place, lane) in lanes {
            let options = forebay_rdma::ServerOptions {
                max_connections: config.worker_max_connections as usize,
                trace: trace.clone(),
                ..forebay_rdma::ServerOptions::new(
                    place.address,
                    config.cluster_name.as_str(),
                    assembly::block_size(config),
                )
            };
            let server = match RdmaServer::bind(lane, options, Arc::clone(&service)).await {
                Ok(server) => server,
                Err(error) => {
                    listening.close().await;
                    return Err(error.into());
                }
            };
            let bound = server.local_addr();
            let hostname = config.network_rdma_data_hostname.as_ref().filter(|_| offered.len() < for_data);
            let host = told_host(hostname, config.worker_hostname.as_ref(), bound.ip(), for_data);
            offered.push(PathAddress { card: place.card.name, host, port: bound.port() });
            listening.servers.push(server);
        }
        listening.paths.metadata = offered.split_off(for_data).pop();
        listening.paths.data = offered;
        Ok(listening)
    }

    /// The listeners and what they count, as JSON.
    pub(crate) fn report(&self) -> Value {
        let server = |server: &RdmaServer| {
            let mut listener = report(server.lane());
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
        json!({ "ucx": self.paths.ucx, "listeners": self.servers.iter().map(server).collect::<Vec<_>>() })
    }

    /// Closes them, with every connection.
    pub(crate) async fn close(&self) {
        futures::future::join_all(self.servers.iter().map(RdmaServer::close)).await;
    }
}

/// Where to listen for the data of each of `cards`. Keys of RDMA alone say so: the network of the group is for TCP and may be one
/// without RDMA, where nobody could connect. `network.rdma.data.bind.host` is for the card whose address it is, and for a single
/// one; the others listen at their own addresses.
fn data_addresses(config: &Config, cards: &[Card]) -> anyhow::Result<Vec<SocketAddr>> {
    let (host, port) = (config.network_rdma_data_bind_host.as_str(), config.network_rdma_data_port);
    let configured = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
    let configured = configured.with_context(|| format!("network.rdma.data.bind.host: `{host}` has no address"))?;
    if let [card] = cards {
        let own = card.address.filter(|_| configured.ip().is_unspecified());
        return Ok(vec![SocketAddr::new(own.unwrap_or(configured.ip()), port)]);
    }
    let is_one_of_them = cards.iter().any(|card| card.address == Some(configured.ip()));
    anyhow::ensure!(
        configured.ip().is_unspecified() || is_one_of_them,
        "network.rdma.data.bind.host: `{host}` is the address of none of the cards; leave it unset, so that each listens at its own"
    );
    let own = |card: &Card| {
        let none = || format!("card {} has no IP address to listen on; give its interface one", card.name);
        Ok(SocketAddr::new(card.address.with_context(none)?, port))
    };
    cards.iter().map(own).collect()
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
        Card { name: "mlx5_0:1".into(), device: Some("mlx5_0:1".into()), gid_index: None, address }
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
        assert!(addresses(&configured, &two).unwrap_err().contains("none of the cards"));
        assert!(addresses(&[], &[own, none.clone()]).unwrap_err().contains("no IP address"));
        let of_tcp = ["network.group_network=lo"];
        assert_eq!(addresses(&of_tcp, &[none]).unwrap(), ["0.0.0.0:59999"], "that is no network of RDMA");
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
