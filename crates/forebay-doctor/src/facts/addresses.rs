//! Addresses of network interfaces, and which of them an interface is known by: what `ip address` shows.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use crate::netlink::{self, Question};

/// `RTM_GETADDR`, and the bytes of its fixed part, `struct ifaddrmsg`.
const GET_ADDRESSES: u16 = 22;
const FIXED: usize = 8;
/// `IFA_…` of `linux/if_addr.h`: the other end's address on a point-to-point link, our own, its label, all its flags.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const LABEL: u16 = 3;
const FLAGS: u16 = 8;
/// `IFA_F_…`; the first is `IFA_F_TEMPORARY` for IPv6.
const SECONDARY: u32 = 0x01;
const DUPLICATE: u32 = 0x08;
const DEPRECATED: u32 = 0x20;
const TENTATIVE: u32 = 0x40;

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// How many of its leading bits are its subnet's.
    pub prefix: u8,
    /// Whether others can count on it.
    #[serde(default)]
    pub standing: Standing,
}

/// Whether others can count on an address, the best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It is the interface's own.
    #[default]
    Own,
    /// One more in a subnet that the interface has an address of already: failover puts them there, and takes them away.
    Secondary,
    /// Made for privacy, and replaced by another before long.
    Temporary,
    /// About to go: nothing new is to use it. Failover marks its addresses of IPv6 so.
    Deprecated,
    /// It may be another machine's, too; nothing can be bound to it before that is known.
    Tentative,
}

impl Address {
    /// Every address of this machine, with its interface, in the kernel's order. One with a label of its own has that for an
    /// interface.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn of_this_machine() -> io::Result<Vec<(String, Self)>> {
        let answers = netlink::ask(None, &Question::new(GET_ADDRESSES, &[0; FIXED]).all())?;
        // Any socket will do to be told names by.
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
            .or_else(|_| socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None))?;
        let name = |index| index_to_name(&socket, index).ok();
        Ok(answers.iter().filter_map(|answer| Self::read(answer, name)).collect())
    }

    /// What the kernel's answer says; `name_of` knows interfaces by their numbers.
    fn read(answer: &[u8], name_of: impl Fn(u32) -> Option<String>) -> Option<(String, Self)> {
        let (fixed, attributes) = answer.split_first_chunk::<FIXED>()?;
        let [family, prefix, short_flags, _, i0, i1, i2, i3] = *fixed;
        let bytes = netlink::attribute(attributes, LOCAL).or_else(|| netlink::attribute(attributes, ADDRESS))?;
        let ip = match i32::from(family) {
            libc::AF_INET => Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(*bytes.first_chunk::<16>()?).into(),
            _ => return None,
        };
        let flags = netlink::number(attributes, FLAGS).unwrap_or(short_flags.into());
        let name = netlink::text(attributes, LABEL).or_else(|| name_of(u32::from_ne_bytes([i0, i1, i2, i3])))?;
        Some((name, Self { ip, prefix, standing: Standing::of(flags, ip.is_ipv6()) }))
    }

    /// The one that an interface with these is known by: its first as the kernel has them, IPv4 before IPv6, others than its own
    /// only where it has none. A link-local one is none: its scope would have to be told to every client.
    #[must_use]
    pub fn first<'a>(addresses: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let reachable = addresses.into_iter().filter(|address| address.is_reachable());
        // Of those that are equal the first is taken.
        reachable.min_by_key(|address| (address.standing, address.ip.is_ipv6())).copied()
    }

    /// Whether others can connect to it without being told the interface: all but link-local ones.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        match self.ip {
            IpAddr::V4(ip) => !ip.is_link_local(),
            IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 != 0xfe80,
        }
    }

    /// The subnet's first address and its length; `None` when the length is none.
    pub(crate) fn subnet(&self) -> Option<(u128, u8)> {
        let (bits, width) = match self.ip {
            IpAddr::V4(ip) => (u128::from(ip.to_bits()), 32),
            IpAddr::V6(ip) => (ip.to_bits(), 128),
        };
        let host_bits = u32::from(u8::checked_sub(width, self.prefix)?);
        Some((bits.checked_shr(host_bits).unwrap_or(0), self.prefix))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)?;
        match self.standing {
            Standing::Own => Ok(()),
            Standing::Secondary => f.write_str(" secondary"),
            Standing::Temporary => f.write_str(" temporary"),
            Standing::Deprecated => f.write_str(" deprecated"),
            Standing::Tentative => f.write_str(" tentative"),
        }
    }
}

