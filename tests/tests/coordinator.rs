//! Jobs, as people run them: they survive the coordinator that runs them, and say honestly what they did and what they did not.

use std::time::Duration;

use forebay_e2e::reading;
use forebay_e2e::{
    BLOCK, Bucket, Cluster, Coordinator, Running, Setup, Tree, TreeFile, eventually, finish, forebay, once,
};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// A cluster with one worker that holds nothing yet of these files.
fn cold(tree: &Tree, memory: &str) -> Option<Running> {
    let cluster = Cluster::start(1)?;
    let worker = cluster.setup().memory(memory).member("w1");
    Some(cluster.run(tree, vec![("w1", worker)]))
}

fn state_of(coordinator: &Coordinator, id: &Value) -> Value {
    let list = coordinator.ask(&["job", "list", "--format", "json"]).succeeded().text();
    let jobs = list.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    jobs.into_iter().find(|job| job["id"] == *id).unwrap_or_else(|| panic!("no {id} in {list}"))["state"].clone()
}

#[test]
fn a_job_whose_coordinator_is_killed_is_finished_by_another() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(24, MIB);
    let workers = ["w1", "w2"].map(|name| (name, cluster.worker(name)));
    let mut running = cluster.run(&tree, workers.into());
    let second = running.cluster.coordinator();
    let first = &mut running.coordinator;
    eventually("the first leads", SOON, || second.status()["leader"]["address"] == first.address());
    // One that does not lead passes it on.
    let submitted = ["job", "load", "--path", "/s3", "--submit", "--bandwidth", "2MiB"];
    let (code, job) = second.job_of(&submitted);
    assert_eq!(code, 0, "{job}");
    let progress = ["job", "load", "--path", "/s3", "--progress"];
    eventually("some of it is done, and written down", SOON, || {
        let (code, report) = second.job_of(&progress);
        assert_eq!(code, 10, "{report}");
        report["state"] == "RUNNING" && report["progress"]["done"]["files"].as_u64() >= Some(4)
    });
    first.kill();
    let (code, report) = second.job_of(&[&progress[..], &["--watch"]].concat());
    assert_eq!(code, 0, "{report}");
    assert_eq!((&report["id"], &report["state"]), (&job["id"], &json!("SUCCEEDED")), "{report}");
    let all = json!({ "files": 24, "bytes": 24 * MIB });
    for part in ["total", "done", "audited"] {
        assert_eq!(report["progress"][part], all, "{part}: {report}");
    }
    assert_eq!((&report["failures"]["count"], &report["evicted"]["bytes"]), (&json!(0), &json!(0)), "{report}");
    assert_ne!(report["coordinator"], job["coordinator"], "{report}");
    let took = report["finished_ms"].as_u64().unwrap() - report["started_ms"].as_u64().unwrap();
    assert!(took > 9000, "24 MiB at 2 MiB a second in {took} ms");
    assert_eq!(second.status()["leader"]["address"], second.address());
    // What was loaded since the last record is found cached.
    let fetched = running.cluster.bucket.proxy().counts().bytes;
    assert!(fetched < 25 * MIB, "{fetched} bytes came from the origin");
    let gets = running.cluster.bucket.gets();
    tree.verify(&running.mount.path("s3"));
    assert_eq!(running.cluster.bucket.gets(), gets, "all of it is cached");
}

#[test]
fn a_coordinator_that_ends_in_good_order_hands_over_at_once() {
    let Some(running) = cold(&Tree::of_equal_files(8, MIB), "128MiB") else { return };
    let second = running.cluster.coordinator();
    let mut first = running.coordinator;
    let (_, job) = first.job_of(&["job", "load", "--path", "/s3", "--submit", "--bandwidth", "1MiB"]);
    eventually("it runs", SOON, || state_of(&second, &job["id"]) == "RUNNING");
    first.terminate();
    let (code, report) = second.job_of(&["job", "load", "--path", "/s3", "--progress", "--watch"]);
    assert_eq!((code, &report["id"]), (0, &job["id"]), "{report}");
    assert_eq!(report["progress"]["audited"]["bytes"], 8 * MIB);
}

