//! The conditions of each verdict that no recorded machine meets.

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use forebay_doctor::facts::{
    Connections, Device, DeviceKind, Fusermount, Gid, Interface, Limit, Listener, MountProbe, OriginProbe, Owner, Port,
    UcxModule,
};
use forebay_doctor::{Access, Facts, Verdict};
use support::{RDMA, config, facts, find, is_there, ucx, verdict};

use Verdict::{Fail, Info, Ok, Warn};

/// A machine with an RDMA device on an Ethernet interface that has an address.
fn roce() -> Facts {
    facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]))
}

#[test]
fn cards_that_the_configuration_names_must_be_there() {
    let facts = roce();
    let of = |setting: &str, key: &str| {
        let check = find(&facts, &config(&[RDMA, setting]), &format!("configuration card {key}"));
        (check.verdict, check.remedy.unwrap_or_default())
    };
    assert_eq!(of("network.rdma.data.network=enp59s0", "network.rdma.data.network").0, Ok);
    let (verdict, remedy) = of("network.rdma.data.network=ib0", "network.rdma.data.network");
    assert!(verdict == Fail && remedy.contains("enp59s0"), "{remedy}");
    for name in ["mlx5_0", "mlx5_0:1"] {
        assert_eq!(of(&format!("network.rdma.data.bind.device={name}"), "network.rdma.data.bind.device").0, Ok);
    }
    for name in ["mlx5_1", "mlx5_0:2", "MLX5_0:1"] {
        let (verdict, remedy) = of(&format!("network.rdma.data.bind.device={name}"), "network.rdma.data.bind.device");
        assert!(verdict == Fail && remedy.contains("mlx5_0:1"), "{name}: {remedy}");
    }
    let without_rdma = config(&["network.rdma.data.bind.device=mlx5_1"]);
    assert_eq!(support::verdict(&facts, &without_rdma, "configuration card"), Warn);
    let by_user = config(&[RDMA, "network.rdma.data.transports=tcp", "network.rdma.data.bind.device=enp59s0"]);
    assert_eq!(support::verdict(&facts, &by_user, "configuration card"), Ok);
}

#[test]
fn an_interface_without_a_card_is_no_card() {
    let facts = facts("none", &["eth0=10.0.0.1/24"], ucx("1.20.0", &["tcp/eth0"]));
    let name = "configuration card network.rdma.data.network";
    assert_eq!(verdict(&facts, &config(&[RDMA, "network.rdma.data.network=eth0"]), name), Fail);
    assert_eq!(verdict(&facts, &config(&["network.rdma.data.network=eth0"]), name), Ok);
    let by_user = config(&[RDMA, "network.rdma.data.network=eth0", "network.rdma.data.transports=tcp"]);
    assert_eq!(verdict(&facts, &by_user, name), Ok);
}

#[test]
fn the_metadata_path_s_device_port_and_gid_are_looked_for() {
    let facts = roce();
    let of = |more: &[&str]| {
        let settings =
            [&["network.rdma.metadata.enabled=true", "network.rdma.metadata.device=mlx5_0"][..], more].concat();
        verdict(&facts, &config(&settings), "configuration card")
    };
    assert_eq!(of(&[]), Ok);
    assert_eq!(of(&["network.rdma.metadata.gid_index=3"]), Ok);
    assert_eq!(of(&["network.rdma.metadata.gid_index=4"]), Warn);
    assert_eq!(of(&["network.rdma.metadata.ib_port=2"]), Warn);
    assert_eq!(
        of(&["network.rdma.metadata.ib_port=2", RDMA]),
        Warn,
        "it goes over TCP, and data over RDMA all the same"
    );
}

#[test]
fn the_gid_and_the_partition_that_data_is_to_take_are_looked_for_on_each_card() {
    let of = |facts: &Facts, card: &str, key: &str, value: &str| {
        let config = config(&[RDMA, &format!("network.rdma.data.bind.device={card}"), &format!("{key}={value}")]);
        let name = format!("configuration card {key}");
        is_there(facts, &config, &name).then(|| verdict(facts, &config, &name))
    };
    let gid = "network.rdma.data.gid_index";
    assert_eq!((of(&roce(), "mlx5_0:1", gid, "3"), of(&roce(), "mlx5_0:1", gid, "77")), (None, Some(Fail)));
    let infiniband = facts("mlx5-infiniband", &[], ucx("1.20.0", &["rc_mlx5/mlx5_ib0:1"]));
    let partition = |key: &str| of(&infiniband, "mlx5_ib0:1", "network.rdma.data.partition_key", key);
    assert_eq!((partition("0x8001"), partition("0x7fff"), partition("0x8123")), (None, None, Some(Fail)));
}

