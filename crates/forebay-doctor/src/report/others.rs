//! Others: origins, the cluster, and the hosts that were asked; and the configuration that names them.

use super::lines::{Lines, joined, line};
use crate::facts::{
    Certificate, CoordinatorProbe, EtcdProbe, Facts, PeerMeasured, PeerOperation, PeerProbe, Reached, Recording,
};
use crate::text::{listed, rate, size, time};

/// What a recorded tree is and lacks, before anything that it shows.
pub(super) fn recording(recording: &Recording) -> Vec<String> {
    let first = format!("A recorded tree is looked at, and not this machine: {}", recording.folder);
    match (&recording.by, &recording.at) {
        (Some(by), at) => {
            let at = at.as_deref().unwrap_or("at an unknown time");
            vec![
                format!("{first}, recorded {at} by forebay {by}"),
                "UCX, the clock, origin, etcd, coordinators, mounts, identities and peers are what they were then: only a \
                 live machine asks them again."
                    .to_owned(),
            ]
        }
        (None, _) => vec![
            first,
            "It has files only. Not known, for it takes a live machine: addresses of interfaces, what drivers, libibverbs and UCX \
             say, listeners of rdma_cm, flow control of Ethernet, the clock, whether faults grow, identities, and what \
             origin, etcd, coordinators, mounts and peers answer."
                .to_owned(),
        ],
    }
}

pub(super) fn origin(facts: &Facts) -> Lines {
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

pub(super) fn cluster(facts: &Facts) -> Lines {
    let etcd = |probe: &EtcdProbe| {
        let answer = match &probe.error {
            Some(_) => "no answer".to_owned(),
            None => format!("answered in {}", time(probe.took_us * 1000)),
        };
        let version = probe.version.as_ref().map(|version| format!("version {version}"));
        let leader = probe.leader.as_ref().map(|leader| format!("leader {leader}"));
        line(&probe.endpoint, joined([Some("etcd".to_owned()), version, Some(answer), leader]))
    };
    let coordinator = |probe: &CoordinatorProbe| {
        let answer = match &probe.error {
            Some(_) => "no answer".to_owned(),
            None => format!("answered in {}", time(probe.took_us * 1000)),
        };
        let leader = probe.leader.as_ref().map(|leader| format!("leader {leader}"));
        line(&probe.address, joined([Some("coordinator".to_owned()), probe.version.clone(), Some(answer), leader]))
    };
    let lines: Lines = facts.etcd.iter().map(etcd).chain(facts.coordinators.iter().map(coordinator)).collect();
    if lines.is_empty() { vec![line("none", "")] } else { lines }
}

pub(super) fn security(facts: &Facts) -> Lines {
    let Some(found) = &facts.security else { return vec![line("unknown", "")] };
    let mut lines = vec![line("mode", found.mode.as_str())];
    lines.extend(found.identity.as_ref().map(|identity| line("identity", identity)));
    let keys = found.keys.iter().enumerate();
    lines.extend(keys.map(|(at, key)| line("key", format!("{key}, {}", if at == 0 { "signs" } else { "trusted" }))));
    lines.extend(found.certificates.iter().map(|certificate| {
        let Certificate { file, name, is_authority, .. } = certificate;
        let kind = if *is_authority { "authority" } else { "certificate" };
        line(kind, format!("{name}, in {file}"))
    }));
    lines
}

pub(super) fn peer(peer: &PeerProbe) -> Lines {
    let addresses = listed(peer.addresses.iter().map(ToString::to_string));
    let mut lines = vec![line(&peer.name, addresses)];
    if let Some(route) = &peer.route {
        let text = joined([
            route.interface.clone(),
            route.source.map(|source| format!("from {source}")),
            Some(route.gateway.map_or_else(|| "no router between".to_owned(), |gateway| format!("router {gateway}"))),
        ]);
        lines.push(line("  route", text));
    }
    if let Some(mtu) = peer.path_mtu {
        let text = joined([
            mtu.believed.map(|mtu| format!("{mtu} as the kernel knows")),
            mtu.delivered.map(|mtu| format!("{mtu} arrived")),
            mtu.agreed.map(|mtu| format!("{mtu} agreed by TCP")),
        ]);
        lines.push(line("  path MTU", text));
    }
    for port in &peer.ports {
        let reached = match &port.reached {
            Reached::Open => format!("open, {}", time(port.took_us * 1000)),
            Reached::Refused => "nobody listens".to_owned(),
            Reached::Silent => "no answer".to_owned(),
            Reached::Failed(reason) => reason.clone(),
        };
        lines.push(line(&format!("  {}", port.service), format!("{}: {reached}", port.address)));
    }
    if let Some(worker) = &peer.worker {
        lines.extend(worker.ping_us.map(|ping| line("  TCP", format!("a question took {}", time(ping * 1000)))));
        for listener in &worker.listeners {
            let text = joined([
                Some(format!("{} at {}", listener.card, listener.address)),
                listener
                    .connect_us
                    .map(|connect| format!("connected from {} in {}", listener.from, time(connect * 1000))),
                listener.ping_us.map(|ping| format!("a question took {}", time(ping * 1000))),
                listener.error.clone(),
            ]);
            lines.push(line("  RDMA", text));
        }
    }
    peer.measured.iter().for_each(|measured| lines.extend(of_measured(measured)));
    lines
}

/// What was measured: a line for what carried it, and one for each size and direction.
fn of_measured(measured: &PeerMeasured) -> Lines {
    let transport = measured.transport.to_uppercase();
    if let Some(error) = &measured.error {
        return vec![line(&format!("  {transport}"), error.clone())];
    }
    let mut lines = Lines::new();
    let version = measured.version.as_ref().map(|version| format!("Forebay {version} there"));
    let lanes = (!measured.lanes.is_empty()).then(|| listed(&measured.lanes));
    lines.push(line(
        &format!("  {transport}"),
        joined([lanes, version, Some(format!("{} payloads compared", measured.verified))]),
    ));
    for operation in [PeerOperation::Write, PeerOperation::Read, PeerOperation::Cache] {
        let latency = measured.latency.iter().filter(|test| test.operation == operation);
        let latency =
            latency.map(|test| format!("{} {} (p99 {})", size(test.bytes), time(test.p50_ns), time(test.p99_ns)));
        lines.push(line("    latency", format!("{}: {}", operation.name(), listed(latency))));
        let bandwidth = measured.bandwidth.iter().filter(|test| test.operation == operation);
        let bandwidth = bandwidth.map(|test| format!("{} {}", size(test.bytes), rate(test.mbps)));
        lines.push(line("    bandwidth", format!("{}: {}", operation.name(), listed(bandwidth))));
    }
    lines
}

pub(super) fn configuration(facts: &Facts) -> Lines {
    let settings = &facts.configuration.settings;
    let lines: Lines =
        settings.iter().map(|setting| line(&setting.key, format!("{} ({})", setting.value, setting.from))).collect();
    if lines.is_empty() { vec![line("defaults", "")] } else { lines }
}
