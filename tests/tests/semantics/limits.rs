//! "What an object store does not keep".

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, XattrFlags};

use forebay_e2e::{Bucket, Setup, eventually};

use super::{One, SOON, Two, bytes, close, errno, refused_below};

/// Bytes that are free below a path, and all of them.
fn room(path: &std::path::Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(path).unwrap();
    (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
}

const PETABYTE: u64 = 1 << 50;

/// > Below an origin that is a directory, `statfs(2)`, and so `df`, shows the space of its file system as a worker sees it. Elsewhere, and on a mount that refuses changes, it shows 1 PiB, all free.
#[test]
fn the_room_of_a_directory_is_shown_and_that_of_an_object_store_is_not_known() {
    let (bucket, directory, staging) = (Bucket::new(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mounts = format!("mounts=/s3={},/dir=file://{}", bucket.url(), directory.path().display());
    let worker = Setup::of(&bucket).option(&mounts).member("w1");
    let mount = super::staged(Setup::of_user(), staging.path()).mount([&worker]);
    std::fs::write(mount.path("dir/f"), b"text").unwrap();
    let (_, total) = room(directory.path());
    eventually("the room is known", SOON, || room(&mount.path("dir")).1 == total);
    // Others use that file system meanwhile.
    let free = room(&mount.path("dir/f")).0;
    assert!(free <= total && free.abs_diff(room(directory.path()).0) < total / 4, "{free} of {total}");
    for unknown in ["", "s3"] {
        assert_eq!(room(&mount.path(unknown)), (PETABYTE, PETABYTE), "{unknown:?}");
    }
    let read_only = Setup::of_user().flag("--read-only").mount([&worker]);
    for any in ["", "dir"] {
        assert_eq!(room(&read_only.path(any)), (PETABYTE, PETABYTE), "{any:?}");
    }
}

/// > The staging directory counts only while it cannot hold one part of a file: then the free space is what it still holds.
#[test]
fn a_staging_directory_that_holds_no_part_any_more_is_shown() {
    // It gives an origin up soon that refuses, and not one that is slow.
    let one = One::with(|setup| setup.options(&["write.staging_size=128MiB", "origin.retry.max_attempts=2"]));
    let content = bytes(5, 70 << 20);
    let file = File::create(one.path("f")).unwrap();
    one.bucket.proxy().stop();
    file.write_all_at(&content, 0).unwrap();
    // What is on its way is no loss of room.
    assert_eq!(room(&one.mount.root()), (PETABYTE, PETABYTE));
    assert_eq!(errno(close(file)), libc::EIO);
    // It was not uploaded, and stays.
    eventually("less is left than a part takes", SOON, || {
        let (free, total) = room(&one.mount.root());
        total == PETABYTE && free == (128 << 20) - content.len() as u64
    });
}

/// > Hard links, symbolic links, sockets, pipes and devices cannot be made: `EPERM`.
#[test]
fn only_files_and_directories_can_be_made() {
    let one = One::new();
    std::fs::write(one.path("f"), b"x").unwrap();
    assert_eq!(errno(std::fs::hard_link(one.path("f"), one.path("g"))), libc::EPERM);
    assert_eq!(errno(std::os::unix::fs::symlink("f", one.path("g"))), libc::EPERM);
    assert_eq!(errno(std::os::unix::net::UnixListener::bind(one.path("g"))), libc::EPERM);
    for kind in [FileType::Fifo, FileType::CharacterDevice] {
        let made = rustix::fs::mknodat(CWD, one.path("g"), kind, Mode::RUSR, 0);
        assert_eq!(made, Err(rustix::io::Errno::PERM), "{kind:?}");
    }
    rustix::fs::mknodat(CWD, one.path("g"), FileType::RegularFile, Mode::RUSR, 0).unwrap();
    assert_eq!(one.object("g").unwrap(), b"");
}

/// > Every file has the mode and owner that the mount gives it; `chmod` and `chown` fail with `EPERM` if they would change something, and succeed otherwise.
#[test]
fn modes_and_owners() {
    let one = One::with(|setup| setup.options(&["posix.file_mode=0640", "posix.dir_mode=0750"]));
    std::fs::write(one.path("f"), b"x").unwrap();
    std::fs::create_dir(one.path("d")).unwrap();
    let mode = |name: &str| std::fs::metadata(one.path(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d")), (0o640, 0o750));
    let chmod = |name: &str, mode| std::fs::set_permissions(one.path(name), Permissions::from_mode(mode));
    chmod("f", 0o640).unwrap();
    chmod("d", 0o750).unwrap();
    assert_eq!(errno(chmod("f", 0o755)), libc::EPERM);
    assert_eq!(errno(chmod("d", 0o700)), libc::EPERM);
    let owner = std::fs::metadata(one.path("f")).unwrap();
    std::os::unix::fs::chown(one.path("f"), Some(owner.uid()), Some(owner.gid())).unwrap();
    if forebay_e2e::is_root() {
        assert_eq!(errno(std::os::unix::fs::chown(one.path("f"), Some(12345), None)), libc::EPERM);
    }
    assert_eq!((mode("f"), mode("d")), (0o640, 0o750));
}

/// > With `posix.ignore_mode=true`, `chmod` and `chown` succeed and change nothing.
#[test]
fn modes_can_be_ignored() {
    let one = One::with(|setup| setup.option("posix.ignore_mode=true"));
    std::fs::write(one.path("f"), b"x").unwrap();
    std::fs::set_permissions(one.path("f"), Permissions::from_mode(0o755)).unwrap();
    if forebay_e2e::is_root() {
        std::os::unix::fs::chown(one.path("f"), Some(12345), Some(54321)).unwrap();
    }
    let metadata = std::fs::metadata(one.path("f")).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o644);
    assert_ne!((metadata.uid(), metadata.gid()), (12345, 54321));
}

/// > `utimensat(2)` succeeds; the time is shown until the file is closed. After that, the mount shows the time at which the origin got the file.
#[test]
fn times_are_the_origins() {
    let one = One::new();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = File::create(one.path("f")).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.set_modified(then).unwrap();
    assert_eq!(file.metadata().unwrap().modified().unwrap(), then);
    close(file).unwrap();
    let shown = std::fs::metadata(one.path("f")).unwrap().modified().unwrap();
    let origins = std::fs::metadata(one.bucket.path_of("f")).unwrap().modified().unwrap();
    assert!(origins.duration_since(shown).unwrap_or_default() < Duration::from_secs(2), "{shown:?} {origins:?}");
    File::open(one.path("f")).unwrap().set_modified(then).unwrap();
}

/// > Extended attributes are not supported: `ENOTSUP`.
#[test]
fn extended_attributes() {
    let one = One::new();
    std::fs::write(one.path("f"), b"x").unwrap();
    let unsupported = rustix::io::Errno::NOTSUP;
    assert_eq!(rustix::fs::setxattr(one.path("f"), "user.a", b"b", XattrFlags::empty()), Err(unsupported));
    assert_eq!(rustix::fs::getxattr(one.path("f"), "user.a", &mut [0u8; 9][..]).unwrap_err(), unsupported);
}

/// > Locks hold between the processes of one mount.
#[test]
fn locks() {
    let two = Two::new();
    std::fs::write(two.a.path("f"), b"x").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(two.a.path("f")).unwrap();
    let (first, second) = (open(), open());
    rustix::fs::flock(&first, FlockOperation::LockExclusive).unwrap();
    let tried = rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(tried, Err(rustix::io::Errno::WOULDBLOCK));
    drop(first);
    // A process that another test starts at this moment has the file, too, until it executes its program.
    eventually("the lock is free", SOON, || {
        rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
}

/// > A mount with `write.mode=none`, or `--read-only`, refuses every change with `EROFS`.
#[test]
fn a_read_only_mount() {
    let flagged: [fn(forebay_e2e::Setup) -> forebay_e2e::Setup; 2] =
        [|setup| setup.option("write.mode=none"), |setup| setup.flag("--read-only")];
    for read_only in flagged {
        let one = One::with(read_only);
        one.bucket.put_text("f", "text");
        assert_eq!(std::fs::read(one.path("f")).unwrap(), b"text");
        assert_eq!(errno(std::fs::write(one.path("g"), b"x")), libc::EROFS);
        assert_eq!(errno(OpenOptions::new().write(true).open(one.path("f"))), libc::EROFS);
        assert_eq!(errno(std::fs::remove_file(one.path("f"))), libc::EROFS);
        assert_eq!(errno(std::fs::create_dir(one.path("d"))), libc::EROFS);
        assert_eq!(errno(std::fs::rename(one.path("f"), one.path("g"))), libc::EROFS);
        assert_eq!(std::fs::metadata(one.path("f")).unwrap().mode() & 0o777, 0o444);
    }
}

/// > A worker with `write.mode=none` refuses changes of every mount with `EROFS`, or `EACCES` if the mode bits do not allow them to the user.
#[test]
fn a_worker_that_takes_no_changes() {
    let bucket = forebay_e2e::Bucket::new();
    bucket.put_text("f", "text");
    let worker = forebay_e2e::Setup::of(&bucket).option("write.mode=none").worker(&bucket);
    let staging = tempfile::tempdir().unwrap();
    let mount = super::staged(forebay_e2e::Setup::of_user(), staging.path()).mount([&worker]);
    assert_eq!(errno(File::create(mount.path("g")).and_then(close)), refused_below());
    assert_eq!(errno(OpenOptions::new().write(true).open(mount.path("f"))), refused_below());
    assert_eq!(errno(std::fs::remove_file(mount.path("f"))), refused_below());
    assert_eq!(std::fs::read(mount.path("f")).unwrap(), b"text");
}
