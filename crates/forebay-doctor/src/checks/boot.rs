//! Whether what works now comes back after a reboot: interfaces of IPoIB and their MTU, and the module that makes them.

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::Facts;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    // A child (`ib0.8001`) and an interface without an address are not missed.
    let with_address = facts.interfaces.iter().filter(|interface| interface.is_ipoib && interface.address().is_some());
    let mut checks: Vec<Check> = with_address.map(|interface| of_interface(facts, config, &interface.name)).collect();
    if facts.module("ib_ipoib").is_some() && facts.rdma.ports().any(|(_, port)| port.is_infiniband()) {
        checks.push(of_module(facts, config, "ib_ipoib"));
    }
    checks
}

fn of_interface(facts: &Facts, config: &Config, name: &str) -> Check {
    let check = |verdict, what: String| Check::new(Section::Rdma, "boot", verdict, what).about(name);
    if let Some(file) = facts.boot.interfaces.get(name) {
        return check(Verdict::Ok, format!("/{file} brings it back"));
    }
    if facts.boot.network_files == 0 || facts.boot.is_incomplete {
        return check(Verdict::Info, "whether it comes back with its address and MTU is not known".to_owned());
    }
    check(
        cards::broken(config).min(Verdict::Warn),
        "no settings of the network name it: its address and MTU are gone after a reboot".to_owned(),
    )
    .remedy(format!(
        "name {name} with its address and MTU in /etc/netplan, /etc/network/interfaces, /etc/systemd/network or with nmcli; \
         after a reboot, ip addr show {name}"
    ))
}

fn of_module(facts: &Facts, config: &Config, module: &str) -> Check {
    let check = |verdict, what: &str| Check::new(Section::Rdma, "boot", verdict, what).about(module);
    let is_loaded_at_boot = facts.boot.openibd || facts.boot.modules.contains_key(module);
    // One that is built in has no size.
    let is_built_in = facts.module(module).is_some_and(|module| module.size_bytes.is_none());
    if is_loaded_at_boot || is_built_in {
        return check(Verdict::Ok, "it is loaded at boot");
    }
    check(cards::broken(config).min(Verdict::Warn), "it is loaded, and nothing loads it at boot").remedy(format!(
        "echo {module} > /etc/modules-load.d/{module}.conf; with the vendor's drivers, systemctl enable openibd"
    ))
}
