//! "Renaming".

use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Command;

use forebay_e2e::{Bucket, Setup, finish};

use super::{One, SOON, Two, bytes, close, errno};

/// > `rename(2)` of a file replaces the file at the new name at once, and the old name is gone when it returns.
#[test]
fn a_file_replaces_another() {
    let one = One::new();
    let content = bytes(1, 9 << 20);
    std::fs::write(one.path("from"), &content).unwrap();
    std::fs::write(one.path("to"), b"replaced").unwrap();
    let ino = std::fs::metadata(one.path("from")).unwrap().ino();
    std::fs::rename(one.path("from"), one.path("to")).unwrap();
    assert!(one.object("to").unwrap() == content && one.object("from").is_none());
    assert!(std::fs::read(one.path("to")).unwrap() == content);
    assert_eq!(std::fs::metadata(one.path("to")).unwrap().ino(), ino);
    assert_eq!(errno(std::fs::metadata(one.path("from"))), libc::ENOENT);
    std::fs::create_dir(one.path("d")).unwrap();
    assert_eq!(errno(std::fs::rename(one.path("to"), one.path("d"))), libc::EISDIR);
    assert_eq!(errno(std::fs::rename(one.path("d"), one.path("to"))), libc::ENOTDIR);
    assert_eq!(errno(std::fs::rename(one.path("nothing"), one.path("to"))), libc::ENOENT);
    std::fs::rename(one.path("to"), one.path("d/moved")).unwrap();
    assert!(one.object("d/moved").unwrap() == content);
}

/// > A file can be renamed while it is open, and its handles stay valid.
#[test]
fn an_open_file_is_renamed() {
    let one = One::new();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(one.path("a")).unwrap();
    file.write_all_at(b"one two", 0).unwrap();
    std::fs::rename(one.path("a"), one.path("b")).unwrap();
    assert_eq!(one.object("b").unwrap(), b"one two");
    let reader = std::fs::File::open(one.path("b")).unwrap();
    file.write_all_at(b"three", 8).unwrap();
    let mut read = [0; 13];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"one two\0three");
    close(file).unwrap();
    assert_eq!(one.object("b").unwrap(), b"one two\0three");
    assert!(one.object("a").is_none());
    std::fs::rename(one.path("b"), one.path("c")).unwrap();
    reader.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"one two\0three");
}

#[test]
fn what_another_mount_has_put_there_is_not_mixed_with_what_is_written_here() {
    let two = Two::new();
    let (old, new) = (bytes(1, 1000), bytes(2, 2000));
    std::fs::write(two.a.path("f"), &old).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(two.a.path("f")).unwrap();
    std::fs::write(two.b.path("f"), &new).unwrap();
    assert_eq!(errno(std::fs::rename(two.a.path("f"), two.a.path("g"))), libc::ESTALE);
    assert!(two.object("f").unwrap() == new, "theirs stays");
    let written = file.write_all_at(b"x", 0).and_then(|()| close(file));
    let ours = [b"x", &old[1..]].concat();
    let expected = if written.is_ok() { &ours } else { &new };
    assert!(two.object("f").unwrap() == *expected && two.object("g").is_none_or(|copy| copy == new));
}

#[test]
fn a_log_that_is_renamed_while_it_is_written_and_synced_loses_nothing() {
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    let one = One::new();
    let mut log = std::fs::File::create(one.path("0")).unwrap();
    let done = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0u32;
            while !done.load(Ordering::Relaxed) {
                writeln!(log, "line {written}").unwrap();
                log.sync_all().unwrap();
                written += 1;
            }
            written
        });
        for number in 0..20 {
            std::fs::rename(one.path(&number.to_string()), one.path(&(number + 1).to_string())).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    let expected: String = (0..written).map(|number| format!("line {number}\n")).collect();
    assert_eq!(String::from_utf8(one.object("20").unwrap()).unwrap(), expected);
    assert_eq!(std::fs::read_dir(one.mount.root()).unwrap().count(), 1, "no other name has come back");
    close(log).unwrap();
}

