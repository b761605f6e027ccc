//! Files that a mount keeps whole, as people and jobs ask for them.

use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use forebay_e2e::mapping::Mapping;
use forebay_e2e::passing::passing;
use forebay_e2e::{Bucket, Mount, Setup, eventually, finish, forebay, resident, resident_shared, skipped};
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
    let without = Setup::of(&bucket).option("client.local.size=0").up(&bucket);
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

/// A mount with 128 MiB of memory and no setting of theirs; `None` where the kernel passes none through, or the memory cannot be lent.
fn by_default(bucket: &Bucket) -> Option<Mount> {
    passing(bucket, &[])
}

fn count(mount: &Mount, pointer: &str) -> u64 {
    if pointer.starts_with("/store/") {
        // The worker's.
        return mount.counter(pointer);
    }
    let stats = mount.own_stats();
    stats.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {stats}"))
}

/// What files take of memory, at one moment: from one to the next, one is made ready and another goes for it.
fn taken(mount: &Mount) -> u64 {
    let stats = mount.own_stats();
    let bytes = |of: &str| stats["local"]["bytes"][of].as_u64().unwrap_or_else(|| panic!("no {of} in {stats}"));
    ["ready", "filling", "leaving", "lingering"].into_iter().map(bytes).sum()
}

#[test]
fn without_a_setting_a_file_that_is_read_twice_is_served_by_the_kernel_and_lies_in_memory_once() {
    const SIZE: u64 = 16 * MIB + 12_345;
    let bucket = Bucket::new();
    bucket.put("a", DATA, SIZE);
    let Some(mount) = by_default(&bucket) else { return };
    let told = mount.summary()["passthrough"].as_str().unwrap_or_default().to_owned();
    assert!(told.starts_with("files that are read twice are served by the kernel itself"), "{told}");
    assert_eq!(count(&mount, "/local/capacity_bytes"), 64 * MIB, "all but 64 MiB");
    eventually("the kernel reads it", SOON, || {
        assert!(std::fs::read(mount.path("a")).unwrap() == DATA.expected(0..SIZE));
        count(&mount, "/local/handles/passed") > 0
    });
    let gets = bucket.gets();
    eventually("the worker's own copy is gone", SOON, || count(&mount, "/store/memory/runs") == 0);
    let (used, files) = (count(&mount, "/store/memory/used"), taken(&mount));
    assert!(files >= SIZE && used >= files && used < files + 8 * MIB, "{used} used, {files} of files");
    assert!(std::fs::read(mount.path("a")).unwrap() == DATA.expected(0..SIZE));
    // What is dropped is the worker's again.
    let _ = mount.ask(&["fs", "local", "drop", "--all"]).succeeded();
    eventually("its memory is given back", SOON, || count(&mount, "/store/memory/used") < 8 * MIB);
    assert_eq!(bucket.gets(), gets, "nothing was fetched again");
}

/// They are in memory twice when the kernel reads them, since their pages are not adopted: so that is for what is spare of it.
#[test]
fn small_files_that_are_read_again_and_again_drive_nothing_out_and_are_passed_through_where_memory_is_spare() {
    const FILES: u64 = 600;
    const SIZE: u64 = 100_000;
    let bucket = Bucket::new();
    for file in 0..FILES {
        bucket.put(&format!("d/{file}"), DATA, SIZE);
    }
    let Some(mount) = by_default(&bucket) else { return };
    let right = DATA.expected(0..SIZE);
    let read_all = || {
        (0..FILES).for_each(|file| assert!(std::fs::read(mount.path(&format!("d/{file}"))).unwrap() == right, "{file}"))
    };
    read_all();
    let gets = bucket.gets();
    read_all();
    assert_eq!(count(&mount, "/local/fills/done"), 0, "a second open is not enough");
    eventually("some are passed through", SOON, || {
        read_all();
        count(&mount, "/local/handles/passed") > 0
    });
    read_all();
    assert_eq!(bucket.gets(), gets, "nothing was evicted for a second copy");
    assert!(count(&mount, "/store/memory/used") <= 128 * MIB);
}

