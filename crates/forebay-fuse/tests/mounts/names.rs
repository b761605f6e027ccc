//! Names and attributes.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_fuse::Operation;
use rustix::fs::{Dir, FileType, Mode, OFlags};

use crate::bucket::{Bucket, MODIFIED_NANOS, pattern};
use crate::harness::{MINUTE, Mounted, start};

fn names(directory: &std::path::Path) -> Vec<OsString> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn fifty_thousand_names_are_listed_once_each() {
    let bucket = Bucket::new(MINUTE);
    for name in 0..50_000 {
        bucket.put(format!("many/{name:05}"), vec![]);
    }
    let mounted = Mounted::new(bucket);
    let listed = names(&mounted.path("many"));
    assert_eq!(listed.len(), 50_000);
    let expected: BTreeSet<OsString> = (0..50_000).map(|name| format!("{name:05}").into()).collect();
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), expected);
}

/// Attributes that the kernel has and believes are not told again, and it does not ask for them either.
#[test]
fn a_directory_that_is_listed_again_and_again_has_all_its_names_and_what_is_known_of_them_stays_known() {
    const NAMES: usize = 1_500;
    let bucket = Bucket::new(MINUTE);
    for name in 0..NAMES {
        bucket.put(format!("many/{name:05}"), pattern(name, 1));
    }
    let mounted = Mounted::new(bucket);
    let many = mounted.path("many");
    let sizes = || -> Vec<u64> {
        (0..NAMES).map(|name| fs::metadata(many.join(format!("{name:05}"))).unwrap().len()).collect()
    };
    let first = names(&many);
    assert_eq!(first.len(), NAMES);
    assert_eq!(sizes(), (0..NAMES as u64).collect::<Vec<_>>());
    let looked_up = mounted.mount.stats().count(Operation::Lookup);
    for _ in 0..3 {
        assert_eq!(names(&many), first);
    }
    assert_eq!(sizes(), (0..NAMES as u64).collect::<Vec<_>>());
    assert_eq!(mounted.mount.stats().count(Operation::Lookup), looked_up);
    mounted.bucket.put("many/new", vec![]);
    assert_eq!(names(&many).len(), NAMES + 1);
}

