//! RDMA devices: are there any, are they up, may this process use them, and have they the modules and addresses they need.

use forebay_config::Config;

use crate::checks::device_nodes::Remedies;
use crate::checks::{Check, Section, Verdict, cards, provider};
use crate::facts::{Device, DeviceKind, Facts, PciCard, Port};
use crate::root::Access;
use crate::text::listed;

/// The least MTU of an Ethernet interface that lets RoCE use packets of 4096 bytes, the largest: 96 bytes go to headers.
const ROCE_MTU: u32 = 4096 + ROCE_HEADERS;
/// What the kernel takes off for headers (`iboe_get_mtu`).
const ROCE_HEADERS: u32 = 96;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = vec![devices(facts, config)];
    checks.extend(idle_cards(facts, config));
    checks.extend(modules(facts, config));
    checks.extend(vendor_drivers(facts, config));
    checks.extend(access(facts, config));
    for (device, port) in facts.rdma.ports() {
        checks.push(state(facts, config, port));
        checks.extend(kind(facts, config, device, port));
        if device.kind == DeviceKind::Efa || !port.is_active() {
            continue;
        }
        checks.extend(address(facts, config, port));
        checks.extend(roce(facts, config, device, port));
    }
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Rdma, name, verdict, what)
}

fn devices(facts: &Facts, config: &Config) -> Check {
    let names = facts.rdma.devices.iter().map(|device| device.name.as_str());
    match (facts.rdma.devices.len(), cards::wanted(config)) {
        (0, true) => row("devices", cards::without_rdma(config), "no RDMA device, and the configuration asks for RDMA").remedy(
            "lspci | grep -iE 'mellanox|infiniband' shows whether a card is there, lsmod | grep ib_core whether the modules \
             are loaded; install the card's driver (rdma-core, or the vendor's OFED or DOCA), or set \
             network.rdma.data.enabled = false",
        ),
        (0, false) => row("devices", Verdict::Info, "no RDMA device: TCP is used"),
        (count, _) => row("devices", Verdict::Ok, format!("{count}: {}", listed(names))),
    }
}

/// Cards on the bus that no driver has made an RDMA device of.
fn idle_cards(facts: &Facts, config: &Config) -> Vec<Check> {
    let without = PciCard::without_device(&facts.pci_cards);
    let check = |(vendor, found): (&str, Vec<&PciCard>)| {
        let addresses = listed(found.iter().map(|card| card.address.as_str()));
        let module = found.iter().find_map(|card| card.module.as_deref());
        let driver = found.iter().find_map(|card| card.driver.as_deref()).unwrap_or("none");
        let verdict = if facts.rdma.devices.is_empty() { cards::broken(config) } else { Verdict::Info };
        let what = format!("a card without an RDMA device at {addresses} (driver: {driver})");
        let remedy = match (module.is_some_and(|module| facts.module(module).is_some()), module) {
            (false, Some(module)) => {
                format!("modprobe {module}; if there is no such module, install the card's driver")
            }
            _ => "dmesg | grep -iE 'mlx|infiniband|rdma' tells why; it may be given to a virtual machine".to_owned(),
        };
        row("card", verdict, what).about(vendor).remedy(remedy)
    };
    without.into_iter().map(check).collect()
}

fn modules(facts: &Facts, config: &Config) -> Vec<Check> {
    if facts.rdma.devices.is_empty() {
        // Where RDMA is not asked for, its modules are not missed.
        let is_missed = cards::wanted(config) && facts.module("ib_core").is_none();
        let check = is_missed.then(|| {
            row("module", cards::without_rdma(config), "not loaded: every RDMA driver builds on it")
                .about("ib_core")
                .remedy(
                    "modprobe ib_core; if there is no such module, install the kernel's extra modules \
                     (linux-modules-extra), or the vendor's drivers",
                )
        });
        return check.into_iter().collect();
    }
    let has_node = facts.rdma.devices.iter().any(|device| device.access != Access::Missing);
    let has_connections = facts.rdma.connection_manager != Access::Missing;
    let has_infiniband = facts.rdma.ports().any(|(_, port)| port.is_infiniband());
    // A module that is built in may leave no other trace than what it makes.
    let needed = [
        ("ib_uverbs", "programs use RDMA devices through it", has_node, true),
        ("rdma_ucm", "connections are made through it", has_connections, true),
        ("ib_ipoib", "InfiniBand ports have IP addresses through it", false, has_infiniband),
    ];
    let missing = needed
        .into_iter()
        .filter(|(module, _, has_trace, is_needed)| *is_needed && !has_trace && facts.module(module).is_none());
    let missing: Vec<Check> = missing
        .map(|(module, why, ..)| {
            row("module", cards::broken(config), format!("not loaded: {why}"))
                .about(module)
                .remedy(format!("modprobe {module}; echo {module} > /etc/modules-load.d/{module}.conf keeps it"))
        })
        .collect();
    if missing.is_empty() {
        return vec![row("module", Verdict::Ok, "those that are needed are loaded")];
    }
    missing
}

