//! "When a change is visible".

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::{Ends, eventually};

use super::{One, SOON, TTL, Two, bytes, close, errno};

/// > The origin has nothing of a file that is being written before the first `fsync(2)` or `close(2)`.
#[test]
fn a_file_is_not_there_before_it_is_closed() {
    let one = One::new();
    std::fs::write(one.path("old"), b"as it was").unwrap();
    let mut new = File::create(one.path("new")).unwrap();
    let mut old = OpenOptions::new().write(true).truncate(true).open(one.path("old")).unwrap();
    for _ in 0..30 {
        new.write_all(&bytes(1, 1 << 20)).unwrap();
        old.write_all(&bytes(2, 1 << 20)).unwrap();
    }
    // Parts of it are on their way.
    eventually("the first part is at the server", SOON, || one.bucket.server().uploads().len() == 2);
    assert_eq!(one.object("new"), None);
    assert_eq!(one.object("old").unwrap(), b"as it was");
    close(new).unwrap();
    close(old).unwrap();
    assert_eq!(one.object("new").unwrap().len(), 30 << 20);
    assert_eq!(one.object("old").unwrap().len(), 30 << 20);
    assert_eq!(one.bucket.server().uploads().len(), 0);
}

/// > When `fsync(2)` has returned success, the origin has the whole file as it was at that time.
#[test]
fn what_is_synced_is_at_the_origin() {
    let one = One::new();
    let mut file = File::create(one.path("f")).unwrap();
    let mut expected = Vec::new();
    for number in 0..4 {
        let more = bytes(number, 4_500_000);
        file.write_all(&more).unwrap();
        expected.extend(more);
        file.sync_all().unwrap();
        assert!(one.object("f").unwrap() == expected, "{number}");
    }
    file.write_all(b"more").unwrap();
    assert!(one.object("f").unwrap() == expected, "not synced yet");
    drop(file);
}

/// > When `close(2)` of a writable handle has returned success, the origin has the whole file, even if other handles stay open.
#[test]
fn each_close_uploads() {
    let one = One::new();
    let first = File::create(one.path("f")).unwrap();
    let second = OpenOptions::new().write(true).open(one.path("f")).unwrap();
    first.write_all_at(b"by the first", 0).unwrap();
    close(first).unwrap();
    assert_eq!(one.object("f").unwrap(), b"by the first");
    second.write_all_at(b"BY", 0).unwrap();
    close(second).unwrap();
    assert_eq!(one.object("f").unwrap(), b"BY the first");
    drop(File::create(one.path("empty")).unwrap());
    assert_eq!(one.object("empty").unwrap(), b"");
}

/// > If a process inherited a file and neither opened it nor wrote to it, its close uploads nothing, as when a program starts another in the middle of a write.
#[test]
fn a_child_that_closes_what_it_inherited_uploads_nothing() {
    let one = One::new();
    let mut file = File::create(one.path("f")).unwrap();
    file.write_all(b"half").unwrap();
    assert!(std::process::Command::new("true").status().unwrap().success());
    assert!(one.object("f").is_none());
    // A shell that is given the file and writes to it is a writer.
    let appended = file.try_clone().unwrap();
    let shell = std::process::Command::new("sh").args(["-c", "printf %s ' and half'"]).stdout(appended).status();
    assert!(shell.unwrap().success());
    assert_eq!(one.object("f").unwrap(), b"half and half");
    close(file).unwrap();
}

/// > On the same mount, a new file is listed and found as soon as it is created.
#[test]
fn a_new_file_is_there_on_its_mount() {
    let one = One::new();
    std::fs::create_dir(one.path("d")).unwrap();
    std::fs::write(one.path("d/old"), b"").unwrap();
    assert_eq!(names(&one.path("d")), ["old"]);
    let mut file = File::create(one.path("d/new")).unwrap();
    file.write_all(b"text").unwrap();
    assert_eq!(names(&one.path("d")), ["new", "old"]);
    assert_eq!(std::fs::metadata(one.path("d/new")).unwrap().len(), 4);
    assert_eq!(std::fs::read(one.path("d/new")).unwrap(), b"text");
    close(file).unwrap();
    assert_eq!(names(&one.path("d")), ["new", "old"]);
    std::fs::remove_file(one.path("d/new")).unwrap();
    assert_eq!(names(&one.path("d")), ["old"]);
    assert_eq!(errno(std::fs::metadata(one.path("d/new"))), libc::ENOENT);
}

