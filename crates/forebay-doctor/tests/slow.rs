//! Links that work and are slower than they could be, ports that say they are up and are not, and what of that depends on the
//! machine around the card.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use forebay_doctor::facts::{FirstLook, FlowControl, LockLimit, PcieLink, Recording, VerbsDevice};
use forebay_doctor::{Facts, Outside, Report, Root, Verdict, recording};
use support::{RDMA, config, expand, facts_with, find, is_there, ucx, verdict};

use Verdict::{Fail, Info, Ok, Warn};

/// The recorded machine, with what no file of it tells.
fn machine(outside: Outside) -> Facts {
    let outside = Outside { ucx: ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]), ..outside };
    facts_with("hdr-at-qdr", &["ib0=10.1.0.5/16"], outside)
}

fn with(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = machine(Outside::default());
    change(&mut facts);
    facts
}

fn roce(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = support::facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]));
    change(&mut facts);
    facts
}

#[track_caller]
fn told(facts: &Facts, name: &str, expected: Verdict, what: &str, remedy: &str) {
    let check = find(facts, &config(&[RDMA]), name);
    assert_eq!(check.verdict, expected, "{check:?}");
    assert!(check.what.contains(what), "{check:?}");
    assert!(check.remedy.as_deref().unwrap_or_default().contains(remedy), "{check:?}");
}

#[test]
fn a_card_of_hdr_whose_link_was_trained_at_qdr_is_slower_than_it_could_be() {
    let trained = |rate: &str| with(|facts| facts.rdma.devices[0].ports[0].rate = Some(rate.into()));
    let name = "rdma rate mlx5_0:1";
    told(&machine(Outside::default()), name, Warn, "40 Gb/sec (4X QDR): the lanes of MT4123 can do HDR", "mlxlink");
    told(&trained("100 Gb/sec (4X EDR)"), name, Warn, "can do HDR", "switch");
    told(&trained("200 Gb/sec (4X HDR)"), name, Ok, "200 Gb/sec", "");
    // By its own account it does 100 Gb/s, which is two lanes.
    let product = |rate: &str| {
        with(|facts| {
            facts.pci_cards[0].product =
                Some("ConnectX-6 VPI adapter card, 100Gb/s (HDR100, EDR IB and 100GbE)".into());
            facts.rdma.devices[0].ports[0].rate = Some(rate.into());
        })
    };
    told(&product("100 Gb/sec (2X HDR)"), name, Ok, "", "");
    told(&product("56 Gb/sec (4X FDR)"), name, Warn, "the card can do 100 Gb/s (ConnectX-6 VPI", "cable");
    // And so a card of Ethernet, of whose model nothing follows.
    let ethernet = roce(|facts| {
        facts.pci_cards[0].product = Some("ConnectX-5 EN network interface card, 100GbE dual-port QSFP28".into());
        facts.rdma.devices[0].ports[0].rate = Some("25 Gb/sec (1X EDR)".into());
    });
    told(&ethernet, name, Warn, "the card can do 100 Gb/s", "ethtool");
}

#[test]
fn a_card_with_half_of_its_lanes_is_told_so_though_its_port_is_no_faster() {
    let name = "rdma slot mlx5_0:1";
    let half = "PCIe x8 at 16 GT/s carries 126 Gb/s, as much as the port, and the card can do x16 at 16 GT/s";
    told(&machine(Outside::default()), name, Warn, half, "reseat the card");
    let slot = |speed_mtps, width| Some(PcieLink { speed_mtps, width, ..PcieLink::default() });
    told(&with(|facts| facts.pci_cards[0].slot = slot(16_000, 8)), name, Warn, half, "put it into a wider one");
    // All lanes of an older slot that carries what the port does: nothing is to be done.
    let older = with(|facts| {
        facts.pci_cards[0].slot = slot(8000, 16);
        facts.pci_cards[0].link =
            Some(PcieLink { speed_mtps: 8000, width: 16, max_speed_mtps: Some(16_000), max_width: Some(16) });
    });
    told(&older, name, Info, "the slot cannot", "");
    let virtual_function = with(|facts| facts.pci_cards[0].link = None);
    assert!(!is_there(&virtual_function, &config(&[RDMA]), name));
}

