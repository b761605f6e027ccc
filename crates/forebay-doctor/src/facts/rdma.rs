//! RDMA devices: what `ibv_devinfo`, `ibstat`, `ibdev2netdev` and `rdma link` show, from sysfs.
//!
//! The interface of a port is found in four ways, for none covers all. The table of GIDs names it for RoCE, where it may
//! be a bond. An InfiniBand port's table names none; its interfaces are those of IPoIB on the same PCI device and port.
//! Soft-RoCE has no PCI device, and names its interface itself. Soft-iWARP does not, and before Linux 6.5 neither does its table of
//! GIDs; but over iWARP a GID is the interface's hardware address.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::facts::counters;
use crate::facts::first_look::FirstLook;
use crate::root::{Access, Root};

const DEVICES: &str = "sys/class/infiniband";
const INTERFACES: &str = "sys/class/net";
/// `ARPHRD_INFINIBAND`: the type of an IPoIB interface.
pub(crate) const IPOIB: u32 = 32;
/// `ARPHRD_ETHER`.
const ETHERNET: u32 = 1;

/// RDMA devices and how programs reach them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rdma {
    /// The devices.
    pub devices: Vec<Device>,
    /// `/dev/infiniband/rdma_cm`, by which connections are made.
    pub connection_manager: Access,
}

/// What kind of device it is, as far as UCX cares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// InfiniBand or RoCE in hardware.
    #[default]
    Verbs,
    /// Soft-RoCE, on an ordinary interface.
    Software,
    /// AWS EFA.
    Efa,
    /// iWARP, eRDMA's too, which UCX refuses.
    Iwarp,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// The kernel's driver.
    pub driver: Option<String>,
    /// Its model: `MT4123`.
    pub model: Option<String>,
    /// Its firmware's version.
    pub firmware: Option<String>,
    /// Its hardware's version.
    pub hardware: Option<String>,
    /// Its maker, by the number that makers of network cards have: `0x02c9`. Known where libibverbs is.
    pub vendor_id: Option<String>,
    /// Its maker's number of it: `4124`.
    pub part_id: Option<u32>,
    /// What it is to a network, as verbs name it: `InfiniBand` for RoCE too, `iWARP`, `unspecified`, …
    pub transport: Option<String>,
    /// Whether it binds memory windows of type 2, without which verbs are not used. Known where libibverbs is.
    #[serde(default)]
    pub has_windows: Option<bool>,
    /// Its board: `MT_0000000223`.
    pub board: Option<String>,
    /// Its node GUID.
    pub node_guid: Option<String>,
    /// The GUID of the card that it is on.
    pub system_guid: Option<String>,
    /// Its PCI address.
    pub pci: Option<String>,
    /// The NUMA node that it is next to.
    pub numa_node: Option<u32>,
    /// The traffic class that all its packets get whatever a program says (`tc/1/traffic_class`, of the vendor's drivers).
    #[serde(default)]
    pub traffic_class: Option<u8>,
    /// The device node by which programs use it.
    pub node: Option<String>,
    /// Whether this process may.
    pub access: Access,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its device and number, as UCX writes it: `mlx5_0:1`.
    pub name: String,
    /// Its number, from 1.
    pub number: u32,
    /// `ACTIVE`, `INIT`, `DOWN`, …
    pub state: Option<String>,
    /// `LinkUp`, `Polling`, `Disabled`, …
    pub physical_state: Option<String>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: Option<String>,
    /// Its rate as the kernel writes it: `200 Gb/sec (4X HDR)`.
    pub rate: Option<String>,
    /// Its local identifier in the InfiniBand subnet; 0 where none was given, and on RoCE.
    pub lid: Option<u32>,
    /// That of the subnet manager.
    pub subnet_manager_lid: Option<u32>,
    /// Number of low bits of the LID that are paths.
    pub lid_mask_count: Option<u32>,
    /// Its capability mask.
    pub capabilities: Option<String>,
    /// Its GUID: the second half of its first GID. Ports of InfiniBand have one.
    pub guid: Option<String>,
    /// The largest packet that it takes, in bytes. Known where libibverbs is.
    pub max_mtu: Option<u32>,
    /// The largest packet in use, in bytes. Known where libibverbs is.
    pub active_mtu: Option<u32>,
    /// Its partition keys, those that are not zero.
    pub partition_keys: Vec<String>,
    /// What went wrong on its link since its driver was loaded: counters that are not zero.
    pub faults: BTreeMap<String, u64>,
    /// Those of them that grew between two looks, and by how much; `None` where it was looked at once.
    #[serde(default)]
    pub new_faults: Option<BTreeMap<String, u64>>,
    /// Bytes that it has received, where it counts.
    pub received_bytes: Option<u64>,
    /// Bytes that it has sent.
    pub sent_bytes: Option<u64>,
    /// Those of its GIDs that are not zero.
    pub gids: Vec<Gid>,
    /// Its network interfaces.
    pub interfaces: Vec<String>,
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Its index.
    pub index: u32,
    /// The identifier.
    pub gid: String,
    /// `IB/RoCE v1` or `RoCE v2`.
    pub kind: Option<String>,
    /// The interface whose address it is made of.
    pub interface: Option<String>,
}

