//! A file that is being written: what it is asked. What is known of it is in [`crate::shared`] and [`crate::state`].

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FileVersion, FsPath};

use crate::shared::DraftInner;
use crate::sync::Held;

/// A file that is being written. Its bytes are staged on the local disk, and reach the origin when it is synced.
///
/// When the last reference goes, a dirty draft stays in the staging directory; any other is removed.
#[derive(Debug)]
pub struct Draft {
    inner: Arc<DraftInner>,
}

impl Draft {
    pub(crate) fn new(inner: Arc<DraftInner>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &Arc<DraftInner> {
        &self.inner
    }

    /// Its length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inner.state.lock().content.size()
    }

    /// When it was last changed; what the origin says, once it is synced. A draft that revises a file was changed now,
    /// until another time is set.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        self.inner.state.lock().modified
    }

    /// Sets the time of the last change. It holds until the next change, or until the origin says another.
    pub fn set_modified(&self, time: SystemTime) {
        self.inner.state.lock().modified = time;
    }

    /// Whether it has something that the origin does not have, and should.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.inner.is_dirty()
    }

    /// Whether nothing has ever been at the origin under this name by this draft.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.inner.state.lock().new
    }

    /// Whether `version` is what the origin has of it, as far as is known here, and bytes that were not written come from.
    #[must_use]
    pub fn rests_on(&self, version: &FileVersion) -> bool {
        let state = self.inner.state.lock();
        state.base.as_ref().is_some_and(|base| base.version().id() == version.id())
    }

    /// Whether it belongs at `path`, and `version` is what the origin has of it there.
    #[must_use]
    pub fn is_at_origin_as(&self, path: &FsPath, version: &FileVersion) -> bool {
        let state = self.inner.state.lock();
        state.path == *path && state.base.as_ref().is_some_and(|base| base.version().id() == version.id())
    }

    /// Whether it has bytes that only its upload has, which goes with its name: after a sync it has none.
    #[must_use]
    pub fn rests_on_its_upload(&self) -> bool {
        self.inner.state.lock().content.gone() > 0
    }

    /// Where it belongs.
    #[must_use]
    pub fn path(&self) -> FsPath {
        self.inner.state.lock().path.clone()
    }

    /// Bytes of it: what was written, zeros in holes, the base elsewhere. Cut off at its end.
    ///
    /// # Errors
    /// `NoSpace` for bytes that were let go of and are not synced; `VersionChanged` when another writer has replaced
    /// the base at the origin; what the origin and the disk say.
    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, Failure> {
        self.inner.read(offset, length).await
    }

    /// Writes at once; `None` when there is no room, or others wait for some: [`Draft::write`] waits.
    ///
    /// # Errors
    /// As [`Draft::write`].
    #[must_use]
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Option<Result<(), Failure>> {
        self.inner.write_now(offset, data, None)
    }

    /// Writes, waiting for room.
    ///
    /// # Errors
    /// `NoSpace` when there was none in time, or when bytes that were let go of would be changed in part; `TooLarge`
    /// beyond what all parts hold; what the disk says.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), Failure> {
        self.inner.write(offset, data).await
    }

    /// Cuts the file, or grows it with zeros.
    ///
    /// # Errors
    /// `NoSpace` when the cut goes through bytes that were let go of; `TooLarge`; what the disk says.
    pub async fn truncate(&self, size: u64) -> Result<(), Failure> {
        self.inner.truncate(size).await
    }

    /// Makes zeros of bytes within the size.
    ///
    /// # Errors
    /// `NoSpace` when bytes that were let go of would be changed in part; what the disk says.
    pub async fn zero(&self, range: Range<u64>) -> Result<(), Failure> {
        self.inner.zero(range).await
    }

    /// Makes the file at the origin what it is here. Returns what is there now by this draft: `None` when it never was
    /// synced and is not dirty, or is unlinked. What is written meanwhile may be in it or not, and is dirty afterwards.
    ///
    /// # Errors
    /// What the origin says; everything stays staged, and what has arrived need not go again with the next try.
    /// `VersionChanged` when bytes are needed of a base that another writer has replaced.
    pub async fn sync(&self) -> Result<Option<Attr>, Failure> {
        self.inner.sync(false).await
    }

    /// The last writer is gone: syncs, and lets go of all that is staged. A draft that cannot be synced is written down
    /// as failed, stays in the staging directory, and takes no more writes.
    ///
    /// # Errors
    /// As [`Draft::sync`].
    pub async fn finish(&self) -> Result<Option<Attr>, Failure> {
        self.inner.sync(true).await
    }

    /// Waits until no sync is under way, and keeps others, and parts that would go early, from beginning: until it is let go of,
    /// nothing of the draft reaches the origin but by [`Held::sync`]. Held while is changed where its name leads.
    pub async fn hold(&self) -> Held {
        Held::new(&self.inner).await
    }

    /// It has another name now. `attr`: what the origin has under that name, with the bytes that it had of this draft
    /// under the old one.
    pub fn renamed(&self, path: FsPath, attr: Option<Attr>) {
        self.inner.renamed(path, attr);
    }

    /// It has no name any more: it is never uploaded, and lives on for the handles that have it open. An upload under
    /// way is aborted.
    pub fn unlink(&self) {
        self.inner.unlink();
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.inner.dropped();
    }
}
