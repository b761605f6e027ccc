//! Priorities, pins and quotas: what goes first, what stays, and that no reader ever fails for it.

mod common;

use common::*;
use forebay_store::{Account, Keep, Store, StoreOptions};
use forebay_types::{ByteSize, Priority};

const PINNED: Keep = Keep { priority: Priority::Normal, pinned: true, account: None };

fn of(priority: Priority) -> Keep {
    Keep { priority, ..Keep::default() }
}

fn of_account(name: &str) -> Keep {
    Keep { account: Some(Account::of(name.as_bytes())), ..Keep::default() }
}

/// How many of these blocks of a file memory has the first MiB of. It is no read of them.
fn in_memory_of(store: &Store, file: u8, blocks: std::ops::Range<u64>) -> usize {
    blocks.filter(|index| store.coverage(&key(file, *index)).memory == [sectors(0, 32)]).count()
}

#[tokio::test]
async fn low_priority_goes_before_normal_and_normal_before_high() {
    let store = Store::open(in_memory(64)).await.unwrap();
    // 16 MiB of each, the low ones being read all the time.
    for index in 0..16 {
        fill_as(&store, key(3, index), sectors(0, 32), BLOCK, of(Priority::High)).await;
        fill_as(&store, key(1, index), sectors(0, 32), BLOCK, of(Priority::Low)).await;
        fill_as(&store, key(2, index), sectors(0, 32), BLOCK, of(Priority::Normal)).await;
    }
    for index in 0..64 {
        fill(&store, key(2, 100 + index), sectors(0, 32), BLOCK).await;
        (0..16).for_each(|index| _ = store.try_read(&key(1, index), 0, S));
        until("there is room", || store.stats().memory.used <= 58 << 20).await;
    }
    assert_eq!(in_memory_of(&store, 1, 0..16), 0, "low goes though it is read");
    assert_eq!(in_memory_of(&store, 3, 0..16), 16, "high stays while there is anything else");
    for index in 0..128 {
        fill_as(&store, key(4, index), sectors(0, 32), BLOCK, of(Priority::High)).await;
        until("there is room", || store.stats().memory.used <= 58 << 20).await;
    }
    assert!(in_memory_of(&store, 3, 0..16) < 16, "high goes when there is nothing else");
}

#[tokio::test]
async fn pinned_runs_stay_whatever_comes_until_they_are_removed() {
    let store = Store::open(in_memory(64)).await.unwrap();
    for index in 0..8 {
        fill_as(&store, key(1, index), sectors(0, 32), BLOCK, PINNED).await;
    }
    for index in 0..300 {
        fill(&store, key(2, index), sectors(0, 32 + (index % 3) as u32 * 40), BLOCK).await;
    }
    assert_eq!(in_memory_of(&store, 1, 0..8), 8);
    assert_eq!(store.stats().memory.pinned_bytes, 8 << 20);
    assert_eq!(store.remove(&key(1, 0)).as_u64(), 1 << 20);
    assert_eq!(store.stats().memory.pinned_bytes, 7 << 20);
    // What is no longer pinned goes like everything else.
    store.reclass_file(key(1, 0).file, Keep::default());
    assert_eq!(store.stats().memory.pinned_bytes, 0);
    for index in 0..300 {
        fill(&store, key(3, index), sectors(0, 32), BLOCK).await;
    }
    assert_eq!(in_memory_of(&store, 1, 0..8), 0);
}

/// Invariant 6.
#[tokio::test]
async fn when_everything_is_to_be_pinned_fills_and_reads_go_on() {
    let dir = tempfile::tempdir().unwrap();
    for options in [in_memory(16), on_disk(16, dir.path(), 48)] {
        let has_disk = !options.disks.is_empty();
        let store = Store::open(options).await.unwrap();
        for index in 0..200 {
            // Small ones and large ones, so that pins lie in as many frames as they can.
            let range = if index % 2 == 0 { sectors(0, 1) } else { sectors(0, 128) };
            fill_as(&store, key(1, index), range, BLOCK, PINNED).await;
            fill_as(&store, key(2, index), sectors(0, 1 + index as u32 % 100), BLOCK, PINNED).await;
            if has_disk && index % 10 == 0 {
                store.flush().await;
            }
        }
        let stats = store.stats();
        assert!(stats.memory.pinned_bytes <= stats.memory.capacity / 4 * 3, "{stats:?}");
        assert_eq!(stats.memory.failures, 0);
        for index in 0..200 {
            check(&store, &key(1, index), 0, S).await;
        }
        if has_disk {
            store.flush().await;
            let stats = store.stats();
            assert!(stats.disks[0].pinned_bytes > 0 && stats.disks[0].pinned_bytes <= stats.disks[0].capacity / 4 * 3);
        }
        store.close().await;
    }
}