#[test]
fn files_and_blocks_that_take_turns_stay_within_the_memory_of_the_worker() {
    const FILES: u64 = 12;
    const SIZE: u64 = 16 * MIB;
    let bucket = Bucket::new();
    for file in 0..FILES {
        bucket.put(&file.to_string(), DATA, SIZE);
    }
    let Some(mount) = by_default(&bucket) else { return };
    // Pages of its own, and those of the files, which are nobody's.
    let anonymous = || resident(mount.pid()).saturating_sub(resident_shared(mount.pid()));
    let start = anonymous();
    let mut most = 0;
    for round in 0..3 {
        for file in 0..FILES {
            let path = mount.path(&file.to_string());
            // Of some a part only: they stay in blocks.
            let length = if (file + round) % 3 == 0 { MIB } else { SIZE };
            let mut bytes = vec![0; length as usize];
            File::open(path).unwrap().read_exact(&mut bytes).unwrap();
            assert!(bytes == DATA.expected(0..length), "{file}");
            let used = count(&mount, "/store/memory/used");
            assert!(used <= 128 * MIB && taken(&mount) <= 64 * MIB, "{used} used, {} of files", taken(&mount));
            most = most.max(anonymous().saturating_sub(start) + taken(&mount));
        }
    }
    // What is beside the cache depends on the machine: threads, and what the allocator keeps.
    assert!(most <= 128 * MIB / 100 * 115 + 48 * MIB, "{most} bytes more than at the start");
}

#[test]
fn a_cold_file_that_is_read_from_its_start_is_filled_meanwhile_and_passed_through_at_its_next_open() {
    const SIZE: u64 = 24 * MIB;
    let bucket = Bucket::new();
    bucket.put("a", DATA, SIZE);
    let Some(mount) = by_default(&bucket) else { return };
    let before = bucket.proxy().counts().bytes;
    assert!(std::fs::read(mount.path("a")).unwrap() == DATA.expected(0..SIZE));
    eventually("it is whole, though it was opened once", SOON, || count(&mount, "/local/files/ready") == 1);
    let fetched = bucket.proxy().counts().bytes - before;
    assert!(fetched <= SIZE + SIZE / 10, "the fill and the reader share what is fetched: {fetched}");
    eventually("the last close has come, and the next open is passed through", SOON, || {
        assert!(std::fs::read(mount.path("a")).unwrap() == DATA.expected(0..SIZE));
        count(&mount, "/local/handles/passed") > 0
    });
}

#[test]
fn a_cold_file_that_is_mapped_is_fetched_as_a_whole_when_it_is_read_here_and_there() {
    const SIZE: u64 = 24 * MIB;
    let bucket = Bucket::new();
    bucket.put("a", DATA, SIZE);
    let Some(mount) = by_default(&bucket) else { return };
    let mapping = Mapping::of(&mount.path("a"), SIZE as usize).unwrap();
    for at in [11, 3, 19, 7, 15, 1] {
        let place = at * MIB + 5;
        assert!(mapping.read(place as usize..place as usize + 3).unwrap() == DATA.expected(place..place + 3));
    }
    eventually("it is whole", SOON, || count(&mount, "/local/files/ready") == 1);
}

/// The kernel tells nobody of advice: it follows it, as far as it reads ahead (`fuse.read_ahead`).
#[test]
fn what_a_program_says_that_it_will_need_is_read_ahead_of_it() {
    const WINDOW: u64 = 4 * MIB;
    let bucket = Bucket::new();
    bucket.put("a", DATA, 24 * MIB);
    let Some(mount) = by_default(&bucket) else { return };
    let file = File::open(mount.path("a")).unwrap();
    let before = bucket.proxy().counts().bytes;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::WillNeed).unwrap();
    eventually("it comes", SOON, || bucket.proxy().counts().bytes - before >= WINDOW);
    let mut bytes = vec![0; WINDOW as usize];
    (&file).read_exact(&mut bytes).unwrap();
    assert!(bytes == DATA.expected(0..WINDOW));
}

#[test]
fn one_setting_turns_them_off() {
    let bucket = Bucket::new();
    bucket.put("a", DATA, MIB);
    let mount = Setup::of(&bucket).option("client.local.size=0").up(&bucket);
    assert_eq!(mount.summary()["passthrough"], "off: client.local.size is 0");
    for _ in 0..3 {
        assert!(std::fs::read(mount.path("a")).unwrap() == DATA.expected(0..MIB));
    }
    assert!(mount.own_stats()["local"].is_null());
}