#[test]
fn reads_that_fail_as_no_rdma_is_up_and_tcp_is_not_allowed_are_a_failure_and_not_a_fallback() {
    let of = |probe: MountProbe| {
        let mut facts = roce();
        facts.mounts.push(MountProbe { path: "/mnt".into(), ..probe });
        find(&facts, &config(&[]), "rdma mount-paths")
    };
    let worker = || vec!["node2:29999 (port 59999 refused)".to_owned()];
    let failing = of(MountProbe { unreachable: worker(), ..MountProbe::default() });
    assert_eq!(failing.verdict, Fail);
    for part in ["node2:29999 (port 59999 refused)", "reads from", "never"] {
        assert!(failing.what.contains(part), "{failing:?}");
    }
    let remedy = failing.remedy.unwrap();
    assert!(remedy.contains("fallback = \"auto\"") && remedy.contains("--peer"), "{remedy}");
    let fallen = of(MountProbe { rdma_down: worker(), ..MountProbe::default() });
    assert!(fallen.verdict == Warn && fallen.what.contains("TCP are used"), "{fallen:?}");
}

#[test]
fn a_disk_that_hangs_is_told_of_by_its_directory() {
    let mut facts = roce();
    facts.mounts.push(MountProbe { path: "/mnt".into(), ..MountProbe::default() });
    assert!(!is_there(&facts, &config(&[]), "system disk"));
    facts.mounts[0].disks_out = vec!["/nvme0/forebay".to_owned()];
    let check = find(&facts, &config(&[]), "system disk");
    assert!(check.verdict == Warn && check.what.contains("/nvme0/forebay"), "{check:?}");
    assert!(check.remedy.unwrap().contains("worker.disks"));
}

#[test]
fn interfaces_that_tcp_is_bound_to_must_be_up_with_an_address() {
    let mut facts = roce();
    facts.interfaces.push(Interface { name: "eth9".into(), state: Some("up".into()), ..Interface::default() });
    let of = |facts: &Facts, name: &str| {
        let config = config(&[&format!("client.network.data.bind.device={name}")]);
        find(facts, &config, "network binding client.network.data.bind.device")
    };
    assert_eq!(of(&facts, "enp59s0").verdict, Ok);
    assert_eq!(of(&facts, "eth9").verdict, Fail);
    let wrong = of(&facts, "ib0");
    assert!(wrong.verdict == Fail && wrong.remedy.unwrap().contains("with an address: enp59s0;"));
    facts.interfaces[0].state = Some("down".into());
    assert!(of(&facts, "enp59s0").what.contains("is down"));
    for key in
        ["worker.rpc.bind.device", "worker.data.bind.device", "worker.web.bind.device", "worker.rest.bind.device"]
    {
        assert_eq!(verdict(&facts, &config(&[&format!("{key}=nope")]), &format!("network binding {key}")), Fail);
    }
    assert_eq!(verdict(&facts, &config(&["network.group_network=x"]), "network binding network.group_network"), Fail);
}

#[test]
fn a_port_that_another_program_holds_is_in_the_way_only_on_the_same_address() {
    let mut facts = roce();
    let mut of = |address: [u8; 4], owner: Option<&str>, settings: &[&str]| {
        let owner = owner.map(|name| Owner { pid: 7, name: name.into() });
        facts.listeners = vec![Listener { address: IpAddr::V4(Ipv4Addr::from(address)), port: 59999, owner }];
        verdict(&facts, &config(settings), "network port network.rdma.data.port")
    };
    assert_eq!(of([0, 0, 0, 0], Some("nginx"), &[RDMA]), Warn);
    assert_eq!(of([0, 0, 0, 0], None, &[RDMA, "mounts=/=file:///"]), Fail);
    assert_eq!(of([127, 0, 0, 1], Some("nginx"), &[RDMA]), Warn, "0.0.0.0 takes them all");
    assert_eq!(of([127, 0, 0, 1], Some("nginx"), &[RDMA, "network.rdma.data.bind.host=10.0.1.10"]), Ok);
    assert_eq!(of([10, 0, 1, 10], Some("forebay"), &[RDMA]), Ok, "it is Forebay itself");
    assert_eq!(of([0, 0, 0, 0], Some("nginx"), &[RDMA, "network.rdma.data.port=59998"]), Ok);
    assert!(!is_there(&facts, &config(&["worker.rpc.port=0"]), "network port"), "a free one is taken");
}