impl Rdma {
    /// Those of the machine at `root`.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let devices = root.names(DEVICES).into_iter().map(|name| Device::read(root, name)).collect();
        Self { devices, connection_manager: root.access("dev/infiniband/rdma_cm") }
    }

    /// What its ports have counted by now, to compare a second look with.
    #[must_use]
    pub fn first_look(&self) -> FirstLook {
        let faults = self.ports().map(|(_, port)| (port.name.clone(), port.faults.clone()));
        FirstLook { ms_before: 0, faults: faults.collect() }
    }

    /// The same with what has gone wrong since a first look.
    #[must_use]
    pub(crate) fn since(mut self, first: Option<&FirstLook>) -> Self {
        for port in self.devices.iter_mut().flat_map(|device| &mut device.ports) {
            port.new_faults = first.and_then(|first| first.growth(&port.name, &port.faults));
        }
        self
    }

    /// Every port, with its device.
    pub fn ports(&self) -> impl Iterator<Item = (&Device, &Port)> {
        self.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    }

    /// The port that the network interface `name` belongs to.
    #[must_use]
    pub fn port_of_interface(&self, name: &str) -> Option<&Port> {
        self.ports().map(|(_, port)| port).find(|port| port.interfaces.iter().any(|interface| interface == name))
    }

    /// The port called `name`, `DEVICE:PORT` or `DEVICE` for its port 1.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<(&Device, &Port)> {
        self.ports().find(|(_, port)| port.name == name || port.name.strip_suffix(":1") == Some(name))
    }
}

impl Device {
    fn read(root: &Root, name: String) -> Self {
        let folder = format!("{DEVICES}/{name}");
        let word = |attribute: &str| root.word(format!("{folder}/{attribute}"));
        let driver = root.link_name(format!("{folder}/device/driver"));
        // Soft-RoCE names the interface that it is on. What hardware that has is none of its own.
        let parent = word("parent");
        let node_type = word("node_type").unwrap_or_default();
        let kind = match driver.as_deref() {
            Some("efa") => DeviceKind::Efa,
            _ if node_type.starts_with("4:") => DeviceKind::Iwarp,
            _ if parent.is_some() => DeviceKind::Software,
            _ => DeviceKind::Verbs,
        };
        let driver = driver.filter(|_| kind != DeviceKind::Software);
        let node = node_of(root, &name);
        // `(null)` when the interface is gone.
        let parent = parent.filter(|parent| root.exists(format!("{INTERFACES}/{parent}")));
        let ports = root.names(format!("{folder}/ports")).into_iter();
        let ports = ports.filter_map(|number| number.parse().ok());
        Self {
            ports: ports.map(|number| Port::read(root, &name, number, parent.as_deref())).collect(),
            model: word("hca_type"),
            hardware: word("hw_rev"),
            vendor_id: None,
            has_windows: None,
            part_id: part_id(root, &folder),
            transport: transport(&node_type).map(str::to_owned),
            firmware: word("fw_ver").filter(|version| version.chars().any(|c| c.is_ascii_digit() && c != '0')),
            board: word("board_id"),
            // `Global tclass=106`.
            traffic_class: word("tc/1/traffic_class").and_then(|text| text.rsplit('=').next()?.trim().parse().ok()),
            node_guid: word("node_guid"),
            system_guid: word("sys_image_guid"),
            pci: root.link_name(format!("{folder}/device")).filter(|_| driver.is_some()),
            // -1 where the machine has one node only, or does not say.
            numa_node: root.number(format!("{folder}/device/numa_node")),
            access: node.as_ref().map_or(Access::Missing, |node| root.access(format!("dev/infiniband/{node}"))),
            node,
            driver,
            kind,
            name,
        }
    }
}

