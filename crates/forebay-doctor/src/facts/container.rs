//! The container or the pod that this process runs in: what made it, what it may do, and what it has for itself.

use serde::{Deserialize, Serialize};

use crate::facts::namespaces::Namespaces;
use crate::facts::processor_limit::ProcessorLimit;
use crate::facts::propagation::MountsSeen;
use crate::facts::system::{capability, field};
use crate::root::Root;

/// Numbers of capabilities, from `linux/capability.h`.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;
/// Variables that say where this process runs. Nothing else is kept of the environment, which has secrets.
const VARIABLES: [&str; 5] = [KUBERNETES, CONTAINER, POD_NAME, POD_NAMESPACE, NODE_NAME];
/// The kubelet sets it in every container.
const KUBERNETES: &str = "KUBERNETES_SERVICE_HOST";
/// Podman, LXC and systemd-nspawn set it to their name.
const CONTAINER: &str = "container";
/// Whoever writes a pod may set these, by the downward API.
const POD_NAME: &str = "POD_NAME";
const POD_NAMESPACE: &str = "POD_NAMESPACE";
const NODE_NAME: &str = "NODE_NAME";
/// The namespace of a pod that has a service account's token, which is beside it and is not looked at.
const NAMESPACE_FILE: &str = "var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The container that this process runs in, and what it may do there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Container {
    /// What made it: `kubernetes`, `docker`, `podman`, …, or `container` where that does not tell. `None`: it runs in none.
    pub kind: Option<String>,
    /// The pod, where Kubernetes made it.
    pub pod: Option<Pod>,
    /// What it has for itself.
    pub namespaces: Namespaces,
    /// Who root of it is outside, by number; `None` where that is nobody.
    pub root_outside: Option<u32>,
    /// Whether it has `CAP_IPC_LOCK`. In a namespace of users that is worth nothing to the host's kernel.
    pub has_ipc_lock: bool,
    /// Whether it has `CAP_SYS_RESOURCE`, which goes beyond limits.
    pub has_sys_resource: bool,
    /// Whether a program that is setuid root, as `fusermount3` is, gets `CAP_SYS_ADMIN` here.
    pub may_gain_sys_admin: bool,
    /// Which system calls are kept from it: 0 none, 1 all but four, 2 those that a filter names.
    pub seccomp: Option<u32>,
    /// The profile of AppArmor or the label of SELinux that it is confined by.
    pub profile: Option<String>,
    /// The program that is process 1, with which all others of a container end.
    pub first_process: Option<String>,
    /// How much of the processors' time it may have.
    pub processors: Option<ProcessorLimit>,
    /// Who sees what is mounted here.
    pub mounts: MountsSeen,
}

/// A pod of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its name: `POD_NAME`, or the host's name where it has a network of its own.
    pub name: Option<String>,
    /// Its namespace: `POD_NAMESPACE`, or that of its service account or of the names that it looks up.
    pub namespace: Option<String>,
    /// Its node: `NODE_NAME`.
    pub node: Option<String>,
}

impl Container {
    pub(crate) fn read(root: &Root) -> Self {
        let status = root.text("proc/self/status").unwrap_or_default();
        let namespaces = Namespaces::read(root);
        let variables = root.text_of("proc/self/environ", told).unwrap_or_default();
        let kind = kind(root, namespaces, &variables);
        let has = |number: u32| capability(&status, "CapEff:", number);
        let gains_nothing = field(&status, "NoNewPrivs:") == Some("1");
        Self {
            pod: (kind.as_deref() == Some("kubernetes")).then(|| Pod::read(root, namespaces, &variables)),
            root_outside: root_outside(&root.text("proc/self/uid_map").unwrap_or_default()),
            has_ipc_lock: has(CAP_IPC_LOCK),
            has_sys_resource: has(CAP_SYS_RESOURCE),
            may_gain_sys_admin: !gains_nothing && capability(&status, "CapBnd:", CAP_SYS_ADMIN),
            seccomp: field(&status, "Seccomp:").and_then(|mode| mode.parse().ok()),
            profile: profile(root),
            first_process: root.word("proc/1/comm"),
            processors: ProcessorLimit::read(root),
            // The table is long, and of no use elsewhere: what is mounted on a host is seen by the host.
            mounts: kind.as_ref().map(|_| MountsSeen::read(root)).unwrap_or_default(),
            namespaces,
            kind,
        }
    }

    /// Whether the network is the container's own.
    #[must_use]
    pub fn has_own_network(&self) -> bool {
        self.namespaces.network == Some(true)
    }

