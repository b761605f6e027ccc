//! Disks that fail, in ways that only a fake can be made to.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_memory::{Pool, PoolOptions, Span};
use forebay_types::{BlockKey, ByteSize, FileId, SECTOR_SIZE, SectorRange};
use tempfile::TempDir;

use crate::disk::Slab;
use crate::io::fake::FakeDisk;
use crate::{ServeMode, Store, StoreOptions};

const FRAME: usize = 4160 << 10;

pub(crate) struct Rig {
    pub(crate) store: Store,
    pub(crate) disks: Vec<FakeDisk>,
    _dirs: Vec<TempDir>,
}

/// A store on fake disks, which are waited for however long they take.
pub(crate) fn rig(disks: usize, change: impl FnOnce(&mut StoreOptions)) -> Rig {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(32))).unwrap();
    let in_memory = StoreOptions::in_memory(pool);
    let mut options = StoreOptions { disk_queue: ByteSize::mib(32), disk_read_timeout: Duration::ZERO, ..in_memory };
    change(&mut options);
    let (limits, serve) = (options.disk_limits(disks), options.serve);
    let dirs: Vec<_> = (0..disks).map(|_| tempfile::tempdir().unwrap()).collect();
    let disks: Vec<_> = (0..disks).map(|_| FakeDisk::limited(4096 + 8 * FRAME, limits)).collect();
    let slabs = disks.iter().zip(&dirs).enumerate().map(|(number, (disk, dir))| {
        let mut slab = Slab::over(number, Arc::new(disk.clone()), dir.path(), 8).unwrap();
        slab.can_splice = serve != ServeMode::Dio;
        (slab, Vec::new())
    });
    Rig { store: Store::start(options, slabs.collect()), disks, _dirs: dirs }
}

pub(crate) fn key(index: u64) -> BlockKey {
    BlockKey { file: FileId([4; 16]), index }
}

const SECTORS: SectorRange = SectorRange { start: 0, end: 4 };
pub(crate) const LENGTH: u32 = 4 * SECTOR_SIZE;

pub(crate) async fn fill(store: &Store, key: BlockKey) -> Span {
    let mut landing = store.landing(LENGTH).await.unwrap();
    landing.fill(key.index as u8);
    store.publish(key, SECTORS, LENGTH, landing)
}

/// Pushes everything out of memory that has no reader.
pub(crate) async fn forget_memory(store: &Store) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while store.stats().memory.runs > 0 {
        assert!(Instant::now() < deadline);
        let held: Vec<_> = std::iter::from_fn(|| store.try_landing(4 << 20)).collect();
        drop(tokio::time::timeout(Duration::from_millis(20), store.landing(4 << 20)).await);
        drop(held);
    }
}

pub(crate) async fn is_right(store: &Store, key: BlockKey) -> bool {
    let read = store.read(&key, 0, LENGTH).await.unwrap();
    let read =
        read.inspect(|read| assert!(read.spans.iter().all(|span| span.iter().all(|byte| *byte == key.index as u8))));
    read.is_some()
}

#[tokio::test]
async fn a_disk_that_cannot_be_read_is_a_miss() {
    let rig = rig(1, |_| {});
    fill(&rig.store, key(1)).await;
    rig.store.flush().await;
    forget_memory(&rig.store).await;
    rig.disks[0].fail_reads([ErrorKind::Other]);
    assert!(!is_right(&rig.store, key(1)).await);
    let stats = rig.store.stats();
    assert_eq!((stats.disks[0].read_errors, stats.disks[0].runs, stats.disks[0].used), (1, 0, 0));
    fill(&rig.store, key(1)).await;
    assert!(is_right(&rig.store, key(1)).await);
}

