//! The rows about containers, pods and their limits, and about units of systemd.

mod support;

use forebay_doctor::facts::{Limit, Mounted, MountsSeen, Namespaces, Pod, ProcessorLimit, Propagation, Unit, Units};
use forebay_doctor::{Access, Facts, Report, Verdict, checks};
use support::{RDMA, config, facts, find, is_there, ucx, verdict};

use Verdict::{Fail, Info, Ok, Warn};

const MOUNTS: &str = "mounts=/=file:///";

fn machine(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]));
    facts.memory.total_bytes = Some(64 << 30);
    change(&mut facts);
    facts
}

/// A pod without privileges.
fn pod(change: impl FnOnce(&mut Facts)) -> Facts {
    machine(|facts| {
        let container = &mut facts.container;
        container.kind = Some("kubernetes".into());
        let [name, namespace] = ["reader-7", "team-a"].map(|name| Some(name.to_owned()));
        container.pod = Some(Pod { name, namespace, node: None });
        let own = Some(true);
        container.namespaces = Namespaces { processes: own, mounts: own, network: own, users: Some(false) };
        container.first_process = Some("forebay".into());
        (container.has_ipc_lock, container.has_sys_resource) = (false, false);
        facts.system.may_administrate = false;
        facts.system.hostname = Some("reader-7".into());
        change(facts);
    })
}

#[test]
fn outside_of_containers_nothing_is_said_of_any() {
    let found = checks::check(&machine(|_| ()), &config(&[]));
    assert!(found.iter().all(|check| !matches!(check.section.name(), "container" | "units")), "{found:#?}");
}

