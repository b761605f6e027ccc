//! Which cards the configuration asks for, and how bad it is when something is wrong with one.

use forebay_config::{Config, RdmaFallback};

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Device, Facts, PciCard, Port};
use crate::text::listed;

/// The bit of a partition key that says how its owner is a member.
const FULL_MEMBER: u16 = 0x8000;

/// Whether the configuration asks for cards. With UCX transports of the user's choice it need not be cards.
pub(crate) fn wanted(config: &Config) -> bool {
    config.network_rdma_data_enabled && config.network_rdma_data_transports.is_empty()
}

/// How bad it is that RDMA cannot be had at all.
pub(crate) fn without_rdma(config: &Config) -> Verdict {
    match config.network_rdma_data_fallback {
        _ if !wanted(config) => Verdict::Info,
        RdmaFallback::TcpAtStart => Verdict::Warn,
        RdmaFallback::Auto | RdmaFallback::Never => Verdict::Fail,
    }
}

/// How bad it is when a card that is there does not work as it should.
pub(crate) fn broken(config: &Config) -> Verdict {
    without_rdma(config).max(Verdict::Warn)
}

/// How bad it is when `port` does not work as it should. Cards that others were named instead of do not matter.
pub(crate) fn broken_port(config: &Config, port: &Port) -> Verdict {
    if wanted(config) && !uses(config, port) { Verdict::Info } else { broken(config) }
}

/// How bad it is when a port that works gives less than it could.
pub(crate) fn less(config: &Config, port: &Port) -> Verdict {
    broken_port(config, port).min(Verdict::Warn)
}

/// The card that a device is on.
pub(crate) fn card_of<'a>(facts: &'a Facts, device: &Device) -> Option<&'a PciCard> {
    facts.pci_cards.iter().find(|card| Some(&card.address) == device.pci.as_ref())
}

/// How many cards memory is registered with.
pub(crate) fn count(facts: &Facts, config: &Config) -> u64 {
    let named = config.network_rdma_data_network.len() + config.network_rdma_data_bind_device.len();
    let found = facts.rdma.devices.len();
    (if named == 0 { found } else { named }).max(1) as u64
}

/// Whether the configuration names cards, rather than leave the choice to UCX.
pub(crate) fn are_named(config: &Config) -> bool {
    !config.network_rdma_data_network.is_empty() || !config.network_rdma_data_bind_device.is_empty()
}

/// Whether the configuration uses `port`, or may.
pub(crate) fn uses(config: &Config, port: &Port) -> bool {
    let by_network = config
        .network_rdma_data_network
        .iter()
        .any(|network| port.interfaces.iter().any(|interface| interface == network.as_str()));
    let bound = &config.network_rdma_data_bind_device;
    let by_device = bound.iter().any(|name| *name == port.name || port.name.strip_suffix(":1") == Some(name));
    wanted(config) && (!are_named(config) || by_network || by_device)
}

/// The ports that the configuration uses.
pub(crate) fn used<'a>(facts: &'a Facts, config: &Config) -> Vec<(&'a Device, &'a Port)> {
    facts.rdma.ports().filter(|(_, port)| uses(config, port)).collect()
}

/// Every card and interface that the configuration names is there.
pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    for network in &config.network_rdma_data_network {
        checks.push(of_network(facts, config, network.as_str()));
    }
    for device in &config.network_rdma_data_bind_device {
        checks.push(of_device(facts, config, "network.rdma.data.bind.device", device));
    }
    for (_, port) in used(facts, config) {
        checks.extend(of_gid(port, config.network_rdma_data_gid_index, "network.rdma.data.gid_index", broken(config)));
        checks.extend(of_partition(port, config));
    }
    if config.network_rdma_metadata_enabled
        && let Some(device) = &config.network_rdma_metadata_device
    {
        checks.push(of_metadata(facts, config, device));
    }
    checks
}

