//! Cards and interfaces: what `ibv_devinfo`, `ibstat`, `ibdev2netdev`, `rdma link` and `ethtool -i` show.

use super::lines::{Lines, joined, line};
use crate::facts::{Device, DeviceKind, Facts, Interface, PciCard, Port};
use crate::text::listed;

pub(super) fn rdma(facts: &Facts) -> Lines {
    let mut lines = Lines::new();
    for device in &facts.rdma.devices {
        lines.push(line(&device.name, of_device(device)));
        for port in &device.ports {
            lines.extend(of_port(facts, port));
        }
    }
    lines.extend(facts.pci_cards.iter().map(|card| line(&card.address, of_card(card))));
    let ipoib = |is_up: bool| {
        let found =
            facts.interfaces.iter().filter(move |interface| interface.is_ipoib && (!is_up || interface.is_up()));
        listed(found.map(|interface| &interface.name))
    };
    if facts.interfaces.iter().any(|interface| interface.is_ipoib) {
        lines.push(line("IPoIB", format!("{}; up: {}", ipoib(false), ipoib(true))));
    }
    let listening = facts.rdma_listeners.iter().map(|listener| {
        let owner = listener.owner.as_ref().map(|owner| format!(" {} ({})", owner.name, owner.pid)).unwrap_or_default();
        format!("{}:{} on {}{owner}", listener.address, listener.port, listener.device)
    });
    let listening: Vec<String> = listening.collect();
    if !listening.is_empty() {
        lines.push(line("rdma_cm", format!("listeners: {}", listed(listening))));
    }
    if lines.is_empty() {
        lines.push(line("none", ""));
    }
    lines
}

/// What `lspci` shows of it, and its slot.
fn of_card(card: &PciCard) -> String {
    joined([
        Some(format!("{} {} [{}]", card.class, card.vendor, card.id)),
        card.product.clone(),
        card.link.map(|link| format!("PCIe {}", link.describe())),
        card.link.filter(|link| link.is_reduced()).map(|link| format!("card {}", link.most().describe())),
        card.slot.map(|slot| format!("slot {}", slot.describe())),
        card.iommu.as_ref().map(|kind| format!("IOMMU {kind}")),
        Some(card.driver.clone().unwrap_or_else(|| "no driver".to_owned())),
        (!card.has_rdma_device).then(|| "no RDMA device".to_owned()),
    ])
}

fn of_device(device: &Device) -> String {
    let kind = match device.kind {
        DeviceKind::Verbs => None,
        DeviceKind::Software => Some("Soft-RoCE".to_owned()),
        DeviceKind::Efa => Some("EFA".to_owned()),
        DeviceKind::Iwarp => Some("iWARP".to_owned()),
    };
    joined([
        kind,
        device.model.clone(),
        device.driver.clone(),
        device.firmware.as_ref().map(|version| format!("firmware {version}")),
        device.board.clone(),
        device.hardware.as_ref().map(|version| format!("hardware {version}")),
        device.vendor_id.as_ref().map(|vendor| format!("vendor {vendor}")),
        device.part_id.map(|part| format!("part {part}")),
        device.transport.as_ref().map(|transport| format!("transport {transport}")),
        device.node_guid.as_ref().map(|guid| format!("GUID {guid}")),
        device.system_guid.as_ref().map(|guid| format!("system GUID {guid}")),
        Some(format!("ports {}", device.ports.len())),
        device.pci.as_ref().map(|address| format!("PCI {address}")),
        device.numa_node.map(|node| format!("NUMA node {node}")),
        device.has_windows.map(|has| if has { "memory windows" } else { "no memory windows of type 2" }.to_owned()),
        device.node.clone(),
    ])
}

