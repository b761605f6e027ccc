//! The index of cached files: what is there, what comes, and what has to go for it. Pure: takes events and a `now`, leaves
//! [`Action`]s.
//!
//! ```text
//!          worth it or asked for        a slot and room            whole and checked
//! (unknown) ──────────────► Queued ───────────────► Filling ──────────────────► Ready ─┐ to go, and not open
//!     ▲                        │ no room              │ failed      Unchecked ───►│    ├──────► Removing ─► (unknown)
//!     │                        ▼                      ▼            (a restart     │    │              ▲
//!     └───────────────────── (unknown)             Cooling          found it)     └────┴─► Leaving ───┘ the last one closed it
//! ```
//!
//! A file takes its room from the moment it begins to be filled until it is removed, so the total never exceeds the
//! size. Room that is free by that reckoning and that the backend has not got (a removed file is still mapped, or other
//! files fill the disk) is *missing*, and no file gets it. A file that is open never goes for another file, and neither
//! does one that was asked for.

mod admission;
mod contents;
mod entry;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use forebay_types::{FileId, FileVersion, MAX_BLOCK_SIZE};

use crate::file::{NotTaken, Reading, Why};
use crate::policy::{SMALL_FILE, Worth};
use crate::stats::LocalStats;
pub(crate) use contents::{Action, FileIndex, Limits, MAX_FILES};
use entry::{Entry, EntryState};
pub(crate) use entry::{Shown, room_of};

/// Written so far, in percent, an ordinary open waits for the rest of a file.
const NEARLY: u64 = 80;

/// What an open gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is there, and pinned once more.
    Ready,
    /// It is worth waiting for.
    Wait,
    No,
}

impl FileIndex {
    /// A restart found a file, used last at `used`. Whether it may stay.
    pub(crate) fn found(&mut self, file: FileId, size: u64, used: Instant, now: Instant) -> bool {
        let room = room_of(size);
        let fits = self.taken.saturating_add(room) <= self.limits.rules.size;
        if !fits || !self.policy.is_possible(size) || self.files.len() >= MAX_FILES || self.files.contains_key(&file) {
            return false;
        }
        self.taken += room;
        self.files.insert(file, Entry { used, ..Entry::new(size, None, EntryState::Unchecked, now) });
        true
    }

    /// A program opens a version.
    pub(crate) fn opened(&mut self, file: FileId, version: &FileVersion, now: Instant) -> Answer {
        let size = version.size;
        let worth = self.policy.opened(file, size, now);
        let mut waits = self.policy.waits(size);
        match self.files.get_mut(&file) {
            Some(entry) => {
                entry.used = now;
                entry.opens += 1;
                entry.version.get_or_insert_with(|| version.clone());
                match &mut entry.state {
                    EntryState::Ready { pins } => {
                        *pins += 1;
                        self.totals.ready += 1;
                        return Answer::Ready;
                    }
                    EntryState::Filling { written, cancelled: None } => waits |= *written * 100 / NEARLY >= size,
                    EntryState::Queued { evicts, .. } => *evicts |= worth == Worth::Yes,
                    EntryState::Cooling { until } if *until <= now => self.consider(file, version, worth, now),
                    EntryState::Cooling { .. } => self.totals.cooling += 1,
                    _ => {}
                }
            }
            None => {
                self.consider(file, version, worth, now);
                self.files.get_mut(&file).into_iter().for_each(|entry| entry.opens = 1);
            }
        }
        self.pump(now);
        let state = self.files.get(&file).map(|entry| &entry.state);
        let is_coming = matches!(
            state,
            Some(EntryState::Queued { .. } | EntryState::Filling { cancelled: None, .. } | EntryState::Unchecked)
        );
        if is_coming && waits {
            return Answer::Wait;
        }
        self.totals.no += 1;
        Answer::No
    }

    /// A handle that was served the ordinary way was closed.
    pub(crate) fn closed(&mut self, file: FileId, size: u64, reading: Reading) {
        self.policy.closed(file, size, reading);
    }

