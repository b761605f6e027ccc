//! Opening files for reading, and closing what was opened.
//!
//! An open finds out first whether the inode is still what its name leads to, and then how it is to be served: by us,
//! or passed through by the kernel to a materialised file of just that version. The inode decides ([`crate::mode`]).
//! The file that it may be passed through to is obtained before that, so that no thread waits while the inode's lock is
//! held. Files for writing are opened in [`crate::writing`].

use std::sync::Arc;

use forebay_types::{Attr, Failure, FailureKind};

use crate::failures::too_many_open;
use crate::filesystem::FileSystem;
use crate::handle::{FileHandle, ReadThrough};
use crate::inode::Inode;
use crate::mode::Reading;
use crate::pinned::How;

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
        if inode.is_passed_to_wrong() {
            let _turn = inode.turn.lock().await;
            return Err(self.split(&inode));
        }
        let how = self.enter(&inode, &attr, revision, flags).await;
        let (file, read) = match how {
            // The kernel reads it.
            How::Passed(_) => {
                self.client.opened_elsewhere(&version);
                (None, None)
            }
            How::Cached | How::Direct(_) => {
                let read = self.materialised.as_ref().map(|materialised| {
                    let may_be_taken = materialised.takes_writable() || !self.may_be_written(&attr);
                    let is_told_of = may_be_taken && flags & libc::O_DIRECT == 0;
                    Arc::new(if is_told_of { ReadThrough::buffered() } else { ReadThrough::default() })
                });
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
        if self.may_be_written(attr) && !materialised.takes_writable() {
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

    fn may_be_written(&self, attr: &Attr) -> bool {
        attr.writable && self.staging.is_some()
    }

    /// A handle for reading that was counted by its inode, and is to be counted here.
    fn opened(&self, open: FileHandle, how: How) -> Result<Opening, Failure> {
        let inode = Arc::clone(&open.inode);
        // What the process before passed through is so also where this one materialises nothing.
        if self.materialised.is_some() || how.backing().is_some() {
            // How it is open may have been decided just now.
            self.inodes.note(&inode);
        }
        let Some(handle) = self.insert(open) else {
            self.leave(&inode);
            return Err(too_many_open());
        };
        self.materialised.iter().for_each(|materialised| materialised.count(&how));
        Ok(Opening { handle, how })
    }

    /// The file is closed. What was written through it alone, or was left for it alone to read, is to be finished with
    /// [`FileSystem::finish`].
    pub(crate) fn release(&self, handle: u64) -> Option<Arc<Inode>> {
        let open = self.files.with(handle, FileHandle::clone).filter(|_| self.remove(handle))?;
        if open.writers.is_some() {
            return open.inode.end_writing().map(|_| open.inode);
        }
        self.leave(&open.inode);
        if let Some((materialised, (version, size, read))) = self.materialised.as_ref().zip(open.was_read()) {
            materialised.files().closed(version, size, read);
        }
        let inode = open.inode;
        (inode.is_removed() && inode.draft().is_some() && !inode.is_open()).then_some(inode)
    }

    /// A handle for reading is not open any more.
    fn leave(&self, inode: &Inode) {
        let Some(pinned) = inode.leave() else { return };
        self.inodes.note(inode);
        // Without any materialised files it is one that the process before had: the kernel has it, and nothing is freed here.
        if let Some(materialised) = &self.materialised {
            materialised.let_go(pinned);
        }
    }
}

/// Whether a file is opened to be changed.
pub(crate) fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}
