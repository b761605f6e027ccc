//! Which files there are, for whoever would fetch them otherwise.

use std::sync::Weak;

use forebay_types::FileId;

use crate::shared::LocalShared;

/// Says of files whether the kernel reads them by itself at their next open. It keeps nothing: when the mount has ended there are none.
#[derive(Clone, Debug)]
pub struct Kept(Weak<LocalShared>);

impl Kept {
    pub(crate) fn of(files: Weak<LocalShared>) -> Self {
        Self(files)
    }

    /// Whether this file is there. Takes one lock, for as long as it takes to look.
    #[must_use]
    pub fn has(&self, id: FileId) -> bool {
        let files = self.0.upgrade().filter(|files| files.why_off().is_none());
        files.is_some_and(|files| files.change(|state, _| state.index.has(&id)))
    }
}
