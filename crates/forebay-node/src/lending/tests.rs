//! A store that lends, with the kernel's real memory.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use forebay_memory::{Pool, PoolOptions};
use forebay_store::{Prewarm, StoreOptions};
use forebay_types::SectorRange;

use super::*;

const MIB: u64 = 1 << 20;
const BLOCK: u32 = FRAME;

async fn store(mib: u64) -> Store {
    // Reserved huge pages are not lent.
    let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(mib)) }).unwrap();
    let alloc_deadline = Duration::from_secs(60);
    Store::open(StoreOptions { alloc_deadline, ..StoreOptions::in_memory(pool) }).await.unwrap()
}

fn key(file: u8, index: u64) -> BlockKey {
    BlockKey { file: FileId([file; 16]), index }
}

/// Publishes a whole block.
async fn fill(store: &Store, key: BlockKey, byte: u8) {
    let mut landing = store.landing(BLOCK).await.unwrap();
    landing.fill(byte);
    let sectors = SectorRange::covering(0, BLOCK).unwrap();
    drop(store.publish(key, sectors, BLOCK, landing));
}

#[tokio::test]
async fn what_is_lent_is_used_memory_of_the_pool_until_it_is_given_back() {
    let store = store(128).await;
    let lender = StoreLender::over(&store, false).unwrap();
    assert_eq!((lender.most(), store.pool().used()), (ByteSize::mib(64), 0));
    assert!(lender.lend(10 * MIB, true).await && lender.lend(MIB, true).await);
    assert_eq!(store.pool().used(), 12 * MIB);
    assert!(!lender.lend(60 * MIB, true).await, "that is more than half");
    assert_eq!(store.pool().used(), 12 * MIB, "nothing is taken in vain");
    lender.give_back(11 * MIB);
    assert_eq!(store.pool().used(), 0);
    lender.lingers(5 * MIB);
    assert_eq!(store.pool().used(), 8 * MIB);
    lender.lingers(0);
    assert_eq!(store.pool().used(), 0);
    store.close().await;
}

#[tokio::test]
async fn a_file_that_is_gone_and_mapped_takes_what_it_took_and_nothing_goes_for_it() {
    let store = store(128).await;
    let lender = StoreLender::over(&store, false).unwrap();
    assert!(lender.lend(40 * MIB, true).await);
    // Just below nine tenths of what is left.
    for index in 0..19 {
        fill(&store, key(1, index), 1).await;
    }
    lender.is_gone(40 * MIB, 40 * MIB);
    // Eviction looks once a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!((0..19).all(|index| store.is_in_memory(&key(1, index), 0, BLOCK)), "nothing went");
    assert_eq!(store.stats().memory.runs_evicted, 0);
    assert_eq!(store.pool().used(), (40 + 19 * 4) * MIB);
    lender.is_gone(0, 0);
    assert_eq!(store.pool().used(), 19 * 4 * MIB);
    store.close().await;
}

#[tokio::test]
async fn a_store_whose_memory_is_taken_ahead_lends_from_the_start() {
    let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(128)) }).unwrap();
    let options = StoreOptions { prewarm: Prewarm::AtStart, ..StoreOptions::in_memory(pool) };
    let store = Store::open(options).await.unwrap();
    let lender = StoreLender::over(&store, false).unwrap();
    assert!(lender.lend(10 * MIB, true).await);
    assert_eq!(store.pool().used(), 12 * MIB);
    store.close().await;
}

#[tokio::test]
async fn blocks_go_for_what_is_lent_those_first_that_are_in_a_file_too() {
    let store = store(128).await;
    let lender = StoreLender::over(&store, false).unwrap();
    // Just below nine tenths of 32 frames.
    for index in 0..28 {
        fill(&store, key(1, index), 1).await;
    }
    let is_there = |index| store.is_in_memory(&key(1, index), 0, BLOCK);
    lender.is_doubled(key(1, 27));
    assert!(lender.lend(4 * MIB, true).await);
    assert!(is_there(27), "there was room");
    assert!(lender.lend(4 * MIB, true).await);
    assert!(!is_there(27), "it is in a file too");
    assert!(lender.lend(56 * MIB, true).await);
    assert_eq!(store.stats().memory.used / MIB / 4, 16 + (0..28).filter(|index| is_there(*index)).count() as u64);
    lender.give_back(64 * MIB);
    fill(&store, key(2, 0), 2).await;
    assert!(store.is_in_memory(&key(2, 0), 0, BLOCK), "the memory is the store's again");
    store.close().await;
}

