//! Kernel modules, and cards on the PCI bus: what `lsmod` and `lspci` show of RDMA.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::facts::pci_way;
use crate::facts::pcie::PcieLink;
use crate::root::Root;

/// Modules that matter here, in the order in which they build on each other.
const MODULES: [&str; 25] = [
    "mlx_compat",
    "ib_core",
    "ib_cm",
    "iw_cm",
    "rdma_cm",
    "ib_uverbs",
    "ib_umad",
    "rdma_ucm",
    "ib_ipoib",
    "mlx4_core",
    "mlx4_ib",
    "mlxfw",
    "mlxdevm",
    "mlx5_core",
    "mlx5_ib",
    "bnxt_re",
    "irdma",
    "efa",
    "erdma",
    "hns_roce",
    "ionic_rdma",
    "rdma_rxe",
    "siw",
    "nvidia_peermem",
    "fuse",
];

/// A module that is loaded or built in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// Its version; those that come with the kernel mostly have none, those of a vendor's driver package have.
    pub version: Option<String>,
    /// Its size in bytes; `None` when it is built in.
    pub size_bytes: Option<u64>,
    /// How often it is in use.
    pub references: Option<u32>,
    /// The modules that use it.
    pub users: Vec<String>,
}

impl Module {
    pub(crate) fn read_all(root: &Root) -> Vec<Self> {
        let table = root.text("proc/modules").unwrap_or_default();
        let module = |name: &&str| {
            let line = table.lines().find(|line| line.split(' ').next() == Some(name));
            // One that is built in has a folder when it has parameters or a version.
            (line.is_some() || root.exists(format!("sys/module/{name}"))).then_some(())?;
            // `ib_cm 131072 2 rdma_cm,ib_ipoib, Live 0x0`, and `-` where nothing uses it.
            let mut words = line.unwrap_or_default().split(' ').skip(1);
            Some(Self {
                name: (*name).to_owned(),
                version: root.word(format!("sys/module/{name}/version")),
                size_bytes: words.next().and_then(|size| size.parse().ok()),
                references: words.next().and_then(|count| count.parse().ok()),
                users: words.next().map(users).unwrap_or_default(),
            })
        };
        MODULES.iter().filter_map(module).collect()
    }
}

fn users(names: &str) -> Vec<String> {
    names.split(',').filter(|name| !matches!(*name, "" | "-" | "[permanent]")).map(str::to_owned).collect()
}

/// A card that can do RDMA, as the PCI bus shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciCard {
    /// Its address: `0000:3b:00.0`.
    pub address: String,
    /// Its maker.
    pub vendor: String,
    /// Maker and model, as the bus numbers them: `15b3:101c`.
    pub id: String,
    /// What it is to the bus: `InfiniBand controller`, `Ethernet controller`, …
    pub class: String,
    /// What it says that it is: `ConnectX-6 VPI adapter card, HDR IB (200Gb/s)`. Only root is told.
    #[serde(default)]
    pub product: Option<String>,
    /// Its connection to the machine.
    pub link: Option<PcieLink>,
    /// The most that the slot can do: the port of the bridge above it.
    #[serde(default)]
    pub slot: Option<PcieLink>,
    /// Whether it is a part of a card, made for a virtual machine.
    #[serde(default)]
    pub is_virtual: bool,
    /// How the IOMMU treats it: `identity`, or `DMA` and `DMA-FQ` where it translates each address.
    #[serde(default)]
    pub iommu: Option<String>,
    /// The bridges above it that send what it has for another card through the processor (ACS). Only root is told.
    #[serde(default)]
    pub redirected_by: Vec<String>,
    /// The kernel's driver for it.
    pub driver: Option<String>,
    /// The module that makes an RDMA device of it.
    pub module: Option<String>,
    /// Whether it has an RDMA device.
    pub has_rdma_device: bool,
}