#[test]
fn a_directory_can_be_rewound_in_the_middle() {
    let bucket = Bucket::new(MINUTE);
    for name in 0..3_000 {
        bucket.put(format!("many/{name:05}"), vec![]);
    }
    let mounted = Mounted::new(bucket);
    let opened = rustix::fs::open(mounted.path("many"), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut directory = Dir::new(opened).unwrap();
    assert_eq!(directory.by_ref().take(2_100).count(), 2_100);
    mounted.bucket.put("many/new", vec![]);
    directory.rewind();
    let listed: Vec<_> = directory.map(|entry| entry.unwrap().file_name().to_owned()).collect();
    assert_eq!(listed.len(), 3_000 + 2 + 1, "with `.`, `..` and the new one");
}

#[test]
fn entries_say_what_they_are() {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", vec![]);
    bucket.put("directory/file", vec![]);
    let mounted = Mounted::new(bucket);
    let opened = rustix::fs::open(mounted.directory.path(), OFlags::RDONLY, Mode::empty()).unwrap();
    let entries = Dir::new(opened).unwrap().map(Result::unwrap);
    let mut kinds: Vec<_> =
        entries.map(|entry| (entry.file_name().to_owned(), entry.file_type(), entry.ino())).collect();
    kinds.sort_by(|a, b| a.0.cmp(&b.0));
    let said: Vec<_> = kinds.iter().map(|(name, kind, _)| (name.to_str().unwrap(), *kind)).collect();
    let directory = FileType::Directory;
    assert_eq!(said, [(".", directory), ("..", directory), ("directory", directory), ("file", FileType::RegularFile)]);
    for (name, _, ino) in &kinds[2..] {
        assert_eq!(fs::metadata(mounted.path(name.to_str().unwrap())).unwrap().ino(), *ino);
    }
}

#[test]
fn names_may_be_any_bytes_up_to_255_of_them() {
    let bucket = Bucket::new(MINUTE);
    let long = vec![b'x'; 255];
    let odd: [&[u8]; 5] = [b"\xff\xfe", b"a b\n\"'\\", "größe".as_bytes(), b"-", &long];
    for name in odd {
        bucket.put(name, name.to_vec());
    }
    let mounted = Mounted::new(bucket);
    let root = mounted.directory.path();
    let expected: BTreeSet<OsString> = odd.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect();
    assert_eq!(names(root).into_iter().collect::<BTreeSet<_>>(), expected);
    for name in odd {
        assert_eq!(fs::read(root.join(OsStr::from_bytes(name))).unwrap(), name);
    }
    let error = fs::metadata(root.join("y".repeat(256))).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn attributes_are_those_of_the_object() {
    let bucket = Bucket::new(MINUTE);
    bucket.put("directory/file", pattern(1_025, 1));
    let mounted = Mounted::new(bucket);
    let file = fs::metadata(mounted.path("directory/file")).unwrap();
    assert_eq!((file.len(), file.blocks(), file.mode(), file.nlink()), (1_025, 3, 0o100_444, 1));
    assert_eq!(file.mtime() * 1_000_000_000 + file.mtime_nsec(), MODIFIED_NANOS);
    assert_eq!(file.uid(), rustix::process::getuid().as_raw());
    let directory = fs::metadata(mounted.path("directory")).unwrap();
    assert_eq!(directory.mode(), 0o040_555);
    assert!(directory.mtime() > 1_700_000_000, "a directory without a time has the mount's");
    let root = fs::metadata(mounted.directory.path()).unwrap();
    assert_eq!((root.ino(), root.mode()), (1, 0o040_555));
}

#[test]
fn inode_numbers_survive_forgetting_and_remounting() {
    let bucket = Bucket::new(MINUTE);
    bucket.put("directory/file", pattern(10, 1));
    let mut mounted = Mounted::new(bucket);
    let numbers =
        |mounted: &Mounted| ["directory", "directory/file"].map(|name| fs::metadata(mounted.path(name)).unwrap().ino());
    let before = numbers(&mounted);
    assert_eq!(mounted.mount.stats().inodes, 3);
    mounted.runtime.block_on(mounted.mount.unmount()).unwrap();
    mounted.mount = start(&mounted.bucket, &mounted.runtime, mounted.directory.path()).unwrap();
    assert_eq!(numbers(&mounted), before);
}

#[test]
fn a_name_that_appears_is_seen_and_one_that_goes_is_missed() {
    let mounted = Mounted::new(Bucket::new(Duration::ZERO));
    let path = mounted.path("file");
    assert_eq!(fs::read(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    mounted.bucket.put("file", b"1".to_vec());
    assert_eq!(fs::read(&path).unwrap(), b"1");
    mounted.bucket.delete("file");
    assert_eq!(fs::read(&path).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(mounted.mount.stats().failures, []);
}

#[test]
fn the_kernel_believes_a_name_for_as_long_as_the_worker_says() {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", b"1".to_vec());
    let mounted = Mounted::new(bucket);
    fs::read(mounted.path("file")).unwrap();
    let asked = mounted.bucket.asked.load(Ordering::Relaxed);
    for _ in 0..100 {
        fs::read(mounted.path("file")).unwrap();
        fs::metadata(mounted.path("file")).unwrap();
    }
    assert_eq!(mounted.bucket.asked.load(Ordering::Relaxed), asked);
}

#[test]
fn a_missing_name_is_believed_for_its_own_time() {
    let bucket = Bucket::new(MINUTE);
    let options = forebay_fuse::MountOptions { negative_ttl: MINUTE, ..crate::harness::options() };
    let mounted = Mounted::with(bucket, MINUTE, &options);
    fs::metadata(mounted.path("missing")).unwrap_err();
    let asked = mounted.bucket.asked.load(Ordering::Relaxed);
    fs::metadata(mounted.path("missing")).unwrap_err();
    assert_eq!(mounted.bucket.asked.load(Ordering::Relaxed), asked);
}

#[test]
fn statfs_and_extended_attributes_have_answers() {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", b"1".to_vec());
    let mounted = Mounted::new(bucket);
    let statfs = rustix::fs::statvfs(mounted.directory.path()).unwrap();
    assert_eq!(statfs.f_blocks * statfs.f_frsize, 1 << 50);
    assert_eq!((statfs.f_bavail, statfs.f_namemax), (statfs.f_blocks, 255));
    let mut none = [0u8; 16];
    let got = rustix::fs::getxattr(mounted.path("file"), "user.x", &mut none);
    assert_eq!(got, Err(rustix::io::Errno::NOTSUP));
    assert_eq!(rustix::fs::listxattr(mounted.path("file"), &mut none), Err(rustix::io::Errno::NOTSUP));
}
