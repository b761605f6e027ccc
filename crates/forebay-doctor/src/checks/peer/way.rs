//! The way to a peer: which interface it leaves by, and how large the packets are that it takes.

use std::net::IpAddr;

use forebay_config::Config;

use super::row::row;
use crate::checks::{Check, Verdict};
use crate::facts::{Facts, Interface, PathMtu, PeerProbe, Route};
use crate::text::rate;

/// Both ends of a connection take segments of half a window at most, so that larger MTUs cannot be told from it.
const MAX_AGREED: u32 = 16_384;
/// No packet of IP is longer; `lo` has one byte more.
const MAX_PACKET: u32 = 65_535;
/// Options of TCP that not every connection has.
const OPTIONS: u32 = 100;

pub(super) fn check(facts: &Facts, config: &Config, peer: &PeerProbe) -> Vec<Check> {
    let Some(route) = &peer.route else {
        let addresses = peer.addresses.first().map_or_else(String::new, ToString::to_string);
        return vec![
            row("route", Verdict::Fail, format!("there is no way to {addresses}")).about(&peer.name).remedy(format!(
                "ip route get {addresses}; add a route, or give the interface an address in its subnet"
            )),
        ];
    };
    let mut checks = vec![of_route(facts, config, route).about(&peer.name)];
    checks.extend(peer.path_mtu.map(|mtu| path_mtu(facts, peer, route, mtu).about(&peer.name)));
    checks
}

fn of_route(facts: &Facts, config: &Config, route: &Route) -> Check {
    let name = route.interface.as_deref().unwrap_or("an unknown interface");
    let from = route.source.map(|source| format!(" from {source}")).unwrap_or_default();
    let gateway = route.gateway.map(|gateway| format!(", through the router {gateway}")).unwrap_or_default();
    let interface = facts.interface(name);
    let speed = interface.and_then(|interface| hardware_speed(facts, interface));
    let with_speed = speed.map(|speed| format!(" ({})", rate(speed))).unwrap_or_default();
    let what = format!("{} over {name}{with_speed}{from}{gateway}", route.to);
    if route.to.is_loopback()
        || facts.interfaces.iter().any(|own| own.addresses.iter().any(|known| known.ip == route.to))
    {
        return row("route", Verdict::Info, format!("{what}: that is this machine"));
    }
    let bound = config.client_network_data_bind_device.as_ref().or(config.network_group_network.as_ref());
    if let Some(bound) = bound.filter(|bound| bound.as_str() != name) {
        return row("route", Verdict::Warn, format!("{what}, and {bound} is bound")).remedy(format!(
            "name the peer by its address in the subnet of {bound}; a worker tells its own by worker.hostname"
        ));
    }
    if let Some(faster) = faster(facts, name, speed) {
        let (other, speed) = (&faster.name, rate(faster.speed_mbps.unwrap_or_default()));
        return row("route", Verdict::Warn, format!("{what}, and {other} has {speed}")).remedy(format!(
            "name the peer by its address in the subnet of {other}; --rdma-network {other} uses its RDMA device"
        ));
    }
    if route.gateway.is_some() && is_public(route.to) {
        return row("route", Verdict::Warn, format!("{what}: a public address")).remedy(
            "name the peer by its private address: the way through the public one is slower, and often limited",
        );
    }
    row("route", Verdict::Ok, what)
}

/// The speed of an interface that has one: virtual ones make theirs up.
pub(super) fn hardware_speed(facts: &Facts, interface: &Interface) -> Option<u64> {
    let is_bond =
        facts.interfaces.iter().any(|part| part.master.as_deref() == Some(&interface.name) && part.driver.is_some());
    interface.speed_mbps.filter(|speed| *speed > 0 && (interface.driver.is_some() || is_bond))
}

/// An interface that RDMA or IPoIB could use, at least twice as fast as the one called `name`.
fn faster<'a>(facts: &'a Facts, name: &str, speed: Option<u64>) -> Option<&'a Interface> {
    let is_fast = |other: &&Interface| {
        let is_card = other.is_ipoib || facts.rdma.port_of_interface(&other.name).is_some();
        let other_speed = hardware_speed(facts, other);
        is_card
            && other.name != name
            && other.is_up()
            && other.address().is_some()
            && other_speed.zip(speed).is_some_and(|(other, own)| other >= own.saturating_mul(2))
    };
    facts.interfaces.iter().filter(is_fast).max_by_key(|other| other.speed_mbps)
}

/// Whether the world knows it. Of IPv6 most addresses are, so that says nothing.
fn is_public(ip: IpAddr) -> bool {
    let IpAddr::V4(ip) = ip else { return false };
    let [a, b, ..] = ip.octets();
    // Those of carriers, and of benchmarks.
    let is_shared = a == 100 && (64..128).contains(&b) || a == 198 && (18..20).contains(&b);
    !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || ip.is_documentation() || is_shared)
}

fn path_mtu(facts: &Facts, peer: &PeerProbe, route: &Route, mtu: PathMtu) -> Check {
    let interface = route.interface.as_deref().and_then(|name| facts.interface(name));
    let name = route.interface.as_deref().unwrap_or("the interface");
    let own = interface.and_then(|interface| interface.mtu).map(|mtu| mtu.min(MAX_PACKET));
    let ping = |size: u32| format!("ping -M do -s {} {}", size.saturating_sub(28), route.to);
    if let (Some(own), Some(believed)) = (own, mtu.believed)
        && believed < own
    {
        return row("path-mtu", Verdict::Warn, format!("{name} sends packets of {own} bytes, and the way takes {believed}"))
            .remedy(format!(
                "raise the MTU of the switches, routers and the peer to {own}, or lower that of {name}: ip link set {name} mtu \
                 {believed}; {} tells when it is right",
                ping(own)
            ));
    }
    let largest = mtu.believed.or(own).unwrap_or(1500);
    if let Some(agreed) = mtu.agreed.filter(|agreed| agreed + OPTIONS < largest.min(MAX_AGREED)) {
        return row(
            "path-mtu",
            Verdict::Warn,
            format!("{name} sends packets of {largest} bytes, and the peer takes {agreed}"),
        )
        .remedy(format!("raise the MTU of the peer's interface to {largest}: ip link set INTERFACE mtu {largest}"));
    }
    let is_stuck = peer.measured.iter().any(|measured| measured.transport == "tcp" && measured.error.is_some());
    match mtu.delivered {
        Some(delivered) => row("path-mtu", Verdict::Ok, format!("packets of {delivered} bytes arrive whole")),
        None if is_stuck => row(
            "path-mtu",
            Verdict::Warn,
            format!("the peer does not say whether packets of {largest} bytes arrive, and moving data failed"),
        )
        .remedy(format!(
            "{}: if smaller sizes pass, a switch drops large packets without a word; lower the MTU",
            ping(largest)
        )),
        None => row(
            "path-mtu",
            Verdict::Info,
            format!(
                "the kernel knows no limit below {largest} bytes; the peer does not say whether such packets arrive"
            ),
        )
        .remedy(ping(largest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_addresses_are_those_that_routers_of_the_world_know() {
        let public = |text: &str| is_public(text.parse().unwrap());
        assert!(public("8.8.8.8") && public("100.128.0.1") && public("198.20.0.1"));
        for other in ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.0.1", "198.18.0.1", "2001::1"] {
            assert!(!public(other), "{other}");
        }
    }
}
