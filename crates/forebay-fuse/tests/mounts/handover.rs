//! A mount goes on with another server: what was open before is open, and what it shows is what it was.
//!
//! Both servers are in this process, one after the other; the state between them is bytes, as it is between processes. Where
//! nobody serves, nothing here looks at the mount.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebay_fuse::{FuseIo, HandOver, MountError, MountOptions, Successor};
use forebay_handover::{Given, Refusal, decode, encode};
use forebay_materialise::Why;
use forebay_types::FsPath;

use crate::bucket::{BLOCK_SIZE, Bucket, pattern};
use crate::child::Actor;
use crate::harness::{MINUTE, Mounted, client, io, is_root, options, skipped, wait_until};
use crate::passthrough::{SIZE as PASSED_SIZE, count, mounted_eagerly, why_off};

const SIZE: usize = 3 * BLOCK_SIZE as usize + 777;

macro_rules! on_the_device {
    () => {
        if io() == FuseIo::Uring {
            return skipped("what is served over rings is not handed over");
        }
    };
}

fn mounted() -> Mounted {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", pattern(SIZE, 1));
    Mounted::new(bucket)
}

/// What takes over, before anything stops.
fn successor(mounted: &Mounted, options: &MountOptions) -> Successor {
    let client = client(&mounted.bucket, &mounted.runtime, MINUTE);
    Successor::prepare(client, mounted.runtime.handle().clone(), mounted.mount.mountpoint(), options).unwrap()
}

fn drain(hand_over: &HandOver) -> Given {
    assert_eq!((hand_over.cannot(), hand_over.held_back()), (None, Vec::<String>::new()));
    hand_over.drain(MINUTE).unwrap();
    let Given { state, connection, written } = hand_over.give().unwrap();
    let state = decode(&encode(&state).unwrap()).unwrap();
    Given { state, connection, written }
}

/// Another server takes over.
fn replace(mounted: &mut Mounted, options: &MountOptions) {
    let (successor, hand_over) = (successor(mounted, options), mounted.mount.hand_over());
    let given = drain(&hand_over);
    let next = successor.serve(given, || Ok(())).unwrap();
    hand_over.leave();
    let before = std::mem::replace(&mut mounted.mount, next);
    mounted.runtime.block_on(async { tokio::time::timeout(MINUTE, before.wait()).await }).unwrap();
}

#[test]
fn what_is_open_is_read_on_by_the_next_server_again_and_again() {
    on_the_device!();
    let mut mounted = mounted();
    let (direct, mut buffered) = (mounted.open_direct("file"), mounted.open("file"));
    let mut stats = mounted.open(".stats");
    let mut seen = vec![0; 100];
    buffered.read_exact(&mut seen).unwrap();
    let mut opened: Vec<File> = Vec::new();
    for round in 0..10u64 {
        replace(&mut mounted, &options());
        let offset = round * 4096;
        let mut bytes = vec![0; 4096];
        direct.read_exact_at(&mut bytes, offset).unwrap();
        assert!(bytes == pattern(SIZE, 1)[offset as usize..][..4096]);
        for file in &opened {
            file.read_exact_at(&mut bytes, 2 * u64::from(BLOCK_SIZE)).unwrap();
            assert!(bytes == pattern(SIZE, 1)[2 * BLOCK_SIZE as usize..][..4096]);
        }
        opened.push(mounted.open_direct("file"));
        assert_eq!(fs::metadata(mounted.path("file")).unwrap().len(), SIZE as u64);
    }
    buffered.read_to_end(&mut seen).unwrap();
    assert!(seen == pattern(SIZE, 1));
    let mut text = String::new();
    stats.read_to_string(&mut text).unwrap();
    assert!(text.contains("fuse."), "{text}");
    drop((direct, buffered, opened));
    replace(&mut mounted, &options());
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
}

