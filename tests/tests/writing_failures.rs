//! When what was written cannot be uploaded: the program is told, the data is kept, and a user can see to it after a
//! crash of any of the processes.

use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_e2e::{Bucket, Mount, Setup, Worker, close, eventually, finish};
use forebay_testkit::{DataSet, Fault};
use rustix::io::Errno;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(600);
const MIB: u64 = 1 << 20;
/// A worker that gives an origin up soon that refuses, and not one that is slow.
const IMPATIENT: [&str; 1] = ["origin.retry.max_attempts=2"];
/// Of one part, and of several.
const SIZES: [u64; 2] = [MIB + 5, 21 * MIB + 5];

#[track_caller]
fn assert_object(bucket: &Bucket, key: &str, data: DataSet, size: u64) {
    let object = bucket.object(key);
    assert_eq!(object.len() as u64, size, "{key}");
    assert_eq!(data.first_difference(0, &object), None, "{key}");
}

/// What is staged when `count` files are that could not be uploaded: a moment after they were closed.
#[track_caller]
fn failed(mount: &Mount, count: usize) -> Vec<Value> {
    let mut staged = Vec::new();
    let deadline = Instant::now() + SOON;
    while staged.len() != count || staged.iter().any(|entry: &Value| entry["state"] != "failed") {
        assert!(Instant::now() < deadline, "not {count} that failed: {staged:?}");
        staged = mount.staged();
    }
    staged
}

fn text<'a>(staged: &'a Value, field: &str) -> &'a str {
    staged[field].as_str().unwrap_or_else(|| panic!("no {field} in {staged}"))
}

#[test]
fn a_close_whose_upload_fails_says_so_and_keeps_the_file_for_another_try() {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let data = DataSet::new(400 + seed as u64);
        let bucket = Bucket::new();
        bucket.put("old", DataSet::new(1), 1000);
        let mount = Setup::of(&bucket).options(&IMPATIENT).up(&bucket);
        assert_eq!(mount.path("old").metadata().unwrap().len(), 1000);
        let files = ["new", "old"].map(|name| File::create(mount.path(name)).unwrap());
        bucket.proxy().stop();
        for mut file in files {
            file.write_all(&data.expected(0..size)).unwrap();
            let error = close(file).expect_err("there is no server");
            assert_eq!(Errno::from_io_error(&error), Some(Errno::IO), "{error}");
        }
        let staged = failed(&mount, 2);
        for entry in &staged {
            assert_eq!(entry["size"].as_u64(), Some(size), "{entry}");
            assert!(!text(entry, "reason").is_empty() && text(entry, "of").ends_with(mount.root().to_str().unwrap()));
            assert!(std::path::Path::new(text(entry, "file")).starts_with(mount.staging()), "{entry}");
        }
        let refused = mount.fs_staged(&["retry", "--all"], &[]);
        refused.failed(4, &["/new", "was not uploaded"]);
        assert_eq!(mount.staged().len(), 2, "what was not uploaded stays");

        bucket.proxy().resume().unwrap();
        assert!(!bucket.path_of("new").exists());
        assert_eq!(mount.path("old").metadata().unwrap().len(), 1000, "the name shows what the origin has");
        let retried = mount.fs_staged(&["retry", "--all"], &["--json"]).succeeded();
        assert_eq!(retried.text().lines().count(), 2, "{retried:?}");
        assert!(mount.staged().is_empty());
        for name in ["new", "old"] {
            assert_object(&bucket, name, data, size);
            let _ = mount.ask_of(name, &["fs", "refresh"]).succeeded();
            assert_eq!(mount.path(name).metadata().unwrap().len(), size);
        }
        assert!(bucket.server().uploads().is_empty());
        mount.terminate();
        assert!(!mount.log_text().contains("could not be uploaded"), "{}", mount.log_text());
    }
}

#[test]
fn a_sync_that_failed_is_made_up_for_by_the_next_one() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).options(&IMPATIENT).up(&bucket);
    let (data, size) = (DataSet::new(410), 21 * MIB + 5);
    let mut file = File::create(mount.path("file")).unwrap();
    bucket.proxy().inject_changes(1000, Fault::Status(503));
    file.write_all(&data.expected(0..size)).unwrap();
    let error = file.sync_all().expect_err("the origin refuses");
    assert!(error.raw_os_error().is_some(), "{error}");
    assert!(!bucket.path_of("file").exists());
    bucket.proxy().heal();
    file.sync_all().unwrap();
    assert_object(&bucket, "file", data, size);
    drop(file);
    assert!(mount.staged().is_empty());
}

#[test]
fn what_is_refused_for_good_is_a_permission_error_with_a_remedy() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).options(&IMPATIENT).up(&bucket);
    bucket.proxy().inject_changes(1000, Fault::Status(403));
    let mut file = File::create(mount.path("file")).unwrap();
    file.write_all(b"some").unwrap();
    let error = file.sync_all().expect_err("the origin refuses");
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    drop(file);
    let staged = failed(&mount, 1);
    assert!(text(&staged[0], "reason").contains("denied"), "{staged:?}");
    bucket.proxy().heal();
}

/// Begins to write `size` bytes to `name` and leaves the file open; the bytes have reached the mount.
fn begin(mount: &Mount, name: &str, data: DataSet, size: u64) -> File {
    let mut file = File::create(mount.path(name)).unwrap();
    file.write_all(&data.expected(0..size)).unwrap();
    file
}