#[test]
fn without_etcd_a_coordinator_that_was_killed_goes_on_with_its_job_when_it_is_started_again() {
    let bucket = Bucket::new();
    let tree = Tree::of_equal_files(12, MIB);
    tree.put_into(&bucket, "");
    let workers = [(), ()].map(|()| Setup::of(&bucket).option("block.size=256KiB").worker(&bucket));
    let addresses = workers.each_ref().map(|worker| worker.address().to_string()).join(",");
    let state = tempfile::tempdir().unwrap();
    let start = || {
        let settings = [
            "block.size=256KiB",
            "cluster.lease_ttl=2s",
            &format!("cluster.workers={addresses}"),
            &format!("coordinator.state_dir={}", state.path().display()),
        ];
        Setup::default().options(&settings).coordinator()
    };
    let mut first = start();
    let progress = ["job", "load", "--path", "/", "--progress"];
    // It listens before it leads.
    eventually("it leads", SOON, || !first.ask(&progress).stderr.contains("no coordinator leads"));
    let (code, job) = first.job_of(&["job", "load", "--path", "/", "--submit", "--bandwidth", "3MiB"]);
    assert_eq!(code, 0, "{job}");
    eventually("some of it is done", SOON, || {
        first.job_of(&progress).1["progress"]["done"]["files"].as_u64() >= Some(2)
    });
    first.kill();
    let second = start();
    let (code, report) = once("it goes on", SOON, || {
        let answer = second.ask(&progress);
        (answer.code != Some(3)).then(|| second.job_of(&[&progress[..], &["--watch"]].concat()))
    });
    assert_eq!((code, &report["id"]), (0, &job["id"]), "{report}");
    assert_eq!(report["progress"]["audited"], json!({ "files": 12, "bytes": 12 * MIB }), "{report}");
    let gets = bucket.gets();
    // A hedge would have another worker fetch as well.
    let options = ["block.size=256KiB", "client.hedge.enabled=false"];
    tree.verify(&Setup::without_origin().options(&options).mount(&workers).root());
    assert_eq!(bucket.gets(), gets, "all of it is cached");
}

#[test]
fn the_coordinator_of_up_is_found_by_a_path_below_the_mount() {
    let bucket = Bucket::new();
    let mut tree = Tree::of_equal_files(2, MIB);
    tree.add("dir/below", 2 * MIB);
    tree.put_into(&bucket, "");
    let mount = Setup::of(&bucket).up(&bucket);
    let run = |kind: &str| {
        let arguments = ["job", kind, "--submit", "--watch", "--format", "json", "--path"];
        let answer = finish(forebay(&[]).args(arguments).arg(mount.path("dir")), SOON).succeeded().text();
        serde_json::from_str::<Value>(answer.lines().last().unwrap()).unwrap()
    };
    let report = run("load");
    assert_eq!(report["spec"]["path"], "/dir");
    assert_eq!(report["progress"]["audited"], json!({ "files": 1, "bytes": 2 * MIB }), "{report}");
    let gets = bucket.gets();
    let file = tree.file("dir/below");
    reading::verify_backwards(&mount.path("dir/below"), file.data, file.size);
    assert_eq!(bucket.gets(), gets, "it is cached");
    let report = run("free");
    assert_eq!(report["progress"]["freed_bytes"].as_u64(), Some(2 * MIB), "{report}");
    reading::verify_backwards(&mount.path("dir/below"), file.data, file.size);
    assert!(bucket.gets() > gets, "it is cold again");
    tree.verify(&mount.root());
}

#[test]
fn a_load_may_ask_for_more_replicas_than_the_policies_do() {
    let Some(cluster) = Cluster::start(1) else { return };
    let tree = Tree::of_equal_files(1, 8 * MIB);
    let workers = ["w1", "w2", "w3"].map(|name| (name, cluster.worker(name)));
    let running = cluster.run(&tree, workers.into());
    let (code, report) = running.coordinator.job("load", "/s3/file00", &["--replicas", "2"]);
    assert_eq!((code, &report["progress"]["audited"]["bytes"]), (0, &json!(8 * MIB)), "{report}");
    let rows = running.location("s3/file00");
    assert_eq!(rows.iter().filter(|row| row["state"] == "cached").count() as u64, 2 * 8 * MIB / BLOCK, "{rows:?}");
    let fetched = running.cluster.bucket.proxy().counts().bytes;
    assert!(fetched < 9 * MIB, "{fetched} bytes came from the origin: the second has them from the first");
}