#[test]
fn one_slot_must_carry_what_all_ports_of_its_card_do_together() {
    let both = |rate: &str, is_virtual: bool| {
        with(|facts| {
            for device in &mut facts.rdma.devices {
                let port = &mut device.ports[0];
                (port.state, port.rate) = (Some("ACTIVE".into()), Some(rate.into()));
                (port.lid, port.subnet_manager_lid) = (Some(3), Some(1));
            }
            for card in &mut facts.pci_cards {
                card.is_virtual = is_virtual;
                card.link = Some(PcieLink { speed_mtps: 16_000, width: 16, max_speed_mtps: None, max_width: None });
            }
        })
    };
    let together = both("200 Gb/sec (4X HDR)", false);
    for port in ["rdma slot mlx5_0:1", "rdma slot mlx5_1:1"] {
        told(
            &together,
            port,
            Warn,
            "252 Gb/s, less than the 400 Gb/s of mlx5_0:1, mlx5_1:1 together",
            "wider or faster slot",
        );
    }
    told(&both("100 Gb/sec (2X HDR)", false), "rdma slot mlx5_0:1", Ok, "252 Gb/s", "");
    told(&both("200 Gb/sec (4X HDR)", true), "rdma slot mlx5_0:1", Ok, "", "");
}

#[test]
fn a_port_that_is_active_without_a_lid_cannot_send() {
    let lids = |own, manager| {
        with(|facts| {
            let port = &mut facts.rdma.devices[0].ports[0];
            (port.lid, port.subnet_manager_lid) = (own, manager);
        })
    };
    let name = "rdma port-state mlx5_0:1";
    told(&lids(Some(18), Some(1)), name, Ok, "ACTIVE", "");
    told(&lids(None, None), name, Ok, "ACTIVE", "");
    told(&lids(Some(0), Some(1)), name, Fail, "its LID is 0", "opensm");
    told(&lids(Some(18), Some(0)), name, Fail, "subnet manager's LID is 0", "sminfo");
    told(&lids(Some(0), Some(0)), name, Fail, "no subnet manager has configured it", "opensm");
    assert_eq!(verdict(&lids(Some(0), Some(0)), &config(&[]), name), Warn, "nobody asked for RDMA");
    let ethernet = roce(|facts| facts.rdma.devices[0].ports[0].lid = Some(0));
    told(&ethernet, name, Ok, "ACTIVE", "");
}

#[test]
fn a_port_of_infiniband_that_is_switched_off_is_not_mended_by_ip_link() {
    let named = config(&[RDMA, "network.rdma.data.bind.device=mlx5_1:1"]);
    let check = find(&machine(Outside::default()), &named, "rdma port-state mlx5_1:1");
    let remedy = check.remedy.unwrap();
    assert_eq!((check.verdict, check.what.as_str()), (Fail, "DOWN (Disabled)"));
    assert!(remedy.contains("ibportstate -C mlx5_1") && remedy.contains("mlxlink -d mlx5_1"), "{remedy}");
    assert!(!remedy.contains("ip link"), "{remedy}");
    let unknown = with(|facts| facts.rdma.devices[1].ports[0].physical_state = Some("LinkErrorRecovery".into()));
    assert!(!find(&unknown, &named, "rdma port-state mlx5_1:1").remedy.unwrap().contains("ip link"));
}

#[test]
fn the_mtu_of_datagrams_is_that_of_the_partitions_packets() {
    let of = |mtu: u32, packets: Option<u32>| {
        let facts = with(|facts| {
            facts.interfaces[0].mtu = Some(mtu);
            facts.rdma.devices[0].ports[0].active_mtu = packets;
        });
        find(&facts, &config(&[RDMA]), "rdma ipoib-mtu ib0")
    };
    let usual = of(2044, None);
    assert!(usual.verdict == Info && usual.what.contains("the most with packets of 2048 bytes"), "{usual:?}");
    assert!(usual.remedy.unwrap().contains("mtu=5 for 4092"));
    let smaller_than_the_port = of(2044, Some(4096));
    assert!(smaller_than_the_port.what.contains("the port takes 4096"), "{smaller_than_the_port:?}");
    let large = of(4092, Some(4096));
    assert!(large.verdict == Info && large.what.contains("MTU 4092, the most that this mode has"), "{large:?}");
    assert!(!large.what.contains("2044") && !large.remedy.unwrap().contains("mtu=5"));
    assert_eq!(of(1500, None).verdict, Warn);
}