#[test]
fn a_listener_is_in_the_way_only_where_the_worker_would_listen() {
    let mut facts = facts("ipoib-datagram", &["ib0=10.2.0.5/16", "eth0=10.0.0.5/24"], ucx("1.20.0", &[]));
    let mut of = |address: &str, settings: &[&str]| {
        let owner = Some(Owner { pid: 7, name: "nginx".into() });
        facts.listeners = vec![Listener { address: address.parse().unwrap(), port: 29999, owner }];
        verdict(&facts, &config(settings), "network port worker.rpc.port")
    };
    let (rpc, group) = ("worker.rpc.bind.device=ib0", "network.group_network=ib0");
    for settings in [&[rpc][..], &[group], &["worker.rpc.bind.host=10.2.0.5"]] {
        assert_eq!(of("10.0.0.5", settings), Ok, "{settings:?}");
        assert_eq!(of("127.0.0.1", settings), Ok, "{settings:?}");
        for taken in ["10.2.0.5", "0.0.0.0", "::", "::ffff:10.2.0.5"] {
            assert_eq!(of(taken, settings), Warn, "{taken} {settings:?}");
        }
    }
    assert_eq!(of("10.0.0.5", &[rpc, "worker.data.bind.device=eth0"]), Warn, "it listens there, too");
    assert_eq!(
        of("10.2.0.5", &[group, "worker.rpc.bind.host=10.0.0.5"]),
        Ok,
        "a host comes before the group's network"
    );
    assert_eq!(of("10.2.0.5", &["worker.rpc.bind.device=eth0", group]), Ok);
    assert_eq!((of("10.0.0.5", &[]), of("::1", &[])), (Warn, Ok), "0.0.0.0 takes all of IPv4");
    assert_eq!(of("10.0.0.5", &["worker.rpc.bind.device=nonesuch"]), Warn, "nobody knows where that is");
}

#[test]
fn who_has_a_port_is_not_guessed_by_those_who_are_not_told() {
    let mut facts = roce();
    facts.listeners = vec![Listener { address: Ipv4Addr::UNSPECIFIED.into(), port: 29999, owner: None }];
    let worker = config(&["mounts=/=file:///"]);
    assert_eq!(verdict(&facts, &worker, "network port worker.rpc.port"), Fail);
    facts.system.is_root = false;
    let unknown = find(&facts, &worker, "network port worker.rpc.port");
    assert_eq!(unknown.verdict, Info);
    assert!(unknown.what.contains("somebody listens on 0.0.0.0:29999"), "{unknown:?}");
    assert!(unknown.remedy.is_some_and(|remedy| remedy.contains("sudo forebay doctor")));
}

#[test]
fn connections_over_other_interfaces_are_a_worry_when_those_of_mounts_are_among_them() {
    let mut facts = facts("ipoib-datagram", &["ib0=10.2.0.5/16", "eth0=10.0.0.5/24"], ucx("1.20.0", &[]));
    let bound = config(&["client.network.data.bind.device=ib0"]);
    let over = |address: [u8; 4]| Connections { address: address.into(), port: 29999, is_outgoing: true, count: 1 };
    let name = "network connections client.network.data.bind.device";
    facts.connections = vec![over([10, 0, 0, 5])];
    assert_eq!(verdict(&facts, &bound, name), Warn);
    facts.connections.push(over([10, 2, 0, 5]));
    assert_eq!(verdict(&facts, &bound, name), Info, "a coordinator's are not bound by it");
    facts.connections.remove(0);
    assert_eq!(verdict(&facts, &bound, name), Ok);
}