#[tokio::test]
async fn pins_and_priorities_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on_disk(32, dir.path(), 64)).await.unwrap();
    let account = of_account("/a");
    for index in 0..8 {
        fill_as(&store, key(1, index), sectors(0, 32), BLOCK, PINNED).await;
        fill_as(&store, key(2, index), sectors(0, 32), BLOCK, account).await;
    }
    store.flush().await;
    let stats = store.stats();
    assert_eq!((stats.disks[0].pinned_bytes, stats.memory.pinned_bytes), (8 << 20, 0), "the disk keeps what is pinned");
    store.close().await;
    let store = Store::open(on_disk(32, dir.path(), 64)).await.unwrap();
    assert_eq!(store.stats().disks[0].pinned_bytes, 8 << 20);
    assert_eq!(store.account(Account::of(b"/a")).disk, 8 << 20);
    for index in 0..200 {
        fill(&store, key(3, index), sectors(0, 32), BLOCK).await;
        if index % 8 == 0 {
            store.flush().await;
        }
    }
    for index in 0..8 {
        assert!(check(&store, &key(1, index), 0, 32 * S).await.is_some(), "block {index} was pinned");
    }
    store.close().await;
}

#[tokio::test]
async fn an_account_over_its_quota_gives_up_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store =
        Store::open(StoreOptions { disk_queue: ByteSize::mib(64), ..on_disk(64, dir.path(), 128) }).await.unwrap();
    let account = Account::of(b"/a");
    store.set_quotas([(account, ByteSize::mib(4))]);
    for index in 0..8 {
        fill(&store, key(1, index), sectors(0, 32), BLOCK).await;
    }
    for index in 0..16 {
        fill_as(&store, key(2, index), sectors(0, 32), BLOCK, of_account("/a")).await;
        let used = store.account(account);
        assert!(used.memory <= 4 << 20 && used.disk <= 4 << 20, "{used:?}");
    }
    store.flush().await;
    assert_eq!((store.account(account).memory, store.account(account).disk), (4 << 20, 4 << 20));
    assert_eq!(in_memory_of(&store, 2, 12..16), 4, "the newest stay");
    assert_eq!(in_memory_of(&store, 1, 0..8), 8, "others give up nothing");
    // Larger than its quota: served by the reader that fetched it, not kept.
    store.set_quotas([(account, ByteSize::mib(1))]);
    until("a quota that shrinks is enforced", || store.account(account).memory <= 1 << 20).await;
    until("on disk too", || store.account(account).disk <= 1 << 20).await;
    let bytes = fill_as(&store, key(2, 99), sectors(0, 64), BLOCK, of_account("/a")).await;
    assert_right(&key(2, 99), 0, 64 * S, &[bytes]);
    assert!(check(&store, &key(2, 99), 0, 1).await.is_none());
    assert_eq!(store.stats().over_quota, 1);
    store.set_quotas([]);
    fill_as(&store, key(2, 99), sectors(0, 64), BLOCK, of_account("/a")).await;
    assert!(check(&store, &key(2, 99), 0, 64 * S).await.is_some());
    store.close().await;
}

#[tokio::test]
async fn what_an_account_has_pinned_is_not_given_up_for_what_comes() {
    let store = Store::open(in_memory(64)).await.unwrap();
    let keep = Keep { pinned: true, ..of_account("/a") };
    store.set_quotas([(Account::of(b"/a"), ByteSize::mib(4))]);
    for index in 0..8 {
        fill_as(&store, key(1, index), sectors(0, 32), BLOCK, keep).await;
    }
    assert_eq!(in_memory_of(&store, 1, 0..8), 4);
    assert_eq!((in_memory_of(&store, 1, 0..4), store.stats().over_quota), (4, 4));
    // One that covers another takes its place.
    fill_as(&store, key(1, 0), sectors(0, 32), BLOCK, keep).await;
    fill_as(&store, key(2, 0), sectors(0, 1), BLOCK, of_account("/a")).await;
    assert!(store.try_read(&key(2, 0), 0, 1).is_none());
}
