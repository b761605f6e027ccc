//! Interfaces that the configuration names, and whether traffic takes the fast ones.

use std::collections::BTreeMap;

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::{Facts, Interface};
use crate::text::{listed, size};

/// What a pipe must hold for programs that send from disk to socket through one of their own.
const PIPE_BYTES: u64 = 8 << 20;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks: Vec<Check> =
        bindings(config).into_iter().filter_map(|(key, name)| Some(binding(facts, key, name?.as_str()))).collect();
    checks.extend(unused_ipoib(facts, config));
    checks.extend(shared_subnets(facts, config));
    checks.extend(pipe(facts));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Network, name, verdict, what)
}

/// Every key that names an interface for TCP.
fn bindings(config: &Config) -> [(&'static str, Option<&forebay_config::Interface>); 6] {
    [
        ("worker.rpc.bind.device", config.worker_rpc_bind_device.as_ref()),
        ("worker.data.bind.device", config.worker_data_bind_device.as_ref()),
        ("worker.web.bind.device", config.worker_web_bind_device.as_ref()),
        ("worker.rest.bind.device", config.worker_rest_bind_device.as_ref()),
        ("client.network.data.bind.device", config.client_network_data_bind_device.as_ref()),
        ("network.group_network", config.network_group_network.as_ref()),
    ]
}

fn binding(facts: &Facts, key: &'static str, name: &str) -> Check {
    let check = |verdict, what: String| row("binding", verdict, what).about(key);
    let Some(interface) = facts.interface(name) else {
        let with_address = facts.interfaces.iter().filter(|interface| interface.address().is_some());
        let names = listed(with_address.map(|interface| interface.name.as_str()));
        return check(Verdict::Fail, format!("there is no interface {name}"))
            .remedy(format!("interfaces with an address: {names}; names are case-sensitive"));
    };
    match interface.address() {
        None if !facts.are_addresses_known() => {
            check(Verdict::Info, format!("{name} is there; addresses were not recorded"))
        }
        None => check(Verdict::Fail, format!("{name} has no IP address"))
            .remedy(format!("ip addr add ADDRESS/PREFIX dev {name}; ip link set {name} up")),
        Some(address) if !interface.is_up() => {
            let state = interface.state.as_deref().unwrap_or("not up");
            check(Verdict::Fail, format!("{name} ({address}) is {state}")).remedy(format!("ip link set {name} up"))
        }
        Some(address) => check(Verdict::Ok, format!("{name} has {address}")),
    }
}

/// InfiniBand that is up while TCP goes elsewhere.
fn unused_ipoib(facts: &Facts, config: &Config) -> Option<Check> {
    let is_ready = |interface: &&Interface| interface.is_ipoib && interface.is_up() && interface.address().is_some();
    let interface = facts.interfaces.iter().find(is_ready)?;
    let is_bound = bindings(config).iter().any(|(_, bound)| bound.is_some());
    if is_bound || cards::wanted(config) {
        return None;
    }
    let name = &interface.name;
    Some(row("ipoib-unused", Verdict::Info, format!("{name} is up, and nothing is bound to it")).remedy(format!(
        "to use it: --rdma-network {name} for RDMA; for TCP worker.rpc.bind.device and worker.data.bind.device = \"{name}\" on \
         workers, client.network.data.bind.device = \"{name}\" on clients"
    )))
}

/// Several cards in one subnet: the kernel sends over one of them.
fn shared_subnets(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut subnets = BTreeMap::<_, Vec<&Interface>>::new();
    for (_, port) in cards::used(facts, config).iter().filter(|(_, port)| port.is_active()) {
        let interface = port.interfaces.first().and_then(|name| facts.interface(name));
        if let Some((interface, subnet)) =
            interface.and_then(|interface| Some((interface, interface.address()?.subnet()?)))
        {
            let same = subnets.entry(subnet).or_default();
            // Two ports of one bond.
            if !same.iter().any(|known| known.name == interface.name) {
                same.push(interface);
            }
        }
    }
    let check = |interfaces: Vec<&Interface>| {
        let names = listed(interfaces.iter().map(|interface| interface.name.as_str()));
        row(
            "subnets",
            Verdict::Warn,
            format!("{names} are in one subnet: the kernel may send through one of them only"),
        )
        .remedy("give each card a subnet of its own, or bond them, or route by source address (ip rule)")
    };
    subnets.into_values().filter(|interfaces| interfaces.len() > 1).map(check).collect()
}

fn pipe(facts: &Facts) -> Option<Check> {
    let bytes = facts.system.pipe_max_bytes?;
    Some(if bytes >= PIPE_BYTES {
        row("pipe-max-size", Verdict::Ok, size(bytes))
    } else {
        let what = format!(
            "{}: enough, as worker.disk.serve = \"splice\" sends from files without a pipe of its own; caches that splice \
             through pipes want {}",
            size(bytes),
            size(PIPE_BYTES)
        );
        row("pipe-max-size", Verdict::Info, what).remedy(format!("sysctl -w fs.pipe-max-size={PIPE_BYTES}"))
    })
}