#[test]
fn a_load_caches_all_and_a_free_drops_all() {
    let tree = Tree::of_equal_files(12, MIB + 3);
    let Some(running) = cold(&tree, "128MiB") else { return };
    let (coordinator, bucket) = (&running.coordinator, &running.cluster.bucket);
    let bytes = 12 * (MIB + 3);

    let (code, report) = coordinator.job("load", "/s3", &["--metadata-only"]);
    assert_eq!((code, &report["progress"]["done"]["files"]), (0, &json!(12)), "{report}");
    assert_eq!((bucket.gets(), &report["progress"]["fetched_bytes"]), (0, &json!(0)), "{report}");

    let (code, report) = coordinator.job("load", "/s3", &["--verify", "--partial-listing"]);
    assert_eq!((code, &report["state"]), (0, &json!("SUCCEEDED")), "{report}");
    assert_eq!(report["progress"]["audited"], json!({ "files": 12, "bytes": bytes }), "{report}");
    // What a worker fetched whose answer came too late is found cached when it is asked again.
    let [fetched, cached] = ["fetched_bytes", "cached_bytes"].map(|name| report["progress"][name].as_u64().unwrap());
    assert!(fetched > 0 && fetched + cached == bytes, "{report}");
    let gets = bucket.gets();
    assert!(gets >= 12 * (MIB + 3).div_ceil(BLOCK) / 4, "{gets}");
    tree.verify(&running.mount.path("s3"));
    assert_eq!(bucket.gets(), gets, "all of it is cached");

    let (code, report) = coordinator.job("load", "/s3", &["--skip-if-exists"]);
    assert_eq!((code, &report["progress"]["skipped"]["files"]), (0, &json!(12)), "{report}");
    let (code, report) = coordinator.job("load", "/s3", &[]);
    assert_eq!((code, &report["progress"]["cached_bytes"]), (0, &json!(bytes)), "{report}");
    assert_eq!(bucket.gets(), gets, "nothing of it is fetched again");

    let (code, report) = coordinator.job("free", "/s3", &[]);
    assert_eq!((code, &report["progress"]["done"]["files"]), (0, &json!(12)), "{report}");
    assert!(report["progress"]["freed_bytes"].as_u64() >= Some(bytes), "{report}");
    let rows = running.location("s3/file00");
    assert!(rows.iter().all(|row| row["state"] == "none"), "{rows:?}");
    let file = tree.file("file00");
    reading::verify_backwards(&running.mount.path("s3/file00"), file.data, file.size);
    assert!(bucket.gets() > gets, "it is cold again");
}

#[test]
fn an_index_file_names_what_to_load() {
    let mut tree = Tree::of_equal_files(4, MIB);
    tree.add("dir/below", MIB);
    let Some(running) = cold(&tree, "128MiB") else { return };
    running.cluster.bucket.put_text("today.txt", "# what is read today\n/s3/file01\n\nfile03\ndir\n");
    let index = ["job", "load", "--index-file", "/s3/today.txt", "--submit", "--watch"];
    let (code, report) = running.coordinator.job_of(&index);
    assert_eq!((code, &report["progress"]["audited"]), (0, &json!({ "files": 3, "bytes": 3 * MIB })), "{report}");
    let gets = running.cluster.bucket.gets();
    for path in ["file01", "file03", "dir/below"] {
        let file = tree.file(path);
        reading::verify(&running.mount.path(&format!("s3/{path}")), file.data, file.size);
    }
    assert_eq!(running.cluster.bucket.gets(), gets);
    let other = tree.file("file00");
    reading::verify(&running.mount.path("s3/file00"), other.data, other.size);
    assert!(running.cluster.bucket.gets() > gets, "what is not in the index was not loaded");
}

