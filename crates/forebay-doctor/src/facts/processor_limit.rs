//! How much of the processors' time the control groups of this process leave to it: `resources.limits.cpu` of a pod, `CPUQuota=` of a
//! unit.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::facts::control_groups::{Version, folders};
use crate::root::Root;

/// The limit, and how often it was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessorLimit {
    /// The time, in thousandths of what one processor has: 1500 is one and a half.
    pub thousandths: u64,
    /// In how many periods of the limit, mostly of 100 ms, something of its group ran.
    pub periods: u64,
    /// In how many of them its group had used up its time before the end, and waited.
    pub throttled: u64,
}

impl ProcessorLimit {
    /// The least of the limits of this process's control groups.
    pub(crate) fn read(root: &Root) -> Option<Self> {
        let folders = folders(root, "cpu");
        let limits = folders.iter().filter_map(|(version, folder)| Self::of_group(root, *version, folder));
        limits.min_by_key(|limit| limit.thousandths)
    }

    fn of_group(root: &Root, version: Version, folder: &Path) -> Option<Self> {
        let number = |name: &str| root.number::<u64>(folder.join(name));
        let (quota, period) = match version {
            // `150000 100000`, or `max 100000` where there is none; -1 in version 1.
            Version::Two => {
                let text = root.text(folder.join("cpu.max"))?;
                let (quota, period) = text.split_once(' ')?;
                (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
            }
            Version::One => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
        };
        let thousandths = quota.checked_mul(1000)?.checked_div(period)?;
        let statistics = root.text(folder.join("cpu.stat")).unwrap_or_default();
        let statistic = |name: &str| {
            let line = statistics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
            line.trim().parse::<u64>().ok()
        };
        let [periods, throttled] = ["nr_periods", "nr_throttled"].map(|name| statistic(name).unwrap_or(0));
        Some(Self { thousandths, periods, throttled })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(files: &[(&str, &str)]) -> Option<ProcessorLimit> {
        let folder = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        ProcessorLimit::read(&Root::new(folder.path()))
    }

    #[test]
    fn the_least_limit_on_the_way_counts_in_version_2() {
        let own = ("proc/self/cgroup", "0::/kubepods.slice/pod7/c\n");
        let none = ("sys/fs/cgroup/kubepods.slice/pod7/c/cpu.max", "max 100000\n");
        assert_eq!((limit(&[]), limit(&[own]), limit(&[own, none])), (None, None, None));
        let of_pod = ("sys/fs/cgroup/kubepods.slice/pod7/cpu.max", "150000 100000\n");
        let statistics = (
            "sys/fs/cgroup/kubepods.slice/pod7/cpu.stat",
            "usage_usec 8127\nuser_usec 4000\nsystem_usec 4127\nnr_periods 1000\nnr_throttled 120\nthrottled_usec 99\n",
        );
        let expected = ProcessorLimit { thousandths: 1500, periods: 1000, throttled: 120 };
        assert_eq!(limit(&[own, none, of_pod, statistics]), Some(expected));
        let wide = ("sys/fs/cgroup/kubepods.slice/cpu.max", "6400000 100000\n");
        assert_eq!(limit(&[own, wide, of_pod]).map(|limit| limit.thousandths), Some(1500));
        for nonsense in ["", "max", "1", "1 0", "-1 5", "18446744073709551615 1"] {
            assert_eq!(limit(&[own, ("sys/fs/cgroup/cpu.max", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn version_1_has_quota_and_period_in_files_of_their_own() {
        let own = ("proc/self/cgroup", "3:cpu,cpuacct:/docker/1\n2:memory:/docker/1\n0::/\n");
        let period = ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
        let of = |quota: &str| limit(&[own, period, ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)]);
        assert_eq!(of("-1\n"), None);
        assert_eq!(of("50000\n").map(|limit| limit.thousandths), Some(500));
        let statistics = ("sys/fs/cgroup/cpu/cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_time 12345\n");
        let found = limit(&[own, period, ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n"), statistics]);
        assert_eq!(found, Some(ProcessorLimit { thousandths: 500, periods: 10, throttled: 3 }));
    }
}
