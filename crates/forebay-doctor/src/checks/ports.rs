//! Ports that are configured and taken by another program.

use std::net::IpAddr;

use forebay_config::Config;

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
    let bind_host = match key {
        "worker.rpc.port" if config.worker_rpc_bind_device.is_none() => &config.worker_rpc_bind_host,
        "network.rdma.data.port" => &config.network_rdma_data_bind_host,
        _ => return of_address(facts, config, check, port, None),
    };
    of_address(facts, config, check, port, bind_host.as_str().parse().ok())
}

/// `address` is where the worker would listen, if that is known.
fn of_address(
    facts: &Facts,
    config: &Config,
    check: impl Fn(Verdict, String) -> Check,
    port: u16,
    address: Option<IpAddr>,
) -> Check {
    let in_the_way = |listener: &&Listener| {
        let same_address = address.is_none_or(|address| {
            address.is_unspecified() || listener.address.is_unspecified() || listener.address == address
        });
        listener.port == port && same_address
    };
    let Some(listener) = facts.listeners.iter().find(in_the_way) else {
        return check(Verdict::Ok, format!("{port} is free"));
    };
    match &listener.owner {
        Some(owner) if owner.name == "forebay" => {
            check(Verdict::Ok, format!("forebay (process {}) listens on {port}", owner.pid))
        }
        owner => {
            let who = owner
                .as_ref()
                .map_or("another program".to_owned(), |owner| format!("{} (process {})", owner.name, owner.pid));
            // Who configures mounts runs a worker.
            let verdict = if config.mounts.is_empty() { Verdict::Warn } else { Verdict::Fail };
            check(verdict, format!("{who} listens on {port}: a worker cannot")).remedy(format!(
                "ss -tlnp | grep {port} shows it; end it, or set another port; after a restart it may take 10 s until it is free"
            ))
        }
    }
}
