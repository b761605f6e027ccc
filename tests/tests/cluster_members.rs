//! Workers join, leave, die, flap and come back while everything is read: no reader sees an error or a wrong byte, and what
//! some worker has is not fetched from the origin again.

use std::time::Duration;

use forebay_e2e::reading::{self, read_while};
use forebay_e2e::{BLOCK, Cluster, Running, Tree, eventually};
use forebay_testkit::bound;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
/// Of the one file that is read: some 200 blocks.
const SIZE: u64 = 48 * MIB + 1;

/// A cluster whose workers hold all of the one file.
fn warm(names: &[&'static str]) -> Option<(Running, Tree)> {
    let cluster = Cluster::start(1)?;
    let tree = Tree::of_equal_files(1, SIZE);
    let workers = names.iter().map(|name| (*name, cluster.worker(name))).collect();
    let running = cluster.run(&tree, workers);
    let (code, report) = running.coordinator.job("load", "/s3", &[]);
    assert_eq!(code, 0, "{report}");
    Some((running, tree))
}

#[test]
fn a_worker_that_joins_under_load_gets_its_share_from_the_others_and_not_from_the_origin() {
    let Some((running, tree)) = warm(&["w1", "w2"]) else { return };
    let file = tree.file("file00");
    let before = running.owners("s3/file00");
    assert_eq!(before.len() as u64, SIZE.div_ceil(BLOCK));
    let gets = running.cluster.bucket.gets();
    read_while(&running.mount.path("s3"), file, 3, |progress| {
        progress.reads_on(100);
        let third = running.cluster.worker("w3");
        running.coordinator.wait_for_active(&["w1", "w2", "w3"]);
        assert_eq!(running.coordinator.member("w3").unwrap()["warming"], true);
        let status = running.coordinator.ask(&["cluster", "status"]).succeeded().text();
        assert!(status.contains("active, warming"), "{status}");
        let is_third = |owners: &std::collections::BTreeSet<String>| owners.contains("w3");
        eventually("the mount knows the new worker", SOON, || running.owners("s3/file00").values().any(is_third));
        let after = running.owners("s3/file00");
        let moved: Vec<u64> = before.keys().copied().filter(|block| before[block] != after[block]).collect();
        assert!(moved.iter().all(|block| is_third(&after[block])), "only what the new worker owns moves");
        let share = moved.len() as f64 / before.len() as f64;
        assert!((0.18..0.49).contains(&share), "{} of {} blocks moved", moved.len(), before.len());
        reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
        progress.reads_on(100);
        let extra = running.cluster.bucket.gets() - gets;
        assert!(extra * 10 < moved.len() as u64, "{extra} GETs for {} blocks that moved", moved.len());
        let from_peers = third.counter("/worker/bytes_peers");
        assert!(from_peers >= (moved.len() as u64 - 1) * BLOCK * 9 / 10, "{from_peers} for {} blocks", moved.len());
    });
}

#[test]
fn a_worker_that_is_drained_can_be_stopped_without_an_error_or_a_miss() {
    let Some((mut running, tree)) = warm(&["w1", "w2", "w3"]) else { return };
    let file = tree.file("file00");
    let before = running.owners("s3/file00");
    let gets = running.cluster.bucket.gets();
    let mut second = running.workers.remove(1);
    read_while(&running.mount.path("s3"), file, 3, |progress| {
        progress.reads_on(100);
        let drained = running.coordinator.ask(&["cluster", "drain", "w2"]).succeeded();
        assert!(drained.stderr.contains("can be stopped"), "{}", drained.stderr);
        let member = running.coordinator.member("w2").unwrap();
        assert_eq!((&member["state"], member["share"].as_f64()), (&Value::from("drained"), Some(0.0)));
        second.terminate();
        progress.reads_on(300);
        reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
        eventually("it is gone from the status", SOON, || running.coordinator.member("w2").is_none());
        progress.reads_on(100);
    });
    let extra = running.cluster.bucket.gets() - gets;
    assert!(extra <= 3, "{extra} GETs for what was handed over");
    let owners = running.owners("s3/file00");
    assert!(owners.values().flatten().all(|worker| worker == "w1" || worker == "w3"), "{owners:?}");

    running.coordinator.ask(&["cluster", "drain", "nobody"]).failed(3, &["nobody"]);
    assert_eq!(running.coordinator.status()["absent_drains"][0]["worker"], "w2");
    let status = running.coordinator.ask(&["cluster", "status"]).succeeded().text();
    assert!(status.contains("w2 was drained and is not there"), "{status}");

    // Until an operator says that it shall stay, it does not come back by being started.
    second.start_again();
    eventually("it is there", SOON, || running.coordinator.member("w2").is_some());
    read_while(&running.mount.path("s3"), file, 2, |progress| {
        progress.reads_on(100);
        assert_ne!(running.coordinator.member("w2").unwrap()["state"], "active");
        let _ = running.coordinator.ask(&["cluster", "undrain", "w2"]).succeeded();
        running.coordinator.wait_for_active(&["w1", "w2", "w3"]);
        eventually("it owns what it owned", SOON, || running.owners("s3/file00") == before);
        reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
        progress.reads_on(100);
    });
    let extra = running.cluster.bucket.gets() - gets;
    assert!(extra <= 6, "{extra} GETs: the others have what it lacks");
}

#[test]
fn a_worker_that_dies_while_it_is_drained_is_told_of_and_costs_no_reader_an_error() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(1, SIZE);
    let slow = cluster.setup().memory("128MiB").option("worker.drain.bandwidth=1MiB");
    let workers = vec![("w1", cluster.worker("w1")), ("w2", slow.member("w2"))];
    let mut running = cluster.run(&tree, workers);
    assert_eq!(running.coordinator.job("load", "/s3", &[]).0, 0);
    let mut second = running.workers.pop().unwrap();
    read_while(&running.mount.path("s3"), tree.file("file00"), 3, |progress| {
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| running.coordinator.ask(&["cluster", "drain", "w2"]));
            eventually("it hands over", SOON, || {
                let drain = &running.coordinator.member("w2").unwrap()["drain"];
                drain["bytes_moved"].as_u64() > Some(0)
            });
            progress.reads_on(50);
            second.kill();
            drain.join().unwrap().failed(1, &["w2 is gone"]);
        });
        running.coordinator.wait_for_active(&["w1"]);
        progress.reads_on(200);
    });
}