#[test]
fn a_handle_stays_pinned_to_its_version_across_servers() {
    on_the_device!();
    let mut mounted = mounted();
    let old = mounted.open_direct("file");
    let mut bytes = vec![0; 4096];
    old.read_exact_at(&mut bytes, 0).unwrap();
    mounted.bucket.put("file", pattern(SIZE, 2));
    replace(&mut mounted, &options());
    let error = old.read_at(&mut bytes, u64::from(BLOCK_SIZE)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 2));
}

#[test]
fn a_directory_is_read_on_where_the_last_server_stopped() {
    on_the_device!();
    let bucket = Bucket::new(MINUTE);
    for name in 0..2_500 {
        bucket.put(format!("dir/{name:05}"), Vec::new());
    }
    let mut mounted = Mounted::new(bucket);
    let mut names = fs::read_dir(mounted.path("dir")).unwrap();
    let mut seen: Vec<PathBuf> = names.by_ref().take(10).map(|entry| entry.unwrap().path()).collect();
    replace(&mut mounted, &options());
    seen.extend(names.by_ref().take(1_200).map(|entry| entry.unwrap().path()));
    replace(&mut mounted, &options());
    seen.extend(names.map(|entry| entry.unwrap().path()));
    seen.sort();
    let expected: Vec<PathBuf> = (0..2_500).map(|name| mounted.path(&format!("dir/{name:05}"))).collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_program_that_asks_while_nobody_serves_waits_for_the_next_server() {
    on_the_device!();
    let mut mounted = mounted();
    let (file, successor) = (mounted.open_direct("file"), successor(&mounted, &options()));
    let hand_over = mounted.mount.hand_over();
    let given = drain(&hand_over);
    let (asked, answered) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut bytes = vec![0; SIZE];
            asked.store(true, Ordering::Release);
            file.read_exact_at(&mut bytes, 0).unwrap();
            answered.store(true, Ordering::Release);
            bytes
        });
        while !asked.load(Ordering::Acquire) {
            thread::yield_now();
        }
        // What it would know nothing of if this one died: so the server before must have heard of it by then.
        let nothing_is_answered = || {
            assert!(!answered.load(Ordering::Acquire));
            Ok(())
        };
        let next = successor.serve(given, nothing_is_answered).unwrap();
        hand_over.leave();
        assert!(reader.join().unwrap() == pattern(SIZE, 1));
        mounted.mount = next;
    });
}

#[test]
fn a_server_that_is_not_replaced_after_all_serves_on() {
    on_the_device!();
    let mounted = mounted();
    let file = mounted.open_direct("file");
    let hand_over = mounted.mount.hand_over();
    for _ in 0..3 {
        drop(drain(&hand_over));
        hand_over.resume();
        let mut bytes = vec![0; SIZE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == pattern(SIZE, 1));
    }
}

#[test]
fn a_server_that_has_just_begun_is_replaced_as_any_other() {
    on_the_device!();
    let mut mounted = mounted();
    let file = mounted.open_direct("file");
    for _ in 0..30 {
        replace(&mut mounted, &options());
    }
    let mut bytes = vec![0; SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(SIZE, 1));
}

#[test]
fn a_server_that_is_asked_again_at_once_answers_nothing_of_what_it_gave_away() {
    on_the_device!();
    let mut mounted = mounted();
    let file = mounted.open_direct("file");
    for round in 0..30 {
        let (successor, hand_over) = (successor(&mounted, &options()), mounted.mount.hand_over());
        drop(drain(&hand_over));
        hand_over.resume();
        // That is said once: what is said again is not kept for the next pause.
        hand_over.resume();
        let given = drain(&hand_over);
        let read = mounted.mount.stats().read_bytes;
        let next = thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut bytes = vec![0; 4096];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            });
            let next = successor.serve(given, || Ok(())).unwrap();
            assert!(reader.join().unwrap() == pattern(SIZE, 1)[..4096]);
            next
        });
        assert_eq!(mounted.mount.stats().read_bytes, read, "both serve, in round {round}");
        hand_over.leave();
        let before = std::mem::replace(&mut mounted.mount, next);
        mounted.runtime.block_on(async { tokio::time::timeout(MINUTE, before.wait()).await }).unwrap();
    }
}

