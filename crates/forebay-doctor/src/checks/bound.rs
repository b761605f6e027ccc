//! Whether processes that run use the interfaces that the configuration names: one that was started before it was changed does
//! not, and its traffic takes the other network.

use std::net::IpAddr;

use forebay_config::{Config, Interface as Name};

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Connections, Facts};
use crate::text::listed;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    let group = config.network_group_network.as_ref();
    // A host that the worker is bound to by address comes before the group's interface.
    let of_group = group.filter(|_| matches!(config.worker_rpc_bind_host.as_str(), "0.0.0.0" | "::"));
    let rpc = config.worker_rpc_bind_device.as_ref().or(of_group);
    let data = config.worker_data_bind_device.as_ref().or(rpc);
    let client = config.client_network_data_bind_device.as_ref().or(group);
    let own_data = config.worker_data_bind_device.as_ref().filter(|name| Some(*name) != rpc);
    for (key, name) in [("worker.rpc.bind.device", rpc), ("worker.data.bind.device", own_data)] {
        checks.extend(name.and_then(|name| listens(facts, config, key, name)));
    }
    let incoming = data.and_then(|name| connected(facts, config, "worker.data.bind.device", name, false));
    let outgoing = client.and_then(|name| connected(facts, config, "client.network.data.bind.device", name, true));
    checks.extend(incoming);
    checks.extend(outgoing);
    checks.extend(half_bound(facts, data, client));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Network, name, verdict, what)
}

fn address_of(facts: &Facts, name: &Name) -> Option<IpAddr> {
    Some(facts.interface(name.as_str())?.address()?.ip)
}

/// A worker that runs listens on the interface that is named.
fn listens(facts: &Facts, config: &Config, key: &'static str, name: &Name) -> Option<Check> {
    let own = address_of(facts, name)?;
    let port = config.worker_rpc_port;
    let is_ours = |owner: &Option<crate::facts::Owner>| owner.as_ref().is_some_and(|owner| owner.name == "forebay");
    let ours: Vec<IpAddr> = facts
        .listeners
        .iter()
        .filter(|listener| listener.port == port && is_ours(&listener.owner))
        .map(|listener| listener.address)
        .collect();
    if ours.is_empty() {
        return None;
    }
    let is_there = ours.iter().any(|address| *address == own || address.is_unspecified());
    Some(if is_there {
        row("listens", Verdict::Ok, format!("the worker listens on {name} ({own})")).about(key)
    } else {
        let found = listed(ours.iter().map(ToString::to_string));
        row("listens", Verdict::Warn, format!("the worker listens on {found}, and {name} is {own}")).about(key).remedy(
            "restart the worker: it was started with other settings; give this command those that it is started with; \
             ss -tlnp shows where it listens",
        )
    })
}

/// Connections that are open use the interface that is named.
fn connected(facts: &Facts, config: &Config, key: &'static str, name: &Name, is_outgoing: bool) -> Option<Check> {
    let own = address_of(facts, name)?;
    let of_kind = |found: &&Connections| found.port == config.worker_rpc_port && found.is_outgoing == is_outgoing;
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        facts.connections.iter().filter(of_kind).partition(|found| found.address == own);
    let count = |found: &[&Connections]| found.iter().map(|found| found.count).sum::<u32>();
    if here.is_empty() && elsewhere.is_empty() {
        return None;
    }
    let others = listed(elsewhere.iter().map(|found| format!("{} over {}", found.count, found.address)));
    let what = format!("{} over {name} ({own}), and {others}", count(&here));
    Some(if elsewhere.is_empty() {
        row("connections", Verdict::Ok, format!("{} over {name}", count(&here))).about(key)
    } else if is_outgoing && !here.is_empty() {
        row("connections", Verdict::Info, format!("{what}: those of coordinators and commands are not bound by this"))
            .about(key)
    } else {
        row("connections", Verdict::Warn, what).about(key).remedy(
            "restart the processes that were started before the setting was made, and name workers by addresses in the \
                 subnet of the interface; ss -tnp shows each connection",
        )
    })
}

/// One side bound to the fast network does not help while the other asks for addresses of the slow one.
fn half_bound(facts: &Facts, data: Option<&Name>, client: Option<&Name>) -> Option<Check> {
    let (bound, other) = match (data, client) {
        (Some(bound), None) => (bound, "client.network.data.bind.device"),
        (None, Some(bound)) => (bound, "worker.data.bind.device"),
        _ => return None,
    };
    let is_ipoib = facts.interface(bound.as_str()).is_some_and(|interface| interface.is_ipoib);
    is_ipoib.then(|| {
        row("half-bound", Verdict::Warn, format!("{bound} is bound, and {other} is not set"))
            .about(other)
            .remedy(format!("set {other} = \"{bound}\" where that side runs, and restart it"))
    })
}
