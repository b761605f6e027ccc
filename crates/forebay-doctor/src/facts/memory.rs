//! Memory: how much there is, in which pages, and how much of it may be locked.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::facts::control_groups::{Version, folders};
use crate::root::Root;

/// Memory and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// All memory, in bytes.
    pub total_bytes: Option<u64>,
    /// What programs can still have without swapping, in bytes.
    pub available_bytes: Option<u64>,
    /// How much of it the control groups of this process leave it, in bytes, where that is less: a container's limit.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// What is left of such a limit, in bytes: page cache does not count as used, as the kernel takes it back.
    #[serde(default)]
    pub left_bytes: Option<u64>,
    /// Reserved huge pages that are not in use, in bytes.
    pub huge_free_bytes: u64,
    /// All reserved huge pages, in bytes.
    pub huge_total_bytes: u64,
    /// How many of them the control groups of this process let it use, in bytes. What goes beyond ends it with SIGBUS.
    #[serde(default)]
    pub huge_limit_bytes: Option<u64>,
    /// How many of them the control groups let it reserve, in bytes. What goes beyond is refused at once, and done without.
    #[serde(default)]
    pub huge_reserve_limit_bytes: Option<u64>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub transparent_huge_pages: Option<String>,
    /// How much this process may lock (`ulimit -l`).
    pub lock_limit: Option<Limit>,
    /// How far it may raise that itself.
    pub lock_limit_max: Option<Limit>,
}

/// A limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// This many bytes.
    Bytes(u64),
    /// None.
    Unlimited,
}

impl Memory {
    /// Reads it from the machine whose files are below `root`.
    #[must_use]
    pub fn read(root: &Root) -> Self {
        let table = root.text("proc/meminfo").unwrap_or_default();
        // `MemTotal:  8045856 kB`, and `HugePages_Total:  0` without a unit.
        let field = |name: &str| {
            let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let mut words = line.split_whitespace();
            let number: u64 = words.next()?.parse().ok()?;
            number.checked_mul(if words.next() == Some("kB") { 1 << 10 } else { 1 })
        };
        let huge_page = field("Hugepagesize").unwrap_or(0);
        let huge_pages = |name: &str| field(name).and_then(|pages| pages.checked_mul(huge_page)).unwrap_or(0);
        let [lock_limit, lock_limit_max] = locked(&root.text("proc/self/limits").unwrap_or_default());
        let total = field("MemTotal");
        // Without a limit, version 1 has a number that is larger than any memory.
        let is_limit = |bytes: &u64| *bytes < total.unwrap_or(1 << 60);
        let groups = folders(root, "memory").into_iter();
        let groups = groups.filter_map(|(version, folder)| Group::read(root, version, &folder));
        let groups: Vec<_> = groups.filter(|group| is_limit(&group.limit)).collect();
        let [huge_limit_bytes, huge_reserve_limit_bytes] = huge_limits(root, huge_page);
        Self {
            total_bytes: total,
            limit_bytes: groups.iter().map(|group| group.limit).min(),
            left_bytes: groups.iter().map(|group| group.limit.saturating_sub(group.used)).min(),
            available_bytes: field("MemAvailable"),
            huge_free_bytes: huge_pages("HugePages_Free"),
            huge_total_bytes: huge_pages("HugePages_Total"),
            huge_limit_bytes,
            huge_reserve_limit_bytes,
            transparent_huge_pages: root.text("sys/kernel/mm/transparent_hugepage/enabled").as_deref().and_then(chosen),
            lock_limit,
            lock_limit_max,
        }
    }

    /// Reserved huge pages that this process can have, in bytes: those that are free, as far as its control groups let it.
    #[must_use]
    pub fn usable_huge_bytes(&self) -> u64 {
        let limits = self.huge_limit_bytes.into_iter().chain(self.huge_reserve_limit_bytes);
        limits.fold(self.huge_free_bytes, u64::min)
    }

    /// All memory that this process may have, in bytes.
    #[must_use]
    pub fn usable_bytes(&self) -> Option<u64> {
        self.total_bytes.into_iter().chain(self.limit_bytes).min()
    }

