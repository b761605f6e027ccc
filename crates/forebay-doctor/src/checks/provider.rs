//! Which library RDMA is to go by, `network.rdma.data.provider`, and whether verbs can be had.

use forebay_config::{Config, RdmaProvider};

use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::{Device, DeviceKind, Facts, INSTALL_VERBS, Port, address_of_gid};

/// Whether verbs are to be tried.
pub(crate) fn takes_verbs(config: &Config) -> bool {
    config.network_rdma_data_provider != RdmaProvider::Ucx && !config.needs_ucx_for_data()
}

/// Whether UCX is.
pub(crate) fn takes_ucx(config: &Config) -> bool {
    config.network_rdma_data_provider != RdmaProvider::Verbs
}

/// Whether verbs are to be tried, and a card that is used can be had by them: what is wrong with UCX is worth less then.
pub(crate) fn has_verbs(facts: &Facts, config: &Config) -> bool {
    let mut used = cards::used(facts, config).into_iter();
    let is_fit = facts.verbs_missing.is_none() && takes_verbs(config);
    is_fit && used.any(|(device, port)| port.is_active() && device.has_windows.is_some() && is_for_verbs(device))
}

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    if !cards::wanted(config) || !takes_verbs(config) {
        return Vec::new();
    }
    // With `auto` UCX takes their place, and has rows of its own.
    let verdict = if takes_ucx(config) { Verdict::Info } else { cards::without_rdma(config) };
    if let Some(missing) = facts.verbs_missing.as_ref().filter(|_| !facts.rdma.devices.is_empty()) {
        let remedy = format!("{INSTALL_VERBS}; or set network.rdma.data.provider = \"ucx\"");
        return vec![row(verdict, format!("verbs cannot be used: {missing}")).remedy(remedy)];
    }
    let mut checks = Vec::new();
    for (device, port) in cards::used(facts, config) {
        let check = match device.has_windows {
            _ if !(port.is_active() && is_for_verbs(device)) => continue,
            Some(true) => row(Verdict::Ok, "verbs, between hosts that both have them"),
            Some(false) => row(Verdict::Ok, without_windows(config)),
            None => continue,
        };
        checks.push(check.about(&port.name));
        checks.extend(gid(config, device, port, verdict));
        checks.push(one_sided(config, device, port));
    }
    checks
}

fn is_for_verbs(device: &Device) -> bool {
    device.kind != DeviceKind::Efa
}

/// How verbs go over a card that binds no windows.
fn without_windows(config: &Config) -> String {
    format!(
        "verbs, between hosts that both have them; it binds no memory windows of type 2, so what it reads as a client comes in messages \
         and is copied, with {} of buffers for each connection (network.rdma.data.receive_buffers)",
        config.network_rdma_data_receive_buffers
    )
}

/// The entry of the table of GIDs that is configured is one that rdma_cm takes.
fn gid(config: &Config, device: &Device, port: &Port, verdict: Verdict) -> Option<Check> {
    let index = u32::try_from(config.network_rdma_data_gid_index).ok()?;
    let check = |verdict, what: String| Check::new(Section::Rdma, "verbs-gid", verdict, what).about(&port.name);
    Some(match address_of_gid(device, port, index) {
        Ok(address) => check(Verdict::Ok, format!("entry {index}, which verbs take by its address {address}")),
        Err((what, next)) => check(verdict, format!("verbs are not used on it: {what}")).remedy(next),
    })
}

/// Whether clients may read a worker's memory by themselves, and why not.
fn one_sided(config: &Config, device: &Device, port: &Port) -> Check {
    const KEY: &str = "network.rdma.data.one_sided";
    let missing = match (device.has_windows, device.kind) {
        (Some(false), _) => Some("the card binds no memory windows of type 2"),
        (_, DeviceKind::Iwarp) => Some("over iWARP a client would have to let the worker write to what it reads into"),
        _ => None,
    };
    // A worker does not start with both.
    let against = config
        .security_require_encryption
        .then_some("nothing is encrypted over RDMA, which security.require_encryption asks for");
    let check = |verdict, what: String| Check::new(Section::Rdma, "one-sided", verdict, what).about(&port.name);
    match (config.network_rdma_data_one_sided, against) {
        (is_asked, _) if missing.is_some() && !(is_asked && against.is_some()) => {
            let asked = if is_asked { "asked for, and " } else { "" };
            let missing = missing.unwrap_or_default();
            check(Verdict::Info, format!("{asked}not possible: {missing}; reads go the ordinary way"))
        }
        (true, None) => check(Verdict::Ok, "warm blocks are read without the worker's processor, by pages".to_owned()),
        (true, Some(why)) => check(Verdict::Fail, format!("{KEY} is refused: {why}")).remedy("unset one of the two"),
        (false, None) => check(Verdict::Info, format!("possible, and off ({KEY})")),
        (false, Some(why)) => check(Verdict::Info, format!("off ({KEY}), and not possible: {why}")),
    }
}

fn row(verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Rdma, "provider", verdict, what)
}