#[test]
fn locked_memory_is_compared_with_what_is_registered_with_all_cards() {
    let mut facts = roce();
    facts.system.may_lock_memory = false;
    let mut of = |limit: Limit, settings: &[&str]| {
        facts.memory.lock_limit = Some(limit);
        let sizes = ["worker.memory.size=512MiB", "network.rdma.data.buffer_pool.max_size=1GiB"];
        verdict(&facts, &config(&[&sizes[..], settings].concat()), "memory memlock")
    };
    assert_eq!(of(Limit::Unlimited, &[RDMA]), Ok);
    assert_eq!(of(Limit::Bytes(1 << 30), &[RDMA]), Ok);
    assert_eq!(of(Limit::Bytes((1 << 30) - 1), &[RDMA]), Warn, "the client's pool cannot grow");
    assert_eq!(of(Limit::Bytes((256 << 20) - 1), &[RDMA]), Fail);
    let two = "network.rdma.data.bind.device=mlx5_0:1,mlx5_1:1";
    assert_eq!(of(Limit::Bytes(1 << 30), &[RDMA, two]), Warn);
    assert_eq!(of(Limit::Bytes(0), &[]), Warn, "there is a card, but nobody asks for it");
    assert_eq!(of(Limit::Bytes(0), &[RDMA, "network.rdma.data.fallback=tcp-at-start"]), Warn);
    facts.memory.lock_limit = None;
    assert_eq!(verdict(&facts, &config(&[RDMA]), "memory memlock"), Info);
}

#[test]
fn huge_pages_and_capacity() {
    let mut facts = roce();
    let config_of = config;
    let config = config(&[]);
    assert_eq!(verdict(&facts, &config, "memory huge-pages"), Warn, "nothing is known of them");
    facts.memory.transparent_huge_pages = Some("never".into());
    assert_eq!(verdict(&facts, &config, "memory huge-pages"), Warn);
    facts.memory.huge_free_bytes = 1 << 30;
    assert_eq!(verdict(&facts, &config, "memory huge-pages"), Ok);
    facts.memory.huge_free_bytes = (1 << 30) - 1;
    facts.memory.transparent_huge_pages = Some("always".into());
    assert_eq!(verdict(&facts, &config, "memory huge-pages"), Ok);
    assert!(!is_there(&facts, &config_of(&["worker.memory.huge_pages=false"]), "memory huge-pages"));
    facts.memory.total_bytes = Some(1 << 30);
    assert!(!is_there(&facts, &config, "memory capacity"));
    let large = ["worker.memory.size=2GiB", "mounts=/=file:///"];
    assert_eq!(verdict(&facts, &config_of(&large), "memory capacity"), Fail);
    assert_eq!(verdict(&facts, &config_of(&large[..1]), "memory capacity"), Info);
    facts.memory.total_bytes = Some(64 << 30);
    assert!(!is_there(&facts, &config_of(&large), "memory capacity"));
    facts.memory.limit_bytes = Some(1 << 30);
    let limited = find(&facts, &config_of(&large), "memory capacity");
    assert!(limited.verdict == Fail && limited.what.contains("its limit here is 1 GiB"), "{limited:?}");
    let pool = config_of(&[RDMA, "network.rdma.data.buffer_pool.initial_size=2GiB"]);
    let fails = |facts: &Facts| {
        let checks = forebay_doctor::checks::check(facts, &pool);
        checks.iter().any(|check| check.name == "buffer-pool" && check.verdict == Fail)
    };
    facts.memory.available_bytes = Some(32 << 30);
    assert!(fails(&facts), "it can have 1 GiB");
    facts.memory.limit_bytes = None;
    assert!(!fails(&facts));
}

#[test]
fn the_buffer_pool_holds_what_is_fetched_ahead_also_from_far_away() {
    let sizes = [
        RDMA,
        "network.rdma.data.buffer_pool.max_size=128MiB",
        "network.rdma.data.buffer_pool.initial_size=16MiB",
        "network.rdma.data.buffer_pool.prewarm_size=16MiB",
    ];
    let with = |more: &[&str]| verdict(&roce(), &config(&[&sizes, more].concat()), "configuration buffer-pool");
    assert_eq!(with(&[]), Warn, "two readers, 32 blocks of 4 MiB ahead of each");
    assert_eq!(with(&["client.prefetch.far_part_number=16"]), Ok);
    assert_eq!(with(&["client.prefetch.max_part_number=16"]), Ok);
    assert_eq!(with(&["client.prefetch.max_part_number=32"]), Warn);
}

