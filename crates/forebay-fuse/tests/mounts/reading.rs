//! Bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;

use forebay_fuse::{MountOptions, Operation};
use forebay_types::ByteSize;
use rand::{Rng, SeedableRng};

use crate::bucket::{BLOCK_SIZE, Bucket, pattern};
use crate::child::Actor;
use crate::harness::{MINUTE, Mounted, options, skipped, wait_until};

const SIZE: usize = 5 * BLOCK_SIZE as usize + 12_345;

fn mounted() -> Mounted {
    let bucket = Bucket::new(MINUTE);
    bucket.put("file", pattern(SIZE, 1));
    bucket.put("deep/er/file", pattern(100_000, 2));
    bucket.put("empty", vec![]);
    Mounted::new(bucket)
}

fn read_at(file: &File, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xAA; length];
    let mut filled = 0;
    loop {
        match file.read_at(&mut bytes[filled..], (offset + filled) as u64).unwrap() {
            0 => break,
            n => filled += n,
        }
    }
    bytes.truncate(filled);
    bytes
}

#[test]
fn every_byte_read_at_random_offsets_is_the_objects() {
    let mounted = mounted();
    let expected = pattern(SIZE, 1);
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    for file in [mounted.open_direct("file"), mounted.open("file")] {
        for _ in 0..300 {
            let offset = random.random_range(0..SIZE + 5_000);
            let length = random.random_range(0..=3 * BLOCK_SIZE as usize);
            let within = offset.min(SIZE)..(offset + length).min(SIZE).max(offset.min(SIZE));
            assert!(read_at(&file, offset, length) == expected[within], "{length} bytes at {offset}");
        }
    }
    assert!(fs::read(mounted.path("file")).unwrap() == expected);
    assert!(fs::read(mounted.path("deep/er/file")).unwrap() == pattern(100_000, 2));
}

#[test]
fn an_empty_file_and_the_end_of_a_file_give_nothing() {
    let mounted = mounted();
    assert_eq!(fs::read(mounted.path("empty")).unwrap(), b"");
    assert_eq!(read_at(&mounted.open("file"), SIZE, 10), b"");
    assert_eq!(read_at(&mounted.open_direct("file"), SIZE + 1, 10), b"");
}

#[test]
fn a_mapped_file_shows_the_objects_bytes() {
    let mounted = mounted();
    let mut mapper = Actor::start("map", &mounted.path("file"), None);
    mapper.says("mapped").unwrap();
}

#[test]
fn readers_of_one_handle_and_of_many_see_the_same_bytes() {
    let mounted = mounted();
    let expected = pattern(SIZE, 1);
    let shared = mounted.open_direct("file");
    std::thread::scope(|scope| {
        for reader in 0..16u64 {
            let (mounted, shared, expected) = (&mounted, &shared, &expected);
            scope.spawn(move || {
                let own = mounted.open("file");
                let mut random = rand::rngs::StdRng::seed_from_u64(reader);
                for round in 0..60 {
                    let file = if round % 2 == 0 { &own } else { shared };
                    let offset = random.random_range(0..SIZE);
                    let length = random.random_range(1..=BLOCK_SIZE as usize).min(SIZE - offset);
                    assert!(read_at(file, offset, length) == expected[offset..offset + length]);
                }
            });
        }
    });
}

#[test]
fn a_warm_read_is_answered_at_once() {
    let mounted = mounted();
    let file = mounted.open_direct("file");
    read_at(&file, 0, SIZE);
    let before = mounted.mount.stats();
    read_at(&file, 0, SIZE);
    let after = mounted.mount.stats();
    assert_eq!(after.read_misses, before.read_misses);
    assert!(after.read_hits > before.read_hits);
    assert_eq!(after.read_bytes - before.read_bytes, SIZE as u64);
    wait_until("latencies are counted", || {
        mounted.mount.stats().count(Operation::Read) == after.read_hits + after.read_misses
    });
}

/// How many reads the kernel has asked for.
fn reads(mounted: &Mounted) -> u64 {
    let stats = mounted.mount.stats();
    stats.read_hits + stats.read_misses
}

