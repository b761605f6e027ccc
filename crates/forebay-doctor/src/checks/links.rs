//! Whether an active port gives what it could: its rate, its packets, and what goes wrong on its link.

use std::collections::BTreeMap;

use forebay_config::Config;

use crate::checks::cards::{card_of, less};
use crate::checks::speeds::{rate_of, slower_than_card};
use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::{Device, DeviceKind, Facts, Port};
use crate::text::{listed, time};

/// The lanes of a port whose link has come up as it should; newer ones have two faster lanes, or four.
const FULL_WIDTHS: [&str; 4] = ["2X", "4X", "8X", "12X"];

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    for (device, port) in facts.rdma.ports().filter(|(_, port)| port.is_active()) {
        checks.extend(rate(facts, config, device, port));
        checks.extend(packets(config, port));
        checks.extend(faults(facts, config, device, port));
    }
    checks.extend(link_layers(facts, config));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Rdma, name, verdict, what)
}

/// A link that came up on fewer lanes than its cable has.
fn rate(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    if device.kind == DeviceKind::Software {
        return None;
    }
    let text = port.rate.as_deref()?;
    let (own, lanes, _) = rate_of(text)?;
    let is_narrow = port.is_infiniband() && lanes.is_some_and(|lanes| !FULL_WIDTHS.contains(&lanes));
    // Cards of one model in one machine are meant to be alike.
    let same_model = |other: &Device| device.model.is_some() && other.model == device.model;
    let best = facts.rdma.ports().filter(|(other, port)| same_model(other) && port.is_active());
    let best = best.filter_map(|(_, port)| rate_of(port.rate.as_deref()?).map(|(rate, ..)| rate)).max();
    let slower = slower_than_card(device, card_of(facts, device), port.is_infiniband(), text);
    let check = match best {
        _ if is_narrow => row("rate", less(config, port), format!("{text}: the link runs on fewer lanes than it has"))
            .remedy("reseat or replace cable and transceiver; mlxlink -d DEVICE, or ibdiagnet, shows the lanes"),
        _ if slower.is_some() => {
            row("rate", less(config, port), format!("{text}: {}", slower.unwrap_or_default())).remedy(
                "unless the switch's port or the cable can do no more, the link was trained too slow: reseat or replace the cable, and \
                 look at the speeds that are enabled on both sides (mlxlink -d DEVICE; ibportstate LID PORT; ethtool)",
            )
        }
        Some(best) if best > own => row(
            "rate",
            less(config, port),
            format!("{text}, and another port of the same kind of card has {best} Mb/s"),
        )
        .remedy("compare cable, transceiver and the switch's port with those of the faster one"),
        _ => row("rate", Verdict::Ok, text),
    };
    Some(check.about(&port.name))
}

/// Packets of InfiniBand; those of RoCE follow the interface's, and have a check of their own.
fn packets(config: &Config, port: &Port) -> Option<Check> {
    let (most, active) = (port.max_mtu?, port.active_mtu?);
    if !port.is_infiniband() {
        return None;
    }
    let what = format!("packets of {active} bytes, of up to {most}");
    let check = match active < most {
        false => row("packets", Verdict::Ok, what),
        true => row("packets", less(config, port), what).remedy(
            "the subnet manager chose the smallest of the fabric: look for old switches and links, and at its MTU setting",
        ),
    };
    Some(check.about(&port.name))
}

/// What went wrong on a link counts when it goes wrong now: counters are as old as the driver is loaded.
fn faults(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    let counted = |faults: &BTreeMap<String, u64>| listed(faults.iter().map(|(name, count)| format!("{name} {count}")));
    let grown = port.new_faults.as_ref();
    // Cables are unplugged, and machines on the other side boot: that alone is no fault.
    let is_harmless = port.faults.keys().all(|name| name == "link_downed") && grown.is_none_or(BTreeMap::is_empty);
    if port.faults.is_empty() || is_harmless {
        return None;
    }
    let since = format!("counted since the driver was loaded: {}", counted(&port.faults));
    let looked = time(facts.faults_over_ms.unwrap_or(0).saturating_mul(1_000_000));
    let check = match grown {
        None => row("faults", Verdict::Info, format!("{since}; whether they grow takes a second look at the machine")),
        Some(grown) if grown.is_empty() => row("faults", Verdict::Info, format!("{since}; none in the last {looked}"))
            .remedy("look while it is used: forebay doctor --peer HOST measures between its two looks"),
        Some(grown) => {
            let remedy = if port.is_ethernet() {
                "packets are lost (ethtool -S shows more): let the switch hold them back (PFC and ECN for the traffic class of \
                 RoCE), check cable and transceiver"
            } else {
                "check cable, transceiver and the switch's port (perfquery shows both sides); ibdiagnet looks at the whole fabric"
            };
            // Soft-RoCE repeats what its interface dropped, and counts it.
            let verdict = if device.kind == DeviceKind::Software { Verdict::Info } else { less(config, port) };
            row("faults", verdict, format!("in the last {looked}: {}; {since}", counted(grown))).remedy(remedy)
        }
    };
    Some(check.about(&port.name))
}

/// Cards of two kinds of fabric cannot talk to each other, and UCX would choose.
fn link_layers(facts: &Facts, config: &Config) -> Option<Check> {
    let used = cards::used(facts, config);
    let active = || used.iter().filter(|(_, port)| port.is_active());
    let infiniband: Vec<_> = active().filter(|(_, port)| port.is_infiniband()).map(|(_, port)| &port.name).collect();
    let ethernet: Vec<_> = active().filter(|(_, port)| port.is_ethernet()).map(|(_, port)| &port.name).collect();
    if infiniband.is_empty() && ethernet.is_empty() {
        return None;
    }
    if infiniband.is_empty() || ethernet.is_empty() {
        let layer = if ethernet.is_empty() { "InfiniBand" } else { "RoCE" };
        return Some(row("fabric", Verdict::Ok, format!("{layer}; it must be the same on every node")));
    }
    let what = format!("InfiniBand ({}) and RoCE ({}) are both used", listed(infiniband), listed(ethernet));
    Some(row("fabric", Verdict::Warn, what).remedy(
        "the two cannot talk to each other: name the interfaces of one of them with --rdma-network, the same on every node",
    ))
}
