//! Mounting, unmounting, and what a killed server leaves.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_fuse::mount_table::{MountState, inspect, repair, unmount};
use forebay_fuse::{MountError, Unmounted};
use rustix::mount::UnmountFlags;

use crate::bucket::{Bucket, pattern};
use crate::child::Actor;
use crate::harness::{MINUTE, Mounted, is_root, runtime, skipped, start, wait_until};

fn mounted() -> Mounted {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", pattern(1 << 20, 1));
    Mounted::new(bucket)
}

#[track_caller]
fn ends(mounted: &Mounted) {
    let ended = mounted.runtime.block_on(async { tokio::time::timeout(MINUTE, mounted.mount.wait()).await });
    ended.expect("the mount has not ended");
}

#[test]
fn an_unmount_leaves_a_plain_directory_and_no_threads() {
    let mut mounted = mounted();
    fs::read(mounted.path("file")).unwrap();
    let place = mounted.directory.path().to_owned();
    assert_eq!(inspect(&place).unwrap(), MountState::Forebay { source: "memory://bucket".into() });
    let unmounted = mounted.runtime.block_on(mounted.mount.unmount()).unwrap();
    assert_eq!(unmounted, Unmounted::Clean);
    ends(&mounted);
    assert_eq!(inspect(&place).unwrap(), MountState::NotMounted);
    assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    assert_eq!(mounted.runtime.block_on(mounted.mount.unmount()).unwrap(), Unmounted::Clean, "once more is no error");
}

#[test]
fn a_file_that_is_open_at_the_unmount_stays_readable_until_it_is_closed() {
    let mut mounted = mounted();
    let file = mounted.open_direct("file");
    let unmounted = mounted.runtime.block_on(mounted.mount.unmount()).unwrap();
    assert_eq!(unmounted, Unmounted::Detached);
    assert_eq!(inspect(mounted.directory.path()).unwrap(), MountState::NotMounted);
    let mut bytes = vec![0; 1 << 20];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(1 << 20, 1));
    drop(file);
    ends(&mounted);
}

#[test]
fn an_unmount_from_outside_ends_the_mount() {
    let mounted = mounted();
    unmount(mounted.directory.path(), false).unwrap();
    ends(&mounted);
}

#[test]
fn an_unmount_from_outside_is_refused_while_files_are_open_unless_it_is_lazy() {
    let mounted = mounted();
    let file = mounted.open("file");
    assert!(matches!(unmount(mounted.directory.path(), false), Err(MountError::Busy(_))));
    unmount(mounted.directory.path(), true).unwrap();
    drop(file);
    ends(&mounted);
}

#[test]
fn dropping_a_mount_unmounts_it_also_when_files_are_open() {
    let mounted = mounted();
    let file = mounted.open_direct("file");
    let Mounted { mount, directory, runtime: _runtime, .. } = mounted;
    drop(mount);
    assert_eq!(inspect(directory.path()).unwrap(), MountState::NotMounted);
    // As a user it is taken from the namespace only, and serves what is open.
    assert_eq!(file.read_at(&mut [0; 10], 0).is_err(), is_root());
}

#[test]
fn a_live_mount_is_not_mounted_over_nor_repaired() {
    let mounted = mounted();
    let place = mounted.directory.path();
    let Err(error) = start(&mounted.bucket, &mounted.runtime, place) else { panic!("mounted twice") };
    assert!(error.to_string().contains("forebay umount"), "{error}");
    assert!(matches!(repair(place), Err(MountError::AlreadyMounted { .. })));
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(1 << 20, 1));
}

