//! Cache groups: the workers of one group share what they hold, a mount may be one of them, and groups do not see each other.

use std::time::Duration;

use forebay_e2e::passing::passed;
use forebay_e2e::reading::{self, read_while};
use forebay_e2e::{Bucket, Cluster, Mount, Setup, Tree, TreeFile, eventually, skipped};
use forebay_testkit::ReservedPort;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A mount that is a worker of the group `g`, too.
fn sharing(cluster: &Cluster, name: &str) -> Mount {
    sharing_of(cluster, name, "64MiB")
}

/// The same with so much memory.
fn sharing_of(cluster: &Cluster, name: &str, memory: &str) -> Mount {
    let name = format!("worker.name={name}");
    let listens = ["worker.rpc.bind.host=127.0.0.1", "worker.rpc.port=0", "worker.hostname=127.0.0.1"];
    let shares = |setup: Setup| setup.argument("--cache-group", "g").argument("--memory", memory);
    shares(cluster.setup()).options(&listens).option(&name).option("client.memory.size=8MiB").mount_cluster()
}

/// Waits until the bucket shows at `/s3` and can be read in all of it.
#[track_caller]
fn wait_for(mount: &Mount, tree: &Tree) {
    let known = |path: &str| mount.path(&format!("s3/{path}")).symlink_metadata().is_ok();
    eventually("the mount shows the bucket", SOON, || tree.files.iter().all(|file| known(&file.path)));
}

#[test]
fn mounts_of_one_group_share_what_they_read() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(16, MIB);
    tree.put_into(&cluster.bucket, "");
    let coordinator = cluster.coordinator();
    coordinator.add_mount(&cluster, "/s3");
    let first = sharing(&cluster, "m1");
    let second = sharing(&cluster, "m2");
    coordinator.wait_for_active(&["m1", "m2"]);
    for mount in [&first, &second] {
        wait_for(mount, &tree);
    }
    eventually("both know each other", SOON, || {
        [&first, &second].iter().all(|mount| mount.log_text().contains("have changed workers=2"))
    });
    tree.verify(&first.path("s3"));
    let gets = cluster.bucket.gets();
    assert!(gets > 0);
    tree.verify(&second.path("s3"));
    assert_eq!(cluster.bucket.gets(), gets, "what one has read, the other does not fetch again");

    let reader = cluster.setup().argument("--cache-group", "g").flag("--no-sharing");
    let reader = reader.option("client.memory.size=8MiB").mount_cluster();
    tree.verify(&reader.path("s3"));
    assert_eq!(cluster.bucket.gets(), gets, "one that only reads has it from the others");
    let status = coordinator.status();
    let members = status["cluster"]["members"].as_array().unwrap();
    assert_eq!(members.len(), 2, "one that only reads is no worker: {status}");
    assert!(members.iter().all(|member| member["group"] == "g"), "{status}");

    // A mount that ends takes its part of the cache along, and no reader notices.
    read_while(&reader.path("s3"), tree.file("file00"), 2, |progress| {
        progress.reads_on(50);
        first.terminate();
        coordinator.wait_for_active(&["m2"]);
        progress.reads_on(50);
    });
    tree.verify(&second.path("s3"));
    for file in &tree.files {
        reading::verify_direct(&reader.path(&format!("s3/{}", file.path)), file.data, file.size);
    }
}

/// Its blocks lie in the pages of that file (ADR 0036).
#[test]
fn a_file_that_the_kernel_reads_at_one_mount_is_read_from_there_by_the_others_of_the_group() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(1, 9 * MIB + 777);
    tree.put_into(&cluster.bucket, "");
    let coordinator = cluster.coordinator();
    coordinator.add_mount(&cluster, "/s3");
    let first = sharing_of(&cluster, "m1", "256MiB");
    coordinator.wait_for_active(&["m1"]);
    wait_for(&first, &tree);
    if first.own_stats()["local"]["on"] != true {
        return skipped(&format!("no files are materialised here: {}", first.summary()["passthrough"]));
    }
    eventually("the kernel reads it by itself", SOON, || {
        tree.verify(&first.path("s3"));
        passed(&first) > 0
    });
    let gets = cluster.bucket.gets();
    let reader = cluster.setup().argument("--cache-group", "g").flag("--no-sharing");
    let reader = reader.options(&["client.memory.size=8MiB", "client.local.size=0"]).mount_cluster();
    wait_for(&reader, &tree);
    for _ in 0..3 {
        tree.verify(&reader.path("s3"));
    }
    assert_eq!(cluster.bucket.gets(), gets, "nothing is fetched again");
}

