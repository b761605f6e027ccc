//! Addresses that lead from a server's name back to this machine, or to what its cloud tells of it.
//!
//! The metadata service of a cloud gives its machine's credentials to whoever asks from there, and services that listen
//! on loopback take it for a wall. Addresses of private networks are not among them: object stores of one's own are
//! there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The metadata services that are not at link-local addresses: those of Alibaba Cloud, Oracle Cloud and Azure.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];
/// What AWS keeps for services of the instance, `fd00:ec2::/32`: 254 is metadata, 23 the credentials of pods.
const AWS_SERVICES: [u16; 2] = [0xfd00, 0x0ec2];
/// The metadata service of Google Cloud.
const GOOGLE_METADATA: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// What an address is that leads where no mount of the cluster may go; `None` if it may.
pub(super) fn never_for_records(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => of_v4(address),
        IpAddr::V6(address) => of_v6(address),
    }
}

fn of_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address {
        _ if address.is_loopback() => Some("a loopback address"),
        // The whole network is "this host".
        _ if address.octets()[0] == 0 => Some("no address of a server"),
        _ if address.is_link_local() => Some("a link-local address, where clouds tell of their machines"),
        _ if address.is_multicast() || address.is_broadcast() => Some("an address of many machines"),
        _ if METADATA_V4.contains(&address) => Some("the metadata service of a cloud"),
        _ => None,
    }
}

fn of_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    match address {
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_unspecified() => Some("no address of a server"),
        _ if address.is_unicast_link_local() => Some("a link-local address"),
        _ if address.is_multicast() => Some("an address of many machines"),
        _ if segments[..2] == AWS_SERVICES || address == GOOGLE_METADATA => Some("the metadata service of a cloud"),
        _ => within(segments).and_then(of_v4),
    }
}

/// The IPv4 address that an IPv6 address stands for.
fn within(segments: [u16; 8]) -> Option<Ipv4Addr> {
    let (high, low) = match segments {
        // Mapped (`::ffff:0:0/96`), compatible (`::/96`), and that of translators (`64:ff9b::/96`).
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (high, low),
        // 6to4.
        [0x2002, high, low, ..] => (high, low),
        _ => return None,
    };
    let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
    Some(Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_lead_back_here_are_never_for_records() {
        for address in [
            "127.0.0.1",
            "127.1.2.3",
            "0.0.0.0",
            "0.1.2.3",
            "169.254.169.254",
            "169.254.170.2",
            "224.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            "::1",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
        ] {
            assert!(never_for_records(address.parse().unwrap()).is_some(), "{address}");
        }
    }

    #[test]
    fn object_stores_of_ones_own_are_in_private_networks() {
        for address in ["10.0.0.1", "192.168.1.1", "100.64.0.1", "52.216.0.1", "fd00::1", "2600::1", "::ffff:10.0.0.1"]
        {
            assert_eq!(never_for_records(address.parse().unwrap()), None, "{address}");
        }
    }
}
