//! The disk tier.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::*;
use forebay_store::{Coverage, DiskOptions, HeldBlock, HeldRun, IoBackend, ServeMode, Store, StoreOptions};
use forebay_types::{ByteSize, FileId};

#[tokio::test]
async fn what_was_flushed_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    for io in [IoBackend::Auto, IoBackend::Threads] {
        let options = || StoreOptions { io, ..on_disk(32, dir.path(), 64) };
        let store = Store::open(options()).await.unwrap();
        fill(&store, key(1, 0), sectors(0, 128), BLOCK).await;
        fill(&store, key(1, 1), sectors(0, 4), 100_001).await;
        fill(&store, key(1, 2), sectors(5, 6), BLOCK).await;
        fill(&store, key(1, 2), sectors(70, 100), BLOCK).await;
        store.flush().await;
        let stats = store.stats();
        assert_eq!((stats.disks[0].runs, stats.disk_queue_bytes, stats.disk_write_skipped), (4, 0, 0));
        store.close().await;

        let store = Store::open(options()).await.unwrap();
        let expected = Coverage { memory: vec![], disk: vec![sectors(5, 6), sectors(70, 100)] };
        assert_eq!(store.coverage(&key(1, 2)), expected);
        assert_eq!(check(&store, &key(1, 0), 0, BLOCK).await, Some((0, BLOCK)));
        assert_eq!(check(&store, &key(1, 0), 7, 5).await, Some((5, 0)), "promoted");
        assert_eq!(check(&store, &key(1, 1), 1, 100_000).await, Some((0, 100_000)));
        assert!(check(&store, &key(1, 1), 1, 100_001).await.is_none());
        assert_eq!(check(&store, &key(1, 2), 5 * S, S).await, Some((0, S)));
        assert!(check(&store, &key(1, 2), 6 * S, 1).await.is_none());
        // The first two blocks are in memory too by now, and one of the runs of the third.
        let removed = 2 * u64::from(BLOCK) + 2 * 100_001 + 32 * u64::from(S);
        assert_eq!(store.remove_file(FileId([1; 16])).bytes.as_u64(), removed);
        store.flush().await;
        store.close().await;

        let store = Store::open(options()).await.unwrap();
        assert_eq!((store.stats().blocks, store.stats().disks[0].used), (0, 0), "what was removed stays removed");
        store.close().await;
    }
}

#[tokio::test]
async fn a_disk_that_was_filled_with_another_block_size_starts_empty() {
    const SMALLER: u32 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let with_blocks_of = |block_size| StoreOptions { block_size, ..on_disk(32, dir.path(), 40) };
    let filled = Store::open(with_blocks_of(SMALLER)).await.unwrap();
    for index in 0..4 {
        fill(&filled, key(1, index), sectors(0, SMALLER / S), SMALLER).await;
    }
    filled.flush().await;
    filled.close().await;
    let runs = async |block_size| {
        let store = Store::open(with_blocks_of(block_size)).await.unwrap();
        let held = check(&store, &key(1, 1), 0, SMALLER).await.is_some();
        let runs = store.stats().disks[0].runs;
        assert_eq!(held, runs > 0);
        store.close().await;
        runs
    };
    assert_eq!(runs(SMALLER).await, 4, "the same size finds everything");
    assert_eq!(runs(BLOCK).await, 0, "another one nothing");
    assert_eq!(runs(SMALLER).await, 0, "and then it is gone");
}

#[tokio::test]
async fn a_disk_of_before_slabs_told_their_block_size_is_taken_for_the_default() {
    for (block_size, found) in [(BLOCK, true), (1 << 20, false)] {
        let dir = tempfile::tempdir().unwrap();
        put_on_disk(dir.path(), key(1, 0), sectors(0, 4), BLOCK).await;
        forget_block_size(dir.path());
        let store = Store::open(StoreOptions { block_size, ..on_disk(32, dir.path(), 40) }).await.unwrap();
        assert_eq!(check(&store, &key(1, 0), 0, S).await.is_some(), found);
        store.close().await;
    }
}

