//! The RDMA listeners of a worker: one for the data of each card, and one for attributes and listings.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::Config;
use forebay_doctor::Root;
use forebay_memory::Pool;
use forebay_rdma::{Lane, RdmaServer};
use forebay_transport::Service;
use forebay_transport::message::{PathAddress, PathsReply};
use forebay_types::ByteSize;

use serde_json::{Value, json};

use super::cards::{Card, Machine, report};
use super::trace::Tracing;
use super::{is_wanted, library, or_tcp};
use crate::assembly;

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
            let (count, registered) = (cards.len(), pool.capacity());
            for card in cards {
                let (address, name) = (data_address(config, &card, count)?, card.name.clone());
                places.push(Place { card, name, address, registered });
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
        let (mut servers, mut offered) = (Vec::new(), Vec::new());
        for (place, lane) in lanes {
            let options = forebay_rdma::ServerOptions {
                max_connections: config.worker_max_connections as usize,
                trace: trace.clone(),
                ..forebay_rdma::ServerOptions::new(place.address, config.cluster_name.as_str())
            };
            let server = RdmaServer::bind(lane, options, Arc::clone(&service)).await?;
            let bound = server.local_addr();
            let host = told_host(config, bound.ip(), offered.len() < for_data);
            offered.push(PathAddress { card: place.card.name, host, port: bound.port() });
            servers.push(server);
        }
        let metadata = offered.split_off(for_data).pop();
        let ucx = Some(library(config)?.version().to_string());
        Ok(Self { servers, _tracing: tracing, paths: PathsReply { ucx, data: offered, metadata } })
    }

    /// The listeners and what they count, as JSON.
    pub(crate) fn report(&self) -> Value {
        let server = |server: &RdmaServer| {
            let mut listener = report(server.lane());
            listener["address"] = json!(server.local_addr().to_string());
            listener["connections"] = json!(server.connections());
            listener
        };
        json!({ "ucx": self.paths.ucx, "listeners": self.servers.iter().map(server).collect::<Vec<_>>() })
    }

    /// Closes them, with every connection.
    pub(crate) async fn close(&self) {
        futures::future::join_all(self.servers.iter().map(RdmaServer::close)).await;
    }
}

/// Where to listen for the data of `card`, one of `cards`: its own address where it has one,
/// `network.rdma.data.bind.host` if that is set.
fn data_address(config: &Config, card: &Card, cards: usize) -> anyhow::Result<SocketAddr> {
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

/// Where to listen for metadata: the worker's own address, or the card's when the worker listens on every one.
fn metadata_address(config: &Config, card: &Card) -> anyhow::Result<SocketAddr> {
    let worker = assembly::worker_addresses(config)?.first().map(SocketAddr::ip);
    let address = match (worker, card.address) {
        (Some(worker), None) => worker,
        (Some(worker), _) if !worker.is_unspecified() => worker,
        (_, Some(card)) => card,
        (None, None) => IpAddr::from([0, 0, 0, 0]),
    };
    Ok(SocketAddr::new(address, config.network_rdma_metadata_port))
}

/// The host that clients are told; empty for the one that they know the worker by.
fn told_host(config: &Config, bound: IpAddr, for_data: bool) -> String {
    let told = config.network_rdma_data_hostname.as_ref().filter(|_| for_data);
    match (told, &config.worker_hostname) {
        (Some(host), _) => host.to_string(),
        (None, _) if !bound.is_unspecified() => bound.to_string(),
        (None, Some(host)) => host.to_string(),
        (None, None) => String::new(),
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
        let own = card(Some("10.0.0.1"));
        assert_eq!(data_address(&config(&[]), &own, 1).unwrap(), "10.0.0.1:59999".parse().unwrap());
        let configured = config(&["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0"]);
        assert_eq!(data_address(&configured, &own, 1).unwrap(), "127.0.0.1:0".parse().unwrap());
        assert_eq!(data_address(&config(&[]), &card(None), 1).unwrap(), "0.0.0.0:59999".parse().unwrap());
        assert!(data_address(&config(&[]), &card(None), 2).is_err());
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
        let named = config(&["network.rdma.data.hostname=node1-ib", "worker.hostname=node1"]);
        assert_eq!(told_host(&named, bound, true), "node1-ib");
        assert_eq!(told_host(&named, bound, false), "10.0.0.1");
        assert_eq!(told_host(&named, any, false), "node1");
        assert_eq!(told_host(&config(&[]), any, true), "");
    }
}
