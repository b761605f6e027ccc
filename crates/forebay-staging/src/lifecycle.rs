//! What befalls a draft besides its bytes: it gets another name or loses it, its last handle is gone, or the mount goes
//! away.

use forebay_types::{Attr, Failure, FailureKind, FsPath};

use crate::shared::DraftInner;
use crate::staged_file::As;
use crate::state::{Upload, WrittenDown, modified};

impl DraftInner {
    /// It has another name now, under which the origin has this of it.
    pub(crate) fn renamed(&self, path: FsPath, attr: Option<Attr>) {
        let mut state = self.state.lock();
        if state.left.is_some() {
            return;
        }
        if path != state.path {
            // It would make a file of the old name.
            self.shared.give_up_upload(&mut state);
        }
        state.path = path;
        if let Some(version) = attr.as_ref().and_then(Attr::version) {
            state.base = Some(self.shared.remote.open(version.clone()));
            state.new = false;
        } else {
            (state.new, state.dirty) = (true, true);
        }
        if !state.dirty {
            state.modified = attr.as_ref().and_then(modified).unwrap_or(state.modified);
        }
        state.attr = attr;
        drop(state);
        self.warn(self.write_down(As::Before, false));
    }

    /// It has no name any more.
    pub(crate) fn unlink(&self) {
        let mut state = self.state.lock();
        // What was left in the directory is not this file any more.
        if state.left.is_some() {
            return;
        }
        state.unlinked = true;
        self.unlinked.cancel();
        self.shared.give_up_upload(&mut state);
        state.written_down = WrittenDown::Not;
        let staged = state.file.clone();
        drop(state);
        if let Some(staged) = staged {
            self.remove_staged(&staged);
        }
    }

    /// The last handle has dropped it.
    pub(crate) fn dropped(&self) {
        let mut state = self.state.lock();
        if state.left.is_some() {
            return;
        }
        // A sync that is under way goes on, and comes back here. So does whoever holds it still for another process, if that does not get it.
        state.dropped = true;
        if state.syncing || state.is_lent {
            return;
        }
        if state.dirty && !state.unlinked {
            // Parts under way end; those that arrive are not needed, because all is still staged.
            if let Upload::Begun(begun) = &state.upload {
                begun.given_up.cancel();
            }
            state.left = Some(Failure::new(FailureKind::Unavailable, "it was dropped before it was synced"));
            drop(state);
            self.warn(self.write_down(As::Exactly, false));
        } else {
            self.shared.give_up_upload(&mut state);
            let staged = state.file.clone();
            drop(state);
            if let Some(staged) = staged {
                self.remove_staged(&staged);
            }
        }
    }

    /// Writes down what a dirty draft is, as the mount goes away.
    pub(crate) fn write_down_unsynced(&self) {
        let has_something_to_lose = {
            let state = self.state.lock();
            state.dirty && !state.unlinked && state.left.is_none() && !state.is_lent
        };
        if has_something_to_lose {
            self.warn(self.write_down(As::Exactly, false));
        }
    }
}
