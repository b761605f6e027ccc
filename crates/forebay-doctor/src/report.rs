//! The report: what there is, part by part, and then what is to be thought of it.

use std::io::{self, Write};

use forebay_config::Config;
use serde::Serialize;

use crate::checks::{Check, Verdict, check};
use crate::facts::{Device, DeviceKind, Facts, Interface, Limit, Port};
use crate::text::{listed, printable, size};

/// Facts, verdicts, and how many there are of each.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What there is.
    pub facts: Facts,
    /// What is to be thought of it.
    pub checks: Vec<Check>,
    /// How many verdicts there are of each kind.
    pub counts: Counts,
}

/// How many verdicts there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// As they should be.
    pub ok: usize,
    /// Good to know.
    pub info: usize,
    /// Not as well as it could.
    pub warn: usize,
    /// Cannot work.
    pub fail: usize,
}

impl Report {
    /// The verdicts on `facts`.
    #[must_use]
    pub fn new(facts: Facts, config: &Config) -> Self {
        let checks = check(&facts, config);
        let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let counts = Counts {
            ok: count(Verdict::Ok),
            info: count(Verdict::Info),
            warn: count(Verdict::Warn),
            fail: count(Verdict::Fail),
        };
        Self { facts, checks, counts }
    }

    /// What failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| check.verdict == Verdict::Fail)
    }

    /// Prints it for a person.
    ///
    /// # Errors
    /// When the writer takes no more.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        for (heading, lines) in sections(&self.facts) {
            writeln!(out, "{heading}")?;
            for (name, text) in lines {
                let line = format!("  {:<14} {}", printable(&name), printable(&text));
                writeln!(out, "{}", line.trim_end())?;
            }
            writeln!(out)?;
        }
        writeln!(out, "Verdicts")?;
        for check in &self.checks {
            let subject = check.subject.as_deref().map(|subject| format!(" {subject}")).unwrap_or_default();
            let row = format!("{} {}{subject}", check.section.name(), check.name);
            let line = format!("{:<4}  {row}: {}", check.verdict.name(), check.what);
            writeln!(out, "  {}", printable(&line))?;
            if let (Some(remedy), true) = (&check.remedy, check.verdict > Verdict::Ok) {
                writeln!(out, "        {}", printable(remedy))?;
            }
        }
        let Counts { ok, info, warn, fail } = self.counts;
        writeln!(out, "\n{ok} ok, {info} info, {warn} warn, {fail} fail")
    }
}

type Lines = Vec<(String, String)>;

fn sections(facts: &Facts) -> [(&'static str, Lines); 8] {
    [
        ("System", system(facts)),
        ("RDMA devices", rdma(facts)),
        ("UCX", ucx(facts)),
        ("Memory", memory(facts)),
        ("FUSE", fuse(facts)),
        ("Network", network(facts)),
        ("Origin", origin(facts)),
        ("Configuration", configuration(facts)),
    ]
}

/// The parts that are known, with commas between them.
fn joined(parts: impl IntoIterator<Item = Option<String>>) -> String {
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn line(name: &str, text: impl Into<String>) -> (String, String) {
    (name.to_owned(), text.into())
}

fn system(facts: &Facts) -> Lines {
    let system = &facts.system;
    let count = |count: u32, of: &str| format!("{count} {of}{}", if count == 1 { "" } else { "s" });
    let host = joined([
        system.hostname.clone(),
        system.kernel.as_ref().map(|kernel| format!("Linux {kernel}")),
        system.processors.map(|processors| count(processors, "processor")),
        system.numa_nodes.map(|nodes| count(nodes, "NUMA node")),
    ]);
    let module = |module: &crate::facts::Module| match &module.version {
        Some(version) => format!("{} {version}", module.name),
        None => module.name.clone(),
    };
    vec![line("host", host), line("modules", listed(facts.modules.iter().map(module)))]
}

fn rdma(facts: &Facts) -> Lines {
    let mut lines = Lines::new();
    for device in &facts.rdma.devices {
        lines.push(line(&device.name, of_device(device)));
        for port in &device.ports {
            lines.extend(of_port(facts, port));
        }
    }
    for card in facts.pci_cards.iter().filter(|card| !card.has_rdma_device) {
        let driver = card.driver.as_deref().unwrap_or("no driver");
        lines.push(line(&card.address, format!("{}, {driver}, no RDMA device", card.vendor)));
    }
    if lines.is_empty() {
        lines.push(line("none", ""));
    }
    lines
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
        device.node_guid.as_ref().map(|guid| format!("GUID {guid}")),
        device.pci.as_ref().map(|address| format!("PCI {address}")),
        device.numa_node.map(|node| format!("NUMA node {node}")),
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
            let paths =
                port.lid_mask_count.filter(|count| *count > 0).map(|count| format!("/{count}")).unwrap_or_default();
            format!("LID {}{paths}, subnet manager {}", lid(port.lid), lid(port.subnet_manager_lid))
        }),
        port.capabilities.as_ref().map(|mask| format!("capabilities {mask}")),
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
    for gid in &port.gids {
        let kind = gid.kind.as_deref().filter(|_| !port.is_infiniband());
        let text = joined([Some(gid.gid.clone()), kind.map(str::to_owned), gid.interface.clone()]);
        lines.push(line(&format!("    GID {}", gid.index), text));
    }
    lines
}

