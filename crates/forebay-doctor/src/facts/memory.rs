//! Memory: how much there is, in which pages, and how much of it may be locked.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

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
        let groups: Vec<_> = groups(root).into_iter().filter(|group| is_limit(&group.limit)).collect();
        Self {
            total_bytes: total,
            limit_bytes: groups.iter().map(|group| group.limit).min(),
            left_bytes: groups.iter().map(|group| group.limit.saturating_sub(group.used)).min(),
            available_bytes: field("MemAvailable"),
            huge_free_bytes: huge_pages("HugePages_Free"),
            huge_total_bytes: huge_pages("HugePages_Total"),
            transparent_huge_pages: root.text("sys/kernel/mm/transparent_hugepage/enabled").as_deref().and_then(chosen),
            lock_limit,
            lock_limit_max,
        }
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

/// What a version of control groups calls its files, and where it is.
struct Names {
    mounted: &'static str,
    limit: &'static str,
    used: &'static str,
    cached: [&'static str; 2],
}

const VERSION_2: Names = Names {
    mounted: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    cached: ["inactive_file", "active_file"],
};
const VERSION_1: Names = Names {
    mounted: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};

/// The control groups of this process that have a limit, and those above them.
fn groups(root: &Root) -> Vec<Group> {
    let groups = root.text("proc/self/cgroup").unwrap_or_default();
    // `0::/system.slice/forebay.service` of version 2, `4:memory:/docker/0123` of version 1; see cgroups(7).
    let of_line = |line: &str| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => Some(on_the_way(root, group, &VERSION_2)),
            _ => controllers
                .split(',')
                .any(|controller| controller == "memory")
                .then(|| on_the_way(root, group, &VERSION_1)),
        }
    };
    groups.lines().filter_map(of_line).flatten().collect()
}

/// `group` and those above it. In a container that sees only its own, what is mounted is that, whatever the path of it says.
fn on_the_way(root: &Root, group: &str, names: &Names) -> Vec<Group> {
    const DEEPEST: usize = 64;
    let is_plain = |part: &Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let path = Path::new(group);
    let above = path.components().all(|part| is_plain(&part)).then(|| path.ancestors().take(DEEPEST));
    // One beyond what we see, `/../other`, has only what is mounted.
    let above = above.into_iter().flatten().map(|group| group.strip_prefix("/").unwrap_or(group));
    let above = above.chain([Path::new("")]);
    let limited = above.filter_map(|group| {
        let place = Path::new(names.mounted).join(group);
        let limit = root.number(place.join(names.limit))?;
        let statistics = root.text(place.join("memory.stat")).unwrap_or_default();
        let statistic = |name: &str| {
            let line = statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse::<u64>().ok()
        };
        let cached = names.cached.into_iter().filter_map(statistic).fold(0, u64::saturating_add);
        let used: u64 = root.number(place.join(names.used)).unwrap_or(0);
        let used = used.saturating_sub(cached);
        Some(Group { limit, used })
    });
    limited.collect()
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
}