/// What `ibv_devinfo` shows as `vendor_part_id`: cards give their number on the bus.
fn part_id(root: &Root, folder: &str) -> Option<u32> {
    let number = root.word(format!("{folder}/device/device"))?;
    u32::from_str_radix(number.strip_prefix("0x")?, 16).ok()
}

/// How verbs name the network of a node of this type: `1: CA`.
fn transport(node_type: &str) -> Option<&'static str> {
    Some(match node_type.split(':').next()? {
        "1" | "2" | "3" => "InfiniBand",
        "4" => "iWARP",
        "5" | "6" => "usNIC",
        "7" => "unspecified",
        _ => return None,
    })
}

/// The device node of the device `name`: `uverbs0`.
fn node_of(root: &Root, name: &str) -> Option<String> {
    const NODES: &str = "sys/class/infiniband_verbs";
    root.names(NODES).into_iter().find(|node| root.text(format!("{NODES}/{node}/ibdev")).as_deref() == Some(name))
}

impl Port {
    fn read(root: &Root, device: &str, number: u32, parent: Option<&str>) -> Self {
        let folder = format!("{DEVICES}/{device}/ports/{number}");
        let word = |attribute: &str| root.word(format!("{folder}/{attribute}"));
        // `4: ACTIVE`.
        let state = |attribute: &str| {
            let text = word(attribute)?;
            Some(text.split_once(": ").map_or(text.as_str(), |(_, name)| name).to_owned())
        };
        let hex = |attribute: &str| u32::from_str_radix(word(attribute)?.trim_start_matches("0x"), 16).ok();
        let gids = Gid::read_all(root, &folder);
        let link_layer = word("link_layer");
        let is_infiniband = link_layer.as_deref() == Some("InfiniBand");
        let [received_bytes, sent_bytes] = counters::bytes(root, &folder);
        let mut interfaces: Vec<String> = Vec::new();
        for interface in gids.iter().filter_map(|gid| gid.interface.as_deref()).chain(parent) {
            if !interfaces.iter().any(|known| known == interface) {
                interfaces.push(interface.to_owned());
            }
        }
        if interfaces.is_empty() {
            let kind = if is_infiniband { IPOIB } else { ETHERNET };
            interfaces = on_port(root, device, number, kind);
        }
        if interfaces.is_empty() {
            interfaces = by_hardware_address(root, &gids);
        }
        Self {
            name: format!("{device}:{number}"),
            number,
            state: state("state"),
            physical_state: state("phys_state"),
            link_layer,
            rate: word("rate"),
            lid: hex("lid"),
            subnet_manager_lid: hex("sm_lid"),
            lid_mask_count: root.number(format!("{folder}/lid_mask_count")),
            capabilities: word("cap_mask"),
            guid: gids.first().filter(|gid| gid.index == 0 && is_infiniband).and_then(|gid| half(&gid.gid)),
            max_mtu: None,
            active_mtu: None,
            partition_keys: partition_keys(root, &folder),
            faults: counters::faults(root, &folder),
            new_faults: None,
            received_bytes,
            sent_bytes,
            gids,
            interfaces,
        }
    }

    /// The bytes that the port called `name` has received, and sent, by now.
    #[must_use]
    pub fn bytes_now(root: &Root, name: &str) -> [Option<u64>; 2] {
        let Some((device, number)) = name.split_once(':') else { return [None; 2] };
        counters::bytes(root, &format!("{DEVICES}/{device}/ports/{number}"))
    }