#[test]
fn the_last_worker_is_read_from_though_it_is_asked_to_leave() {
    let Some((running, tree)) = warm(&["w1"]) else { return };
    let file = tree.file("file00");
    let gets = running.cluster.bucket.gets();
    read_while(&running.mount.path("s3"), file, 2, |progress| {
        let _ = running.coordinator.ask(&["cluster", "drain", "w1", "--no-wait"]).succeeded();
        eventually("it is to leave", SOON, || running.coordinator.member("w1").unwrap()["state"] == "draining");
        progress.reads_on(200);
        let second = running.cluster.worker("w2");
        eventually("it has somebody to hand over to", SOON, || {
            running.coordinator.member("w1").unwrap()["state"] == "drained"
        });
        reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
        assert!(second.bytes_served() > 0);
        // The mount must have a worker to read from when the second is gone.
        let _ = running.coordinator.ask(&["cluster", "undrain", "w1"]).succeeded();
        running.coordinator.wait_for_active(&["w1", "w2"]);
        progress.reads_on(100);
    });
    let extra = running.cluster.bucket.gets() - gets;
    assert!(extra <= 3, "{extra} GETs for what one of them had");
}

#[test]
fn a_second_worker_of_the_same_name_is_left_out() {
    let Some((running, tree)) = warm(&["w1"]) else { return };
    let file = tree.file("file00");
    let other = running.cluster.worker("w1");
    eventually("it says why", SOON, || other.log_text().contains("another worker is registered under this name"));
    let member = running.coordinator.member("w1").unwrap();
    assert_eq!(member["addresses"]["rpc"], running.workers[0].address().to_string());
    reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
    assert_eq!(other.bytes_served(), 0);
}

#[test]
fn a_worker_that_is_killed_leaves_within_its_lease_and_comes_back_warm() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(1, SIZE);
    let disk = tempfile::tempdir().unwrap();
    // An eighth of the memory may wait for the disk: room for all of it, or some would stay in memory alone if the disk is busy.
    // And a disk that answers late is waited for.
    let patient = ["worker.weight=1", "worker.disk.read_timeout=1m"];
    let second = cluster.setup().memory("512MiB").disk(disk.path(), "128MiB").options(&patient);
    let first = cluster.setup().memory("128MiB").option("worker.weight=1");
    let workers = vec![("w1", first.member("w1")), ("w2", second.member("w2"))];
    let mut running = cluster.run(&tree, workers);
    let file = tree.file("file00");
    assert_eq!(running.coordinator.job("load", "/s3", &[]).0, 0);
    let owned = running.owners("s3/file00").values().filter(|owners| owners.contains("w2")).count() as u64;
    assert!(owned > 20, "{owned}");
    running.workers[1].wait_for_disk((owned - 1) * BLOCK);
    let mut second = running.workers.pop().unwrap();
    let longest = read_while(&running.mount.path("s3"), file, 3, |progress| {
        progress.reads_on(100);
        second.kill();
        let killed = std::time::Instant::now();
        progress.reads_on(100);
        eventually("it is gone from the status", SOON, || running.coordinator.member("w2").is_none());
        let took = killed.elapsed();
        assert!(took < bound(Duration::from_secs(30), SOON), "a lease is ten seconds: {took:?}");
        running.coordinator.wait_for_active(&["w1"]);
        progress.reads_on(200);
        second.start_again();
        running.coordinator.wait_for_active(&["w1", "w2"]);
        eventually("it is read from", SOON, || second.bytes_served() > MIB);
        let gets = running.cluster.bucket.gets();
        reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
        progress.reads_on(100);
        assert_eq!(running.cluster.bucket.gets(), gets, "all is cached: by one of them, or on the disk");
    });
    assert!(longest < bound(Duration::from_secs(10), Duration::from_secs(30)), "a read took {longest:?}");
    assert!(second.counter("/worker/bytes_disk") > 0);
    assert_eq!(second.counter("/worker/bytes_origin"), 0, "what it had is on its disk");
}