    /// What of it is not reserved as huge pages, in bytes. No limit of a control group counts those.
    #[must_use]
    pub fn ordinary_bytes(&self) -> Option<u64> {
        let total = self.total_bytes.map(|total| total.saturating_sub(self.huge_total_bytes));
        total.into_iter().chain(self.limit_bytes).min()
    }

    /// What it can still have without swapping, in bytes, as far as the machine and its own limits tell.
    #[must_use]
    pub fn obtainable_bytes(&self) -> Option<u64> {
        self.available_bytes.into_iter().chain(self.limit_bytes).chain(self.left_bytes).min()
    }
}

/// What a process may lock, and how far it may raise that, in a table such as `/proc/self/limits`.
pub(crate) fn locked(limits: &str) -> [Option<Limit>; 2] {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap_or_default();
    let mut words = line.split_whitespace().map(|word| match word {
        "unlimited" => Some(Limit::Unlimited),
        bytes => bytes.parse().ok().map(Limit::Bytes),
    });
    [words.next().flatten(), words.next().flatten()]
}

/// A control group's limit, and what is used of it.
struct Group {
    limit: u64,
    used: u64,
}

/// What a version of control groups calls its files.
struct Names {
    limit: &'static str,
    used: &'static str,
    cached: [&'static str; 2],
}

const VERSION_2: Names =
    Names { limit: "memory.max", used: "memory.current", cached: ["inactive_file", "active_file"] };
const VERSION_1: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};

impl Group {
    /// The group whose files are in `folder`, if it has a limit.
    fn read(root: &Root, version: Version, folder: &Path) -> Option<Self> {
        let names = match version {
            Version::One => &VERSION_1,
            Version::Two => &VERSION_2,
        };
        let limit = root.number(folder.join(names.limit))?;
        let statistics = root.text(folder.join("memory.stat")).unwrap_or_default();
        let statistic = |name: &str| {
            let line = statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse::<u64>().ok()
        };
        let cached = names.cached.into_iter().filter_map(statistic).fold(0, u64::saturating_add);
        let used: u64 = root.number(folder.join(names.used)).unwrap_or(0);
        Some(Self { limit, used: used.saturating_sub(cached) })
    }
}

/// What the control groups let this process have of huge pages of this many bytes, and how many of them they let it reserve. A
/// container that gets no huge pages has a limit of 0.
fn huge_limits(root: &Root, page: u64) -> [Option<u64>; 2] {
    let size = match page {
        0 => return [None, None],
        _ if page >= 1 << 30 => format!("{}GB", page >> 30),
        _ if page >= 1 << 20 => format!("{}MB", page >> 20),
        _ => format!("{}KB", page >> 10),
    };
    let folders = folders(root, "hugetlb");
    let least = |of: &str| {
        let limit = |(version, folder): &(Version, PathBuf)| {
            let limit = match version {
                Version::One => "limit_in_bytes",
                Version::Two => "max",
            };
            root.number::<u64>(folder.join(format!("hugetlb.{size}.{of}{limit}")))
        };
        // Without a limit, version 1 has the largest number of pages that there can be.
        folders.iter().filter_map(limit).filter(|limit| *limit < 1 << 60).min()
    };
    [least(""), least("rsvd.")]
}

