//! The kernel, the processors, and what this process may do.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// Numbers of capabilities, from `linux/capability.h`.
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_ADMIN: u32 = 21;

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
    /// Where `fio` is, which `forebay bench` drives.
    pub fio: Option<PathBuf>,
}

impl System {
    pub(crate) fn read(root: &Root, search_path: &[PathBuf]) -> Self {
        let status = root.text("proc/self/status").unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        // Real, effective, saved and file system's user.
        let user = field("Uid:").and_then(|users| users.split_whitespace().nth(1)?.parse::<u32>().ok());
        Self {
            hostname: root.word("proc/sys/kernel/hostname"),
            kernel: root.word("proc/sys/kernel/osrelease"),
            processors: root.text("sys/devices/system/cpu/online").and_then(|list| listed(&list)),
            numa_nodes: root.text("sys/devices/system/node/online").and_then(|list| listed(&list)),
            is_root: user == Some(0),
            may_lock_memory: capabilities >> CAP_IPC_LOCK & 1 == 1,
            may_administrate: capabilities >> CAP_SYS_ADMIN & 1 == 1,
            pipe_max_bytes: root.number("proc/sys/fs/pipe-max-size"),
            may_drop_caches: may_write(root, "proc/sys/vm/drop_caches"),
            io_uring_disabled: root.number("proc/sys/kernel/io_uring_disabled"),
            frequency_governor: root.word("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
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

/// Whether a file can be opened for writing. Nothing is written.
fn may_write(root: &Root, path: &str) -> bool {
    std::fs::OpenOptions::new().write(true).open(root.path(path)).is_ok()
}

/// The first file called `name` in `folders`.
pub(crate) fn program(root: &Root, folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| root.path(path).is_file())
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
    fn versions_are_read_from_all_kinds_of_releases() {
        let version = |kernel: &str| System { kernel: Some(kernel.into()), ..System::default() }.kernel_version();
        assert_eq!(version("6.1.0-25-amd64"), Some((6, 1)));
        assert_eq!(version("5.15.0-1070-azure"), Some((5, 15)));
        assert_eq!(version("4.18"), Some((4, 18)));
        assert_eq!((version("six"), version("")), (None, None));
    }
}
