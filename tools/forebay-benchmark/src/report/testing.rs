//! Records to test reports with: made from simple laws, so that what a report should say of them is known.

use std::collections::BTreeMap;

use crate::record::{
    Access, CacheState, Case, Cell, Client, Compared, Cpu, FORMAT, Finding, Latency, Layout, Level, Link, Machine,
    Measured, Outcome, Pattern, Record, Step, Target,
};

const MIB: u64 = 1 << 20;

/// A run over two targets, warm and cold, all layouts, on a machine with 200 Gb/s: `forebay` reads twice as fast as `juicefs`.
pub(crate) fn posix() -> Record {
    let targets = [("forebay", 1.0), ("juicefs", 0.5)];
    let mut steps = Vec::new();
    let sweeps = [
        (Layout::Single, Pattern::Shared, Access::Sequential, MIB, 1),
        (Layout::Single, Pattern::Shared, Access::Random, 4096, 1),
        (Layout::Multiple, Pattern::Shared, Access::Sequential, MIB / 4, 1),
        (Layout::Multiple, Pattern::Distinct, Access::Sequential, MIB / 4, 32),
    ];
    for state in [CacheState::Warm, CacheState::Cold] {
        for (layout, pattern, access, block_bytes, depth) in sweeps {
            for jobs in (0..9).map(|power| 1 << power) {
                for round in 0..3 {
                    for (target, speed) in targets {
                        let case = Case {
                            target: target.to_owned(),
                            state,
                            layout,
                            pattern,
                            access,
                            block_bytes,
                            jobs,
                            depth,
                            clients: 1,
                            workers: 1,
                        };
                        let outcome = outcome(&case, speed * (1.0 + f64::from(round) / 50.0));
                        steps.push(Step { case, round, outcome });
                    }
                }
            }
        }
    }
    let target = |(name, _): (&str, f64)| Target {
        name: name.to_owned(),
        path: format!("/mnt/{name}"),
        file_system: format!("fuse.{name}"),
        cache: if name == "forebay" { "forebay job load" } else { "each file is read once" }.to_owned(),
        cold_is_memory: None,
    };
    let measured = Measured::Posix { targets: targets.map(target).to_vec(), steps };
    let settings = [("numjobs", "1,2,4,8,16,32,64,128,256"), ("runtime", "60s"), ("bs", "262144"), ("repeat", "3")];
    record(measured, &settings)
}

/// A law of saturation: throughput grows with the jobs up to 14 GB/s × `speed`, and latency by Little's law with a tail.
fn outcome(case: &Case, speed: f64) -> Outcome {
    let deep = f64::from(case.jobs * case.depth);
    let (most, half): (f64, f64) = match case.access {
        Access::Sequential => (14e9, 14.0),
        Access::Random => (1.2e9, 60.0),
    };
    let cold = if case.state == CacheState::Cold { 0.06 } else { 1.0 };
    let bytes_per_second = most * speed * cold * f64::from(case.clients) * deep / (deep + half);
    let operations_per_second = bytes_per_second / case.block_bytes as f64;
    let mean = deep / operations_per_second * 1e6 * f64::from(case.clients);
    let tail = 1.6 + (deep / half / 3.0).powi(2).min(14.0);
    let latency = Latency {
        mean,
        p50: mean * 0.93,
        p90: mean * 1.2,
        p95: mean * 1.35,
        p99: mean * tail,
        p999: mean * tail * 1.8,
        max: mean * tail * 4.0,
    };
    Outcome {
        bytes_per_second,
        operations_per_second,
        operations: (operations_per_second * 60.0) as u64,
        bytes: (bytes_per_second * 60.0) as u64,
        seconds: 60.0,
        latency,
        cpu: Cpu {
            machine: 40.0 + bytes_per_second / 1e9 * (95.0 + deep / 8.0),
            fio: bytes_per_second / 1e9 * 30.0,
            ..Cpu::default()
        },
        origin_bytes: None,
        clients: Vec::new(),
    }
}

