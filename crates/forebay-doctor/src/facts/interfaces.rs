//! Network interfaces: what `ip link`, `ip addr` and `ethtool -i` show of them.

use serde::{Deserialize, Serialize};

use crate::facts::addresses::Address;
use crate::facts::ethtool::DriverInfo;
use crate::facts::flow_control::FlowControl;
use crate::facts::rdma::IPOIB;
use crate::root::Root;

const INTERFACES: &str = "sys/class/net";

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
    /// What the driver says of itself, as `ethtool -i` shows it.
    pub ethtool: Option<DriverInfo>,
    /// Bytes that it has received.
    pub received_bytes: Option<u64>,
    /// Bytes that it has sent.
    pub sent_bytes: Option<u64>,
    /// Whether it is one of IPoIB.
    pub is_ipoib: bool,
    /// IPoIB's transport: `datagram` or `connected`.
    pub ipoib_mode: Option<String>,
    /// The partition that it is in: `0xffff`.
    #[serde(default)]
    pub partition_key: Option<String>,
    /// How it keeps packets from being lost, where its driver tells.
    #[serde(default)]
    pub flow_control: Option<FlowControl>,
    /// The bond or bridge that it is part of.
    pub master: Option<String>,
    /// Its addresses, those of IPv4 first, and else in the kernel's order.
    pub addresses: Vec<Address>,
}

impl Interface {
    pub(crate) fn read_all(
        root: &Root,
        addresses: &[(String, Address)],
        drivers: &[(String, DriverInfo)],
        flow_controls: &[(String, FlowControl)],
    ) -> Vec<Self> {
        let interface = |name: String| {
            let folder = format!("{INTERFACES}/{name}");
            let mut own: Vec<_> =
                addresses.iter().filter(|(interface, _)| *interface == name).map(|(_, address)| *address).collect();
            own.sort_by_key(|address| address.ip.is_ipv6());
            let driver = root.link_name(format!("{folder}/device/driver"));
            let version = driver.as_ref().and_then(|driver| root.word(format!("sys/module/{driver}/version")));
            let [received_bytes, sent_bytes] = Self::bytes_now(root, &name);
            Self {
                ethtool: drivers.iter().find(|(interface, _)| *interface == name).map(|(_, info)| info.clone()),
                flow_control: flow_controls
                    .iter()
                    .find(|(interface, _)| *interface == name)
                    .map(|(_, found)| found.clone()),
                partition_key: root.word(format!("{folder}/pkey")),
                received_bytes,
                sent_bytes,
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

    /// The bytes that the interface called `name` has received, and sent, by now.
    #[must_use]
    pub fn bytes_now(root: &Root, name: &str) -> [Option<u64>; 2] {
        ["rx_bytes", "tx_bytes"].map(|counter| root.number(format!("{INTERFACES}/{name}/statistics/{counter}")))
    }

    /// Its card's address on the PCI bus.
    #[must_use]
    pub fn bus(&self) -> Option<&str> {
        self.ethtool.as_ref()?.bus.as_deref()
    }

    /// Whether it is up; one that does not say, such as `lo`, is.
    #[must_use]
    pub fn is_up(&self) -> bool {
        matches!(self.state.as_deref(), Some("up" | "unknown"))
    }

    /// The address that others would connect to, and that its name stands for.
    #[must_use]
    pub fn address(&self) -> Option<Address> {
        Address::first(&self.addresses)
    }
}
