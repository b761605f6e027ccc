//! How requests come from the kernel: what was asked for is what it is.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_fuse::{Channel, FuseIo, MountError, MountOptions};

use crate::bucket::{Bucket, pattern};
use crate::child::Actor;
use crate::harness::{IO, MINUTE, Mounted, client, options, runtime, skipped, wait_within};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const OFF: &str = "FUSE over io_uring is switched off: echo Y > /sys/module/fuse/parameters/enable_uring";
/// The test that runs all the others.
const ALL: &str = "every_test_of_mounts_passes_over_io_uring_too";

fn bucket() -> std::sync::Arc<Bucket> {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", pattern(1 << 20, 1));
    bucket
}

/// Whether the kernel offers FUSE over io_uring.
pub(crate) fn is_offered() -> bool {
    fs::read_to_string(SWITCH).is_ok_and(|switch| switch.trim() == "Y")
}

#[test]
fn the_device_is_read_by_as_many_threads_as_were_asked_for_each_with_a_descriptor() {
    let options = MountOptions { io: FuseIo::Device, threads: 3, ..options() };
    let mounted = Mounted::with(bucket(), MINUTE, &options);
    let carried = mounted.mount.served().carried().unwrap();
    assert_eq!((carried.channel, carried.why_not), (Channel::Device { threads: 3, own_descriptors: true }, None));
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(1 << 20, 1));
    let report = mounted.mount.reporter()();
    assert_eq!((&report["fuse"]["io"]["mode"], &report["fuse"]["io"]["threads"]), (&"device".into(), &3.into()));
    let lines = fs::read_to_string(mounted.path(".stats")).unwrap();
    assert!(lines.contains("fuse.io.mode \"device\"\n"), "{lines}");
}

#[test]
fn io_uring_carries_requests_where_it_is_asked_for_and_offered() {
    if !is_offered() {
        return skipped(OFF);
    }
    let options = MountOptions { io: FuseIo::Uring, ..options() };
    let mounted = Mounted::with(bucket(), MINUTE, &options);
    let carried = mounted.mount.served().carried().unwrap();
    assert!(matches!(carried.channel, Channel::Uring(_)), "{carried:?}");
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(1 << 20, 1));
    assert_eq!(mounted.mount.reporter()()["fuse"]["io"]["mode"], "uring");
}

#[test]
fn io_uring_that_is_demanded_and_switched_off_is_refused_with_what_to_do() {
    if is_offered() {
        return skipped("FUSE over io_uring is switched on");
    }
    let (bucket, runtime, directory) = (bucket(), runtime(), tempfile::tempdir().unwrap());
    let options = MountOptions { io: FuseIo::Uring, ..options() };
    let client = client(&bucket, &runtime, Duration::from_secs(10));
    let error = forebay_fuse::Mount::start(client, runtime.handle().clone(), directory.path(), &options).err().unwrap();
    assert!(matches!(error, MountError::NoUring(_)) && error.to_string().contains("fuse.io = \"auto\""), "{error}");
    // Nothing is left behind.
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn who_carries_requests_is_chosen_where_nobody_says() {
    let mounted = Mounted::with(bucket(), MINUTE, &MountOptions { io: FuseIo::Auto, ..options() });
    assert!(mounted.mount.served().carried().is_some());
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(1 << 20, 1));
}

/// It is this binary again, whose own words and counts are passed on.
#[test]
fn every_test_of_mounts_passes_over_io_uring_too() {
    if std::env::var_os(IO).is_some() {
        return;
    }
    if !is_offered() {
        return skipped(OFF);
    }
    let said = tempfile::tempdir().unwrap();
    let (out, errors) = (said.path().join("out"), said.path().join("errors"));
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--skip", ALL]).env(IO, "uring").stdin(Stdio::null());
    again.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&errors).unwrap());
    let mut again = Actor(again.spawn().unwrap());
    let mut ended = None;
    wait_within(5 * MINUTE, "they have ended", || {
        ended = again.0.try_wait().unwrap();
        ended.is_some()
    });
    // Past the test harness, which shows what it captured of failed tests only.
    std::io::stderr().write_all(&fs::read(&errors).unwrap()).unwrap();
    std::io::stdout().write_all(&fs::read(&out).unwrap()).unwrap();
    assert!(ended.unwrap().success(), "over io_uring: {ended:?}");
}
