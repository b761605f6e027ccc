//! What is held, by block.
//!
//! A hit takes no lock: the map (papaya) and each block's list of runs (an immutable list behind an arc-swap) are read
//! without one. Changes to one block exclude each other by a lock that stands for a share of the blocks; they replace
//! the list. A list that was replaced is freed at once when no thread looks at it, and with it the memory of runs that
//! are gone; the map itself frees removed blocks later, which by then are empty.
//!
//! The lock also guards the share's block names in order, so that a walk through all blocks, or all of one file, can go
//! a piece at a time. And it guards the number of removals in the share, by which a run that is on its way from memory
//! to disk learns that its block may have been removed.
//!
//! Beside its runs, a block may have a label: a number of the store's owner, which goes with the last of the runs.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;
use forebay_types::{BlockKey, FileId};
use papaya::HashMap;
use smallvec::SmallVec;

use crate::run::{DiskRun, Held, MemoryRun, Run};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The runs of one block, each tier's in no order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    pub(crate) memory: SmallVec<[Arc<MemoryRun>; 1]>,
    pub(crate) disk: SmallVec<[Arc<DiskRun>; 1]>,
    /// See [`Store::set_label`](crate::Store::set_label).
    pub(crate) label: Option<u32>,
}

impl Runs {
    pub(crate) fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.disk.is_empty()
    }
}

/// Of the copies that hold the byte `at`, the one that reaches furthest.
pub(crate) fn furthest<T: Held>(copies: &[Arc<T>], at: u32) -> Option<&Arc<T>> {
    copies
        .iter()
        .filter(|copy| (copy.run().start()..copy.run().end()).contains(&at))
        .max_by_key(|copy| copy.run().end())
}

/// The same of those that are of use.
pub(crate) fn furthest_of<T: Held>(copies: &[Arc<T>], at: u32, is_of_use: impl Fn(&T) -> bool) -> Option<&Arc<T>> {
    copies
        .iter()
        .filter(|copy| (copy.run().start()..copy.run().end()).contains(&at) && is_of_use(copy))
        .max_by_key(|copy| copy.run().end())
}

/// Whether one of the copies has all of the run's sectors.
pub(crate) fn covers<T: Held>(copies: &[Arc<T>], run: &Run) -> bool {
    copies.iter().any(|copy| copy.run().sectors.contains(run.sectors))
}

/// Takes out this very copy; whether it was there.
pub(crate) fn take_out<T>(copies: &mut SmallVec<[Arc<T>; 1]>, copy: &Arc<T>) -> bool {
    let before = copies.len();
    copies.retain(|other| !Arc::ptr_eq(other, copy));
    copies.len() < before
}

/// The copies that the run covers.
pub(crate) fn covered<T: Held>(copies: &[Arc<T>], run: &Run) -> Vec<Arc<T>> {
    copies.iter().filter(|copy| run.sectors.contains(copy.run().sectors)).cloned().collect()
}

/// Adds a copy and takes out those that it covers.
pub(crate) fn put_in<T: Held>(copies: &mut SmallVec<[Arc<T>; 1]>, copy: Arc<T>) {
    copies.retain(|other| !copy.run().sectors.contains(other.run().sectors));
    copies.push(copy);
}

/// More shares than cores that publish at once.
const SHARES: usize = 64;

/// What is kept of a share of the blocks besides the map.
#[derive(Default)]
struct Share {
    /// The blocks that have runs. A thread that changes a block of the share holds the lock.
    blocks: Mutex<BTreeSet<BlockKey>>,
    removals: AtomicU64,
}

/// All blocks.
pub(crate) struct Index {
    blocks: HashMap<BlockKey, ArcSwap<Runs>, SeedableRandomState>,
    shares: [Share; SHARES],
}

impl Index {
    pub(crate) fn new() -> Self {
        // Seeded by the system's randomness, and not by where the process lies in memory.
        let seed = std::hash::RandomState::new().hash_one(SHARES);
        let hasher = SeedableRandomState::with_seed(seed, SharedSeed::global_fixed());
        Self { blocks: HashMap::with_hasher(hasher), shares: std::array::from_fn(|_| Share::default()) }
    }

    fn share_of(key: &BlockKey) -> usize {
        // File ids are hashes.
        (usize::from(key.file.0[0]) + key.index as usize) % SHARES
    }

    /// Looks at a block's runs in place, without a lock.
    pub(crate) fn look<R>(&self, key: &BlockKey, look: impl FnOnce(&Runs) -> R) -> Option<R> {
        let blocks = self.blocks.pin();
        Some(look(&blocks.get(key)?.load()))
    }

    /// A block's runs as they are now, to keep.
    pub(crate) fn runs(&self, key: &BlockKey) -> Option<Arc<Runs>> {
        Some(self.blocks.pin().get(key)?.load_full())
    }

    /// Changes a block's runs; others see the change whole or not at all.
    pub(crate) fn change<R>(&self, key: &BlockKey, change: impl FnOnce(&mut Runs) -> R) -> R {
        let mut names = self.shares[Self::share_of(key)].blocks.lock();
        let blocks = self.blocks.pin();
        let block = blocks.get(key);
        let mut runs = block.map(|block| Runs::clone(&block.load())).unwrap_or_default();
        let result = change(&mut runs);
        let is_empty = runs.is_empty();
        match block {
            Some(block) => {
                // Emptied before it is removed: the map keeps removed blocks for a while.
                block.store(Arc::new(runs));
                if is_empty {
                    blocks.remove(key);
                    names.remove(key);
                }
            }
            None if !is_empty => {
                blocks.insert(*key, ArcSwap::from_pointee(runs));
                names.insert(*key);
            }
            None => {}
        }
        result
    }

    /// The same, where the change removes what there was.
    pub(crate) fn clear<R>(&self, key: &BlockKey, change: impl FnOnce(&mut Runs) -> R) -> R {
        self.change(key, |runs| {
            self.shares[Self::share_of(key)].removals.fetch_add(1, Ordering::Relaxed);
            change(runs)
        })
    }

    /// How often blocks of this one's share were cleared. Exact while the block is being changed.
    pub(crate) fn removals(&self, key: &BlockKey) -> u64 {
        self.shares[Self::share_of(key)].removals.load(Ordering::Relaxed)
    }

    /// The blocks of a file.
    pub(crate) fn of_file(&self, file: FileId) -> Vec<BlockKey> {
        let (first, last) = (BlockKey { file, index: 0 }, BlockKey { file, index: u64::MAX });
        self.shares
            .iter()
            .flat_map(|share| share.blocks.lock().range(first..=last).copied().collect::<Vec<_>>())
            .collect()
    }

    /// At most `most` blocks in a fixed order, from the start or from the one after `last`; none at the end. Blocks that come
    /// and go meanwhile may be among them or not.
    pub(crate) fn after(&self, last: Option<&BlockKey>, most: usize) -> Vec<BlockKey> {
        let mut found = Vec::new();
        let first_share = last.map_or(0, Self::share_of);
        let mut start = last.map_or(Bound::Unbounded, |last| Bound::Excluded(*last));
        for share in &self.shares[first_share..] {
            let names = share.blocks.lock();
            found.extend(names.range((start, Bound::Unbounded)).take(most - found.len()));
            if found.len() == most {
                break;
            }
            start = Bound::Unbounded;
        }
        found
    }

    /// How many blocks have runs.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}
