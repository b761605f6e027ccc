//! One file in the index: its state, and the room that it takes.

use std::time::{Duration, Instant};

use forebay_types::{FileId, FileVersion};

use crate::file::{NotTaken, Why};
use crate::listed::LocalState;
use crate::record::sectors;

/// What a file's room is counted in.
const PAGE: u64 = 4096;
/// How long a file that failed is left alone; doubles with each failure.
const COOLDOWN: Duration = Duration::from_secs(1);
const MAX_COOLDOWN: Duration = Duration::from_secs(600);

/// What a file of `size` bytes takes with its checksums, the description of its version included.
pub(crate) fn room_of(size: u64) -> u64 {
    let record = sectors(size).saturating_mul(4).saturating_add(PAGE).next_multiple_of(PAGE);
    size.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX).saturating_add(record)
}

/// Where a file is on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    Queued { turn: u64, evicts: bool },
    Filling { written: u64, cancelled: Option<NotTaken> },
    Unchecked,
    Ready { pins: u64 },
    Leaving { pins: u64, is_right: bool },
    Removing,
    Cooling { until: Instant },
}

/// A file.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) size: u64,
    /// `None`: found in the directory, and not yet looked into.
    pub(super) version: Option<FileVersion>,
    pub(super) state: EntryState,
    pub(super) since: Instant,
    /// When it was last opened, or used before the restart.
    pub(super) used: Instant,
    /// When every byte of it was last checked.
    pub(super) checked: Instant,
    pub(super) asked: Option<Why>,
    pub(super) opens: u64,
    pub(super) failures: u32,
}

/// A file, as a list shows it.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) id: FileId,
    pub(crate) version: Option<FileVersion>,
    pub(crate) size: u64,
    pub(crate) state: LocalState,
    pub(crate) written: u64,
    pub(crate) pins: u64,
    pub(crate) opens: u64,
    pub(crate) asked: Option<Why>,
    pub(crate) since: Instant,
}

impl Entry {
    pub(super) fn new(size: u64, version: Option<FileVersion>, state: EntryState, now: Instant) -> Self {
        Self { size, version, state, since: now, used: now, checked: now, asked: None, opens: 0, failures: 0 }
    }

    pub(super) fn enter(&mut self, state: EntryState, now: Instant) {
        self.state = state;
        self.since = now;
    }

    /// It failed once more.
    pub(super) fn cool(&mut self, now: Instant) {
        let wait = COOLDOWN.saturating_mul(1 << self.failures.min(16)).min(MAX_COOLDOWN);
        self.failures += 1;
        self.enter(EntryState::Cooling { until: now + wait }, now);
    }

    /// What it takes now.
    pub(super) fn room(&self) -> u64 {
        match self.state {
            EntryState::Queued { .. } | EntryState::Cooling { .. } => 0,
            _ => room_of(self.size),
        }
    }

    /// Whether there is nothing left to remember of a failure, or a file that was asked for is to be tried again.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        match self.state {
            EntryState::Cooling { until } if self.asked.is_some() => until <= now,
            EntryState::Cooling { until } => until + MAX_COOLDOWN <= now,
            _ => false,
        }
    }

    pub(super) fn shown(&self, id: FileId) -> Option<Shown> {
        let (state, written, pins) = match self.state {
            EntryState::Queued { .. } => (LocalState::Queued, 0, 0),
            EntryState::Filling { written, .. } => (LocalState::Filling, written, 0),
            EntryState::Unchecked => (LocalState::Unchecked, self.size, 0),
            EntryState::Ready { pins } => (LocalState::Ready, self.size, pins),
            EntryState::Leaving { pins, .. } => (LocalState::Leaving, self.size, pins),
            EntryState::Cooling { .. } => (LocalState::Cooling, 0, 0),
            EntryState::Removing => return None,
        };
        let (version, size, since) = (self.version.clone(), self.size, self.since);
        Some(Shown { id, version, size, state, written, pins, opens: self.opens, asked: self.asked, since })
    }
}
