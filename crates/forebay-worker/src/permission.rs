//! Whether who asks may have an answer: of blocks by what is cached of them, of names by their path.
//!
//! A hit is shown by the label of its block. Where that says no, or a block has none, as after a restart, the
//! description of its file decides: a client sends it when it is asked for ([`FailureKind::NeedsDescription`]), and the
//! block gets its label.

use std::sync::Arc;

use forebay_store::Shown;
use forebay_transport::{Caller, Flags, Request};
use forebay_types::{BlockKey, Failure, FailureKind, FileVersion, FsPath, Permission};

use crate::worker::Worker;

impl Worker {
    /// Whether what is cached of a block may be shown to `caller` at once.
    #[inline]
    pub(crate) fn shows(&self, caller: &Caller, key: &BlockKey) -> bool {
        self.scopes.shows(caller, self.store().label(key))
    }

    /// What is cached and may be shown to `caller` at once.
    #[inline]
    pub(crate) fn shown_to<'a>(&'a self, caller: &'a Caller) -> Shown<'a, impl Fn(Option<u32>) -> bool + 'a> {
        self.store().shown(|label| self.scopes.shows(caller, label))
    }

    /// Whether who asks may read the block that a request is about. Returns the description of its file where that had
    /// to be known for it.
    ///
    /// # Errors [`FailureKind::PermissionDenied`]; [`FailureKind::NeedsDescription`]; what a file fails with that no
    /// mount leads to.
    pub(crate) fn admit(&self, request: &Request) -> Result<Option<Arc<FileVersion>>, Failure> {
        let (caller, key) = (&request.caller, &request.block);
        let (scope, label) = (self.scopes.current(), self.store().label(key));
        if label.is_some_and(|label| scope.may_read(caller, label)) {
            return Ok(None);
        }
        let version = match self.version_of(request) {
            Ok(version) => version,
            Err(unknown) if unknown.kind() == FailureKind::NeedsDescription && label.is_none() => {
                // A worker that takes over a block does not know whose it is either, and asks in its turn before it
                // shows it.
                let is_handed_over = request.flags.contains(Flags::CACHED) && caller.is_worker();
                let may_be_shown = is_handed_over || !scope.namespace.is_guarded();
                return if may_be_shown { Ok(None) } else { Err(unknown) };
            }
            Err(refused) => return Err(refused),
        };
        scope.admits_to_file(caller, key.file, &version.origin)?;
        self.label(key, &version);
        Ok(Some(version))
    }

    /// The description of the file that a request is about, if who asks may read it.
    ///
    /// # Errors
    /// As [`Worker::admit`].
    pub(crate) fn admitted_version(&self, request: &Request) -> Result<Arc<FileVersion>, Failure> {
        self.admit(request)?.map_or_else(|| self.version_of(request), Ok)
    }

    /// Whether who asks may read what is at `path`.
    ///
    /// # Errors
    /// [`FailureKind::PermissionDenied`].
    pub(crate) fn admit_at(&self, request: &Request, path: &FsPath) -> Result<(), Failure> {
        self.scopes.current().admits(&request.caller, path, Permission::Read)
    }

    /// Has hits on a block find which origin it is of.
    pub(crate) fn label(&self, key: &BlockKey, version: &FileVersion) {
        if self.store().label(key).is_none()
            && let Some(label) = self.scopes.label(&version.origin)
        {
            self.store().set_label(key, label);
        }
    }
}