/// > `rename(2)` of a directory moves everything below it.
#[test]
fn a_directory_is_renamed() {
    let one = One::new();
    std::fs::create_dir_all(one.path("from/deep/er")).unwrap();
    std::fs::create_dir(one.path("from/empty")).unwrap();
    for number in 0..30u64 {
        let name = if number % 2 == 0 { format!("from/{number}") } else { format!("from/deep/er/{number}") };
        std::fs::write(one.path(&name), bytes(number, 1000)).unwrap();
    }
    one.bucket.put_text("from/implied/file", "not made here");
    let unsaved = OpenOptions::new().write(true).create_new(true).open(one.path("from/deep/unsaved")).unwrap();
    unsaved.write_all_at(b"before", 0).unwrap();
    let reader = std::fs::File::open(one.path("from/0")).unwrap();
    std::fs::rename(one.path("from"), one.path("to")).unwrap();
    unsaved.write_all_at(b"AFTER", 0).unwrap();
    close(unsaved).unwrap();
    assert_eq!(errno(std::fs::metadata(one.path("from"))), libc::ENOENT);
    assert!(!one.bucket.path_of("from").exists());
    for number in 0..30u64 {
        let name = if number % 2 == 0 { format!("to/{number}") } else { format!("to/deep/er/{number}") };
        assert!(std::fs::read(one.path(&name)).unwrap() == bytes(number, 1000), "{name}");
        assert!(one.object(&name).unwrap() == bytes(number, 1000), "{name}");
    }
    assert_eq!(one.object("to/deep/unsaved").unwrap(), b"AFTERe");
    assert_eq!(std::fs::read(one.path("to/implied/file")).unwrap(), b"not made here");
    assert!(one.path("to/empty").is_dir());
    let mut read = vec![0; 1000];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes(0, 1000), "a handle from before goes on");
    // The old name is free again.
    std::fs::create_dir(one.path("from")).unwrap();
    std::fs::write(one.path("from/new"), b"x").unwrap();
    assert_eq!(std::fs::read_dir(one.path("from")).unwrap().count(), 1);
    assert_eq!(errno(std::fs::rename(one.path("from"), one.path("from/inside"))), libc::EINVAL);
}

/// > A directory that is not empty is not replaced: `ENOTEMPTY`.
#[test]
fn only_an_empty_directory_is_replaced() {
    let one = One::new();
    for directory in ["from", "to"] {
        std::fs::create_dir(one.path(directory)).unwrap();
        std::fs::write(one.path(directory).join("f"), directory).unwrap();
    }
    assert_eq!(errno(std::fs::rename(one.path("from"), one.path("to"))), libc::ENOTEMPTY);
    assert_eq!(one.object("to/f").unwrap(), b"to");
    std::fs::remove_file(one.path("to/f")).unwrap();
    std::fs::rename(one.path("from"), one.path("to")).unwrap();
    assert_eq!(std::fs::read(one.path("to/f")).unwrap(), b"from");
}

fn renameat2(from: &Path, to: &Path, flags: libc::c_uint) -> std::io::Result<()> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap();
    let (from, to) = (path(from), path(to));
    // SAFETY: both end with a NUL and live for as long as the call.
    match unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// > `RENAME_NOREPLACE` fails with `EEXIST` if the new name exists; `RENAME_EXCHANGE` fails with `EINVAL`.
#[test]
fn renaming_with_flags() {
    let one = One::new();
    std::fs::write(one.path("a"), b"a").unwrap();
    std::fs::write(one.path("b"), b"b").unwrap();
    assert_eq!(errno(renameat2(&one.path("a"), &one.path("b"), libc::RENAME_NOREPLACE)), libc::EEXIST);
    assert_eq!(errno(renameat2(&one.path("a"), &one.path("b"), libc::RENAME_EXCHANGE)), libc::EINVAL);
    renameat2(&one.path("a"), &one.path("c"), libc::RENAME_NOREPLACE).unwrap();
    assert_eq!((one.object("c").unwrap(), one.object("b").unwrap()), (b"a".to_vec(), b"b".to_vec()));
}

