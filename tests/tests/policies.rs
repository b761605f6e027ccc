//! Cache policies: what `forebay policy set` says of a path holds for what is read below it, within moments.

use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use forebay_e2e::reading::{read_while, verify_backwards};
use forebay_e2e::{Cluster, Coordinator, Running, Setup, Tree, eventually};
use forebay_testkit::DataSet;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A cluster with one worker, whose memory is this and which believes attributes for an hour: its lease is so long that it does not
/// lapse on a busy machine, after which a worker asks for everything anew.
fn start(tree: &Tree, memory: &str) -> Option<Running> {
    let cluster = Cluster::start(1)?;
    let settings = ["metadata.ttl=1h", "cluster.lease_ttl=60s"];
    let worker = cluster.setup().memory(memory).options(&settings).member("w1");
    Some(cluster.run(tree, vec![("w1", worker)]))
}

#[track_caller]
fn set(coordinator: &Coordinator, path: &str, wishes: &[&str]) {
    let _ = coordinator.ask(&[&["policy", "set", path], wishes].concat()).succeeded();
}

#[track_caller]
fn read(running: &Running, tree: &Tree, path: &str) {
    let file = tree.file(path);
    verify_backwards(&running.mount.path(&format!("s3/{path}")), file.data, file.size);
}

/// Bytes of a file that its worker holds.
fn held(running: &Running, path: &str) -> u64 {
    let rows = running.location(&format!("s3/{path}"));
    let memory = rows.iter().flat_map(|row| row["memory"].as_array().cloned().unwrap_or_default());
    memory.filter_map(|range| range["length"].as_u64()).sum()
}

#[test]
fn what_skips_the_cache_is_read_from_the_origin_each_time() {
    let mut tree = Tree::default();
    tree.add("archive/file", 2 * MIB);
    tree.add("other/file", 2 * MIB);
    let Some(running) = start(&tree, "64MiB") else { return };
    set(&running.coordinator, "/s3/archive", &["--skip-cache"]);
    let gets_of = |path: &str| {
        let before = running.cluster.bucket.gets();
        read(&running, &tree, path);
        running.cluster.bucket.gets() - before
    };
    // What was read before the worker knew of the policy may be cached.
    eventually("two reads after each other go to the origin", SOON, || {
        let freed = running.coordinator.job("free", "/s3/archive", &[]);
        assert_eq!(freed.0, 0, "{}", freed.1);
        gets_of("archive/file") > 0 && gets_of("archive/file") > 0
    });
    assert_eq!(held(&running, "archive/file"), 0);
    assert!(gets_of("other/file") > 0);
    assert_eq!(gets_of("other/file"), 0, "the policy is of another path");
    let listed = running.coordinator.ask(&["policy", "list"]).succeeded().text();
    assert_eq!(listed.trim(), "/s3/archive  skip-cache=true");

    let _ = running.coordinator.ask(&["policy", "remove", "/s3/archive"]).succeeded();
    eventually("it is cached again", SOON, || gets_of("archive/file") == 0);
}

#[test]
fn what_is_pinned_stays_when_much_else_is_read() {
    let mut tree = Tree::of_equal_files(12, 4 * MIB);
    tree.add("models/file", 8 * MIB);
    let Some(running) = start(&tree, "24MiB") else { return };
    set(&running.coordinator, "/s3/models", &["--pin"]);
    let (code, report) = running.coordinator.job("load", "/s3/models", &[]);
    assert_eq!(code, 0, "{report}");
    for file in &tree.files[..12] {
        read(&running, &tree, &file.path);
    }
    assert!(held(&running, "file00") < 4 * MIB, "there was pressure");
    assert_eq!(held(&running, "models/file"), 8 * MIB);
    let gets = running.cluster.bucket.gets();
    read(&running, &tree, "models/file");
    assert_eq!(running.cluster.bucket.gets(), gets, "it is all there");

    assert_eq!(running.workers[0].counter("/store/memory/pinned_bytes"), 8 * MIB);
    let _ = running.coordinator.ask(&["policy", "remove", "/s3/models"]).succeeded();
    eventually("what is cached already is pinned no more", SOON, || {
        running.workers[0].counter("/store/memory/pinned_bytes") == 0
    });
}

