//! Writing bytes: what is open for writing is a draft, which this opens, fills and takes to the origin.
//!
//! A draft belongs to its inode and is shared by all handles on it. It begins with the first open for writing and is settled when
//! the last of those handles is closed: then the inode stands for the version that it became. Each `fsync` and each
//! `close` takes to the origin what it does not have, and says how that went.
//!
//! To turn an inode into a draft or back, to rename or to remove it takes its turn ([`Inode::turn`]): an open that comes while the
//! last writer is settled waits for that, and begins with what came out.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use forebay_staging::{Draft, Remote, Staging};
use forebay_types::{Attr, Failure, FailureKind, FsPath};
use tracing::{error, warn};

use crate::described::time;
use crate::failures::{lost, not_open, read_only, stale, too_many_open};
use crate::filesystem::FileSystem;
use crate::handle::FileHandle;
use crate::inode::{Inode, Known, version_id};
use crate::materialised::Materialised;

/// What is copied at a time from one file to another.
const COPIED_AT_ONCE: u32 = 1 << 20;

/// What is to become of a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocation {
    /// It is there, whatever it holds; the file grows to hold it.
    Reserve,
    /// The same, but the file keeps its size.
    ReserveKeepingSize,
    /// It holds zeros; the file keeps its size.
    Zero,
    /// It holds zeros, and the file grows to hold it.
    ZeroAndGrow,
}

impl FileSystem {
    /// A handle for writing on `inode`.
    pub(crate) async fn open_for_writing(&self, inode: &Arc<Inode>, flags: i32, thread: u32) -> Result<u64, Failure> {
        let draft = self.begin_writing(inode, flags & libc::O_TRUNC != 0).await?;
        let opened = self.insert(FileHandle::for_writing(Arc::clone(inode), thread)).ok_or_else(too_many_open);
        if opened.is_err() {
            self.end_writing(inode).await;
        }
        drop(draft);
        opened
    }

    /// One more writer on `inode`, whose draft is begun if there is none.
    ///
    /// # Errors
    /// `VersionChanged` when the kernel passes the inode through to a materialised file: its name leads to another one then, which
    /// the kernel finds when it looks again.
    async fn begin_writing(&self, inode: &Arc<Inode>, truncates: bool) -> Result<Arc<Draft>, Failure> {
        let staging = self.staging.as_ref().ok_or_else(read_only)?;
        let _turn = inode.turn.lock().await;
        if inode.draft().is_none() {
            let attr = self.current(inode).await?;
            if !attr.writable {
                return Err(read_only());
            }
        }
        let is_begun = inode.draft().is_some();
        let draft = self.inodes.begin_writing(inode, |path, attr| match attr.version() {
            None => Err(Failure::new(FailureKind::IsADirectory, format!("{path} is a directory"))),
            Some(_) if truncates => staging.create(path.clone()),
            Some(version) => {
                let draft = staging.revise(path.clone(), Remote::open(&self.client, version.clone()))?;
                draft.set_modified(time(attr.modified_nanos));
                Ok(draft)
            }
        })?;
        let Some(draft) = draft else { return Err(self.split(inode)) };
        if inode.is_removed() {
            draft.unlink();
        }
        if is_begun
            && truncates
            && let Err(failure) = draft.truncate(0).await
        {
            drop(_turn);
            self.end_writing(inode).await;
            return Err(failure);
        }
        Ok(draft)
    }

    /// The writer gets an inode of its own; readers of this one keep the version that they opened. So does a reader that
    /// comes when what they read was found wrong.
    #[cold]
    pub(crate) fn split(&self, inode: &Inode) -> Failure {
        // One that has lost its name cannot be opened for writing by another way, either.
        if self.inodes.supersede_named(inode) {
            self.materialised.iter().for_each(Materialised::count_split);
        }
        stale(&inode.path())
    }

    /// One writer less on `inode`, which is settled if it was the last one.
    async fn end_writing(&self, inode: &Arc<Inode>) {
        if inode.end_writing().is_some() {
            self.finish(inode).await;
        }
    }

    /// Notes that a thread writes through a handle.
    pub(crate) fn note_writer(&self, handle: u64, thread: u32) {
        self.files.with(handle, |open| open.writers.as_ref().map(|writers| writers.note(thread)));
    }

    /// The draft behind a handle that may write, or behind the inode where the kernel has lost the handle.
    fn draft_of(&self, ino: u64, handle: u64) -> Result<Arc<Draft>, Failure> {
        self.check_not_lost(handle)?;
        let opened = self.files.with(handle, |open| open.inode.draft()).flatten();
        let held = || self.inodes.get(ino).and_then(|inode| inode.draft());
        opened.or_else(held).ok_or_else(not_open)
    }

    /// That the process did not die that had it open for writing.
    fn check_not_lost(&self, handle: u64) -> Result<(), Failure> {
        let path = self.files.with(handle, |open| open.is_lost.then(|| open.inode.path())).flatten();
        path.map_or(Ok(()), |path| Err(lost(&path)))
    }

    /// Writes at once, if there is room. `None`: it must be waited for with [`FileSystem::write`].
    pub(crate) fn try_write(&self, ino: u64, handle: u64, offset: u64, data: &[u8]) -> Option<Result<(), Failure>> {
        match self.draft_of(ino, handle) {
            Ok(draft) => draft.try_write(offset, data),
            Err(failure) => Some(Err(failure)),
        }
    }

    /// Writes, waiting for room.
    pub(crate) async fn write(&self, ino: u64, handle: u64, offset: u64, data: Bytes) -> Result<(), Failure> {
        let draft = self.draft_of(ino, handle)?;
        draft.write(offset, data).await.map_err(|failure| failure.context(draft.path()))
    }