fn of_network(facts: &Facts, config: &Config, name: &str) -> Check {
    let check = |verdict, what: String| {
        Check::new(Section::Configuration, "card", verdict, what).about("network.rdma.data.network")
    };
    let with_device = facts.rdma.ports().flat_map(|(_, port)| &port.interfaces);
    let remedy = format!(
        "interfaces with an RDMA device: {}; give one of them to --rdma-network",
        listed(with_device.collect::<Vec<_>>())
    );
    let port = facts.rdma.ports().find(|(_, port)| port.interfaces.iter().any(|interface| interface == name));
    let is_there = facts.interface(name).is_some();
    let remedy = match is_there {
        true => remedy,
        false => {
            let all = listed(facts.interfaces.iter().map(|interface| interface.name.as_str()));
            format!("{remedy}; interfaces here: {all}; names are case-sensitive")
        }
    };
    match port {
        Some((_, port)) => check(Verdict::Ok, format!("{name} is {}", port.name)),
        None if is_there && !wanted(config) => check(Verdict::Ok, format!("{name} is there")),
        None if is_there => check(without_rdma(config), format!("no RDMA device belongs to {name}")).remedy(remedy),
        None if config.network_rdma_data_enabled => {
            check(Verdict::Fail, format!("there is no interface {name}")).remedy(remedy)
        }
        None => check(Verdict::Warn, format!("there is no interface {name}")).remedy(remedy),
    }
}

fn of_device(facts: &Facts, config: &Config, key: &'static str, name: &str) -> Check {
    let check = |verdict, what: String| Check::new(Section::Configuration, "card", verdict, what).about(key);
    if let Some((_, port)) = facts.rdma.port(name) {
        return check(Verdict::Ok, format!("{name} is {}", listed(&port.interfaces)));
    }
    if !config.network_rdma_data_transports.is_empty() && facts.interface(name).is_some() {
        return check(Verdict::Ok, format!("{name} is there"));
    }
    let verdict = if config.network_rdma_data_enabled { Verdict::Fail } else { Verdict::Warn };
    let ports = facts.rdma.ports().map(|(_, port)| port.name.as_str());
    check(verdict, format!("there is no RDMA device {name}"))
        .remedy(format!("RDMA devices here: {}; set {key} to one of them, or unset it", listed(ports)))
}

/// What is wrong with metadata costs no more than metadata over RDMA.
fn of_metadata(facts: &Facts, config: &Config, device: &str) -> Check {
    let name = format!("{device}:{}", config.network_rdma_metadata_ib_port);
    let check = of_device(facts, config, "network.rdma.metadata.device", &name);
    let Some((_, port)) = facts.rdma.port(&name) else {
        return Check { verdict: check.verdict.min(Verdict::Warn), ..check };
    };
    let index = config.network_rdma_metadata_gid_index;
    of_gid(port, index, "network.rdma.metadata.gid_index", Verdict::Warn).unwrap_or(check)
}

/// The entry of `port`'s GID table that the setting `key` names is there.
fn of_gid(port: &Port, index: i32, key: &'static str, verdict: Verdict) -> Option<Check> {
    if index < 0 || port.gids.iter().any(|gid| i64::from(gid.index) == i64::from(index)) {
        return None;
    }
    let known = port.gids.iter().map(|gid| gid.index.to_string());
    let what = format!("{} has no GID of index {index}", port.name);
    Some(
        Check::new(Section::Configuration, "card", verdict, what)
            .about(key)
            .remedy(format!("GIDs in use: {}; set one of them, or -1 for the default", listed(known))),
    )
}

/// `port` is a member of the partition that is configured, if one is.
fn of_partition(port: &Port, config: &Config) -> Option<Check> {
    let wanted = config.network_rdma_data_partition_key?.bits() & !FULL_MEMBER;
    let number = |key: &String| u16::from_str_radix(key.trim_start_matches("0x"), 16).ok();
    let is_member = port.partition_keys.iter().filter_map(number).any(|key| key & !FULL_MEMBER == wanted);
    if is_member || !port.is_infiniband() {
        return None;
    }
    let what = format!("{} is no member of partition {wanted:#06x}", port.name);
    Some(
        Check::new(Section::Configuration, "card", broken(config), what)
            .about("network.rdma.data.partition_key")
            .remedy(format!(
                "its partitions: {}; the subnet manager gives them out (partitions.conf)",
                listed(&port.partition_keys)
            )),
    )
}