    /// Whether users are the container's own, and capabilities worth nothing to the host's kernel.
    #[must_use]
    pub fn has_own_users(&self) -> bool {
        self.namespaces.users == Some(true)
    }
}

impl Pod {
    fn read(root: &Root, namespaces: Namespaces, variables: &str) -> Self {
        // The kubelet names a pod's host after the pod, unless the host is the node's.
        let hostname = || root.word("proc/sys/kernel/hostname").filter(|_| namespaces.network == Some(true));
        // `search team-a.svc.cluster.local svc.cluster.local cluster.local`
        let searched = || {
            let text = root.text("etc/resolv.conf")?;
            let first = text.lines().find_map(|line| line.strip_prefix("search "))?.split_whitespace().next()?;
            let (namespace, rest) = first.split_once('.')?;
            rest.starts_with("svc.").then(|| namespace.to_owned())
        };
        let namespace = variable(variables, POD_NAMESPACE);
        Self {
            name: variable(variables, POD_NAME).or_else(hostname),
            namespace: namespace.or_else(|| root.word(NAMESPACE_FILE)).or_else(searched),
            node: variable(variables, NODE_NAME),
        }
    }
}

/// The variables of an environment that matter here, each on a line.
fn told(environment: &str) -> String {
    let is_told = |line: &&str| line.split_once('=').is_some_and(|(name, _)| VARIABLES.contains(&name));
    // In a copy each has a line by now.
    environment.split(['\0', '\n']).filter(is_told).collect::<Vec<_>>().join("\n")
}

/// The value of a variable, unless it is empty.
fn variable(variables: &str, name: &str) -> Option<String> {
    let value = variables.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// What made the container, if there is one. A file that names a maker is in images of virtual machines, too: it counts where the
/// process has a namespace of its own.
fn kind(root: &Root, namespaces: Namespaces, variables: &str) -> Option<String> {
    if variable(variables, KUBERNETES).is_some() || root.is_file(NAMESPACE_FILE) {
        return Some("kubernetes".to_owned());
    }
    let named = || {
        let by_file = [(".dockerenv", "docker"), ("run/.containerenv", "podman")];
        let by_file = by_file.into_iter().find(|(file, _)| root.is_file(file)).map(|(_, name)| name.to_owned());
        variable(variables, CONTAINER).or_else(|| root.word("run/systemd/container")).or(by_file)
    };
    let Namespaces { processes, mounts, users, .. } = namespaces;
    match (processes, mounts, users) {
        (Some(true), ..) | (.., Some(true)) => Some(named().unwrap_or_else(|| "container".to_owned())),
        // Many a unit of systemd has a view of its own on what is mounted, and is in no container.
        (_, Some(true), _) => named(),
        _ => None,
    }
}

/// Who root is outside, in a table such as `0 100000 65536`: from this number on, that one, so many.
fn root_outside(map: &str) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (Some(Ok(0)), Some(Ok(outside))) = (numbers.next(), numbers.next()) else { return None };
        Some(outside)
    })
}