#[test]
fn the_report_names_the_pod_and_what_it_has_for_itself() {
    let facts = pod(|_| ());
    let mut out = Vec::new();
    Report::new(facts.clone(), &config(&[])).print(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for expected in ["reader-7, namespace team-a", "processes, mounts, network", "capabilities   none"] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let kind = find(&facts, &config(&[]), "container kind");
    assert!(kind.verdict == Info && kind.what.contains("reader-7 in namespace team-a"), "{kind:?}");
}

#[test]
fn a_worker_wants_more_than_its_cache_of_a_memory_limit() {
    let of = |limit: u64, settings: &[&str]| {
        let facts = machine(|facts| facts.memory.limit_bytes = Some(limit));
        verdict(&facts, &config(settings), "container memory-limit")
    };
    // As the chart has it.
    let chart = ["worker.memory.size=2GiB", MOUNTS];
    assert_eq!(of(3584 << 20, &chart), Ok);
    assert_eq!(of(3 << 30, &chart), Warn);
    assert_eq!(of(3 << 30, &chart[..1]), Info, "no worker runs here");
    let reserved = |facts: &mut Facts| {
        facts.memory.limit_bytes = Some(2 << 30);
        (facts.memory.huge_free_bytes, facts.memory.huge_total_bytes) = (2 << 30, 2 << 30);
    };
    assert_eq!(verdict(&machine(reserved), &config(&chart), "container memory-limit"), Ok, "huge pages are beside it");
    assert!(!is_there(&machine(|_| ()), &config(&chart), "container memory-limit"));
}

#[test]
fn huge_pages_that_a_pod_did_not_ask_for_end_a_worker_that_takes_them() {
    let of = |limits: [Option<u64>; 2], settings: &[&str]| {
        let facts = machine(|facts| {
            let memory = &mut facts.memory;
            (memory.huge_free_bytes, memory.huge_total_bytes) = (4 << 30, 4 << 30);
            [memory.huge_limit_bytes, memory.huge_reserve_limit_bytes] = limits;
        });
        let config = config(settings);
        is_there(&facts, &config, "container huge-page-limit")
            .then(|| find(&facts, &config, "container huge-page-limit"))
    };
    let worker = ["worker.memory.size=2GiB", MOUNTS];
    let used = of([Some(0), None], &worker).unwrap();
    assert!(used.verdict == Fail && used.what.contains("SIGBUS"), "{used:?}");
    assert_eq!(of([Some(0), None], &worker[..1]).unwrap().verdict, Info);
    let refused = of([Some(0), Some(0)], &worker).unwrap();
    assert!(refused.verdict == Info && refused.what.contains("does without"), "{refused:?}");
    assert_eq!(of([Some(2 << 30), Some(2 << 30)], &worker).unwrap().verdict, Ok);
    assert_eq!(of([None, None], &worker), None);
    assert_eq!(of([Some(0), None], &["worker.memory.huge_pages=false"]), None);
}

#[test]
fn processors_that_are_taken_away_again_and_again_are_told() {
    let of = |thousandths, throttled| {
        let limit = ProcessorLimit { thousandths, periods: 1000, throttled };
        let facts = machine(|facts| {
            facts.system.processors = Some(64);
            facts.container.processors = Some(limit);
        });
        find(&facts, &config(&[]), "container processor-limit")
    };
    let held = of(1500, 120);
    assert!(held.verdict == Warn && held.what.contains("1.5 of 64") && held.what.contains("120 of 1000"), "{held:?}");
    assert_eq!((of(2000, 0).verdict, of(2000, 10).verdict), (Ok, Ok));
    assert!(of(250, 0).what.contains("of 0.25"), "{:?}", of(250, 0));
}

#[test]
fn capabilities_are_missed_where_something_is_to_be_done_with_them() {
    let of = |name: &str, settings: &[&str], change: fn(&mut Facts)| {
        verdict(&pod(change), &config(settings), &format!("container capability {name}"))
    };
    assert_eq!(of("SYS_ADMIN", &[], |facts| facts.system.may_administrate = true), Ok);
    assert_eq!(of("SYS_ADMIN", &[], |facts| facts.fuse.device = Access::Missing), Info, "a worker");
    assert_eq!(of("SYS_ADMIN", &[], |facts| facts.fuse.device = Access::Granted), Warn, "it is to mount");
    assert_eq!(of("IPC_LOCK", &[RDMA], |facts| facts.container.has_ipc_lock = true), Ok);
    assert_eq!(of("IPC_LOCK", &[RDMA], |facts| facts.memory.lock_limit = Some(Limit::Unlimited)), Ok);
    let limited = |facts: &mut Facts| facts.memory.lock_limit = Some(Limit::Bytes(64 << 10));
    assert_eq!((of("IPC_LOCK", &[RDMA], limited), of("IPC_LOCK", &[], limited)), (Warn, Info));
    let of_users = |facts: &mut Facts| {
        facts.container.has_ipc_lock = true;
        facts.container.namespaces.users = Some(true);
        facts.memory.lock_limit = Some(Limit::Bytes(64 << 10));
    };
    assert_eq!(of("IPC_LOCK", &[RDMA], of_users), Warn, "to the host's kernel it is none");
    assert_eq!(of("SYS_RESOURCE", &[], |_| ()), Info);
}

#[test]
fn a_profile_that_denies_mounts_is_in_the_way_of_who_may_mount() {
    let of = |profile: &str, may_mount: bool| {
        let facts = pod(|facts| {
            facts.container.profile = Some(profile.into());
            facts.system.may_administrate = may_mount;
        });
        verdict(&facts, &config(&[]), "container profile")
    };
    for denies in
        ["docker-default (enforce)", "cri-containerd.apparmor.d (enforce)", "system_u:system_r:container_t:s0:c1,c2"]
    {
        assert_eq!((of(denies, true), of(denies, false)), (Warn, Info), "{denies}");
    }
    for other in ["docker-default (complain)", "mine (enforce)", "system_u:system_r:spc_t:s0"] {
        assert_eq!(of(other, true), Info, "{other}");
    }
    assert!(!is_there(&pod(|_| ()), &config(&[]), "container profile"));
    let seccomp = |mode| verdict(&pod(|facts| facts.container.seccomp = Some(mode)), &config(&[]), "container seccomp");
    assert_eq!((seccomp(0), seccomp(2)), (Ok, Info));
}

#[test]
fn a_mount_that_the_host_does_not_see_is_told() {
    let of = |propagation| {
        let mounted = Mounted { path: "/mnt/a".into(), on: "/mnt".into(), propagation };
        let seen = MountsSeen { mounted: vec![mounted], shared: Vec::new() };
        find(&pod(|facts| facts.container.mounts = seen), &config(&[]), "container propagation /mnt/a")
    };
    assert_eq!(of(Propagation::Shared).verdict, Ok);
    let slave = of(Propagation::Slave);
    assert!(slave.verdict == Warn && slave.what.contains("HostToContainer"), "{slave:?}");
    assert!(of(Propagation::Private).remedy.unwrap().contains("Bidirectional"));
    let none = find(&pod(|_| ()), &config(&[]), "container propagation");
    assert!(none.verdict == Info && none.what.contains("this container alone"), "{none:?}");
    let shared = MountsSeen { mounted: Vec::new(), shared: vec!["/mnt/forebay".into()] };
    let could = find(&pod(|facts| facts.container.mounts = shared), &config(&[]), "container propagation");
    assert!(could.what.contains("below /mnt/forebay"), "{could:?}");
    let of_host = pod(|facts| facts.container.namespaces.mounts = Some(false));
    assert!(!is_there(&of_host, &config(&[]), "container propagation"));
}

#[test]
fn root_of_a_container_with_users_of_its_own_is_named() {
    let facts = pod(|facts| {
        facts.container.namespaces.users = Some(true);
        facts.container.root_outside = Some(100_000);
    });
    let check = find(&facts, &config(&[]), "container users");
    assert!(check.verdict == Info && check.what.contains("root is user 100000 outside"), "{check:?}");
    assert!(!is_there(&pod(|_| ()), &config(&[]), "container users"));
}

#[test]
fn a_worker_gives_an_address_that_it_has() {
    const ETCD: &str = "cluster.etcd.endpoints=http://etcd:2379";
    const NAME: &str = "container advertised worker.hostname";
    let of = |settings: &[&str]| {
        let config = config(&[&[ETCD][..], settings].concat());
        is_there(&pod(|_| ()), &config, NAME).then(|| verdict(&pod(|_| ()), &config, NAME))
    };
    assert_eq!(of(&["worker.hostname=10.0.1.10"]), Some(Ok));
    assert_eq!(of(&["worker.hostname=10.0.9.9"]), Some(Warn), "the node's, without hostNetwork");
    assert_eq!(of(&["worker.hostname=node1"]), None, "a name may be anybody's");
    assert_eq!(of(&[]), Some(Warn), "the pod's name");
    assert_eq!(of(&["worker.rpc.bind.host=10.0.1.10"]), None, "it is that address then");
    let of_host = pod(|facts| facts.container.namespaces.network = Some(false));
    assert!(!is_there(&of_host, &config(&[ETCD]), NAME), "the name is the node's");
    assert!(!is_there(&pod(|_| ()), &config(&[]), NAME), "nobody is told");
}

#[test]
fn a_keeper_does_not_outlive_the_first_process_of_a_container() {
    let keeps = config(&["fuse.survive_crash=true"]);
    assert_eq!(verdict(&pod(|_| ()), &keeps, "container processes"), Warn);
    let has_init = pod(|facts| facts.container.first_process = Some("pause".into()));
    assert_eq!(verdict(&has_init, &keeps, "container processes"), Info);
    assert_eq!(verdict(&pod(|_| ()), &config(&[]), "container processes"), Info);
    let of_host = pod(|facts| facts.container.namespaces.processes = Some(false));
    assert!(!is_there(&of_host, &keeps, "container processes"));
}

#[test]
fn device_nodes_say_who_refuses_them() {
    let remedy = |reason: &str| {
        let facts = pod(|facts| {
            facts.fuse.device = Access::Refused(reason.into());
            facts.system.is_root = true;
            facts.rdma.connection_manager = Access::Refused(reason.into());
        });
        let of = |name: &str| find(&facts, &config(&[RDMA]), name).remedy.unwrap();
        [of("fuse device"), of("rdma device-node /dev/infiniband/rdma_cm")]
    };
    for remedy in remedy("Operation not permitted") {
        assert!(remedy.contains("device rules") && !remedy.contains("chmod"), "{remedy}");
    }
    for remedy in remedy("Permission denied") {
        assert!(remedy.contains("chmod"), "{remedy}");
    }
    let [fuse, rdma] = remedy("No such device or address");
    assert!(fuse.contains("modprobe fuse") && rdma.contains("modprobe rdma_ucm"), "{fuse}\n{rdma}");
}

fn unit(change: impl FnOnce(&mut Unit)) -> Facts {
    let mut unit = Unit {
        name: "forebay-mount@mnt.service".into(),
        command: Some("mount".into()),
        load: "loaded".into(),
        active: "active".into(),
        sub: "running".into(),
        kind: Some("notify".into()),
        has_watchdog: true,
        kept_descriptors: Some(4096),
        ..Unit::default()
    };
    change(&mut unit);
    machine(|facts| facts.units.units = vec![unit])
}

#[test]
fn a_units_state_is_judged() {
    let of = |change: fn(&mut Unit)| verdict(&unit(change), &config(&[]), "units state forebay-mount@mnt.service");
    assert_eq!(of(|_| ()), Ok);
    assert_eq!(of(|unit| unit.restarts = 3), Warn);
    assert_eq!(of(|unit| unit.active = "failed".into()), Fail);
    assert_eq!(of(|unit| (unit.active, unit.sub) = ("activating".into(), "start".into())), Info, "it waits for etcd");
    assert_eq!(of(|unit| (unit.active, unit.sub) = ("activating".into(), "auto-restart".into())), Fail);
    assert_eq!(of(|unit| unit.active = "inactive".into()), Info);
    let enabled = |unit: &mut Unit| (unit.active, unit.enabled) = ("inactive".into(), Some("enabled".into()));
    assert_eq!(of(enabled), Warn);
    assert_eq!((of(|unit| unit.load = "masked".into()), of(|unit| unit.load = "bad-setting".into())), (Info, Fail));
}

#[test]
fn systemd_is_to_know_when_a_process_is_ready_and_that_it_is_alive() {
    let of = |name: &str, change: fn(&mut Unit)| {
        let facts = unit(change);
        let name = format!("units {name}");
        is_there(&facts, &config(&[]), &name).then(|| verdict(&facts, &config(&[]), &name))
    };
    assert_eq!((of("readiness", |_| ()), of("watchdog", |_| ())), (Some(Ok), Some(Ok)));
    let simple = |unit: &mut Unit| unit.kind = Some("simple".into());
    assert_eq!((of("readiness", simple), of("watchdog", simple)), (Some(Warn), None));
    assert_eq!(of("readiness", |unit| unit.kind = Some("forking".into())), None);
    assert_eq!(of("watchdog", |unit| unit.has_watchdog = false), Some(Info));
    assert_eq!(of("readiness", |unit| unit.command = Some("job".into())), None);
}

#[test]
fn a_unit_whose_mount_is_to_outlive_a_crash_needs_systemd_to_keep_its_descriptors() {
    let keeps = config(&["fuse.survive_crash=true"]);
    let without = |unit: &mut Unit| unit.kept_descriptors = Some(0);
    assert_eq!(verdict(&unit(|_| ()), &keeps, "units descriptors"), Ok);
    assert_eq!(verdict(&unit(without), &keeps, "units descriptors"), Warn);
    assert!(!is_there(&unit(without), &config(&[]), "units descriptors"));
    let worker = |unit: &mut Unit| (unit.command, unit.kept_descriptors) = (Some("worker".into()), Some(0));
    assert!(!is_there(&unit(worker), &keeps, "units descriptors"));
}

#[test]
fn why_no_unit_is_known_is_told() {
    let facts = machine(|facts| facts.units = Units::skipped("systemd does not run here".into()));
    let check = find(&facts, &config(&[]), "units systemd");
    assert!(check.verdict == Info && check.what.ends_with("systemd does not run here"), "{check:?}");
}
