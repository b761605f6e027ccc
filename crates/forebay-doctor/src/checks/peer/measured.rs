//! What was measured to a peer, beside what its cards can do.

use forebay_config::Config;

use super::row::{row, without_rdma};
use super::way::hardware_speed;
use crate::checks::{Check, Verdict, cards};
use crate::facts::{DeviceKind, Facts, PeerMeasured, PeerOperation, PeerProbe};
use crate::text::{listed, rate, size, time};

/// What a few threads get of a card through sockets, and without the processor: published figures are 85 to 90 %, and 90 to
/// 97 %. Below these there is something to be found.
const TCP_PERCENT: u64 = 60;
const RDMA_PERCENT: u64 = 75;
/// How long a small operation may take in one data centre.
const TCP_LATENCY_NS: u64 = 2_000_000;
const RDMA_LATENCY_NS: u64 = 100_000;
/// What the benchmark's server says that was not told to serve verbs.
const NO_VERBS: &str = "serves nothing by verbs";
/// Bytes that were moved and not counted where they should have been, in percent: headers only make it more.
const COUNTED_PERCENT: u64 = 80;

pub(super) fn check(facts: &Facts, config: &Config, peer: &PeerProbe, measured: &PeerMeasured) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(error) = &measured.error {
        checks.push(failed(config, measured, error));
    } else {
        if measured.transport != "tcp" {
            checks.push(transport(config, measured));
        }
        checks.extend(latency(facts, measured));
        checks.extend(bandwidth(facts, peer, measured));
        checks.extend(counted(measured));
    }
    checks.into_iter().map(|check| check.about(format!("{} {}", peer.name, measured.transport))).collect()
}

fn failed(config: &Config, measured: &PeerMeasured, error: &str) -> Check {
    let remedy =
        measured.remedy.clone().unwrap_or_else(|| "look at the output of `forebay bench rdma` there".to_owned());
    if measured.transport == "tcp" {
        return row("measure", Verdict::Fail, error).remedy(remedy);
    }
    // The server there was started for UCX alone.
    if measured.transport == "verbs" && error.contains(NO_VERBS) {
        return row("measure", Verdict::Info, error).remedy(remedy);
    }
    row("rdma-connect", without_rdma(config).max(Verdict::Warn), error).remedy(format!(
        "{remedy}; rping -s -a ADDRESS -C 3 there and rping -c -a ADDRESS -C 3 here tell whether the cards can talk at all"
    ))
}

/// What carried the bytes: UCX is content with software.
fn transport(config: &Config, measured: &PeerMeasured) -> Check {
    let lanes = listed(&measured.lanes);
    if measured.is_rdma {
        return row(
            "rdma-connect",
            Verdict::Ok,
            format!("{lanes}; {} payloads came back as they were", measured.verified),
        );
    }
    if cards::wanted(config) {
        return row("rdma-connect", without_rdma(config), format!("UCX connected by software only: {lanes}")).remedy(
            "forebay doctor on both hosts says what is wrong with their cards; name them with --rdma-network; look at UCX_TLS \
             and UCX_NET_DEVICES",
        );
    }
    row("rdma-connect", Verdict::Info, format!("UCX, by software: {lanes}"))
}

/// The ports that carried the bytes, if cards did.
fn ports<'a>(facts: &'a Facts, measured: &PeerMeasured) -> Vec<(&'a crate::facts::Device, &'a crate::facts::Port)> {
    let carries =
        |name: &str| measured.lanes.iter().any(|lane| lane.split_once('/').is_some_and(|(_, device)| device == name));
    facts.rdma.ports().filter(|(_, port)| measured.is_rdma && carries(&port.name)).collect()
}

fn is_software(facts: &Facts, measured: &PeerMeasured) -> bool {
    let ports = ports(facts, measured);
    ports.is_empty() || ports.iter().any(|(device, _)| device.kind == DeviceKind::Software)
}