/// Invariant 2.
#[tokio::test]
async fn a_flipped_bit_on_disk_is_a_miss_and_is_filled_again() {
    let rig = rig(1, |_| {});
    fill(&rig.store, key(1)).await;
    rig.store.flush().await;
    forget_memory(&rig.store).await;
    rig.disks[0].tamper(|bytes| bytes[4096 + 4096 + 2 * SECTOR_SIZE as usize + 77] ^= 4);
    assert!(rig.store.read(&key(1), 0, SECTOR_SIZE).await.unwrap().is_some(), "that sector is right");
    assert!(!is_right(&rig.store, key(1)).await);
    assert_eq!(rig.store.stats().disks[0].corrupt_sectors, 1);
    fill(&rig.store, key(1)).await;
    rig.store.flush().await;
    forget_memory(&rig.store).await;
    assert!(is_right(&rig.store, key(1)).await);
}

#[tokio::test]
async fn a_disk_that_fails_writes_is_left_alone_and_still_read() {
    let rig = rig(2, |_| {});
    for index in 0..16 {
        fill(&rig.store, key(index)).await;
    }
    rig.store.flush().await;
    let before = rig.store.stats();
    assert!(before.disks.iter().all(|disk| disk.runs > 0), "{before:?}");
    rig.disks[0].fail_writes(std::iter::repeat_n(ErrorKind::Other, 1000));
    for index in 16..64 {
        fill(&rig.store, key(index)).await;
        rig.store.flush().await;
    }
    let stats = rig.store.stats();
    assert!(stats.disks[0].degraded);
    assert_eq!((stats.disks[0].write_errors, stats.disk_write_skipped), (3, 3), "the others went to the other disk");
    assert_eq!(stats.disks[0].runs, before.disks[0].runs);
    assert_eq!(stats.disks[1].runs, before.disks[1].runs + 45);
    forget_memory(&rig.store).await;
    for index in 0..16 {
        assert!(is_right(&rig.store, key(index)).await, "{index}");
    }
}

#[tokio::test]
async fn a_disk_that_is_full_all_at_once_gets_no_second_write() {
    let rig = rig(1, |_| {});
    rig.disks[0].fail_writes([ErrorKind::StorageFull]);
    for index in 0..5 {
        fill(&rig.store, key(index)).await;
        rig.store.flush().await;
    }
    let stats = rig.store.stats();
    assert!(stats.disks[0].degraded);
    assert_eq!((stats.disks[0].write_errors, stats.disks[0].runs, stats.disks[0].used), (1, 0, 0));
    for index in 0..5 {
        assert!(is_right(&rig.store, key(index)).await, "memory serves on");
    }
}

/// All of it may be there that the kernel said it had failed to write.
#[tokio::test]
async fn what_a_write_that_failed_may_have_left_is_overwritten_when_its_block_is_removed() {
    for removed_first in [false, true] {
        let rig = rig(1, |_| {});
        let held = rig.disks[0].hold().await;
        rig.disks[0].fail_writes([ErrorKind::Other]);
        fill(&rig.store, key(1)).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        while rig.store.stats().disks[0].under_way == 0 {
            assert!(Instant::now() < deadline, "the kernel has it");
            tokio::task::yield_now().await;
        }
        if removed_first {
            rig.store.remove(&key(1));
        }
        drop(held);
        rig.store.flush().await;
        if !removed_first {
            assert!(is_right(&rig.store, key(1)).await, "memory has it");
            rig.store.remove(&key(1));
            rig.store.flush().await;
        }
        assert_eq!(rig.store.stats().disks[0].write_errors, 1, "removed first: {removed_first}");
        let mut is_overwritten = false;
        // The header of the first extent, of which the fake has written nothing.
        rig.disks[0].tamper(|bytes| is_overwritten = bytes[4096..2 * 4096].iter().any(|byte| *byte != 0));
        assert!(is_overwritten, "a restart could find it; removed first: {removed_first}");
        assert_eq!(rig.store.stats().disks[0].used, 0, "and the extent is free again");
    }
}

