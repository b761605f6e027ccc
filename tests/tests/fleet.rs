//! A cluster of hundreds of workers, of which etcd knows and this machine runs one.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_e2e::{Cluster, Tree, eventually};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const WORKERS: usize = 200;
const FILES: usize = 12;

/// The workers that the failures of a job name.
fn named(report: &Value) -> BTreeSet<String> {
    let causes = report["failures"]["causes"].as_array().into_iter().flatten();
    let texts = causes.flat_map(|cause| cause["variants"].as_array().into_iter().flatten().filter_map(Value::as_str));
    texts.filter_map(|text| Some(text.split_once(": cannot connect")?.0.to_owned())).collect()
}

#[test]
fn a_load_over_two_hundred_workers_that_cannot_be_reached_ends_and_names_them() {
    let Some(cluster) = Cluster::start(1) else { return };
    Tree::of_equal_files(FILES, MIB).put_into(&cluster.bucket, "");
    let coordinator = cluster.coordinator();
    let worker = cluster.worker("w1");
    coordinator.wait_for_active(&["w1"]);
    coordinator.add_mount(&cluster, "/s3");
    worker.wait_for("/s3");

    let fleet = cluster.fleet(WORKERS);
    let members = || coordinator.status()["cluster"]["members"].as_array().cloned().unwrap_or_default();
    eventually("the coordinator knows all of them", SOON, || {
        members().iter().filter(|member| member["state"] == "active").count() == WORKERS + 1
    });
    let share = |member: &Value| member["share"].as_f64().unwrap();
    let total: f64 = members().iter().map(share).sum();
    assert!((0.99..1.01).contains(&total), "{total}");
    let even = 1.0 / WORKERS as f64;
    for member in members().iter().filter(|member| member["name"] != "w1") {
        assert!((even / 2.0..even * 2.0).contains(&share(member)), "{member}");
    }
    let shown = coordinator.ask(&["cluster", "status"]).succeeded().text();
    assert!(fleet.names().iter().all(|name| shown.contains(name.as_str())), "{shown}");

    // Each file has a block on a worker that is not there.
    let (code, report) = coordinator.job("load", "/s3", &[]);
    assert_eq!((code, report["state"].as_str()), (8, Some("FAILED")), "{report}");
    assert_eq!(report["failures"]["count"].as_u64(), Some(FILES as u64), "{report}");
    let named = named(&report);
    assert!(named.len() >= 5, "files are on more workers than {named:?}: {report}");
    assert!(named.iter().all(|name| fleet.names().contains(name)), "{named:?}");

    fleet.leave();
    coordinator.wait_for_active(&["w1"]);
    eventually("what is left loads all of it", SOON, || coordinator.job("load", "/s3", &[]).0 == 0);
}