    /// A job or a command asks for a version.
    ///
    /// # Errors
    /// [`NotTaken`] when it will not come.
    pub(crate) fn want(
        &mut self,
        file: FileId,
        version: &FileVersion,
        why: Why,
        now: Instant,
    ) -> Result<Answer, NotTaken> {
        if self.is_closed {
            return Err(NotTaken::Off);
        }
        if !self.policy.is_possible(version.size) {
            self.totals.bad_size += 1;
            return Err(NotTaken::Size);
        }
        if !self.files.contains_key(&file) {
            self.enqueue(file, version, true, now).map_err(|()| NotTaken::NoRoom)?;
        }
        let Some(entry) = self.files.get_mut(&file) else { return Err(NotTaken::NoRoom) };
        entry.asked = Some(why);
        entry.version.get_or_insert_with(|| version.clone());
        match &mut entry.state {
            EntryState::Ready { pins } => {
                *pins += 1;
                return Ok(Answer::Ready);
            }
            // It goes before files that were not asked for. What failed is tried again at once, since it is asked for
            // anew.
            EntryState::Queued { .. } | EntryState::Cooling { .. } => self.queue(file, true, now),
            EntryState::Leaving { pins, is_right: true } => {
                let pins = *pins + 1;
                entry.enter(EntryState::Ready { pins }, now);
                return Ok(Answer::Ready);
            }
            // What goes comes again when it is gone.
            _ => {}
        }
        self.pump(now);
        if self.files.contains_key(&file) { Ok(Answer::Wait) } else { Err(NotTaken::NoRoom) }
    }

    /// Pins a file that is ready: it stays until [`FileIndex::unpin`]. Whether it is there.
    pub(crate) fn pin(&mut self, file: &FileId) -> bool {
        match self.files.get_mut(file).map(|entry| &mut entry.state) {
            Some(EntryState::Ready { pins }) => {
                *pins += 1;
                true
            }
            _ => false,
        }
    }

    /// Whether it is ready.
    pub(crate) fn has(&self, file: &FileId) -> bool {
        self.files.get(file).is_some_and(|entry| matches!(entry.state, EntryState::Ready { .. }))
    }