#[test]
fn device_nodes_that_may_not_be_opened() {
    let mut facts = roce();
    facts.rdma.connection_manager = Access::Refused("Operation not permitted".into());
    let nodes = |facts: &Facts, settings: &[&str]| {
        let checks = forebay_doctor::checks::check(facts, &config(settings));
        checks.into_iter().filter(|check| check.name == "device-node").map(|check| check.verdict).collect::<Vec<_>>()
    };
    assert_eq!(nodes(&facts, &[RDMA]), [Ok, Fail]);
    assert_eq!(nodes(&facts, &[]), [Ok, Warn]);
    facts.rdma.devices[0].access = Access::Missing;
    facts.rdma.devices[0].node = None;
    assert_eq!(nodes(&facts, &[RDMA]), [Fail, Fail]);
}

#[test]
fn ports_without_interface_address_or_gid() {
    let mut facts = roce();
    let config = config(&[RDMA]);
    facts.interfaces[0].addresses.clear();
    assert_eq!(verdict(&facts, &config, "rdma port-address"), Fail);
    facts.rdma.devices[0].ports[0].interfaces.clear();
    assert_eq!(verdict(&facts, &config, "rdma port-address"), Fail);
    assert_eq!(verdict(&facts, &support::config(&[]), "rdma port-address"), Warn);
    let gids = &mut facts.rdma.devices[0].ports[0].gids;
    gids.retain(|gid| !gid.is_roce_v2());
    assert_eq!(verdict(&facts, &config, "rdma roce-gid"), Warn);
    facts.rdma.devices[0].ports[0].gids.clear();
    assert_eq!(verdict(&facts, &config, "rdma roce-gid"), Fail);
    facts.rdma.devices[0].ports[0].gids =
        vec![Gid { index: 0, gid: "fe80::1".into(), kind: Some("RoCE v2".into()), interface: None }];
    assert_eq!(verdict(&facts, &config, "rdma roce-gid"), Ok);
}

#[test]
fn cards_that_others_were_named_instead_of_do_not_matter() {
    let mut facts = roce();
    let mut other = facts.rdma.devices[0].ports[0].clone();
    (other.name, other.number) = ("mlx5_0:2".into(), 2);
    other.interfaces.clear();
    other.gids.clear();
    facts.rdma.devices[0].ports.push(other);
    let named = config(&[RDMA, "network.rdma.data.network=enp59s0"]);
    for name in ["rdma port-address mlx5_0:2", "rdma roce-gid mlx5_0:2"] {
        assert_eq!(verdict(&facts, &named, name), Info);
        assert_eq!(verdict(&facts, &config(&[RDMA]), name), Fail);
    }
}

#[test]
fn what_is_said_of_a_port_that_is_down_follows_its_state() {
    let mut facts = roce();
    let mut remedy = |state: &str, physical: &str| {
        let port = &mut facts.rdma.devices[0].ports[0];
        (port.state, port.physical_state) = (Some(state.into()), Some(physical.into()));
        let check = find(&facts, &config(&[RDMA]), "rdma port-state");
        assert_eq!(check.verdict, Fail);
        check.remedy.unwrap()
    };
    assert!(remedy("DOWN", "Disabled").contains("ip link set enp59s0 up"));
    assert!(remedy("DOWN", "Polling").contains("cable"));
    assert!(remedy("INIT", "LinkUp").contains("ip link set enp59s0 up"), "RoCE has no subnet manager");
    assert!(remedy("", "").contains("ibstat"));
}

#[test]
fn iwarp_goes_by_verbs_and_is_refused_in_words_by_ucx() {
    let port = Port { name: "siw0:1".into(), number: 1, state: Some("ACTIVE".into()), ..Port::default() };
    let device = Device { kind: DeviceKind::Iwarp, ports: vec![port], ..Device::default() };
    let mut facts = roce();
    facts.rdma.devices = vec![device];
    facts.ucx = ucx("1.20.0", &["tcp/eth0"]);
    let check = find(&facts, &config(&[RDMA]), "rdma kind siw0:1");
    assert!(check.verdict == Fail && check.what.contains("iWARP") && check.remedy.unwrap().contains("TCP"));
    assert!(!is_there(&facts, &config(&[RDMA]), "ucx rdmacm"));
    // As libibverbs tells of it.
    facts.rdma.devices[0].has_windows = Some(false);
    for (name, verdict) in [("rdma kind siw0:1", Info), ("rdma provider siw0:1", Ok), ("ucx transports", Info)] {
        assert_eq!(find(&facts, &config(&[RDMA]), name).verdict, verdict, "{name}");
    }
    assert!(!is_there(&facts, &config(&[RDMA]), "rdma roce-gid"), "it is not RoCE");
    let by_ucx = config(&[RDMA, "network.rdma.data.provider=ucx"]);
    assert_eq!(find(&facts, &by_ucx, "rdma kind siw0:1").verdict, Fail);
}