/// The choice in brackets: `always [madvise] never`.
fn chosen(choices: &str) -> Option<String> {
    let (_, rest) = choices.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of a machine with 8 GiB and these files.
    fn memory(files: &[(&str, &str)]) -> Memory {
        let folder = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        for (path, content) in files.iter().chain([&meminfo]) {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        Memory::read(&Root::new(folder.path()))
    }

    #[test]
    fn the_limit_of_a_container_counts_and_so_do_those_above_it() {
        let (in_v2, in_v1) =
            (("proc/self/cgroup", "0::/a.slice/b\n"), ("proc/self/cgroup", "4:cpu,memory:/a/b\n0::/\n"));
        let limits = |files: &[(&str, &str)]| {
            let memory = memory(files);
            (memory.limit_bytes, memory.usable_bytes(), memory.obtainable_bytes())
        };
        let (all, free) = (Some(8 << 30), Some(4 << 30));
        assert_eq!(limits(&[]), (None, all, free));
        assert_eq!(limits(&[in_v2, ("sys/fs/cgroup/a.slice/b/memory.max", "max\n")]), (None, all, free));
        let gibibyte = Some(1 << 30);
        let of_parent = ("sys/fs/cgroup/a.slice/memory.max", "1073741824\n");
        let own = ("sys/fs/cgroup/a.slice/b/memory.max", "2147483648\n");
        assert_eq!(limits(&[in_v2, of_parent, own]), (gibibyte, gibibyte, gibibyte));
        assert_eq!(limits(&[in_v2, own]), (Some(2 << 30), Some(2 << 30), Some(2 << 30)));
        // Of a container, whose group is what is mounted, by whichever name.
        let mounted = ("sys/fs/cgroup/memory.max", "1073741824\n");
        for group in ["0::/\n", "0::/elsewhere\n", "0::/../other\n"] {
            assert_eq!(limits(&[("proc/self/cgroup", group), mounted]).0, gibibyte, "{group}");
        }
        let half = [
            in_v2,
            own,
            ("sys/fs/cgroup/a.slice/b/memory.current", "1610612736\n"),
            ("sys/fs/cgroup/a.slice/b/memory.stat", "anon 1\ninactive_file 536870000\nactive_file 912\n"),
        ];
        assert_eq!(limits(&half), (Some(2 << 30), Some(2 << 30), gibibyte), "page cache is taken back");
        let none = ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limits(&[in_v1, none]), (None, all, free));
        let of_v1 = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
        assert_eq!(limits(&[in_v1, none, of_v1]).0, gibibyte);
        for nonsense in ["", ":", "::", "memory", "4:memory:", "0::a/../../b", "\u{fffd}:memory:/\u{fffd}"] {
            assert_eq!(limits(&[("proc/self/cgroup", nonsense)]).0, None, "{nonsense}");
        }
    }
    #[test]
    fn huge_pages_that_a_container_was_not_given_are_not_its_own() {
        let pages = "MemTotal: 8388608 kB\nHugePages_Total: 512\nHugePages_Free: 512\nHugepagesize: 2048 kB\n";
        let limits = |files: &[(&str, &str)]| {
            let folder = tempfile::tempdir().unwrap();
            for (path, content) in files.iter().chain([&("proc/meminfo", pages)]) {
                let path = folder.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, content).unwrap();
            }
            let memory = Memory::read(&Root::new(folder.path()));
            (memory.huge_limit_bytes, memory.huge_reserve_limit_bytes, memory.usable_huge_bytes())
        };
        let (all, half) = (1 << 30, 1 << 29);
        assert_eq!(limits(&[]), (None, None, all));
        let in_v2 = ("proc/self/cgroup", "0::/\n");
        let of_pod = ("sys/fs/cgroup/hugetlb.2MB.max", "0\n");
        assert_eq!(limits(&[in_v2, of_pod]), (Some(0), None, 0));
        let given = [
            in_v2,
            ("sys/fs/cgroup/hugetlb.2MB.max", "max\n"),
            ("sys/fs/cgroup/hugetlb.2MB.rsvd.max", "536870912\n"),
            ("sys/fs/cgroup/hugetlb.1GB.max", "0\n"),
        ];
        assert_eq!(limits(&given), (None, Some(half), half));
        let in_v1 = ("proc/self/cgroup", "7:hugetlb:/kubepods/pod7\n0::/\n");
        let none = ("sys/fs/cgroup/hugetlb/hugetlb.2MB.limit_in_bytes", "9223372036852678656\n");
        assert_eq!(limits(&[in_v1, none]), (None, None, all));
        let of_v1 = ("sys/fs/cgroup/hugetlb/kubepods/pod7/hugetlb.2MB.limit_in_bytes", "536870912\n");
        assert_eq!(limits(&[in_v1, none, of_v1]), (Some(half), None, half));
    }
}