#[test]
fn counters_of_faults_are_judged_by_what_grew_between_two_looks() {
    let looked = |before: &[(&str, u64)]| {
        let faults: BTreeMap<String, u64> = before.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let first = FirstLook { ms_before: 1200, faults: [("mlx5_0:1".to_owned(), faults)].into() };
        machine(Outside { first_look: Some(first), ..Outside::default() })
    };
    let name = "rdma faults mlx5_0:1";
    told(&machine(Outside::default()), name, Info, "link_downed 2, symbol_error 12; whether they grow", "");
    told(&looked(&[("symbol_error", 12), ("link_downed", 2)]), name, Info, "none in the last 1.2 s", "--peer");
    told(
        &looked(&[("symbol_error", 9), ("link_downed", 2)]),
        name,
        Warn,
        "in the last 1.2 s: symbol_error 3;",
        "perfquery",
    );
    told(
        &looked(&[("symbol_error", 12), ("link_downed", 1)]),
        name,
        Warn,
        "in the last 1.2 s: link_downed 1;",
        "cable",
    );
    told(&looked(&[("symbol_error", 900)]), name, Warn, "symbol_error 12", "");
    let unplugged = with(|facts| {
        facts.rdma.devices[0].ports[0].faults.remove("symbol_error");
    });
    assert!(!is_there(&unplugged, &config(&[RDMA]), name), "a cable that was unplugged is no fault");
}

#[test]
fn memory_that_a_service_may_lock_is_not_that_which_sudo_may() {
    let facts = machine(Outside { login: Some("alice".into()), ..Outside::default() });
    told(&facts, "memory memlock", Ok, "no limit applies to this process", "");
    told(
        &facts,
        "memory service-memlock forebay (process 900)",
        Fail,
        "8 MiB may be locked (it runs as user 998)",
        "LimitMEMLOCK",
    );
    let unit = "memory service-memlock forebay-worker.service";
    told(
        &facts,
        unit,
        Fail,
        "64 MiB may be locked (user cache, /etc/systemd/system/forebay-worker.service)",
        "LimitMEMLOCK",
    );
    told(
        &facts,
        "memory service-memlock user alice",
        Fail,
        "64 MiB may be locked (user alice, /etc/security/limits.conf)",
        "limits.conf",
    );
    let of_unit = |limit: LockLimit| {
        let of = "cache.service".to_owned();
        let facts = with(|facts| facts.lock_limits = vec![LockLimit { of, user: Some("cache".into()), ..limit }]);
        verdict(&facts, &config(&[RDMA]), "memory service-memlock cache.service")
    };
    assert_eq!(of_unit(LockLimit::default()), Fail, "systemd's own is 8 MiB");
    assert_eq!(of_unit(LockLimit { is_exempt: true, ..LockLimit::default() }), Ok);
    assert_eq!(of_unit(LockLimit { limit: Some(forebay_doctor::facts::Limit::Unlimited), ..LockLimit::default() }), Ok);
    let plain = machine(Outside::default());
    assert!(!is_there(&plain, &config(&[RDMA]), "memory service-memlock user alice"), "nobody called sudo");
}

#[test]
fn the_partition_is_that_of_the_interface_which_has_the_address() {
    let name = "rdma partition mlx5_0:1";
    let of = |key: &str, table: &[&str]| {
        with(|facts| {
            facts.interfaces[0].partition_key = Some(key.into());
            facts.rdma.devices[0].ports[0].partition_keys = table.iter().map(|key| (*key).to_owned()).collect();
        })
    };
    told(&of("0xffff", &["0xffff", "0x0001"]), name, Ok, "full member", "");
    told(
        &of("0x8001", &["0xffff", "0x0001"]),
        name,
        Warn,
        "0x8001, of which the port is a limited member only",
        "ALL=full",
    );
    told(&of("0x8002", &["0xffff", "0x0001"]), name, Warn, "0x8002, of which the port is no member", "pkey");
    told(&of("nonsense", &["0x7fff"]), name, Warn, "limited member only", "ALL=full");
}

