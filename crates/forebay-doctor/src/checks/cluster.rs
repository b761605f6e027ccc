//! etcd and coordinators, as they answered.

use crate::checks::{Check, Section, Verdict};
use crate::facts::{CoordinatorProbe, EtcdProbe, Facts};
use crate::text::{listed, time};

/// A read that all members agree on takes a few milliseconds. From here on leases are in danger when it gets worse.
const SLOW_US: u64 = 200_000;

pub(crate) fn check(facts: &Facts) -> Vec<Check> {
    let mut checks: Vec<Check> = facts.etcd.iter().map(|probe| etcd(facts, probe)).collect();
    checks.extend(etcd_versions(facts));
    checks.extend(facts.coordinators.iter().flat_map(coordinator));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Cluster, name, verdict, what)
}

fn etcd(facts: &Facts, probe: &EtcdProbe) -> Check {
    let check = match &probe.error {
        Some(error) => {
            // The others serve as long as they are the most.
            let others = facts.etcd.iter().filter(|other| other.error.is_none()).count();
            let verdict = if others == 0 { Verdict::Fail } else { Verdict::Warn };
            let remedy = probe.remedy.clone().unwrap_or_else(|| {
                "check that this member runs, and what is between: etcdctl endpoint health; etcdctl endpoint status"
                    .to_owned()
            });
            row("etcd", verdict, error).remedy(remedy)
        }
        None => {
            let version = probe.version.as_ref().map(|version| format!("etcd {version}, ")).unwrap_or_default();
            let what = format!("{version}a read that all agree on took {}", time(probe.took_us * 1000));
            match probe.took_us >= SLOW_US {
                true => row("etcd", Verdict::Warn, what).remedy(
                    "etcd wants a disk of its own that syncs in 10 ms, and to be near: look at etcd_disk_wal_fsync_duration",
                ),
                false => row("etcd", Verdict::Ok, what),
            }
        }
    };
    check.about(&probe.endpoint)
}

/// Members in the middle of an upgrade work; left so, they do not get what is new, and one that is lost cannot come back.
fn etcd_versions(facts: &Facts) -> Option<Check> {
    let mut versions: Vec<&str> = facts.etcd.iter().filter_map(|probe| probe.version.as_deref()).collect();
    versions.sort_unstable();
    versions.dedup();
    (versions.len() > 1).then(|| {
        row("etcd-versions", Verdict::Warn, format!("members run different versions: {}", listed(&versions)))
            .remedy("finish the upgrade: one release on all members")
    })
}

fn coordinator(probe: &CoordinatorProbe) -> Vec<Check> {
    let about = |check: Check| check.about(&probe.address);
    if let Some(error) = &probe.error {
        let remedy = probe.remedy.clone().unwrap_or_else(|| {
            "start `forebay coordinator` there, or correct coordinator.hostname and coordinator.port".to_owned()
        });
        return vec![about(row("coordinator", Verdict::Fail, error).remedy(remedy))];
    }
    let version = probe.version.as_deref().unwrap_or("of unknown version");
    let what = format!("Forebay {version}, answered in {}", time(probe.took_us * 1000));
    let ours = env!("CARGO_PKG_VERSION");
    let mut checks = vec![about(match version == ours {
        true => row("coordinator", Verdict::Ok, what),
        false => row("coordinator", Verdict::Warn, format!("{what}; this is {ours}"))
            .remedy("run one release on all machines"),
    })];
    if let Some(reason) = &probe.without_state {
        checks.push(about(
            row("coordinator-state", Verdict::Fail, format!("it does not reach the cluster's state: {reason}"))
                .remedy("check etcd, and cluster.etcd.endpoints where the coordinator runs"),
        ));
    }
    checks.push(about(match &probe.leader {
        Some(leader) => row("leader", Verdict::Ok, format!("{leader} runs the jobs")),
        None => row("leader", Verdict::Warn, "nobody runs jobs: no coordinator leads")
            .remedy("one is elected within cluster.lease_ttl; if not, look at the coordinators' logs and at etcd"),
    }));
    checks.extend(probe.warnings.iter().map(|warning| {
        about(row("warning", Verdict::Warn, warning).remedy("forebay cluster status shows the cluster"))
    }));
    checks
}
