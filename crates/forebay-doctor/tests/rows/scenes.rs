//! For each check a machine, a configuration and a host in which it comes to the verdict that it is there for.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use forebay_doctor::facts::{
    Connections, CoordinatorProbe, EtcdProbe, FlowControl, Listener, MountProbe, OriginProbe, Owner, PathMtu,
    PeerBandwidth, PeerLatency, PeerListener, PeerMeasured, PeerOperation, PeerPort, PeerProbe, PeerWorker, Reached,
    Route,
};
use forebay_doctor::{Access, Facts, Verdict};

use crate::support::{RDMA, facts, ucx};

use Verdict::{Fail, Info, Warn};

pub(super) fn roce() -> Facts {
    facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]))
}

pub(super) fn ailing() -> Facts {
    facts("ipoib-datagram", &["ib0=10.2.0.5/16", "eth0=10.0.0.5/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]))
}

/// A machine on which one thing is wrong.
pub(super) fn with(mut facts: Facts, change: impl FnOnce(&mut Facts)) -> Facts {
    change(&mut facts);
    facts
}

/// A host that was asked and measured, and is well but for `change`.
pub(super) fn peer(change: impl FnOnce(&mut PeerProbe)) -> Facts {
    let address = |port| SocketAddr::new(Ipv4Addr::new(10, 2, 0, 9).into(), port);
    let port = |service: &str, port| PeerPort {
        service: service.into(),
        address: address(port),
        reached: Reached::Open,
        took_us: 90,
    };
    let mut peer = PeerProbe {
        name: "node2".into(),
        addresses: vec![address(0).ip()],
        route: Some(Route {
            to: address(0).ip(),
            interface: Some("ib0".into()),
            source: Some(Ipv4Addr::new(10, 2, 0, 5).into()),
            gateway: None,
            mtu: None,
        }),
        ports: vec![port("worker", 29999), port("benchmark", 20600)],
        path_mtu: Some(PathMtu { believed: Some(1500), delivered: Some(1500), agreed: Some(1500) }),
        worker: Some(PeerWorker {
            ping_us: Some(40),
            ucx: Some("1.20.0".into()),
            listeners: vec![PeerListener {
                card: "mlx5_0:1".into(),
                address: "10.2.0.9:59999".into(),
                from: "ib0".into(),
                connect_us: Some(900),
                ping_us: Some(5),
                ..PeerListener::default()
            }],
            ..PeerWorker::default()
        }),
        measured: vec![measured("tcp", 45_000), measured("ucx", 49_000)],
        ..PeerProbe::default()
    };
    change(&mut peer);
    with(ailing(), |facts| facts.peers.push(peer))
}

pub(super) fn measured(transport: &str, mbps: u64) -> PeerMeasured {
    let is_rdma = transport == "ucx";
    let operations = [PeerOperation::Write, PeerOperation::Read, PeerOperation::Cache];
    PeerMeasured {
        transport: transport.into(),
        lanes: if is_rdma { vec!["rc_mlx5/mlx5_0:1".into()] } else { Vec::new() },
        is_rdma,
        verified: 9,
        latency: operations
            .map(|operation| PeerLatency { operation, bytes: 4096, p50_ns: 3000, p99_ns: 9000 })
            .to_vec(),
        bandwidth: operations.map(|operation| PeerBandwidth { operation, bytes: 1 << 20, mbps }).to_vec(),
        moved_bytes: 1 << 30,
        counted_bytes: Some(1 << 30),
        counted_at: Some("ib0".into()),
        ..PeerMeasured::default()
    }
}

fn forebay_at(address: [u8; 4]) -> Listener {
    let owner = Some(Owner { pid: 7, name: "forebay".into() });
    Listener { address: IpAddr::from(address), port: 29999, owner }
}

/// A machine and a configuration in which the check comes to the verdict that it is there for, and that verdict.
pub(super) fn scene(check: &str) -> (Facts, Vec<&'static str>, Verdict) {
    let bound = "worker.rpc.bind.device=ib0";
    let none = || facts("none", &["eth0=10.0.0.1/24"], ucx("1.20.0", &["tcp/eth0"]));
    match check {
        "rdma kind" => (facts("efa", &["ens5=10.0.0.1/20"], ucx("1.13.1", &["tcp/ens5"])), vec![RDMA], Fail),
        "rdma devices" | "rdma module" => (none(), vec![RDMA], Fail),
        "rdma card" => {
            let down = facts("down", &[], ucx("1.20.0", &[]));
            (with(down, |facts| facts.rdma.devices.clear()), vec![RDMA], Fail)
        }
        "system kernel" => (facts("down", &[], ucx("1.20.0", &[])), vec![], Warn),
        "rdma vendor-drivers" => {
            (facts("mlx5-infiniband", &[], ucx("1.20.0", &["rc_mlx5/mlx5_ib0:1"])), vec![RDMA], Warn)
        }
        "ucx rdma-core" => (with(roce(), |facts| facts.ucx.rdma_core = Some(34)), vec![RDMA], Warn),
        "ucx library" => (
            with(roce(), |facts| facts.ucx.error = Some("libucp is not installed; install UCX".into())),
            vec![RDMA],
            Fail,
        ),
        "ucx transports" | "ucx rdmacm" => (
            with(roce(), |facts| {
                facts.ucx = forebay_doctor::facts::Ucx { modules: Vec::new(), ..ucx("1.20.0", &["tcp/lo"]) }
            }),
            vec![RDMA],
            Fail,
        ),
        "ucx environment" => {
            let named = ("UCX_NET_DEVICES".to_owned(), "mlx5_7:1".to_owned());
            (with(roce(), |facts| facts.ucx.environment = [named].into()), vec![RDMA], Fail)
        }
        "rdma port-state" => (facts("down", &[], ucx("1.20.0", &[])), vec![RDMA], Fail),
        "rdma fabric" => {
            let both = with(roce(), |facts| {
                let mut other = ailing().rdma.devices.remove(0);
                other.ports[0].name = "mlx5_1:1".into();
                facts.rdma.devices.push(other);
            });
            (both, vec![RDMA], Warn)
        }
        "rdma rate" | "rdma partition" | "rdma slot" | "system governor" | "rdma ipoib-mtu" => {
            (ailing(), vec![RDMA], Warn)
        }
        "rdma faults" => {
            let growing = |facts: &mut Facts| {
                facts.rdma.devices[0].ports[0].new_faults = Some([("symbol_error".to_owned(), 3)].into());
            };
            (with(ailing(), growing), vec![RDMA], Warn)
        }
        "rdma numa" | "rdma iommu" | "memory service-memlock" => {
            let mut facts = facts("hdr-at-qdr", &["ib0=10.1.0.5/16"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]));
            facts.lock_limits.clear();
            let expected = if check.starts_with("memory") { Fail } else { Warn };
            (facts, vec![RDMA], expected)
        }
        "rdma flow-control" => {
            let untrusted = FlowControl { lossless: [3].into(), ..FlowControl::default() };
            (with(roce(), |facts| facts.interfaces[0].flow_control = Some(untrusted)), vec![RDMA], Warn)
        }
        "rdma boot" => {
            (with(ailing(), |facts| facts.modules.retain(|module| module.name != "ib_ipoib")), vec![RDMA], Warn)
        }
        "rdma packets" => {
            let slow = with(ailing(), |facts| {
                let port = &mut facts.rdma.devices[0].ports[0];
                (port.max_mtu, port.active_mtu) = (Some(4096), Some(2048));
            });
            (slow, vec![RDMA], Warn)
        }
        "configuration card" => (roce(), vec![RDMA, "network.rdma.data.bind.device=mlx5_9:1"], Fail),
        "memory memlock" => (facts("mlx5-infiniband", &[], ucx("1.20.0", &["rc_mlx5/mlx5_ib0:1"])), vec![RDMA], Fail),
        "configuration operation-timeout" => (roce(), vec![RDMA, "network.rdma.data.operation_timeout=1s"], Warn),
        "configuration buffer-pool" => {
            let small = "network.rdma.data.buffer_pool.max_size=32MiB";
            let sizes = [
                "network.rdma.data.buffer_pool.initial_size=16MiB",
                "network.rdma.data.buffer_pool.prewarm_size=16MiB",
            ];
            (roce(), vec![RDMA, small, sizes[0], sizes[1]], Warn)
        }
        "memory buffer-waits" => {
            let waits = MountProbe { path: "/mnt".into(), buffer_waits: 9, ..MountProbe::default() };
            (with(roce(), |facts| facts.mounts.push(waits)), vec![], Warn)
        }
        "rdma mount-paths" => {
            let down =
                MountProbe { path: "/mnt".into(), rdma_down: vec!["node2:29999".into()], ..MountProbe::default() };
            (with(roce(), |facts| facts.mounts.push(down)), vec![], Warn)
        }
        "fuse mount" => {
            let gone =
                MountProbe { path: "/mnt".into(), error: Some("its process is gone".into()), ..MountProbe::default() };
            (with(roce(), |facts| facts.mounts.push(gone)), vec![], Warn)
        }
        "network port" => {
            let other = Listener { owner: Some(Owner { pid: 7, name: "nginx".into() }), ..forebay_at([0, 0, 0, 0]) };
            (with(roce(), |facts| facts.listeners.push(other)), vec!["mounts=/=file:///"], Fail)
        }
        "rdma port-address" => (facts("mlx5-infiniband", &[], ucx("1.20.0", &[])), vec![RDMA], Fail),
        "rdma device-node" => {
            let refused = with(roce(), |facts| {
                facts.rdma.devices[0].access = Access::Refused("Permission denied".into());
                facts.rdma.devices[0].kind = forebay_doctor::facts::DeviceKind::Efa;
            });
            (refused, vec![RDMA], Fail)
        }
        "network listens" => {
            (with(ailing(), |facts| facts.listeners.push(forebay_at([10, 0, 0, 5]))), vec![bound], Warn)
        }
        "network connections" => {
            let address = IpAddr::from([10, 0, 0, 5]);
            let elsewhere = Connections { address, port: 29999, is_outgoing: false, count: 3 };
            (with(ailing(), |facts| facts.connections.push(elsewhere)), vec![bound], Warn)
        }
        "network half-bound" => (ailing(), vec!["worker.data.bind.device=ib0"], Warn),
        "network binding" => (ailing(), vec!["worker.data.bind.device=IB0"], Fail),
        "network subnets" => {
            let addresses = ["veth0=10.77.0.1/24", "veth1=10.77.0.2/24"];
            (facts("rxe", &addresses, ucx("1.20.0", &["rc_verbs/rxe0:1"])), vec![RDMA], Warn)
        }
        "network pipe-max-size" => (facts("mlx5-infiniband", &[], ucx("1.20.0", &[])), vec![], Info),
        "system fio" | "system page-cache" => (none(), vec![], Info),
        "system io-uring" => {
            (with(ailing(), |facts| facts.system.may_administrate = false), vec!["worker.disk.io=uring"], Fail)
        }
        "configuration max-background" => (none(), vec!["fuse.max_background=4"], Warn),
        "configuration settings" => {
            (with(none(), |facts| facts.configuration.problems = vec!["unknown key".into()]), vec![], Fail)
        }
        "fuse device" => (roce(), vec![], Warn),
        "fuse io-uring" => (with(none(), |facts| facts.fuse.io_uring = Some(false)), vec!["fuse.io=uring"], Fail),
        "origin reachable" => {
            let failed = OriginProbe::failed(
                "s3://b",
                Duration::from_secs(1),
                "no answer".into(),
                Some("check the network".into()),
            );
            (with(none(), |facts| facts.origins.push(failed)), vec![], Fail)
        }
        "origin clock-skew" => {
            let ahead = OriginProbe { clock_ahead_s: Some(-1000), ..OriginProbe::answered("s3://b", Duration::ZERO) };
            (with(none(), |facts| facts.origins.push(ahead)), vec![], Fail)
        }
        "memory huge-pages" => (with(none(), |facts| facts.memory.huge_free_bytes = 0), vec![], Warn),
        "rdma roce-mtu" => (roce(), vec![RDMA], Warn),
        "rdma roce-gid" => (with(roce(), |facts| facts.rdma.devices[0].ports[0].gids.clear()), vec![RDMA], Fail),
        "cluster coordinator" => {
            let gone =
                CoordinatorProbe { address: "c:19999".into(), error: Some("no".into()), ..CoordinatorProbe::default() };
            (with(none(), |facts| facts.coordinators.push(gone)), vec![], Fail)
        }
        "cluster etcd" => {
            let gone = EtcdProbe { endpoint: "http://e:2379".into(), error: Some("no".into()), ..EtcdProbe::default() };
            (with(none(), |facts| facts.etcd.push(gone)), vec![], Fail)
        }
        "peer worker-rdma" => {
            let no_listeners = |peer: &mut PeerProbe| peer.worker.as_mut().unwrap().listeners.clear();
            (peer(no_listeners), vec![RDMA, "network.rdma.data.fallback=never"], Fail)
        }
        "peer rdma-connect" => {
            let fails = |peer: &mut PeerProbe| {
                peer.measured.clear();
                peer.worker.as_mut().unwrap().listeners[0].error = Some("no answer within 5s".into());
            };
            (peer(fails), vec![RDMA], Fail)
        }
        "peer worker" => {
            let refuses = |peer: &mut PeerProbe| peer.worker.as_mut().unwrap().error = Some("it refused".into());
            (peer(refuses), vec![], Fail)
        }
        "peer reachable" => {
            let silent = |peer: &mut PeerProbe| {
                peer.ports.iter_mut().for_each(|port| port.reached = Reached::Silent);
                (peer.worker, peer.measured) = (None, Vec::new());
            };
            (peer(silent), vec![], Fail)
        }
        "peer counted" => {
            let elsewhere = |peer: &mut PeerProbe| {
                peer.measured.truncate(1);
                peer.measured[0].counted_bytes = Some(1 << 20);
            };
            (peer(elsewhere), vec![], Warn)
        }
        "peer bandwidth" => {
            let slow = |peer: &mut PeerProbe| peer.measured = vec![measured("tcp", 9000)];
            (peer(slow), vec![], Warn)
        }
        "peer latency" => {
            let slow = |peer: &mut PeerProbe| {
                peer.measured.clear();
                peer.worker.as_mut().unwrap().ping_us = Some(100_000_000);
            };
            (peer(slow), vec![], Warn)
        }
        "peer route" => {
            let slow = |peer: &mut PeerProbe| peer.route.as_mut().unwrap().interface = Some("eth0".into());
            (peer(slow), vec![], Warn)
        }
        "peer path-mtu" => {
            let cut = |peer: &mut PeerProbe| peer.path_mtu.as_mut().unwrap().believed = Some(1400);
            (peer(cut), vec![], Warn)
        }
        other => panic!("no scene for {other}: write one"),
    }
}
