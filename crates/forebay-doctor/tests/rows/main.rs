//! Every row of every table of troubleshooting, verification and prerequisites in the documents that Forebay is measured by has a
//! check that judges it. [`table::ROWS`] tells which, in our words; each check is shown to come to the verdict that it is there
//! for, and to say what to type ([`scenes`]).

mod scenes;
#[path = "../support/mod.rs"]
mod support;
mod table;

use forebay_config::Config;
use forebay_doctor::Verdict;
use forebay_doctor::facts::{CoordinatorProbe, EtcdProbe, PathMtu, PeerMeasured, PeerProbe, Reached, Route};
use scenes::{measured, peer, roce, scene, with};
use support::{RDMA, config, find};
use table::{Benchmark, Cache, HARMLESS, Ipoib, Notes, ROWS, Rdma};

use Verdict::{Fail, Info, Warn};

#[test]
fn every_row_has_a_check_that_comes_to_a_verdict_and_says_what_to_type() {
    for (from, row, name) in ROWS {
        let (facts, settings, expected) = scene(name);
        let config: Config = config(&settings);
        let check = find(&facts, &config, name);
        assert_eq!(check.verdict, expected, "{from:?}: {row}: {check:?}");
        assert!(check.remedy.as_ref().is_some_and(|remedy| remedy.len() > 8), "{from:?}: {row}: {check:?}");
        let is_harmless = HARMLESS.iter().any(|(harmless, _)| harmless == name);
        assert_eq!(expected >= Warn, !is_harmless, "{from:?}: {row}");
    }
}

#[test]
fn each_document_has_its_rows_and_none_is_there_twice() {
    for (from, least) in [(Rdma, 35), (Ipoib, 23), (Cache, 14), (Notes, 11), (Benchmark, 11)] {
        let rows = ROWS.iter().filter(|(of, ..)| *of == from).count();
        assert!(rows >= least, "{from:?} has {rows}");
    }
    for (index, (from, row, _)) in ROWS.iter().enumerate() {
        assert!(ROWS[..index].iter().all(|(other, text, _)| (other, text) != (from, row)), "{row}");
    }
}

#[test]
fn a_peer_that_is_well_is_told_so() {
    let facts = peer(|_| ());
    let checks = forebay_doctor::checks::check(&facts, &config(&[RDMA]));
    let bad: Vec<_> = checks.iter().filter(|check| check.section.name() == "peer" && check.verdict > Info).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    for name in
        ["route", "path-mtu", "reachable", "worker", "worker-rdma", "rdma-connect", "latency", "bandwidth", "counted"]
    {
        assert!(checks.iter().any(|check| check.section.name() == "peer" && check.name == name), "no {name}");
    }
    let of_tcp = find(&facts, &config(&[RDMA]), "peer bandwidth node2 tcp");
    assert!(of_tcp.what.ends_with("90 % of the 50 Gb/s of ib0"), "{of_tcp:?}");
    let of_ucx = find(&facts, &config(&[RDMA]), "peer bandwidth node2 ucx");
    assert!(of_ucx.what.ends_with("98 % of the 50 Gb/s of mlx5_0:1"), "{of_ucx:?}");
}