    /// One pin less.
    pub(crate) fn unpin(&mut self, file: FileId, now: Instant) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        match &mut entry.state {
            EntryState::Ready { pins } => {
                *pins = pins.saturating_sub(1);
                if *pins == 0 {
                    entry.used = now;
                    self.actions.push(Action::Used(file));
                }
            }
            EntryState::Leaving { pins, .. } => {
                *pins = pins.saturating_sub(1);
                if *pins == 0 {
                    self.remove(file, now);
                }
            }
            _ => return,
        }
        self.pump(now);
    }

    /// So much of it is written.
    pub(crate) fn progress(&mut self, file: &FileId, so_far: u64) {
        if let Some(EntryState::Filling { written, .. }) = self.files.get_mut(file).map(|entry| &mut entry.state) {
            *written = so_far;
        }
    }

    /// It is whole and checked, and has its name.
    pub(crate) fn filled(&mut self, file: FileId, now: Instant) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        let EntryState::Filling { cancelled, .. } = &mut entry.state else { return };
        // It may have been asked for since. What was read of it meanwhile may have been wrong: then it is not what was asked for.
        let is_wrong = matches!(cancelled, Some(NotTaken::Failed(_)));
        let cancelled = cancelled.take().filter(|_| is_wrong || entry.asked.is_none());
        self.filling -= 1;
        (entry.checked, entry.failures) = (now, 0);
        entry.enter(EntryState::Ready { pins: 0 }, now);
        match cancelled {
            // It was done before it was cancelled.
            Some(why) => {
                self.actions.push(Action::Tell(file, Some(why)));
                self.remove(file, now);
            }
            None => self.actions.push(Action::Tell(file, None)),
        }
        self.pump(now);
    }

    /// Its fill failed, and nothing is left of it on the backend.
    pub(crate) fn failed(&mut self, file: FileId, why: NotTaken, now: Instant) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        let EntryState::Filling { cancelled, .. } = &mut entry.state else { return };
        let why = cancelled.take().unwrap_or(why);
        self.filling -= 1;
        self.taken -= room_of(entry.size);
        if why == NotTaken::Changed {
            self.policy.forget(&file);
            self.files.remove(&file);
        } else if why == NotTaken::Dropped && entry.asked.is_some() && !self.is_closed {
            // It was asked for after it had been dropped.
            self.queue(file, true, now);
            return self.pump(now);
        } else if matches!(why, NotTaken::Dropped | NotTaken::Off) {
            self.files.remove(&file);
        } else {
            entry.cool(now);
        }
        self.actions.push(Action::Tell(file, Some(why)));
        self.pump(now);
    }

    /// It is gone from the backend.
    pub(crate) fn removed(&mut self, file: FileId, now: Instant) {
        let Some(entry) = self.files.get(&file) else { return };
        if entry.state != EntryState::Removing {
            return;
        }
        let room = room_of(entry.size);
        self.taken -= room;
        self.going -= room;
        if entry.asked.is_some() && entry.version.is_some() && !self.is_closed {
            self.queue(file, true, now);
        } else {
            self.files.remove(&file);
            self.actions.push(Action::Tell(file, Some(NotTaken::Dropped)));
        }
        self.pump(now);
    }

    /// No program will open it any more.
    pub(crate) fn forget(&mut self, file: FileId, now: Instant) {
        self.policy.forget(&file);
        self.drop_file(file, now);
    }

    /// Drops a file. Whether it was there, or on its way.
    pub(crate) fn drop_file(&mut self, file: FileId, now: Instant) -> bool {
        let Some(entry) = self.files.get_mut(&file) else { return false };
        entry.asked = None;
        let was_there = match &mut entry.state {
            EntryState::Queued { .. } => {
                self.dequeue(&file);
                self.files.remove(&file);
                self.actions.push(Action::Tell(file, Some(NotTaken::Dropped)));
                true
            }
            EntryState::Filling { cancelled, .. } => {
                if cancelled.is_none() {
                    *cancelled = Some(NotTaken::Dropped);
                    self.actions.push(Action::Cancel(file));
                }
                true
            }
            EntryState::Ready { pins: 1.. } => {
                self.leave(file, true, now);
                true
            }
            EntryState::Ready { .. } | EntryState::Unchecked => {
                self.remove(file, now);
                true
            }
            EntryState::Cooling { .. } => {
                self.files.remove(&file);
                false
            }
            EntryState::Leaving { .. } | EntryState::Removing => false,
        };
        self.pump(now);
        was_there
    }

    /// Everything goes; how many files there were.
    pub(crate) fn drop_all(&mut self, now: Instant) -> usize {
        let was_closed = std::mem::replace(&mut self.is_closed, true);
        let all: Vec<FileId> = self.files.keys().copied().collect();
        let dropped = all.into_iter().filter(|file| self.drop_file(*file, now)).count();
        self.is_closed = was_closed;
        self.pump(now);
        dropped
    }

    /// Nothing comes any more. What is on its way goes; what is there stays.
    pub(crate) fn close(&mut self, now: Instant) {
        self.is_closed = true;
        let is_coming = |entry: &Entry| matches!(entry.state, EntryState::Queued { .. } | EntryState::Filling { .. });
        let coming: Vec<FileId> =
            self.files.iter().filter(|(_, entry)| is_coming(entry)).map(|(file, _)| *file).collect();
        for file in coming {
            self.drop_file(file, now);
        }
    }

    /// The backend has so many bytes free.
    pub(crate) fn free(&mut self, free: u64, now: Instant) {
        let settled = |entry: &Entry| match entry.state {
            EntryState::Filling { written, .. } if !self.limits.sets_aside => written,
            _ => entry.room(),
        };
        let used: u64 = self.files.values().map(settled).sum();
        self.missing = self.limits.rules.size.saturating_sub(used.saturating_add(free));
        self.pump(now);
    }

    /// What is in use of the backend that no file accounts for, at least: what a fill has just written it has not told of yet.
    pub(crate) fn missing(&self) -> u64 {
        let untold = |entry: &Entry| match entry.state {
            EntryState::Filling { written, .. } => entry.room().saturating_sub(written).min(u64::from(MAX_BLOCK_SIZE)),
            _ => 0,
        };
        self.missing.saturating_sub(self.files.values().map(untold).sum())
    }

    /// So much room is wanted back by whoever lent it: files that are not open, that nobody asked for and that were not used since
    /// then go, the one used longest ago before others.
    pub(crate) fn reclaim(&mut self, bytes: u64, unused_since: Instant, now: Instant) {
        let may_go = |entry: &Entry| entry.asked.is_none() && matches!(entry.state, EntryState::Ready { pins: 0 });
        let idle = self.files.iter().filter(|(_, entry)| may_go(entry) && entry.used <= unused_since);
        let mut idle: Vec<_> = idle.map(|(file, entry)| (entry.used, *file, entry.room())).collect();
        idle.sort_unstable_by_key(|(used, ..)| *used);
        // What is on its way out was wanted back before.
        let mut freed = self.going;
        for (_, file, room) in idle {
            if freed >= bytes {
                break;
            }
            freed += room;
            self.totals.evictions += 1;
            self.remove(file, now);
        }
    }

    /// A handle that is served the ordinary way has read so much by now. A file that looks as if it were read, or mapped, as a whole
    /// is taken if there is room, but nothing goes for it.
    pub(crate) fn reads(&mut self, file: FileId, version: &FileVersion, reading: Reading, now: Instant) {
        if self.is_closed || self.files.contains_key(&file) || !self.policy.is_read_whole(version.size, reading) {
            return;
        }
        // Where there are too many files, that was counted.
        let _ = self.enqueue(file, version, false, now);
        self.pump(now);
    }

    /// Time passed.
    pub(crate) fn tick(&mut self, now: Instant) {
        let over: Vec<FileId> =
            self.files.iter().filter_map(|(file, entry)| entry.is_over(now).then_some(*file)).collect();
        for file in over {
            // A file that was asked for is tried again. Any other is forgotten until a program opens it.
            match self.files.get(&file) {
                Some(entry) if entry.asked.is_some() && !self.is_closed => self.queue(file, true, now),
                _ => drop(self.files.remove(&file)),
            }
        }
        self.pump(now);
    }

    /// The file whose bytes are to be checked next, and since when: what a restart found first, those that were used last
    /// before others; then what was not checked for `interval`.
    pub(crate) fn next_check(&self, interval: Option<Duration>, now: Instant) -> Option<FileId> {
        let unchecked = self.files.iter().filter(|(_, entry)| entry.state == EntryState::Unchecked);
        if let Some((file, _)) = unchecked.max_by_key(|(_, entry)| (entry.asked.is_some(), entry.used)) {
            return Some(*file);
        }
        let interval = interval?;
        let at_rest = |entry: &Entry| matches!(entry.state, EntryState::Ready { .. });
        let due = self.files.iter().filter(|(_, entry)| at_rest(entry) && entry.checked + interval <= now);
        due.min_by_key(|(_, entry)| entry.checked).map(|(file, _)| *file)
    }

    /// It was checked, and is what it should be or not. `version`: what it says itself that it is.
    pub(crate) fn checked(&mut self, file: FileId, version: Option<FileVersion>, is_right: bool, now: Instant) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        match (&entry.state, is_right) {
            (EntryState::Ready { .. }, true) => entry.checked = now,
            (EntryState::Unchecked, true) => {
                entry.checked = now;
                entry.version = version.or(entry.version.take());
                entry.enter(EntryState::Ready { pins: 0 }, now);
                self.actions.push(Action::Tell(file, None));
            }
            (EntryState::Ready { .. } | EntryState::Unchecked | EntryState::Leaving { .. }, false) => {
                self.lost(file, now)
            }
            // Whoever was shown it, as its fill ended, read wrong bytes: no open is to get it.
            (EntryState::Filling { .. }, false) => {
                if let EntryState::Filling { cancelled, .. } = &mut entry.state {
                    *cancelled = Some(NotTaken::Failed("it was not what it should be when it was whole".to_owned()));
                }
            }
            _ => {}
        }
        self.pump(now);
    }

    /// It is not there, or not what it should be: no open gets it any more.
    pub(crate) fn lost(&mut self, file: FileId, now: Instant) {
        let Some(entry) = self.files.get_mut(&file) else { return };
        match &mut entry.state {
            EntryState::Ready { pins: 1.. } => self.leave(file, false, now),
            EntryState::Leaving { is_right, .. } => *is_right = false,
            EntryState::Ready { .. } | EntryState::Unchecked => self.remove(file, now),
            _ => {}
        }
    }

    /// Whether who lends room for it may evict for that: not for a small file, which is in its memory twice then, unless it is asked for.
    pub(crate) fn may_evict(&self, file: &FileId) -> bool {
        let may = |entry: &Entry| entry.asked.is_some() || entry.size >= SMALL_FILE || self.policy.waits(entry.size);
        self.files.get(file).is_some_and(may)
    }

    /// The version of a file.
    pub(crate) fn version(&self, file: &FileId) -> Option<FileVersion> {
        self.files.get(file)?.version.clone()
    }

    pub(crate) fn size(&self, file: &FileId) -> Option<u64> {
        self.files.get(file).map(|entry| entry.size)
    }

    pub(crate) fn list(&self) -> Vec<Shown> {
        self.files.iter().filter_map(|(id, entry)| entry.shown(*id)).collect()
    }

    /// Adds what is known here.
    pub(crate) fn report(&self, stats: &mut LocalStats) {
        for entry in self.files.values() {
            let (files, bytes, room) = (&mut stats.files, &mut stats.bytes, entry.room());
            match entry.state {
                EntryState::Queued { .. } => files.queued += 1,
                EntryState::Cooling { .. } => files.cooling += 1,
                EntryState::Filling { .. } => {
                    (files.filling, bytes.filling) = (files.filling + 1, bytes.filling + room)
                }
                EntryState::Unchecked => {
                    (files.unchecked, bytes.unchecked) = (files.unchecked + 1, bytes.unchecked + room)
                }
                EntryState::Ready { pins } => {
                    (files.ready, bytes.ready) = (files.ready + 1, bytes.ready + room);
                    files.pinned += u64::from(pins > 0);
                }
                EntryState::Leaving { .. } => {
                    (files.leaving, bytes.leaving) = (files.leaving + 1, bytes.leaving + room)
                }
                EntryState::Removing => bytes.leaving += room,
            }
        }
        stats.bytes.lingering = self.missing();
        (stats.opens.ready, stats.opens.no) = (self.totals.ready, self.totals.no);
        stats.refused.room = self.totals.no_room;
        stats.refused.size = self.totals.bad_size;
        stats.refused.cooling = self.totals.cooling;
        stats.evictions = self.totals.evictions;
    }
}
