//! Which file is filled next, and which are evicted for it.

use std::time::Instant;

use forebay_types::{FileId, FileVersion};

use super::contents::{Action, FileIndex, MAX_FILES, Refusal};
use super::entry::{Entry, EntryState, room_of};
use crate::file::NotTaken;
use crate::policy::{Policy, Worth};

impl FileIndex {
    /// Takes a file in, if it is worth it.
    pub(super) fn consider(&mut self, file: FileId, version: &FileVersion, worth: Worth, now: Instant) {
        if self.is_closed {
            return;
        }
        match worth {
            Worth::Yes | Worth::IfRoom => drop(self.enqueue(file, version, worth == Worth::Yes, now)),
            Worth::Never => self.totals.bad_size += 1,
            Worth::No => {}
        }
    }

    pub(super) fn enqueue(
        &mut self,
        file: FileId,
        version: &FileVersion,
        evicts: bool,
        now: Instant,
    ) -> Result<(), ()> {
        let is_known = self.files.contains_key(&file);
        if !is_known && self.files.len() >= MAX_FILES {
            self.totals.no_room += 1;
            return Err(());
        }
        if !is_known {
            let state = EntryState::Queued { turn: 0, evicts };
            self.files.insert(file, Entry::new(version.size, Some(version.clone()), state, now));
        }
        self.queue(file, evicts, now);
        Ok(())
    }

    /// Gives a known file a turn, the last of those that were asked for or not.
    pub(super) fn queue(&mut self, file: FileId, evicts: bool, now: Instant) {
        self.dequeue(&file);
        self.turns += 1;
        let turn = self.turns;
        if let Some(entry) = self.files.get_mut(&file) {
            entry.enter(EntryState::Queued { turn, evicts }, now);
            self.queue.insert((entry.asked.is_none(), turn, file));
        }
    }

    /// Takes the turn of a file away, if it has one.
    pub(super) fn dequeue(&mut self, file: &FileId) {
        if let Some(EntryState::Queued { turn, .. }) = self.files.get(file).map(|entry| &entry.state) {
            // Whether it was asked for may have changed since.
            self.queue.remove(&(true, *turn, *file));
            self.queue.remove(&(false, *turn, *file));
        }
    }

    /// Starts what can be started.
    pub(super) fn pump(&mut self, now: Instant) {
        while !self.is_closed && self.filling < self.limits.fills {
            let Some(file) = self.queue.first().map(|(.., file)| *file) else { return };
            let Some(entry) = self.files.get_mut(&file) else { return };
            let (room, evicts) = (room_of(entry.size), matches!(entry.state, EntryState::Queued { evicts: true, .. }));
            let free = self.limits.rules.size.saturating_sub(self.taken).saturating_sub(self.missing);
            if room <= free {
                self.queue.pop_first();
                entry.enter(EntryState::Filling { written: 0, cancelled: None }, now);
                self.taken += room;
                self.filling += 1;
                self.actions.push(Action::Fill(file));
                continue;
            }
            let lacking = (room - free).saturating_sub(self.going);
            if lacking == 0 {
                // What is on its way out is enough.
                return;
            }
            match if evicts { self.victims(&file, lacking, now) } else { None } {
                Some(victims) => {
                    self.totals.evictions += victims.len() as u64;
                    for victim in victims {
                        self.remove(victim, now);
                    }
                }
                None => {
                    self.totals.no_room += 1;
                    self.queue.pop_first();
                    self.files.remove(&file);
                    self.actions.push(Action::Tell(file, Some(NotTaken::NoRoom)));
                }
            }
        }
    }

    /// What goes so that `file` has `lacking` bytes more, that which was opened least first; `None` when what may go is not
    /// enough.
    fn victims(&mut self, file: &FileId, lacking: u64, now: Instant) -> Option<Vec<FileId>> {
        let is_asked = self.files.get(file)?.asked.is_some();
        let opens = if is_asked { f64::INFINITY } else { self.policy.opens(file, now) };
        if self.refusal.is_some_and(|refusal| refusal.holds(opens, lacking, now)) {
            return None;
        }
        let mut may_go: Vec<_> = self
            .files
            .iter()
            .filter(|(_, entry)| entry.asked.is_none())
            .filter(|(_, entry)| matches!(entry.state, EntryState::Ready { pins: 0 } | EntryState::Unchecked))
            .map(|(file, entry)| (self.policy.opens(file, now), entry.used, *file, entry.room()))
            .filter(|(resident, ..)| Policy::yields(*resident, opens))
            .collect();
        may_go.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut freed = 0_u64;
        let enough = may_go.iter().position(|(.., room)| {
            freed += room;
            freed >= lacking
        });
        if enough.is_none() {
            self.refusal = Some(Refusal { opens, lacking, at: now });
        }
        Some(may_go[..=enough?].iter().map(|(.., file, _)| *file).collect())
    }

    /// Handles that have it open keep it. No other open gets it, unless it is right and is asked for.
    pub(super) fn leave(&mut self, file: FileId, is_right: bool, now: Instant) {
        if let Some(entry) = self.files.get_mut(&file)
            && let EntryState::Ready { pins } = entry.state
        {
            entry.enter(EntryState::Leaving { pins, is_right }, now);
        }
    }

    /// Whether handles that have it open may go on: no check has found it wrong.
    pub(crate) fn is_right(&self, file: &FileId) -> bool {
        let state = self.files.get(file).map(|entry| &entry.state);
        !matches!(state, Some(EntryState::Leaving { is_right: false, .. }))
    }

    pub(super) fn remove(&mut self, file: FileId, now: Instant) {
        if let Some(entry) = self.files.get_mut(&file) {
            self.going += room_of(entry.size);
            entry.enter(EntryState::Removing, now);
            self.actions.push(Action::Remove(file));
        }
    }
}
