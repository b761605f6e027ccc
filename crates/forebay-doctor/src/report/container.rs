//! The container or pod that this is, and the units of systemd.

use super::lines::{Lines, joined, line};
use crate::facts::{Container, Facts, Namespaces, Unit};
use crate::text::{listed, size};

pub(super) fn container(facts: &Facts) -> Lines {
    let container = &facts.container;
    let mut lines = vec![line("kind", container.kind.as_deref().unwrap_or("none"))];
    lines.extend(pod(container));
    lines.extend(limits(facts));
    if container.kind.is_none() {
        return lines;
    }
    let Namespaces { processes, mounts, network, users } = container.namespaces;
    let kinds = [("processes", processes), ("mounts", mounts), ("network", network), ("users", users)];
    let of = |state: Option<bool>| kinds.into_iter().filter(move |(_, own)| *own == state).map(|(name, _)| name);
    lines.push(line("its own", listed(of(Some(true)))));
    lines.push(line("the host's", listed(of(Some(false)))));
    if of(None).next().is_some() {
        lines.push(line("unknown whose", listed(of(None))));
    }
    let system = &facts.system;
    let capabilities = [
        ("SYS_ADMIN", system.may_administrate),
        ("IPC_LOCK", container.has_ipc_lock),
        ("SYS_RESOURCE", container.has_sys_resource),
    ];
    lines.push(line("capabilities", listed(capabilities.into_iter().filter(|(_, has)| *has).map(|(name, _)| name))));
    lines.extend(container.profile.as_ref().map(|profile| line("profile", profile)));
    lines.extend(container.first_process.as_ref().map(|first| line("process 1", first)));
    lines.push(line("shared below", listed(&container.mounts.shared)));
    lines
}

fn pod(container: &Container) -> Option<(String, String)> {
    let pod = container.pod.as_ref()?;
    let node = pod.node.as_ref().map(|node| format!("on node {node}"));
    let namespace = pod.namespace.as_ref().map(|namespace| format!("namespace {namespace}"));
    Some(line("pod", joined([pod.name.clone(), namespace, node])))
}

/// The limits of control groups, where there are any.
fn limits(facts: &Facts) -> Option<(String, String)> {
    let memory = &facts.memory;
    let huge = memory.huge_limit_bytes.into_iter().chain(memory.huge_reserve_limit_bytes).min();
    let processors = facts.container.processors;
    let limits = joined([
        memory.limit_bytes.map(|limit| format!("memory {}", size(limit))),
        huge.map(|limit| format!("huge pages {}", size(limit))),
        processors.map(|limit| format!("{}.{:03} processors", limit.thousandths / 1000, limit.thousandths % 1000)),
    ]);
    (!limits.is_empty()).then(|| line("limits", limits))
}

pub(super) fn units(facts: &Facts) -> Lines {
    if let Some(reason) = &facts.units.skipped {
        return vec![line("unknown", reason)];
    }
    let lines: Lines = facts.units.units.iter().map(unit).collect();
    if lines.is_empty() { vec![line("none", "")] } else { lines }
}

fn unit(unit: &Unit) -> (String, String) {
    let state = joined([
        Some(format!("{} ({})", unit.active, unit.sub)),
        unit.enabled.clone(),
        unit.kind.as_ref().map(|kind| format!("Type={kind}")),
        (unit.restarts > 0).then(|| format!("{} restarts", unit.restarts)),
        unit.status.clone(),
    ]);
    line(&unit.name, state)
}
