//! libucp: is there one, is it new enough, and does it see what the kernel sees.

use forebay_config::{Config, RdmaFallback};

use crate::checks::{Check, Section, Verdict, cards, provider};
use crate::facts::{DeviceKind, Facts, Ucx};
use crate::text::listed;

/// From here on: EFA, and the fixes that large installations wanted.
const RECOMMENDED: (u32, u32) = (1, 20);
/// From here on a process with several UCX workers survives connections over sockets (openucx#9942).
const SOUND_SOCKETS: (u32, u32) = (1, 18);
/// The oldest rdma-core that is recommended.
pub(super) const RDMA_CORE: u32 = 35;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let ucx = &facts.ucx;
    let mut checks = Vec::new();
    if facts.recording.as_ref().is_some_and(|recording| !recording.has_answers()) && *ucx == Ucx::default() {
        return vec![row("library", Verdict::Info, "not recorded")];
    }
    if config.network_rdma_data_enabled && !provider::takes_ucx(config) {
        return vec![row("library", Verdict::Info, "not used: network.rdma.data.provider is \"verbs\"")];
    }
    match &ucx.error {
        Some(error) => {
            let (what, remedy) = error.split_once("; ").unwrap_or((error, "install UCX 1.20 or newer"));
            // Transports of the user's choice need no card, and need UCX all the same.
            let verdict = match config.network_rdma_data_fallback {
                _ if !config.network_rdma_data_enabled => Verdict::Info,
                _ if provider::has_verbs(facts, config) => Verdict::Info,
                RdmaFallback::TcpAtStart => Verdict::Warn,
                RdmaFallback::Auto | RdmaFallback::Never => Verdict::Fail,
            };
            checks.push(row("library", verdict, what).remedy(remedy));
        }
        None => checks.push(version(ucx, config)),
    }
    if ucx.version.is_some() && ucx.error.is_none() {
        checks.push(transports(facts, config));
        checks.extend(connection_manager(facts, config));
        checks.extend(sockets(ucx, config));
    }
    checks.extend(environment(facts, config));
    checks.extend(ucx.rdma_core.map(|release| rdma_core(release, config)));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Ucx, name, verdict, what)
}

fn version(ucx: &Ucx, config: &Config) -> Check {
    let version = ucx.version.as_deref().unwrap_or("of unknown version");
    let path = ucx.path.as_deref().unwrap_or("libucp");
    let what = format!("UCX {version} at {path}; the same major.minor is needed on every node");
    if ucx.release().is_some_and(|release| release >= RECOMMENDED) {
        return row("library", Verdict::Ok, what);
    }
    let verdict = if cards::wanted(config) { Verdict::Warn } else { Verdict::Info };
    row("library", verdict, what).remedy(format!(
        "it works; {}.{} or newer is recommended: the vendor's package (DOCA, OFED), or built with \
         --with-verbs --with-rdmacm, named in ucx.library",
        RECOMMENDED.0, RECOMMENDED.1
    ))
}

/// Whether UCX offers RDMA where the kernel has active ports.
fn transports(facts: &Facts, config: &Config) -> Check {
    let ucx = &facts.ucx;
    if !ucx.rdma.is_empty() {
        return row("transports", Verdict::Ok, format!("RDMA: {}", listed(&ucx.rdma)));
    }
    // iWARP is not for UCX, and said of the device.
    let usable = |(device, port): (&crate::facts::Device, &crate::facts::Port)| {
        (port.is_active() && device.kind != DeviceKind::Iwarp).then(|| port.name.clone())
    };
    let active: Vec<String> = facts.rdma.ports().filter_map(usable).collect();
    let others = listed(&ucx.transports);
    if active.is_empty() {
        // Those of iWARP go by verbs.
        let verdict = if provider::has_verbs(facts, config) { Verdict::Info } else { cards::without_rdma(config) };
        let check = row("transports", verdict, format!("no RDMA, for no port that it takes is active; {others}"));
        return if verdict == Verdict::Info { check } else { check.remedy("mend what is said of devices and ports") };
    }
    let reason = match ucx.module("ib") {
        None => {
            "this UCX was built without verbs: install the distribution's (apt-get install libucx0, dnf install ucx-ib), \
             or build it --with-verbs --with-rdmacm"
        }
        Some(module) if !module.is_loaded => {
            "its module libuct_ib did not load: apt-get install libibverbs1, or dnf install libibverbs"
        }
        Some(_) => {
            "ucx_info -d shows what it sees, ibv_devinfo what verbs see; apt-get install ibverbs-providers; look at \
             UCX_TLS, UCX_NET_DEVICES and the access to /dev/infiniband"
        }
    };
    let what = format!("no RDMA, though {} is active; {others}", listed(&active));
    row("transports", cards::broken(config), what).remedy(reason)
}

