//! Which verbs device belongs to which network interface, as sysfs tells.
//!
//! A port of a device names the interface of each of its GIDs in `ports/N/gid_attrs/ndevs/`; the first one is the
//! interface whose addresses a listener on the device can have. Devices without an Ethernet or IPoIB interface name none.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel lists verbs devices.
pub const SYSFS: &str = "/sys/class/infiniband";

/// The verbs devices of a machine.
#[derive(Clone, Debug)]
pub struct Devices {
    root: PathBuf,
}

impl Default for Devices {
    fn default() -> Self {
        Self { root: PathBuf::from(SYSFS) }
    }
}

impl Devices {
    /// Those listed below `root`, for tests.
    #[must_use]
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Every port, as `DEVICE:PORT`, in order.
    #[must_use]
    pub fn ports(&self) -> Vec<String> {
        let mut ports = Vec::new();
        for device in names(&self.root) {
            let of_device = names(&self.root.join(&device).join("ports"));
            ports.extend(of_device.into_iter().map(|port| format!("{device}:{port}")));
        }
        ports
    }

    /// The network interface of `port`, written `DEVICE:PORT` or `DEVICE` for its port 1.
    #[must_use]
    pub fn interface(&self, port: &str) -> Option<String> {
        let (device, number) = port.split_once(':').unwrap_or((port, "1"));
        let named = self.root.join(device).join("ports").join(number).join("gid_attrs/ndevs");
        // An entry of the table that is not in use cannot be read.
        names(&named).into_iter().find_map(|index| {
            let interface = fs::read_to_string(named.join(index)).ok()?;
            Some(interface.trim().to_owned()).filter(|interface| !interface.is_empty())
        })
    }

    /// The port, as `DEVICE:PORT`, that belongs to the network interface `interface`.
    #[must_use]
    pub fn port_of(&self, interface: &str) -> Option<String> {
        self.ports().into_iter().find(|port| self.interface(port).as_deref() == Some(interface))
    }
}

/// The names in a directory, numbers in their order; none when it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort_by_key(|name| (name.parse::<u32>().unwrap_or(u32::MAX), name.clone()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_and_devices_find_each_other() {
        let root = tempfile::tempdir().unwrap();
        let table = |port: &str| {
            let table = root.path().join(port).join("gid_attrs/ndevs");
            fs::create_dir_all(&table).unwrap();
            table
        };
        fs::write(table("mlx5_0/ports/1").join("0"), "ib0\n").unwrap();
        let second = table("mlx5_1/ports/2");
        // The first entry of the table is not in use, the eleventh comes after the second.
        fs::write(second.join("0"), "").unwrap();
        fs::write(second.join("10"), "ib9\n").unwrap();
        fs::write(second.join("2"), "ib2\n").unwrap();
        table("efa_0/ports/1");
        let devices = Devices::below(root.path());
        assert_eq!(devices.ports(), ["efa_0:1", "mlx5_0:1", "mlx5_1:2"]);
        assert_eq!(devices.interface("mlx5_0").as_deref(), Some("ib0"));
        assert_eq!(devices.interface("mlx5_1:2").as_deref(), Some("ib2"));
        assert_eq!((devices.interface("efa_0:1"), devices.interface("none:1")), (None, None));
        assert_eq!(devices.port_of("ib2").as_deref(), Some("mlx5_1:2"));
        assert_eq!(devices.port_of("eth0"), None);
        assert!(Devices::below(root.path().join("none")).ports().is_empty());
    }
}