#[test]
fn what_was_written_to_a_mount_that_is_killed_is_uploaded_after_it_is_mounted_again() {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let data = DataSet::new(420 + seed as u64);
        let bucket = Bucket::new();
        let mut mount = Setup::of(&bucket).up(&bucket);
        let file = begin(&mount, "dir-less", data, size);
        let open = mount.staged();
        assert_eq!(open.len(), 1);
        assert_eq!(text(&open[0], "state"), "open");
        let id = text(&open[0], "id").to_owned();
        mount.fs_staged(&["retry", &id], &[]).failed(6, &["is being written", &mount.pid().to_string()]);
        mount.fs_staged(&["drop", &id], &[]).failed(6, &["is being written"]);

        // An upload whose beginning is not answered yet would be known to no process.
        if size > 10 * MIB {
            eventually("parts go up while it is open", SOON, || bucket.server().parts_of_uploads() > 0);
        }
        mount.kill();
        drop(file);
        let staged = mount.staged();
        assert_eq!(staged.len(), 1);
        assert_eq!((text(&staged[0], "state"), staged[0]["size"].as_u64()), ("unfinished", Some(size)));
        mount.fs_staged(&["retry", &id], &[]).failed(4, &["not mounted", "--workers"]);
        assert!(!bucket.path_of("dir-less").exists());

        let _ = mount.start().succeeded();
        assert!(!mount.path("dir-less").exists());
        let _ = mount.fs_staged(&["retry", &id], &[]).succeeded();
        assert_object(&bucket, "dir-less", data, size);
        assert!(mount.staged().is_empty());
        mount.fs_staged(&["retry", &id], &[]).failed(3, &["nothing is staged as", &id]);
        eventually("nothing of it is left at the server", SOON, || bucket.server().uploads().is_empty());
    }
}

/// A mount of a worker in another process, so that the worker outlives it.
fn of_worker(bucket: &Bucket) -> (Worker, Mount) {
    let worker = Setup::of(bucket).options(&IMPATIENT).worker(bucket);
    let mount = Setup::of_user().mount([&worker]);
    (worker, mount)
}

#[test]
fn what_was_written_to_a_mount_that_is_gone_is_uploaded_through_workers_that_are_named() {
    let bucket = Bucket::new();
    let (worker, mount) = of_worker(&bucket);
    let (data, size) = (DataSet::new(430), 9 * MIB);
    let file = begin(&mount, "file", data, size);
    mount.kill();
    drop(file);
    let cleaned = mount.ask(&["umount"]).succeeded();
    assert!(cleaned.stderr.contains("1 file of") && cleaned.stderr.contains("forebay fs staged ls"), "{cleaned:?}");
    assert_eq!(mount.staged().len(), 1, "it is found by the mountpoint");
    let _ = mount.fs_staged(&["retry", "--all"], &["--workers", &worker.address().to_string()]).succeeded();
    assert_object(&bucket, "file", data, size);
    assert!(mount.staged().is_empty());
}

#[test]
fn what_is_dropped_is_gone_here_and_its_upload_at_the_server() {
    let bucket = Bucket::new();
    let (worker, mount) = of_worker(&bucket);
    let file = begin(&mount, "file", DataSet::new(440), 40 * MIB);
    // Which is after the upload's name was written down.
    eventually("parts go up while it is open", SOON, || bucket.server().parts_of_uploads() > 0);
    mount.kill();
    drop(file);
    assert_eq!(bucket.server().uploads(), ["data/file"]);
    let dropped = mount.fs_staged(&["drop", "--all"], &["--workers", &worker.address().to_string()]).succeeded();
    assert!(dropped.text().contains("/file") && dropped.text().contains("dropped"), "{dropped:?}");
    assert!(mount.staged().is_empty() && bucket.server().uploads().is_empty());
    assert_eq!(
        mount
            .staging()
            .read_dir()
            .unwrap()
            .filter(|entry| { entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().contains(".data")) })
            .count(),
        0
    );
}

#[test]
fn an_unmount_says_what_it_could_not_upload() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).options(&IMPATIENT).up(&bucket);
    bucket.proxy().inject_changes(1000, Fault::Status(503));
    let copied = finish(Command::new("cp").arg("/bin/sh").arg(mount.path("file")), LIMIT);
    assert!(copied.code == Some(1) && copied.stderr.contains("file"), "{copied:?}");
    let unmounted = mount.ask(&["umount"]).succeeded();
    assert!(
        unmounted.stderr.contains("1 file of") && unmounted.stderr.contains("forebay fs staged ls"),
        "{unmounted:?}"
    );
    let log = mount.log_text();
    let said = log.lines().find(|line| line.contains("not everything that was written could be uploaded"));
    assert!(said.is_some_and(|line| line.contains("files=1") && line.contains("forebay fs staged ls")), "{log}");
    assert_eq!(mount.staged().len(), 1);
}

#[test]
fn an_upload_whose_file_is_removed_is_aborted() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).up(&bucket);
    let file = begin(&mount, "file", DataSet::new(460), 40 * MIB);
    // Which is after the upload's name was written down.
    eventually("parts go up while it is open", SOON, || bucket.server().parts_of_uploads() > 0);
    std::fs::remove_file(mount.path("file")).unwrap();
    drop(file);
    eventually("the upload is aborted", SOON, || bucket.server().uploads().is_empty());
    assert!(!bucket.path_of("file").exists() && mount.staged().is_empty());
}
