//! Whether an active port gives what it could: its rate and that of its slot, its packets, its partition, and what went wrong
//! on its link.

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::{Device, DeviceKind, Facts, Port};
use crate::text::listed;

/// The lanes of a port whose link has come up as it should; newer ones have two faster lanes, or four.
const FULL_WIDTHS: [&str; 4] = ["2X", "4X", "8X", "12X"];
/// Bit 15 of a partition key: full members talk to all, others to full members only.
const FULL_MEMBER: u32 = 0x8000;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    for (device, port) in facts.rdma.ports().filter(|(_, port)| port.is_active()) {
        checks.extend(rate(facts, config, device, port));
        checks.extend(slot(facts, config, device, port));
        checks.extend(packets(config, port));
        checks.extend(partition(config, port));
        checks.extend(faults(config, device, port));
    }
    checks.extend(link_layers(facts, config));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Rdma, name, verdict, what)
}

/// How bad it is when a port that works gives less than it could.
fn less(config: &Config, port: &Port) -> Verdict {
    cards::broken_port(config, port).min(Verdict::Warn)
}

/// The Mb/s and the lanes in `200 Gb/sec (4X HDR)`.
fn rate_of(rate: &str) -> Option<(u64, Option<&str>)> {
    let (number, rest) = rate.split_once(" Gb/sec")?;
    let gbps: f64 = number.trim().parse().ok()?;
    let lanes = rest.split(['(', ' ']).find(|word| word.ends_with('X'));
    (0.0..100_000.0).contains(&gbps).then_some(((gbps * 1000.0) as u64, lanes))
}

/// A link that came up on fewer lanes than its cable has.
fn rate(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    if device.kind == DeviceKind::Software {
        return None;
    }
    let text = port.rate.as_deref()?;
    let (own, lanes) = rate_of(text)?;
    let is_narrow = port.is_infiniband() && lanes.is_some_and(|lanes| !FULL_WIDTHS.contains(&lanes));
    // Cards of one model in one machine are meant to be alike.
    let same_model = |other: &Device| device.model.is_some() && other.model == device.model;
    let best = facts.rdma.ports().filter(|(other, port)| same_model(other) && port.is_active());
    let best = best.filter_map(|(_, port)| rate_of(port.rate.as_deref()?).map(|(rate, _)| rate)).max();
    let check = match best {
        _ if is_narrow => row("rate", less(config, port), format!("{text}: the link runs on fewer lanes than it has"))
            .remedy("reseat or replace cable and transceiver; mlxlink -d DEVICE, or ibdiagnet, shows the lanes"),
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

/// The slot that the card is in must carry what its port does.
fn slot(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    let card = facts.pci_cards.iter().find(|card| Some(&card.address) == device.pci.as_ref())?;
    let link = card.link?;
    let (rate, _) = rate_of(port.rate.as_deref()?)?;
    let what = format!("PCIe {} carries {} Gb/s", link.describe(), link.mbps() / 1000);
    let check = if link.mbps() < rate {
        let remedy = match link.is_reduced() {
            true => {
                "it came up with less than card and slot can do: reseat the card, look at the firmware's settings and at \
                     riser cards; lspci -vv shows LnkCap and LnkSta"
            }
            false => "put the card into a wider or faster slot",
        };
        row("slot", less(config, port), format!("{what}, less than the port's {} Gb/s", rate / 1000)).remedy(remedy)
    } else {
        row("slot", Verdict::Ok, what)
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

/// Nodes talk only within a partition: machines that were not made as members of one, as in some clouds, cannot.
fn partition(config: &Config, port: &Port) -> Option<Check> {
    if !port.is_infiniband() || port.partition_keys.is_empty() {
        return None;
    }
    let number = |key: &String| u32::from_str_radix(key.trim_start_matches("0x"), 16).ok();
    let is_full = port.partition_keys.iter().filter_map(number).any(|key| key & FULL_MEMBER != 0);
    let keys = listed(&port.partition_keys);
    let check = match is_full {
        true => row("partition", Verdict::Ok, format!("full member ({keys}); peers need the same one")),
        false => row(
            "partition",
            less(config, port),
            format!("limited member only ({keys}): two such nodes cannot talk to each other"),
        )
        .remedy(
            "have the subnet manager make it a full member (partitions.conf: ALL=full); in a cloud, create the machines \
             together, as one scale set or placement group",
        ),
    };
    Some(check.about(&port.name))
}

fn faults(config: &Config, device: &Device, port: &Port) -> Option<Check> {
    // Cables are unplugged, and machines on the other side boot: that alone is no fault.
    let is_harmless = port.faults.keys().all(|name| name == "link_downed");
    if port.faults.is_empty() || is_harmless {
        return None;
    }
    let counted = listed(port.faults.iter().map(|(name, count)| format!("{name} {count}")));
    // Soft-RoCE repeats what its interface dropped, and counts it.
    let verdict = if device.kind == DeviceKind::Software { Verdict::Info } else { less(config, port) };
    let remedy = if port.is_ethernet() {
        "if they grow while it is used (ethtool -S shows more), packets are lost: let the switch hold them back (PFC and \
         ECN for the traffic class of RoCE), check cable and transceiver"
    } else {
        "if they grow (perfquery shows them), check cable, transceiver and the switch's port; ibdiagnet looks at the whole \
         fabric"
    };
    Some(row("faults", verdict, format!("counted on the link: {counted}")).about(&port.name).remedy(remedy))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_kernel_writes_them() {
        assert_eq!(rate_of("200 Gb/sec (4X HDR)"), Some((200_000, Some("4X"))));
        assert_eq!(rate_of("2.5 Gb/sec (1X SDR)"), Some((2500, Some("1X"))));
        assert_eq!(rate_of("100 Gb/sec"), Some((100_000, None)));
        assert_eq!((rate_of("fast"), rate_of("-1 Gb/sec"), rate_of("1e30 Gb/sec (4X)")), (None, None, None));
    }
}
