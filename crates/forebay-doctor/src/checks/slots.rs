//! What stands between a card and memory: its slot, the IOMMU, the bridges above it, and the NUMA node that it is next to.

use std::collections::BTreeSet;

use forebay_config::Config;

use crate::checks::cards::{card_of, less};
use crate::checks::speeds::rate_of;
use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::{Device, DeviceKind, Facts, PciCard, PcieLink, Port};
use crate::text::{listed, ranges};

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    for (device, port) in facts.rdma.ports().filter(|(_, port)| port.is_active()) {
        checks.extend(slot(facts, config, device, port));
    }
    for device in facts.rdma.devices.iter().filter(|device| device.kind != DeviceKind::Software) {
        let Some(port) = device.ports.iter().find(|port| port.is_active()) else { continue };
        checks.extend(numa(facts, config, device, port));
        if let Some(card) = card_of(facts, device) {
            checks.extend(iommu(config, device, port, card));
            checks.extend(access_control(facts, device, card));
        }
    }
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Rdma, name, verdict, what)
}

/// The slot must carry what the ports of its card do together, with the lanes and the speed that the card has.
fn slot(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    let card = card_of(facts, device)?;
    let link = card.link?;
    let (rate, ..) = rate_of(port.rate.as_deref()?)?;
    let what = format!("PCIe {} carries {} Gb/s", link.describe(), link.mbps() / 1000);
    let (names, together) = ports_of_slot(facts, card);
    let limited_by_slot = card.slot.is_some_and(|slot| slot.width < link.most().width);
    let remedy = match (link.is_reduced(), limited_by_slot) {
        (true, true) => "its slot has fewer lanes than the card: put it into a wider one".to_owned(),
        (true, false) => {
            "it came up with less than the card can do: reseat the card, look at the firmware's settings, at riser cards and at \
             what the slot can do; lspci -vv shows LnkCap and LnkSta of both"
                .to_owned()
        }
        (false, _) => "put the card into a wider or faster slot".to_owned(),
    };
    let most = link.most();
    let check = if link.mbps() < rate {
        row("slot", less(config, port), format!("{what}, less than the port's {} Gb/s", rate / 1000)).remedy(remedy)
    } else if link.mbps() < together {
        let what = format!("{what}, less than the {} Gb/s of {} together", together / 1000, listed(names));
        row("slot", less(config, port), what).remedy(format!("{remedy}, or use one of its ports"))
    } else if is_reduced_in_vain(card, link) {
        row("slot", Verdict::Info, format!("{what}; the card can do {}, the slot cannot", most.describe()))
    } else if link.is_reduced() {
        let what = format!("{what}, as much as the port, and the card can do {}", most.describe());
        row("slot", less(config, port), what).remedy(remedy)
    } else {
        row("slot", Verdict::Ok, what)
    };
    Some(check.about(&port.name))
}

/// Whether it has all its lanes, and is slower only since the slot is of an older generation.
fn is_reduced_in_vain(card: &PciCard, link: PcieLink) -> bool {
    let is_wide = link.width >= link.most().width;
    link.is_reduced() && is_wide && card.slot.is_some_and(|slot| slot.speed_mtps <= link.speed_mtps)
}

/// The active ports of the cards in the slot of `card`, and what they do together in Mb/s. The functions of a card for
/// virtual machines share its port.
fn ports_of_slot(facts: &Facts, card: &PciCard) -> (Vec<String>, u64) {
    let slot = |address: &str| address.rsplit_once('.').map(|(slot, _)| slot.to_owned());
    let is_here = |device: &Device| {
        let other = card_of(facts, device);
        other.is_some_and(|other| !card.is_virtual && !other.is_virtual && slot(&other.address) == slot(&card.address))
    };
    let here = facts.rdma.ports().filter(|(device, port)| port.is_active() && is_here(device));
    let rates = here.filter_map(|(_, port)| Some((port.name.clone(), rate_of(port.rate.as_deref()?)?.0)));
    let rates: Vec<(String, u64)> = rates.collect();
    let together = rates.iter().map(|(_, rate)| rate).sum();
    (rates.into_iter().map(|(name, _)| name).collect(), together)
}

/// Processes that may not run next to the card have each byte cross from one half of the machine to the other.
fn numa(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    let system = &facts.system;
    let node = device.numa_node?;
    if system.numa_nodes? < 2 {
        return None;
    }
    let processors = system.node_processors.get(&node);
    let distances = system.node_distances.get(&node);
    let distance = |other: u32| distances.and_then(|distances| distances.get(other as usize)).copied();
    let is_far = |allowed: &BTreeSet<u32>| processors.is_some_and(|near| !near.is_empty() && near.is_disjoint(allowed));
    let mut running = facts.processes.iter().filter(|process| !process.is_coordinator());
    let far =
        running.find_map(|process| Some((process, process.processors.as_ref().filter(|allowed| is_far(allowed))?)));
    if let Some((process, allowed)) = far {
        let from = system.node_processors.iter().find(|(_, near)| !near.is_disjoint(allowed));
        let distance = from.and_then(|(from, _)| distance(*from));
        let distance = distance.map(|distance| format!(" at distance {distance}")).unwrap_or_default();
        let what = format!(
            "{} may run on processors {} only, and the card is next to node {node}{distance}",
            process.name(),
            ranges(allowed)
        );
        return Some(row("numa", less(config, port), what).about(&device.name).remedy(format!(
            "let it run on node {node}, too: NUMAPolicy= and CPUAffinity= in its unit, numactl --cpunodebind={node}, the \
             container's set of processors; or use a card next to where it runs"
        )));
    }
    let others = system.node_distances.keys().filter(|other| **other != node);
    let others: Vec<String> =
        others.filter_map(|other| Some(format!("{} from node {other}", distance(*other)?))).collect();
    let others = if others.is_empty() { String::new() } else { format!("; distance {}", listed(others)) };
    Some(row("numa", Verdict::Ok, format!("next to node {node}{others}")).about(&device.name))
}

/// An IOMMU that translates makes registration slower, and each transfer wait for it when its cache is too small.
fn iommu(config: &Config, device: &Device, port: &Port, card: &PciCard) -> Option<Check> {
    let kind = card.iommu.as_deref()?;
    let check = match kind.starts_with("DMA") {
        false => row("iommu", Verdict::Ok, format!("it translates nothing for the card ({kind})")),
        true => {
            let verdict = if cards::wanted(config) { less(config, port) } else { Verdict::Info };
            row("iommu", verdict, format!("it translates each address for the card ({kind})"))
                .remedy("boot with iommu=pt (and intel_iommu=on or amd_iommu=on): translation is then for virtual machines only")
        }
    };
    Some(check.about(&device.name))
}

/// Of no concern to memory of the processors, and of much to that of graphics cards.
fn access_control(facts: &Facts, device: &Device, card: &PciCard) -> Option<Check> {
    if card.redirected_by.is_empty() {
        return None;
    }
    // The module by which cards reach memory of graphics cards.
    let is_direct = facts.module("nvidia_peermem").is_some();
    let verdict = if is_direct { Verdict::Warn } else { Verdict::Info };
    let what = format!(
        "{} above the card has ACS on: what it sends to another card goes through the processor",
        listed(&card.redirected_by)
    );
    Some(row("acs", verdict, what).about(&device.name).remedy(
        "it slows down transfers between network and graphics cards only: on a machine without virtual machines switch ACS off in \
         the firmware's settings, or with setpci -s BRIDGE ECAP_ACS+6.w=0",
    ))
}
