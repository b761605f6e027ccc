//! The memory tier, without a disk.

mod common;

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use common::*;
use forebay_memory::{Pool, PoolOptions, Sharing};
use forebay_store::{Coverage, Prewarm, Store, StoreOptions};
use forebay_types::{ByteSize, FileId};

#[tokio::test]
async fn what_was_published_is_read_and_nothing_else() {
    let store = Store::open(in_memory(16)).await.unwrap();
    let key = key(1, 7);
    // A last block of 100,000 bytes: its fourth sector is short.
    fill(&store, key, sectors(1, 4), 100_000).await;
    for (offset, length) in [(S, 1), (S, 100_000 - S), (99_999, 1), (2 * S - 1, 2), (40_000, 0)] {
        assert_right(&key, offset, length, &store.try_read(&key, offset, length).unwrap());
        assert_eq!(check(&store, &key, offset, length).await, Some((length, 0)));
    }
    for (offset, length) in [(0, 1), (S - 1, 2), (99_999, 2), (100_000, 1), (u32::MAX, 2), (0, u32::MAX)] {
        assert!(store.try_read(&key, offset, length).is_none(), "{offset} {length}");
        assert!(check(&store, &key, offset, length).await.is_none(), "{offset} {length}");
    }
    assert!(store.try_read(&common::key(1, 8), S, 1).is_none());
    store.close().await;
}

#[tokio::test]
async fn memory_is_taken_ahead_once_a_tenth_of_it_is_used() {
    let size = ByteSize::mib(64);
    let options = PoolOptions { huge_pages: false, sharing: Sharing::Always, ..PoolOptions::fixed(size) };
    let pool = Pool::new(options).unwrap();
    let file = File::from(pool.descriptor().unwrap().try_clone_to_owned().unwrap());
    let backed = || file.metadata().unwrap().blocks() * 512;
    let store =
        Store::open(StoreOptions { prewarm: Prewarm::OnceUsed, ..StoreOptions::in_memory(pool) }).await.unwrap();
    fill(&store, key(1, 0), sectors(0, 128), BLOCK).await;
    // The task has had its turns.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(backed() < size.as_u64() / 10, "{} of it", backed());
    fill(&store, key(1, 1), sectors(0, 128), BLOCK).await;
    let all = async {
        while backed() < size.as_u64() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all of it is taken");
    store.close().await;
}

#[tokio::test]
async fn a_read_is_pieced_together_from_runs() {
    let store = Store::open(in_memory(32)).await.unwrap();
    let key = key(1, 0);
    fill(&store, key, sectors(0, 4), BLOCK).await;
    fill(&store, key, sectors(3, 9), BLOCK).await;
    fill(&store, key, sectors(10, 12), BLOCK).await;
    let spans = store.try_read(&key, S / 2, 8 * S).unwrap();
    assert_eq!(spans.len(), 2);
    assert_right(&key, S / 2, 8 * S, &spans);
    assert!(store.try_read(&key, 0, 10 * S).is_none());
    assert_eq!(store.coverage(&key), Coverage { memory: vec![sectors(0, 9), sectors(10, 12)], disk: vec![] });
}

#[tokio::test]
async fn a_run_that_covers_older_ones_replaces_them() {
    let store = Store::open(in_memory(32)).await.unwrap();
    let key = key(1, 0);
    for sector in 0..8 {
        fill(&store, key, sectors(sector, sector + 1), BLOCK).await;
    }
    assert_eq!(store.stats().memory.runs, 8);
    fill(&store, key, sectors(0, 128), BLOCK).await;
    let stats = store.stats();
    assert_eq!((stats.memory.runs, stats.memory.run_bytes, stats.memory.used), (1, u64::from(BLOCK), u64::from(BLOCK)));
    fill(&store, key, sectors(3, 5), BLOCK).await;
    assert_eq!(store.stats().memory.runs, 1, "a run that is covered adds nothing");
    assert_eq!(store.try_read(&key, 0, BLOCK).unwrap().len(), 1);
}

#[tokio::test]
async fn a_fill_that_is_too_short_is_not_published() {
    let store = Store::open(in_memory(16)).await.unwrap();
    let landing = store.landing(100).await.unwrap();
    store.publish(key(1, 0), sectors(0, 1), BLOCK, landing);
    assert_eq!(store.stats().blocks, 0);
    assert!(store.landing(BLOCK + 1).await.is_err());
    assert!(store.try_landing(BLOCK + 1).is_none());
}

#[tokio::test]
async fn memory_stays_bounded_and_popular_runs_stay() {
    let store = Store::open(in_memory(64)).await.unwrap();
    let popular = key(9, 0);
    fill(&store, popular, sectors(0, 8), BLOCK).await;
    for index in 0..200 {
        fill(&store, key(1, index), sectors(0, 32), BLOCK).await;
        assert_right(&popular, 5, 1000, &store.try_read(&popular, 5, 1000).expect("a popular run stays"));
    }
    until("memory is below the high watermark", || store.stats().memory.used <= 58 << 20).await;
    assert!(store.stats().memory.runs_evicted > 100);
    assert!(store.stats().memory.used > 40 << 20, "eviction does not go too far");
    let held = (0..200).filter(|index| store.try_read(&key(1, *index), 0, 32 * S).is_some()).count() as u64;
    assert_eq!(held + 1, store.stats().memory.runs);
    assert_eq!(store.stats().blocks, store.stats().memory.runs);
}

/// Invariant 4.
#[tokio::test]
async fn bytes_with_a_reader_stay_right_though_their_run_is_evicted() {
    let store = Store::open(in_memory(16)).await.unwrap();
    let mut readers = Vec::new();
    for index in 0..40 {
        fill(&store, key(1, index), sectors(0, 32), BLOCK).await;
        if index % 8 == 0 {
            readers.push((index, store.try_read(&key(1, index), 100, S).unwrap()));
        }
    }
    for (index, spans) in &readers {
        assert_right(&key(1, *index), 100, S, spans);
    }
}

#[tokio::test]
async fn one_who_waits_gets_memory_that_only_readers_held() {
    let store = Store::open(in_memory(16)).await.unwrap();
    let mut readers = Vec::new();
    for index in 0..4 {
        readers.push(fill(&store, key(1, index), sectors(0, 128), BLOCK).await);
    }
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.landing(BLOCK).await }
    });
    until("a run is unlinked for the one who waits", || store.stats().memory.runs < 4).await;
    assert_eq!(store.stats().memory.runs, 3, "and no more than one");
    for (index, reader) in readers.iter().enumerate() {
        assert_right(&key(1, index as u64), 0, BLOCK, std::slice::from_ref(reader));
    }
    readers.clear();
    assert!(waiting.await.unwrap().is_ok());
}

