//! Who sees what is mounted here: a mount goes on to other mount namespaces from a mount that is shared with them
//! (mount_namespaces(7)).

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// Most folders that are named.
const MAX_FOLDERS: usize = 16;
/// File systems of the kernel's own, below which nobody mounts.
const OF_KERNEL: [&str; 12] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "mqueue",
    "devtmpfs",
    "securityfs",
    "debugfs",
    "tracefs",
    "bpf",
    "hugetlbfs",
];

/// What becomes of mounts below a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// Nobody else sees them, and none of others' is seen.
    #[default]
    Private,
    /// Those of the host are seen here, and none the other way: `HostToContainer`.
    Slave,
    /// All in one group of peers see them: `Bidirectional`.
    Shared,
}

/// A mount of Forebay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// Where it is.
    pub path: String,
    /// The mount that it lies on.
    pub on: String,
    /// What that does with it.
    pub propagation: Propagation,
}

/// What the mount table says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MountsSeen {
    /// The mounts of Forebay.
    pub mounted: Vec<Mounted>,
    /// Folders below which a mount is seen by others, too.
    pub shared: Vec<String>,
}

/// A line of the table.
struct Line<'a> {
    id: &'a str,
    parent: &'a str,
    path: &'a str,
    propagation: Propagation,
    file_system: &'a str,
}

impl MountsSeen {
    pub(crate) fn read(root: &Root) -> Self {
        Self::of(&root.text("proc/self/mountinfo").unwrap_or_default())
    }

    /// What a table says such as `63 28 0:45 / /mnt/data rw,nosuid shared:9 master:1 - fuse.forebay s3://bucket rw`.
    fn of(table: &str) -> Self {
        let lines: Vec<Line<'_>> = table.lines().filter_map(Line::parse).collect();
        let is_ours = |line: &&Line<'_>| line.file_system == "fuse.forebay";
        let mounted = lines.iter().filter(is_ours).filter_map(|line| {
            let on = lines.iter().find(|other| other.id == line.parent)?;
            Some(Mounted { path: line.path.to_owned(), on: on.path.to_owned(), propagation: on.propagation })
        });
        let is_folder = |line: &&Line<'_>| {
            line.propagation == Propagation::Shared && !OF_KERNEL.contains(&line.file_system) && !is_ours(line)
        };
        let shared = lines.iter().filter(is_folder).map(|line| line.path.to_owned());
        Self { mounted: mounted.collect(), shared: shared.take(MAX_FOLDERS).collect() }
    }
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut words = before.split(' ');
        let (id, parent) = (words.next()?, words.next()?);
        // After device, root, path and options come fields that need not be there.
        let path = words.nth(2)?;
        let tags: Vec<&str> = words.skip(1).collect();
        let has = |tag: &str| tags.iter().any(|found| found.split(':').next() == Some(tag));
        // One that has a master and peers passes on what it gets; what is mounted here gets to the peers alone, as in a unit of systemd
        // with a view of its own.
        let propagation = match (has("shared"), has("master")) {
            (_, true) => Propagation::Slave,
            (true, false) => Propagation::Shared,
            (false, false) => Propagation::Private,
        };
        Some(Self { id, parent, path, propagation, file_system: after.split(' ').next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod with a volume of each kind, as the kubelet and runc make it.
    const POD: &str = "\
700 650 0:61 / / rw,relatime master:290 - overlay overlay rw,lowerdir=/l
701 700 0:64 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
702 700 0:65 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
703 700 8:1 /mnt/forebay /mnt/forebay rw,relatime shared:1 - ext4 /dev/sda1 rw
704 700 8:1 /mnt/data /data rw,relatime master:1 - ext4 /dev/sda1 rw
705 700 8:1 /var/lib/x /var/lib/x rw,relatime - ext4 /dev/sda1 rw
706 703 0:77 / /mnt/forebay/a rw,nosuid,nodev shared:400 - fuse.forebay workers rw
707 704 0:78 / /data/b rw,nosuid,nodev - fuse.forebay workers rw
708 705 0:79 / /var/lib/x/c rw,nosuid,nodev - fuse.forebay workers rw
709 999 0:80 / /lost rw - fuse.forebay workers rw
710 700 0:81 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup rw
nonsense
 - ext4 x";

    #[test]
    fn what_a_mount_lies_on_says_who_sees_it() {
        let seen = MountsSeen::of(POD);
        let mounted = |path: &str, on: &str, propagation| Mounted { path: path.into(), on: on.into(), propagation };
        let expected = [
            mounted("/mnt/forebay/a", "/mnt/forebay", Propagation::Shared),
            mounted("/data/b", "/data", Propagation::Slave),
            mounted("/var/lib/x/c", "/var/lib/x", Propagation::Private),
        ];
        assert_eq!(seen.mounted, expected);
        assert_eq!(seen.shared, ["/mnt/forebay"], "neither the kernel's own nor our mounts");
    }

    #[test]
    fn a_group_below_a_master_is_not_the_hosts() {
        let seen = MountsSeen::of(
            "1 0 8:1 / / rw shared:300 master:1 - ext4 /dev/sda1 rw\n2 1 0:5 / /m rw - fuse.forebay w rw",
        );
        assert_eq!((seen.mounted[0].propagation, seen.shared.len()), (Propagation::Slave, 0));
    }
}
