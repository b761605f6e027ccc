//! A program that opens the files of a directory in the order of its listing: the origin, which is far away, is asked
//! for them before they are opened, but not for what is not opened.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_e2e::{Bucket, Mount, Setup, Worker, eventually, skipped};
use forebay_testkit::DataSet;

const SOON: Duration = Duration::from_secs(60);
/// What the origin takes for an answer.
const AWAY: Duration = Duration::from_millis(150);
const SIZE: u64 = 20_000;

fn data(at: usize) -> DataSet {
    DataSet::new(1000 + at as u64)
}

/// A bucket with so many files in the directory `d`.
fn bucket(files: usize) -> Bucket {
    let bucket = Bucket::new();
    (0..files).for_each(|at| bucket.put(&key(at), data(at), SIZE));
    bucket
}

fn key(at: usize) -> String {
    format!("d/{at:04}.bin")
}

/// The names of a directory, in their order.
fn list(directory: &Path) -> Vec<OsString> {
    let mut names: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Reads a file whole.
fn read(mount: &Mount, at: usize) -> Vec<u8> {
    std::fs::read(mount.path(&key(at))).unwrap_or_else(|error| panic!("{}: {error}", key(at)))
}

fn is_right(bytes: &[u8], data: DataSet) -> bool {
    bytes.len() as u64 == SIZE && data.first_difference(0, bytes).is_none()
}

/// Reads files in this order, and gives how many of them the origin was not asked for before they were opened: each of
/// these is a wait of the whole way.
fn waits(bucket: &Bucket, mount: &Mount, order: impl IntoIterator<Item = usize>) -> u64 {
    let before = bucket.gets();
    let mut waits = 0;
    for (opened, at) in (0..).zip(order) {
        if bucket.gets() - before <= opened {
            waits += 1;
        }
        assert!(is_right(&read(mount, at), data(at)), "{}", key(at));
    }
    waits
}

fn own(mount: &Mount, counter: &str) -> u64 {
    let stats = mount.own_stats();
    stats["client"][counter].as_u64().unwrap_or_else(|| panic!("no {counter} in {stats}"))
}

/// Mounts of the bucket: one that has its worker, and one whose worker is elsewhere as far as it can tell.
fn mounts(bucket: &Bucket, options: &[&str]) -> [(Option<Worker>, Mount); 2] {
    let worker = Setup::of(bucket).option("network.shared_memory=off").worker(bucket);
    let elsewhere = Setup::of_user().option("network.shared_memory=off").options(options);
    let mount = elsewhere.mount(std::slice::from_ref(&worker));
    [(None, Setup::of(bucket).options(options).up(bucket)), (Some(worker), mount)]
}

#[test]
fn the_files_of_a_directory_are_asked_for_before_they_are_opened_and_once() {
    const FILES: usize = 80;
    let bucket = bucket(FILES);
    for (worker, mount) in mounts(&bucket, &[]) {
        let place = if worker.is_some() { "elsewhere" } else { "here" };
        assert_eq!(list(&mount.path("d")).len(), FILES);
        bucket.proxy().set_latency(AWAY);
        let before = bucket.gets();
        let waits = waits(&bucket, &mount, 0..FILES);
        bucket.proxy().heal();
        assert!(waits <= 20, "{place}: {waits} of {FILES} files were waited for");
        assert_eq!(bucket.gets() - before, FILES as u64, "{place}");
        let (used, wasted) = (own(&mount, "files_ahead_used"), own(&mount, "files_ahead_wasted"));
        assert!(used >= 60 && wasted == 0, "{place}: {used} used, {wasted} wasted");
    }
}

#[test]
fn one_line_turns_it_off() {
    const FILES: usize = 20;
    let bucket = bucket(FILES);
    for (_worker, mount) in mounts(&bucket, &["client.prefetch.directory_budget=0"]) {
        assert_eq!(list(&mount.path("d")).len(), FILES);
        assert_eq!(waits(&bucket, &mount, 0..FILES), FILES as u64);
        assert_eq!(own(&mount, "files_ahead"), 0);
    }
}

#[test]
fn who_leaves_out_most_files_has_few_fetched_in_vain() {
    const FILES: usize = 600;
    let bucket = bucket(FILES);
    for (worker, mount) in mounts(&bucket, &[]) {
        let place = if worker.is_some() { "elsewhere" } else { "here" };
        assert_eq!(list(&mount.path("d")).len(), FILES);
        let before = bucket.gets();
        let _ = waits(&bucket, &mount, (0..FILES).step_by(4));
        let gets = bucket.gets() - before;
        assert!(gets <= FILES as u64 / 4 + 40, "{place}: {gets} GETs for {} files", FILES / 4);
    }
}

/// What is fetched ahead of an open that the kernel answers by itself, nobody reads.
#[test]
fn files_that_the_kernel_reads_by_itself_are_not_fetched_before_they_are_opened_again() {
    const FILES: usize = 600;
    let bucket = bucket(FILES);
    let worker = Setup::of(&bucket).option("network.shared_memory=off").worker(&bucket);
    // The buffers have room for some of the files only, and the mount for all of them.
    let options = ["network.shared_memory=off", "client.memory.size=8MiB", "client.local.size=256MiB"];
    let mount = Setup::of_user().options(&options).mount([&worker]);
    let local = mount.own_stats()["local"].clone();
    if local["on"] != true {
        return skipped(&format!("the kernel passes no files through here: {}", local["why_off"]));
    }
    let added = mount.ask_of("d", &["fs", "local", "add"]).succeeded();
    let files = mount.own_stats()["local"]["files"]["ready"].clone();
    assert_eq!(files, FILES, "{}", added.text());
    assert_eq!(list(&mount.path("d")).len(), FILES);
    let (before, ahead) = (bucket.gets(), own(&mount, "files_ahead"));
    let passed = || mount.own_stats()["local"]["handles"]["passed"].as_u64().unwrap_or(0);
    for at in 0..FILES {
        assert!(is_right(&read(&mount, at), data(at)), "{}", key(at));
    }
    assert_eq!(passed(), FILES as u64);
    assert_eq!((bucket.gets() - before, own(&mount, "files_ahead") - ahead), (0, 0));
}

/// `cp -r` opens the files of a directory in the order of their inode numbers, which are hashes here.
#[test]
fn a_copy_of_a_directory_has_most_files_fetched_before_it_opens_them() {
    const FILES: usize = 600;
    let bucket = bucket(FILES);
    for (worker, mount) in mounts(&bucket, &[]) {
        let place = if worker.is_some() { "elsewhere" } else { "here" };
        let (copies, before) = (tempfile::tempdir().unwrap(), bucket.gets());
        let copied = Command::new("cp").arg("-r").arg(mount.path("d")).arg(copies.path()).status().unwrap();
        assert!(copied.success(), "{place}: {copied}");
        for at in 0..FILES {
            assert!(is_right(&std::fs::read(copies.path().join(key(at))).unwrap(), data(at)), "{place}: {}", key(at));
        }
        assert_eq!(bucket.gets() - before, FILES as u64, "{place}");
        let (used, wasted) = (own(&mount, "files_ahead_used"), own(&mount, "files_ahead_wasted"));
        assert!(used >= FILES as u64 / 2 && wasted <= 100, "{place}: {used} used, {wasted} wasted");
    }
}

#[test]
fn no_more_than_the_budget_is_fetched_ahead() {
    const FILES: usize = 300;
    const READ: u64 = 40;
    let bucket = bucket(FILES);
    for (worker, mount) in mounts(&bucket, &["client.prefetch.directory_budget=512KiB"]) {
        let place = if worker.is_some() { "elsewhere" } else { "here" };
        assert_eq!(list(&mount.path("d")).len(), FILES);
        let before = bucket.gets();
        let _ = waits(&bucket, &mount, 0..READ as usize);
        eventually("something is fetched ahead", SOON, || bucket.gets() - before > READ);
        let ahead = bucket.gets() - before - READ;
        assert!(ahead * SIZE <= 512 << 10, "{place}: {ahead} files");
    }
}

#[test]
fn a_file_that_was_replaced_before_it_was_fetched_ahead_is_never_read_as_it_was() {
    const FILES: usize = 40;
    const REPLACED: usize = 25;
    for place in 0..2 {
        let bucket = bucket(FILES);
        let [here, elsewhere] = mounts(&bucket, &[]);
        let (_worker, mount) = if place == 0 { here } else { elsewhere };
        assert_eq!(list(&mount.path("d")).len(), FILES);
        bucket.put(&key(REPLACED), data(999), SIZE);
        for at in 0..FILES {
            if at != REPLACED {
                assert!(is_right(&read(&mount, at), data(at)), "{}", key(at));
                continue;
            }
            // An open may still find the version of the listing, whose bytes nobody has: it fails, and the next one
            // finds the new one.
            eventually("the file is read as it is now", SOON, || match std::fs::read(mount.path(&key(at))) {
                Ok(bytes) => {
                    assert!(is_right(&bytes, data(999)), "{}", key(at));
                    true
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(estale()), "{error}");
                    false
                }
            });
        }
    }
}