/// Invariant 6.
#[tokio::test]
async fn small_runs_make_way_for_a_large_one() {
    let store = Store::open(in_memory(16)).await.unwrap();
    // Half of each frame: below the watermarks, and yet no frame is free.
    let mut held = Vec::new();
    for index in 0..512 {
        held.push((index, fill(&store, key(1, index), sectors(0, 1), BLOCK).await));
        if index % 2 == 1 {
            held.pop();
        }
    }
    held.clear();
    for index in 0..20 {
        fill(&store, key(2, index), sectors(0, 128), BLOCK).await;
    }
    assert!(store.try_read(&key(2, 19), 0, BLOCK).is_some());
}

#[tokio::test]
async fn when_nothing_can_go_the_wait_ends_with_an_error() {
    let options = StoreOptions { alloc_deadline: std::time::Duration::from_millis(50), ..in_memory(8) };
    let store = Store::open(options).await.unwrap();
    let landings = [store.landing(BLOCK).await.unwrap(), store.landing(BLOCK).await.unwrap()];
    let error = store.landing(1).await.unwrap_err();
    assert!(error.to_string().contains("no free memory"), "{error}");
    drop(landings);
    assert!(store.landing(1).await.is_ok());
}

/// Invariant 2.
#[tokio::test]
async fn a_bit_that_flips_in_memory_is_a_miss_when_reads_are_verified() {
    let store = Store::open(StoreOptions { verify_reads: true, ..in_memory(16) }).await.unwrap();
    let key = key(1, 0);
    let bytes = fill(&store, key, sectors(0, 8), 8 * S - 5).await;
    assert!(store.try_read(&key, 0, 8 * S - 5).is_some());
    flip(&store, &bytes, 3 * S as usize + 17);
    drop(bytes);
    assert_right(&key, 0, 3 * S, &store.try_read(&key, 0, 3 * S).expect("other sectors are still served"));
    assert!(store.try_read(&key, 3 * S, 1).is_none());
    assert_eq!(store.stats().memory.corrupt_sectors, 1);
    assert_eq!((store.stats().memory.runs, store.stats().memory.used), (0, 0), "the run is dropped");
    let bytes = fill(&store, key, sectors(0, 8), 8 * S - 5).await;
    flip(&store, &bytes, 8 * S as usize - 6);
    assert!(check(&store, &key, 7 * S, 10).await.is_none(), "the short sector is checked too");
    fill(&store, key, sectors(0, 8), 8 * S - 5).await;
    assert_eq!(check(&store, &key, 0, 8 * S - 5).await, Some((8 * S - 5, 0)));
}

