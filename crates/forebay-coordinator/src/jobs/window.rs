//! The items of a walk that are being worked on: a queue that settles from its front.
//!
//! Items are done in any order. What the job may say after a crash is what lies before the first that is not done, so
//! the queue hands over its front as long as it is done, together with the place after it.

use std::collections::VecDeque;

use forebay_types::{BlockLayout, Failure, FileId, FileVersion, FsPath};

use super::counts::Counts;
use super::walk::Place;

/// What is done with the blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Ask whether they are cached.
    Peek,
    /// Bring them into the cache.
    Load,
    /// Have them checked.
    Check,
}

/// A file that is worked on.
#[derive(Debug)]
pub(super) struct FileWork {
    pub(super) path: FsPath,
    pub(super) version: FileVersion,
    pub(super) file: FileId,
    pub(super) layout: BlockLayout,
    pub(super) modified_nanos: i64,
    pub(super) replicas: u8,
    pub(super) stage: Stage,
    /// The first block that no worker was asked for.
    pub(super) next: u64,
    /// Requests that are not answered.
    pub(super) outstanding: u32,
    /// How often it was another version than before.
    pub(super) restarts: u8,
    /// Why it is not gone on with.
    pub(super) failure: Option<Failure>,
    /// Something of it was found missing, and was left so.
    pub(super) is_missing: bool,
    /// Something of it was loaded again by an audit.
    pub(super) is_repaired: bool,
}

/// An item.
#[derive(Debug)]
pub(super) struct Slot {
    /// After it.
    pub(super) place: Place,
    /// What it adds to the ledgers.
    pub(super) counts: Counts,
    pub(super) failure: Option<(FsPath, Failure)>,
    pub(super) missing: Option<FsPath>,
    /// `None` when it is done.
    pub(super) work: Option<Box<FileWork>>,
}

impl Slot {
    pub(super) fn new(place: Place, counts: Counts) -> Self {
        Self { place, counts, failure: None, missing: None, work: None }
    }
}

#[derive(Debug, Default)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
    /// The number of the first slot.
    first: u64,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes an item; its number.
    pub(super) fn push(&mut self, slot: Slot) -> u64 {
        self.slots.push_back(slot);
        self.first + self.slots.len() as u64 - 1
    }

    /// The item of this number, if it has not settled.
    pub(super) fn get(&mut self, number: u64) -> Option<&mut Slot> {
        self.slots.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// The work on the item of this number, if it is not done.
    pub(super) fn work(&mut self, number: u64) -> Option<&mut FileWork> {
        self.get(number)?.work.as_deref_mut()
    }

    /// The first item, if it is done.
    pub(super) fn settle(&mut self) -> Option<Slot> {
        self.slots.front().filter(|slot| slot.work.is_none())?;
        self.first += 1;
        self.slots.pop_front()
    }
}
