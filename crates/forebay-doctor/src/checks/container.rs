//! A container or a pod: what it has for itself, and what of Forebay does not go out of it.

use std::net::IpAddr;

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict};
use crate::facts::{Facts, Pod, Propagation};
use crate::text::listed;

/// What has the host see what is mounted here.
const BIDIRECTIONAL: &str = "a hostPath volume with mountPropagation: Bidirectional in a privileged container (the chart's \
                             mount.enabled); docker run --volume /mnt:/mnt:rshared; the folder itself must be on a shared mount of \
                             the host (mount --make-shared)";

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    let Some(kind) = &facts.container.kind else { return Vec::new() };
    let mut checks = vec![named(facts, kind)];
    checks.extend(users(facts));
    checks.extend(propagation(facts));
    checks.extend(network(facts));
    checks.extend(advertised(facts, config));
    checks.extend(processes(facts, config));
    checks
}

fn row(name: &'static str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Container, name, verdict, what)
}

fn named(facts: &Facts, kind: &str) -> Check {
    let what = match &facts.container.pod {
        Some(pod) => self::pod(pod),
        None => format!("this process runs in a container ({kind}): the limits and devices here are that one's"),
    };
    row("kind", Verdict::Info, what)
}

/// A pod, as far as it is known.
fn pod(pod: &Pod) -> String {
    let known = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
    let node = pod.node.as_ref().map_or_else(String::new, |node| format!(" on node {node}"));
    format!(
        "this process runs in a pod of Kubernetes: {} in namespace {}{node}",
        known(&pod.name),
        known(&pod.namespace)
    )
}

/// Root of a namespace of users is nobody to the host: it mounts, and may do less than its capabilities say.
fn users(facts: &Facts) -> Option<Check> {
    let container = &facts.container;
    if !container.has_own_users() {
        return None;
    }
    let outside = container.root_outside.map_or_else(|| "nobody".to_owned(), |user| format!("user {user}"));
    let what = format!(
        "users are the container's own, and root is {outside} outside: no FUSE passthrough, no memory locked beyond `ulimit -l`, \
         and files of the host belong to others"
    );
    // A worker over TCP does without all of that.
    Some(
        row("users", Verdict::Info, what)
            .remedy("hostUsers: true in the pod; docker run --userns=host; podman as root"),
    )
}

/// Who sees the mounts that are there, and those that there could be.
fn propagation(facts: &Facts) -> Vec<Check> {
    if facts.container.namespaces.mounts == Some(false) {
        return Vec::new();
    }
    let seen = &facts.container.mounts;
    let of_mount = seen.mounted.iter().map(|mounted| {
        let on = &mounted.on;
        let check = match mounted.propagation {
            Propagation::Shared => {
                row("propagation", Verdict::Ok, format!("{on} is shared: the host sees the mount, and so do others"))
            }
            Propagation::Slave => {
                let what = format!(
                    "{on} gets mounts of the host and gives none (HostToContainer): only this container sees it"
                );
                row("propagation", Verdict::Warn, what).remedy(BIDIRECTIONAL)
            }
            Propagation::Private => {
                row("propagation", Verdict::Warn, format!("{on} is private: only this container sees the mount"))
                    .remedy(BIDIRECTIONAL)
            }
        };
        check.about(&mounted.path)
    });
    if !seen.mounted.is_empty() {
        return of_mount.collect();
    }
    let none = seen.shared.is_empty();
    vec![if none {
        row("propagation", Verdict::Info, "no mount here is shared: what is mounted is seen by this container alone")
            .remedy(BIDIRECTIONAL)
    } else {
        row(
            "propagation",
            Verdict::Info,
            format!("what is mounted below {} is seen by the host, too", listed(&seen.shared)),
        )
    }]
}

fn network(facts: &Facts) -> Option<Check> {
    Some(match facts.container.namespaces.network? {
        true => {
            row("network", Verdict::Info, "the network is the container's own, with addresses and ports of its own")
        }
        false => row("network", Verdict::Info, "the network is the host's (hostNetwork): ports are taken there"),
    })
}

/// In a cluster others connect to the address that a worker gives. One that its network does not have leads elsewhere.
fn advertised(facts: &Facts, config: &Config) -> Option<Check> {
    const REMEDY: &str = "FOREBAY_WORKER_HOSTNAME from the field status.podIP, or status.hostIP with hostNetwork: true (the chart \
                          does so); unless something passes that address on to this one";
    if config.cluster_etcd_endpoints.is_empty() {
        return None;
    }
    let about = |verdict, what: String| row("advertised", verdict, what).about("worker.hostname");
    let Some(host) = &config.worker_hostname else {
        let is_bound = config.worker_rpc_bind_device.is_some()
            || config.network_group_network.is_some()
            || !matches!(config.worker_rpc_bind_host.as_str(), "0.0.0.0" | "::");
        let name = facts.system.hostname.as_deref().unwrap_or("unknown");
        return (facts.container.has_own_network() && !is_bound).then(|| {
            let what =
                format!("it is not set: others are told the container's name, {name}, which they rarely can look up");
            about(Verdict::Warn, what).remedy(REMEDY)
        });
    };
    // What a name stands for is not looked up here.
    let ip: IpAddr = host.as_str().parse().ok()?;
    if !facts.are_addresses_known() {
        return None;
    }
    let mut own =
        facts.interfaces.iter().filter(|interface| interface.addresses.iter().any(|address| address.ip == ip));
    Some(match own.next() {
        Some(interface) => about(Verdict::Ok, format!("{ip} is the address of {} here", interface.name)),
        None => about(Verdict::Warn, format!("{ip} is no address of this container's network")).remedy(REMEDY),
    })
}

/// All processes of a namespace end with its first.
fn processes(facts: &Facts, config: &Config) -> Option<Check> {
    if facts.container.namespaces.processes != Some(true) {
        return None;
    }
    let first = facts.container.first_process.as_deref().unwrap_or("unknown");
    let what = format!("processes are the container's own, and all end with process 1 ({first})");
    if config.fuse_survive_crash && first == "forebay" {
        let what = format!("{what}: fuse.survive_crash is set, and the keeper of the mount ends with it, too");
        return Some(row("processes", Verdict::Warn, what).remedy(
            "shareProcessNamespace: true in the pod, or docker run --init: `forebay keeper` then stays as long as these do",
        ));
    }
    Some(row("processes", Verdict::Info, what).remedy(
        "restartPolicy: Always (a DaemonSet has it), or docker run --restart unless-stopped, starts it again; what is open in a \
         mount ends with it",
    ))
}
