//! Object stores, and the clock that requests to them are signed by.

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, OriginProbe};

/// From here on S3 refuses requests (`RequestTimeTooSkewed`).
const SKEW_REFUSED_S: u64 = 15 * 60;

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    let mut checks: Vec<Check> = facts.origins.iter().map(reachable).collect();
    if checks.is_empty() {
        checks.push(
            row("reachable", Verdict::Info, "no origin is configured")
                .remedy("forebay doctor --origin s3://bucket/prefix"),
        );
    }
    checks.push(clock(facts));
    checks.extend(facts.origins.iter().filter_map(skew));
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

/// How far the clock is from that of the server, which tells its time with every answer.
fn skew(probe: &OriginProbe) -> Option<Check> {
    let ahead = probe.clock_ahead_s?;
    let side = if ahead < 0 { "behind" } else { "ahead of" };
    let check = |verdict, what: String| row("clock-skew", verdict, what).about(&probe.url);
    Some(match ahead.unsigned_abs() {
        // The answer's way, and that it tells whole seconds.
        seconds @ ..=30 => check(Verdict::Ok, format!("the clock is that of the server, give or take {seconds} s")),
        seconds => {
            let verdict = if seconds >= SKEW_REFUSED_S { Verdict::Fail } else { Verdict::Warn };
            check(
                verdict,
                format!("the clock is {seconds} s {side} the server's; signed requests are refused from 15 min on"),
            )
            .remedy("chronyc makestep, or timedatectl set-ntp true; date -u shows the time")
        }
    })
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