/// The same machine type with `clients` readers and as many workers, which share the reading evenly.
pub(crate) fn posix_on(clients: u32) -> Record {
    let mut record = posix();
    let Measured::Posix { targets, steps } = &mut record.measured else { return record };
    targets.truncate(1);
    steps.retain(|step| step.case.target == "forebay" && step.case.layout == Layout::Multiple);
    for step in steps {
        (step.case.clients, step.case.workers) = (clients, clients);
        // Some is lost on the way.
        step.outcome = outcome(&step.case, 0.98_f64.powi(clients as i32));
        step.outcome.clients = (0..clients)
            .map(|number| Client {
                host: format!("10.0.0.{number}"),
                bytes_per_second: step.outcome.bytes_per_second / f64::from(clients),
                operations: step.outcome.operations / u64::from(clients),
                latency: step.outcome.latency,
            })
            .collect();
    }
    record
}

/// The study's matrix: UCX needs 3 ms more to connect and moves bytes twice as fast.
pub(crate) fn read() -> Record {
    let mut cells = Vec::new();
    for file_bytes in [50_000_000, 100_000_000, 500_000_000, 1_000_000_000, 2_000_000_000, 10_000_000_000_u64] {
        for (clients, files) in [(1, 1), (1, 20), (4, 1), (4, 20)] {
            if file_bytes > 2_000_000_000 && (clients, files) != (1, 1) {
                continue;
            }
            for round in 0..2 {
                for (transport, carried_by, speed, connect) in
                    [("tcp", "tcp", 2.5e9, 1.0), ("ucx", "ucx (rc_mlx5)", 5e9, 9.0)]
                {
                    let milliseconds = connect / f64::from(files)
                        + file_bytes as f64 / speed * 1e3 * f64::from(clients).sqrt() * (1.0 + f64::from(round) / 40.0);
                    let seconds = milliseconds * f64::from(files) / 1e3;
                    cells.push(Cell {
                        transport: transport.to_owned(),
                        carried_by: carried_by.to_owned(),
                        clients,
                        files,
                        file_bytes,
                        round,
                        milliseconds_per_file: milliseconds,
                        seconds,
                        client_percent_seconds: seconds * 90.0 * f64::from(clients),
                        worker_percent_seconds: seconds * 60.0,
                        checked: true,
                        compared: Compared::While,
                        origin_bytes: Some(0),
                        not_counted: Vec::new(),
                    });
                }
            }
        }
    }
    record(Measured::Read { cells }, &[("scale", "1"), ("repeat", "2"), ("clients", "1,4")])
}

fn record(measured: Measured, settings: &[(&str, &str)]) -> Record {
    let finding = |level, rule: &str, text: &str, next: Option<&str>| Finding {
        rule: rule.to_owned(),
        level,
        text: text.to_owned(),
        next: next.map(str::to_owned),
    };
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Record {
        format: FORMAT,
        version: "0.1.0".to_owned(),
        begun: "2026-11-22T09:30:00+00:00".to_owned(),
        finished: true,
        machine: Machine {
            host: "gpu-17".to_owned(),
            system: "Linux 6.18.44".to_owned(),
            processors: 128,
            memory_bytes: 1 << 40,
            network: Some(Link { name: "ens5".to_owned(), bits_per_second: 200e9 }),
            disk_bytes_per_second: Some(12e9),
        },
        settings: settings.iter().map(pair).collect::<BTreeMap<_, _>>(),
        measured,
        findings: vec![
            finding(Level::Good, "network", "One client reads 13.1 GB/s: 52 % of its network.", None),
            finding(
                Level::Warn,
                "tail",
                "p99 is 15.6 times the mean with 256 jobs.",
                Some("Read with fewer jobs, or look at the origin's latency: forebay stats."),
            ),
            finding(Level::Info, "knee", "The knee is at 16 jobs: p99 grows, throughput does not.", None),
        ],
    }
}
