//! A cluster whose state is in etcd: mounts come and go without a restart, and etcd may fail without a reader's noticing.

use std::time::Duration;

use forebay_e2e::reading::{self, read_while};
use forebay_e2e::{Cluster, Mount, Setup, Tree, Worker, eventually};
use forebay_testkit::bound;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// Waits until a name is there, or no longer is.
#[track_caller]
fn wait_for(mount: &Mount, name: &str, there: bool) {
    let what = format!("{name} {}", if there { "shows" } else { "is gone" });
    eventually(&what, SOON, || mount.path(name).symlink_metadata().is_ok() == there);
}

#[test]
fn mounts_come_and_go_at_a_running_mount_and_no_secret_is_stored() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(3, MIB + 5);
    tree.put_into(&cluster.bucket, "");
    let coordinator = cluster.coordinator();
    // So long a mount believes that a name is there.
    let worker = cluster.setup().memory("128MiB").option("metadata.ttl=1s").member("w1");
    coordinator.wait_for_active(&["w1"]);
    let mount = cluster.mount();
    assert_eq!(mount.root().read_dir().unwrap().count(), 0, "nothing is mounted yet");
    coordinator.add_mount(&cluster, "/s3");
    wait_for(&mount, "s3", true);
    tree.verify(&mount.path("s3"));
    tree.verify_names(&mount.path("s3"));

    let secret = "a-secret-that-nobody-may-see";
    let endpoint = format!("s3.endpoint={}", cluster.bucket.proxy().url());
    let literal = format!("s3.secret_access_key={secret}");
    let url = cluster.bucket.url();
    let refused = coordinator.ask(&["mounts", "add", "/b", &url, "-o", &endpoint, "-o", &literal]);
    refused.failed(2, &["s3.secret_access_key", "env:NAME"]);
    assert!(!refused.stderr.contains(secret) && !refused.text().contains(secret), "{}", refused.stderr);

    coordinator.add_mount(&cluster, "/b");
    wait_for(&mount, "b", true);
    tree.verify(&mount.path("b"));
    let listed = coordinator.ask(&["mounts", "list"]).succeeded().text();
    assert!(listed.lines().count() == 2 && listed.contains("env:ORIGIN_SECRET"), "{listed}");
    let state = cluster.state();
    let text = format!("{state:?}");
    assert!(state.len() > 3 && text.contains("env:ORIGIN_SECRET"), "{text}");
    assert!(!text.contains(&cluster.secret()) && !text.contains(secret), "{text}");
    assert!(state.keys().all(|key| key.starts_with("/forebay/forebay/")), "{text}");

    let _ = coordinator.ask(&["mounts", "remove", "/s3"]).succeeded();
    wait_for(&mount, "s3", false);
    tree.verify(&mount.path("b"));
    assert!(!worker.log_text().contains(&cluster.secret()));
    assert!(!coordinator.log_text().contains(secret));
}

#[test]
fn an_etcd_that_is_killed_stops_no_read_and_changes_no_ring() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(4, 8 * MIB);
    let workers = ["w1", "w2"].map(|name| (name, cluster.worker(name)));
    let mut running = cluster.run(&tree, workers.into());
    let (coordinator, mount) = (&running.coordinator, &running.mount);
    let changes = || mount.log_text().matches("the members of the cluster have changed").count();
    let before = changes();
    read_while(&mount.path("s3"), tree.file("file00"), 3, |progress| {
        progress.reads_on(100);
        running.cluster.etcd.kill(0).unwrap();
        eventually("the mount says that it goes on with what it knows", SOON, || {
            mount.log_text().contains("the last known members stay in use")
        });
        eventually("the coordinator is not ready", SOON, || coordinator.get("/readyz").0 == 503);
        let (_, readiness) = coordinator.get("/readyz");
        assert!(readiness.contains("state_store"), "{readiness}");
        assert_eq!(coordinator.get("/healthz").0, 200);
        let status = coordinator.ask(&["cluster", "status"]).succeeded().text();
        assert!(status.contains("unreachable") && status.contains("last known ring is in use"), "{status}");
        assert!(status.contains("w1") && status.contains("w2"), "{status}");
        let known = mount.own_stats()["cluster"].clone();
        assert!(known["last_known"]["reason"].is_string(), "{known}");
        assert_eq!(known["members"].as_array().map(Vec::len), Some(2), "{known}");
        // What was not opened or listed before.
        tree.verify_names(&mount.path("s3"));
        tree.verify(&mount.path("s3"));
        progress.reads_on(100);

        running.cluster.restart_etcd(0);
        eventually("the coordinator is ready again", SOON, || coordinator.get("/readyz").0 == 200);
        coordinator.wait_for_active(&["w1", "w2"]);
        eventually("nothing is said of a last known ring", SOON, || {
            !coordinator.ask(&["cluster", "status"]).succeeded().text().contains("last known ring")
        });
        eventually("the mount is told again", SOON, || mount.own_stats()["cluster"]["last_known"].is_null());
        coordinator.add_mount(&running.cluster, "/again");
        running.workers.iter().for_each(|worker| worker.wait_for("/again"));
        wait_for(mount, "again", true);
        tree.verify(&mount.path("again"));
        progress.reads_on(100);
    });
    assert_eq!(changes(), before, "{}", mount.log_text());
    assert!(running.workers.iter().all(|worker| worker.bytes_served() > 0));
}

