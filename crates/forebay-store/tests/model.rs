//! Random work on a store against a reference model: never a wrong byte, what was flushed and not evicted survives a
//! restart, what was removed does not, and going through the store tells of all that it holds.

mod common;

use std::collections::HashMap;
use std::path::Path;

use common::*;
use forebay_store::{Account, Coverage, HeldBlock, IoBackend, Keep, Store, StoreOptions};
use forebay_types::{BlockKey, Priority, SectorRange};
use proptest::prelude::*;

const FILES: u8 = 3;
const BLOCKS: u64 = 6;

#[derive(Clone, Debug)]
enum Step {
    Publish {
        file: u8,
        index: u64,
        range: SectorRange,
        keep: Keep,
    },
    Reclass {
        file: u8,
        keep: Keep,
    },
    Read {
        file: u8,
        index: u64,
        offset: u32,
        length: u32,
    },
    Remove {
        file: u8,
        index: u64,
    },
    RemoveFile {
        file: u8,
    },
    Flush,
    Restart {
        flush: bool,
    },
    /// Fills memory with other blocks.
    Churn,
}

/// The last block of a file is short.
fn block_length(index: u64) -> u32 {
    if index == BLOCKS - 1 { 1_000_003 } else { BLOCK }
}

fn keeps() -> impl Strategy<Value = Keep> {
    let priority = prop_oneof![4 => Just(Priority::Normal), 1 => Just(Priority::Low), 1 => Just(Priority::High)];
    (priority, prop::bool::weighted(0.2), prop::option::weighted(0.2, Just(Account::of(b"/a"))))
        .prop_map(|(priority, pinned, account)| Keep { priority, pinned, account })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let block = || (0..FILES, 0..BLOCKS);
    let step = prop_oneof![
        8 => (block(), 0u32..128, prop_oneof![1u32..4, 1u32..128], keeps()).prop_filter_map("beyond the block", |((file, index), start, length, keep)| {
            let end = (start + length).min(block_length(index).div_ceil(S));
            SectorRange::new(start, end).map(|range| Step::Publish { file, index, range, keep })
        }),
        10 => (block(), 0u32..BLOCK, prop_oneof![1u32..200, 1u32..BLOCK])
            .prop_map(|((file, index), offset, length)| Step::Read { file, index, offset, length }),
        1 => block().prop_map(|(file, index)| Step::Remove { file, index }),
        1 => (0..FILES).prop_map(|file| Step::RemoveFile { file }),
        1 => (0..FILES, keeps()).prop_map(|(file, keep)| Step::Reclass { file, keep }),
        2 => Just(Step::Flush),
        2 => any::<bool>().prop_map(|flush| Step::Restart { flush }),
        1 => Just(Step::Churn),
    ];
    prop::collection::vec(step, 1..60)
}

/// How sure it is that a sector that was published is still there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// It was flushed: on a large disk, for certain.
    Flushed,
    /// It was published since the store was opened: the next flush makes certain of it.
    Published,
    /// The store was closed without a flush after it was published.
    Perhaps,
}

/// What the store may hold, by sector.
#[derive(Default)]
struct Model {
    sectors: HashMap<(BlockKey, u32), Held>,
}

impl Model {
    fn publish(&mut self, key: BlockKey, sector: u32) {
        let held = self.sectors.entry((key, sector)).or_insert(Held::Published);
        if *held == Held::Perhaps {
            *held = Held::Published;
        }
    }

    fn turn(&mut self, from: Held, to: Held) {
        self.sectors.values_mut().filter(|held| **held == from).for_each(|held| *held = to);
    }

    fn remove(&mut self, is_removed: impl Fn(&BlockKey) -> bool) {
        self.sectors.retain(|(key, _), _| !is_removed(key));
    }

    fn has(&self, key: BlockKey, offset: u32, length: u32, flushed: bool) -> bool {
        let end = offset + length;
        end <= block_length(key.index)
            && (offset / S..end.div_ceil(S))
                .all(|sector| self.sectors.get(&(key, sector)).is_some_and(|held| *held == Held::Flushed || !flushed))
    }
}