#[tokio::test]
async fn no_block_goes_for_files_that_may_have_what_is_spare_only() {
    let store = store(128).await;
    let lender = StoreLender::over(&store, false).unwrap();
    let blocks = 20;
    for index in 0..blocks {
        fill(&store, key(1, index), 1).await;
    }
    let mut lent = 0;
    while lender.lend(MIB, false).await {
        lent += 1;
        assert!(lent <= 64, "that is all that can be lent");
    }
    // 20 of 32 frames are used, and nine tenths of those that are not lent may be.
    assert_eq!(lent, 9 * 4);
    assert!(!store.is_above_watermark() && store.spare_memory() < u64::from(FRAME));
    // Eviction looks by itself once a second, too.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!((0..blocks).all(|index| store.is_in_memory(&key(1, index), 0, BLOCK)), "nothing went");
    assert!(lender.lend(4 * MIB, true).await, "others may have something evicted");
    store.close().await;
}

#[tokio::test]
async fn the_blocks_of_a_whole_file_lie_in_it_until_it_leaves() {
    let store = store(128).await;
    let lender = StoreLender::over(&store, false).unwrap();
    let bytes: Vec<u8> = (0..BLOCK as usize + 100_001).map(|at| (at / 1000) as u8).collect();
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    let layout = BlockLayout::new(bytes.len() as u64, BLOCK);
    fill(&store, key(1, 0), 7).await;
    lender.is_whole(FileId([1; 16]), layout, file.into(), &SectorChecksums::of(&bytes));
    assert_eq!(store.pool().used(), 0, "the copy in the pool is gone");
    let first = store.try_read(&key(1, 0), 0, BLOCK).unwrap();
    assert!(first[0][..] == bytes[..BLOCK as usize]);
    assert!(store.try_read(&key(1, 1), 0, 100_001).unwrap()[0][..] == bytes[BLOCK as usize..]);
    lender.leaves(FileId([1; 16]));
    assert!(store.try_read(&key(1, 0), 0, 1).is_none());
    assert!(first[0][..] == bytes[..BLOCK as usize], "its readers keep it");
    store.close().await;
}

#[tokio::test]
async fn a_small_file_is_the_first_to_leave_a_store_that_needs_room_unless_peers_ask_for_it() {
    for has_peers in [false, true] {
        let store = store(128).await;
        let lender = StoreLender::over(&store, has_peers).unwrap();
        let mut landing = store.landing(1000).await.unwrap();
        landing.fill(1);
        drop(store.publish(key(1, 0), SectorRange::covering(0, 1000).unwrap(), 1000, landing));
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[1; 1000], 0).unwrap();
        let layout = BlockLayout::new(1000, BLOCK);
        lender.is_whole(FileId([1; 16]), layout, file.into(), &SectorChecksums::of(&[1; 1000]));
        let is_there = || store.is_in_memory(&key(1, 0), 0, 1000);
        assert!(is_there(), "who opened it before may read it from here");
        // Just above nine tenths of 32 frames; the file has one to itself.
        for index in 0..29 {
            fill(&store, key(2, index), 2).await;
        }
        assert!(store.try_read(&key(1, 0), 0, 1000).is_some(), "it is used as much as others");
        assert!(lender.lend(MIB, true).await);
        assert_eq!(is_there(), has_peers);
        store.close().await;
    }
}

#[tokio::test]
async fn after_the_end_nothing_is_lent_and_the_store_has_all_of_its_memory() {
    let store = store(128).await;
    let lender = StoreLender::over(&store, false).unwrap();
    assert!(lender.lend(20 * MIB, true).await);
    lender.end();
    assert_eq!(store.pool().used(), 0);
    assert!(!lender.lend(1, true).await);
    lender.give_back(20 * MIB);
    lender.lingers(MIB);
    assert!(lender.wanted_back(Instant::now()).is_none());
    assert_eq!(store.pool().used(), 0);
    store.close().await;
}

#[tokio::test]
async fn a_small_pool_lends_nothing_and_says_so() {
    let store = store(64).await;
    let why = StoreLender::over(&store, false).unwrap_err();
    assert!(why.contains("worker.memory.size"), "{why}");
    store.close().await;
}
