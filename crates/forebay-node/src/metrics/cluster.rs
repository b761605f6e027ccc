//! Metrics of what is around the data: coordinators, members, etcd, and who is who.

use forebay_metrics::Families;

use crate::report::{Audit, Cluster, Coordinator, Etcd, Security};

pub(super) fn of_coordinator(coordinator: &Coordinator, families: &mut Families) {
    families
        .gauge("forebay_coordinator_leader", "Whether this coordinator is the leader: 1 or 0")
        .add([], u64::from(coordinator.leads));
    let mut jobs = families.gauge("forebay_coordinator_jobs", "Jobs that the leader remembers, by state");
    for state in ["WAITING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED"] {
        jobs = jobs.add([("state", state)], coordinator.jobs.get(state).copied().unwrap_or(0));
    }
    families
        .gauge("forebay_coordinator_job_rate_bytes", "Bytes per second that running jobs load, free or check")
        .add([], coordinator.bytes_per_second);
    families
        .gauge("forebay_coordinator_job_failures", "Files that failed in the remembered jobs")
        .add([], coordinator.failures);
}

pub(super) fn of_members(cluster: &Cluster, families: &mut Families) {
    families
        .gauge("forebay_cluster_members", "Workers in the ring, according to this process")
        .add([], cluster.members.len());
    families
        .gauge("forebay_cluster_last_known_seconds", "Age of the information about the members; 0 while it is current")
        .add([], cluster.last_known.as_ref().map_or(0, |known| known.seconds));
}

pub(super) fn of_etcd(etcd: &Etcd, families: &mut Families) {
    families
        .counter(
            "forebay_etcd_certificate_renewals_total",
            "Times that changed certificate files for etcd came into use",
        )
        .add([], etcd.certificate_renewals);
    families
        .gauge(
            "forebay_etcd_certificate_refused_seconds",
            "Time for which the certificate files for etcd have been unusable; 0 while they are usable",
        )
        .add([], etcd.certificate_refused_seconds.unwrap_or(0));
}

pub(super) fn of_security(security: &Security, families: &mut Families) {
    families
        .gauge(
            "forebay_security_certificate_expires_seconds",
            "Time until the certificate of a worker expires; 0 once it has, and nobody believes it",
        )
        .add([], security.certificate_expires_seconds);
}

pub(super) fn of_audit(audit: &Audit, families: &mut Families) {
    let help = "Events that are missing from the audit log of a worker or a coordinator";
    families.counter("forebay_audit_lost_total", help).add([], audit.lost);
}