/// Of disks that are waited for, and of those that may be taken out.
#[tokio::test(start_paused = true)]
async fn what_a_disk_failed_to_forget_is_tried_again_until_it_does_and_harms_nothing_else_meanwhile() {
    for timeout in [Duration::ZERO, Duration::from_secs(2)] {
        let rig = rig(1, |options| options.disk_read_timeout = timeout);
        fill(&rig.store, key(1)).await;
        rig.store.flush().await;
        let header = || {
            let mut header = Vec::new();
            rig.disks[0].tamper(|bytes| header = bytes[4096..2 * 4096].to_vec());
            header
        };
        let (before, used) = (header(), rig.store.stats().disks[0].used);
        rig.disks[0].fail_writes([ErrorKind::Other; 5]);
        rig.store.remove(&key(1));
        rig.store.flush().await;
        let stats = rig.store.stats().disks.swap_remove(0);
        assert_eq!((stats.write_errors, stats.unburied, stats.used), (1, 1, used), "it is given to nobody: {stats:?}");
        assert!(header() == before, "a restart would find it");
        let start = tokio::time::Instant::now();
        while header() == before {
            assert!(start.elapsed() < Duration::from_secs(600), "{:?}", rig.store.stats());
            assert!(!rig.store.stats().disks[0].degraded, "one page is not the disk");
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        assert!(start.elapsed() >= Duration::from_secs(100), "it is not tried all the time");
        rig.store.flush().await;
        let stats = rig.store.stats().disks.swap_remove(0);
        assert_eq!((stats.write_errors, stats.unburied, stats.used), (5, 0, 0), "{stats:?}");
    }
}

#[tokio::test]
async fn a_stuck_disk_holds_up_no_fill_and_no_hit_and_bounds_its_queue() {
    let rig = rig(1, |options| options.disk_queue = ByteSize::mib(4));
    let held = rig.disks[0].hold().await;
    for index in 0..200 {
        fill(&rig.store, key(index)).await;
        assert!(rig.store.try_read(&key(index), 0, LENGTH).is_some());
    }
    assert_eq!(rig.store.stats().disk_queue_bytes, 4 << 20);
    for index in 200..2000 {
        fill(&rig.store, key(index)).await;
    }
    assert!(rig.store.stats().disk_write_skipped > 1000);
    drop(held);
    rig.store.flush().await;
    let stats = rig.store.stats();
    assert!(stats.disks[0].runs >= 32, "what was queued was written");
    forget_memory(&rig.store).await;
    assert!(is_right(&rig.store, key(0)).await);
}

#[tokio::test]
async fn what_is_skipped_for_a_full_queue_is_written_at_its_eviction() {
    let rig = rig(1, |options| options.disk_queue = ByteSize::mib(4));
    let held = rig.disks[0].hold().await;
    for index in 0..64 {
        fill(&rig.store, key(index)).await;
    }
    drop(held);
    rig.store.flush().await;
    assert_eq!(rig.store.stats().disks[0].runs, 32);
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut index = 1000;
    while rig.store.stats().disks[0].runs < 64 {
        assert!(Instant::now() < deadline, "{:?}", rig.store.stats());
        // One at a time, so that the queue has room when those are evicted.
        fill(&rig.store, key(index)).await;
        rig.store.flush().await;
        index += 1;
    }
    forget_memory(&rig.store).await;
    let mut hits = 0;
    for index in 32..64 {
        hits += usize::from(is_right(&rig.store, key(index)).await);
    }
    assert!(hits > 0);
}

#[tokio::test]
async fn a_block_that_is_removed_while_it_is_written_does_not_come_back() {
    let rig = rig(1, |_| {});
    let held = rig.disks[0].hold().await;
    fill(&rig.store, key(1)).await;
    tokio::task::yield_now().await;
    rig.store.remove(&key(1));
    drop(held);
    rig.store.flush().await;
    assert!(!is_right(&rig.store, key(1)).await);
    let stats = rig.store.stats();
    assert_eq!((stats.blocks, stats.disks[0].used, stats.memory.used), (0, 0, 0));
}

/// Invariant 3.
#[tokio::test]
async fn a_read_that_is_given_up_leaves_the_store_whole() {
    let rig = rig(1, |_| {});
    fill(&rig.store, key(1)).await;
    rig.store.flush().await;
    forget_memory(&rig.store).await;
    let held = rig.disks[0].hold().await;
    let key_1 = key(1);
    let mut read = Box::pin(rig.store.read(&key_1, 0, LENGTH));
    assert!(futures::poll!(&mut read).is_pending());
    drop(read);
    assert!(rig.store.stats().memory.used > 0, "the operation has not ended");
    drop(held);
    assert!(is_right(&rig.store, key(1)).await);
    rig.store.remove(&key(1));
    rig.store.flush().await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while rig.store.stats().memory.used > 0 {
        assert!(Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
}

/// A flipped bit in each tier: the audit drops both runs, and says what is left.
#[tokio::test]
async fn an_audit_finds_what_is_corrupt_on_disk_and_keeps_the_rest() {
    let rig = rig(1, |_| {});
    for index in 1..4 {
        fill(&rig.store, key(index)).await;
    }
    rig.store.flush().await;
    let held = rig.store.audit(&key(2)).await.unwrap();
    assert_eq!((held.memory, held.disk), (vec![SECTORS], vec![SECTORS]));
    // The second extent of the first frame.
    let at = 4096 + 4096 + LENGTH as usize + 4096 + 77;
    rig.disks[0].tamper(|bytes| bytes[at] ^= 4);
    let held = rig.store.audit(&key(2)).await.unwrap();
    assert_eq!((held.memory, held.disk), (vec![SECTORS], vec![]));
    assert_eq!(rig.store.stats().disks[0].corrupt_sectors, 1);
    let held = rig.store.audit(&key(3)).await.unwrap();
    assert_eq!((held.memory, held.disk), (vec![SECTORS], vec![SECTORS]));
    assert_eq!(rig.store.audit(&key(9)).await.unwrap(), crate::Coverage::default());
}

#[tokio::test]
async fn a_block_that_is_removed_while_it_is_read_does_not_come_back() {
    let rig = rig(1, |_| {});
    fill(&rig.store, key(1)).await;
    rig.store.flush().await;
    forget_memory(&rig.store).await;
    let held = rig.disks[0].hold().await;
    let key_1 = key(1);
    let mut read = Box::pin(rig.store.read(&key_1, 0, LENGTH));
    assert!(futures::poll!(&mut read).is_pending());
    assert_eq!(rig.store.remove(&key(1)).as_u64(), u64::from(LENGTH));
    drop(held);
    assert!(read.await.unwrap().is_some(), "the reader keeps what it reads");
    assert_eq!(rig.store.stats().blocks, 0);
}

#[tokio::test]
async fn a_block_that_is_removed_on_its_way_from_memory_to_disk_does_not_arrive() {
    let rig = rig(1, |options| options.disk_queue = ByteSize::mib(4));
    let held = rig.disks[0].hold().await;
    for index in 0..64 {
        fill(&rig.store, key(index)).await;
    }
    drop(held);
    rig.store.flush().await;
    // Those that the queue had no room for are only in memory, and are offered again when they are evicted.
    let held = rig.disks[0].hold().await;
    forget_memory(&rig.store).await;
    let is_held = |index: &u64| rig.store.coverage(&key(*index)) != crate::Coverage::default();
    let leaving: Vec<u64> = (0..64).filter(|index| !is_held(index)).collect();
    assert!(!leaving.is_empty());
    for index in &leaving {
        rig.store.remove(&key(*index));
    }
    drop(held);
    rig.store.flush().await;
    for index in &leaving {
        assert!(!is_right(&rig.store, key(*index)).await, "{index}");
    }
}