/// The vendor's drivers, by the version of their modules: those of the kernel have none.
fn vendor_drivers(facts: &Facts, config: &Config) -> Option<Check> {
    /// The oldest of MLNX OFED that is recommended; older ones do, too, with an rdma-core of their own.
    const OFED: (u32, u32) = (25, 10);
    let version = facts.module("mlx5_core")?.version.as_deref()?;
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().ok());
    let release = (numbers.next()??, numbers.next()??);
    // The kernel's own has had 5.0-0 for years.
    (release.0 >= 20).then(|| {
        let check = |verdict, what: String| row("vendor-drivers", verdict, what);
        if release >= OFED {
            return check(Verdict::Ok, format!("OFED or DOCA {version}"));
        }
        // Either will do.
        let has_new_libraries = facts.ucx.rdma_core.is_some_and(|release| release >= super::ucx::RDMA_CORE);
        let verdict = if cards::wanted(config) && !has_new_libraries { Verdict::Warn } else { Verdict::Info };
        check(verdict, format!("OFED {version}; {}.{} or newer is recommended", OFED.0, OFED.1))
            .remedy("upgrade to DOCA-OFED, or use the kernel's drivers with rdma-core 35 or newer")
    })
}

/// Device nodes: in a container they are often missing, or may not be opened.
fn access(facts: &Facts, config: &Config) -> Vec<Check> {
    const CONTAINER: &str = "in a container: docker run --device=/dev/infiniband --cap-add=IPC_LOCK, or an RDMA device \
                             plugin in Kubernetes; in a unit DeviceAllow=char-infiniband_verbs rw";
    const USER: &str = "as a user: chmod 666, or a udev rule (rdma-core has one)";
    if facts.rdma.devices.is_empty() {
        return Vec::new();
    }
    let nodes = facts.rdma.devices.iter().map(|device| {
        let name = device.node.clone().unwrap_or_else(|| format!("uverbs* of {}", device.name));
        (name, &device.access)
    });
    // EFA makes connections of its own.
    let is_needed = facts.rdma.devices.iter().any(|device| device.kind != DeviceKind::Efa);
    let connections = is_needed.then(|| ("rdma_cm".to_owned(), &facts.rdma.connection_manager));
    let check = |(node, access): (String, &Access)| {
        let module = if node == "rdma_cm" { "rdma_ucm" } else { "ib_uverbs" };
        let check = match access {
            Access::Granted => row("device-node", Verdict::Ok, "can be opened"),
            Access::Missing => row("device-node", cards::broken(config), "is not there")
                .remedy(format!("modprobe {module}; {CONTAINER}")),
            Access::Refused(reason) => {
                let remedies = Remedies { mode: USER, rules: CONTAINER, module };
                row("device-node", cards::broken(config), reason).remedy(remedies.of(reason))
            }
        };
        check.about(format!("/dev/infiniband/{node}"))
    };
    nodes.chain(connections).map(check).collect()
}

