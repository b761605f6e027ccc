//! What is read of recorded machines, and what is thought of it.

mod support;

use std::fs;

use forebay_doctor::facts::{DeviceKind, DriverInfo, Limit, Ucx, VerbsDevice};
use forebay_doctor::{Access, Facts, Outside, Report, Root, Verdict};
use support::{RDMA, config, expand, facts, facts_with, find, is_there, ucx, verdict};

use Verdict::{Fail, Info, Ok, Warn};

/// As `ibv_devinfo` shows it.
fn verbs() -> VerbsDevice {
    let ports = vec![(1, Some(4096), Some(4096))];
    VerbsDevice {
        name: "mlx5_ib0".to_owned(),
        vendor_id: 0x02c9,
        part_id: 4124,
        hardware: 0,
        ports,
        has_windows: Some(true),
    }
}

/// As `ethtool -i` shows it.
fn driver() -> DriverInfo {
    let word = |text: &str| Some(text.to_owned());
    DriverInfo {
        driver: word("mlx5_core[ib_ipoib]"),
        version: word("24.07-0.6.1"),
        firmware: word("20.31.1014 (MT_0000000223)"),
        bus: word("0101:00:00.0"),
        supports_statistics: true,
        supports_test: true,
        supports_private_flags: true,
        ..DriverInfo::default()
    }
}