impl Standing {
    fn of(flags: u32, is_ipv6: bool) -> Self {
        match flags {
            _ if flags & (TENTATIVE | DUPLICATE) != 0 => Self::Tentative,
            _ if flags & DEPRECATED != 0 => Self::Deprecated,
            _ if flags & SECONDARY != 0 && is_ipv6 => Self::Temporary,
            _ if flags & SECONDARY != 0 => Self::Secondary,
            _ => Self::Own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        let (text, standing) = text.split_once(' ').unwrap_or((text, ""));
        let (ip, prefix) = text.split_once('/').unwrap();
        let standing = match standing {
            "secondary" => Standing::Secondary,
            "temporary" => Standing::Temporary,
            "deprecated" => Standing::Deprecated,
            "tentative" => Standing::Tentative,
            _ => Standing::Own,
        };
        Address { ip: ip.parse().unwrap(), prefix: prefix.parse().unwrap(), standing }
    }

    #[test]
    fn an_interface_is_known_by_its_own_first_address_and_not_by_the_smallest() {
        let first = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|text| address(text)).collect();
            Address::first(&addresses).map(|address| address.ip.to_string())
        };
        assert_eq!(first(&["10.1.0.7/24", "10.1.0.2/24 secondary"]).as_deref(), Some("10.1.0.7"));
        // As keepalived adds it: of no subnet but its own.
        assert_eq!(first(&["10.1.0.7/24", "10.1.0.2/32"]).as_deref(), Some("10.1.0.7"));
        assert_eq!(first(&["fd00::1/64", "10.1.0.7/24"]).as_deref(), Some("10.1.0.7"));
        let ipv6 =
            ["fe80::1/64", "fd00::3/64 temporary", "fd00::2/128 deprecated", "fd00::4/64 tentative", "fd00::9/64"];
        assert_eq!(first(&ipv6).as_deref(), Some("fd00::9"));
        assert_eq!(first(&ipv6[..4]).as_deref(), Some("fd00::3"), "better than none");
        assert_eq!(first(&ipv6[..1]), None);
    }

    #[test]
    fn the_kernels_answer_is_read_and_nonsense_is_none() {
        let name_of = |index| (index == 7).then(|| "ib0".to_owned());
        let attribute = |kind: u16, value: &[u8]| {
            let length = u16::try_from(value.len() + 4).unwrap();
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        let answer = |family: i32, flags: u8, index: u32, attributes: &[Vec<u8>]| {
            let family = u8::try_from(family).unwrap();
            [&[family, 24, flags, 0][..], &index.to_ne_bytes(), &attributes.concat()].concat()
        };
        let read = |answer: &[u8]| Address::read(answer, name_of).map(|(name, address)| format!("{name} {address}"));
        let (other_end, own) = (attribute(ADDRESS, &[10, 1, 0, 9]), attribute(LOCAL, &[10, 1, 0, 1]));
        let plain = answer(libc::AF_INET, 0, 7, &[other_end, own.clone()]);
        assert_eq!(read(&plain).as_deref(), Some("ib0 10.1.0.1/24"));
        let labelled = [own.clone(), attribute(LABEL, b"ib0:vip\0")];
        assert_eq!(read(&answer(libc::AF_INET, 1, 7, &labelled)).as_deref(), Some("ib0:vip 10.1.0.1/24 secondary"));
        let ipv6 = |flags: u32| [attribute(ADDRESS, &[0xfd; 16]), attribute(FLAGS, &flags.to_ne_bytes())];
        for (flags, shown) in [(0x100, ""), (0x101, " temporary"), (0x20, " deprecated"), (0x48, " tentative")] {
            let shown = format!("ib0 fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd/24{shown}");
            assert_eq!(read(&answer(libc::AF_INET6, 0, 7, &ipv6(flags))), Some(shown));
        }
        assert_eq!(
            read(&answer(libc::AF_INET, 0, 8, std::slice::from_ref(&own))),
            None,
            "of an interface that has gone"
        );
        assert_eq!(read(&answer(libc::AF_INET6, 0, 7, &[own])), None, "too short");
        for end in 0..plain.len() {
            let _ = read(&plain[..end]);
        }
    }

    #[test]
    fn this_machine_has_loopback() {
        let loopback = ("lo".to_owned(), address("127.0.0.1/8"));
        assert!(Address::of_this_machine().unwrap().contains(&loopback));
    }

    #[test]
    fn addresses_of_one_subnet_are_seen_and_impossible_prefixes_are_not() {
        assert_eq!(address("10.0.1.7/24").subnet(), address("10.0.1.250/24").subnet());
        assert_ne!(address("10.0.1.7/24").subnet(), address("10.0.2.7/24").subnet());
        assert_eq!(address("fd00::1/64").subnet(), address("fd00::2/64").subnet());
        assert!(address("10.0.0.1/0").subnet().is_some() && address("::1/0").subnet().is_some());
        assert_eq!(address("10.0.0.1/33").subnet(), None);
    }

    #[test]
    fn link_local_addresses_are_of_no_use_to_others() {
        assert!(!address("fe80::1/64").is_reachable() && !address("169.254.0.1/16").is_reachable());
        assert!(address("10.0.0.1/8").is_reachable() && address("fd00::1/64").is_reachable());
    }
}
