//! A reader never sees two versions.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::bucket::{BLOCK_SIZE, Bucket, pattern};
use crate::harness::{MINUTE, Mounted};

const SIZE: usize = 3 * BLOCK_SIZE as usize;

fn mounted(ttl: Duration) -> Mounted {
    let bucket = Bucket::new(ttl);
    bucket.put("file", pattern(SIZE, 1));
    Mounted::new(bucket)
}

#[test]
fn a_read_of_a_replaced_object_is_stale_and_the_next_open_sees_the_new_one() {
    // Neither the kernel nor the worker would ask again within the minute by itself.
    let mounted = mounted(MINUTE);
    let old = mounted.open_direct("file");
    let mut bytes = vec![0; 4096];
    old.read_exact_at(&mut bytes, 0).unwrap();
    mounted.bucket.put("file", pattern(SIZE, 2));
    let error = old.read_at(&mut bytes, u64::from(BLOCK_SIZE)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 2));
    // What was cached of the old version is still readable, and still the old version.
    old.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == pattern(SIZE, 1)[..4096]);
    assert_eq!(old.metadata().unwrap().len(), SIZE as u64);
}

#[test]
fn a_buffered_read_of_a_replaced_object_fails_and_gives_no_zeros() {
    let mounted = mounted(MINUTE);
    let old = mounted.open("file");
    mounted.bucket.put("file", pattern(SIZE / 2, 2));
    let mut bytes = vec![0; SIZE];
    let error = old.read_at(&mut bytes, 0).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ESTALE | libc::EIO)), "{error}");
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE / 2, 2));
    assert_eq!(fs::metadata(mounted.path("file")).unwrap().len(), SIZE as u64 / 2);
}

#[test]
fn the_page_cache_of_one_version_is_never_seen_through_another() {
    let mounted = mounted(Duration::ZERO);
    let old = mounted.open("file");
    let mut bytes = vec![0; SIZE];
    old.read_exact_at(&mut bytes, 0).unwrap();
    let before = old.metadata().unwrap().ino();
    mounted.bucket.put("file", pattern(SIZE, 2));
    mounted.bucket.evict();
    let new = mounted.open("file");
    assert_ne!(new.metadata().unwrap().ino(), before);
    let mut seen = vec![0; SIZE];
    new.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == pattern(SIZE, 2));
    old.read_exact_at(&mut seen, 0).unwrap();
    assert!(seen == pattern(SIZE, 1), "the old handle shows the old pages, all of them");
}

#[test]
fn a_handle_that_is_open_again_through_proc_is_stale_when_the_object_was_replaced() {
    let mounted = mounted(Duration::ZERO);
    let old = mounted.open("file");
    mounted.bucket.put("file", pattern(SIZE, 2));
    let through_proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&old));
    crate::harness::wait_until("the lookup no longer covers the open", || {
        fs::File::open(&through_proc).is_err_and(|error| error.raw_os_error() == Some(libc::ESTALE))
    });
}

#[test]
fn a_reader_sees_one_version_while_the_object_is_replaced_again_and_again() {
    let mounted = mounted(Duration::ZERO);
    let versions: Vec<_> = (0..8).map(|seed| pattern(SIZE, seed)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..150 {
                mounted.bucket.put("file", versions[round % 8].clone());
                mounted.bucket.evict();
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
        for direct in [false, true] {
            let (mounted, versions, done) = (&mounted, &versions, &done);
            scope.spawn(move || {
                let mut whole = 0;
                while !done.load(Ordering::Relaxed) || whole == 0 {
                    let mut options = fs::File::options();
                    if direct {
                        std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), libc::O_DIRECT);
                    }
                    // The kernel looks up again once; an object that is replaced twice meanwhile is stale.
                    let file = match options.read(true).open(mounted.path("file")) {
                        Ok(file) => file,
                        Err(error) => {
                            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
                            continue;
                        }
                    };
                    let mut bytes = vec![0; SIZE];
                    match file.read_exact_at(&mut bytes, 0) {
                        Ok(()) => {
                            assert!(versions.contains(&bytes), "a mix of versions");
                            whole += 1;
                        }
                        Err(error) => {
                            assert!(matches!(error.raw_os_error(), Some(libc::ESTALE | libc::EIO)), "{error}");
                        }
                    }
                }
            });
        }
    });
}
