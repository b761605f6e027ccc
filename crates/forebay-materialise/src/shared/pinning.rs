//! How files are opened, each once for all that have it open, and let go of.

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};

use forebay_types::FileId;

use super::LocalShared;
use crate::error::is_lack;
use crate::file::{LocalFile, NotTaken, Pinned};
use crate::name::Name;

impl LocalShared {
    /// Opens a file that the index has pinned for it.
    ///
    /// # Errors
    /// [`NotTaken::Dropped`] if it goes, and [`NotTaken::Failed`] if it is only not opened now. It is not pinned any more then.
    pub(super) fn pinned(&self, name: Name) -> Result<LocalFile, NotTaken> {
        let descriptor = self.backend.open(name).map_err(|error| self.not_opened(name, &error))?;
        let shared = Weak::clone(&self.this);
        let release = Box::new(move |id| {
            if let Some(shared) = shared.upgrade() {
                shared.released(id);
            }
        });
        Ok(self.change(|state, now| {
            // Of two that are opened at once only one would be told of what a check finds.
            if let Some(file) = state.opened_already(name.id, now) {
                return file;
            }
            // Meanwhile a check may have found it wrong.
            let is_wrong = AtomicBool::new(!state.index.is_right(&name.id));
            let pinned = Arc::new(Pinned { id: name.id, size: name.size, descriptor, is_wrong, release });
            state.open.insert(name.id, Arc::downgrade(&pinned));
            LocalFile { pinned }
        }))
    }

    /// Gives the pin back, and lets the file go unless the error says nothing of it.
    #[cold]
    fn not_opened(&self, name: Name, error: &io::Error) -> NotTaken {
        if is_lack(error) {
            // Not a warning: each open comes here, for as long as there are too many files open.
            tracing::debug!(file = %name, %error, "a materialised file cannot be opened now");
            self.change(|state, now| state.index.unpin(name.id, now));
            return NotTaken::Failed(format!("it is there, and cannot be opened now: {error}"));
        }
        tracing::warn!(file = %name, %error, "a materialised file cannot be opened, and goes");
        self.change(|state, now| {
            state.index.unpin(name.id, now);
            state.index.lost(name.id, now);
        });
        NotTaken::Dropped
    }

    /// Pins and opens a file for an open or a request that waited for it.
    pub(super) fn taken(&self, name: Name) -> Result<LocalFile, NotTaken> {
        let found = self.change(|state, now| state.index.pin(&name.id).then(|| state.opened_already(name.id, now)));
        match found {
            Some(Some(file)) => Ok(file),
            Some(None) => self.pinned(name),
            None => Err(NotTaken::Dropped),
        }
    }

    fn released(&self, id: FileId) {
        self.change(|state, now| {
            if state.open.get(&id).is_some_and(|open| open.strong_count() == 0) {
                state.open.remove(&id);
            }
            state.index.unpin(id, now);
        });
    }
}