#[test]
fn a_quota_bounds_what_a_path_takes_of_the_cache() {
    let mut tree = Tree::of_equal_files(1, 8 * MIB);
    for number in 0..4 {
        tree.add(&format!("scratch/file{number}"), 4 * MIB);
    }
    let Some(running) = start(&tree, "64MiB") else { return };
    set(&running.coordinator, "/s3/scratch", &["--quota", "4MiB"]);
    read(&running, &tree, "file00");
    let of_scratch = || -> u64 { (0..4).map(|number| held(&running, &format!("scratch/file{number}"))).sum() };
    eventually("no more than the quota is cached", SOON, || {
        (0..4).for_each(|number| read(&running, &tree, &format!("scratch/file{number}")));
        let held = of_scratch();
        held > 0 && held <= 4 * MIB
    });
    assert_eq!(held(&running, "file00"), 8 * MIB, "nothing else had to go");
    let (code, report) = running.coordinator.job("load", "/s3/scratch", &[]);
    assert_eq!(code, 7, "what does not fit is told: {report}");
}

#[test]
fn a_path_may_be_believed_for_a_second_or_for_ever() {
    let mut tree = Tree::default();
    for directory in ["live", "frozen", "usual"] {
        tree.add(&format!("{directory}/file"), MIB);
    }
    let Some(running) = start(&tree, "64MiB") else { return };
    set(&running.coordinator, "/s3/frozen", &["--immutable", "--metadata-ttl", "500ms"]);
    set(&running.coordinator, "/s3/live", &["--metadata-ttl", "500ms"]);
    let size = |path: &str| running.mount.path(&format!("s3/{path}/file")).metadata().unwrap().size();
    // The worker is asked until it knows the policies, and not through the mount, which believes what it was told.
    let bucket = &running.cluster.bucket;
    let listed = || running.workers[0].ask(&["fs", "ls", "/s3/live"]).succeeded().text().lines().count();
    let first = listed();
    bucket.put("live/probe", DataSet::new(97), 1);
    eventually("the worker looks anew", SOON, || listed() == first + 1);
    bucket.remove("live/probe");
    eventually("and again", SOON, || listed() == first);
    assert!(["live", "frozen", "usual"].into_iter().all(|path| size(path) == MIB));
    for path in ["frozen", "usual", "live"] {
        bucket.put(&format!("{path}/file"), DataSet::new(99), 2 * MIB);
    }
    bucket.put("live/new", DataSet::new(98), MIB);
    bucket.put("usual/new", DataSet::new(98), MIB);
    eventually("what is believed for moments is seen to change", SOON, || size("live") == 2 * MIB);
    verify_backwards(&running.mount.path("s3/live/file"), DataSet::new(99), 2 * MIB);
    let names = |path: &str| running.mount.path(&format!("s3/{path}")).read_dir().unwrap().count();
    eventually("a new name shows", SOON, || names("live") == 2);
    assert_eq!((size("frozen"), size("usual")), (MIB, MIB), "what is not asked for again does not change");
}

#[test]
fn a_file_that_is_read_much_gets_a_further_replica_by_itself() {
    let Some(cluster) = Cluster::start(1) else { return };
    let mut tree = Tree::of_equal_files(1, 24 * MIB);
    tree.add("file01", MIB);
    let hot = |setup: Setup| setup.options(&["coordinator.hot.replicas=1", "coordinator.hot.threshold=32MiB"]);
    tree.put_into(&cluster.bucket, "");
    let coordinator = hot(cluster.setup()).coordinator();
    // What a worker has is looked for there as long as it is known: its lease does not lapse on a busy machine.
    let worker = |name: &str| hot(cluster.setup()).option("cluster.lease_ttl=60s").memory("64MiB").member(name);
    let workers = ["w1", "w2"].map(worker);
    coordinator.wait_for_active(&["w1", "w2"]);
    coordinator.add_mount(&cluster, "/s3");
    workers.iter().for_each(|worker| worker.wait_for("/s3"));
    let running = Running { mount: cluster.mount(), workers: workers.into(), coordinator, cluster };
    read(&running, &tree, "file01");
    let gets = running.cluster.bucket.gets();
    read_while(&running.mount.path("s3"), tree.file("file00"), 3, |progress| {
        progress.reads_on(200);
        eventually("its blocks have two owners", SOON, || {
            let owners = running.owners("s3/file00");
            owners.values().all(|owners| owners.len() == 2)
        });
        progress.reads_on(200);
    });
    let first = running.cluster.bucket.gets() - gets;
    assert!(first <= 24 * MIB / (64 << 10), "{first} GETs: the further replica has its bytes from the first");
    assert!(running.owners("s3/file01").values().all(|owners| owners.len() == 1), "one that is read once has one");
    assert_eq!(running.coordinator.ask(&["policy", "list"]).succeeded().text(), "", "nobody made a policy");
}
