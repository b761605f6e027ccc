//! The kernel and tools.

use std::collections::BTreeSet;

use forebay_config::Config;
use forebay_types::IoBackend;

use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::Facts;
use crate::text::{listed, ranges};

/// The oldest kernel that RDMA is recommended with.
const KERNEL: (u32, u32) = (5, 0);

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let kernel = match facts.system.kernel_version() {
        Some((major, minor)) if (major, minor) < KERNEL => Check::new(
            Section::System,
            "kernel",
            Verdict::Warn,
            format!("Linux {major}.{minor} is old for RDMA and FUSE"),
        )
        .remedy(format!("run Linux {}.{} or newer", KERNEL.0, KERNEL.1)),
        Some((major, minor)) => Check::new(Section::System, "kernel", Verdict::Ok, format!("Linux {major}.{minor}")),
        None => Check::new(Section::System, "kernel", Verdict::Info, "the kernel's version is unknown"),
    };
    let fio = match &facts.system.fio {
        Some(path) => {
            Check::new(Section::System, "fio", Verdict::Ok, format!("{}: benchmarks can run", path.display()))
        }
        None => Check::new(Section::System, "fio", Verdict::Info, "fio is not installed; only benchmarks need it")
            .remedy("apt-get install fio, or dnf install fio"),
    };
    let mut checks = vec![kernel, fio, page_cache(facts)];
    checks.extend(governor(facts, config));
    checks.extend(io_uring(facts, config));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::System, name, verdict, what)
}

/// Benchmarks read from the mount, and not from what the kernel remembers of the run before.
fn page_cache(facts: &Facts) -> Check {
    if facts.system.may_drop_caches {
        return row("page-cache", Verdict::Ok, "it may be dropped between runs of a benchmark");
    }
    row("page-cache", Verdict::Info, "it may not be dropped by this user, as benchmarks want to between runs")
        .remedy("run benchmarks as root, or before each: echo 3 | sudo tee /proc/sys/vm/drop_caches")
}

/// A processor that slows down makes every figure of a network a matter of luck.
fn governor(facts: &Facts, config: &Config) -> Option<Check> {
    let first = facts.system.frequency_governor.as_deref()?;
    let is_slow = |governor: &str| matches!(governor, "powersave" | "conservative");
    let governors = &facts.system.governors;
    let of_some = |(governor, processors): (&String, &BTreeSet<u32>)| format!("{governor} on {}", ranges(processors));
    // A user who sets them one by one forgets some.
    let what = match governors.len() {
        0 | 1 => format!("processors' clocks: {first}"),
        _ => format!("processors' clocks: {}", listed(governors.iter().map(of_some))),
    };
    let any_is_slow = is_slow(first) || governors.keys().any(|governor| is_slow(governor));
    Some(match any_is_slow {
        false => row("governor", Verdict::Ok, what),
        true => {
            let verdict = if cards::wanted(config) { Verdict::Warn } else { Verdict::Info };
            row("governor", verdict, format!("{what}: latencies are longer, and vary"))
                .remedy("cpupower frequency-set -g performance")
        }
    })
}

/// Workers read their disks through io_uring where they may, and through threads otherwise.
fn io_uring(facts: &Facts, config: &Config) -> Option<Check> {
    let disabled = facts.system.io_uring_disabled?;
    if disabled == 0 || disabled == 1 && facts.system.may_administrate {
        return Some(row("io-uring", Verdict::Ok, "processes may use io_uring"));
    }
    let verdict = match config.worker_disk_io {
        IoBackend::Uring => Verdict::Fail,
        IoBackend::Auto if !config.worker_disks.is_empty() => Verdict::Warn,
        _ => Verdict::Info,
    };
    let what = format!("kernel.io_uring_disabled is {disabled}: disks are read through threads, and fio needs libaio");
    Some(row("io-uring", verdict, what).remedy("sysctl -w kernel.io_uring_disabled=0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_is_warned_of_and_fio_is_a_matter_of_taste() {
        let mut facts = Facts::default();
        let config = Config::load(&forebay_config::Sources::new()).unwrap().config;
        let verdicts =
            |facts: &Facts| check(facts, &config).iter().take(2).map(|check| check.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(&facts), [Verdict::Info, Verdict::Info]);
        facts.system.kernel = Some("4.18.0-553.el8".into());
        facts.system.fio = Some("/usr/bin/fio".into());
        assert_eq!(verdicts(&facts), [Verdict::Warn, Verdict::Ok]);
        facts.system.kernel = Some("6.1.0".into());
        assert_eq!(verdicts(&facts), [Verdict::Ok, Verdict::Ok]);
    }
}