#[test]
fn the_reason_why_ucx_offers_no_rdma_is_found() {
    let mut facts = roce();
    let mut remedy = |modules: &[(&str, bool)]| {
        let module = |(name, is_loaded): &(&str, bool)| UcxModule { name: (*name).to_owned(), is_loaded: *is_loaded };
        facts.ucx = ucx("1.20.0", &["tcp/enp59s0"]);
        facts.ucx.modules = modules.iter().map(module).collect();
        let transports = find(&facts, &config(&[RDMA]), "ucx transports");
        let rdmacm = find(&facts, &config(&[RDMA]), "ucx rdmacm");
        assert_eq!(transports.verdict, Fail);
        (transports.remedy.unwrap(), rdmacm.verdict)
    };
    let (built_without, rdmacm) = remedy(&[]);
    assert!(built_without.contains("--with-verbs") && rdmacm == Fail);
    let (not_loaded, rdmacm) = remedy(&[("ib", false), ("rdmacm", false)]);
    assert!(not_loaded.contains("libibverbs1") && rdmacm == Fail);
    let (loaded, rdmacm) = remedy(&[("ib", true), ("rdmacm", true)]);
    assert!(loaded.contains("ibverbs-providers") && rdmacm == Ok);
}

#[test]
fn sockets_of_an_old_ucx_are_warned_of_where_somebody_has_chosen_them() {
    let mut facts = roce();
    let chosen = config(&[RDMA, "network.rdma.data.transports=[\"posix\", \"tcp\"]"]);
    for (release, left_to_ucx, by_hand) in [("1.13.1", Some(Info), Some(Warn)), ("1.18.0", None, None)] {
        facts.ucx.version = Some(release.into());
        for (config, expected) in [(&config(&[RDMA]), left_to_ucx), (&chosen, by_hand)] {
            let found = is_there(&facts, config, "ucx sockets").then(|| find(&facts, config, "ucx sockets"));
            assert_eq!(found.as_ref().map(|check| check.verdict), expected, "{release}");
            assert!(expected != Some(Warn) || found.unwrap().remedy.unwrap().contains("1.18"));
        }
    }
}

#[test]
fn a_libucp_that_cannot_be_used_matters_to_who_wants_it() {
    let mut facts = roce();
    facts.ucx.error = Some("libucp is not installed (looked for libucp.so.0); install UCX 1.13.0 or newer".into());
    let check = find(&facts, &config(&[RDMA]), "ucx library");
    assert_eq!((check.verdict, check.remedy.as_deref()), (Fail, Some("install UCX 1.13.0 or newer")));
    assert_eq!(verdict(&facts, &config(&[]), "ucx library"), Info);
    assert_eq!(verdict(&facts, &config(&[RDMA, "network.rdma.data.fallback=tcp-at-start"]), "ucx library"), Warn);
    assert_eq!(verdict(&facts, &config(&[RDMA, "network.rdma.data.transports=tcp"]), "ucx library"), Fail);
    facts.ucx = ucx("1.9.0", &["tcp/eth0"]);
    assert_eq!(verdict(&facts, &config(&[]), "ucx library"), Info, "1.9 is older than 1.20");
    facts.ucx.rdma_core = Some(34);
    assert_eq!(verdict(&facts, &config(&[RDMA]), "ucx rdma-core"), Warn);
    facts.ucx.rdma_core = Some(35);
    assert_eq!(verdict(&facts, &config(&[RDMA]), "ucx rdma-core"), Ok);
}