#[test]
fn the_page_cache_outlives_the_handle() {
    let mounted = mounted();
    fs::read(mounted.path("file")).unwrap();
    let before = reads(&mounted);
    assert!(fs::read(mounted.path("file")).unwrap() == pattern(SIZE, 1));
    assert_eq!(reads(&mounted), before);
}

#[test]
fn a_large_read_comes_in_large_requests() {
    const PAGE: usize = 4096;
    for (max_read, requests) in [(options().max_read, 2), (ByteSize::mib(1), 1)] {
        let bucket = Bucket::new(MINUTE);
        bucket.put("file", pattern(SIZE, 1));
        let mounted = Mounted::with(bucket, MINUTE, &MountOptions { max_read, ..options() });
        let file = mounted.open_direct("file");
        let mut bytes = vec![0; (1 << 20) + PAGE];
        // The kernel counts the pages of the reader's buffer, so it must start with one.
        let start = bytes.as_ptr().align_offset(PAGE);
        let before = reads(&mounted);
        assert_eq!(file.read_at(&mut bytes[start..start + (1 << 20)], 0).unwrap(), 1 << 20);
        assert_eq!(reads(&mounted) - before, requests, "of {max_read}");
        assert!(bytes[start..start + (1 << 20)] == pattern(SIZE, 1)[..1 << 20]);
    }
}

#[test]
fn a_read_of_more_than_a_mebibyte_comes_in_one_request_where_the_kernel_sends_such() {
    const LENGTH: usize = 2 << 20;
    let max_read = ByteSize::bytes(LENGTH as u64);
    if forebay_fuse::largest_read(max_read) < max_read {
        return skipped("fs.fuse.max_pages_limit is below 512 here");
    }
    let bucket = Bucket::new(MINUTE);
    let bytes = pattern(LENGTH, 1);
    bucket.put("file", bytes.clone());
    let mounted = Mounted::with(bucket, MINUTE, &MountOptions { max_read, ..options() });
    let file = mounted.open_direct("file");
    let mut buffer = vec![0; LENGTH + 4096];
    let start = buffer.as_ptr().align_offset(4096);
    let before = reads(&mounted);
    assert_eq!(file.read_at(&mut buffer[start..start + LENGTH], 0).unwrap(), LENGTH);
    assert_eq!(reads(&mounted) - before, 1);
    assert!(buffer[start..start + LENGTH] == bytes);
}

#[test]
fn whatever_would_write_is_refused_at_once() {
    let mounted = mounted();
    let read_only = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{error}");
    let (file, new) = (mounted.path("file"), mounted.path("new"));
    read_only(OpenOptions::new().write(true).open(&file).unwrap_err());
    read_only(OpenOptions::new().read(true).write(true).open(&file).unwrap_err());
    read_only(OpenOptions::new().write(true).truncate(true).open(&file).unwrap_err());
    read_only(OpenOptions::new().append(true).open(&file).unwrap_err());
    read_only(File::create(&new).unwrap_err());
    read_only(fs::create_dir(&new).unwrap_err());
    read_only(fs::remove_file(&file).unwrap_err());
    read_only(fs::remove_dir(mounted.path("deep")).unwrap_err());
    read_only(fs::rename(&file, &new).unwrap_err());
    read_only(fs::hard_link(&file, &new).unwrap_err());
    read_only(std::os::unix::fs::symlink("x", &new).unwrap_err());
    read_only(fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap_err());
}

#[test]
fn copies_and_seeks_work_as_on_any_file() {
    let mounted = mounted();
    let target = tempfile::NamedTempFile::new().unwrap();
    fs::copy(mounted.path("file"), target.path()).unwrap();
    assert!(fs::read(target.path()).unwrap() == pattern(SIZE, 1));
    let file = mounted.open("file");
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(5)), Ok(5));
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5)), Ok(SIZE as u64));
    let mut rest = Vec::new();
    rustix::fs::seek(&file, rustix::fs::SeekFrom::End(-10)).unwrap();
    (&file).read_to_end(&mut rest).unwrap();
    assert_eq!(rest, pattern(SIZE, 1)[SIZE - 10..]);
}
