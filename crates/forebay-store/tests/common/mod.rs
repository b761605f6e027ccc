//! Blocks whose bytes are a function of their name, so that any byte that is read can be checked.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use forebay_memory::{Pool, PoolOptions, Span};
use forebay_store::{DiskOptions, Keep, Store, StoreOptions};
use forebay_types::{BlockKey, ByteSize, FileId, SECTOR_SIZE, SectorRange};

pub(crate) const S: u32 = SECTOR_SIZE;
pub(crate) const BLOCK: u32 = 4 << 20;

pub(crate) fn key(file: u8, index: u64) -> BlockKey {
    BlockKey { file: FileId([file; 16]), index }
}

/// Twice a sector of noise: each sector of each block is a window of it, so that bytes are made and compared by slices.
static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = (0..u64::from(2 * S) / 8).map(|word| (word + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    words.flat_map(|word| (word ^ word >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes()).collect()
});

/// The right bytes of one sector of a block.
pub(crate) fn sector_bytes(key: &BlockKey, sector: u32) -> &'static [u8] {
    let salt = (u64::from(key.file.0[0]) << 40) + (key.index << 8) + u64::from(sector) + 1;
    let start = (salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % S as usize;
    &NOISE[start..start + S as usize]
}

/// Calls back with each piece of `bytes`, which start at `offset` of a block, and the right bytes for it.
fn by_sector(key: &BlockKey, offset: u32, length: usize, mut each: impl FnMut(std::ops::Range<usize>, &'static [u8])) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u32;
        let right = &sector_bytes(key, at / S)[(at % S) as usize..];
        let right = &right[..right.len().min(length - done)];
        each(done..done + right.len(), right);
        done += right.len();
    }
}

/// Whether these are the right bytes at `offset` of a block.
pub(crate) fn is_right(key: &BlockKey, offset: u32, bytes: &[u8]) -> bool {
    let mut right = true;
    by_sector(key, offset, bytes.len(), |range, expected| right &= bytes[range] == *expected);
    right
}

pub(crate) fn pool(mib: u64) -> Pool {
    Pool::new(PoolOptions::fixed(ByteSize::mib(mib))).unwrap()
}

pub(crate) fn sectors(start: u32, end: u32) -> SectorRange {
    SectorRange::new(start, end).unwrap()
}

pub(crate) fn in_memory(mib: u64) -> StoreOptions {
    // A busy machine may make any disk wait.
    let (alloc_deadline, disk_read_timeout) = (Duration::from_secs(10), Duration::ZERO);
    StoreOptions { alloc_deadline, disk_read_timeout, ..StoreOptions::in_memory(pool(mib)) }
}

/// A store with one disk, whose queue takes a whole pool so that nothing is skipped.
pub(crate) fn on_disk(memory_mib: u64, dir: &Path, disk_mib: u64) -> StoreOptions {
    StoreOptions {
        disks: vec![DiskOptions { dir: dir.to_owned(), size: ByteSize::mib(disk_mib) }],
        disk_queue: ByteSize::mib(memory_mib),
        ..in_memory(memory_mib)
    }
}

/// Publishes the right bytes.
pub(crate) async fn fill(store: &Store, key: BlockKey, sectors: SectorRange, block_length: u32) -> Span {
    fill_as(store, key, sectors, block_length, Keep::default()).await
}

/// The same, to be kept in a certain way.
pub(crate) async fn fill_as(store: &Store, key: BlockKey, sectors: SectorRange, block_length: u32, keep: Keep) -> Span {
    let length = sectors.byte_len(block_length);
    let mut landing = store.landing(length).await.unwrap();
    by_sector(&key, sectors.byte_offset(), length as usize, |range, right| landing[range].copy_from_slice(right));
    store.publish_as(key, sectors, block_length, landing, None, keep)
}

pub(crate) fn assert_right(key: &BlockKey, offset: u32, length: u32, spans: &[Span]) {
    let mut at = offset;
    for span in spans {
        assert!(is_right(key, at, span), "wrong bytes in {at}.. of {key}");
        at += span.len() as u32;
    }
    assert_eq!(at - offset, length);
}

/// A right read; whether it hit, and from where.
pub(crate) async fn check(store: &Store, key: &BlockKey, offset: u32, length: u32) -> Option<(u32, u32)> {
    let read = store.read(key, offset, length).await.unwrap()?;
    assert_right(key, offset, length, &read.spans);
    assert_eq!(read.from_memory + read.from_disk, length);
    Some((read.from_memory, read.from_disk))
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Puts a block that is only on disk there.
pub(crate) async fn put_on_disk(dir: &Path, key: BlockKey, range: SectorRange, block_length: u32) {
    let store = Store::open(on_disk(16, dir, 40)).await.unwrap();
    fill(&store, key, range, block_length).await;
    store.flush().await;
    store.close().await;
}
