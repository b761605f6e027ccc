//! What is held, by block.
//!
//! A hit takes no lock: the map (papaya) and each block's list of runs (an immutable list behind an arc-swap) are read
//! without one. Changes to one block exclude each other by a lock that stands for a share of the blocks; they replace
//! the list. A list that was replaced is freed at once when nobody looks at it, and with it the memory of runs that
//! are gone; the map itself frees removed blocks later, which by then are empty.

use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use forebay_types::{BlockKey, FileId};
use papaya::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::run::{DiskRun, Held, MemoryRun, Run};

/// The runs of one block, each tier's in no order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    pub(crate) memory: SmallVec<[Arc<MemoryRun>; 1]>,
    pub(crate) disk: SmallVec<[Arc<DiskRun>; 1]>,
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

/// Adds a copy and takes out those that it covers, which are returned.
pub(crate) fn put_in<T: Held>(copies: &mut SmallVec<[Arc<T>; 1]>, copy: Arc<T>) -> Vec<Arc<T>> {
    let mut replaced = Vec::new();
    copies.retain(|other| {
        let covered = copy.run().sectors.contains(other.run().sectors);
        if covered {
            replaced.push(Arc::clone(other));
        }
        !covered
    });
    copies.push(copy);
    replaced
}

/// More shares than cores that publish at once.
const SHARES: usize = 64;

/// All blocks.
pub(crate) struct Index {
    blocks: HashMap<BlockKey, ArcSwap<Runs>, RandomState>,
    changes: [Mutex<()>; SHARES],
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { blocks: HashMap::default(), changes: [const { Mutex::new(()) }; SHARES] }
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
        // File ids are hashes.
        let share = (usize::from(key.file.0[0]) + key.index as usize) % SHARES;
        let _changing = self.changes[share].lock();
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
                }
            }
            None if !is_empty => _ = blocks.insert(*key, ArcSwap::from_pointee(runs)),
            None => {}
        }
        result
    }

    /// The blocks of a file, or of all files.
    pub(crate) fn keys(&self, file: Option<FileId>) -> Vec<BlockKey> {
        let blocks = self.blocks.pin();
        blocks.keys().filter(|key| file.is_none_or(|file| key.file == file)).copied().collect()
    }

    /// How many blocks have runs.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }
}