/// What AppArmor or SELinux confines this process by: `docker-default (enforce)`, `system_u:system_r:container_t:s0:c1,c2`.
fn profile(root: &Root) -> Option<String> {
    let profile = root.word("proc/self/attr/apparmor/current").or_else(|| root.word("proc/self/attr/current"))?;
    // SELinux ends its label with a zero.
    let profile = profile.trim_end_matches('\0');
    (!profile.is_empty() && profile != "unconfined").then(|| profile.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const OWN: [(&str, &str); 3] =
        [("pid", "pid:[4026532301]"), ("mnt", "mnt:[4026532299]"), ("net", "net:[4026532302]")];

    fn machine(files: &[(&str, &str)], namespaces: &[(&str, &str)]) -> Container {
        let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (path, content) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        std::fs::create_dir_all(folder.path().join("proc/self/ns")).unwrap();
        for (kind, target) in namespaces {
            symlink(target, folder.path().join("proc/self/ns").join(kind)).unwrap();
        }
        let root = Root::new(folder.path()).recorded_to(copy.path()).unwrap();
        let found = Container::read(&root);
        assert_eq!(Container::read(&Root::new(copy.path())), found, "the copy says the same");
        let copied = std::fs::read_to_string(copy.path().join("proc/self/environ")).unwrap_or_default();
        assert!(!copied.contains("SECRET"), "{copied}");
        found
    }

    #[test]
    fn a_pod_is_named_as_far_as_it_is_told() {
        let environment =
            "PATH=/bin\0AWS_SECRET=x\0KUBERNETES_SERVICE_HOST=10.96.0.1\0POD_NAMESPACE=team-a\0NODE_NAME=n1\0";
        let files = [("proc/self/environ", environment), ("proc/sys/kernel/hostname", "reader-7\n")];
        let found = machine(&files, &OWN);
        let word = |text: &str| Some(text.to_owned());
        assert_eq!(found.kind.as_deref(), Some("kubernetes"));
        assert_eq!(found.pod, Some(Pod { name: word("reader-7"), namespace: word("team-a"), node: word("n1") }));
        let host = [("pid", "pid:[4026532301]"), ("net", "net:[4026531840]")];
        let found = machine(&files, &host);
        assert_eq!(found.pod.unwrap().name, None, "the name of the node");
        let resolved = "nameserver 10.96.0.10\nsearch team-b.svc.cluster.local svc.cluster.local\n";
        let files = [("proc/self/environ", "KUBERNETES_SERVICE_HOST=1\0"), ("etc/resolv.conf", resolved)];
        assert_eq!(machine(&files, &OWN).pod.unwrap().namespace, word("team-b"));
        let found = machine(&[(NAMESPACE_FILE, "team-c")], &[]);
        assert_eq!((found.kind.as_deref(), found.pod.unwrap().namespace), (Some("kubernetes"), word("team-c")));
    }

    #[test]
    fn a_file_of_docker_makes_no_container_of_a_machine() {
        let kind = |files: &[(&str, &str)], namespaces: &[(&str, &str)]| machine(files, namespaces).kind;
        let host = [("pid", "pid:[4026531836]"), ("mnt", "mnt:[4026531832]"), ("user", "user:[4026531837]")];
        assert_eq!(kind(&[(".dockerenv", "")], &host), None);
        assert_eq!(kind(&[(".dockerenv", "")], &OWN).as_deref(), Some("docker"));
        assert_eq!(kind(&[("run/.containerenv", "engine=\"podman\"")], &OWN).as_deref(), Some("podman"));
        assert_eq!(kind(&[("proc/self/environ", "container=lxc\0")], &OWN).as_deref(), Some("lxc"));
        assert_eq!(kind(&[], &OWN).as_deref(), Some("container"));
        assert_eq!(kind(&[], &[("user", "user:[4026532290]")]).as_deref(), Some("container"));
        let of_unit = [("pid", "pid:[4026531836]"), ("mnt", "mnt:[4026532290]")];
        assert_eq!(kind(&[], &of_unit), None, "PrivateTmp");
        assert_eq!(kind(&[("run/systemd/container", "docker\n")], &of_unit).as_deref(), Some("docker"), "--pid=host");
        assert_eq!(kind(&[], &[]), None, "nothing is known");
    }

    #[test]
    fn what_it_may_do_is_in_its_status() {
        let of = |status: &str| machine(&[("proc/self/status", status)], &OWN);
        // Docker's default.
        let docker = of("CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t0\nSeccomp:\t2\n");
        assert!(!docker.has_ipc_lock && !docker.has_sys_resource && !docker.may_gain_sys_admin);
        assert_eq!(docker.seccomp, Some(2));
        let privileged = of("CapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t0\nSeccomp:\t0\n");
        assert!(privileged.has_ipc_lock && privileged.has_sys_resource && privileged.may_gain_sys_admin);
        let kept = of("CapEff:\t0000000000004000\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t1\n");
        assert!(kept.has_ipc_lock && !kept.may_gain_sys_admin, "{kept:?}");
        assert_eq!((of("").seccomp, of("CapEff:\tx\n").has_ipc_lock), (None, false));
    }

    #[test]
    fn users_and_profiles_are_what_the_kernel_says() {
        assert_eq!(root_outside("         0          0 4294967295\n"), Some(0));
        assert_eq!(root_outside("         0     100000      65536\n"), Some(100_000));
        assert_eq!(root_outside("      1000       1000          1\n"), None);
        assert_eq!((root_outside(""), root_outside("0\n0 x 1\n")), (None, None));
        let of = |path: &str, text: &str| machine(&[(path, text)], &OWN).profile;
        assert_eq!(of("proc/self/attr/current", "unconfined\n"), None);
        assert_eq!(
            of("proc/self/attr/apparmor/current", "docker-default (enforce)\n").as_deref(),
            Some("docker-default (enforce)")
        );
        assert_eq!(
            of("proc/self/attr/current", "system_u:system_r:container_t:s0\0").as_deref(),
            Some("system_u:system_r:container_t:s0")
        );
    }
}
