//! Records for tests: a machine with a card of 100 Gb/s, a disk of 10 GB/s and eight processors.

use std::collections::BTreeMap;

use crate::record::{
    Access, CacheState, Case, Cpu, FORMAT, Latency, Layout, Link, Machine, Measured, Outcome, Pattern, Record, Step,
    Target,
};

/// Warm, shared, sequential, several files.
pub(super) fn case(jobs: u32) -> Case {
    Case {
        target: "forebay".into(),
        state: CacheState::Warm,
        layout: Layout::Multiple,
        pattern: Pattern::Shared,
        access: Access::Sequential,
        block_bytes: 256 << 10,
        jobs,
        depth: 1,
        clients: 1,
        workers: 1,
    }
}

/// A step of so many GB/s and p99 in microseconds; the mean is half of that.
pub(super) fn step(case: Case, gigabytes: f64, p99: f64) -> Step {
    let operations_per_second = gigabytes * 1e9 / case.block_bytes as f64;
    let outcome = Outcome {
        bytes_per_second: gigabytes * 1e9,
        operations_per_second,
        operations: 100_000,
        bytes: 100_000 * case.block_bytes,
        seconds: 100_000.0 / operations_per_second,
        latency: Latency { mean: p99 / 2.0, p50: p99 / 2.0, p99, max: p99 * 2.0, ..Latency::default() },
        cpu: Cpu { machine: 300.0, fio: 50.0, ..Cpu::default() },
        origin_bytes: None,
        clients: Vec::new(),
    };
    Step { case, round: 0, outcome }
}

/// The sweep of `case` with so many (jobs, GB/s, p99).
pub(super) fn sweep(case: &Case, points: &[(u32, f64, f64)]) -> Vec<Step> {
    points.iter().map(|(jobs, rate, p99)| step(Case { jobs: *jobs, ..case.clone() }, *rate, *p99)).collect()
}

pub(super) fn machine() -> Machine {
    Machine {
        host: "node".into(),
        system: "Linux".into(),
        processors: 8,
        memory_bytes: 64 << 30,
        network: Some(Link { name: "ib0".into(), bits_per_second: 100e9 }),
        disk_bytes_per_second: Some(10e9),
    }
}

/// A finished record of targets by these names: a mount of ours first, other mounts behind it.
pub(super) fn record(targets: &[&str], steps: Vec<Step>) -> Record {
    let target = |(index, name): (usize, &&str)| Target {
        name: (*name).to_owned(),
        path: format!("/mnt/{name}"),
        file_system: if index == 0 { "fuse.forebay" } else { "fuse.other" }.into(),
        cache: "each file is read once".into(),
        cold_is_memory: None,
    };
    let settings = [("files", "20"), ("small-files", "100")];
    Record {
        format: FORMAT,
        version: "0.1.0".into(),
        begun: "2026-11-22T00:00:00Z".into(),
        finished: true,
        machine: machine(),
        settings: settings
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into_iter()
            .collect::<BTreeMap<_, _>>(),
        measured: Measured::Posix { targets: targets.iter().enumerate().map(target).collect(), steps },
        findings: Vec::new(),
    }
}