fn state(facts: &Facts, config: &Config, port: &Port) -> Check {
    let state = port.state.as_deref().unwrap_or("unknown");
    let physical = port.physical_state.as_deref().unwrap_or("unknown");
    if port.is_active() {
        if let Some(missing) = missing_lid(port) {
            return row("port-state", cards::broken_port(config, port), format!("ACTIVE, and {missing}")).about(&port.name).remedy(
                "nothing can be sent without: see that a subnet manager runs and reaches the port (systemctl start opensm, or the \
                 switch's own; sminfo, ibstat), and have it sweep the fabric again; in a virtual machine, see that the host gave \
                 its function a GUID and let it in",
            );
        }
        let rate = port.rate.as_deref().unwrap_or("rate unknown");
        return row("port-state", Verdict::Ok, format!("ACTIVE, {rate}")).about(&port.name);
    }
    let is_named = cards::are_named(config) && cards::uses(config, port);
    let other_is_active = facts.rdma.ports().any(|(_, other)| other.is_active());
    // A port that is not named does not matter as long as another one is up.
    let verdict = if other_is_active && !is_named { Verdict::Info } else { cards::broken_port(config, port) };
    let interface = port.interfaces.first().map_or("INTERFACE", String::as_str);
    let remedy = match (state, physical) {
        ("INIT" | "ARMED", _) if port.is_infiniband() => {
            "no subnet manager has brought it up: start one (systemctl start opensm, or the switch's own)".to_owned()
        }
        (_, "Disabled") if port.is_infiniband() => {
            let (device, number) = port.name.split_once(':').unwrap_or((&port.name, "1"));
            format!(
                "the port is switched off, by its firmware or by somebody: ibportstate -C {device} -P {number} -D 0 {number} enable, or \
                 mlxlink -d {device} -p {number} --port_state UP; look at the switch's port (ibportstate LID PORT query), and at \
                 LINK_TYPE_P{number} in mlxconfig -d {device} query"
            )
        }
        (_, "Disabled") => format!("the port is switched off: ip link set {interface} up; check the switch's port"),
        (_, "Polling" | "Sleep" | "PortConfigurationTraining") => {
            "no link: check cable, transceiver and the switch's port; ibstat and ethtool show more".to_owned()
        }
        _ if port.is_infiniband() => {
            "check cable and the switch's port, and that a subnet manager runs; ibstat and iblinkinfo show more"
                .to_owned()
        }
        _ => format!("ip link set {interface} up; check cable and the switch's port; ibstat shows more"),
    };
    row("port-state", verdict, format!("{state} ({physical})")).about(&port.name).remedy(remedy)
}

/// What a port of InfiniBand that calls itself active has not got from a subnet manager.
fn missing_lid(port: &Port) -> Option<&'static str> {
    if !port.is_infiniband() {
        return None;
    }
    match (port.lid, port.subnet_manager_lid) {
        (Some(0), Some(0)) => Some("LID and subnet manager's LID are 0: no subnet manager has configured it"),
        (Some(0), _) => Some("its LID is 0: no subnet manager gave it one"),
        (_, Some(0)) => Some("the subnet manager's LID is 0: it knows none"),
        _ => None,
    }
}