#[test]
fn a_peer_is_judged_by_what_was_asked_for() {
    let software = |peer: &mut PeerProbe| {
        peer.measured = vec![PeerMeasured { lanes: vec!["tcp/eth0".into()], is_rdma: false, ..measured("ucx", 9000) }];
    };
    let transport = |settings: &[&str]| find(&peer(software), &config(settings), "peer rdma-connect node2 ucx").verdict;
    assert_eq!(transport(&[RDMA]), Fail, "cards were asked for");
    assert_eq!(transport(&[RDMA, "network.rdma.data.transports=tcp"]), Info);
    assert_eq!(transport(&[]), Info);
    let other = |peer: &mut PeerProbe| peer.worker.as_mut().unwrap().ucx = Some("1.13.1".into());
    let mismatch = find(&peer(other), &config(&[RDMA]), "peer worker-rdma");
    assert!(mismatch.verdict == Warn && mismatch.what.contains("1.13.1"), "{mismatch:?}");
    let unknown = |peer: &mut PeerProbe| peer.unknown = Some("nothing is known of it".into());
    assert_eq!(find(&peer(unknown), &config(&[]), "peer address node2").verdict, Fail);
    let refused = |peer: &mut PeerProbe| peer.ports[0].reached = Reached::Refused;
    assert_eq!(find(&peer(refused), &config(&[]), "peer reachable node2 worker").verdict, Info);
    let dropped = |peer: &mut PeerProbe| peer.ports[0].reached = Reached::Silent;
    assert_eq!(find(&peer(dropped), &config(&[]), "peer reachable node2 worker").verdict, Warn);
    let nobody = |peer: &mut PeerProbe| peer.ports.iter_mut().for_each(|port| port.reached = Reached::Refused);
    assert!(find(&peer(nobody), &config(&[]), "peer reachable").what.starts_with("the host is there"));
    let public = |peer: &mut PeerProbe| {
        peer.route = Some(Route {
            to: "8.8.8.8".parse().unwrap(),
            interface: Some("ib0".into()),
            source: None,
            gateway: Some("10.2.0.1".parse().unwrap()),
            mtu: None,
        });
    };
    assert!(find(&peer(public), &config(&[]), "peer route").what.contains("public"));
    let bound = config(&["client.network.data.bind.device=eth0"]);
    assert!(find(&peer(|_| ()), &bound, "peer route").what.contains("eth0 is bound"));
    let smaller = |peer: &mut PeerProbe| {
        peer.path_mtu = Some(PathMtu { believed: Some(1500), delivered: None, agreed: Some(1300) })
    };
    assert!(find(&peer(smaller), &config(&[]), "peer path-mtu").what.contains("the peer takes 1300"));
    let unsaid = |peer: &mut PeerProbe| peer.path_mtu = Some(PathMtu { believed: Some(1500), ..PathMtu::default() });
    assert_eq!(find(&peer(unsaid), &config(&[]), "peer path-mtu").verdict, Info);
    let stuck = |peer: &mut PeerProbe| {
        peer.path_mtu = Some(PathMtu { believed: Some(1500), ..PathMtu::default() });
        peer.measured = vec![PeerMeasured { error: Some("lost".into()), ..measured("tcp", 0) }];
    };
    assert_eq!(find(&peer(stuck), &config(&[]), "peer path-mtu").verdict, Warn);
    assert_eq!(find(&peer(stuck), &config(&[]), "peer measure").verdict, Fail);
}

#[test]
fn etcd_and_coordinators_are_judged_by_what_they_say() {
    let member = |endpoint: &str, version: &str| EtcdProbe {
        endpoint: endpoint.into(),
        took_us: 3000,
        version: Some(version.into()),
        ..EtcdProbe::default()
    };
    let gone = EtcdProbe { error: Some("no answer".into()), ..member("http://c:2379", "3.5.0") };
    let facts = with(roce(), |facts| {
        facts.etcd = vec![member("http://a:2379", "3.5.0"), member("http://b:2379", "3.4.1"), gone]
    });
    let defaults = config(&[]);
    assert_eq!(find(&facts, &defaults, "cluster etcd http://a:2379").verdict, Verdict::Ok);
    assert_eq!(find(&facts, &defaults, "cluster etcd http://c:2379").verdict, Warn, "the others serve");
    assert_eq!(find(&facts, &defaults, "cluster etcd-versions").verdict, Warn);
    let slow =
        with(roce(), |facts| facts.etcd = vec![EtcdProbe { took_us: 900_000, ..member("http://a:2379", "3.5.0") }]);
    assert_eq!(find(&slow, &defaults, "cluster etcd").verdict, Warn);
    let well = CoordinatorProbe {
        address: "c:19999".into(),
        version: Some(env!("CARGO_PKG_VERSION").into()),
        leader: Some("c".into()),
        ..CoordinatorProbe::default()
    };
    let of = |probe: CoordinatorProbe, name: &str| {
        find(&with(roce(), |facts| facts.coordinators = vec![probe]), &defaults, name).verdict
    };
    assert_eq!(
        (of(well.clone(), "cluster coordinator"), of(well.clone(), "cluster leader")),
        (Verdict::Ok, Verdict::Ok)
    );
    assert_eq!(of(CoordinatorProbe { version: Some("0.0.1".into()), ..well.clone() }, "cluster coordinator"), Warn);
    assert_eq!(of(CoordinatorProbe { leader: None, ..well.clone() }, "cluster leader"), Warn);
    let without = CoordinatorProbe { without_state: Some("no leader".into()), ..well.clone() };
    assert_eq!(of(without, "cluster coordinator-state"), Fail);
    assert_eq!(of(CoordinatorProbe { warnings: vec!["a worker is gone".into()], ..well }, "cluster warning"), Warn);
}
