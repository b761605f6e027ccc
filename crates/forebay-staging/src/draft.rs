//! A file that is being written: what is known of it, and what it is asked.
//!
//! Locks, in the order in which they are taken: `serial` (a sync is under way; the only one that is held while
//! waiting), `io` (shared: somebody reads or writes staged bytes; exclusive: they are cut off, zeroed or let go of),
//! `book` (the staged file is made or removed, or its record is written), `state` (what is known; never held while a disk
//! works, so that nobody waits for one to learn a file's size).
//!
//! A write is first put into the staged file and then noted: what is noted is there. Whoever sends a part takes the
//! generation first and then reads: a write that it may have missed is noted later, and makes the part go again.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FailureKind, FsPath};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Base;
use crate::book::As;
use crate::content::Content;
use crate::staging::Shared;
use crate::state::{State, Upload, WrittenDown, modified};
use crate::sync::Held;

/// A file that is being written. Its bytes are staged on the local disk, and reach the origin when it is synced.
///
/// When the last reference goes, a dirty draft stays in the staging directory; any other is removed.
#[derive(Debug)]
pub struct Draft {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: u64,
    pub(crate) serial: Arc<tokio::sync::Mutex<()>>,
    pub(crate) io: RwLock<()>,
    pub(crate) book: Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// Something that was under way in the background has ended.
    pub(crate) settled: Notify,
    /// Cancelled when nobody wants the file at the origin any more.
    pub(crate) unlinked: CancellationToken,
}

impl Draft {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.inner.state.lock().content.size()
    }

    /// When it was last changed; what the origin says, once it is synced. A draft that revises a file was changed now,
    /// until somebody says otherwise.
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

    /// Where it belongs.
    #[must_use]
    pub fn path(&self) -> FsPath {
        self.inner.state.lock().path.clone()
    }

    /// Bytes of it: what was written, zeros in holes, the base elsewhere. Cut off at its end.
    ///
    /// # Errors
    /// `NoSpace` for bytes that were let go of and are not synced; `VersionChanged` when the base has been replaced at
    /// the origin by somebody else; what the origin and the disk say.
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
    /// `VersionChanged` when bytes are needed of a base that somebody else has replaced.
    pub async fn sync(&self) -> Result<Option<Attr>, Failure> {
        self.inner.sync(false).await
    }

    /// Nobody writes any more: syncs, and lets go of all that is staged. A draft that cannot be synced is written down
    /// as failed, stays in the staging directory, and takes no more writes.
    ///
    /// # Errors
    /// As [`Draft::sync`].
    pub async fn finish(&self) -> Result<Option<Attr>, Failure> {
        self.inner.sync(true).await
    }

    /// Waits until no sync is under way, and keeps others, and parts that would go early, from beginning: until it is let go of,
    /// nothing of the draft reaches the origin but by [`Held::sync`]. For whoever changes where its name leads.
    pub async fn hold(&self) -> Held {
        Held::new(&self.inner).await
    }

    /// It has another name now. `attr`: what the origin has under that name, with the bytes that it had of this draft
    /// under the old one.
    pub fn renamed(&self, path: FsPath, attr: Option<Attr>) {
        self.inner.renamed(path, attr);
    }

    /// It has no name any more: it is never uploaded, and lives on for those who have it open. An upload under way is
    /// aborted.
    pub fn unlink(&self) {
        self.inner.unlink();
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        self.inner.dropped();
    }
}

impl Inner {
    pub(crate) fn new(shared: &Arc<Shared>, path: FsPath, content: Content, base: Option<Arc<dyn Base>>) -> Arc<Self> {
        let state = State::new(shared, path, content, base);
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            shared: Arc::clone(shared),
            key: shared.register(this),
            serial: Arc::default(),
            io: RwLock::new(()),
            book: Mutex::default(),
            state: Mutex::new(state),
            settled: Notify::new(),
            unlinked: CancellationToken::new(),
        })
    }

    pub(crate) fn is_dirty(&self) -> bool {
        let state = self.state.lock();
        state.dirty && !state.unlinked
    }

    fn renamed(&self, path: FsPath, attr: Option<Attr>) {
        let mut state = self.state.lock();
        if state.left.is_some() {
            return;
        }
        if path != state.path {
            // It would make a file of the old name.
            state.give_up_upload(&self.shared);
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

    fn unlink(&self) {
        let mut state = self.state.lock();
        // What was left in the directory is not this file any more.
        if state.left.is_some() {
            return;
        }
        state.unlinked = true;
        self.unlinked.cancel();
        state.give_up_upload(&self.shared);
        state.written_down = WrittenDown::Not;
        let staged = state.file.clone();
        drop(state);
        if let Some(staged) = staged {
            self.remove_staged(&staged);
        }
    }

    /// The last one who had it open has dropped it.
    pub(crate) fn dropped(&self) {
        let mut state = self.state.lock();
        if state.left.is_some() {
            return;
        }
        // A sync that is under way goes on, and comes back here.
        state.dropped = true;
        if state.syncing {
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
            state.give_up_upload(&self.shared);
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
            state.dirty && !state.unlinked && state.left.is_none()
        };
        if has_something_to_lose {
            self.warn(self.write_down(As::Exactly, false));
        }
    }

    /// What cannot be written down is not known after a crash; nothing else is lost.
    pub(crate) fn warn(&self, written_down: Result<(), Failure>) {
        if let Err(failure) = written_down {
            tracing::warn!(%failure, "a file that is being written is not written down");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.unregister(self.key);
        let state = self.state.get_mut();
        let staged = state.content.staged();
        let Some(file) = &state.file else { return };
        // Closing alone would not do: a child process that is just being started shares the descriptor for a moment.
        let _ = file.file.unlock();
        if state.left.is_some() {
            self.shared.keep(&file.id, staged);
        } else {
            self.shared.room.give(staged);
        }
    }
}