#[test]
fn a_mount_that_kill_9_left_dead_is_told_from_a_live_one_and_repaired() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut server = Actor::start("mount", place, None);
    server.says("mounted").unwrap();
    assert!(matches!(inspect(place).unwrap(), MountState::Forebay { .. }));
    assert!(fs::read(place.join("file")).unwrap() == pattern(1 << 20, 1));
    drop(server);
    wait_until("the mount is dead", || matches!(inspect(place).unwrap(), MountState::Dead { .. }));
    let nobody_answers = || fs::read(place.join("file")).unwrap_err().raw_os_error() == Some(libc::ENOTCONN);
    wait_until("nobody answers", nobody_answers);

    // The next mount on the same place repairs it.
    let (bucket, runtime) = (Bucket::new(MINUTE), runtime());
    bucket.put("file", b"new".to_vec());
    let mut mount = start(&bucket, &runtime, place).unwrap();
    assert_eq!(fs::read(place.join("file")).unwrap(), b"new");
    assert_eq!(runtime.block_on(mount.unmount()).unwrap(), Unmounted::Clean);
    assert_eq!(inspect(place).unwrap(), MountState::NotMounted);
}

#[test]
fn unmounting_a_dead_mount_takes_it_away() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut server = Actor::start("mount", place, None);
    server.says("mounted").unwrap();
    drop(server);
    wait_until("the mount is dead", || matches!(inspect(place).unwrap(), MountState::Dead { .. }));
    unmount(place, false).unwrap();
    assert_eq!(inspect(place).unwrap(), MountState::NotMounted);
    assert!(!repair(place).unwrap());
}

#[test]
fn a_server_that_is_told_to_end_unmounts() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Actor::start("mount", directory.path(), None);
    server.says("mounted").unwrap();
    drop(server.0.stdin.take());
    server.says("unmounted: true").unwrap();
    server.0.wait().unwrap();
    assert_eq!(inspect(directory.path()).unwrap(), MountState::NotMounted);
}

#[test]
fn a_mountpoint_that_cannot_be_is_refused_with_what_to_do() {
    let (bucket, runtime, directory) = (Bucket::new(MINUTE), runtime(), tempfile::tempdir().unwrap());
    let missing = directory.path().join("missing");
    let error = start(&bucket, &runtime, &missing).err().unwrap();
    assert!(matches!(error, MountError::NoMountpoint(_)) && error.to_string().contains("mkdir -p"), "{error}");
    fs::write(directory.path().join("file"), b"").unwrap();
    let error = start(&bucket, &runtime, &directory.path().join("file")).err().unwrap();
    assert!(matches!(error, MountError::NotADirectory(_)), "{error}");
}

#[test]
fn other_file_systems_are_not_unmounted() {
    if !is_root() {
        return skipped("mounting a tmpfs needs root");
    }
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    rustix::mount::mount("none", place, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let refused = unmount(place, true);
    let seen = inspect(place);
    rustix::mount::unmount(place, UnmountFlags::DETACH).unwrap();
    assert!(matches!(refused, Err(MountError::NotForebay { .. })), "{refused:?}");
    assert_eq!(seen.unwrap(), MountState::Other { fs_type: "tmpfs".into(), source: "none".into() });
}

#[test]
fn root_raises_the_kernels_read_ahead() {
    if !is_root() {
        return skipped("only root sets how far the kernel reads ahead");
    }
    let mounted = mounted();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place = mounted.directory.path().to_str().unwrap();
    let line = table.lines().find(|line| line.contains(place)).unwrap();
    let device = line.split(' ').nth(2).unwrap();
    let kib = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).unwrap();
    assert_eq!(kib.trim(), "4096");
}

#[test]
fn requests_under_way_end_with_the_mount() {
    if !is_root() {
        return skipped("only root ends a mount that is asked");
    }
    let bucket = Bucket::new(Duration::ZERO);
    bucket.put("file", pattern(1 << 20, 1));
    let mut mounted = Mounted::new(bucket);
    let file = mounted.open_direct("file");
    mounted.bucket.hangs.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| file.read_at(&mut [0; 4096], 0));
        wait_until("the reader waits", || mounted.bucket.hanging.load(Ordering::Relaxed) > 0);
        let place = mounted.directory.path();
        rustix::mount::unmount(place, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
        reader.join().unwrap().unwrap_err();
    });
    drop(file);
    ends(&mounted);
    assert_eq!(mounted.runtime.block_on(mounted.mount.unmount()).unwrap(), Unmounted::Clean);
}