#[test]
fn variables_of_ucx_that_name_what_is_not_there() {
    let mut facts = roce();
    let mut of = |variable: &str, value: &str| {
        facts.ucx.environment = [(variable.to_owned(), value.to_owned())].into();
        let found = is_there(&facts, &config(&[RDMA]), "ucx environment");
        found.then(|| verdict(&facts, &config(&[RDMA]), "ucx environment"))
    };
    for good in ["mlx5_0:1", "mlx5_0:1,enp59s0", "^mlx5_0:1", "mlx5_*"] {
        assert_eq!(of("UCX_NET_DEVICES", good), Some(Info), "{good}");
    }
    assert_eq!(of("UCX_NET_DEVICES", "mlx5_7:1"), Some(Fail));
    assert_eq!(of("UCX_NET_DEVICES", "all"), None);
    assert_eq!(of("UCX_TLS", "tcp"), Some(Info));
    assert_eq!(of("UCX_LOG_LEVEL", "info"), None);
}

#[test]
fn mounting_as_a_user_takes_a_helper_that_may() {
    let mut facts = roce();
    let defaults = config(&[]);
    facts.system.is_root = false;
    assert_eq!(verdict(&facts, &defaults, "fuse fusermount3"), Warn);
    facts.fuse.fusermount = Some(Fusermount { path: "/usr/bin/fusermount3".into(), is_setuid_root: false });
    assert_eq!(verdict(&facts, &defaults, "fuse fusermount3"), Warn);
    facts.fuse.fusermount = Some(Fusermount { path: "/usr/bin/fusermount3".into(), is_setuid_root: true });
    assert_eq!(verdict(&facts, &defaults, "fuse fusermount3"), Ok);
    assert_eq!(verdict(&facts, &defaults, "fuse allow-other"), Info);
    assert_eq!(verdict(&facts, &config(&["fuse.allow_other=true"]), "fuse allow-other"), Fail);
    facts.fuse.user_allow_other = true;
    assert_eq!(verdict(&facts, &config(&["fuse.allow_other=true"]), "fuse allow-other"), Ok);
    facts.system.is_root = true;
    assert!(!is_there(&facts, &defaults, "fuse allow-other"));
}

#[test]
fn the_device_of_fuse() {
    let mut facts = roce();
    let mut of = |device: Access, is_in_kernel: bool| {
        (facts.fuse.device, facts.fuse.is_in_kernel) = (device, is_in_kernel);
        verdict(&facts, &config(&[]), "fuse device")
    };
    assert_eq!(of(Access::Granted, true), Ok);
    assert_eq!(of(Access::Granted, false), Info);
    assert_eq!(of(Access::Missing, false), Warn);
    let refused = Access::Refused("Permission denied".into());
    assert_eq!(of(refused.clone(), true), Warn);
    facts.system.is_root = false;
    facts.fuse.device = refused;
    assert_eq!(verdict(&facts, &config(&[]), "fuse device"), Warn, "there is no helper either");
    facts.fuse.fusermount = Some(Fusermount { path: "/usr/bin/fusermount3".into(), is_setuid_root: true });
    assert_eq!(verdict(&facts, &config(&[]), "fuse device"), Info);
}

#[test]
fn origins_the_clock_and_a_wrong_configuration() {
    let mut facts = roce();
    let defaults = config(&[]);
    assert_eq!(verdict(&facts, &defaults, "origin reachable"), Info);
    facts.clock.is_synchronized = Some(false);
    assert_eq!(verdict(&facts, &defaults, "origin clock"), Info, "nobody signs anything");
    facts.origins = vec![
        OriginProbe::answered("s3://a", Duration::from_millis(12)),
        OriginProbe::failed("s3://b", Duration::from_secs(3), "access denied".into(), Some("check the policy".into())),
    ];
    assert_eq!(verdict(&facts, &defaults, "origin reachable s3://a"), Ok);
    let denied = find(&facts, &defaults, "origin reachable s3://b");
    assert_eq!((denied.verdict, denied.what.as_str()), (Fail, "access denied (after 3000 ms)"));
    for (state, expected) in [(Some(true), Ok), (Some(false), Warn), (None, Info)] {
        facts.clock.is_synchronized = state;
        assert_eq!(verdict(&facts, &defaults, "origin clock"), expected);
    }
    assert_eq!(verdict(&facts, &defaults, "configuration settings"), Ok);
    facts.configuration.problems = vec!["unknown key `worker.memory.siz`".into()];
    assert_eq!(verdict(&facts, &defaults, "configuration settings"), Fail);
}
