//! A machine in a folder: files of sysfs and procfs, and what was recorded beside them.

use std::borrow::Cow;
use std::fs;
use std::sync::LazyLock;

use forebay_config::Config;
use forebay_doctor::fuzzing::recorded;
use forebay_doctor::recording::{self, DOCUMENT};
use forebay_doctor::{Facts, Outside, Report, Root};

use crate::input::{Input, Output};
use crate::support::folder;
use crate::targets::Seed;

pub(super) mod doctor_recording {
    use super::*;

    static CONFIG: LazyLock<Config> = LazyLock::new(Config::default);

    /// Most files of a tree.
    const FILES: usize = 24;

    /// Files that the doctor looks for, so that the content of each is at hand. A name that is not here begins with 255.
    const NAMES: [&str; 34] = [
        "proc/meminfo",
        "proc/cpuinfo",
        "proc/modules",
        "proc/mounts",
        "proc/self/mountinfo",
        "proc/net/tcp",
        "proc/net/tcp6",
        "proc/net/route",
        "proc/sys/vm/nr_hugepages",
        "proc/sys/kernel/osrelease",
        "etc/os-release",
        "etc/security/limits.conf",
        "etc/passwd",
        "etc/modules",
        "etc/fstab",
        "etc/fuse.conf",
        "sys/class/net/eth0/mtu",
        "sys/class/net/eth0/speed",
        "sys/class/net/ib0/mode",
        "sys/class/net/ib0/type",
        "sys/class/infiniband/mlx5_0/ports/1/state",
        "sys/class/infiniband/mlx5_0/ports/1/rate",
        "sys/class/infiniband/mlx5_0/ports/1/gids/0",
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0",
        "sys/class/infiniband/mlx5_0/fw_ver",
        "sys/bus/pci/devices/0000:01:00.0/class",
        "sys/bus/pci/devices/0000:01:00.0/config",
        "sys/bus/pci/devices/0000:01:00.0/current_link_speed",
        "proc/self/environ",
        "proc/self/status",
        "proc/self/cgroup",
        "proc/self/uid_map",
        "sys/fs/cgroup/cpu.max",
        "sys/fs/cgroup/hugetlb.2MB.max",
    ];

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let document = Some(input.piece()).filter(|document| !document.is_empty());
        let mut files = Vec::new();
        while !input.is_empty() && files.len() < FILES {
            let name = match NAMES.get(usize::from(input.u8())) {
                Some(name) => Cow::Borrowed(*name),
                None => String::from_utf8_lossy(input.piece()),
            };
            files.push((name, input.piece()));
        }
        let files = files.iter().map(|(name, content)| (&**name, *content));
        let Some((root, outside)) = recorded(files, document) else { return };
        let report = Report::new(Facts::gather(&root, outside), &CONFIG);
        let mut told = Vec::new();
        report.print(&mut told).expect("memory takes it");
        let told = String::from_utf8(told).expect("what is printed is text");
        assert!(!told.chars().any(|c| c.is_control() && c != '\n'), "nothing that a terminal would obey");
        let counts = report.counts;
        assert_eq!(counts.ok + counts.info + counts.warn + counts.fail, report.checks.len());
        assert!(serde_json::to_string(&report).is_ok());
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let file = |output: Output, name: &str, content: &str| {
            let number = NAMES.iter().position(|known| *known == name).expect("it is listed");
            output.u8(number as u8).piece(content)
        };
        let machine = [
            (
                "proc/meminfo",
                "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\nHugePages_Total: 4\nHugepagesize: 2048 kB\n",
            ),
            ("proc/modules", "mlx5_ib 1 0 - Live 0x0\nfuse 2 1 - Live 0x0\n"),
            ("proc/net/tcp", "  sl  local_address rem_address st\n   0: 0100007F:752F 00000000:0000 0A 0 0 0 0 0 1\n"),
            ("etc/security/limits.conf", "* soft memlock unlimited\nroot hard memlock 64\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
            ("sys/class/net/eth0/speed", "100000\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2\n"),
            ("sys/bus/pci/devices/0000:01:00.0/class", "0x020700\n"),
            ("sys/bus/pci/devices/0000:01:00.0/current_link_speed", "16.0 GT/s PCIe\n"),
            ("proc/self/environ", "KUBERNETES_SERVICE_HOST=10.96.0.1\0POD_NAME=reader-7\0"),
            (
                "proc/self/mountinfo",
                "2 1 8:1 / /mnt rw shared:1 - ext4 /dev/sda1 rw\n3 2 0:7 / /mnt/a rw - fuse.forebay w rw\n",
            ),
            ("proc/self/status", "CapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\nSeccomp:\t2\n"),
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/uid_map", "0 100000 65536\n"),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/hugetlb.2MB.max", "0\n"),
        ];
        let files = |output: Output| machine.iter().fold(output, |output, (name, content)| file(output, name, content));
        vec![
            ("by_hand", files(Output::default().piece("")).done()),
            ("recorded", files(Output::default().piece(document())).done()),
        ]
    }

    /// The document of a machine without files.
    fn document() -> Vec<u8> {
        let (from, to) = (folder(), folder());
        let root = Root::new(from.path()).recorded_to(to.path()).expect("the folder is empty");
        let _ = Facts::gather(&root, Outside::default());
        recording::write(&root, to.path(), Outside::default(), "2026-01-02T03:04:05Z".into()).expect("it is written");
        fs::read(to.path().join(DOCUMENT)).expect("it is there")
    }
}
