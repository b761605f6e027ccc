//! What the next boot brings back: the modules that are loaded then, and the interfaces that the network's settings name.
//!
//! Distributions keep these in many places. Those that are known here are looked through for names. What none of them
//! names may still be made by a program of the user's own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// Files, and folders of files, that name interfaces.
const NETWORK: [&str; 10] = [
    "etc/network/interfaces",
    "etc/network/interfaces.d",
    "etc/netplan",
    "etc/systemd/network",
    "run/systemd/network",
    "etc/NetworkManager/system-connections",
    "run/NetworkManager/system-connections",
    "etc/sysconfig/network-scripts",
    "etc/sysconfig/network",
    "etc/infiniband/openib.conf",
];
/// Files, and folders of files, that name modules to load.
const MODULES: [&str; 4] = ["etc/modules", "etc/modules-load.d", "usr/lib/modules-load.d", "etc/rdma/modules"];
/// Where a service that starts at boot has a link.
const SERVICES: [&str; 2] = ["etc/systemd/system/multi-user.target.wants", "etc/systemd/system/sysinit.target.wants"];
/// The services that load the modules of RDMA.
const OPENIBD: &str = "openibd.service";
/// The settings of the agent that makes an IPoIB interface in Azure, and the line that tells it to.
const AZURE: (&str, &str) = ("etc/waagent.conf", "OS.EnableRDMA=y");

/// What the next boot brings back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// Interfaces that the network's settings name, each with the first file that does.
    pub interfaces: BTreeMap<String, String>,
    /// Modules that are loaded at boot, each with the file that says so.
    pub modules: BTreeMap<String, String>,
    /// How many files of settings there are of the network.
    pub network_files: u32,
    /// Whether one of them could not be read.
    pub is_incomplete: bool,
    /// Whether the vendor's service loads its modules.
    pub openibd: bool,
}

impl Boot {
    /// Looks for these interfaces and modules.
    pub(crate) fn read(root: &Root, interfaces: &[String], modules: &[&str]) -> Self {
        let mut boot = Self::default();
        for path in NETWORK.iter().flat_map(|place| files(root, place)) {
            boot.network_files += 1;
            // They have passwords, too: no more is looked at than the names.
            let Some(text) = root.text_of(&path, |text| named(text, interfaces)) else {
                boot.is_incomplete = true;
                continue;
            };
            // The name of a file may be that of its interface: `ifcfg-ib0`.
            let text = format!("{path} {}", settings(&text));
            for name in interfaces.iter().filter(|name| names(&text, name)) {
                boot.interfaces.entry(name.clone()).or_insert_with(|| path.clone());
            }
        }
        let (path, line) = AZURE;
        let only =
            |text: &str| if text.lines().any(|found| found.trim() == line) { line.to_owned() } else { String::new() };
        if root.text_of(path, only).is_some_and(|text| text == line) {
            for name in interfaces {
                boot.interfaces.entry(name.clone()).or_insert_with(|| path.to_owned());
            }
        }
        for path in MODULES.iter().flat_map(|place| files(root, place)) {
            let modules: Vec<String> = modules.iter().map(|module| (*module).to_owned()).collect();
            let text = settings(&root.text_of(&path, |text| named(text, &modules)).unwrap_or_default());
            for module in modules.iter().filter(|module| names(&text, module)) {
                boot.modules.entry(module.clone()).or_insert_with(|| path.clone());
            }
        }
        boot.openibd = SERVICES.iter().any(|folder| root.names(folder).iter().any(|name| name == OPENIBD));
        boot
    }
}

/// The file at `place`, or those in it.
fn files(root: &Root, place: &str) -> Vec<String> {
    let names = root.names(place);
    if names.is_empty() {
        return if root.is_file(place) { vec![place.to_owned()] } else { Vec::new() };
    }
    names.into_iter().map(|name| format!("{place}/{name}")).filter(|path| root.is_file(path)).collect()
}

/// Those of `wanted` that the settings in `text` name, each on a line. The first line tells a reader of a copy what it is.
fn named(text: &str, wanted: &[String]) -> String {
    let text = settings(text);
    let found = wanted.iter().filter(|name| names(&text, name)).map(String::as_str);
    std::iter::once("# only the names that were looked for").chain(found).collect::<Vec<_>>().join("\n")
}

/// The lines that are no comments.
fn settings(text: &str) -> String {
    text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")
}

/// Whether `text` has `name` as a word of its own. `ib0.8001` and `ib0` are two.
fn names(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.')))
        .any(|word| word.trim_matches('.') == name || word.strip_suffix(".nmconnection") == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(files: &[(&str, &str)]) -> Boot {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Boot::read(&Root::new(folder.path()), &["ib0".to_owned(), "ib0.8001".to_owned()], &["ib_ipoib"])
    }

    #[test]
    fn interfaces_are_found_in_the_settings_of_every_distribution() {
        for (path, text) in [
            ("etc/network/interfaces", "auto ib0\niface ib0 inet static\n  mtu 9000"),
            ("etc/netplan/60-ib.yaml", "network:\n  ethernets:\n    ib0:\n      addresses: [10.1.0.5/16]"),
            ("etc/systemd/network/ib.network", "[Match]\nName=ib0\n"),
            ("etc/NetworkManager/system-connections/ib0.nmconnection", ""),
            ("etc/sysconfig/network-scripts/ifcfg-ib0", "MTU=9000"),
            ("etc/waagent.conf", "# x\nOS.EnableRDMA=y\n"),
        ] {
            let found = boot(&[(path, text)]);
            assert_eq!(found.interfaces.get("ib0").map(String::as_str), Some(path), "{found:?}");
        }
        let none = boot(&[("etc/netplan/50.yaml", "ethernets:\n # ib0:\n eth0:\n  xib0: ib0.8002")]);
        assert_eq!((none.interfaces.len(), none.network_files), (0, 1), "{none:?}");
        assert!(boot(&[]).interfaces.is_empty());
    }

    #[test]
    fn modules_are_found_where_they_are_named() {
        let named = boot(&[("etc/modules-load.d/rdma.conf", "# ib_umad\nib_ipoib\n")]);
        assert_eq!(named.modules.get("ib_ipoib").map(String::as_str), Some("etc/modules-load.d/rdma.conf"));
        assert!(boot(&[("etc/modules", "#ib_ipoib")]).modules.is_empty());
        assert!(boot(&[("etc/systemd/system/multi-user.target.wants/openibd.service", "")]).openibd);
    }
}
