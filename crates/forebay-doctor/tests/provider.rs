//! What is said of the library for RDMA, and of the worker that offers one.

mod support;

use forebay_doctor::checks::check;
use forebay_doctor::facts::{Limit, PeerListener, PeerProbe, PeerWorker, Ucx};
use forebay_doctor::{Check, Facts, Verdict};
use support::{RDMA, config, facts, find, ucx};

const VERBS: &str = "network.rdma.data.provider=verbs";
const UCX: &str = "network.rdma.data.provider=ucx";

/// A machine with one RoCE card, as libibverbs told of it.
fn machine(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]));
    facts.rdma.devices.iter_mut().for_each(|device| device.has_windows = Some(true));
    change(&mut facts);
    facts
}

/// What is said of verbs, of the first card.
#[track_caller]
fn provider(facts: &Facts, settings: &[&str]) -> Check {
    let checks = check(facts, &config(settings));
    checks.iter().find(|check| check.name == "provider").unwrap_or_else(|| panic!("none in {checks:#?}")).clone()
}

#[test]
fn verbs_are_judged_where_they_may_be_used_and_ucx_is_missed_only_without_them() {
    let well = machine(|_| ());
    assert_eq!(provider(&well, &[RDMA]).verdict, Verdict::Ok);
    assert!(!check(&well, &config(&[RDMA, UCX])).iter().any(|check| check.name == "provider"));
    assert!(!check(&well, &config(&[])).iter().any(|check| check.name == "provider"));
    let without = machine(|facts| facts.verbs_missing = Some("librdmacm.so.1: no such file".into()));
    let row = provider(&without, &[RDMA, VERBS]);
    assert!(row.verdict == Verdict::Fail && row.what.contains("librdmacm.so.1"), "{row:?}");
    assert!(row.remedy.is_some_and(|remedy| remedy.contains("librdmacm1")));
    assert_eq!(provider(&without, &[RDMA]).verdict, Verdict::Info, "UCX takes their place");
    let old = machine(|facts| facts.rdma.devices.iter_mut().for_each(|device| device.has_windows = Some(false)));
    let row = provider(&old, &[RDMA, VERBS, "network.rdma.data.receive_buffers=2MiB"]);
    assert!(row.verdict == Verdict::Ok && row.what.contains("in messages") && row.what.contains("2MiB"), "{row:?}");
    let checks = check(&old, &config(&[RDMA, "network.rdma.data.one_sided=true"]));
    let row = checks.iter().find(|check| check.name == "one-sided").unwrap();
    assert!(row.verdict == Verdict::Info && row.what.contains("asked for, and not possible"), "{row:?}");
    let lost = |facts: &mut Facts| {
        facts.ucx = Ucx { error: Some("libucp.so.0: no such file; install UCX".into()), ..Ucx::default() };
    };
    assert_eq!(find(&machine(lost), &config(&[RDMA]), "ucx library").verdict, Verdict::Info, "verbs take its place");
    assert_eq!(find(&machine(lost), &config(&[RDMA, UCX]), "ucx library").verdict, Verdict::Fail);
    let row = find(&machine(lost), &config(&[RDMA, VERBS]), "ucx library");
    assert!(row.verdict == Verdict::Info && row.what.contains("not used"), "{row:?}");
}

#[test]
fn memory_is_locked_once_for_each_library() {
    // Enough for what a client begins with and, once, for all that it may come to have.
    let most = ["network.rdma.data.buffer_pool.max_size=256MiB", "worker.memory.size=256MiB"];
    let limited = machine(|facts| {
        facts.system.may_lock_memory = false;
        facts.memory.lock_limit = Some(Limit::Bytes(300 << 20));
    });
    let row = |provider| find(&limited, &config(&[RDMA, most[0], most[1], provider]), "memory memlock");
    assert_eq!((row(VERBS).verdict, row(UCX).verdict), (Verdict::Ok, Verdict::Ok));
    let both = row("network.rdma.data.provider=auto");
    assert!(both.verdict == Verdict::Warn && both.what.contains("twice: by verbs and by UCX"), "{both:?}");
}

