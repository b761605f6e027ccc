use std::time::{Duration, UNIX_EPOCH};

use super::*;
use crate::attributes::Kind;

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

fn file() -> Attributes {
    Attributes {
        ino: 0x11,
        size: 0x1234_5678_9abc,
        blocks: 0x33,
        atime: UNIX_EPOCH + Duration::new(100, 1),
        mtime: UNIX_EPOCH + Duration::new(200, 2),
        ctime: UNIX_EPOCH - Duration::from_nanos(1),
        kind: Kind::RegularFile,
        perm: 0o4644,
        nlink: 2,
        uid: 1000,
        gid: 1001,
        rdev: 0x44,
        blksize: 1 << 20,
    }
}

/// The 88 bytes of [`file`].
fn assert_is_file(bytes: &[u8]) {
    assert_eq!(bytes.len(), 88);
    let numbers = [0x11, 0x1234_5678_9abc, 0x33, 100, 200, -1i64 as u64];
    for (index, number) in numbers.into_iter().enumerate() {
        assert_eq!(u64_at(bytes, index * 8), number, "number {index}");
    }
    let words = [1, 2, 999_999_999, 0o100_000 | 0o4644, 2, 1000, 1001, 0x44, 1 << 20, 0];
    for (index, word) in words.into_iter().enumerate() {
        assert_eq!(u32_at(bytes, 48 + index * 4), word, "word {index}");
    }
}

const SECOND_AND_A_HALF: Duration = Duration::from_millis(1500);
const A_MINUTE: Duration = Duration::from_secs(60);

#[test]
fn an_answer_begins_with_its_length_its_error_and_whose_it_is() {
    let fine = header(0x0102_0304_0506_0708, Ok(128));
    assert_eq!((u32_at(&fine, 0), u32_at(&fine, 4), u64_at(&fine, 8)), (144, 0, 0x0102_0304_0506_0708));
    let failed = header(7, Err(Errno::ENOENT));
    assert_eq!((u32_at(&failed, 0), u32_at(&failed, 4) as i32, u64_at(&failed, 8)), (16, -2, 7));
}

#[test]
fn attributes_follow_how_long_they_may_be_believed() {
    let record = attributes(&file(), SECOND_AND_A_HALF);
    assert_eq!((u64_at(&record, 0), u32_at(&record, 8), u32_at(&record, 12)), (1, 500_000_000, 0));
    assert_is_file(&record[16..]);
}

#[test]
fn an_entry_has_two_times_to_be_believed() {
    let record = entry(&file(), 9, SECOND_AND_A_HALF, A_MINUTE);
    assert_eq!(record.len(), 128);
    assert_eq!([0, 8, 16, 24].map(|offset| u64_at(&record, offset)), [0x11, 9, 1, 60]);
    assert_eq!([32, 36].map(|offset| u32_at(&record, offset)), [500_000_000, 0]);
    assert_is_file(&record[40..]);
}

#[test]
fn no_entry_is_inode_0_for_a_time() {
    let record = no_entry(SECOND_AND_A_HALF);
    assert_eq!(record.len(), 128);
    assert_eq!([0, 8, 16, 24].map(|offset| u64_at(&record, offset)), [0, 0, 1, 0]);
    assert_eq!([32, 36].map(|offset| u32_at(&record, offset)), [500_000_000, 0]);
    assert_eq!(record[40..], [0; 88]);
}

#[test]
fn a_file_is_passed_through_if_and_only_if_there_is_one_to_read_instead() {
    let record = opened(0xabcd, OpenedFlags::KEEP_CACHE | OpenedFlags::PASSTHROUGH, None);
    assert_eq!(record.len(), 16);
    assert_eq!((u64_at(&record, 0), u32_at(&record, 8), u32_at(&record, 12)), (0xabcd, 2, 0));
    let record = opened(0xabcd, OpenedFlags::NOFLUSH, Some(3));
    assert_eq!((u64_at(&record, 0), u32_at(&record, 8), u32_at(&record, 12)), (0xabcd, 0b1010_0000, 3));
}

#[test]
fn what_is_created_is_an_entry_that_is_open() {
    let record = created(&file(), 0, A_MINUTE, 5, OpenedFlags::KEEP_CACHE, None);
    assert_eq!(record.len(), 144);
    assert_eq!(record[..128], *entry(&file(), 0, A_MINUTE, A_MINUTE));
    assert_eq!(record[128..], *opened(5, OpenedFlags::KEEP_CACHE, None));
}

#[test]
fn counts_have_32_bits_or_64() {
    assert_eq!((written(77).len(), u32_at(&written(77), 0), u32_at(&written(77), 4)), (8, 77, 0));
    assert_eq!(xattr_size(78), written(78));
    assert_eq!((copied(1 << 40).len(), u64_at(&copied(1 << 40), 0)), (8, 1 << 40));
    assert_eq!(offset(1 << 41), copied(1 << 41));
}

#[test]
fn statfs_has_its_numbers_in_order() {
    let record = statfs(&Statfs {
        blocks: 1,
        free_blocks: 2,
        available_blocks: 3,
        files: 4,
        free_files: 5,
        block_size: 6,
        name_length: 7,
        fragment_size: 8,
    });
    assert_eq!(record.len(), 80);
    assert_eq!([0, 8, 16, 24, 32].map(|offset| u64_at(&record, offset)), [1, 2, 3, 4, 5]);
    assert_eq!([40, 44, 48].map(|offset| u32_at(&record, offset)), [6, 7, 8]);
    assert_eq!(record[52..], [0; 28]);
}

#[test]
fn only_permissions_are_taken_for_permissions() {
    let odd = Attributes { perm: 0o177_777, kind: Kind::Directory, ..file() };
    assert_eq!(u32_at(&attributes(&odd, A_MINUTE), 16 + 60), libc::S_IFDIR | 0o7777);
}

#[test]
fn times_before_1970_are_seconds_before_and_nanoseconds_after() {
    assert_eq!(since_1970(UNIX_EPOCH), (0, 0));
    assert_eq!(since_1970(UNIX_EPOCH - Duration::from_secs(5)), (-5, 0));
    assert_eq!(since_1970(UNIX_EPOCH - Duration::new(5, 1)), (-6, 999_999_999));
}
