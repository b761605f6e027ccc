//! Files that a mount keeps whole, as people and jobs ask for them.

use std::time::Duration;

use forebay_e2e::{Bucket, Mount, Setup, eventually, finish, forebay, skipped};
use forebay_testkit::DataSet;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const DATA: DataSet = DataSet::new(11);

/// A mount with room for whole files, none of which it takes by itself; `None` where the kernel passes none through.
fn mounted(size: &str) -> Option<(Mount, Bucket)> {
    let bucket = Bucket::new();
    for shard in 0..3 {
        bucket.put(&format!("models/{shard}"), DATA, (shard + 1) * MIB);
    }
    let size = format!("client.local.size={size}");
    let mount = Setup::of(&bucket).options(&[&*size, "client.local.min_opens=1000"]).up(&bucket);
    let local = mount.own_stats()["local"].clone();
    if local["on"] != true {
        skipped(&format!("the kernel passes no files through here: {}", local["why_off"]));
        return None;
    }
    Some((mount, bucket))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn files_are_added_listed_read_by_the_kernel_and_dropped() {
    let Some((mount, _bucket)) = mounted("64MiB") else { return };
    let added = mount.ask_of("models", &["fs", "local", "add", "--json"]).succeeded();
    assert_eq!(lines(&added.text())[0]["ready"], 3, "{}", added.text());
    let listed = lines(&mount.ask(&["fs", "local", "ls", "--json"]).succeeded().text());
    let keys: Vec<_> = listed.iter().filter_map(|file| file["key"].as_str()).collect();
    assert_eq!(keys, ["models/0", "models/1", "models/2"]);
    let shown = |file: &Value| file["path"].as_str().is_some_and(|path| std::path::Path::new(path).is_file());
    assert!(listed.iter().all(|file| shown(file) && file["opens"] == 0), "{listed:?}");
    assert!(listed.iter().all(|file| file["state"] == "ready" && file["asked"] == "command"), "{listed:?}");
    let before = mount.own_stats();
    for shard in 0..3 {
        assert!(std::fs::read(mount.path(&format!("models/{shard}"))).unwrap() == DATA.expected(0..(shard + 1) * MIB));
    }
    let after = mount.own_stats();
    assert_eq!(after["fuse"]["read_bytes"], before["fuse"]["read_bytes"], "the kernel read them by itself");
    assert_eq!(after["local"]["handles"]["passed"], 3);
    let table = mount.ask(&["fs", "local", "ls"]).succeeded().text();
    assert!(table.lines().any(|line| line.starts_with("ready") && line.contains("models/2")), "{table}");
    let dropped = mount.ask_of("models/1", &["fs", "local", "drop", "--json"]).succeeded();
    assert_eq!(lines(&dropped.text())[0]["dropped"], 1);
    assert_eq!(lines(&mount.ask(&["fs", "local", "ls", "--json"]).succeeded().text()).len(), 2);
    let _ = mount.ask(&["fs", "local", "drop", "--all"]).succeeded();
    eventually("all are gone", SOON, || mount.own_stats()["local"]["files"]["ready"] == 0);
}

#[test]
fn what_there_is_no_room_for_is_named_and_a_mount_without_room_says_what_to_set() {
    let Some((mount, _bucket)) = mounted("4MiB") else { return };
    let added = mount.ask_of("models", &["fs", "local", "add"]);
    assert_eq!(added.code, Some(1), "{added:?}");
    assert!(added.stderr.contains("client.local.size"), "{}", added.stderr);
    let bucket = Bucket::new();
    let without = Setup::of(&bucket).up(&bucket);
    let refused = without.ask(&["fs", "local", "ls"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("client.local.size"), "{refused:?}");
}

#[test]
fn a_job_has_mounts_keep_what_it_loads() {
    let Some((mount, _bucket)) = mounted("64MiB") else { return };
    let coordinator = mount.summary()["coordinator"].as_str().expect("`up` has one").to_owned();
    let job = |more: &[&str]| {
        let common =
            ["job", "load", "--path", "/models", "--to-clients", "--format", "json", "--coordinator", &*coordinator];
        finish(forebay(&[]).args(common).args(more), SOON)
    };
    let done = job(&["--submit", "--watch"]);
    let report = lines(&done.text()).pop().unwrap();
    assert_eq!((done.code, &report["state"]), (Some(0), &Value::from("SUCCEEDED")), "{report}");
    assert_eq!(
        (&report["delivery"]["mounts"], &report["delivery"]["kept"]["files"]),
        (&1.into(), &3.into()),
        "{report}"
    );
    let before = mount.own_stats()["fuse"]["read_bytes"].clone();
    assert!(std::fs::read(mount.path("models/2")).unwrap() == DATA.expected(0..3 * MIB));
    assert_eq!(mount.own_stats()["fuse"]["read_bytes"], before);
    let listed = lines(&mount.ask(&["fs", "local", "ls", "--json"]).succeeded().text());
    assert!(listed.len() == 3 && listed.iter().all(|file| file["asked"] == "job"), "{listed:?}");
}

#[test]
fn a_job_that_a_mount_has_no_room_for_fails_and_names_the_files() {
    let Some((mount, _bucket)) = mounted("4MiB") else { return };
    let coordinator = mount.summary()["coordinator"].as_str().expect("`up` has one").to_owned();
    let arguments = ["job", "load", "--path", "/models", "--to-clients", "--submit", "--watch", "--format", "json"];
    let done = finish(forebay(&[]).args(arguments).args(["--coordinator", &*coordinator]), SOON);
    let report = lines(&done.text()).pop().unwrap();
    assert_eq!((done.code, &report["state"]), (Some(8), &Value::from("FAILED")), "{report}");
    assert!(report["delivery"]["no_room"].as_u64() > Some(0), "{report}");
    assert!(report["delivery"]["missing"][0]["path"].as_str().unwrap().starts_with("/models/"), "{report}");
}
