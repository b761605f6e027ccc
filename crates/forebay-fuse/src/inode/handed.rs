//! An inode as one process tells the next one of it: by a hand-over, or by what is noted for the case that it dies.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_handover::{HeldInode, Open};
use forebay_staging::Draft;

use super::{Inode, InodeState, KEPT_FOR_WRITER, Known, is_ahead};
use crate::mode::Mode;
use crate::pinned::Pinned;

/// How old what another process knew is taken to be: too old to save an open a question.
const RESTORED_AGE: Duration = Duration::from_secs(60);

impl Inode {
    /// One that the process before this one had. What it knew is old by now. `pinned`: what a backing is, and of which size.
    pub(crate) fn restored(held: HeldInode, now: Instant, pinned: impl FnOnce(u32, u64) -> Arc<Pinned>) -> Self {
        // Before any open that it could stand in for.
        let asked = now.checked_sub(RESTORED_AGE).unwrap_or(now);
        let known = Known { attr: held.attr, asked, fresh_until: now };
        let mut inode = Self::new(held.ino, held.path, known);
        *inode.lookups.get_mut() = held.lookups;
        *inode.revision.get_mut() = held.revision;
        *inode.changed.get_mut() = held.changed;
        let state = inode.state.get_mut();
        (state.removed, state.lost) = (held.removed, held.lost);
        state.kept_until = held.kept.then(|| now + KEPT_FOR_WRITER);
        state.mode = match held.open {
            Open::Not => Mode::Free,
            Open::Served(handles) => Mode::Cached(handles),
            Open::Passed { backing, size, handles } => Mode::Passed { backing: pinned(backing, size), handles },
        };
        inode
    }

    /// The process before this one has given what is being written, through so many handles: it is not lost. `changed`: a read had found
    /// that the origin has another version.
    pub(crate) fn goes_on(&mut self, draft: Arc<Draft>, writers: u32, changed: bool) {
        *self.changed.get_mut() = changed;
        let state = self.state.get_mut();
        (state.draft, state.writers) = (Some(draft), writers);
        (state.lost, state.removed) = (false, false);
    }

    /// What is being written, if it can go on in another process as it is: it has its name and a writer, and is not on its way.
    pub(crate) fn movable(&self) -> Option<Arc<Draft>> {
        let state = self.state.lock();
        state.draft.clone().filter(|draft| state.writers > 0 && !state.removed && draft.is_movable())
    }

    /// It as the next process is told of it; `None` while it is being written.
    pub(crate) fn handed(&self) -> Option<HeldInode> {
        let state = self.state.lock();
        (!state.is_written()).then(|| self.told(&state))
    }

    /// It as a process is told of it that goes on without what is being written: that is lost.
    pub(crate) fn without_draft(&self) -> HeldInode {
        let mut without = None;
        self.noted(|told| without = Some(told));
        // It is always told.
        without.unwrap_or_else(|| self.told(&self.state.lock()))
    }

    /// Tells what it is to a process that goes on if this one dies now. It does not change meanwhile. What is being written is lost then.
    pub(crate) fn noted(&self, note: impl FnOnce(HeldInode)) {
        let state = self.state.lock();
        let mut told = self.told(&state);
        if state.is_written() {
            (told.lost, told.removed, told.changed) = (true, true, true);
        }
        note(told);
    }

    fn told(&self, state: &InodeState) -> HeldInode {
        let open = match &state.mode {
            Mode::Free => Open::Not,
            Mode::Cached(handles) => Open::Served(*handles),
            Mode::Passed { backing: pinned, handles } => {
                Open::Passed { backing: pinned.backing().id(), size: pinned.size(), handles: *handles }
            }
        };
        HeldInode {
            ino: self.ino,
            lookups: self.lookups.load(Ordering::Relaxed),
            path: state.path.clone(),
            attr: state.known.attr.clone(),
            revision: self.revision(),
            changed: self.is_changed(),
            removed: state.removed,
            lost: state.lost,
            kept: is_ahead(state.kept_until),
            open,
        }
    }
}
