//! Opening files for reading, and closing what was opened.
//!
//! An open finds out first whether the inode is still what its name leads to, and then how it is to be served: by us, or passed
//! through by the kernel to a materialised file of just that version. The inode decides ([`crate::mode`]); what it may decide for is
//! had before, so that nobody waits while its lock is held. Files for writing are opened in [`crate::writing`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_types::{Attr, Failure, FailureKind, FileId};

use crate::dispatch::writes;
use crate::filesystem::{FileHandle, FileSystem, stale, too_many_open};
use crate::inode::{How, Inode, Known, version_id};
use crate::mode::Reading;

/// Within one `open(2)` the kernel looks the name up and then opens the inode. What the lookup asked for just now need
/// not be asked again, also where answers are valid for no time at all.
const LOOKUP_COVERS_OPEN: Duration = Duration::from_millis(100);

/// A file that was opened, as the kernel is to be told of it.
pub(crate) struct Opening {
    /// Its handle.
    pub(crate) handle: u64,
    /// How the kernel is to treat it.
    pub(crate) how: How,
}

impl FileSystem {
    /// A handle on what `ino` stands for.
    pub(crate) async fn open(&self, ino: u64, flags: i32, thread: u32) -> Result<Opening, Failure> {
        let inode = self.inode(ino)?;
        if writes(flags) {
            let handle = self.open_for_writing(&inode, flags, thread).await?;
            return Ok(Opening { handle, how: How::Cached });
        }
        // Before what it is, so that whatever happens in between is noticed by the first read.
        let revision = inode.revision();
        if inode.draft().is_some() {
            let how = inode.enter(None, revision, Reading::Anyhow);
            return self.opened(FileHandle::for_reading(inode, None, revision, None), how);
        }
        let attr = self.current(&inode).await?;
        let Some(version) = attr.version().cloned() else {
            return Err(Failure::new(FailureKind::IsADirectory, format!("{} is a directory", inode.path())));
        };
        let how = self.enter(&inode, &attr, revision, flags).await;
        let (file, read) = match how {
            // The kernel reads it.
            How::Passed(_) => (None, None),
            How::Cached | How::Direct(_) => {
                let read = self.materialised.as_ref().map(|_| Arc::default());
                (Some(self.client.open_replicated(version, attr.replicas)), read)
            }
        };
        self.opened(FileHandle::for_reading(inode, file, revision, read), how)
    }

    /// How a handle for reading is open from now on: passed through to a materialised file if there is one, and the inode is not
    /// open the other way.
    async fn enter(&self, inode: &Inode, attr: &Attr, revision: u64, flags: i32) -> How {
        let Some((materialised, version)) = self.materialised.as_ref().zip(attr.version()) else {
            return inode.enter(None, revision, Reading::Anyhow);
        };
        let reading = materialised.reading(flags);
        let may_be_written = attr.writable && self.staging.is_some();
        if may_be_written && !materialised.takes_writable() {
            return inode.enter(None, revision, reading);
        }
        // Also where it is decided already: this is what makes a file worth it.
        let verdict = materialised.opened(version.id(), version);
        materialised.named(version.id(), || inode.path());
        if let Some(how) = inode.join(reading) {
            return how;
        }
        let offered = match reading {
            Reading::Anyhow if !inode.is_kept() => materialised.offer(verdict).await,
            _ => None,
        };
        inode.enter(offered, revision, reading)
    }

    /// A handle for reading that was counted by its inode, and is to be counted here.
    fn opened(&self, open: FileHandle, how: How) -> Result<Opening, Failure> {
        let inode = Arc::clone(&open.inode);
        let Some(handle) = self.files.insert(open) else {
            self.leave(&inode);
            return Err(too_many_open());
        };
        self.materialised.iter().for_each(|materialised| materialised.count(&how));
        Ok(Opening { handle, how })
    }

    /// What an inode that is not being written is, asked again where that may have changed.
    ///
    /// # Errors
    /// `VersionChanged` when it is not what its name leads to any more.
    pub(crate) async fn current(&self, inode: &Inode) -> Result<Attr, Failure> {
        if inode.is_changed() {
            return Err(stale(&inode.path()));
        }
        let known = inode.known();
        let now = Instant::now();
        let believed = self.open_status_cache && known.fresh_until > now;
        if believed || inode.is_removed() || now.duration_since(known.asked) <= LOOKUP_COVERS_OPEN {
            return Ok(known.attr);
        }
        let path = inode.path();
        let stat = self.client.stat(&path, false).await.map_err(gone_is_stale)?;
        let known = Known::new(stat.attr, now, stat.valid_for);
        if !inode.is_meant_by(&known) {
            self.forget_copy(version_id(&inode.known().attr));
            return Err(stale(&path));
        }
        inode.learn(known);
        Ok(inode.known().attr)
    }

    /// The file is closed. What was written through it alone is to be finished with [`FileSystem::finish`].
    pub(crate) fn release(&self, handle: u64) -> Option<Arc<Inode>> {
        let open = self.files.with(handle, FileHandle::clone).filter(|_| self.files.remove(handle))?;
        if open.writers.is_some() {
            return open.inode.end_writing().map(|_| open.inode);
        }
        self.leave(&open.inode);
        if let Some((materialised, (version, size, read))) = self.materialised.as_ref().zip(open.was_read()) {
            materialised.files().closed(version, size, read);
        }
        None
    }

    /// A handle for reading is not open any more.
    fn leave(&self, inode: &Inode) {
        if let Some((materialised, pinned)) = self.materialised.as_ref().zip(inode.leave()) {
            materialised.let_go(pinned);
        }
    }

    /// Nobody will open this version any more.
    pub(crate) fn forget_copy(&self, version: Option<FileId>) {
        if let (Some(materialised), Some(version)) = (&self.materialised, version) {
            materialised.files().forget(version);
        }
    }
}

/// For a handle that is about to be opened, "no such file" would be final; the kernel shall look the name up again.
fn gone_is_stale(failure: Failure) -> Failure {
    match failure.kind() {
        FailureKind::NotFound => Failure::new(FailureKind::VersionChanged, failure.message()),
        _ => failure,
    }
}