fn of_port(facts: &Facts, port: &Port) -> Lines {
    let state = joined([
        port.state.clone().map(|state| match &port.physical_state {
            Some(physical) => format!("{state} ({physical})"),
            None => state,
        }),
        port.link_layer
            .as_ref()
            .map(|layer| if layer == "Ethernet" { "Ethernet (RoCE)".to_owned() } else { layer.clone() }),
        port.rate.clone(),
        port.is_infiniband().then(|| {
            let lid = |lid: Option<u32>| lid.map_or_else(|| "unknown".to_owned(), |lid| lid.to_string());
            let mask = lid(port.lid_mask_count);
            format!("LID {}, LMC {mask}, subnet manager {}", lid(port.lid), lid(port.subnet_manager_lid))
        }),
        port.guid.as_ref().map(|guid| format!("GUID {guid}")),
        port.capabilities.as_ref().map(|mask| format!("capabilities {mask}")),
        port.active_mtu.map(|active| match port.max_mtu {
            Some(most) => format!("packets {active} of {most}"),
            None => format!("packets {active}"),
        }),
        (port.is_infiniband() && !port.partition_keys.is_empty())
            .then(|| format!("partitions {}", port.partition_keys.join(" "))),
    ]);
    let mut lines = vec![line(&format!("  port {}", port.number), state)];
    for name in &port.interfaces {
        let interface = facts.interface(name);
        let mut text = interface.map_or_else(|| "in another network namespace".to_owned(), of_interface);
        if port.is_ethernet()
            && let Some(mtu) = interface.and_then(|interface| interface.mtu)
        {
            text.push_str(&format!(", RoCE MTU {}", crate::checks::roce_mtu(mtu)));
        }
        lines.push(line(&format!("    {name}"), text));
    }
    if !port.faults.is_empty() {
        let faults = port.faults.iter().map(|(name, count)| format!("{name} {count}"));
        lines.push(line("    faults", listed(faults)));
    }
    for gid in &port.gids {
        let kind = gid.kind.as_deref().filter(|_| !port.is_infiniband());
        let text = joined([Some(gid.gid.clone()), kind.map(str::to_owned), gid.interface.clone()]);
        lines.push(line(&format!("    GID {}", gid.index), text));
    }
    lines
}

/// Besides what its directories in sysfs have, what its driver says.
fn of_driver(interface: &Interface) -> Option<String> {
    let said = interface.ethtool.as_ref();
    let driver = said.and_then(|said| said.driver.as_ref()).or(interface.driver.as_ref())?;
    let version = said.and_then(|said| said.version.as_ref()).or(interface.driver_version.as_ref());
    let supports = said.map(|said| said.supports()).unwrap_or_default();
    Some(joined([
        Some(match version {
            Some(version) => format!("{driver} {version}"),
            None => driver.clone(),
        }),
        said.and_then(|said| said.firmware.as_ref()).map(|firmware| format!("firmware {firmware}")),
        said.and_then(|said| said.expansion_rom.as_ref()).map(|rom| format!("expansion ROM {rom}")),
        interface.bus().map(|bus| format!("bus {bus}")),
        (!supports.is_empty()).then(|| format!("supports {}", supports.join(" + "))),
    ]))
}

fn of_interface(interface: &Interface) -> String {
    joined([
        interface.state.clone(),
        interface.mtu.map(|mtu| format!("MTU {mtu}")),
        interface.ipoib_mode.as_ref().map(|mode| format!("IPoIB {mode}")),
        interface.partition_key.as_ref().map(|key| format!("partition {key}")),
        interface.speed_mbps.map(|speed| match speed % 1000 {
            0 if speed > 0 => format!("{} Gb/s", speed / 1000),
            _ => format!("{speed} Mb/s"),
        }),
        of_driver(interface),
        interface.master.as_ref().map(|master| format!("part of {master}")),
        (!interface.addresses.is_empty())
            .then(|| interface.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
    ])
}

/// Those with hardware or an address: a machine with containers has hundreds without.
pub(super) fn network(facts: &Facts) -> Lines {
    let matters =
        |interface: &&Interface| interface.driver.is_some() || interface.is_ipoib || !interface.addresses.is_empty();
    let (shown, others): (Vec<_>, Vec<_>) = facts.interfaces.iter().partition(matters);
    let mut lines: Lines = shown.iter().map(|interface| (interface.name.clone(), of_interface(interface))).collect();
    if !others.is_empty() {
        lines.push(line("others", format!("{} without hardware and address", others.len())));
    }
    lines
}