/// Invariant 2.
#[tokio::test(start_paused = true)]
async fn a_bit_that_flips_in_memory_is_found_when_the_interval_is_over() {
    let interval = Duration::from_secs(10);
    let options = StoreOptions { verify_reads: true, verify_interval: interval, ..in_memory(16) };
    let store = Store::open(options).await.unwrap();
    let (key, length) = (key(1, 0), 8 * S);
    let bytes = fill(&store, key, sectors(0, 8), length).await;
    assert!(store.try_read(&key, 2 * S, 4 * S).is_some());
    flip(&store, &bytes, 3 * S as usize + 17);
    flip(&store, &bytes, 7 * S as usize);
    tokio::time::sleep(interval - Duration::from_secs(1)).await;
    assert!(store.try_read(&key, 3 * S, S).is_some(), "it was checked a moment ago");
    assert_eq!(store.stats().memory.corrupt_sectors, 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(store.try_read(&key, 3 * S + 20, 1).is_none(), "any read of the sector checks it");
    assert_eq!((store.stats().memory.corrupt_sectors, store.stats().memory.runs), (1, 0));
    drop(bytes);

    let bytes = fill(&store, key, sectors(0, 8), length).await;
    flip(&store, &bytes, 3 * S as usize + 17);
    assert!(store.try_read(&key, 2 * S, 2 * S).is_some(), "it was checked when it came");
    tokio::time::sleep(interval).await;
    assert!(store.try_read(&key, 2 * S, S).is_some());
    assert!(store.try_read(&key, 2 * S, 2 * S).is_none(), "each sector stands for itself");
    assert_eq!(store.stats().memory.corrupt_sectors, 2);
    store.close().await;
}

#[tokio::test]
async fn bytes_are_looked_at_where_they_lie_and_stay_there_meanwhile() {
    let store = Store::open(in_memory(32)).await.unwrap();
    let key = key(1, 0);
    fill(&store, key, sectors(0, 4), BLOCK).await;
    fill(&store, key, sectors(4, 6), BLOCK).await;
    let used = store.stats().memory.used;
    let looked = store.try_look(&key, 3 * S + 5, 2 * S, |slices| {
        store.remove(&key);
        assert_eq!(store.stats().memory.used, used, "their memory is not given to others");
        let mut at = 3 * S + 5;
        for slice in slices {
            assert!(is_right(&key, at, slice));
            at += slice.len() as u32;
        }
        (slices.len(), at)
    });
    assert_eq!(looked, Some((2, 5 * S + 5)));
    assert_eq!(store.stats().memory.used, 0);
    assert_eq!(store.try_look(&key, 0, 1, |_| ()), None);
}

#[tokio::test]
async fn whether_bytes_are_in_memory_is_told_without_a_read() {
    let store = Store::open(in_memory(32)).await.unwrap();
    let key = key(1, 0);
    fill(&store, key, sectors(1, 4), BLOCK).await;
    fill(&store, key, sectors(3, 6), BLOCK).await;
    for (offset, length, is_there) in
        [(S, 5 * S, true), (2 * S + 7, 3 * S, true), (S - 1, 2, false), (5 * S, S + 1, false), (u32::MAX, 2, false)]
    {
        assert_eq!(store.is_in_memory(&key, offset, length), is_there, "{length} bytes at {offset}");
    }
    assert!(!store.is_in_memory(&common::key(1, 1), 0, 1));
}

#[tokio::test]
async fn whole_sectors_come_with_their_sums_for_a_reader_that_checks_them_itself() {
    let store = Store::open(StoreOptions { verify_reads: true, ..in_memory(16) }).await.unwrap();
    let (key, length) = (key(1, 0), 8 * S - 5);
    let bytes = fill(&store, key, sectors(0, 8), length).await;
    let (span, checksums) = store.try_read_checksummed(&key, 2 * S, length - 2 * S).unwrap();
    assert_right(&key, 2 * S, length - 2 * S, std::slice::from_ref(&span));
    assert_eq!((checksums.len(), checksums.check(&span)), (6, Ok(())));
    for (offset, length) in [(1, S), (0, S - 1), (7 * S, S - 6), (7 * S, S), (0, 0)] {
        assert!(store.try_read_checksummed(&key, offset, length).is_none(), "{length} bytes at {offset}");
    }
    flip(&store, &bytes, 3 * S as usize + 17);
    let (span, checksums) = store.try_read_checksummed(&key, 2 * S, length - 2 * S).unwrap();
    assert_eq!(checksums.check(&span), Err(1));
    assert!(check(&store, &key, 3 * S, S).await.is_none(), "an ordinary read finds it and drops the run");
    assert!(store.try_read_checksummed(&key, 2 * S, S).is_none());

    let mut landing = store.landing(2 * S).await.unwrap();
    landing.fill(7);
    let checksums = forebay_types::SectorChecksums::of(&landing);
    store.publish_checksummed(key, sectors(0, 2), length, landing, checksums.clone());
    assert_eq!(store.try_read_checksummed(&key, S, S).unwrap().1, checksums.slice(1..2).unwrap());
}

fn flip(store: &Store, bytes: &[u8], at: usize) {
    let (base, length) = store.pool().mapping();
    let within = bytes.as_ptr().addr() - base.as_ptr().addr() + at;
    assert!(within < length);
    // SAFETY: inside the mapping, and no reference to these bytes is in use: faulty memory does not ask for more.
    unsafe { *base.as_ptr().add(within) ^= 0x10 };
}

#[tokio::test]
async fn what_was_removed_is_gone() {
    let store = Store::open(in_memory(32)).await.unwrap();
    for index in 0..4 {
        fill(&store, key(1, index), sectors(0, 2), BLOCK).await;
        fill(&store, key(2, index), sectors(0, 2), BLOCK).await;
    }
    store.remove(&key(1, 0));
    assert!(store.try_read(&key(1, 0), 0, 1).is_none());
    assert_eq!(store.remove_file(FileId([1; 16])).bytes.as_u64(), 3 * 2 * u64::from(S));
    assert_eq!(store.remove_file(FileId([1; 16])).bytes.as_u64(), 0);
    assert!(store.try_read(&key(1, 1), 0, 1).is_none());
    assert!(store.try_read(&key(2, 1), 0, 1).is_some());
    assert_eq!((store.stats().blocks, store.stats().memory.used), (4, 4 * 2 * u64::from(S)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_never_see_a_wrong_byte() {
    let store = Store::open(StoreOptions { verify_reads: true, ..in_memory(32) }).await.unwrap();
    let tasks: Vec<_> = (0..4u64)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut hits = 0;
                for turn in 0..600u64 {
                    let mix = (turn * 2_654_435_761 + task * 97) >> 3;
                    let (key, start) = (key(1, mix % 40), (mix / 40 % 16) as u32);
                    if let Some(spans) = store.try_read(&key, start * S + 3, 5 * S) {
                        assert_right(&key, start * S + 3, 5 * S, &spans);
                        hits += 1;
                    } else {
                        fill(&store, key, sectors(start, start + 6 + (turn % 3) as u32), BLOCK).await;
                    }
                    if turn % 50 == 0 {
                        store.remove(&key);
                    }
                }
                hits
            })
        })
        .collect();
    let mut hits = 0;
    for task in tasks {
        hits += task.await.unwrap();
    }
    assert!(hits > 100, "{hits}");
    assert_eq!(store.stats().memory.corrupt_sectors, 0);
    store.remove_file(FileId([1; 16]));
    // Eviction may have one in its hands, which it has taken from those that are held and not yet let go of.
    until("nothing leaks", || store.stats().memory.used == 0).await;
}