fn of_interface(interface: &Interface) -> String {
    joined([
        interface.state.clone(),
        interface.mtu.map(|mtu| format!("MTU {mtu}")),
        interface.ipoib_mode.as_ref().map(|mode| format!("IPoIB {mode}")),
        interface.speed_mbps.map(|speed| match speed % 1000 {
            0 if speed > 0 => format!("{} Gb/s", speed / 1000),
            _ => format!("{speed} Mb/s"),
        }),
        interface.driver.clone().map(|driver| match &interface.driver_version {
            Some(version) => format!("{driver} {version}"),
            None => driver,
        }),
        interface.master.as_ref().map(|master| format!("part of {master}")),
        (!interface.addresses.is_empty())
            .then(|| interface.addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")),
    ])
}

/// Those with hardware or an address: a machine with containers has hundreds without.
fn network(facts: &Facts) -> Lines {
    let matters =
        |interface: &&Interface| interface.driver.is_some() || interface.is_ipoib || !interface.addresses.is_empty();
    let (shown, others): (Vec<_>, Vec<_>) = facts.interfaces.iter().partition(matters);
    let mut lines: Lines = shown.iter().map(|interface| (interface.name.clone(), of_interface(interface))).collect();
    if !others.is_empty() {
        lines.push(line("others", format!("{} without hardware and address", others.len())));
    }
    lines
}

fn ucx(facts: &Facts) -> Lines {
    let ucx = &facts.ucx;
    let mut lines = vec![line("libucp", ucx.summary())];
    if !ucx.rdma.is_empty() {
        lines.push(line("RDMA", listed(&ucx.rdma)));
    }
    if !ucx.modules.is_empty() {
        let module = |module: &crate::facts::UcxModule| match module.is_loaded {
            true => module.name.clone(),
            false => format!("{} (did not load)", module.name),
        };
        lines.push(line("modules", listed(ucx.modules.iter().map(module))));
    }
    if let Some(library) = &ucx.verbs_library {
        lines.push(line("libibverbs", library));
    }
    lines.extend(ucx.environment.iter().map(|(name, value)| line(name, value)));
    lines
}

fn memory(facts: &Facts) -> Lines {
    let memory = &facts.memory;
    let limit = |limit: Option<Limit>| match limit {
        Some(Limit::Unlimited) => "unlimited".to_owned(),
        Some(Limit::Bytes(bytes)) => size(bytes),
        None => "unknown".to_owned(),
    };
    let known = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), size);
    vec![
        line("total", format!("{}, {} available", known(memory.total_bytes), known(memory.available_bytes))),
        line(
            "huge pages",
            format!(
                "{} reserved, {} free; transparent: {}",
                size(memory.huge_total_bytes),
                size(memory.huge_free_bytes),
                memory.transparent_huge_pages.as_deref().unwrap_or("unknown")
            ),
        ),
        line("may be locked", format!("{}, at most {}", limit(memory.lock_limit), limit(memory.lock_limit_max))),
    ]
}

fn fuse(facts: &Facts) -> Lines {
    let fuse = &facts.fuse;
    let is_on = |is_on: bool| if is_on { "on" } else { "off" };
    let pages = fuse.max_pages.map_or_else(|| "unknown".to_owned(), |pages| pages.to_string());
    let fusermount = fuse.fusermount.as_ref().map_or("none".to_owned(), |program| program.path.display().to_string());
    vec![
        line("fusermount3", fusermount),
        line("kernel", format!("io_uring {}, at most {pages} pages a request", fuse.io_uring.map_or("unknown", is_on))),
        line("mounts", listed(&fuse.mounts)),
    ]
}

fn origin(facts: &Facts) -> Lines {
    let lines: Lines = facts
        .origins
        .iter()
        .map(|probe| {
            let answer = if probe.error.is_some() { "no answer" } else { "answered" };
            line(&probe.url, format!("{answer} after {} ms", probe.took_ms))
        })
        .collect();
    if lines.is_empty() { vec![line("none", "")] } else { lines }
}

fn configuration(facts: &Facts) -> Lines {
    let settings = &facts.configuration.settings;
    let lines: Lines =
        settings.iter().map(|setting| line(&setting.key, format!("{} ({})", setting.value, setting.from))).collect();
    if lines.is_empty() { vec![line("defaults", "")] } else { lines }
}
