//! The rows about the window onto a worker's memory.

mod support;

use forebay_doctor::facts::{MountProbe, WindowProbe};
use forebay_doctor::{Facts, Verdict};
use support::{config, facts, find, is_there, ucx, verdict};

use Verdict::{Info, Ok, Warn};

const SHARED: &str = "memory shared-memory";

/// A machine without reserved huge pages, where shared memory has other huge pages if the process may mount.
fn machine(change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts("mlx5-roce", &["enp59s0=10.0.1.10/24"], ucx("1.20.0", &["rc_mlx5/mlx5_0:1"]));
    facts.memory.huge_free_bytes = 0;
    facts.system.may_administrate = true;
    facts.local.shared_huge_pages = Some("never".to_owned());
    change(&mut facts);
    facts
}

#[test]
fn a_worker_shares_its_memory_where_it_costs_no_huge_pages() {
    let defaults = config(&[]);
    assert_eq!(verdict(&machine(|_| ()), &defaults, SHARED), Ok);
    let user = |facts: &mut Facts| facts.system.may_administrate = false;
    let check = find(&machine(user), &defaults, SHARED);
    assert!(check.verdict == Info && check.remedy.unwrap().contains("network.shared_memory = \"on\""));
    assert_eq!(verdict(&machine(user), &config(&["mounts=/=file:///"]), SHARED), Warn, "it is to be a worker");
    let denied = |facts: &mut Facts| facts.local.shared_huge_pages = Some("deny".to_owned());
    assert_eq!(verdict(&machine(denied), &defaults, SHARED), Info);
    let advised = |facts: &mut Facts| {
        user(facts);
        facts.local.shared_huge_pages = Some("advise".to_owned());
    };
    assert_eq!(verdict(&machine(advised), &defaults, SHARED), Ok);
    let reserved = |facts: &mut Facts| {
        user(facts);
        facts.memory.huge_free_bytes = 1 << 30;
    };
    assert_eq!(verdict(&machine(reserved), &defaults, SHARED), Ok);
    assert_eq!(verdict(&machine(user), &config(&["worker.memory.huge_pages=false"]), SHARED), Ok);
    let on = find(&machine(user), &config(&["network.shared_memory=on"]), SHARED);
    assert!(on.verdict == Info && on.what.contains("small pages"), "{on:?}");
    let off = find(&machine(|_| ()), &config(&["network.shared_memory=off"]), SHARED);
    assert!(off.verdict == Info && off.what.contains("copies"), "{off:?}");
}

#[test]
fn a_mount_tells_whose_memory_it_sees_and_why_not() {
    let of = |windows: &[(&str, Option<&str>)]| {
        let windows = windows
            .iter()
            .map(|(worker, why)| WindowProbe { worker: (*worker).to_owned(), why: why.map(str::to_owned) });
        let mount = MountProbe { path: "/mnt".into(), windows: windows.collect(), ..MountProbe::default() };
        machine(|facts| facts.mounts.push(mount))
    };
    let (defaults, name) = (config(&[]), "network mount-window /mnt");
    assert!(!is_there(&of(&[]), &defaults, name), "all workers are elsewhere");
    let open = find(&of(&[("a:29999", None)]), &defaults, name);
    assert!(open.verdict == Ok && open.what.contains("a:29999"), "{open:?}");
    let shut = find(&of(&[("a:29999", None), ("b:29999", Some("it runs as user 7"))]), &defaults, name);
    assert!(shut.verdict == Info && shut.what.contains("b:29999") && shut.what.contains("user 7"), "{shut:?}");
}