/// Loads 40 MiB into 16 MiB, and checks that what is told of it is what is there.
#[track_caller]
fn load_too_much(running: &Running, tree: &Tree, options: &[&str]) {
    let (code, report) = running.coordinator.job("load", "/s3", options);
    assert_eq!((code, &report["state"]), (7, &json!("SUCCEEDED")), "{report}");
    let held = |file: &TreeFile| -> u64 {
        let rows = running.location(&format!("s3/{}", file.path));
        let memory = rows.iter().flat_map(|row| row["memory"].as_array().cloned().unwrap_or_default());
        memory.filter_map(|range| range["length"].as_u64()).sum()
    };
    let missing = 40 * MIB - tree.files.iter().map(held).sum::<u64>();
    let evicted = &report["evicted"];
    assert!(evicted["bytes"].as_u64() >= Some(missing), "{missing} bytes are missing: {report}");
    let named = evicted["first_paths"].as_array().unwrap();
    assert!(!named.is_empty() && named.iter().all(|path| path.as_str().unwrap().starts_with("/s3/file")), "{report}");
    assert!(report["warnings"].to_string().contains("too small"), "{report}");
    let told = running.coordinator.ask(&["job", "load", "--path", "/s3", "--progress", "--verbose"]);
    told.failed(7, &["evicted"]);
    assert!(told.text().contains(named[0].as_str().unwrap()), "{}", told.text());
}

#[test]
fn a_load_that_does_not_fit_says_what_was_evicted_again() {
    let tree = Tree::of_equal_files(40, MIB);
    let Some(running) = cold(&tree, "16MiB") else { return };
    tree.files.iter().for_each(|file| running.cluster.bucket.age(&file.path));
    load_too_much(&running, &tree, &[]);
    let fetched = running.cluster.bucket.proxy().counts().bytes;
    assert!(fetched < 44 * MIB, "{fetched} bytes of 40 MiB came from the origin");
    load_too_much(&running, &tree, &["--verify"]);
}

#[test]
fn what_was_written_a_moment_ago_and_does_not_fit_is_told_of_as_honestly() {
    let tree = Tree::of_equal_files(40, MIB);
    let Some(running) = cold(&tree, "16MiB") else { return };
    load_too_much(&running, &tree, &[]);
}

#[test]
fn a_job_says_what_is_missing_and_that_it_was_stopped() {
    let tree = Tree::of_equal_files(1, 4 * MIB);
    let Some(running) = cold(&tree, "16MiB") else { return };
    let coordinator = &running.coordinator;
    let (code, report) = coordinator.job("load", "/s3/none", &[]);
    assert_eq!((code, &report["state"]), (8, &json!("FAILED")), "{report}");
    assert!(report["failures"].to_string().contains("/s3/none"), "{report}");
    coordinator.ask(&["job", "load", "--path", "/s3/never", "--progress"]).failed(3, &["no load job"]);

    let slowly = ["job", "load", "--path", "/s3/file00", "--submit", "--bandwidth", "64KiB"];
    let (code, job) = coordinator.job_of(&slowly);
    assert_eq!(code, 0, "{job}");
    eventually("it runs", SOON, || state_of(coordinator, &job["id"]) == "RUNNING");
    let again = coordinator.ask(&slowly).succeeded().text();
    assert!(again.contains("under way already"), "{again}");
    let _ = coordinator.ask(&["job", "load", "--path", "/s3/file00", "--stop"]).succeeded();
    let (code, report) = once("it is stopped", SOON, || {
        let told = coordinator.job_of(&["job", "load", "--path", "/s3/file00", "--progress"]);
        (told.0 != 10).then_some(told)
    });
    assert_eq!((code, &report["state"]), (9, &json!("STOPPED")), "{report}");
    assert_eq!(state_of(coordinator, &job["id"]), "STOPPED");
    let list = coordinator.ask(&["job", "list"]).succeeded().text();
    assert!(["FAILED", "STOPPED"].iter().all(|state| list.contains(state)), "{list}");
}