impl PciCard {
    pub(crate) fn read_all(root: &Root) -> Vec<Self> {
        const DEVICES: &str = "sys/bus/pci/devices";
        let card = |address: String| {
            let folder = format!("{DEVICES}/{address}");
            let hex = |name: &str| {
                let text = root.text(format!("{folder}/{name}"))?;
                u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
            };
            let (maker_id, device, class) = (hex("vendor")?, hex("device")?, hex("class")?);
            let has_rdma_device = !root.names(format!("{folder}/infiniband")).is_empty();
            // Of those that mostly cannot do RDMA, one that does is known by that.
            let other = || has_rdma_device.then(|| (other_maker(maker_id), None));
            let (vendor, module) = maker(maker_id, device, class).or_else(other)?;
            let bridges = pci_way::bridges(root, &folder);
            let redirects = |(name, folder): &(String, String)| pci_way::redirects(root, folder).then(|| name.clone());
            Some(Self {
                vendor: vendor.to_owned(),
                id: format!("{maker_id:04x}:{device:04x}"),
                class: class_name(class).to_owned(),
                product: pci_way::product(root, &folder),
                link: PcieLink::read(root, &folder),
                slot: bridges.first().and_then(|(_, bridge)| pci_way::slot(root, bridge)),
                is_virtual: root.exists(format!("{folder}/physfn")),
                iommu: pci_way::iommu(root, &folder),
                redirected_by: bridges.iter().filter_map(redirects).collect(),
                module: module.map(str::to_owned),
                driver: root.link_name(format!("{folder}/driver")),
                has_rdma_device,
                address,
            })
        };
        root.names(DEVICES).into_iter().filter_map(card).collect()
    }

    /// How many cards of each maker have no RDMA device, with the module that is missing.
    pub(crate) fn without_device(cards: &[Self]) -> BTreeMap<&str, Vec<&Self>> {
        let mut by_vendor = BTreeMap::<_, Vec<_>>::new();
        for card in cards.iter().filter(|card| !card.has_rdma_device) {
            by_vendor.entry(card.vendor.as_str()).or_default().push(card);
        }
        by_vendor
    }
}

/// Makers whose cards are known only where they have an RDMA device.
fn other_maker(vendor: u32) -> &'static str {
    match vendor {
        0x14e4 => "Broadcom",
        0x8086 => "Intel",
        0x1dd8 => "AMD Pensando",
        _ => "RDMA",
    }
}

/// The classes of network cards.
fn class_name(class: u32) -> &'static str {
    match class >> 8 {
        0x0200 => "Ethernet controller",
        0x0207 => "InfiniBand controller",
        _ => "network controller",
    }
}

/// The maker of a card that can do RDMA, and the module for it; `None` for all others. Of makers whose cards mostly
/// cannot (Broadcom, Intel) only those of class InfiniBand are known.
fn maker(vendor: u32, device: u32, class: u32) -> Option<(&'static str, Option<&'static str>)> {
    const NETWORK: u32 = 0x02;
    const INFINIBAND: u32 = 0x0207;
    /// ConnectX-3 and older; later ones are from 0x1011 on.
    const CONNECTX_3: std::ops::RangeInclusive<u32> = 0x1002..=0x1010;
    match vendor {
        0x15b3 if class >> 16 == NETWORK => {
            Some(("Mellanox/NVIDIA", Some(if CONNECTX_3.contains(&device) { "mlx4_ib" } else { "mlx5_ib" })))
        }
        0x1d0f if device & 0xfff0 == 0xefa0 => Some(("Amazon EFA", Some("efa"))),
        _ if class >> 8 == INFINIBAND => Some(("InfiniBand", None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_that_can_do_rdma_are_told_from_others() {
        assert_eq!(maker(0x15b3, 0x101b, 0x020700), Some(("Mellanox/NVIDIA", Some("mlx5_ib"))));
        assert_eq!(maker(0x15b3, 0x1003, 0x028000), Some(("Mellanox/NVIDIA", Some("mlx4_ib"))));
        assert_eq!(maker(0x1d0f, 0xefa2, 0x020000), Some(("Amazon EFA", Some("efa"))));
        assert_eq!(maker(0x1234, 0x0001, 0x020700), Some(("InfiniBand", None)));
        // A bridge of Mellanox, Amazon's ordinary card, virtio.
        assert_eq!(maker(0x15b3, 0x1976, 0x060400), None);
        assert_eq!(maker(0x1d0f, 0xec20, 0x020000), None);
        assert_eq!(maker(0x1af4, 0x1000, 0x020000), None);
    }
}
