//! The kernel, the processors, and what this process may do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::facts::namespaces::has_own_users;
use crate::root::Root;

/// Numbers of capabilities, from `linux/capability.h`.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_ADMIN: u32 = 21;
const PROCESSORS: &str = "sys/devices/system/cpu";
const NODES: &str = "sys/devices/system/node";

/// The kernel, the processors, and what this process may do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// The host's name.
    pub hostname: Option<String>,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: Option<String>,
    /// Processors that are online.
    pub processors: Option<u32>,
    /// NUMA nodes that are online.
    pub numa_nodes: Option<u32>,
    /// Whether this process runs as root.
    pub is_root: bool,
    /// Whether it may lock any amount of memory (`CAP_IPC_LOCK`).
    pub may_lock_memory: bool,
    /// Whether it has `CAP_SYS_ADMIN`, which mounting and passthrough ask for.
    pub may_administrate: bool,
    /// `fs.pipe-max-size`: the largest pipe that a program without privileges may have, in bytes.
    pub pipe_max_bytes: Option<u64>,
    /// Whether this process may drop the page cache, as benchmarks want to.
    pub may_drop_caches: bool,
    /// How far io_uring is forbidden: 0 not at all, 1 to all but some, 2 to all; `None` where the kernel has no such setting.
    pub io_uring_disabled: Option<u32>,
    /// How the first processor's clock is chosen: `performance`, `powersave`, `schedutil`, …
    pub frequency_governor: Option<String>,
    /// How that of each is, by the choice: the processors' numbers.
    #[serde(default)]
    pub governors: BTreeMap<String, BTreeSet<u32>>,
    /// How far each NUMA node's memory is from the others, as the firmware says: 10 is near.
    #[serde(default)]
    pub node_distances: BTreeMap<u32, Vec<u32>>,
    /// The processors of each NUMA node.
    #[serde(default)]
    pub node_processors: BTreeMap<u32, BTreeSet<u32>>,
    /// Where `fio` is, which `forebay bench` drives.
    pub fio: Option<PathBuf>,
}

impl System {
    pub(crate) fn read(root: &Root, search_path: &[PathBuf]) -> Self {
        let status = root.text("proc/self/status").unwrap_or_default();
        let capabilities = capabilities(&status);
        // Real, effective, saved and file system's user.
        let user = field(&status, "Uid:").and_then(|users| users.split_whitespace().nth(1)?.parse::<u32>().ok());
        Self {
            hostname: root.word("proc/sys/kernel/hostname"),
            kernel: root.word("proc/sys/kernel/osrelease"),
            processors: root.text("sys/devices/system/cpu/online").and_then(|list| listed(&list)),
            numa_nodes: root.text("sys/devices/system/node/online").and_then(|list| listed(&list)),
            is_root: user == Some(0),
            // The host's kernel asks for its own capability.
            may_lock_memory: may_lock(capabilities) && has_own_users(root) != Some(true),
            may_administrate: capabilities >> CAP_SYS_ADMIN & 1 == 1,
            pipe_max_bytes: root.number("proc/sys/fs/pipe-max-size"),
            may_drop_caches: root.may_write("proc/sys/vm/drop_caches"),
            io_uring_disabled: root.number("proc/sys/kernel/io_uring_disabled"),
            frequency_governor: governor(root, 0),
            governors: governors(root),
            node_distances: nodes(root, |node| {
                let line = root.text(format!("{NODES}/node{node}/distance"))?;
                line.split_whitespace().map(|distance| distance.parse().ok()).collect()
            }),
            node_processors: nodes(root, |node| numbers(&root.text(format!("{NODES}/node{node}/cpulist"))?)),
            fio: program(root, search_path, "fio"),
        }
    }

    /// The kernel's major and minor version.
    #[must_use]
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.kernel.as_deref()?.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// The line `name` of a process's status, without it.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// What a process may do, as its status says.
pub(crate) fn capabilities(status: &str) -> u64 {
    capability_set(status, "CapEff:")
}

/// Whether the set `set` of a process's status has the capability of this number.
pub(crate) fn capability(status: &str, set: &str, number: u32) -> bool {
    capability_set(status, set) >> number & 1 == 1
}

fn capability_set(status: &str, set: &str) -> u64 {
    field(status, set).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

/// Whether those are enough to lock any amount of memory.
pub(crate) fn may_lock(capabilities: u64) -> bool {
    capabilities >> CAP_IPC_LOCK & 1 == 1
}

fn governor(root: &Root, processor: u32) -> Option<String> {
    root.word(format!("{PROCESSORS}/cpu{processor}/cpufreq/scaling_governor"))
}

/// How each processor's clock is chosen, where that can be read.
fn governors(root: &Root) -> BTreeMap<String, BTreeSet<u32>> {
    let mut found = BTreeMap::<_, BTreeSet<u32>>::new();
    for processor in root.names(PROCESSORS).iter().filter_map(|name| name.strip_prefix("cpu")?.parse().ok()) {
        if let Some(governor) = governor(root, processor) {
            found.entry(governor).or_default().insert(processor);
        }
    }
    found
}

/// What `read` finds of each NUMA node.
fn nodes<T>(root: &Root, read: impl Fn(u32) -> Option<T>) -> BTreeMap<u32, T> {
    let nodes = root.names(NODES).into_iter();
    let nodes = nodes.filter_map(|name| name.strip_prefix("node")?.parse().ok());
    nodes.filter_map(|node| Some((node, read(node)?))).collect()
}

/// The first file called `name` in `folders`.
pub(crate) fn program(root: &Root, folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| root.is_file(path))
}

/// The numbers of a list such as `0-3,8`, which may be empty.
pub(crate) fn numbers(list: &str) -> Option<BTreeSet<u32>> {
    /// More processors than any machine has.
    const MAX_CPUS: u32 = 65_536;
    let (mut numbers, mut room) = (BTreeSet::new(), MAX_CPUS);
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (last < MAX_CPUS).then_some(())?;
        // A list that names the same ones again and again is none of the kernel's.
        room = room.checked_sub(last.saturating_sub(first) + 1)?;
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// How many numbers a list such as `0-3,8` has.
fn listed(list: &str) -> Option<u32> {
    list.split(',').try_fold(0_u32, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_counted_and_nonsense_is_unknown() {
        assert_eq!(listed("0"), Some(1));
        assert_eq!(listed("0-3,8,10-11"), Some(7));
        for bad in ["", "3-1", "a", "0-4294967295", "1-", "0-4294967294,0-4294967294"] {
            assert_eq!(listed(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_list_names_no_more_processors_than_a_machine_has_however_often() {
        assert_eq!(numbers("0-2,8,2"), Some(BTreeSet::from([0, 1, 2, 8])));
        assert_eq!(numbers(""), Some(BTreeSet::new()));
        for bad in ["0-65536", "0-65535,0", "a", "1-"] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
    }

    #[test]
    fn versions_are_read_from_all_kinds_of_releases() {
        let version = |kernel: &str| System { kernel: Some(kernel.into()), ..System::default() }.kernel_version();
        assert_eq!(version("6.1.0-25-amd64"), Some((6, 1)));
        assert_eq!(version("5.15.0-1070-azure"), Some((5, 15)));
        assert_eq!(version("4.18"), Some((4, 18)));
        assert_eq!((version("six"), version("")), (None, None));
    }
}