#[test]
fn the_priority_of_roce_is_one_that_the_switch_holds_back() {
    let name = "rdma flow-control mlx5_0:1";
    let of = |lossless: &[u8], dscp: &[(u8, u8)], class: Option<u8>| {
        roce(|facts| {
            let flow = FlowControl {
                lossless: lossless.iter().copied().collect(),
                priority_of_dscp: dscp.iter().copied().collect(),
            };
            let interface = facts.interfaces.iter_mut().find(|interface| interface.name == "enp59s0").unwrap();
            interface.flow_control = Some(flow);
            facts.rdma.devices[0].traffic_class = class;
        })
    };
    told(&of(&[3], &[(26, 3)], None), name, Ok, "DSCP 26 and travel on priority 3", "");
    told(
        &of(&[3], &[], None),
        name,
        Warn,
        "priority 0 of enp59s0 (DSCP is not trusted)",
        "--trust dscp --pfc 0,0,0,1,0,0,0,0",
    );
    told(&of(&[3], &[(48, 6)], Some(192)), name, Warn, "DSCP 48 and travel on priority 6", "mlnx_qos -i enp59s0");
    told(&of(&[], &[(26, 3)], None), name, Info, "PFC is off", "mlnx_qos");
    assert!(!is_there(&roce(|_| ()), &config(&[RDMA]), name), "not where the driver does not tell");
    assert!(!is_there(&machine(Outside::default()), &config(&[RDMA]), name), "InfiniBand loses none");
}

#[test]
fn who_may_not_run_next_to_the_card_is_told_how_far_it_is() {
    let name = "rdma numa mlx5_0";
    let far = "forebay (process 900) may run on processors 0-1 only, and the card is next to node 1 at distance 32";
    told(&machine(Outside::default()), name, Warn, far, "numactl --cpunodebind=1");
    let anywhere = with(|facts| facts.processes[0].processors = Some((0..4).collect()));
    told(&anywhere, name, Ok, "next to node 1; distance 32 from node 0", "");
    told(&with(|facts| facts.processes.clear()), name, Ok, "next to node 1", "");
    assert!(!is_there(&with(|facts| facts.system.numa_nodes = Some(1)), &config(&[RDMA]), name));
}

#[test]
fn what_stands_between_the_card_and_memory_is_told() {
    let iommu = "rdma iommu mlx5_0";
    told(&machine(Outside::default()), iommu, Warn, "DMA-FQ", "iommu=pt");
    told(&with(|facts| facts.pci_cards[0].iommu = Some("identity".into())), iommu, Ok, "identity", "");
    assert_eq!(verdict(&machine(Outside::default()), &config(&[]), iommu), Info);
    assert!(!is_there(&with(|facts| facts.pci_cards[0].iommu = None), &config(&[RDMA]), iommu));
    let redirected = |module: Option<&str>| {
        with(|facts| {
            facts.pci_cards[0].redirected_by = vec!["0000:3a:00.0".into()];
            facts.modules.extend(module.map(|name| forebay_doctor::facts::Module {
                name: name.into(),
                ..forebay_doctor::facts::Module::default()
            }));
        })
    };
    told(&redirected(None), "rdma acs mlx5_0", Info, "0000:3a:00.0 above the card has ACS on", "setpci");
    told(&redirected(Some("nvidia_peermem")), "rdma acs mlx5_0", Warn, "ACS", "setpci");
}

#[test]
fn one_processor_that_saves_power_is_found_among_those_that_do_not() {
    let facts = machine(Outside::default());
    told(&facts, "system governor", Warn, "performance on 0-1,3, powersave on 2", "cpupower");
    let all_fast = with(|facts| facts.system.governors = [("performance".to_owned(), (0..4).collect())].into());
    told(&all_fast, "system governor", Ok, "performance", "");
}