/// Makes the superblock one that was written before it told the block size.
fn forget_block_size(dir: &Path) {
    const TOLD_AT: usize = 52;
    let slab = std::fs::OpenOptions::new().read(true).write(true).open(dir.join("slab")).unwrap();
    let mut page = [0; 4096];
    slab.read_exact_at(&mut page, 0).unwrap();
    assert_eq!(page[TOLD_AT..TOLD_AT + 4], BLOCK.to_le_bytes());
    page[TOLD_AT..TOLD_AT + 4].fill(0);
    let crc = forebay_types::crc32c(&page[..4092]);
    page[4092..].copy_from_slice(&crc.to_le_bytes());
    slab.write_all_at(&page, 0).unwrap();
}

#[tokio::test]
async fn a_small_read_reads_its_sectors_and_a_second_one_promotes_the_run() {
    let dir = tempfile::tempdir().unwrap();
    put_on_disk(dir.path(), key(1, 0), sectors(0, 128), BLOCK).await;
    let store = Store::open(on_disk(32, dir.path(), 40)).await.unwrap();
    assert_eq!(check(&store, &key(1, 0), 10 * S + 5, S).await, Some((0, S)));
    assert_eq!(store.stats().disks[0].bytes_read, 2 * u64::from(S));
    assert_eq!((store.stats().memory.runs, store.stats().memory.used), (0, 0));
    assert_eq!(check(&store, &key(1, 0), 90 * S, 1).await, Some((0, 1)));
    assert_eq!(store.stats().memory.runs_promoted, 1);
    assert!(store.try_read(&key(1, 0), 0, BLOCK).is_some());
    store.flush().await;
    assert_eq!(store.stats().disks[0].runs_written, 0, "a promoted run is on disk already");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_one_run_read_it_from_disk_once() {
    let dir = tempfile::tempdir().unwrap();
    put_on_disk(dir.path(), key(1, 0), sectors(0, 128), BLOCK).await;
    let store = Store::open(on_disk(16, dir.path(), 40)).await.unwrap();
    let readers: Vec<_> = (0..32)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { check(&store, &key(1, 0), 0, BLOCK).await.unwrap() })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(store.stats().disks[0].bytes_read, u64::from(BLOCK));
}

#[tokio::test]
async fn a_read_is_pieced_together_from_memory_and_disk() {
    let dir = tempfile::tempdir().unwrap();
    put_on_disk(dir.path(), key(1, 0), sectors(0, 100), BLOCK).await;
    let store = Store::open(on_disk(32, dir.path(), 40)).await.unwrap();
    fill(&store, key(1, 0), sectors(10, 11), BLOCK).await;
    fill(&store, key(1, 0), sectors(99, 104), BLOCK).await;
    assert_eq!(check(&store, &key(1, 0), 8 * S + 1, 4 * S).await, Some((S, 3 * S)));
    assert_eq!(check(&store, &key(1, 0), 98 * S, 6 * S).await, Some((5 * S, S)));
    assert!(check(&store, &key(1, 0), 98 * S, 7 * S).await.is_none());
}

#[tokio::test]
async fn eviction_keeps_a_disk_below_its_watermark_and_what_is_left_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on_disk(32, dir.path(), 64)).await.unwrap();
    for index in 0..120 {
        // All size classes, so that frames change class.
        let end = 1 << (index % 8);
        fill(&store, key(1, index), sectors(0, end), BLOCK).await;
        store.flush().await;
        // A write that does not wait for eviction empties the frame that holds least, whatever is in it.
        until("the disk is below its high watermark", || {
            let disk = &store.stats().disks[0];
            disk.used * 100 <= disk.capacity * 90
        })
        .await;
    }
    let stats = store.stats();
    assert_eq!(stats.disk_write_skipped, 0, "there was always room in time");
    assert!(stats.disks[0].runs_evicted > 10);
    store.close().await;

    let store = Store::open(on_disk(32, dir.path(), 64)).await.unwrap();
    let mut left = 0;
    for index in 0..120 {
        let length = S << (index % 8);
        left += if check(&store, &key(1, index), 0, length).await.is_some() { u64::from(length) } else { 0 };
    }
    // Down to 80 % in SIEVE's order, and a frame or two that are emptied to have one for another size.
    assert!(left >= 40 << 20, "{left} bytes");
    assert_eq!(store.stats().memory.corrupt_sectors, 0);
}