/// What can be done with a device of this kind.
fn kind(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Option<Check> {
    const SRD_SINCE: (u32, u32) = (1, 19);
    let check = match device.kind {
        DeviceKind::Verbs => return None,
        DeviceKind::Software => row("kind", Verdict::Info, "Soft-RoCE: for tests; the processor copies every byte"),
        DeviceKind::Iwarp if provider::has_verbs(facts, config) => {
            row("kind", Verdict::Info, "iWARP: by verbs alone, UCX refuses it")
        }
        DeviceKind::Iwarp => row("kind", cards::broken_port(config, port), "iWARP, which UCX refuses").remedy(
            "use verbs: network.rdma.data.provider = \"auto\", with libibverbs and librdmacm; or TCP over its interface: \
             network.rdma.data.enabled = false",
        ),
        DeviceKind::Efa if facts.ucx.rdma.iter().any(|resource| resource.starts_with("srd/")) => {
            row("kind", Verdict::Ok, "EFA, and UCX offers srd")
        }
        DeviceKind::Efa => row("kind", cards::broken_port(config, port), "EFA, and UCX offers no srd").remedy(format!(
            "install UCX {}.{} or newer, built with EFA, and name it in ucx.library",
            SRD_SINCE.0, SRD_SINCE.1
        )),
    };
    Some(check.about(&port.name))
}

/// Connections are set up by IP address.
fn address(facts: &Facts, config: &Config, port: &Port) -> Option<Check> {
    let check = |verdict, what: String| row("port-address", verdict, what).about(&port.name);
    let verdict = cards::broken_port(config, port);
    let Some(name) = port.interfaces.first() else {
        let remedy = match port.is_infiniband() {
            true => "modprobe ib_ipoib; ip link then shows an interface such as ib0",
            false => "ip link shows whether its interface is in another network namespace, as in a container",
        };
        return Some(check(verdict, "no network interface belongs to it".to_owned()).remedy(remedy));
    };
    let address =
        port.interfaces.iter().filter_map(|name| facts.interface(name)).find_map(|interface| interface.address());
    Some(match address {
        Some(address) => check(Verdict::Ok, format!("{name} has {address}")),
        None if !facts.are_addresses_known() => {
            check(Verdict::Info, format!("{name} belongs to it; addresses were not recorded"))
        }
        None => check(verdict, format!("{name} has no IP address, and connections are set up by it")).remedy(format!(
            "ip addr add ADDRESS/PREFIX dev {name}; ip link set {name} up; keep it in the network's settings"
        )),
    })
}

fn roce(facts: &Facts, config: &Config, device: &Device, port: &Port) -> Vec<Check> {
    if !port.is_ethernet() || device.kind == DeviceKind::Iwarp {
        return Vec::new();
    }
    let verdict = cards::broken_port(config, port);
    let v2 = port.gids.iter().filter(|gid| gid.is_roce_v2());
    // The one that UCX and rdma_cm choose for IPv4: made of the address.
    let index = v2.clone().find(|gid| gid.gid.starts_with("0000:0000:0000:0000:0000:ffff:"));
    let gid = match (index.or_else(|| v2.clone().next()), port.gids.is_empty()) {
        (Some(gid), _) => row("roce-gid", Verdict::Ok, format!("RoCE v2 at index {}: {}", gid.index, gid.gid)),
        (None, false) => row("roce-gid", verdict.min(Verdict::Warn), "only RoCE v1, which no router forwards")
            .remedy("cma_roce_mode -d DEVICE -p PORT -m 2; check that card and switch do RoCE v2"),
        (None, true) => row("roce-gid", verdict, "no GID: nothing can connect to it")
            .remedy("give its interface an address: ip addr add ADDRESS/PREFIX dev INTERFACE"),
    };
    let mut checks = vec![gid.about(&port.name)];
    let interface = port.interfaces.first().and_then(|name| facts.interface(name));
    if let Some((interface, mtu)) = interface.and_then(|interface| Some((interface, interface.mtu?))) {
        let name = &interface.name;
        let what = format!("{name} has MTU {mtu}: RoCE packets of {} bytes", roce_mtu(mtu));
        checks.push(if mtu >= ROCE_MTU {
            row("roce-mtu", Verdict::Ok, what).about(&port.name)
        } else {
            // Of no matter where the processor copies anyway.
            let is_software = device.kind == DeviceKind::Software;
            row("roce-mtu", if is_software { Verdict::Info } else { verdict.min(Verdict::Warn) }, what)
                .about(&port.name)
                .remedy(format!(
                    "ip link set {name} mtu 9000, if every switch between takes it; {ROCE_MTU} is enough for 4096"
                ))
        });
    }
    checks
}

/// The largest packet of RoCE, of the sizes that there are, over an interface with this MTU. The kernel does not show
/// the port's own in sysfs; this is how it computes it.
pub(crate) fn roce_mtu(mtu: u32) -> u32 {
    let room = mtu.saturating_sub(ROCE_HEADERS);
    [4096, 2048, 1024, 512].into_iter().find(|size| room >= *size).unwrap_or(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_of_roce_is_that_which_fits_beside_the_headers() {
        let cases =
            [(9000, 4096), (4192, 4096), (4191, 2048), (1500, 1024), (1120, 1024), (1119, 512), (68, 256), (0, 256)];
        for (interface, expected) in cases {
            assert_eq!(roce_mtu(interface), expected, "{interface}");
        }
    }
}
