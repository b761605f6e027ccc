//! "Failures and crashes".

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use forebay_e2e::{eventually, finish, forebay};
use serde_json::Value;

use super::{One, SOON, bytes, close, errno};

/// A mount that gives an origin up soon that refuses, and not one that is slow.
fn impatient() -> One {
    One::with(|setup| setup.option("origin.retry.max_attempts=2"))
}

/// What `forebay fs staged ls` says.
fn staged(one: &One) -> Vec<Value> {
    let directory = one.staging.path().to_str().unwrap();
    let answer = finish(forebay(&[]).args(["fs", "staged", "ls", "--json", directory]), SOON).succeeded();
    answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// > When an upload fails, `fsync(2)` and `close(2)` return the error, and the next `fsync(2)` or `close(2)` tries again.
#[test]
fn a_failed_upload_is_told_and_tried_again() {
    let one = impatient();
    let content = bytes(1, 9 << 20);
    let file = File::create(one.path("f")).unwrap();
    let duplicate = file.try_clone().unwrap();
    file.write_all_at(&content, 0).unwrap();
    one.bucket.proxy().stop();
    assert_eq!(errno(file.sync_all()), libc::EIO);
    assert_eq!(errno(close(file)), libc::EIO);
    assert!(one.object("f").is_none());
    one.bucket.proxy().resume().unwrap();
    duplicate.sync_all().unwrap();
    assert!(one.object("f").unwrap() == content);
    close(duplicate).unwrap();
    assert!(staged(&one).is_empty());
}

/// > A file that could not be uploaded when its last handle was closed stays in the staging directory: `forebay fs staged ls` lists it, `retry` uploads it, `drop` discards it.
#[test]
fn what_could_not_be_uploaded_stays_staged() {
    let one = impatient();
    one.bucket.put_text("kept", "as it was");
    let content = bytes(2, 6 << 20);
    let files = ["f", "kept"].map(|name| File::create(one.path(name)).unwrap());
    for file in &files {
        file.write_all_at(&content, 0).unwrap();
    }
    one.bucket.proxy().stop();
    for file in files {
        assert_eq!(errno(close(file)), libc::EIO);
    }
    eventually("both are listed", SOON, || staged(&one).iter().filter(|file| file["state"] == "failed").count() == 2);
    one.bucket.proxy().resume().unwrap();
    eventually("the names show what the origin has", SOON, || {
        !one.path("f").exists() && std::fs::read(one.path("kept")).is_ok_and(|bytes| bytes == b"as it was")
    });
    let listed = staged(&one);
    let id = |path: &str| listed.iter().find(|file| file["path"] == path).unwrap()["id"].as_str().unwrap().to_owned();
    let (root, directory) = (one.mount.root(), one.staging.path());
    let act = |arguments: &[&str]| {
        finish(forebay(&[]).args(["fs", "staged"]).args(arguments).arg("--of").arg(&root), SOON).succeeded()
    };
    act(&["retry", &id("/f")]);
    act(&["drop", "--yes", &id("/kept")]);
    assert!(staged(&one).is_empty());
    assert!(one.object("f").unwrap() == content);
    eventually("the uploaded file shows", SOON, || std::fs::read(one.path("f")).is_ok_and(|bytes| bytes == content));
    assert_eq!(one.object("kept").unwrap(), b"as it was");
    assert_eq!(std::fs::read_dir(directory).unwrap().filter(is_data).count(), 0);
}

fn is_data(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "data")
}

/// > When the mount's process is killed, every file whose `close(2)` or `fsync(2)` had succeeded is at the origin, and `forebay fs staged ls` lists the files that were being written.
#[test]
fn a_killed_mount() {
    let mut one = One::new();
    let content = bytes(3, 12 << 20);
    std::fs::write(one.path("closed"), &content).unwrap();
    let synced = File::create(one.path("synced")).unwrap();
    synced.write_all_at(&content, 0).unwrap();
    synced.sync_all().unwrap();
    let unfinished = File::create(one.path("unfinished")).unwrap();
    unfinished.write_all_at(&content, 0).unwrap();
    one.mount.kill();
    assert!(one.object("closed").unwrap() == content && one.object("synced").unwrap() == content);
    assert!(one.object("unfinished").is_none());
    let listed = staged(&one);
    let found = listed.iter().find(|file| file["path"] == "/unfinished").expect("it is listed");
    assert_eq!(found["state"], "unfinished", "{found}");
    drop((synced, unfinished));
    let _ = one.mount.start().succeeded();
    let root = one.mount.root();
    let id = found["id"].as_str().unwrap();
    let _ = finish(forebay(&[]).args(["fs", "staged", "retry", id, "--of"]).arg(&root), SOON).succeeded();
    assert!(one.object("unfinished").unwrap() == content);
}

/// > A multipart upload that is given up is aborted at the origin.
#[test]
fn abandoned_uploads_are_aborted() {
    let one = One::new();
    let file = File::create(one.path("f")).unwrap();
    for piece in 0..30 {
        file.write_all_at(&bytes(piece, 1 << 20), piece << 20).unwrap();
    }
    eventually("an upload is under way", SOON, || one.bucket.server().uploads().len() == 1);
    std::fs::remove_file(one.path("f")).unwrap();
    eventually("it is aborted", SOON, || one.bucket.server().uploads().is_empty());
    close(file).unwrap();
    assert!(one.object("f").is_none());
}

/// > The staging directory never holds more than `write.staging_size`: writers wait for uploads, and get `ENOSPC` after `write.timeout`.
#[test]
fn a_full_staging_directory() {
    let one = One::with(|setup| {
        let setup = setup.option("write.staging_size=128MiB");
        // So long a writer waits for room, and so long a part that goes up later may take.
        setup.options(&["write.timeout=15s", "origin.retry.deadline=10s", "client.request_timeout=60s"])
    });
    let file = File::create(one.path("f")).unwrap();
    one.bucket.proxy().stop();
    let piece = bytes(4, 1 << 20);
    let failed = (0..200u64).find_map(|number| file.write_all_at(&piece, number << 20).err().map(|why| (number, why)));
    let (number, error) = failed.expect("the directory is full");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!((120..=128).contains(&number), "after {number} MiB");
    one.bucket.proxy().resume().unwrap();
    eventually("there is room again", Duration::from_secs(60), || file.write_all_at(&piece, number << 20).is_ok());
    close(file).unwrap();
    assert_eq!(one.object("f").unwrap().len() as u64, (number + 1) << 20);
}
