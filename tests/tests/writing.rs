//! Files that are written through a mount: whole at the origin when they are closed, and seen by others when they should be.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_e2e::reading;
use forebay_e2e::{Bucket, Ends, Fio, Mount, Setup, TwoMounts, eventually, is_root};
use forebay_testkit::DataSet;
use rustix::io::Errno;

const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn errno_of(error: &std::io::Error) -> Option<Errno> {
    Errno::from_io_error(error)
}

#[test]
fn a_file_is_at_the_origin_whole_when_it_is_closed_and_not_before() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).up(&bucket);
    for (name, size) in [("small", 5), ("empty", 0), ("several parts", 21 * MIB + 7)] {
        let data = DataSet::new(500 + size);
        let mut file = File::create(mount.path(name)).unwrap();
        file.write_all(&data.expected(0..size)).unwrap();
        assert!(!bucket.path_of(name).exists(), "{name} is open");
        reading::verify(&mount.path(name), data, size);
        drop(file);
        assert_eq!(data.first_difference(0, &bucket.object(name)), None);
        assert_eq!(bucket.object(name).len() as u64, size);
        reading::verify(&mount.path(name), data, size);
    }
    assert!(mount.staged().is_empty() && bucket.server().uploads().is_empty());
}

#[test]
fn a_synced_file_is_at_the_origin_while_it_stays_open() {
    let bucket = Bucket::new();
    let mount = Setup::of(&bucket).up(&bucket);
    let mut file = File::create(mount.path("log")).unwrap();
    let mut expected = Vec::new();
    for line in ["one\n", "two\n", "three\n"] {
        file.write_all(line.as_bytes()).unwrap();
        file.sync_all().unwrap();
        expected.extend_from_slice(line.as_bytes());
        assert_eq!(bucket.object("log"), expected);
    }
}

#[test]
fn a_part_of_a_file_is_changed_and_the_rest_stays_as_it_was() {
    let bucket = Bucket::new();
    let (data, size) = (DataSet::new(510), 30 * MIB);
    bucket.put("file", data, size);
    let mount = Setup::of(&bucket).up(&bucket);
    let mut expected = data.expected(0..size).to_vec();
    let file = OpenOptions::new().read(true).write(true).open(mount.path("file")).unwrap();
    for (at, length) in [(0, 1), (5 * MIB - 3, 7), (17 * MIB, 2 * MIB), (size - 1, 1)] {
        let bytes = DataSet::new(511).expected(at..at + length);
        file.write_all_at(&bytes, at).unwrap();
        expected[at as usize..(at + length) as usize].copy_from_slice(&bytes);
    }
    drop(file);
    assert!(bucket.object("file") == expected);
    let mut file = OpenOptions::new().append(true).open(mount.path("file")).unwrap();
    file.write_all(b"the end").unwrap();
    drop(file);
    expected.extend_from_slice(b"the end");
    assert!(bucket.object("file") == expected);
    OpenOptions::new().write(true).open(mount.path("file")).unwrap().set_len(12 * MIB).unwrap();
    expected.truncate(12 * MIB as usize);
    assert!(bucket.object("file") == expected);
}

