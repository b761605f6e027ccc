//! Units of systemd that start Forebay: do they run, and does systemd know what it could of them.

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, Unit};

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let skipped = facts.units.skipped.iter();
    let skipped = skipped.map(|reason| row("systemd", Verdict::Info, format!("units are not known: {reason}")));
    let of_unit = |unit: &Unit| {
        let checks = [Some(state(unit)), readiness(unit), watchdog(unit), descriptors(unit, config)];
        checks.into_iter().flatten().map(|check| check.about(&unit.name)).collect::<Vec<_>>()
    };
    skipped.chain(facts.units.units.iter().flat_map(of_unit)).collect()
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Units, name, verdict, what)
}

fn state(unit: &Unit) -> Check {
    let Unit { name, active, sub, restarts, .. } = unit;
    let row = |verdict, what: String| row("state", verdict, what);
    let log = format!("journalctl --unit {name}, then systemctl restart {name}");
    let result = unit.result.as_ref().map(|result| format!(" ({result})")).unwrap_or_default();
    let said = unit.status.as_ref().map(|status| format!(": {status}")).unwrap_or_default();
    match unit.load.as_str() {
        "loaded" => {}
        "masked" => return row(Verdict::Info, "masked: it is never started".to_owned()),
        load => {
            return row(Verdict::Fail, format!("its file cannot be used ({load})"))
                .remedy(format!("systemd-analyze verify {name}; systemctl daemon-reload"));
        }
    }
    match (active.as_str(), sub.as_str()) {
        ("failed", _) => row(Verdict::Fail, format!("failed{result}")).remedy(log),
        ("activating", sub) if sub.starts_with("auto-restart") => {
            row(Verdict::Fail, format!("ended{result}, and is started again and again: {restarts} times by now"))
                .remedy(log)
        }
        ("activating", _) => row(Verdict::Info, format!("is starting{said}")).remedy(log),
        ("active", _) if *restarts > 0 => {
            row(Verdict::Warn, format!("runs{said}; systemd had to start it again, {restarts} times")).remedy(log)
        }
        ("active" | "reloading", _) => row(Verdict::Ok, format!("runs{said}")),
        ("inactive", _) if unit.enabled.as_deref() == Some("enabled") => {
            row(Verdict::Warn, "is started at boot, and does not run".to_owned())
                .remedy(format!("systemctl start {name}"))
        }
        _ => row(Verdict::Info, format!("does not run ({active}, {sub})")),
    }
}

/// What is ordered after a unit that says nothing is started as soon as its process is.
fn readiness(unit: &Unit) -> Option<Check> {
    let kind = unit.kind.as_deref().filter(|_| unit.could_notify())?;
    match kind {
        "notify" | "notify-reload" => {
            Some(row("readiness", Verdict::Ok, format!("Type={kind}: ready when its process says so")))
        }
        "simple" | "exec" | "idle" => {
            let what = format!("Type={kind}: what is ordered after it does not wait until it is ready");
            let remedy = format!("systemctl edit {}: [Service] Type=notify", unit.name);
            Some(row("readiness", Verdict::Warn, what).remedy(remedy))
        }
        // A mount that goes to the background ends its first process when it is there.
        _ => None,
    }
}

fn watchdog(unit: &Unit) -> Option<Check> {
    // Without a socket for what it says, nobody hears that it is alive.
    let notifies = matches!(unit.kind.as_deref(), Some("notify" | "notify-reload"));
    if !unit.could_notify() || !notifies {
        return None;
    }
    if unit.has_watchdog {
        return Some(row("watchdog", Verdict::Ok, "a process that hangs is started again"));
    }
    let remedy = format!("systemctl edit {}: [Service] WatchdogSec=60", unit.name);
    Some(row("watchdog", Verdict::Info, "systemd does not notice a process that hangs").remedy(remedy))
}

/// A keeper that the mount starts is of its unit, and systemd ends it with the unit's main process.
fn descriptors(unit: &Unit, config: &Config) -> Option<Check> {
    let kept = unit.kept_descriptors.filter(|_| config.fuse_survive_crash && unit.mounts())?;
    if kept > 0 {
        return Some(row("descriptors", Verdict::Ok, format!("systemd keeps up to {kept} of them over a crash")));
    }
    let what = "fuse.survive_crash is set, and systemd keeps no descriptors (FileDescriptorStoreMax=0): a crash ends the mount, and \
                the keeper with it";
    let remedy = format!(
        "systemctl edit {}: [Service] FileDescriptorStoreMax=4096, and before systemd 254 Environment=FDSTORE=4096",
        unit.name
    );
    Some(row("descriptors", Verdict::Warn, what).remedy(remedy))
}
