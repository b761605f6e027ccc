//! Blocks that lie in a file that is mapped, and frames that are lent.

mod common;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use common::*;
use forebay_memory::{FRAME_SIZE, Place, Pool, PoolOptions, Span, Window};
use forebay_store::{Keep, Store, StoreOptions};
use forebay_types::{BlockKey, ByteSize, FileId, Priority, SectorChecksums};

const MIB: u32 = 1 << 20;

/// The right bytes of a block of a MiB in a file, and a view of them.
fn mapped(key: &BlockKey) -> (File, Span, SectorChecksums) {
    let bytes: Vec<u8> = (0..MIB / S).flat_map(|sector| sector_bytes(key, sector).to_vec()).collect();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    let window = Window::map(file.as_fd(), bytes.len() as u64).unwrap();
    let span = window.span(Place { offset: 0, length: MIB }, Arc::new(())).unwrap();
    (file, span, SectorChecksums::of(&bytes))
}

#[tokio::test]
async fn an_adopted_block_is_read_where_it_lies_and_its_copy_in_the_pool_is_free() {
    let store = Store::open(in_memory(32)).await.unwrap();
    let key = key(1, 0);
    fill(&store, key, sectors(0, 16), MIB).await;
    fill(&store, key, sectors(16, 32), MIB).await;
    assert!(store.pool().used() > 0);
    let (_file, span, checksums) = mapped(&key);
    assert!(store.adopt(key, span, checksums));
    assert_eq!((store.pool().used(), store.stats().memory.runs), (0, 0));
    let read = store.try_read(&key, 100, MIB - 100).unwrap();
    assert_right(&key, 100, MIB - 100, &read);
    assert!(read.iter().all(|span| span.place().is_none()), "where it lies");
    // What comes to the pool is no longer wanted there.
    fill(&store, key, sectors(0, 32), MIB).await;
    assert_eq!(store.stats().memory.runs, 0);
    store.disown(FileId([1; 16]));
    assert!(store.try_read(&key, 0, 1).is_none());
    assert_right(&key, 100, MIB - 100, &read);
    store.close().await;
}

#[tokio::test]
async fn what_was_adopted_is_evicted_for_nothing_and_is_gone_when_it_is_removed() {
    let store = Store::open(in_memory(16)).await.unwrap();
    let adopted = key(1, 0);
    let (_file, span, checksums) = mapped(&adopted);
    assert!(store.adopt(adopted, span, checksums));
    for index in 0..64 {
        fill(&store, key(2, index), sectors(0, 32), BLOCK).await;
    }
    assert_right(&adopted, 0, MIB, &store.try_read(&adopted, 0, MIB).unwrap());
    assert_eq!(store.remove(&adopted).as_u64(), u64::from(MIB));
    assert!(store.try_read(&adopted, 0, 1).is_none());
    store.close().await;
}

#[tokio::test]
async fn a_bit_that_flips_in_an_adopted_block_is_found_like_any_other() {
    let options = StoreOptions { verify_reads: true, ..in_memory(16) };
    let store = Store::open(options).await.unwrap();
    let key = key(1, 0);
    let (file, span, checksums) = mapped(&key);
    assert!(store.adopt(key, span, checksums));
    assert!(store.try_read(&key, 0, MIB).is_some());
    let mut byte = [0];
    file.read_exact_at(&mut byte, 70_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 70_000).unwrap();
    assert!(store.take_wrong().is_empty());
    assert!(store.try_read(&key, 0, MIB).is_none());
    assert_eq!(store.stats().memory.corrupt_sectors, 1);
    let wrong: Vec<_> = store.take_wrong().into_iter().collect();
    assert_eq!((wrong, store.take_wrong().len()), (vec![key.file], 0), "its owner is told once");
    store.close().await;
}

#[tokio::test]
async fn what_is_pinned_in_memory_and_what_has_other_checksums_is_not_adopted() {
    let store = Store::open(in_memory(32)).await.unwrap();
    let key = key(1, 0);
    let pinned = Keep { priority: Priority::Normal, pinned: true, account: None };
    fill_as(&store, key, sectors(0, 32), MIB, pinned).await;
    let (_file, span, checksums) = mapped(&key);
    assert!(!store.adopt(key, span.clone(), checksums.clone()));
    store.give_up(&key);
    assert_eq!(store.stats().memory.pinned_bytes, u64::from(MIB));
    let other = common::key(2, 0);
    assert!(!store.adopt(other, span, checksums.slice(0..1).unwrap()));
    assert!(store.try_read(&other, 0, 1).is_none());
    store.close().await;
}

#[tokio::test]
async fn what_is_given_up_is_gone_from_memory_but_for_its_readers_and_stays_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on_disk(32, dir.path(), 64)).await.unwrap();
    let (read, unread) = (key(1, 0), key(1, 1));
    let reader = fill(&store, read, sectors(0, 32), BLOCK).await;
    drop(fill(&store, unread, sectors(0, 32), BLOCK).await);
    store.flush().await;
    until("the writer has let go of it", || {
        store.give_up(&unread);
        store.coverage(&unread).memory.is_empty()
    })
    .await;
    store.give_up(&read);
    assert_eq!(store.coverage(&read).memory, [sectors(0, 32)], "it is being read");
    assert_eq!(store.coverage(&unread).disk, [sectors(0, 32)]);
    assert!(store.stats().memory.bytes_evicted >= u64::from(MIB));
    drop(reader);
    store.close().await;
}

#[tokio::test]
async fn the_watermarks_are_of_the_frames_that_are_not_lent() {
    // Reserved huge pages are not lent.
    let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) }).unwrap();
    let store = Store::open(StoreOptions::in_memory(pool)).await.unwrap();
    let frames: Vec<_> = std::iter::from_fn(|| store.try_landing(FRAME_SIZE as u32)).take(12).collect();
    assert_eq!(frames.len(), 12, "of 16");
    let lent: Vec<_> = frames.into_iter().map(|frame| frame.lend().unwrap()).collect();
    store.set_lent_frames(12);
    assert!(!store.is_above_watermark(), "nothing is held");
    // Two of the four frames that are left: below nine tenths of them.
    for index in 0..8 {
        fill(&store, key(1, index), sectors(0, 32), BLOCK).await;
    }
    assert_eq!((store.stats().memory.runs, store.stats().memory.runs_evicted), (8, 0));
    drop(lent);
    store.set_lent_frames(0);
    assert_eq!(ByteSize::bytes(store.stats().memory.used), ByteSize::mib(8));
    store.close().await;
}

#[tokio::test]
async fn what_a_policy_says_of_an_adopted_block_holds_on_the_disk_that_gets_it_when_its_file_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on_disk(32, dir.path(), 64)).await.unwrap();
    let key = key(1, 0);
    let (_file, span, checksums) = mapped(&key);
    assert!(store.adopt(key, span, checksums));
    store.reclass_file(key.file, Keep { pinned: true, ..Keep::default() });
    store.disown(key.file);
    store.flush().await;
    assert_eq!(store.coverage(&key).disk, [sectors(0, 32)]);
    assert_eq!(store.stats().disks[0].pinned_bytes, u64::from(MIB));
    store.close().await;
}