fn shown(report: &Report) -> String {
    let mut out = Vec::new();
    report.print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn problems_are_all_that_is_shown_when_nothing_else_is_wanted() {
    let report = Report::new(machine(Outside::default()), &config(&[RDMA]));
    let (all, problems) = (shown(&report), shown(&report.clone().only_problems()));
    assert!(all.contains("RDMA devices\n") && all.contains("\n  ok    rdma devices: 2: mlx5_0, mlx5_1"), "{all}");
    assert!(problems.starts_with("Verdicts\n  ") && problems.contains("warn  rdma rate mlx5_0:1: "), "{problems}");
    assert!(problems.lines().all(|line| !line.starts_with("  ok ") && !line.starts_with("  info ")), "{problems}");
    assert_eq!(problems.lines().last(), all.lines().last(), "the counts stay");
    let mut well = Report::new(Facts::default(), &config(&[]));
    well.checks.retain(|check| check.verdict < Warn);
    assert!(shown(&well.only_problems()).starts_with("Nothing is wrong.\n"));
}

#[test]
fn a_machine_that_was_recorded_gets_the_verdicts_that_it_got() {
    let (source, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees/hdr-at-qdr.tree");
    expand(&std::fs::read_to_string(tree).unwrap(), source.path());
    std::fs::create_dir_all(source.path().join("etc/netplan")).unwrap();
    std::fs::write(source.path().join("etc/netplan/wifi.yaml"), "ib0: {}\nwlan0:\n  password: SECRET\n").unwrap();
    std::fs::write(source.path().join("etc/hostname"), "SECRET").unwrap();
    let verbs = VerbsDevice {
        name: "mlx5_0".into(),
        vendor_id: 0x02c9,
        part_id: 4123,
        hardware: 0,
        ports: vec![(1, Some(4096), Some(4096))],
        has_windows: Some(true),
    };
    let first = FirstLook { ms_before: 1200, faults: [("mlx5_0:1".to_owned(), BTreeMap::new())].into() };
    let outside = Outside {
        verbs: vec![verbs],
        first_look: Some(first),
        login: Some("alice".into()),
        ports: vec![29999],
        ucx: ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]),
        ..Outside::default()
    };
    let root = Root::new(source.path()).recorded_to(copy.path()).unwrap();
    let then = Facts::gather(&root, outside.clone());
    recording::write(&root, copy.path(), outside, "2026-01-02T03:04:05Z".into()).unwrap();
    drop(source);
    let (root, outside) = recording::open(copy.path()).unwrap();
    let now = Facts::gather(&root, outside);
    let recorded = now.recording.clone().unwrap();
    assert_eq!((recorded.at.as_deref(), recorded.has_answers()), (Some("2026-01-02T03:04:05Z"), true));
    assert_eq!(Facts { recording: None, ..now.clone() }, then);
    let text = shown(&Report::new(now, &config(&[RDMA])));
    assert!(text.starts_with("A recorded tree is looked at, and not this machine: "), "{text}");
    assert!(
        text.contains("recorded 2026-01-02T03:04:05Z by forebay ") && text.contains("only a live machine"),
        "{text}"
    );
    let secrets = std::process::Command::new("grep").args(["-rl", "SECRET"]).arg(copy.path()).output().unwrap();
    assert!(secrets.stdout.is_empty(), "{}", String::from_utf8_lossy(&secrets.stdout));
}

#[test]
fn a_tree_of_files_alone_says_what_is_not_known() {
    let folder = tempfile::tempdir().unwrap();
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees/hdr-at-qdr.tree");
    expand(&std::fs::read_to_string(tree).unwrap(), folder.path());
    let (root, outside) = recording::open(folder.path()).unwrap();
    let facts = Facts::gather(&root, outside);
    assert_eq!(facts.recording.as_ref().map(Recording::has_answers), Some(false));
    let config = config(&[RDMA, "worker.rpc.bind.device=ib0"]);
    for name in ["rdma port-address mlx5_0:1", "network binding", "ucx library"] {
        let check = find(&facts, &config, name);
        assert!(check.verdict == Info && check.what.contains("not recorded"), "{check:?}");
    }
    let text = shown(&Report::new(facts, &config));
    assert!(text.contains("It has files only. Not known, for it takes a live machine: addresses"), "{text}");
}

#[test]
fn what_is_no_recording_is_refused_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let document = folder.path().join(recording::DOCUMENT);
    let refused = || recording::open(folder.path()).unwrap_err().to_string();
    for (text, words) in [
        ("", "is not what `doctor --record` writes"),
        ("[]", "is not what `doctor --record` writes"),
        ("{\"format\": 1}", "is not what `doctor --record` writes"),
        ("{\"format\": 99}", "a newer release"),
    ] {
        std::fs::write(&document, text).unwrap();
        assert!(refused().contains(words), "{text}: {}", refused());
    }
    assert!(recording::open(&document).unwrap_err().to_string().contains("no directory"));
    assert!(recording::open(&folder.path().join("nothing")).is_err());
}