async fn run(options: impl Fn() -> StoreOptions, disk_is_large: bool, steps: Vec<Step>) {
    let mut model = Model::default();
    let mut store = Store::open(options()).await.unwrap();
    let mut churn = 0;
    for step in steps {
        match step {
            Step::Publish { file, index, range, keep } => {
                let key = key(file, index);
                fill_as(&store, key, range, block_length(index), keep).await;
                for sector in range.start..range.end {
                    model.publish(key, sector);
                }
            }
            Step::Read { file, index, offset, length } => {
                let key = key(file, index);
                let fast = store.try_read(&key, offset, length);
                if let Some(spans) = &fast {
                    assert_right(&key, offset, length, spans);
                }
                let hit = check(&store, &key, offset, length).await.is_some();
                assert!(hit || fast.is_none());
                assert!(!hit || model.has(key, offset, length, false), "{step:?} hit what never was there");
                // On a disk that holds everything, what was flushed is there.
                assert!(
                    hit || !disk_is_large || !model.has(key, offset, length, true),
                    "{step:?} lost what was flushed"
                );
            }
            Step::Reclass { file, keep } => store.reclass_file(key(file, 0).file, keep),
            Step::Remove { file, index } => {
                store.remove(&key(file, index));
                // A burial is only certain to be on disk after this.
                store.flush().await;
                model.remove(|other| *other == key(file, index));
            }
            Step::RemoveFile { file } => {
                store.remove_file(key(file, 0).file);
                store.flush().await;
                model.remove(|other| other.file == key(file, 0).file);
            }
            Step::Flush => {
                store.flush().await;
                if store.stats().disk_write_skipped == 0 {
                    model.turn(Held::Published, Held::Flushed);
                }
            }
            Step::Restart { flush } => {
                if flush {
                    store.flush().await;
                    if store.stats().disk_write_skipped == 0 {
                        model.turn(Held::Published, Held::Flushed);
                    }
                }
                model.turn(Held::Published, Held::Perhaps);
                store.close().await;
                store = Store::open(options()).await.unwrap();
            }
            Step::Churn => {
                for _ in 0..10 {
                    churn += 1;
                    fill(&store, key(100, churn), sectors(0, 64), BLOCK).await;
                }
            }
        }
        agrees_with_its_enumeration(&store);
    }
    let stats = store.stats();
    assert_eq!(stats.memory.corrupt_sectors, 0);
    assert!(stats.disks.iter().all(|disk| disk.corrupt_sectors == 0 && disk.read_errors == 0));
    store.close().await;
}

/// Page by page, the store tells of each block once, and of all that was there all the time.
fn agrees_with_its_enumeration(store: &Store) {
    let is_held = |key: &BlockKey| store.coverage(key) != Coverage::default();
    let names = (0..FILES).flat_map(|file| (0..BLOCKS).map(move |index| key(file, index)));
    let before: Vec<_> = names.filter(is_held).collect();
    let mut seen: Vec<BlockKey> = Vec::new();
    loop {
        let page = store.held(seen.last(), 3);
        if page.is_empty() {
            break;
        }
        for HeldBlock { key, runs } in page {
            assert!(runs.iter().all(|run| run.length() > 0 && run.end <= run.sectors.end * S), "{key}: {runs:?}");
            assert!(runs.windows(2).all(|pair| pair[0].sectors.end < pair[1].sectors.start), "{key}: {runs:?}");
            seen.push(key);
        }
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "a block was told of twice");
    // Eviction and writing go on meanwhile: what was there before and after, was there.
    let missed = before.iter().find(|key| is_held(key) && !seen.contains(key));
    assert_eq!(missed, None, "a block was not told of");
}

fn run_in(dir: &Path, disk_mib: u64, io: IoBackend, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let options = || StoreOptions { io, verify_reads: true, ..on_disk(32, dir, disk_mib) };
    runtime.block_on(run(options, disk_mib > 500, steps));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_large_store_keeps_everything_and_serves_it_right(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        run_in(dir.path(), 600, IoBackend::Auto, steps);
    }

    #[test]
    fn a_small_store_serves_only_right_bytes(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        run_in(dir.path(), 48, IoBackend::Threads, steps);
    }
}