#[test]
fn a_worker_is_judged_by_what_it_offers_and_what_is_taken_here() {
    let listener = |is_verbs| PeerListener {
        card: "mlx5_0:1".into(),
        is_verbs,
        address: "10.2.0.9:59999".into(),
        from: "ib0".into(),
        connect_us: Some(900),
        ..PeerListener::default()
    };
    let offering = |ucx: Option<&str>, verbs: Option<u8>| {
        let listeners = ucx.map(|_| listener(false)).into_iter().chain(verbs.map(|_| listener(true))).collect();
        let worker = PeerWorker { ucx: ucx.map(Into::into), verbs, listeners, ..PeerWorker::default() };
        machine(|facts| {
            facts.peers.push(PeerProbe { name: "node2".into(), worker: Some(worker), ..PeerProbe::default() });
        })
    };
    let row = |facts: &Facts, settings: &[&str]| find(facts, &config(settings), "peer worker-rdma");
    let both = offering(Some("1.20.0"), Some(1));
    assert_eq!(row(&both, &[RDMA]).what, "verbs, 1 card(s)");
    assert_eq!(row(&both, &[RDMA, UCX]).what, "UCX 1.20.0, 1 card(s)");
    let mut without = offering(Some("1.20.0"), Some(1));
    without.verbs_missing = Some("librdmacm.so.1: no such file".into());
    assert_eq!(row(&without, &[RDMA]).what, "UCX 1.20.0, 1 card(s)", "no verbs here");
    let alone = offering(None, Some(1));
    assert_eq!(row(&alone, &[RDMA, VERBS]).verdict, Verdict::Ok);
    let unlike = row(&alone, &[RDMA, UCX]);
    assert!(unlike.verdict == Verdict::Warn && unlike.what.contains("offers verbs alone"), "{unlike:?}");
    let unlike = row(&offering(Some("1.20.0"), None), &[RDMA, VERBS]);
    assert!(unlike.what.contains("offers UCX alone") && unlike.remedy.is_some(), "{unlike:?}");
    assert!(row(&offering(None, None), &[RDMA]).what.contains("offers no RDMA"));
    let connect = find(&alone, &config(&[RDMA]), "peer rdma-connect");
    assert!(connect.what.contains("(ib0 here, mlx5_0:1 there by verbs)"), "{connect:?}");
}

#[test]
fn what_is_possible_by_verbs_is_told_of_each_card_and_why_not() {
    let well = machine(|_| ());
    let row = |name: &str, settings: &[&str]| {
        let checks = check(&well, &config(settings));
        checks.iter().find(|check| check.name == name).cloned()
    };
    const ON: &str = "network.rdma.data.one_sided=true";
    let off = row("one-sided", &[RDMA]).unwrap();
    assert!(off.verdict == Verdict::Info && off.what.contains("possible, and off"), "{off:?}");
    assert_eq!(row("one-sided", &[RDMA, ON]).unwrap().verdict, Verdict::Ok);
    // Whether that may be with this mode is none of this row's business.
    let encrypted = forebay_config::Config {
        network_rdma_data_one_sided: true,
        security_require_encryption: true,
        ..config(&[RDMA])
    };
    let checks = check(&well, &encrypted);
    let refused = checks.iter().find(|check| check.name == "one-sided").unwrap();
    assert!(refused.verdict == Verdict::Fail && refused.what.contains("require_encryption"), "{refused:?}");
    assert!(row("one-sided", &[RDMA, UCX]).is_none());
    assert!(row("verbs-gid", &[RDMA]).is_none(), "nothing is chosen");
    let port = &well.rdma.devices[0].ports[0];
    let of_address = port.gids.iter().find(|gid| gid.is_roce_v2() && gid.gid.contains(":ffff:")).unwrap();
    let chosen = |index: u32| row("verbs-gid", &[RDMA, &format!("network.rdma.data.gid_index={index}")]).unwrap();
    assert_eq!(chosen(of_address.index).verdict, Verdict::Ok);
    let missing = chosen(999);
    assert!(missing.verdict == Verdict::Info && missing.remedy.is_some(), "UCX takes their place: {missing:?}");
}