#[test]
fn groups_of_one_cluster_share_mounts_and_no_workers() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(8, MIB);
    tree.put_into(&cluster.bucket, "");
    let coordinator = cluster.coordinator();
    coordinator.add_mount(&cluster, "/s3");
    let of_group = |group: &str| cluster.setup().memory("64MiB").argument("--cache-group", group);
    let red = of_group("red").member("w-red");
    let blue = of_group("blue").member("w-blue");
    coordinator.wait_for_active(&["w-blue", "w-red"]);
    red.wait_for("/s3");
    blue.wait_for("/s3");
    let mount_of = |group: &str| cluster.setup().argument("--cache-group", group).flag("--no-sharing").mount_cluster();
    let (of_red, of_blue) = (mount_of("red"), mount_of("blue"));
    tree.verify(&of_red.path("s3"));
    let gets = cluster.bucket.gets();
    assert_eq!(blue.bytes_served(), 0);
    tree.verify(&of_blue.path("s3"));
    assert!(cluster.bucket.gets() >= 2 * gets * 9 / 10, "each group has a cache of its own");
    assert!(blue.bytes_served() > 0);
    let located = of_blue.ask_of("s3/file00", &["fs", "location", "--json"]).succeeded().text();
    assert!(located.contains("w-blue") && !located.contains("w-red"), "{located}");
    let status = coordinator.status();
    for name in ["w-red", "w-blue"] {
        let members = status["cluster"]["members"].as_array().unwrap();
        let member = members.iter().find(|member| member["name"] == name).unwrap();
        assert_eq!(member["share"].as_f64(), Some(1.0), "each owns all blocks of its group: {status}");
    }
    // The coordinator is a client of neither group, and shows what the workers of both count.
    eventually("the workers of all groups tell what they served", SOON, || {
        let stats: Value = serde_json::from_str(&coordinator.get("/api/v1/stats").1).unwrap();
        let served = |name: &str| {
            let worker = stats["workers"].as_array()?.iter().find(|worker| worker["name"] == name)?;
            worker["stats"]["worker"]["bytes_origin"].as_u64()
        };
        ["w-red", "w-blue"].iter().all(|name| served(name) > Some(0))
    });
}

#[test]
fn a_mount_of_a_group_without_workers_says_so_in_time() {
    let Some(cluster) = Cluster::start(1) else { return };
    let mut mount = cluster.setup().argument("--cache-group", "nobody").flag("--no-sharing").prepare_mount_cluster();
    let finished = mount.start();
    assert_eq!(finished.code, Some(4), "{}", finished.stderr);
    assert!(finished.took < SOON, "{:?}", finished.took);
    assert!(finished.stderr.contains("no workers") && finished.stderr.contains("next:"), "{}", finished.stderr);
}

#[test]
fn mounts_with_a_fixed_list_share_what_they_read_without_an_etcd() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(16, MIB);
    tree.put_into(&bucket, "");
    let ports = [ReservedPort::new().unwrap(), ReservedPort::new().unwrap()];
    let group = ports.each_ref().map(|port| port.address().to_string());
    let sharing = |address: &str| {
        let (host, port) = address.rsplit_once(':').unwrap();
        let setup = Setup::of(&bucket)
            .argument("--port", port)
            .argument("--cache-group", "g")
            .argument("--disk-serve", "pagecache");
        let listens = [&format!("worker.rpc.bind.host={host}"), &format!("mounts=/={}", bucket.url())];
        // The first finds no peer when it asks the second, which it is to ask again as soon as that is there.
        let at_once = ["client.retry.initial_backoff=1ms", "client.retry.max_backoff=1ms"];
        // And one that has no processor for a moment is waited for.
        let patient = ["worker.peer_timeout=20s", "network.tcp.dead_after=1m"];
        let setup = setup.options(&listens.map(String::as_str)).options(&at_once).options(&patient);
        // A hedge would have the other member fetch as well.
        let setup = setup.options(&["block.size=256KiB", "client.memory.size=8MiB", "client.hedge.enabled=false"]);
        let mut mount = setup.prepare_mount(&group.join(","));
        let _ = mount.start().succeeded();
        mount
    };
    let (first, second) = (sharing(&group[0]), sharing(&group[1]));
    tree.verify(&first.root());
    let gets = bucket.gets();
    assert!(gets > 0);
    tree.verify(&second.root());
    assert_eq!(bucket.gets(), gets, "what one has read, the other does not fetch again");
    // All of one file may be one member's.
    let located = |file: &TreeFile| first.ask_of(&file.path, &["fs", "location", "--json"]).succeeded().text();
    let located: String = tree.files.iter().map(located).collect();
    assert!(group.iter().all(|member| located.contains(member.as_str())), "both own blocks: {located}");
}

#[test]
fn a_mount_that_nobody_would_read_from_is_refused() {
    let bucket = Bucket::new();
    let ports = [ReservedPort::new().unwrap(), ReservedPort::new().unwrap()];
    let addresses = ports.each_ref().map(|port| port.address().to_string());
    let port = addresses[0].rsplit_once(':').unwrap().1;
    let setup = Setup::of(&bucket).argument("--port", port).argument("--cache-group", "g");
    let setup = setup.option("worker.rpc.bind.host=127.0.0.1");
    let mounts = format!("mounts=/={}", bucket.url());
    let finished = setup.clone().option(&mounts).prepare_mount(&addresses[1]).start();
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(finished.stderr.contains(&addresses[0]) && finished.stderr.contains("--workers"), "{}", finished.stderr);
    let finished = setup.prepare_mount(&addresses[0]).start();
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(finished.stderr.contains("`mounts` is empty"), "{}", finished.stderr);
}