#[test]
fn a_worker_that_dies_while_etcd_is_away_costs_no_reader_an_error_and_is_forgotten_after_it() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(1, 24 * MIB);
    let workers = ["w1", "w2"].map(|name| (name, cluster.worker(name)));
    let mut running = cluster.run(&tree, workers.into());
    let mut second = running.workers.pop().unwrap();
    let longest = read_while(&running.mount.path("s3"), tree.file("file00"), 3, |progress| {
        progress.reads_on(100);
        running.cluster.etcd.kill(0).unwrap();
        eventually("the coordinator is not ready", SOON, || running.coordinator.get("/readyz").0 == 503);
        second.kill();
        progress.reads_on(200);
        running.cluster.restart_etcd(0);
        running.coordinator.wait_for_active(&["w1"]);
        eventually("the mount forgets it", SOON, || {
            running.mount.own_stats()["cluster"]["members"].as_array().is_some_and(|members| members.len() == 1)
        });
        progress.reads_on(200);
    });
    assert!(longest < bound(Duration::from_secs(10), Duration::from_secs(30)), "a read took {longest:?}");
}

#[test]
fn with_one_of_three_etcd_members_lost_mounts_are_added_and_workers_join() {
    let Some(cluster) = Cluster::start(3) else { return };
    let tree = Tree::of_equal_files(2, 8 * MIB);
    let first = cluster.worker("w1");
    let mut running = cluster.run(&tree, vec![("w1", first)]);
    let (coordinator, mount) = (&running.coordinator, &running.mount);
    read_while(&mount.path("s3"), tree.file("file00"), 2, |progress| {
        // The first in the list of endpoints.
        running.cluster.etcd.kill(0).unwrap();
        let second = running.cluster.worker("w2");
        coordinator.wait_for_active(&["w1", "w2"]);
        eventually("mounts can be added", SOON, || {
            let mut command = ["mounts", "add", "/later", &running.cluster.bucket.url()].map(str::to_owned).to_vec();
            command.extend(running.cluster.mount_options());
            coordinator.ask(&command).code == Some(0)
        });
        running.workers.iter().chain([&second]).for_each(|worker| worker.wait_for("/later"));
        wait_for(mount, "later", true);
        tree.verify(&mount.path("later"));
        eventually("the worker that joined is read from", SOON, || second.bytes_served() > 0);
        progress.reads_on(100);
        running.cluster.restart_etcd(0);
        eventually("all is well", SOON, || coordinator.get("/readyz").0 == 200);
        coordinator.wait_for_active(&["w1", "w2"]);
        progress.reads_on(100);
    });
    let file = tree.file("file01");
    reading::verify_direct(&mount.path("later/file01"), file.data, file.size);
}

#[test]
fn a_mount_that_starts_without_etcd_reads_from_the_workers_that_it_was_told() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(1, 4 * MIB);
    let workers = ["w1", "w2"].map(|name| (name, cluster.worker(name)));
    let mut running = cluster.run(&tree, workers.into());
    running.cluster.etcd.kill(0).unwrap();
    let setup = || running.cluster.setup().option("client.memory.size=8MiB");
    let addresses: Vec<String> = running.workers.iter().map(|worker| worker.address().to_string()).collect();
    let told = |setup: Setup| setup.option(&format!("cluster.workers={}", addresses.join(",")));
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| setup().prepare_mount_cluster().start());
        let mount = told(setup()).mount_cluster();
        tree.verify(&mount.path("s3"));
        tree.verify_names(&mount.path("s3"));
        let refused = refused.join().unwrap();
        refused.failed(4, &["did not tell who the workers are", "cluster.workers"]);
    });
}

/// What a worker says of the size of a file, by a client that asks no other worker.
#[track_caller]
fn size_by(worker: &Worker, name: &str) -> u64 {
    let answer = worker.ask(&["fs", "stat", "--json", &format!("/s3/{name}")]).succeeded();
    let told: serde_json::Value = serde_json::from_slice(&answer.stdout).expect("JSON");
    told["size"].as_u64().expect("a size")
}

#[test]
fn a_worker_that_was_stopped_for_longer_than_its_lease_tells_nothing_that_it_knew_before() {
    let Some(cluster) = Cluster::start(1) else { return };
    let names: Vec<String> = (0..8).map(|number| format!("d{number}/f")).collect();
    names.iter().for_each(|name| cluster.bucket.put_text(name, "old"));
    let coordinator = cluster.coordinator();
    let [first, second] =
        ["w1", "w2"].map(|name| cluster.setup().memory("128MiB").option("metadata.ttl=10m").member(name));
    coordinator.wait_for_active(&["w1", "w2"]);
    coordinator.add_mount(&cluster, "/s3");
    [&first, &second].into_iter().for_each(|worker| worker.wait_for("/s3"));
    for name in &names {
        assert_eq!((size_by(&first, name), size_by(&second, name)), (3, 3));
    }
    second.freeze();
    coordinator.wait_for_active(&["w1"]);
    names.iter().for_each(|name| cluster.bucket.put_text(name, "replaced"));
    assert_eq!(size_by(&first, &names[0]), 3, "for its time a worker believes what it knows");
    // The first requests to be answered are those that were sent while it was stopped.
    std::thread::scope(|scope| {
        let asked: Vec<_> = names[..4].iter().map(|name| scope.spawn(|| size_by(&second, name))).collect();
        std::thread::sleep(Duration::from_millis(500));
        assert!(asked.iter().all(|asked| !asked.is_finished()), "it is stopped");
        second.thaw();
        for asked in asked {
            assert_eq!(asked.join().unwrap(), 8, "it answered from what it knew before its lease was over");
        }
    });
    coordinator.wait_for_active(&["w1", "w2"]);
    for name in &names {
        assert_eq!(size_by(&second, name), 8, "{name}");
    }
}
