//! What the index knows: its files, the room that they take, which are queued, and what the shell shall do.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use forebay_types::FileId;

use super::entry::Entry;
use crate::file::NotTaken;
use crate::policy::{Policy, Rules};

/// Files that are known at once, in whatever state: what the table of them takes is bounded, however small files are.
pub(crate) const MAX_FILES: usize = 65_536;
/// A refusal stands for so long. While everything that is there is opened more than what is not, each open of the latter would
/// look through all files again.
const STANDS: Duration = Duration::from_secs(1);

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rules: Rules,
    /// Files that are filled at once.
    pub(crate) fills: u32,
    /// Whether the backend sets all of a file's room aside when it begins.
    pub(crate) sets_aside: bool,
}

/// What the shell shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Fill it; ends with [`FileIndex::filled`] or [`FileIndex::failed`].
    Fill(FileId),
    /// End its fill; which fails then.
    Cancel(FileId),
    /// Remove it; ends with [`FileIndex::removed`].
    Remove(FileId),
    /// Tell its waiters that it is there, or why not.
    Tell(FileId, Option<NotTaken>),
    /// The last one closed it: write down when it was used.
    Used(FileId),
}

/// Whether a file was not asked for: `false` comes first.
pub(super) type NotAsked = bool;

/// All cached files.
#[derive(Debug)]
pub(crate) struct FileIndex {
    pub(super) limits: Limits,
    pub(super) policy: Policy,
    pub(super) files: HashMap<FileId, Entry>,
    /// Room of all files that take any.
    pub(super) taken: u64,
    /// Of it, of those that are being removed.
    pub(super) going: u64,
    pub(super) missing: u64,
    pub(super) filling: u32,
    /// Those that are queued, next first.
    pub(super) queue: BTreeSet<(NotAsked, u64, FileId)>,
    pub(super) turns: u64,
    /// The last file that found no room.
    pub(super) refusal: Option<Refusal>,
    pub(super) is_closed: bool,
    pub(super) actions: Vec<Action>,
    pub(super) totals: Totals,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) ready: u64,
    pub(super) no: u64,
    pub(super) no_room: u64,
    pub(super) bad_size: u64,
    pub(super) cooling: u64,
    pub(super) evictions: u64,
}

impl FileIndex {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            policy: Policy::new(limits.rules),
            files: HashMap::new(),
            taken: 0,
            going: 0,
            missing: 0,
            filling: 0,
            queue: BTreeSet::new(),
            turns: 0,
            refusal: None,
            is_closed: false,
            actions: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// Takes what is to be done, in order.
    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }
}

/// A file for which nothing was evicted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// How often it had been opened.
    pub(super) opens: f64,
    /// The bytes that it lacked.
    pub(super) lacking: u64,
    pub(super) at: Instant,
}

impl Refusal {
    /// Whether there is nothing for this one, either.
    pub(super) fn holds(&self, opens: f64, lacking: u64, now: Instant) -> bool {
        opens <= self.opens && lacking >= self.lacking && now.saturating_duration_since(self.at) < STANDS
    }
}
