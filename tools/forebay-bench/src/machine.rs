//! What the numbers depend on: the machine, its kernel, and whether it had anything else to do.
//!
//! Ratios of things that are measured in turn stand a machine that is slow, not one that is busy: with two cores, one busy
//! program takes from a mount with a worker of its own what it leaves to a tmpfs. So a run waits for the machine to come to
//! rest, and where it does not, says no word on targets.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::progress::Progress;
use crate::settings::Settings;

/// Above this load over the last minute, targets are not judged.
const MAX_LOAD: f64 = 0.5;
/// Nor above this share of all processors' time, in the second before the run.
const MAX_BUSY: f64 = 0.1;
/// How long a run waits for the load of whatever built it to fade.
const CALM_WITHIN: Duration = Duration::from_secs(300);
/// How often it looks.
const LOOK: Duration = Duration::from_secs(1);

/// The machine before the run.
pub(crate) struct Machine {
    /// What it is, by name.
    pub(crate) facts: Vec<(String, String)>,
    /// Why no target can be judged.
    pub(crate) not_judged: Option<String>,
}

impl Machine {
    /// Waits until the machine is calm, and looks at it.
    pub(crate) fn look(settings: Settings, progress: &Progress) -> Self {
        let deadline = Instant::now() + if settings.quick { Duration::ZERO } else { CALM_WITHIN };
        let mut said = false;
        let (load, busy) = loop {
            let (load, busy) = (load(), busy_for(if settings.quick { Duration::ZERO } else { LOOK }));
            if is_calm(load, busy) || Instant::now() >= deadline {
                break (load, busy);
            }
            if !std::mem::replace(&mut said, true) {
                progress.say(&format!("Waiting for the machine to come to rest, {} s at most", CALM_WITHIN.as_secs()));
            }
        };
        let mut facts = facts();
        facts.push(("load before the run (it should be near 0)".to_owned(), format!("{load:.2}")));
        facts.push(("date".to_owned(), chrono::Local::now().format("%Y-%m-%d").to_string()));
        let loaded =
            || format!("the machine was busy before the run: load {load:.2}, {:.0} % of its time", busy * 100.0);
        let not_judged = if settings.quick {
            Some("`--quick` says nothing of speed".to_owned())
        } else {
            (!is_calm(load, busy)).then(loaded)
        };
        Self { facts, not_judged }
    }
}

fn is_calm(load: f64, busy: f64) -> bool {
    load <= MAX_LOAD && busy <= MAX_BUSY
}

fn load() -> f64 {
    read("/proc/loadavg").split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The share of its time that the machine was not idle for, over `time`.
fn busy_for(time: Duration) -> f64 {
    let before = Times::of(&read("/proc/stat"));
    std::thread::sleep(time);
    let after = Times::of(&read("/proc/stat"));
    before.zip(after).map_or(0.0, |(before, after)| after.busy_since(&before))
}

/// Time of all processors, in ticks since the start.
#[derive(Clone, Copy, Debug)]
struct Times {
    idle: u64,
    all: u64,
}

impl Times {
    /// The first line of proc_stat(5).
    fn of(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        // `guest` and `guest_nice`, the last two, are in `user` and `nice` already.
        let all = fields.iter().take(8).sum();
        // `idle` and `iowait`.
        Some(Self { idle: fields.get(3)? + fields.get(4)?, all })
    }

    fn busy_since(&self, before: &Self) -> f64 {
        let (idle, all) = (self.idle.saturating_sub(before.idle), self.all.saturating_sub(before.all));
        if all == 0 { 0.0 } else { 1.0 - idle as f64 / all as f64 }
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn facts() -> Vec<(String, String)> {
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let setting = |path: &str| match read(path).trim() {
        "" => "not there".to_owned(),
        value => value.to_owned(),
    };
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    [
        ("processor", format!("{cores} × {}", field(&read("/proc/cpuinfo"), "model name"))),
        ("memory", field(&read("/proc/meminfo"), "MemTotal")),
        ("kernel", setting("/proc/sys/kernel/osrelease")),
        ("transparent huge pages", setting("/sys/kernel/mm/transparent_hugepage/enabled")),
        ("huge pages of shared memory", setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        ("FUSE over io_uring (`enable_uring`)", setting(ENABLE_URING)),
        ("`UCX_TLS` of the environment", std::env::var("UCX_TLS").unwrap_or_else(|_| "unset".to_owned())),
        ("fio", version("fio")),
        ("iperf3", version("iperf3")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Whether the kernel offers io_uring to FUSE servers: the module's parameter, which root may change.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel will let a mount have `fuse.io=uring`.
pub(crate) fn offers_uring() -> bool {
    read(ENABLE_URING).trim() == "Y"
}

/// The first line that a program says of its version.
pub(crate) fn version(program: &str) -> String {
    let output = Command::new(program).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("missing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_no_work() {
        let before = Times::of("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1").unwrap();
        let after = Times::of("cpu  110 0 60 860 70 0 0 0 0 0\n").unwrap();
        assert!((after.busy_since(&before) - 0.2).abs() < 1e-9);
        assert_eq!(before.busy_since(&before), 0.0);
        assert!(Times::of("intr 1 2 3").is_none());
    }

    #[test]
    fn a_machine_that_builds_something_is_not_calm() {
        assert!(is_calm(0.3, 0.02));
        assert!(!is_calm(1.41, 0.0));
        assert!(!is_calm(0.1, 0.5));
    }
}
