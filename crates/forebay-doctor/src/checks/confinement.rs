//! What a container may do: capabilities, and profiles that forbid what capabilities allow.

use forebay_config::Config;

use crate::checks::{Check, Section, Verdict, cards};
use crate::facts::{Facts, Limit};
use crate::root::Access;

/// Profiles of AppArmor that come with container runtimes. Each denies mount(2), whatever the capabilities.
const DENY_MOUNT: [&str; 4] = ["docker-default", "cri-containerd.apparmor.d", "crio-default", "containers-default-"];
/// A system call filter that names what is kept from a process.
const FILTER: u32 = 2;

pub(crate) fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    if facts.container.kind.is_none() {
        return Vec::new();
    }
    let mut checks = vec![sys_admin(facts), ipc_lock(facts, config), sys_resource(facts)];
    checks.extend(profile(facts));
    checks.extend(seccomp(facts));
    checks
}

fn capability(name: &str, verdict: Verdict, what: impl Into<String>) -> Check {
    Check::new(Section::Container, "capability", verdict, what).about(name)
}

/// A worker needs none. A container that was given `/dev/fuse` is to mount.
fn sys_admin(facts: &Facts) -> Check {
    let row = |verdict, what: &str| capability("SYS_ADMIN", verdict, what);
    if facts.system.may_administrate {
        return row(Verdict::Ok, "this process may mount, and pass reads through");
    }
    let helper = facts.fuse.fusermount.as_ref().is_some_and(|program| program.is_setuid_root);
    if !facts.system.is_root && helper && facts.container.may_gain_sys_admin {
        return row(Verdict::Ok, "this process has it not, and fusermount3 mounts for it; no FUSE passthrough");
    }
    let verdict = if facts.fuse.device == Access::Granted { Verdict::Warn } else { Verdict::Info };
    row(verdict, "not there: this process cannot mount, and passes no reads through; a worker does without").remedy(
        "securityContext: {privileged: true} where the host is to see the mount, else capabilities: {add: [SYS_ADMIN]}; docker run \
         --cap-add SYS_ADMIN --device /dev/fuse",
    )
}

/// RDMA registers memory, which locks it.
fn ipc_lock(facts: &Facts, config: &Config) -> Check {
    let row = |verdict, what: &str| capability("IPC_LOCK", verdict, what);
    if facts.container.has_ipc_lock && !facts.container.has_own_users() {
        return row(Verdict::Ok, "RDMA may register any amount of memory");
    }
    if facts.memory.lock_limit == Some(Limit::Unlimited) {
        return row(Verdict::Ok, "not needed: `ulimit -l` is unlimited");
    }
    // By how much too little it is, `memory memlock` says.
    let verdict = if cards::wanted(config) { Verdict::Warn } else { Verdict::Info };
    let what = if facts.container.has_own_users() {
        "of no use in a namespace of users: RDMA registers no more memory than `ulimit -l` allows"
    } else {
        "not there: RDMA registers no more memory than `ulimit -l` allows"
    };
    row(verdict, what).remedy(
        "securityContext: {capabilities: {add: [IPC_LOCK]}}; docker run --cap-add IPC_LOCK, or --ulimit memlock=-1; in a pod the limit \
         is the runtime's (LimitMEMLOCK=infinity of containerd's unit)",
    )
}

/// Only the soft limit on open files is raised, which needs no capability: this one says how far limits of the container hold.
fn sys_resource(facts: &Facts) -> Check {
    let row = |verdict, what: &str| capability("SYS_RESOURCE", verdict, what);
    if facts.container.has_sys_resource {
        return row(Verdict::Ok, "this process may raise its limits");
    }
    row(Verdict::Info, "not there, and not needed: the limits on open files and locked memory are those of the runtime")
}

fn profile(facts: &Facts) -> Option<Check> {
    let profile = facts.container.profile.as_deref()?;
    let is_enforced = profile.ends_with("(enforce)") && DENY_MOUNT.iter().any(|name| profile.starts_with(*name));
    let is_container = profile.split(':').nth(2).is_some_and(|kind| kind.starts_with("container_"));
    let row = |verdict, what: String| Check::new(Section::Container, "profile", verdict, what);
    if !is_enforced && !is_container {
        return Some(row(Verdict::Info, format!("{profile} confines this process")));
    }
    // Who may not mount anyway has lost nothing.
    let verdict = if facts.system.may_administrate { Verdict::Warn } else { Verdict::Info };
    let what = format!("{profile} lets nothing be mounted, whatever the capabilities");
    Some(row(verdict, what).remedy(if is_enforced {
        "securityContext: {appArmorProfile: {type: Unconfined}} (before Kubernetes 1.30 an annotation); docker run --security-opt \
         apparmor=unconfined"
    } else {
        "securityContext: {seLinuxOptions: {type: spc_t}}, which a privileged container has; docker run --security-opt \
         label=disable"
    }))
}

/// What a filter keeps from a process nobody tells. Those of Docker and containerd let only `CAP_SYS_ADMIN` mount.
fn seccomp(facts: &Facts) -> Option<Check> {
    let mode = facts.container.seccomp?;
    let row = |verdict, what: &str| Check::new(Section::Container, "seccomp", verdict, what);
    Some(if mode == FILTER {
        let what = "a filter of system calls is in force: that of most runtimes has no io_uring, and mount(2) with CAP_SYS_ADMIN \
                    only";
        row(Verdict::Info, what).remedy(
            "securityContext: {seccompProfile: {type: Unconfined}}; docker run --security-opt seccomp=unconfined",
        )
    } else {
        row(Verdict::Ok, "no system call is kept from this process")
    })
}
