//! Ports that are configured and taken by another program.

use std::net::{IpAddr, SocketAddr};

use forebay_config::Config;

use crate::checks::cards::are_named;
use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, Listener};

/// Ports that a worker of this configuration listens on, each with its key. 0 takes a free one.
#[must_use]
pub fn configured(config: &Config) -> Vec<(&'static str, u16)> {
    let mut ports = vec![("worker.rpc.port", config.worker_rpc_port)];
    if config.network_rdma_data_enabled {
        ports.push(("network.rdma.data.port", config.network_rdma_data_port));
    }
    if config.network_rdma_metadata_enabled {
        ports.push(("network.rdma.metadata.port", config.network_rdma_metadata_port));
    }
    ports.retain(|(_, port)| *port != 0);
    ports
}

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    configured(config).into_iter().map(|(key, port)| check_port(facts, config, key, port)).collect()
}

fn check_port(facts: &Facts, config: &Config, key: &'static str, port: u16) -> Check {
    let check = |verdict, what: String| Check::new(Section::Network, "port", verdict, what).about(key);
    let addresses = listening(facts, config, key);
    let in_the_way = |listener: &&Listener| {
        let is_there = addresses.is_empty() || addresses.iter().any(|address| overlap(listener.address, *address));
        listener.port == port && is_there
    };
    // rdma_cm's ports are none of TCP's: a listener there is in the way of RDMA only, and on its device's address.
    let by_rdma = facts.rdma_listeners.iter().filter(|_| key.starts_with("network.rdma.")).map(|listener| Listener {
        address: listener.address,
        port: listener.port,
        owner: listener.owner.clone(),
    });
    let listeners: Vec<Listener> = facts.listeners.iter().cloned().chain(by_rdma).collect();
    let Some(listener) = listeners.iter().find(in_the_way) else {
        return check(Verdict::Ok, format!("{port} is free"));
    };
    match &listener.owner {
        Some(owner) if owner.name == "forebay" => {
            check(Verdict::Ok, format!("forebay (process {}) listens on {port}", owner.pid))
        }
        // It may as well be the worker, of a user of its own.
        None if !facts.system.is_root => {
            let at = SocketAddr::new(listener.address, port);
            check(Verdict::Info, format!("somebody listens on {at}: root is told whether that is forebay"))
                .remedy(format!("sudo forebay doctor, or sudo ss -tlnp sport = :{port}, shows who"))
        }
        owner => {
            let who = owner
                .as_ref()
                .map_or("another program".to_owned(), |owner| format!("{} (process {})", owner.name, owner.pid));
            // A machine whose configuration has mounts runs a worker.
            let verdict = if config.mounts.is_empty() { Verdict::Warn } else { Verdict::Fail };
            check(verdict, format!("{who} listens on {port}: a worker cannot")).remedy(format!(
                "ss -tlnp | grep {port} shows it, or rdma resource show cm_id; end it, or set another port; after a restart it may take 10 s until it is free"
            ))
        }
    }
}

/// Where a worker would listen on the port that `key` names; nothing when that is not known, or may be anywhere.
pub(super) fn listening(facts: &Facts, config: &Config, key: &str) -> Vec<IpAddr> {
    let addresses = match key {
        "network.rdma.data.port" => for_rdma_data(facts, config),
        "network.rdma.metadata.port" => for_requests(facts, config).map(|address| vec![address]),
        _ => for_requests(facts, config).map(|address| {
            let for_data = config.worker_data_bind_device.as_ref().and_then(|name| of_interface(facts, name.as_str()));
            std::iter::once(address).chain(for_data).collect()
        }),
    };
    addresses.unwrap_or_default()
}

/// Where it takes requests: at the interface that is named, else at the host, else at the interface of the group.
fn for_requests(facts: &Facts, config: &Config) -> Option<IpAddr> {
    if let Some(name) = &config.worker_rpc_bind_device {
        return of_interface(facts, name.as_str());
    }
    let host: IpAddr = config.worker_rpc_bind_host.as_str().parse().ok()?;
    match config.network_group_network.as_ref().filter(|_| host.is_unspecified()) {
        Some(group) => of_interface(facts, group.as_str()),
        None => Some(host),
    }
}

/// Where it hands out data by RDMA: at each card that is named, or at the host, which is for a single one.
fn for_rdma_data(facts: &Facts, config: &Config) -> Option<Vec<IpAddr>> {
    let host: IpAddr = config.network_rdma_data_bind_host.as_str().parse().ok()?;
    let of_networks = config.network_rdma_data_network.iter().map(|name| of_interface(facts, name.as_str()));
    let of_devices = config.network_rdma_data_bind_device.iter().map(|device| {
        let (_, port) = facts.rdma.port(device)?;
        of_interface(facts, port.interfaces.first()?)
    });
    let cards: Option<Vec<IpAddr>> = of_networks.chain(of_devices).collect();
    if !are_named(config) || !host.is_unspecified() && cards.as_ref().is_none_or(|cards| cards.len() == 1) {
        return Some(vec![host]);
    }
    cards
}

fn of_interface(facts: &Facts, name: &str) -> Option<IpAddr> {
    Some(facts.interface(name)?.address()?.ip)
}

/// Whether listeners at these addresses are in each other's way on one port.
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    // Linux has those at `::` listen to IPv4 as well.
    let covers = |all: IpAddr, one: IpAddr| all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    let (one, other) = (one.to_canonical(), other.to_canonical());
    one == other || covers(one, other) || covers(other, one)
}