#[test]
fn fio_verifies_through_another_mount_what_it_wrote_through_one() {
    let Some(fio) = Fio::find() else { return };
    let bucket = Bucket::new();
    let worker = Setup::of(&bucket).worker(&bucket);
    let mut far = Setup::of_user().mount([&worker]);
    let near = Setup::of_user().mount([&worker]);
    for (rw, bs, engine) in [("write", "1M", "libaio"), ("randwrite", "64k", "psync"), ("randwrite", "4k", "mmap")] {
        let name = format!("{rw}-{bs}");
        let run = |mount: &Mount, more: &[&str]| {
            let filename = format!("--filename={}", mount.path(&name).display());
            let (rw, bs, engine) = (format!("--rw={rw}"), format!("--bs={bs}"), format!("--ioengine={engine}"));
            let fixed = [
                "--name=verify",
                "--size=32M",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                &filename,
                &rw,
                &bs,
                &engine,
            ];
            [&fixed[..], more].concat().iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>()
        };
        let write = run(&near, &["--do_verify=0", "--end_fsync=1"]);
        fio.write(&write.iter().map(String::as_str).collect::<Vec<_>>());
        far.terminate();
        let _ = far.start().succeeded();
        let verify = run(&far, &["--verify_only"]);
        fio.verify(&verify.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn a_change_is_seen_at_once_by_the_same_mount_and_soon_by_another() {
    let ttl = Duration::from_secs(2);
    let mounts = TwoMounts::new(&["metadata.ttl=2s"]);
    let seen = |mount: &Mount| std::fs::read(mount.path("file")).ok();
    let listed = |mount: &Mount| mount.root().read_dir().unwrap().count();
    for content in [Some("one"), Some("two, longer"), None, Some("three")] {
        // The other mount knows what is there now, and believes it for a while.
        let (before, _) = (seen(&mounts.far), listed(&mounts.far));
        match content {
            Some(content) => std::fs::write(mounts.near.path("file"), content).unwrap(),
            None => std::fs::remove_file(mounts.near.path("file")).unwrap(),
        }
        let changed = Instant::now();
        let content = content.map(|content| content.as_bytes().to_vec());
        assert_eq!(seen(&mounts.near), content);
        assert_eq!(listed(&mounts.near), usize::from(content.is_some()));
        eventually("the other mount sees it", SOON, || {
            let now = seen(&mounts.far);
            assert!(now == content || now == before, "neither the old content nor the new: {now:?}");
            now == content && listed(&mounts.far) == usize::from(content.is_some())
        });
        let took = changed.elapsed();
        assert!(took < ttl + Duration::from_secs(15), "{took:?}, although attributes are believed for {ttl:?}");
    }
}

#[test]
fn a_refresh_shows_another_mount_at_once_what_it_would_have_believed_for_an_hour() {
    let mounts = TwoMounts::new(&["metadata.ttl=1h"]);
    let refresh = |arguments: &[&str], path: &str| {
        let _ = mounts.far.ask_of(path, &[&["fs", "refresh"], arguments].concat()).succeeded();
    };
    std::fs::create_dir(mounts.near.path("dir")).unwrap();
    std::fs::write(mounts.near.path("dir/file"), "old").unwrap();
    refresh(&["-r"], "");
    assert_eq!(std::fs::read(mounts.far.path("dir/file")).unwrap(), b"old");

    // Written by another mount.
    std::fs::write(mounts.near.path("dir/file"), "newer").unwrap();
    assert_eq!(mounts.far.path("dir/file").metadata().unwrap().len(), 3, "it is believed");
    refresh(&[], "dir/file");
    assert_eq!(std::fs::read(mounts.far.path("dir/file")).unwrap(), b"newer");

    // Written by a program that knows nothing of us.
    mounts.bucket.put_text("dir/file", "from elsewhere");
    refresh(&[], "dir/file");
    assert_eq!(std::fs::read(mounts.far.path("dir/file")).unwrap(), b"from elsewhere");

    // A name that was not there.
    assert!(!mounts.far.path("dir/other").exists());
    mounts.bucket.put_text("dir/other", "1");
    refresh(&["--recursive"], "dir");
    assert_eq!(mounts.far.path("dir").read_dir().unwrap().count(), 2);
    assert_eq!(std::fs::read(mounts.far.path("dir/other")).unwrap(), b"1");
    let told = mounts.far.ask_of("dir", &["fs", "refresh", "-r", "--json"]).succeeded();
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["workers"], 1);
    assert!(told["names"].as_u64().is_some_and(|names| names >= 1), "{told}");
}

/// What the file is filled with the `round`th time.
fn filling(round: u64) -> (u8, usize) {
    ((round % 251) as u8, (1 + round % 3) as usize * 1_500_000)
}

/// Reads a file whole, and says which round's content that is; `None` where the version went away under the reader.
fn round_of(path: &Path) -> Option<u8> {
    let read = || -> std::io::Result<(u64, Vec<u8>)> {
        let mut bytes = Vec::new();
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        file.read_to_end(&mut bytes)?;
        Ok((size, bytes))
    };
    let (size, bytes) = match read() {
        Ok(read) => read,
        Err(error) => {
            assert_eq!(errno_of(&error), Some(Errno::STALE), "{error}");
            return None;
        }
    };
    let first = bytes[0];
    assert!(bytes.iter().all(|byte| *byte == first), "two versions in one file");
    let is_whole = (0..251 * 3).any(|round| filling(round) == (first, bytes.len()));
    assert!(is_whole, "{} bytes of {first}, of a file of {size}", bytes.len());
    Some(first)
}

#[test]
fn a_reader_never_sees_a_mix_while_a_writer_replaces_the_file_again_and_again() {
    let mounts = TwoMounts::new(&["metadata.ttl=50ms"]);
    let write = |round: u64| {
        let (byte, length) = filling(round);
        // In turns: all anew, and over what is there.
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(round.is_multiple_of(2))
            .open(mounts.near.path("file"));
        let file = file.as_mut().unwrap();
        file.write_all(&vec![byte; length]).unwrap();
        file.set_len(length as u64).unwrap();
        file.sync_all().unwrap();
    };
    write(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also where the writer fails: the readers are waited for.
        let _ends = Ends(&done);
        let readers = [&mounts.near, &mounts.far, &mounts.far].map(|mount| {
            let (done, path) = (&done, mount.path("file"));
            let is_near = std::ptr::eq(mount, &mounts.near);
            scope.spawn(move || {
                let mut rounds = std::collections::BTreeSet::new();
                while !done.load(Ordering::Relaxed) {
                    // The same mount sees what is being written: that is one file, not two versions.
                    if is_near {
                        let mut byte = [0];
                        let _ = File::open(&path).and_then(|mut file| file.read(&mut byte)).unwrap();
                        continue;
                    }
                    rounds.extend(round_of(&path));
                }
                (is_near, rounds.len())
            })
        });
        (1..60).for_each(write);
        done.store(true, Ordering::Relaxed);
        for reader in readers {
            let (is_near, versions) = reader.join().unwrap();
            assert!(is_near || versions > 3, "the reader saw only {versions} versions");
        }
    });
    let last = filling(59);
    assert!(mounts.bucket.object("file") == vec![last.0; last.1]);
}

#[test]
fn an_open_reader_keeps_its_version_or_is_told_that_it_is_gone() {
    let mounts = TwoMounts::new(&[]);
    std::fs::write(mounts.near.path("file"), vec![1; 3_000_000]).unwrap();
    let mut reader = File::open(mounts.far.path("file")).unwrap();
    let mut first = vec![0; 4096];
    reader.read_exact(&mut first).unwrap();
    std::fs::write(mounts.near.path("file"), vec![2; 3_000_000]).unwrap();
    reader.seek(SeekFrom::Start(0)).unwrap();
    let mut rest = Vec::new();
    match reader.read_to_end(&mut rest) {
        Ok(_) => assert!(rest == vec![1; 3_000_000]),
        Err(error) => {
            assert_eq!(errno_of(&error), Some(Errno::STALE), "{error}");
            assert!(rest.iter().all(|byte| *byte == 1));
        }
    }
}

#[test]
fn a_mount_or_a_worker_that_takes_no_writes_refuses_them() {
    let bucket = Bucket::new();
    bucket.put_text("file", "1");
    let refusals = |mount: &Mount| {
        let path = mount.path("file");
        let errors = [
            File::create(mount.path("new")).and_then(|file| file.sync_all()),
            OpenOptions::new().write(true).open(&path).map(drop),
            std::fs::remove_file(&path),
            std::fs::rename(&path, mount.path("other")),
            std::fs::create_dir(mount.path("dir")),
        ];
        errors.map(|error| errno_of(&error.expect_err("nothing can be changed")))
    };
    let mount = Setup::of(&bucket).flag("--read-only").up(&bucket);
    assert_eq!(refusals(&mount), [Some(Errno::ROFS); 5]);
    assert_eq!(std::fs::read(mount.path("file")).unwrap(), b"1");
    let worker = Setup::of(&bucket).option("write.mode=none").worker(&bucket);
    let mount = Setup::of_user().mount([&worker]);
    // The mode bits show it, and the kernel asks them first if we are not root.
    let refused = if is_root() { Errno::ROFS } else { Errno::ACCESS };
    assert_eq!(refusals(&mount), [Some(refused); 5]);
    assert_eq!(bucket.object("file"), b"1");
    assert_eq!(
        bucket.proxy().counts().requests.keys().filter(|method| !["GET", "HEAD"].contains(&&***method)).count(),
        0
    );
}
