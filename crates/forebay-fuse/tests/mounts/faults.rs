//! Workers that hang and code that panics.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::bucket::{Bucket, pattern};
use crate::child::Actor;
use crate::harness::{MINUTE, Mounted, options, wait_until};

const SIZE: usize = 1 << 20;

fn mounted(request_timeout: Duration, deadline: Duration) -> Mounted {
    let bucket = Bucket::new(Duration::ZERO);
    bucket.put("file", pattern(SIZE, 1));
    let options = forebay_fuse::MountOptions { deadline, ..options() };
    Mounted::with(bucket, request_timeout, &options)
}

#[test]
fn a_worker_that_hangs_costs_an_error_within_the_deadline() {
    let mounted = mounted(Duration::from_millis(300), MINUTE);
    let (direct, buffered) = (mounted.open_direct("file"), mounted.open("file"));
    mounted.bucket.hangs.store(true, Ordering::Relaxed);
    let started = Instant::now();
    for file in [&direct, &buffered] {
        file.read_at(&mut [0; 4096], 0).unwrap_err();
    }
    fs::metadata(mounted.path("file")).unwrap_err();
    fs::read_dir(mounted.directory.path()).unwrap().next().unwrap().unwrap_err();
    assert!(started.elapsed() < MINUTE / 2, "{:?}", started.elapsed());
    mounted.bucket.hangs.store(false, Ordering::Relaxed);
    wait_until("it is read again", || fs::read(mounted.path("file")).is_ok_and(|bytes| bytes == pattern(SIZE, 1)));
}

#[test]
fn the_mounts_own_deadline_ends_what_the_client_does_not() {
    let mounted = mounted(MINUTE, Duration::from_millis(300));
    let file = mounted.open_direct("file");
    mounted.bucket.hangs.store(true, Ordering::Relaxed);
    let error = file.read_at(&mut [0; 4096], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT));
}

/// Starts a process that reads directly, and lets it wait for a worker that hangs.
fn waiting_reader(mounted: &Mounted) -> Actor {
    let mut reader = Actor::start("read directly", &mounted.path("file"), None);
    reader.says("opened").unwrap();
    mounted.bucket.hangs.store(true, Ordering::Relaxed);
    drop(reader.0.stdin.take());
    wait_until("the reader waits", || mounted.bucket.hanging.load(Ordering::Relaxed) > 0);
    reader
}

fn signal(reader: &Actor, signal: Signal) {
    let pid = Pid::from_child(&reader.0);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// How long a process takes to end.
fn end(mut reader: Actor) -> Duration {
    let started = Instant::now();
    reader.0.wait().unwrap();
    started.elapsed()
}

/// The worker and the mount give up after a minute.
fn about_a_second() -> Duration {
    forebay_testkit::bound(Duration::from_secs(2), MINUTE / 2)
}

/// > If a program is killed while its read waits for a worker, it is gone within about a second.
#[test]
fn a_reader_that_waits_for_a_worker_goes_at_once_when_it_is_killed() {
    let mounted = mounted(MINUTE, MINUTE);
    for deadly in [Signal::KILL, Signal::TERM] {
        let reader = waiting_reader(&mounted);
        signal(&reader, deadly);
        let took = end(reader);
        assert!(took < about_a_second(), "{deadly:?}: {took:?}");
        mounted.bucket.hangs.store(false, Ordering::Relaxed);
    }
}

#[test]
fn who_is_sent_a_harmless_signal_first_waits_on_until_it_is_killed() {
    let mounted = mounted(MINUTE, MINUTE);
    mounted.bucket.hangs.store(true, Ordering::Relaxed);
    let mut stat = Command::new("stat");
    stat.arg(mounted.path("other")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut waiting = Actor(stat.spawn().unwrap());
    wait_until("it waits", || mounted.bucket.hanging.load(Ordering::Relaxed) > 0);
    // The kernel tells of the first signal only.
    signal(&waiting, Signal::STOP);
    signal(&waiting, Signal::CONT);
    wait_until("the kernel has told of it", || mounted.mount.served().interrupts() > 0);
    assert!(waiting.0.try_wait().unwrap().is_none());
    signal(&waiting, Signal::KILL);
    let took = end(waiting);
    assert!(took < about_a_second(), "{took:?}");
}

#[test]
fn nobody_is_let_go_of_before_the_deadline_where_that_is_turned_off() {
    let bucket = Bucket::new(Duration::ZERO);
    bucket.put("file", pattern(SIZE, 1));
    let options = forebay_fuse::MountOptions { interrupts: false, ..options() };
    let mounted = Mounted::with(bucket, Duration::from_secs(3), &options);
    // Before it asks: however late it is killed, it waits until the deadline.
    let began = Instant::now();
    let reader = waiting_reader(&mounted);
    signal(&reader, Signal::KILL);
    let took = end(reader);
    assert!(began.elapsed() > Duration::from_secs(2) && took < MINUTE / 2, "{took:?}");
}

#[test]
fn a_panic_costs_one_request_and_not_the_mount() {
    let mounted = mounted(MINUTE, MINUTE);
    let file = mounted.open_direct("file");
    mounted.bucket.panics.store(true, Ordering::Relaxed);
    for _ in 0..20 {
        let error = file.read_at(&mut [0; 4096], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert_eq!(fs::metadata(mounted.path("file")).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    mounted.bucket.panics.store(false, Ordering::Relaxed);
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
}
