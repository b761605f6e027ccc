//! Disks that hang, in virtual time: they do not fail, and say nothing.

use std::time::Duration;

use tokio::time::Instant;

use crate::faults::{LENGTH, Rig, fill, forget_memory, is_right, key, rig};
use crate::{DiskStats, ServeMode};

const TIMEOUT: Duration = Duration::from_secs(2);
/// What a read may take that does not wait for a disk.
const AT_ONCE: Duration = Duration::from_millis(100);

/// A store on fake disks with these blocks on disk, and not in memory.
async fn filled(disks: usize, blocks: u64) -> Rig {
    let rig = rig(disks, |options| options.disk_read_timeout = TIMEOUT);
    for index in 0..blocks {
        fill(&rig.store, key(index)).await;
    }
    rig.store.flush().await;
    forget_memory(&rig.store).await;
    rig
}

fn disk(rig: &Rig, number: usize) -> DiskStats {
    rig.store.stats().disks.swap_remove(number)
}

/// Waits until the first disk is back.
async fn is_back(rig: &Rig) {
    let start = Instant::now();
    while disk(rig, 0).out {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", disk(rig, 0));
        tokio::time::sleep(TIMEOUT / 4).await;
    }
}

/// Reads blocks, which are all misses, until the first disk is out; the first one that was not read.
async fn take_out(rig: &Rig) -> u64 {
    for index in 0.. {
        if disk(rig, 0).out {
            return index;
        }
        assert!(!is_right(&rig.store, key(index)).await, "{index}");
    }
    unreachable!("there are more numbers than it takes reads")
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_hangs_is_a_miss_in_time_and_is_taken_out_and_comes_back_with_what_it_has() {
    let rig = filled(1, 20).await;
    let held = rig.disks[0].hold().await;
    for index in 0..20 {
        let start = Instant::now();
        assert!(!is_right(&rig.store, key(index)).await, "{index}");
        let longest = if index < 3 { TIMEOUT + AT_ONCE } else { AT_ONCE };
        assert!(start.elapsed() <= longest, "{index}: {:?}", start.elapsed());
    }
    let stats = disk(&rig, 0);
    assert!(stats.out && stats.read_timeouts <= 3 && stats.runs >= 17, "{stats:?}");
    assert_eq!((stats.taken_out, stats.returned), (1, 0));
    assert_eq!(rig.store.coverage(&key(10)), crate::Coverage::default(), "it counts as not held");
    assert!(rig.store.held(None, 1000).is_empty());

    // A block that is fetched meanwhile is served from memory.
    fill(&rig.store, key(5)).await;
    assert!(is_right(&rig.store, key(5)).await);

    tokio::time::sleep(Duration::from_secs(3600)).await;
    let stats = disk(&rig, 0);
    assert!(stats.out && stats.under_way <= 3, "nothing is asked of it while the kernel has reads: {stats:?}");
    drop(held);
    is_back(&rig).await;
    for index in 3..20 {
        assert!(is_right(&rig.store, key(index)).await, "{index}");
    }
    assert_eq!((disk(&rig, 0).taken_out, disk(&rig, 0).returned), (1, 1));
}

/// Whoever sends from the file asks nothing of the store's own reads.
#[tokio::test(start_paused = true)]
async fn a_disk_that_hangs_is_taken_out_though_nothing_is_done_but_to_send_from_its_file() {
    let rig = rig(1, |options| (options.disk_read_timeout, options.serve) = (TIMEOUT, ServeMode::Splice));
    fill(&rig.store, key(1)).await;
    rig.store.flush().await;
    let is_sent = async || rig.store.disk_slice(&key(1), 0, LENGTH).await.is_some();
    assert!(is_sent().await, "it was read, and found right");
    let held = rig.disks[0].hold().await;
    let start = Instant::now();
    while is_sent().await {
        assert!(start.elapsed() < TIMEOUT * 5, "{:?}", disk(&rig, 0));
        tokio::time::sleep(TIMEOUT / 4).await;
    }
    assert!(disk(&rig, 0).out && disk(&rig, 0).under_way == 1, "{:?}", disk(&rig, 0));
    drop(held);
    is_back(&rig).await;
    assert!(is_sent().await);
}

/// It is left in peace, and so may sleep.
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_of_a_disk_that_nobody_reads() {
    let rig = rig(1, |options| (options.disk_read_timeout, options.serve) = (TIMEOUT, ServeMode::Splice));
    fill(&rig.store, key(1)).await;
    rig.store.flush().await;
    assert!(rig.store.disk_slice(&key(1), 0, LENGTH).await.is_some());
    tokio::time::sleep(TIMEOUT * 2).await;
    let _held = rig.disks[0].hold().await;
    tokio::time::sleep(TIMEOUT * 20).await;
    let stats = disk(&rig, 0);
    assert!(!stats.out && stats.under_way == 0, "{stats:?}");
}

#[tokio::test(start_paused = true)]
async fn readers_who_wait_for_one_run_are_all_told_in_time() {
    let rig = filled(1, 4).await;
    let _held = rig.disks[0].hold().await;
    let start = Instant::now();
    let reads = (0..50).map(|_| is_right(&rig.store, key(1)));
    assert!(futures::future::join_all(reads).await.iter().all(|found| !found));
    assert!(start.elapsed() <= TIMEOUT + AT_ONCE, "{:?}", start.elapsed());
    assert!(rig.store.stats().disks[0].under_way <= 1, "one of them read for all");
}

/// Invariant 3: what the kernel has is not given to anybody; invariant 6: there is a bound on it.
#[tokio::test(start_paused = true)]
async fn a_disk_that_hangs_has_no_more_memory_than_its_share() {
    let rig = filled(1, 200).await;
    let held = rig.disks[0].hold().await;
    let start = Instant::now();
    let keys: Vec<_> = (0..200).map(key).collect();
    let reads = keys.iter().map(|key| rig.store.read_at_once(key, 0, LENGTH));
    assert!(futures::future::join_all(reads).await.iter().all(Option::is_none));
    assert!(start.elapsed() <= TIMEOUT * 2 + AT_ONCE);
    let stats = rig.store.stats();
    assert!(stats.disks[0].out && stats.disks[0].under_way > 0, "{stats:?}");
    let (used, share) = (stats.memory.used, stats.memory.capacity / 2);
    assert!(used > 0 && used <= share, "{used} of {share} are in use");
    drop(held);
    is_back(&rig).await;
    assert_eq!(rig.store.stats().memory.used, 0);
}

#[tokio::test(start_paused = true)]
async fn what_a_disk_has_that_hangs_is_cached_on_another_one_meanwhile() {
    let rig = filled(2, 16).await;
    assert!(disk(&rig, 0).runs > 0 && disk(&rig, 1).runs > 0);
    let held = rig.disks[0].hold().await;
    for index in 0..16 {
        if !is_right(&rig.store, key(index)).await {
            fill(&rig.store, key(index)).await;
        }
    }
    while !disk(&rig, 0).out {
        tokio::time::sleep(TIMEOUT).await;
    }
    for _ in 0..3 {
        // What the first disk was to have and did not get is offered to the other one when memory is left.
        rig.store.flush().await;
        forget_memory(&rig.store).await;
    }
    assert_eq!(rig.store.stats().disk_queue_bytes, 0);
    for index in 0..16 {
        let start = Instant::now();
        assert!(is_right(&rig.store, key(index)).await, "{index}");
        assert!(start.elapsed() <= AT_ONCE);
    }
    drop(held);
    is_back(&rig).await;
    forget_memory(&rig.store).await;
    for index in 0..16 {
        assert!(is_right(&rig.store, key(index)).await, "{index}");
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_queued_for_a_disk_that_is_out() {
    let rig = filled(1, 8).await;
    let held = rig.disks[0].hold().await;
    take_out(&rig).await;
    for index in 100..1000 {
        fill(&rig.store, key(index)).await;
        assert!(rig.store.try_read(&key(index), 0, LENGTH).is_some());
    }
    let start = Instant::now();
    rig.store.flush().await;
    assert!(start.elapsed() <= AT_ONCE);
    let stats = rig.store.stats();
    assert_eq!(stats.disk_queue_bytes, 0);
    assert!(stats.disks[0].under_way <= 3);
    drop(held);
    is_back(&rig).await;
    let written = disk(&rig, 0).runs_written;
    fill(&rig.store, key(2000)).await;
    rig.store.flush().await;
    assert!(disk(&rig, 0).runs_written > written);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_removed_while_its_disk_is_out_does_not_come_back() {
    let rig = filled(1, 8).await;
    let held = rig.disks[0].hold().await;
    let index = take_out(&rig).await;
    assert!(index < 8);
    let (before, removed) = (disk(&rig, 0), key(index));
    assert_eq!(rig.store.remove(&removed).as_u64(), u64::from(LENGTH));
    rig.store.flush().await;
    assert_eq!(disk(&rig, 0).unburied, 1);
    drop(held);
    is_back(&rig).await;
    while disk(&rig, 0).unburied > 0 {
        tokio::time::sleep(TIMEOUT).await;
    }
    rig.store.flush().await;
    assert!(!is_right(&rig.store, removed).await);
    assert!(disk(&rig, 0).used < before.used, "the extent is free again");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_not_waited_for_any_more_leaves_nothing_behind_of_a_block_that_is_removed() {
    for removed_first in [false, true] {
        let rig = filled(1, 0).await;
        let held = rig.disks[0].hold().await;
        fill(&rig.store, key(1)).await;
        // The kernel has it.
        while disk(&rig, 0).under_way == 0 {
            tokio::task::yield_now().await;
        }
        if removed_first {
            rig.store.remove(&key(1));
        }
        let start = Instant::now();
        rig.store.flush().await;
        let waited = start.elapsed();
        assert!((TIMEOUT * 5..TIMEOUT * 6).contains(&waited), "{waited:?}");
        assert!(disk(&rig, 0).out);
        if !removed_first {
            assert!(is_right(&rig.store, key(1)).await, "memory has it");
            rig.store.remove(&key(1));
            rig.store.flush().await;
        }
        assert_eq!(disk(&rig, 0).unburied, 1, "removed first: {removed_first}");
        drop(held);
        is_back(&rig).await;
        while disk(&rig, 0).unburied > 0 {
            tokio::time::sleep(TIMEOUT).await;
        }
        rig.store.flush().await;
        let stats = rig.store.stats();
        assert_eq!((stats.disks[0].used, stats.memory.used, stats.blocks), (0, 0, 0), "removed first: {removed_first}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_closes_while_a_disk_hangs() {
    let rig = filled(1, 8).await;
    let _held = rig.disks[0].hold().await;
    take_out(&rig).await;
    let start = Instant::now();
    rig.store.flush().await;
    rig.store.close().await;
    assert!(start.elapsed() <= Duration::from_secs(10), "{:?}", start.elapsed());
}