#[tokio::test]
async fn what_leaves_memory_is_still_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(on_disk(16, dir.path(), 256)).await.unwrap();
    for index in 0..40 {
        fill(&store, key(1, index), sectors(0, 128), BLOCK).await;
    }
    store.flush().await;
    assert_eq!(store.stats().disk_write_skipped, 0);
    for index in 0..40 {
        assert!(check(&store, &key(1, index), 0, BLOCK).await.is_some(), "block {index}");
    }
}

#[tokio::test]
async fn runs_are_spread_over_disks() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let disks = dirs.iter().map(|dir| DiskOptions { dir: dir.path().to_owned(), size: ByteSize::mib(64) });
    let options = StoreOptions { disks: disks.collect(), disk_queue: ByteSize::mib(64), ..in_memory(64) };
    let store = Store::open(options.clone()).await.unwrap();
    for index in 0..40 {
        fill(&store, key(1, index), sectors(0, 8), BLOCK).await;
    }
    store.flush().await;
    let stats = store.stats();
    assert!(stats.disks.iter().all(|disk| disk.runs >= 8), "{stats:?}");
    store.close().await;
    let store = Store::open(options).await.unwrap();
    for index in 0..40 {
        assert!(check(&store, &key(1, index), 0, 8 * S).await.is_some());
    }
}

async fn slices(dir: &Path, serve: ServeMode) {
    let _ = std::fs::remove_dir_all(dir);
    put_on_disk(dir, key(1, 0), sectors(2, 50), BLOCK).await;
    let options = StoreOptions { serve, ..on_disk(32, dir, 40) };
    let store = Store::open(options).await.unwrap();
    let slice = store.disk_slice(&key(1, 0), 3 * S + 100, 5 * S).await.expect("it is wholly on disk");
    let mut bytes = vec![0; slice.length as usize];
    slice.file.read_exact_at(&mut bytes, slice.offset).unwrap();
    assert!(is_right(&key(1, 0), 3 * S + 100, &bytes));
    assert_eq!(store.stats().disks[0].bytes_read, 6 * u64::from(S), "checked once");
    store.disk_slice(&key(1, 0), 3 * S, 5 * S).await.unwrap();
    assert_eq!(store.stats().disks[0].bytes_read, 6 * u64::from(S), "and not again");
    assert!(store.disk_slice(&key(1, 0), S, 5 * S).await.is_none());
    assert!(store.disk_slice(&key(1, 0), 49 * S, S + 1).await.is_none());
    assert_eq!(check(&store, &key(1, 0), 2 * S, 48 * S).await, Some((0, 48 * S)), "reads work as well");

    // The extent is not reused while the slice is held, whatever is written.
    store.remove(&key(1, 0));
    for index in 0..30 {
        fill(&store, key(2, index), sectors(0, 64), BLOCK).await;
    }
    store.flush().await;
    let mut again = vec![0; slice.length as usize];
    slice.file.read_exact_at(&mut again, slice.offset).unwrap();
    assert_eq!(again, bytes);
    assert!(store.stats().disks[0].runs_evicted > 0);
    store.close().await;
    let error = Store::open(on_disk(16, dir, 40)).await.unwrap_err();
    assert!(error.to_string().contains("in use"), "a slice keeps others from writing to its slab: {error}");
    drop(slice);
    Store::open(on_disk(16, dir, 40)).await.unwrap().close().await;
}

#[tokio::test]
async fn a_slice_of_a_slab_file_holds_the_right_bytes_for_as_long_as_it_is_held() {
    let dir = tempfile::tempdir().unwrap();
    slices(&dir.path().join("cache"), ServeMode::PageCache).await;
    slices(&dir.path().join("cache"), ServeMode::Splice).await;
}

#[tokio::test]
async fn with_direct_io_there_are_no_slices() {
    let dir = tempfile::tempdir().unwrap();
    put_on_disk(dir.path(), key(1, 0), sectors(0, 4), BLOCK).await;
    let store = Store::open(on_disk(16, dir.path(), 40)).await.unwrap();
    assert!(store.disk_slice(&key(1, 0), 0, 4 * S).await.is_none());
}