/// > From one origin to another, `rename(2)` fails with `EXDEV`, and `mv` copies.
#[test]
fn from_one_origin_to_another() {
    let (bucket, directory, staging) = (Bucket::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mounts = format!("mounts=/s3={},/dir=file://{}", bucket.url(), directory.path().display());
    let worker = Setup::of(&bucket).option(&mounts).member("w1");
    let mount = super::staged(Setup::of_user(), staging.path()).mount([&worker]);
    std::fs::write(mount.path("s3/f"), b"text").unwrap();
    assert_eq!(errno(std::fs::rename(mount.path("s3/f"), mount.path("dir/f"))), libc::EXDEV);
    let moved = finish(Command::new("mv").arg(mount.path("s3/f")).arg(mount.path("dir/f")), SOON);
    // `mv` cannot carry the times over, which it says, and leaves it at that.
    assert_eq!(moved.code, Some(0), "{}", moved.stderr);
    assert_eq!(std::fs::read(directory.path().join("f")).unwrap(), b"text");
    assert!(!bucket.path_of("f").exists());
}

/// > Under two mounts of one origin, one object has two names: `rename(2)` of one to the other fails with `EINVAL`, and
/// > nothing is changed.
#[test]
fn to_the_other_name_of_one_object() {
    let (bucket, directory, staging) = (Bucket::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (url, at) = (format!("file://{}", directory.path().display()), |name: &str| directory.path().join(name));
    std::fs::create_dir(at("d")).unwrap();
    std::fs::create_dir(at("empty")).unwrap();
    std::fs::write(at("f"), b"text").unwrap();
    std::fs::write(at("d/f"), b"below").unwrap();
    let worker = Setup::of(&bucket).option(&format!("mounts=/a={url},/b={url},/c={url}/d")).member("w1");
    let mount = super::staged(Setup::of_user(), staging.path()).mount([&worker]);
    for (from, to) in
        [("a/f", "b/f"), ("b/f", "a/f"), ("a/d/f", "c/f"), ("c/f", "b/d/f"), ("a/empty", "b/empty"), ("a/d", "b/d/sub")]
    {
        assert_eq!(errno(std::fs::rename(mount.path(from), mount.path(to))), libc::EINVAL, "{from} to {to}");
    }
    let moved = finish(Command::new("mv").arg(mount.path("a/f")).arg(mount.path("b/f")), SOON);
    assert_ne!(moved.code, Some(0), "{}", moved.stderr);
    assert_eq!(std::fs::read(at("f")).unwrap(), b"text");
    assert_eq!(std::fs::read(at("d/f")).unwrap(), b"below");
    assert!(at("empty").is_dir());
    std::fs::rename(mount.path("a/f"), mount.path("b/g")).unwrap();
    assert_eq!(std::fs::read(at("g")).unwrap(), b"text");
    assert!(!at("f").exists());
}

#[test]
fn a_file_that_somebody_replaced_by_one_as_long_is_renamed_as_what_it_is_now() {
    let one = One::new();
    std::fs::write(one.path("a"), b"first one").unwrap();
    assert_eq!(std::fs::read(one.path("a")).unwrap(), b"first one");
    one.bucket.put_text("a", "other one");
    std::fs::rename(one.path("a"), one.path("b")).unwrap();
    let until = std::time::Instant::now() + SOON;
    loop {
        match std::fs::read(one.path("b")) {
            Ok(read) if read == b"other one" => break,
            other => assert!(std::time::Instant::now() < until, "{other:?}"),
        }
    }
}