#[test]
fn what_was_handed_over_is_unmounted_by_the_last_server() {
    on_the_device!();
    let mut mounted = mounted();
    replace(&mut mounted, &options());
    let unmounted = mounted.runtime.block_on(mounted.mount.unmount()).unwrap();
    assert_eq!(unmounted, forebay_fuse::Unmounted::Clean);
    assert_eq!(fs::read_dir(mounted.directory.path()).unwrap().count(), 0);
}

#[test]
fn a_mapping_and_handles_that_pass_through_stay_what_they_are() {
    on_the_device!();
    let (mut mounted, options) = mounted_eagerly();
    if let Some(why) = why_off(&mounted) {
        return skipped(&format!("files are not passed through here: {why}"));
    }
    let mut map = Actor::start("map and wait", &mounted.path("file"), None);
    map.says("closed").unwrap();
    let file = mounted.open("file");
    assert_eq!(count(&mounted, "/local/handles/passed"), 2);
    replace(&mut mounted, &options);
    let mut bytes = vec![0; PASSED_SIZE];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(PASSED_SIZE, 1));
    // The new server has no file that could be checked: it serves this one, and nothing is refused.
    let joined = mounted.open("file");
    joined.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(PASSED_SIZE, 1));
    assert_eq!(count(&mounted, "/local/handles/direct"), 1);
    drop(map.0.stdin.take());
    map.says("the same").unwrap();
    drop((file, joined, map));
    wait_until("a file is passed through again", || {
        drop(mounted.open("file"));
        count(&mounted, "/local/handles/passed") > 0
    });
}

#[test]
fn files_that_are_being_materialised_hold_up_no_hand_over() {
    on_the_device!();
    let (mut mounted, options) = mounted_eagerly();
    if let Some(why) = why_off(&mounted) {
        return skipped(&format!("files are not passed through here: {why}"));
    }
    mounted.bucket.withhold.store(true, Ordering::Relaxed);
    let local = mounted.mount.local_files().unwrap();
    let request = local.add(FsPath::root(), Why::Command);
    wait_until("the file is asked for", || local.progress(request).unwrap().files == 1);
    replace(&mut mounted, &options);
    assert_eq!(local.progress(request).unwrap().ready, 0);
    mounted.bucket.withhold.store(false, Ordering::Relaxed);
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(PASSED_SIZE, 1));
}

#[test]
fn what_is_served_over_rings_or_was_unmounted_is_not_given_away() {
    let mut mounted = mounted();
    let hand_over = mounted.mount.hand_over();
    if io() == FuseIo::Uring {
        assert_eq!(hand_over.cannot(), Some(Refusal::Uring));
        return;
    }
    let file = mounted.open_direct("file");
    mounted.runtime.block_on(mounted.mount.unmount()).unwrap();
    assert_eq!(hand_over.cannot(), Some(Refusal::Detached));
    drop(file);
}

#[test]
fn a_mount_that_is_gone_is_not_served() {
    on_the_device!();
    if !is_root() {
        return skipped("only root unmounts what another process serves");
    }
    let mut mounted = mounted();
    let (successor, hand_over) = (successor(&mounted, &options()), mounted.mount.hand_over());
    let given = drain(&hand_over);
    // As somebody else may, while nobody serves.
    rustix::mount::unmount(mounted.mount.mountpoint(), rustix::mount::UnmountFlags::DETACH).unwrap();
    let refused = successor.serve(given, || panic!("it is not served")).err();
    assert!(matches!(refused, Some(MountError::NotMounted(_))), "{refused:?}");
    hand_over.resume();
    let _ = mounted
        .runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(20), mounted.mount.unmount()).await });
}