/// Connections over UCX's sockets: before 1.18 they can end the process.
fn sockets(ucx: &Ucx, config: &Config) -> Option<Check> {
    if ucx.release().is_none_or(|release| release >= SOUND_SOCKETS) {
        return None;
    }
    let version = ucx.version.as_deref().unwrap_or_default();
    let chosen = &config.network_rdma_data_transports;
    Some(if config.network_rdma_data_enabled && !chosen.is_empty() {
        let what = format!(
            "UCX {version} can abort the process when connections over its sockets come and go, and network.rdma.data.transports = {} \
             may make such",
            listed(chosen)
        );
        row("sockets", Verdict::Warn, what).remedy(format!(
            "install UCX {}.{} or newer, or leave network.rdma.data.transports unset",
            SOUND_SOCKETS.0, SOUND_SOCKETS.1
        ))
    } else {
        let what = format!("UCX {version} is used with rdmacm only, and not with EFA: its sockets can abort a process");
        row("sockets", Verdict::Info, what)
    })
}

/// UCX's own connection manager for RDMA, which connections by address are made through.
fn connection_manager(facts: &Facts, config: &Config) -> Option<Check> {
    // EFA has none.
    let needs = |device: &crate::facts::Device| matches!(device.kind, DeviceKind::Verbs | DeviceKind::Software);
    if !facts.rdma.devices.iter().any(needs) {
        return None;
    }
    Some(match facts.ucx.module("rdmacm") {
        Some(module) if module.is_loaded => row("rdmacm", Verdict::Ok, "UCX makes connections through rdmacm"),
        Some(_) => row("rdmacm", cards::broken(config), "UCX's module libuct_rdmacm did not load")
            .remedy("apt-get install librdmacm1, or dnf install librdmacm"),
        None => row("rdmacm", cards::broken(config), "this UCX has no rdmacm, by which connections are made")
            .remedy("install the distribution's UCX, or build it --with-rdmacm"),
    })
}

/// Variables that restrict UCX to what is not there.
fn environment(facts: &Facts, config: &Config) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(devices) = facts.ucx.environment.get("UCX_NET_DEVICES").filter(|devices| *devices != "all") {
        let is_there = |name: &&str| {
            // `^` in front excludes; patterns are UCX's own business.
            let name = name.trim_start_matches('^');
            name.contains('*') || facts.rdma.port(name).is_some() || facts.interface(name).is_some()
        };
        let missing: Vec<&str> = devices.split(',').map(str::trim).filter(|name| !is_there(name)).collect();
        let ports = facts.rdma.ports().map(|(_, port)| port.name.as_str());
        checks.push(if missing.is_empty() {
            row("environment", Verdict::Info, format!("UCX_NET_DEVICES={devices} restricts UCX"))
                .about("UCX_NET_DEVICES")
        } else {
            row("environment", cards::broken(config), format!("UCX_NET_DEVICES names {}, not here", listed(missing)))
                .about("UCX_NET_DEVICES")
                .remedy(format!("unset UCX_NET_DEVICES; RDMA devices here: {}", listed(ports)))
        });
    }
    if let Some(transports) = facts.ucx.environment.get("UCX_TLS").filter(|transports| *transports != "all") {
        checks.push(row("environment", Verdict::Info, format!("UCX_TLS={transports} restricts UCX")).about("UCX_TLS"));
    }
    checks
}

fn rdma_core(release: u32, config: &Config) -> Check {
    let what = format!("rdma-core {release}");
    if release >= RDMA_CORE {
        return row("rdma-core", Verdict::Ok, what);
    }
    let verdict = if cards::wanted(config) { Verdict::Warn } else { Verdict::Info };
    row("rdma-core", verdict, what)
        .remedy(format!("upgrade rdma-core to {RDMA_CORE} or newer, or install the vendor's OFED"))
}