fn names(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// > Another mount sees what was written, created, renamed or removed within `metadata.ttl`.
#[test]
fn another_mount_sees_it_within_the_ttl() {
    let two = Two::new();
    // Two times: the worker's answer may have been half as old when the mount got it.
    let soon = |what: &str, condition: &dyn Fn() -> bool| {
        let began = Instant::now();
        eventually(what, SOON, condition);
        assert!(began.elapsed() < 2 * TTL + Duration::from_secs(15), "{what}: {:?}", began.elapsed());
    };
    let (a, b) = (|name: &str| two.a.path(name), |name: &str| two.b.path(name));
    assert!(!b("f").exists());
    std::fs::write(a("f"), b"one").unwrap();
    soon("created", &|| b("f").exists());
    assert_eq!(std::fs::read(b("f")).unwrap(), b"one");
    std::fs::write(a("f"), b"second").unwrap();
    soon("written", &|| std::fs::read(b("f")).unwrap() == b"second");
    std::fs::rename(a("f"), a("g")).unwrap();
    soon("renamed", &|| !b("f").exists() && b("g").exists());
    assert_eq!(names(&b("")), ["g"]);
    std::fs::remove_file(a("g")).unwrap();
    soon("removed", &|| !b("g").exists());
    std::fs::create_dir(a("d")).unwrap();
    soon("a directory", &|| names(&b("")) == ["d"]);
}

/// > After `forebay fs refresh PATH`, a mount sees the change at once.
#[test]
fn a_refreshed_mount_sees_it_at_once() {
    let two = Two::believing(Duration::from_secs(600));
    std::fs::create_dir(two.a.path("d")).unwrap();
    std::fs::write(two.a.path("d/f"), b"old").unwrap();
    assert_eq!(std::fs::read(two.b.path("d/f")).unwrap(), b"old");
    assert_eq!(names(&two.b.path("d")), ["f"]);
    std::fs::write(two.a.path("d/f"), b"written by the other mount").unwrap();
    assert_eq!(std::fs::read(two.b.path("d/f")).unwrap(), b"old", "believed for ten minutes");
    let _ = two.b.ask_of("d/f", &["fs", "refresh"]).succeeded();
    assert_eq!(std::fs::read(two.b.path("d/f")).unwrap(), b"written by the other mount");
    // Also what was changed past all of Forebay, and the names of a directory.
    assert_eq!(names(&two.b.path("d")), ["f"]);
    two.bucket.put_text("d/f", "replaced in the bucket");
    two.bucket.put_text("d/more", "more");
    assert_eq!(names(&two.b.path("d")), ["f"]);
    let _ = two.b.ask_of("d", &["fs", "refresh", "--recursive"]).succeeded();
    assert_eq!(std::fs::read(two.b.path("d/f")).unwrap(), b"replaced in the bucket");
    assert_eq!(names(&two.b.path("d")), ["f", "more"]);
    drop(two.worker);
}

/// > A reader on another mount never sees a mix of versions while a file is replaced again and again.
#[test]
fn a_reader_never_sees_a_mix() {
    let two = Two::believing(Duration::from_millis(50));
    const SIZE: usize = 9 << 20;
    let version = |number: u64| vec![number as u8; SIZE];
    std::fs::write(two.a.path("f"), version(1)).unwrap();
    let (done, reads, seen) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // Also where the writer fails: the readers are waited for.
        let _ends = Ends(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    match std::fs::read(two.b.path("f")) {
                        Ok(bytes) => {
                            assert_eq!(bytes.len(), SIZE);
                            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mix of versions");
                            seen.fetch_max(u64::from(bytes[0]), Ordering::Relaxed);
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}"),
                    }
                }
            });
        }
        let deadline = Instant::now() + Duration::from_secs(8);
        let mut number = 1;
        while Instant::now() < deadline && number < 250 {
            number += 1;
            std::fs::write(two.a.path("f"), version(number)).unwrap();
            assert_eq!(two.object("f").unwrap().len(), SIZE);
        }
        // On a busy machine few reads end while it is written.
        eventually("the last version is read, and it was read before", SOON, || {
            seen.load(Ordering::Relaxed) == number && reads.load(Ordering::Relaxed) > 3
        });
    });
}

/// > When two mounts write one file, the one that closes last wins, with its whole file.
#[test]
fn the_last_close_wins() {
    let two = Two::new();
    let (first, last) = (bytes(1, 9 << 20), bytes(2, 8 << 20));
    let (a, b) = (File::create(two.a.path("f")).unwrap(), File::create(two.b.path("f")).unwrap());
    b.write_all_at(&last, 0).unwrap();
    a.write_all_at(&first, 0).unwrap();
    close(a).unwrap();
    assert!(two.object("f").unwrap() == first);
    close(b).unwrap();
    assert!(two.object("f").unwrap() == last);
    eventually("the first writer sees the last's", SOON, || std::fs::read(two.a.path("f")).is_ok_and(|f| f == last));
}

/// > `O_EXCL` lets exactly one process of a mount create a file. Between mounts it is checked against the origin, but two at the same moment may both succeed.
#[test]
fn exclusive_creation() {
    let two = Two::believing(Duration::from_secs(600));
    let start = Barrier::new(8);
    let created = AtomicU64::new(0);
    let exclusively = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                match exclusively(&two.a.path("f")) {
                    Ok(file) => {
                        created.fetch_add(1, Ordering::Relaxed);
                        close(file).unwrap();
                    }
                    Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EEXIST)),
                }
            });
        }
    });
    assert_eq!(created.load(Ordering::Relaxed), 1);
    // What the other mount believes of the name does not count.
    assert!(!two.b.path("g").exists());
    std::fs::write(two.a.path("g"), b"").unwrap();
    assert_eq!(errno(exclusively(&two.b.path("g"))), libc::EEXIST);
}