    /// What `close(2)` by a thread does: a sync, if it is one of the handle's writers.
    pub(crate) async fn flush(&self, ino: u64, handle: u64, thread: u32) -> Result<(), Failure> {
        self.check_not_lost(handle)?;
        let writers = self.files.with(handle, |open| open.writers.clone()).flatten();
        match writers {
            Some(writers) if writers.include(thread) => self.sync(ino, handle).await,
            _ => Ok(()),
        }
    }

    /// Takes to the origin what was written and is not there yet.
    pub(crate) async fn sync(&self, ino: u64, handle: u64) -> Result<(), Failure> {
        self.check_not_lost(handle)?;
        let Ok(draft) = self.draft_of(ino, handle) else { return Ok(()) };
        draft.sync().await.map(drop).map_err(|failure| failure.context(draft.path()))
    }

    /// The last writer of `inode` is gone: unless there is another by now, the inode becomes what it wrote. What was removed
    /// is in the draft alone, so that stays until the last reader is gone, too.
    pub(crate) async fn finish(&self, inode: &Arc<Inode>) {
        let _turn = inode.turn.lock().await;
        if inode.has_writers() || (inode.is_removed() && inode.is_open()) {
            return;
        }
        let Some(draft) = inode.draft() else { return };
        let known = |attr: Attr| Known::new(attr, Instant::now(), self.negative_ttl);
        match draft.finish().await {
            Ok(attr) => {
                let before = version_id(&inode.known().attr);
                // Its directory may have been renamed since it was synced.
                let is_there = |path: &FsPath, attr: &Attr| {
                    attr.version().is_none_or(|version| draft.is_at_origin_as(path, version))
                };
                if self.inodes.settle(inode, attr.map(known), is_there) {
                    self.forget_copy(before);
                }
            }
            Err(failure) => {
                error!(
                    path = %inode.path(), %failure,
                    "not uploaded; what was written stays staged: see `forebay fs staged ls`"
                );
                // A lookup of the name gives another inode, whose pages are those of what the origin has.
                self.found_changed(inode);
                self.inodes.lose(inode);
            }
        }
        self.inodes.let_go(inode);
    }

    /// Gives the file `ino` another size. Without the handle of a writer, that is a change of its own, at the origin when this
    /// returns.
    pub(crate) async fn resize(&self, ino: u64, handle: Option<u64>, size: u64) -> Result<(), Failure> {
        let inode = self.inode(ino)?;
        let draft = self.begin_writing(&inode, size == 0).await?;
        let mut resized = draft.truncate(size).await;
        // The file was resized by its name, or no other handle will sync it at its close.
        if resized.is_ok() && (handle.is_none() || inode.is_only_writer()) {
            resized = draft.sync().await.map(drop);
        }
        self.end_writing(&inode).await;
        resized.map_err(|failure| failure.context(inode.path()))
    }

    /// The time of modification of `ino`, for as long as it is being written. Those at the origin cannot be set.
    pub(crate) fn set_modified(&self, ino: u64, modified: SystemTime) -> Result<(), Failure> {
        if let Some(draft) = self.inode(ino)?.draft() {
            draft.set_modified(modified);
        }
        Ok(())
    }

    /// What `fallocate(2)` does to a range of a file.
    pub(crate) async fn allocate(
        &self,
        ino: u64,
        handle: u64,
        range: Range<u64>,
        how: Allocation,
    ) -> Result<(), Failure> {
        let draft = self.draft_of(ino, handle)?;
        let size = draft.size();
        let work = async {
            if matches!(how, Allocation::Zero | Allocation::ZeroAndGrow) && range.start < size {
                draft.zero(range.start..range.end.min(size)).await?;
            }
            if matches!(how, Allocation::Reserve | Allocation::ZeroAndGrow) && range.end > size {
                draft.truncate(range.end).await?;
            }
            Ok(())
        };
        work.await.map_err(|failure: Failure| failure.context(draft.path()))
    }

    /// Copies up to `length` bytes from one open file into another; how many there were.
    pub(crate) async fn copy_range(
        &self,
        (from, from_offset): (u64, u64),
        (ino, to, to_offset): (u64, u64, u64),
        length: u64,
    ) -> Result<u64, Failure> {
        let Some(source) = self.files.with(from, FileHandle::clone) else { return Err(not_open()) };
        let draft = self.draft_of(ino, to)?;
        let mut copied = 0;
        while copied < length {
            let wanted = u32::try_from(length - copied).unwrap_or(u32::MAX).min(COPIED_AT_ONCE);
            let result = async {
                let bytes = self.read(&source, from_offset + copied, wanted).await?.into_bytes();
                let count = bytes.len() as u64;
                if count > 0 {
                    draft.write(to_offset + copied, bytes).await?;
                }
                Ok(count)
            };
            match result.await {
                Ok(0) => break,
                Ok(count) => copied += count,
                // What was copied counts; the program comes back for the rest, and gets the failure then.
                Err(_) if copied > 0 => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(copied)
    }

    /// What staging counts.
    pub(crate) fn staging(&self) -> Option<&Staging> {
        self.staging.as_ref()
    }

    /// Ends staging: what could not be uploaded stays on disk. Ends what is being materialised.
    pub(crate) async fn close_staging(&self) {
        if let Some(materialised) = &self.materialised {
            materialised.close().await;
        }
        let Some(staging) = &self.staging else { return };
        staging.close().await;
        let files = staging.report().not_uploaded();
        if files > 0 {
            warn!(files, "not everything that was written could be uploaded: see `forebay fs staged ls`");
        }
    }
}