fn printed(facts: &Facts) -> String {
    let mut out = Vec::new();
    Report::new(facts.clone(), &config(&[])).print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn an_infiniband_port_shows_what_ibv_devinfo_and_ibstat_show() {
    let outside = Outside { verbs: vec![verbs()], drivers: vec![("ib0".to_owned(), driver())], ..Outside::default() };
    let ucx = ucx("1.20.0", &["rc_mlx5/mlx5_ib0:1", "tcp/ib0"]);
    let facts = facts_with("mlx5-infiniband", &["ib0=10.1.0.5/16"], Outside { ucx, ..outside });
    let device = &facts.rdma.devices[0];
    assert_eq!((device.name.as_str(), device.kind), ("mlx5_ib0", DeviceKind::Verbs));
    assert_eq!(device.driver.as_deref(), Some("mlx5_core"));
    assert_eq!(device.pci.as_deref(), Some("0101:00:00.0"));
    assert_eq!((device.numa_node, device.node.as_deref()), (Some(0), Some("uverbs0")));
    assert_eq!(device.access, Access::Granted);
    let port = &device.ports[0];
    assert_eq!((port.state.as_deref(), port.physical_state.as_deref()), (Some("ACTIVE"), Some("LinkUp")));
    assert_eq!((port.lid, port.subnet_manager_lid), (Some(958), Some(549)));
    assert_eq!(port.interfaces, ["ib0"], "although its table of GIDs names none");
    assert_eq!(port.gids.len(), 1, "a GID of zeroes is none");
    let interface = facts.interface("ib0").unwrap();
    assert_eq!((interface.is_ipoib, interface.driver_version.as_deref()), (true, Some("24.07-0.6.1")));
    assert_eq!((facts.system.processors, facts.system.numa_nodes), (Some(120), Some(4)));
    assert_eq!(facts.memory.lock_limit, Some(Limit::Bytes(65536)));
    let text = printed(&facts);
    for expected in [
        "MT4124, mlx5_core, firmware 20.31.1014, MT_0000000223, hardware 0, vendor 0x02c9, part 4124, transport InfiniBand, \
         GUID 0015:5dff:fe33:ff56, system GUID 0c42:a103:00fb:517c, ports 1, PCI 0101:00:00.0, NUMA node 0",
        "ACTIVE (LinkUp), InfiniBand, 200 Gb/sec (4X HDR), LID 958, LMC 0, subnet manager 549, \
         GUID 0015:5dff:fd33:ff56, capabilities 0x2659ec48, packets 4096 of 4096, partitions 0x8001 0x7fff",
        "up, MTU 2044, IPoIB datagram, 200 Gb/s, mlx5_core[ib_ipoib] 24.07-0.6.1, \
         firmware 20.31.1014 (MT_0000000223), bus 0101:00:00.0, supports statistics + test + private flags, 10.1.0.5/16",
        "fe80:0000:0000:0000:0015:5dff:fd33:ff56",
        "InfiniBand controller Mellanox/NVIDIA [15b3:101c], PCIe x16 at 16 GT/s, mlx5_core",
        "IPoIB          ib0; up: ib0",
        "  ib_core        400 KiB, used 8 times, by rdma_cm, ib_ipoib, iw_cm, ib_umad, rdma_ucm, ib_uverbs, mlx5_ib, ib_cm",
        "  ib_umad        40 KiB, used 0 times",
        "  mlx_compat     68 KiB, used 11 times, by ",
        "  mlx5_core      2 MiB, 24.07-0.6.1, used 1 times, by mlx5_ib",
        "  card drivers   mlx5_core",
        "  at boot        ib_ipoib (/etc/modules-load.d/rdma.conf), those of openibd",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
}

#[test]
fn infiniband_in_datagram_mode_is_well_and_its_mtu_explained() {
    let facts = facts("mlx5-infiniband", &["ib0=10.1.0.5/16"], ucx("1.20.0", &["rc_mlx5/mlx5_ib0:1", "tcp/ib0"]));
    let config = config(&[RDMA]);
    for name in [
        "rdma devices",
        "rdma module",
        "rdma port-state",
        "rdma port-address",
        "ucx library",
        "ucx transports",
        "ucx rdmacm",
        "system kernel",
        "memory huge-pages",
    ] {
        assert_eq!(verdict(&facts, &config, name), Ok, "{name}");
    }
    let mtu = find(&facts, &config, "rdma ipoib-mtu ib0");
    assert_eq!(mtu.verdict, Info);
    assert!(mtu.what.contains("RTNETLINK answers: Invalid argument"), "{mtu:?}");
    assert_eq!(verdict(&facts, &config, "memory memlock"), Fail, "64 KiB are not enough to register anything");
}

#[test]
fn infiniband_in_connected_mode_with_a_large_mtu_is_well() {
    let facts = facts("ipoib-connected", &["ib0=10.1.0.5/16"], ucx("1.20.0", &["rc_mlx5/mlx5_ib0:1"]));
    assert_eq!(verdict(&facts, &config(&[RDMA]), "rdma ipoib-mtu ib0"), Ok);
    assert_eq!(verdict(&facts, &config(&[RDMA]), "memory memlock"), Ok);
    assert_eq!(verdict(&facts, &config(&[]), "network ipoib-unused"), Info);
    assert!(!is_there(&facts, &config(&["worker.data.bind.device=ib0"]), "network ipoib-unused"));
}

#[test]
fn a_fabric_of_ones_own_in_datagram_mode_whose_links_ail_is_told_what_ails() {
    let facts = facts("ipoib-datagram", &["ib0=10.2.0.5/16", "eth0=10.0.0.5/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]));
    let config = config(&[RDMA]);
    for (name, what) in [
        ("rdma ipoib-mtu ib0", "datagram mode with MTU 1500"),
        ("rdma rate mlx5_0:1", "fewer lanes"),
        ("rdma slot mlx5_0:1", "PCIe x4 at 8 GT/s carries 31 Gb/s, less than the port's 50 Gb/s"),
        ("rdma partition mlx5_0:1", "limited member only (0x7fff)"),
        ("rdma boot ib0", "gone after a reboot"),
        ("rdma boot ib_ipoib", "nothing loads it at boot"),
        ("system governor", "powersave"),
    ] {
        let check = find(&facts, &config, name);
        assert!(check.verdict == Warn && check.what.contains(what) && check.remedy.is_some(), "{check:?}");
    }
    assert_eq!(verdict(&facts, &config, "rdma faults mlx5_0:1"), Info, "nobody knows whether they grow");
    assert_eq!(verdict(&facts, &config, "rdma fabric"), Ok);
    assert_eq!(facts.rdma.devices[0].ports[0].received_bytes, Some(4000));
    assert_eq!(facts.interface("ib0").unwrap().received_bytes, Some(123_456));
}

#[test]
fn a_roce_port_has_an_index_for_v2_and_an_mtu_from_its_interface() {
    let facts = facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.18.1", &["rc_verbs/mlx5_0:1"]));
    let port = &facts.rdma.devices[0].ports[0];
    assert_eq!(port.interfaces, ["enp59s0"]);
    assert_eq!(port.gids.iter().filter(|gid| gid.is_roce_v2()).count(), 2);
    assert_eq!(facts.rdma.devices[0].numa_node, Some(1));
    let config = config(&[RDMA]);
    let gid = find(&facts, &config, "rdma roce-gid mlx5_0:1");
    assert_eq!((gid.verdict, gid.what.contains("index 3")), (Ok, true), "{gid:?}");
    assert_eq!(verdict(&facts, &config, "rdma roce-mtu mlx5_0:1"), Warn);
    assert_eq!(verdict(&facts, &config, "rdma module"), Ok, "built in or loaded, its folder is there");
    assert_eq!(verdict(&facts, &config, "memory memlock"), Ok, "CAP_IPC_LOCK");
    assert_eq!(verdict(&facts, &config, "ucx library"), Warn, "older than recommended");
    assert!(printed(&facts).contains("RoCE MTU 1024"));
}

#[test]
fn each_port_of_a_card_has_its_own_interface_and_one_that_is_not_used_may_be_down() {
    let facts = facts("two-ports", &["ib0=10.1.0.5/16"], ucx("1.20.0", &["rc_verbs/mlx4_0:1"]));
    let ports = &facts.rdma.devices[0].ports;
    assert_eq!(ports[0].interfaces, ["ib0", "ib0.8001"]);
    assert_eq!(ports[1].interfaces, ["ib1"]);
    assert_eq!((facts.rdma.devices[0].numa_node, facts.rdma.devices[0].model.as_deref()), (None, None));
    for settings in [&[][..], &[RDMA], &[RDMA, "network.rdma.data.network=ib0"]] {
        assert_eq!(verdict(&facts, &config(settings), "rdma port-state mlx4_0:2"), Info, "{settings:?}");
    }
    for named in ["network.rdma.data.network=ib1", "network.rdma.data.bind.device=mlx4_0:2"] {
        let check = find(&facts, &config(&[RDMA, named]), "rdma port-state mlx4_0:2");
        assert_eq!(check.verdict, Fail, "{named}");
        assert!(check.what.contains("DOWN (Polling)") && check.remedy.unwrap().contains("cable"), "{named}");
    }
    let start = config(&[RDMA, "network.rdma.data.network=ib1", "network.rdma.data.fallback=tcp-at-start"]);
    assert_eq!(verdict(&facts, &start, "rdma port-state mlx4_0:2"), Warn);
    assert_eq!(
        verdict(&facts, &config(&[]), "rdma ipoib-mtu ib0"),
        Warn,
        "connected mode with the MTU of datagram mode"
    );
    assert_eq!(verdict(&facts, &config(&[]), "rdma ipoib-mtu ib1"), Info, "some fabrics have datagrams of 4092");
}

#[test]
fn a_port_without_a_subnet_manager_is_told_what_it_lacks() {
    let facts = facts("down", &["eth0=10.0.0.1/24"], ucx("1.13.1", &["tcp/eth0"]));
    let config = config(&[RDMA]);
    let state = find(&facts, &config, "rdma port-state mlx5_0:1");
    assert_eq!(state.verdict, Fail);
    assert!(state.remedy.unwrap().contains("opensm"));
    let missing: Vec<_> = ["ib_uverbs", "rdma_ucm", "ib_ipoib"]
        .map(|module| find(&facts, &config, &format!("rdma module {module}")))
        .into();
    assert!(missing.iter().all(|check| check.verdict == Fail), "{missing:?}");
    assert_eq!(missing[2].remedy.as_deref().map(|remedy| remedy.starts_with("modprobe ib_ipoib;")), Some(true));
    let nodes = forebay_doctor::checks::check(&facts, &config);
    assert_eq!(nodes.iter().filter(|check| check.name == "device-node" && check.verdict == Fail).count(), 2);
    let card = find(&facts, &config, "rdma card Mellanox/NVIDIA");
    assert_eq!(card.verdict, Info, "there is another device");
    assert!(card.what.contains("0000:5e:00.0") && !card.what.contains("0000:3b:00.0"), "{card:?}");
    assert_eq!(verdict(&facts, &config, "ucx transports"), Fail);
    assert_eq!(verdict(&facts, &config, "system kernel"), Warn);
    // RDMA is not asked for: it does not fail, and it is still said.
    assert_eq!(verdict(&facts, &support::config(&[]), "rdma port-state mlx5_0:1"), Warn);
    assert_eq!(verdict(&facts, &support::config(&[]), "ucx transports"), Info);
}

#[test]
fn efa_has_no_interface_and_needs_srd() {
    let facts_with = |ucx| facts("efa", &["ens5=10.0.0.1/20"], ucx);
    let facts = facts_with(ucx("1.13.1", &["tcp/ens5"]));
    let device = &facts.rdma.devices[0];
    assert_eq!((device.kind, device.firmware.as_deref(), device.ports[0].interfaces.len()), (DeviceKind::Efa, None, 0));
    let config = config(&[RDMA]);
    let kind = find(&facts, &config, "rdma kind rdmap0s29:1");
    assert!(kind.verdict == Fail && kind.remedy.unwrap().contains("1.19"), "{facts:?}");
    assert!(!is_there(&facts, &config, "rdma port-address") && !is_there(&facts, &config, "ucx rdmacm"));
    assert_eq!(verdict(&facts, &config, "rdma device-node /dev/infiniband/uverbs0"), Ok);
    assert!(!is_there(&facts, &config, "rdma device-node /dev/infiniband/rdma_cm"), "it makes connections of its own");
    let facts = facts_with(ucx("1.20.0", &["srd/rdmap0s29:1"]));
    assert_eq!(verdict(&facts, &config, "rdma kind rdmap0s29:1"), Ok);
    assert_eq!(verdict(&facts, &config, "ucx transports"), Ok);
}

#[test]
fn two_soft_roce_devices_are_active_on_their_interfaces() {
    let addresses = ["veth0=10.77.0.1/24", "veth1=10.77.0.2/24", "veth0=fe80::1/64"];
    let facts = facts("rxe", &addresses, ucx("1.13.1", &["rc_verbs/rxe0:1", "rc_verbs/rxe1:1"]));
    let found: Vec<_> = facts
        .rdma
        .ports()
        .map(|(device, port)| {
            (device.kind, port.name.as_str(), port.is_active(), port.is_ethernet(), port.interfaces.join(","))
        })
        .collect();
    let expected = |name, interface: &str| (DeviceKind::Software, name, true, true, interface.to_owned());
    assert_eq!(found, [expected("rxe0:1", "veth0"), expected("rxe1:1", "veth1")]);
    let config = config(&[RDMA, "network.rdma.data.network=veth0,veth1"]);
    assert!(Report::new(facts.clone(), &config).failures().next().is_none());
    assert_eq!(verdict(&facts, &config, "rdma roce-mtu rxe0:1"), Ok);
    assert_eq!(verdict(&facts, &config, "rdma roce-mtu rxe1:1"), Info, "small, but it copies anyway");
    assert_eq!(verdict(&facts, &config, "network subnets"), Warn, "two cards in one subnet");
    assert!(!is_there(&facts, &support::config(&[RDMA, "network.rdma.data.network=veth0"]), "network subnets"));
}

#[test]
fn a_machine_without_rdma_is_well_until_it_is_asked_for() {
    let facts = facts("none", &["eth0=10.0.0.1/24", "lo=127.0.0.1/8"], ucx("1.20.0", &["tcp/eth0"]));
    let report = Report::new(facts.clone(), &config(&[]));
    assert!(report.failures().next().is_none(), "{:#?}", report.checks);
    assert_eq!(verdict(&facts, &config(&[]), "rdma devices"), Info);
    assert_eq!(verdict(&facts, &config(&[]), "ucx transports"), Info);
    assert_eq!(verdict(&facts, &config(&[RDMA]), "rdma devices"), Fail);
    assert_eq!(verdict(&facts, &config(&[RDMA, "network.rdma.data.fallback=tcp-at-start"]), "rdma devices"), Warn);
    // UCX between processes, as tests want it: no card is needed.
    assert_eq!(verdict(&facts, &config(&[RDMA, "network.rdma.data.transports=tcp"]), "rdma devices"), Info);
    assert_eq!(verdict(&facts, &config(&[]), "memory huge-pages"), Ok, "2 GiB of them are free");
    assert_eq!(verdict(&facts, &config(&["fuse.max_read=1MiB"]), "fuse max-pages"), Warn);
    assert_eq!(verdict(&facts, &config(&["fuse.max_read=512KiB"]), "fuse max-pages"), Ok);
    assert_eq!(facts.fuse.mounts, ["/mnt/data"]);
    assert_eq!((facts.fuse.io_uring, facts.fuse.user_allow_other), (Some(false), false));
    assert_eq!(facts.memory.lock_limit_max, Some(Limit::Unlimited));
    let worker = config(&["mounts=/=file:///"]);
    let mut facts = facts;
    assert_eq!(verdict(&facts, &worker, "network port worker.rpc.port"), Info, "it may be the worker, of another user");
    facts.system.is_root = true;
    let without_worker = verdict(&facts, &config(&[]), "network port worker.rpc.port");
    assert_eq!(without_worker, Warn, "nobody says that a worker runs here");
    assert_eq!(verdict(&facts, &worker, "network port worker.rpc.port"), Fail);
    assert_eq!(verdict(&facts, &config(&[]), "network pipe-max-size"), Ok);
}

#[test]
fn hostile_trees_give_facts_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, content: &[u8]| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    let port = "sys/class/infiniband/\x1b[2J\n/ports";
    for (path, content) in [
        (format!("{port}/1/state"), &b"\xff\xfe\x00"[..]),
        (format!("{port}/1/phys_state"), b": : :"),
        (format!("{port}/1/lid"), b"0x99999999999999"),
        (format!("{port}/1/link_layer"), b"Ethernet"),
        (format!("{port}/1/gids/4294967295"), b"\xff"),
        (format!("{port}/1/gids/99999999999"), b"fe80::1"),
        (format!("{port}/4294967295/state"), b""),
        (format!("{port}/-1/state"), b"4: ACTIVE"),
        ("sys/class/net/x/mtu".to_owned(), b"99999999999999999999"),
        ("sys/class/net/x/speed".to_owned(), b"-1"),
        ("sys/class/net/y/mtu".to_owned(), b"0"),
        ("sys/class/net/y/type".to_owned(), b"32"),
        ("sys/class/net/y/mode".to_owned(), &[b'a'; 1 << 20]),
        ("sys/bus/pci/devices/z/vendor".to_owned(), b"0x"),
        (
            "proc/meminfo".to_owned(),
            b"MemTotal: 18446744073709551615 kB\nHugePages_Total: 9\nHugepagesize: -1 kB\nMemTotal",
        ),
        ("proc/self/status".to_owned(), b"Uid:\nCapEff: zz"),
        ("proc/self/limits".to_owned(), b"Max locked memory"),
        ("proc/net/tcp".to_owned(), b"\n0:\n0: :::: 0A\n0: 1:1 2 0A 3 4 5 6 7 8"),
        ("proc/sys/kernel/osrelease".to_owned(), b"."),
        ("proc/sys/fs/fuse/max_pages_limit".to_owned(), b"18446744073709551615"),
        ("sys/kernel/mm/transparent_hugepage/enabled".to_owned(), b"]["),
        ("sys/devices/system/cpu/online".to_owned(), b"5-2"),
    ] {
        write(&path, content);
    }
    expand("sys/class/net/gone -> nowhere\nsys/class/infiniband/loop -> loop\ndev/infiniband -> loop", folder.path());
    let outside = Outside { ports: vec![0, 65535], ucx: Ucx::default(), ..Outside::default() };
    let facts = Facts::gather(&Root::new(folder.path()), outside);
    assert_eq!(facts.rdma.devices.len(), 2);
    for settings in [&[][..], &[RDMA, "network.rdma.data.network=x,gone", "network.rdma.metadata.enabled=true"]] {
        let report = Report::new(facts.clone(), &config(settings));
        let mut out = Vec::new();
        report.print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(!text.contains('\x1b') && text.contains("\\u{1b}[2J\\n"), "{text}");
        let json = serde_json::to_string(&report).unwrap();
        let back: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::from_value::<Facts>(back["facts"].clone()).unwrap(), facts);
    }
}

#[test]
fn an_empty_tree_is_a_machine_of_which_nothing_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let report = Report::new(Facts::gather(&Root::new(folder.path()), Outside::default()), &config(&[]));
    assert_eq!(report.counts.fail, 0, "{:#?}", report.checks);
    assert_eq!(report.counts.ok + report.counts.info + report.counts.warn, report.checks.len());
}