#[tokio::test]
async fn bytes_change_in_the_file_and_never_in_a_pipe_that_was_spliced_to() {
    let dir = tempfile::tempdir().unwrap();
    put_on_disk(dir.path(), key(1, 0), sectors(0, 128), BLOCK).await;
    let options = StoreOptions { serve: ServeMode::Splice, ..on_disk(16, dir.path(), 40) };
    let store = Store::open(options).await.unwrap();
    let Some(slice) = store.disk_slice(&key(1, 0), 0, 2 * S).await else {
        return eprintln!("not run: no direct I/O in {}", dir.path().display());
    };
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut at = slice.offset;
    let flags = rustix::pipe::SpliceFlags::empty();
    let spliced = rustix::pipe::splice(&*slice.file, Some(&mut at), &writer, None, S as usize, flags).unwrap();
    drop(slice);
    store.remove(&key(1, 0));
    // Every extent is written anew.
    for index in 0..40 {
        fill(&store, key(2, index), sectors(0, 128), BLOCK).await;
        store.flush().await;
    }
    let mut bytes = vec![0; spliced];
    let mut done = 0;
    while done < spliced {
        done += rustix::io::read(&reader, &mut bytes[done..]).unwrap();
    }
    assert!(is_right(&key(1, 0), 0, &bytes));
}

#[tokio::test]
async fn what_was_evicted_from_disk_and_then_removed_does_not_come_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let options = || on_disk(16, dir.path(), 40);
    for by_file in [false, true] {
        let store = Store::open(options()).await.unwrap();
        for index in 0..30 {
            fill(&store, key(1, index), sectors(0, 32), BLOCK).await;
            fill(&store, key(2, index), sectors(0, 32), BLOCK).await;
            store.flush().await;
        }
        assert!(store.stats().disks[0].runs_evicted > 0);
        if by_file {
            store.remove_file(FileId([1; 16]));
        } else {
            (0..30).for_each(|index| _ = store.remove(&key(1, index)));
        }
        store.flush().await;
        store.close().await;
        let store = Store::open(options()).await.unwrap();
        let held = store.held(None, 1000);
        assert!(held.iter().all(|block| block.key.file == FileId([2; 16])), "{held:?}");
        assert!(!held.is_empty());
        store.close().await;
    }
}

#[tokio::test]
async fn a_read_at_once_brings_nothing_up_and_waits_for_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    put_on_disk(dir.path(), key(1, 0), sectors(0, 128), BLOCK).await;
    let store = Store::open(on_disk(8, dir.path(), 40)).await.unwrap();
    for _ in 0..3 {
        let read = store.read_at_once(&key(1, 0), 0, BLOCK).await.unwrap();
        assert_right(&key(1, 0), 0, BLOCK, &read.spans);
        assert_eq!(store.checksums(&key(1, 0), 0, BLOCK).unwrap().check(&read.spans[0]), Ok(()));
    }
    assert_eq!(store.stats().memory.runs, 0);
    assert!(store.checksums(&key(1, 0), 1, S).is_none() && store.checksums(&key(1, 1), 0, S).is_none());
    let landings = [store.landing(BLOCK).await.unwrap(), store.landing(BLOCK).await.unwrap()];
    let start = std::time::Instant::now();
    assert!(store.read_at_once(&key(1, 0), 0, BLOCK).await.is_none());
    assert!(start.elapsed() < std::time::Duration::from_secs(9), "the store would wait for ten");
    drop(landings);
    assert!(store.read_at_once(&key(1, 0), 0, BLOCK).await.is_some());
}

#[tokio::test]
async fn going_through_the_store_tells_where_runs_are_and_where_they_end() {
    let dir = tempfile::tempdir().unwrap();
    put_on_disk(dir.path(), key(1, 0), sectors(0, 4), 100_001).await;
    let store = Store::open(on_disk(16, dir.path(), 40)).await.unwrap();
    fill(&store, key(2, 0), sectors(5, 9), BLOCK).await;
    fill(&store, key(2, 0), sectors(9, 12), BLOCK).await;
    let mut held = store.held(None, 10);
    held.sort_by_key(|block| block.key);
    let run = |sectors, end, in_memory, on_disk| HeldRun { sectors, end, in_memory, on_disk };
    assert_eq!(held[0], HeldBlock { key: key(1, 0), runs: vec![run(sectors(0, 4), 100_001, false, true)] });
    assert_eq!((held[1].runs[0].sectors, held[1].runs[0].end), (sectors(5, 12), 12 * S));
    assert_eq!((held[1].runs.len(), held.len(), held[1].runs[0].length()), (1, 2, 7 * S));
    assert!(held[1].runs[0].in_memory);
    store.close().await;
}