#[tokio::test]
async fn with_fifo_what_was_read_goes_before_what_is_yet_to_be_read() {
    let options = StoreOptions { eviction: forebay_store::Eviction::Fifo, ..in_memory(64) };
    let store = Store::open(options).await.unwrap();
    let mib = 1 << 20;
    let sectors = forebay_types::SectorRange::covering(0, mib).unwrap();
    // A stream: eight blocks are there ahead of the reader, which reads each once.
    for index in 0..200u64 {
        let mut landing = store.landing(mib).await.unwrap();
        landing.fill(index as u8);
        store.publish(key(1, index), sectors, mib, landing);
        if let Some(read) = index.checked_sub(8) {
            assert!(store.try_read(&key(1, read), 0, mib).is_some(), "block {read} left before it was read");
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_label_stays_with_its_block_for_as_long_as_anything_of_it_is_held() {
    let store = Store::open(in_memory(64)).await.unwrap();
    let (first, other) = (key(1, 0), key(1, 1));
    store.set_label(&first, 7);
    assert_eq!((store.label(&first), store.stats().blocks), (None, 0), "there is nothing to label");
    fill(&store, first, sectors(0, 8), BLOCK).await;
    assert_eq!(store.label(&first), None);
    store.set_label(&first, 7);
    fill(&store, first, sectors(4, 32), BLOCK).await;
    fill(&store, other, sectors(0, 8), BLOCK).await;
    assert_eq!((store.label(&first), store.label(&other)), (Some(7), None));
    store.set_label(&first, 0);
    assert_eq!(store.label(&first), Some(0));
    store.remove(&first);
    fill(&store, first, sectors(0, 8), BLOCK).await;
    assert_eq!(store.label(&first), None, "it was removed");
}