#[test]
fn of_two_replicas_one_may_be_killed_without_a_miss() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(1, 16 * MIB);
    let workers = ["w1", "w2", "w3"].map(|name| (name, cluster.worker(name)));
    let mut running = cluster.run(&tree, workers.into());
    let _ = running.coordinator.ask(&["policy", "set", "/s3", "--replicas", "2"]).succeeded();
    eventually("each block has two owners", SOON, || {
        running.owners("s3/file00").values().all(|owners| owners.len() == 2)
    });
    let (code, report) = running.coordinator.job("load", "/s3", &[]);
    assert_eq!((code, &report["evicted"]["bytes"]), (0, &Value::from(0)), "{report}");
    let rows = running.location("s3/file00");
    assert_eq!(rows.iter().filter(|row| row["owner"] == true && row["state"] == "cached").count(), 2 * 64, "{rows:?}");
    let file = tree.file("file00");
    let gets = running.cluster.bucket.gets();
    assert!(gets < 64 + 8, "{gets} GETs for 64 blocks: the second replica has its bytes from the first");
    let mut second = running.workers.remove(1);
    read_while(&running.mount.path("s3"), file, 3, |progress| {
        progress.reads_on(100);
        second.kill();
        reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
        eventually("it is gone from the status", SOON, || running.coordinator.member("w2").is_none());
        reading::verify_direct(&running.mount.path("s3/file00"), file.data, file.size);
        progress.reads_on(200);
    });
    assert_eq!(running.cluster.bucket.gets(), gets, "what the other replica has is not fetched again");
}

#[test]
fn a_worker_that_flaps_is_damped_and_the_status_says_so() {
    let Some((running, tree)) = warm(&["w1"]) else { return };
    let file = tree.file("file00");
    let mut second = running.cluster.setup().memory("64MiB").option("cluster.zone=rack-7").member("w2");
    running.coordinator.wait_for_active(&["w1", "w2"]);
    read_while(&running.mount.path("s3"), file, 2, |progress| {
        // Three joins are nothing unusual.
        for joins in 2..=4 {
            second.terminate();
            eventually("it is gone", SOON, || running.coordinator.member("w2").is_none());
            second.start_again();
            eventually(&format!("it joins, for the {joins}th time"), SOON, || {
                running.coordinator.member("w2").is_some()
            });
            progress.reads_on(20);
        }
    });
    let status = running.coordinator.status();
    let members = status["cluster"]["members"].as_array().unwrap();
    let member = |name: &str| members.iter().find(|member| member["name"] == name).unwrap();
    let (first, flapping) = (member("w1"), member("w2"));
    assert_eq!((&flapping["state"], flapping["share"].as_f64()), (&Value::from("damped"), Some(0.0)), "{status}");
    assert_eq!((&first["state"], first["share"].as_f64()), (&Value::from("active"), Some(1.0)), "{status}");
    assert_eq!((&flapping["zone"], &flapping["group"]), (&Value::from("rack-7"), &Value::from("default")));
    assert_eq!(flapping["addresses"]["rpc"], second.address().to_string());
    assert_eq!(flapping["capacity"]["memory"], 64 * MIB);
    assert!(first["weight"].as_f64() > flapping["weight"].as_f64(), "{status}");
    assert_eq!(first["version"], status["version"]);
    assert_eq!(status["state_store"]["reachable"], true);
    assert_eq!(status["leader"]["address"], running.coordinator.address());
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("came and went too often"), "{warnings}");
    eventually("the counters of the workers are there", SOON, || {
        let status = running.coordinator.status();
        let workers = status["stats"]["workers"].as_array().cloned().unwrap_or_default();
        workers.iter().any(|worker| worker["name"] == "w1" && worker["stats"]["worker"].is_object())
    });
}
