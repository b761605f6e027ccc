//! The machine that measures: what the figures are to be seen beside.

use std::net::IpAddr;
use std::path::Path;

use crate::record::{Link, Machine};

/// Which way the data comes to this machine, as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// The interface.
    pub interface: String,
    /// How that is known: `the way to the worker 10.0.0.1`.
    pub why: String,
    /// What is at the other end.
    pub peer: Option<IpAddr>,
}

/// This machine. Its network is the fastest interface that is up and says its speed: virtual ones do not, as a rule.
#[must_use]
pub fn machine() -> Machine {
    machine_by(None)
}

/// This machine. Its network is the interface that the data comes by, where that is known.
#[must_use]
pub fn machine_by(way: Option<&Way>) -> Machine {
    machine_at(Path::new("/"), way)
}

fn machine_at(root: &Path, way: Option<&Way>) -> Machine {
    let net = root.join("sys/class/net");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let line = |path: &str| read(path).trim().to_owned();
    let is_processor =
        |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let memory = read("proc/meminfo");
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    Machine {
        host: line("proc/sys/kernel/hostname"),
        system: format!("{} {}", line("proc/sys/kernel/ostype"), line("proc/sys/kernel/osrelease")),
        processors: read("proc/stat").lines().filter(is_processor).count() as u32,
        memory_bytes: memory.and_then(|kilobytes| kilobytes.parse::<u64>().ok()).unwrap_or(0) << 10,
        network: match way {
            Some(way) => speed_of(&net, &way.interface, MAX_BELOW)
                .map(|bits_per_second| Link { name: way.interface.clone(), bits_per_second }),
            None => links(&net).into_iter().next(),
        },
        disk_bytes_per_second: None,
    }
}

/// Interfaces may be made of others so many times: a network in a bridge over a bond.
const MAX_BELOW: u32 = 4;

/// The interfaces that are up and whose speed is known, the fastest first.
fn links(net: &Path) -> Vec<Link> {
    let interfaces = std::fs::read_dir(net).into_iter().flatten().flatten();
    let mut links: Vec<Link> = interfaces
        .filter_map(|interface| {
            let name = interface.file_name().to_string_lossy().into_owned();
            let bits_per_second = card_speed(&interface.path())?;
            Some(Link { name, bits_per_second })
        })
        .collect();
    links.sort_by(|a, b| b.bits_per_second.total_cmp(&a.bits_per_second).then_with(|| a.name.cmp(&b.name)));
    links
}

/// Bits per second of a card that is up. Not of what is no card: tunnels, bridges and pairs claim 10 Gb/s, whatever is below them.
fn card_speed(interface: &Path) -> Option<f64> {
    let is_card = interface.join("device").exists() || interface.join("bonding").exists();
    let state = std::fs::read_to_string(interface.join("operstate")).ok()?;
    let megabits: f64 = std::fs::read_to_string(interface.join("speed")).ok()?.trim().parse().ok()?;
    (is_card && matches!(state.trim(), "up" | "unknown") && megabits > 0.0).then_some(megabits * 1e6)
}

/// The speed of an interface: its own, or that of what it is made of.
fn speed_of(net: &Path, name: &str, max_below: u32) -> Option<f64> {
    let interface = net.join(name);
    let below = || {
        let entries = std::fs::read_dir(&interface).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned()));
        names.filter_map(|lower| speed_of(net, &lower, max_below.checked_sub(1)?)).reduce(f64::max)
    };
    card_speed(&interface).or_else(below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(root: &Path, name: &str, state: &str, speed: &str, device: bool) {
        let path = root.join("sys/class/net").join(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("operstate"), state).unwrap();
        std::fs::write(path.join("speed"), speed).unwrap();
        if device {
            std::fs::create_dir(path.join("device")).unwrap();
        }
    }

    #[test]
    fn the_network_is_the_fastest_card_that_is_up_and_knows_its_speed() {
        let root = tempfile::tempdir().unwrap();
        interface(root.path(), "eth0", "up\n", "25000\n", true);
        interface(root.path(), "ib0", "up\n", "200000\n", true);
        interface(root.path(), "ib1", "down\n", "400000\n", true);
        interface(root.path(), "docker0", "up\n", "900000\n", false);
        interface(root.path(), "virtio", "up\n", "-1\n", true);
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/stat"), "cpu  1 1\ncpu0 1 1\ncpu1 1 1\nintr 5\n").unwrap();
        std::fs::write(root.path().join("proc/meminfo"), "MemTotal:        2048 kB\n").unwrap();
        let machine = machine_at(root.path(), None);
        assert_eq!(machine.network, Some(Link { name: "ib0".into(), bits_per_second: 200e9 }));
        assert_eq!((machine.processors, machine.memory_bytes), (2, 2 << 20));
        let here = super::machine();
        assert!(here.processors > 0 && here.memory_bytes > 0 && here.system.starts_with("Linux "), "{here:?}");
        assert!(!here.host.is_empty());
    }

    #[test]
    fn where_the_way_of_the_data_is_known_its_card_is_taken_however_slow() {
        let root = tempfile::tempdir().unwrap();
        interface(root.path(), "eth0", "up\n", "25000\n", true);
        interface(root.path(), "ib0", "up\n", "200000\n", true);
        interface(root.path(), "vlan7", "up\n", "10000\n", false);
        std::fs::create_dir(root.path().join("sys/class/net/vlan7/lower_eth0")).unwrap();
        let by = |name: &str| {
            let way = Way { interface: name.into(), why: String::new(), peer: None };
            machine_at(root.path(), Some(&way)).network.map(|link| (link.name, link.bits_per_second / 1e9))
        };
        assert_eq!(by("eth0"), Some(("eth0".into(), 25.0)));
        assert_eq!(by("vlan7"), Some(("vlan7".into(), 25.0)));
        assert_eq!(by("lo"), None);
    }
}