/// > An open after the file was replaced elsewhere reads the new version once `metadata.ttl` has passed. An open that
/// > detects the replacement earlier switches to the new version by itself.
#[test]
fn a_file_that_was_replaced_after_it_was_fetched_ahead_is_read_as_it_was_no_longer_than_its_name_is_believed() {
    const FILES: usize = 40;
    const TTL: Duration = Duration::from_secs(2);
    for place in 0..2 {
        let bucket = bucket(FILES);
        let worker_ttl = Setup::of(&bucket).options(&["network.shared_memory=off", "metadata.ttl=2s"]);
        let (_worker, mount) = match place {
            0 => (None, Setup::of(&bucket).option("metadata.ttl=2s").up(&bucket)),
            _ => {
                let worker = worker_ttl.worker(&bucket);
                let elsewhere = Setup::of_user().options(&["network.shared_memory=off", "metadata.ttl=2s"]);
                let mount = elsewhere.mount(std::slice::from_ref(&worker));
                (Some(worker), mount)
            }
        };
        assert_eq!(list(&mount.path("d")).len(), FILES);
        (0..10).for_each(|at| assert!(is_right(&read(&mount, at), data(at)), "{}", key(at)));
        eventually("all files are fetched ahead", SOON, || bucket.gets() == FILES as u64);
        bucket.put(&key(12), data(999), SIZE);
        let replaced = Instant::now();
        eventually("the file is read as it is now", SOON, || {
            let opened = Instant::now();
            match std::fs::read(mount.path(&key(12))) {
                Ok(bytes) if is_right(&bytes, data(999)) => true,
                Ok(bytes) => {
                    assert!(is_right(&bytes, data(12)), "a mix of versions");
                    assert!(opened < replaced + TTL, "read as it was {:?} after it was replaced", opened - replaced);
                    false
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(estale()), "{error}");
                    false
                }
            }
        });
        assert!(is_right(&read(&mount, 12), data(999)));
    }
}

fn estale() -> i32 {
    rustix::io::Errno::STALE.raw_os_error()
}