    /// Whether it is up.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state.as_deref() == Some("ACTIVE")
    }

    /// Whether it is one of InfiniBand.
    #[must_use]
    pub fn is_infiniband(&self) -> bool {
        self.link_layer.as_deref() == Some("InfiniBand")
    }

    /// Whether it is one of RoCE.
    #[must_use]
    pub fn is_ethernet(&self) -> bool {
        self.link_layer.as_deref() == Some("Ethernet")
    }
}

impl Gid {
    /// Whether it is made of an address and may be routed.
    #[must_use]
    pub fn is_roce_v2(&self) -> bool {
        self.kind.as_deref() == Some("RoCE v2")
    }

    fn read_all(root: &Root, port: &str) -> Vec<Self> {
        let gid = |index: String| {
            let gid = root.word(format!("{port}/gids/{index}"))?;
            // An entry that is not in use.
            gid.chars().any(|c| !matches!(c, '0' | ':')).then_some(())?;
            Some(Self {
                gid,
                kind: root.word(format!("{port}/gid_attrs/types/{index}")),
                interface: root.word(format!("{port}/gid_attrs/ndevs/{index}")),
                index: index.parse().ok()?,
            })
        };
        root.names(format!("{port}/gids")).into_iter().filter_map(gid).collect()
    }
}

/// The second half of a GID: the GUID of the port that it is of.
fn half(gid: &str) -> Option<String> {
    let parts: Vec<&str> = gid.split(':').collect();
    (parts.len() == 8).then(|| parts.get(4..).unwrap_or_default().join(":"))
}

/// The partition keys of the port in `folder` that are not zero.
fn partition_keys(root: &Root, folder: &str) -> Vec<String> {
    let keys = root.names(format!("{folder}/pkeys")).into_iter();
    let keys = keys.filter_map(|index| root.word(format!("{folder}/pkeys/{index}")));
    keys.filter(|key| key.chars().any(|c| !matches!(c, '0' | 'x'))).collect()
}

/// The interfaces whose hardware address a GID of iWARP is: its first six bytes, and nothing behind them.
fn by_hardware_address(root: &Root, gids: &[Gid]) -> Vec<String> {
    let address_of = |gid: &Gid| {
        let digits: String = gid.gid.chars().filter(|c| *c != ':').collect();
        let (address, rest) = digits.split_at_checked(12)?;
        rest.chars().all(|c| c == '0').then(|| address.to_owned())
    };
    let known: Vec<String> = gids.iter().filter_map(address_of).collect();
    let is_theirs = |name: &String| {
        let address = root.word(format!("{INTERFACES}/{name}/address")).unwrap_or_default();
        known.contains(&address.chars().filter(|c| *c != ':').collect::<String>())
    };
    // All of them are looked at only where there is something to find.
    if known.is_empty() { Vec::new() } else { root.names(INTERFACES).into_iter().filter(is_theirs).collect() }
}

/// The interfaces of type `kind` on port `number` of the PCI device of `device`; children (`ib0.8001`) last.
fn on_port(root: &Root, device: &str, number: u32, kind: u32) -> Vec<String> {
    let Some(hardware) = root.resolved(format!("{DEVICES}/{device}/device")) else { return Vec::new() };
    let is_on_port = |name: &String| {
        let number_of = |attribute: &str| {
            let text = root.text(format!("{INTERFACES}/{name}/{attribute}")).unwrap_or_default();
            let digits = text.strip_prefix("0x");
            digits.map_or_else(|| text.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
        };
        // Old kernels have the port of IPoIB in `dev_id` only.
        let port = number_of("dev_port").max(if kind == IPOIB { number_of("dev_id") } else { 0 });
        root.number(format!("{INTERFACES}/{name}/type")) == Some(kind)
            && number.checked_sub(1) == Some(port)
            && root.resolved(format!("{INTERFACES}/{name}/device")).as_ref() == Some(&hardware)
    };
    let mut found: Vec<String> = root.names(INTERFACES).into_iter().filter(is_on_port).collect();
    found.sort_by_key(|name| root.exists(format!("{INTERFACES}/{name}/parent")));
    found
}
