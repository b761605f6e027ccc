//! Which namespaces this process has for itself (namespaces(7)): those of its host are told by the numbers that they have.

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// The numbers of those that the kernel starts with, from `linux/nsfs.h`. They are the same on every machine.
const FIRST_PROCESSES: u64 = 0xEFFF_FFFC;
const FIRST_USERS: u64 = 0xEFFF_FFFD;
/// Before Linux 6.18 the first ones for mounts and network had a number of the row in which files of procfs and later namespaces
/// get theirs, which begins at `0xF000_0000`. The kernel takes a few hundred of it before there are containers; the first network
/// has mostly 0 or 152 of it, the first mounts 0 or 1.
const BY_BOOT: u64 = 0xF000_0000 + 160;

/// Whether each is this process's and its container's, and not the host's. `None`: that cannot be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespaces {
    /// Of processes: its process 1 is the container's first.
    pub processes: Option<bool>,
    /// Of mounts.
    pub mounts: Option<bool>,
    /// Of the network.
    pub network: Option<bool>,
    /// Of users: who is root here is somebody else outside.
    pub users: Option<bool>,
}

impl Namespaces {
    pub(crate) fn read(root: &Root) -> Self {
        let number = |process: &str, kind: &str| number(root, process, kind);
        let is_first_of_host = number("1", "pid") == Some(FIRST_PROCESSES);
        let is_own = |kind: &str| {
            let own = number("self", kind)?;
            // Only root may look, and only where process 1 is the host's does it tell.
            let of_host = is_first_of_host.then(|| number("1", kind)).flatten();
            Some(of_host.map_or(own >= BY_BOOT, |of_host| own != of_host))
        };
        Self {
            processes: number("self", "pid").map(|own| own != FIRST_PROCESSES),
            mounts: is_own("mnt"),
            network: is_own("net"),
            users: has_own_users(root),
        }
    }
}

/// Whether the users of this process are not the host's. Capabilities are then those of its namespace, and the host's kernel asks for
/// its own where memory is locked or reads are passed through.
pub(crate) fn has_own_users(root: &Root) -> Option<bool> {
    number(root, "self", "user").map(|own| own != FIRST_USERS)
}

/// The number in a link such as `pid:[4026531836]`.
fn number(root: &Root, process: &str, kind: &str) -> Option<u64> {
    let name = root.link(format!("proc/{process}/ns/{kind}"))?;
    name.to_str()?.strip_prefix(kind)?.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn namespaces(links: &[(&str, &str)]) -> Namespaces {
        let folder = tempfile::tempdir().unwrap();
        for (path, target) in links {
            let path = folder.path().join("proc").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        }
        Namespaces::read(&Root::new(folder.path()))
    }

    #[test]
    fn those_of_the_host_are_known_by_their_numbers() {
        let own = |mounts: &'static str, network: &'static str| {
            let found = namespaces(&[
                ("self/ns/pid", "pid:[4026531836]"),
                ("self/ns/user", "user:[4026531837]"),
                ("self/ns/mnt", mounts),
                ("self/ns/net", network),
            ]);
            assert_eq!((found.processes, found.users), (Some(false), Some(false)));
            (found.mounts, found.network)
        };
        let [none, both] = [(Some(false), Some(false)), (Some(true), Some(true))];
        assert_eq!(own("mnt:[4026531832]", "net:[4026531833]"), none, "Linux 6.18");
        assert_eq!(own("mnt:[4026531841]", "net:[4026531840]"), none, "Linux 6.1");
        assert_eq!(own("mnt:[4026531840]", "net:[4026531992]"), none, "Linux 5.4");
        assert_eq!(own("mnt:[4026532214]", "net:[4026532217]"), both);
        assert_eq!(own("mnt:4026532214", "[4026532217]"), (None, None), "nonsense");
        assert_eq!(namespaces(&[]), Namespaces::default());
    }

    #[test]
    fn root_compares_with_the_hosts_first_process() {
        let found = namespaces(&[
            ("1/ns/pid", "pid:[4026531836]"),
            ("1/ns/mnt", "mnt:[4026531841]"),
            ("1/ns/net", "net:[4026532300]"),
            ("self/ns/pid", "pid:[4026531836]"),
            ("self/ns/mnt", "mnt:[4026531860]"),
            ("self/ns/net", "net:[4026532300]"),
        ]);
        assert_eq!((found.mounts, found.network), (Some(true), Some(false)), "whatever the numbers");
    }

    #[test]
    fn the_first_process_of_a_container_tells_nothing_of_the_host() {
        let found = namespaces(&[
            ("1/ns/pid", "pid:[4026532301]"),
            ("1/ns/mnt", "mnt:[4026532299]"),
            ("1/ns/net", "net:[4026531840]"),
            ("self/ns/pid", "pid:[4026532301]"),
            ("self/ns/mnt", "mnt:[4026532299]"),
            ("self/ns/net", "net:[4026531840]"),
            ("self/ns/user", "user:[4026532298]"),
        ]);
        let expected =
            Namespaces { processes: Some(true), mounts: Some(true), network: Some(false), users: Some(true) };
        assert_eq!(found, expected);
    }
}
