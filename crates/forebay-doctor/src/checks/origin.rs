//! Object stores, and the clock that requests to them are signed by.

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, OriginProbe};

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    let mut checks: Vec<Check> = facts.origins.iter().map(reachable).collect();
    if checks.is_empty() {
        checks.push(
            row("reachable", Verdict::Info, "no origin is configured")
                .remedy("forebay doctor --origin s3://bucket/prefix"),
        );
    }
    checks.push(clock(facts));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Origin, name, verdict, what)
}

fn reachable(probe: &OriginProbe) -> Check {
    let check = match &probe.error {
        None => row("reachable", Verdict::Ok, format!("answered in {} ms", probe.took_ms)),
        Some(reason) => {
            let failed = row("reachable", Verdict::Fail, format!("{reason} (after {} ms)", probe.took_ms));
            match &probe.remedy {
                Some(remedy) => failed.remedy(remedy),
                None => failed,
            }
        }
    };
    check.about(&probe.url)
}

/// A signature counts for 15 minutes around the server's time; a clock that nothing keeps right gets there.
fn clock(facts: &Facts) -> Check {
    match facts.clock.is_synchronized {
        Some(true) => row("clock", Verdict::Ok, "the clock is synchronized"),
        Some(false) => {
            let verdict = if facts.origins.is_empty() { Verdict::Info } else { Verdict::Warn };
            row("clock", verdict, "nothing keeps the clock right: S3 refuses requests signed 15 minutes off")
                .remedy("timedatectl set-ntp true, or systemctl start chronyd; date -u shows the time")
        }
        None => row("clock", Verdict::Info, "the kernel does not say whether the clock is synchronized"),
    }
}
