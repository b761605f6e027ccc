//! Network interfaces: what `ip link`, `ip addr` and `ethtool -i` show of them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::facts::rdma::IPOIB;
use crate::root::Root;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name: `ib0`.
    pub name: String,
    /// `up`, `down`, `unknown`, …
    pub state: Option<String>,
    /// Its MTU, in bytes.
    pub mtu: Option<u32>,
    /// Its speed in Mb/s, where there is one.
    pub speed_mbps: Option<u64>,
    /// The kernel's driver.
    pub driver: Option<String>,
    /// The driver's version, where it is not the kernel's.
    pub driver_version: Option<String>,
    /// Whether it is one of IPoIB.
    pub is_ipoib: bool,
    /// IPoIB's transport: `datagram` or `connected`.
    pub ipoib_mode: Option<String>,
    /// The bond or bridge that it is part of.
    pub master: Option<String>,
    /// Its addresses, those of IPv4 first.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// How many of its leading bits are its subnet's.
    pub prefix: u8,
}

impl Address {
    /// Every address of this machine, with its interface; none when the system does not tell.
    #[must_use]
    pub fn of_this_machine() -> Vec<(String, Self)> {
        let found = if_addrs::get_if_addrs().unwrap_or_default().into_iter();
        let address = |found: if_addrs::Interface| {
            let (ip, prefix) = match &found.addr {
                if_addrs::IfAddr::V4(address) => (IpAddr::V4(address.ip), address.prefixlen),
                if_addrs::IfAddr::V6(address) => (IpAddr::V6(address.ip), address.prefixlen),
            };
            (found.name, Self { ip, prefix })
        };
        found.map(address).collect()
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
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl Interface {
    pub(crate) fn read_all(root: &Root, addresses: &[(String, Address)]) -> Vec<Self> {
        const INTERFACES: &str = "sys/class/net";
        let interface = |name: String| {
            let folder = format!("{INTERFACES}/{name}");
            let mut own: Vec<_> =
                addresses.iter().filter(|(interface, _)| *interface == name).map(|(_, address)| *address).collect();
            own.sort_unstable();
            let driver = root.link_name(format!("{folder}/device/driver"));
            let version = driver.as_ref().and_then(|driver| root.word(format!("sys/module/{driver}/version")));
            Self {
                state: root.word(format!("{folder}/operstate")),
                mtu: root.number(format!("{folder}/mtu")),
                // -1 where there is none.
                speed_mbps: root.number(format!("{folder}/speed")),
                driver,
                driver_version: version,
                is_ipoib: root.number(format!("{folder}/type")) == Some(IPOIB),
                ipoib_mode: root.word(format!("{folder}/mode")),
                master: root.link_name(format!("{folder}/master")),
                addresses: own,
                name,
            }
        };
        // Besides links to interfaces there are files, such as `bonding_masters`.
        let names = root.names(INTERFACES).into_iter();
        names.filter(|name| root.exists(format!("{INTERFACES}/{name}/mtu"))).map(interface).collect()
    }

    /// Whether it is up; one that does not say, such as `lo`, is.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.state.as_deref(), Some("up" | "unknown"))
    }

    /// The address that others would connect to.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        self.addresses.iter().copied().find(Address::is_reachable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        let (ip, prefix) = text.split_once('/').unwrap();
        Address { ip: ip.parse().unwrap(), prefix: prefix.parse().unwrap() }
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