fn latency(facts: &Facts, measured: &PeerMeasured) -> Option<Check> {
    let of = |operation| {
        let test = measured.smallest(operation)?;
        Some((format!("{} {} (p99 {})", time(test.p50_ns), operation.name(), time(test.p99_ns)), test))
    };
    let all: Vec<_> =
        [PeerOperation::Write, PeerOperation::Read, PeerOperation::Cache].into_iter().filter_map(of).collect();
    let bytes = all.first()?.1.bytes;
    let what = format!("{} take {}", size(bytes), listed(all.iter().map(|(text, _)| text)));
    let worst = all.iter().map(|(_, test)| test.p50_ns).max()?;
    let is_rdma = measured.is_rdma && !is_software(facts, measured);
    let most = if is_rdma { RDMA_LATENCY_NS } else { TCP_LATENCY_NS };
    Some(match worst > most {
        false => row("latency", Verdict::Ok, what),
        true if measured.is_rdma && !is_rdma => row("latency", Verdict::Info, format!("{what}, by Soft-RoCE")),
        true => row("latency", Verdict::Warn, what).remedy(
            "the way is longer than a data centre is wide, or the hosts are busy: check which interface is used (route), \
             power saving of the processors (cpupower frequency-set -g performance), and other traffic",
        ),
    })
}

fn bandwidth(facts: &Facts, peer: &PeerProbe, measured: &PeerMeasured) -> Option<Check> {
    let (write, read) = (measured.best_mbps(PeerOperation::Write)?, measured.best_mbps(PeerOperation::Read)?);
    let cache = measured.best_mbps(PeerOperation::Cache);
    let cache = cache.map(|cache| format!(", {} as the cache reads", rate(cache))).unwrap_or_default();
    let what = format!("{} to it, {} from it{cache}", rate(write), rate(read));
    let ports = ports(facts, measured);
    let (speed, of, expected) = if measured.is_rdma {
        let of_port = |port: &crate::facts::Port| {
            let (gbps, _) = port.rate.as_deref()?.split_once(" Gb/sec")?;
            gbps.trim().parse::<f64>().ok().filter(|gbps| (0.0..1e6).contains(gbps)).map(|gbps| (gbps * 1000.0) as u64)
        };
        let speed = ports.iter().filter_map(|(_, port)| of_port(port)).sum::<u64>();
        let speed = Some(speed).filter(|speed| *speed > 0 && !is_software(facts, measured));
        (speed, listed(ports.iter().map(|(_, port)| &port.name)), RDMA_PERCENT)
    } else {
        let interface = peer.route.as_ref().and_then(|route| facts.interface(route.interface.as_deref()?));
        let speed = interface.and_then(|interface| hardware_speed(facts, interface));
        (speed, interface.map_or_else(String::new, |interface| interface.name.clone()), TCP_PERCENT)
    };
    let Some(speed) = speed else { return Some(row("bandwidth", Verdict::Info, what)) };
    let percent = write.min(read).saturating_mul(100) / speed;
    let what = format!("{what}: {percent} % of the {} of {of}", rate(speed));
    if percent >= expected {
        return Some(row("bandwidth", Verdict::Ok, what));
    }
    let remedy = if measured.is_rdma {
        "look at the rows rate, slot, packets and faults of the cards on both hosts; run near the card (numactl \
         --cpunodebind, see its NUMA node); RoCE wants MTU 9000 and a switch that holds back (PFC, ECN)"
    } else {
        "see path-mtu, and ipoib-mtu on InfiniBand; iperf3 -P 8 is a second opinion on the network; in a cloud, put the \
         machines into one placement group, and mind limits for each flow; RDMA takes the load off the processors"
    };
    Some(row("bandwidth", Verdict::Warn, what).remedy(remedy))
}

/// Whether the bytes went where they were to go.
fn counted(measured: &PeerMeasured) -> Option<Check> {
    let (counted, at) = (measured.counted_bytes?, measured.counted_at.as_deref()?);
    let moved = measured.moved_bytes;
    let what = format!("{} were moved, and {at} counted {}", size(moved), size(counted));
    Some(if u128::from(counted) * 100 >= u128::from(moved) * u128::from(COUNTED_PERCENT) {
        row("counted", Verdict::Ok, what)
    } else {
        row("counted", Verdict::Warn, format!("{what}: they took another way")).remedy(
            "ip route get ADDRESS shows the way; with several cards in one subnet the kernel chooses one: give each a subnet of \
             its own, or route by source address (ip rule)",
        )
    })
}
