//! Changing names: creating, removing, making directories.
//!
//! What is created is a draft until it is first taken to the origin, and known to this mount alone. Everything else is done at
//! the origin, by the worker that owns the directory, before the kernel is answered.

use std::sync::Arc;
use std::time::Instant;

use forebay_types::{Attr, Failure, FailureKind, FileVersion, FsPath, VersionTag};

use crate::described::Described;
use crate::failures::{read_only, too_many_open};
use crate::filesystem::FileSystem;
use crate::handle::FileHandle;
use crate::inode::{Inode, Known, version_id};
use crate::inodes::ROOT;
use crate::opening::Opening;
use crate::pinned::How;
use crate::virtual_files::VirtualFile;

impl FileSystem {
    /// Creates and opens a file for writing; opens the one that is there, unless `flags` says that there must be none. The kernel
    /// holds its inode once more.
    pub(crate) async fn create(
        &self,
        parent: u64,
        name: &[u8],
        flags: i32,
        thread: u32,
    ) -> Result<(Described, Opening), Failure> {
        let staging = self.staging.as_ref().ok_or_else(read_only)?;
        let path = self.new_name(parent, name).await?;
        let exclusive = flags & libc::O_EXCL != 0;
        let found = match self.inodes.local(&path).filter(|inode| inode.draft().is_some()) {
            Some(inode) => {
                self.inodes.hold(&inode);
                Some(inode)
            }
            None => {
                let found = self.find(&path, exclusive || self.inodes.is_suspect(&path)).await?;
                found.map(|known| self.inodes.remember(&path, known))
            }
        };
        if let Some(inode) = found {
            let opened = match exclusive {
                true => Err(exists(&path)),
                false => self.open(inode.ino, flags, thread).await,
            };
            return match opened {
                Ok(opening) => Ok((self.describe(&inode, Instant::now()), opening)),
                Err(failure) => {
                    self.inodes.forget(inode.ino, 1);
                    Err(failure)
                }
            };
        }
        let draft = staging.create(path.clone())?;
        let inode = self.inodes.create(&path, unborn(&path));
        inode.begin_writing(|_, _| Ok(Arc::clone(&draft)))?;
        self.inodes.note(&inode);
        match self.insert(FileHandle::for_writing(Arc::clone(&inode), thread)) {
            Some(handle) => Ok((self.describe(&inode, Instant::now()), Opening { handle, how: How::Cached })),
            None => {
                draft.unlink();
                inode.remove();
                inode.end_writing();
                self.inodes.unname(&path, &inode);
                self.finish(&inode).await;
                self.inodes.forget(inode.ino, 1);
                Err(too_many_open())
            }
        }
    }

    /// Creates an empty file, at the origin when this returns.
    pub(crate) async fn make_file(&self, parent: u64, name: &[u8], thread: u32) -> Result<Described, Failure> {
        let (described, opening) = self.create(parent, name, libc::O_WRONLY | libc::O_EXCL, thread).await?;
        let handle = opening.handle;
        let synced = self.sync(described.ino, handle).await;
        let inode = self.inode(described.ino)?;
        if self.release(handle).is_some() {
            self.finish(&inode).await;
        }
        match synced {
            Ok(()) => Ok(self.describe(&inode, Instant::now())),
            Err(failure) => {
                self.inodes.forget(described.ino, 1);
                Err(failure)
            }
        }
    }

    /// Makes a directory. The kernel holds its inode once more.
    pub(crate) async fn make_directory(&self, parent: u64, name: &[u8]) -> Result<Described, Failure> {
        let path = self.new_name(parent, name).await?;
        let asked = Instant::now();
        let attr = self.client.make_directory(&path).await?;
        let inode = self.inodes.remember(&path, Known::new(attr, asked, self.negative_ttl));
        Ok(self.describe(&inode, Instant::now()))
    }

    /// Removes a file. Handles that are open on it stay usable.
    pub(crate) async fn unlink(&self, parent: u64, name: &[u8]) -> Result<(), Failure> {
        let path = self.child(parent, name)?;
        self.check_writable(parent, name).await?;
        let inode = match self.inodes.local(&path) {
            Some(inode) => Some(inode),
            None => self.held_file(&path).await,
        };
        let _turn = match &inode {
            Some(inode) => Some(inode.turn.lock().await),
            None => None,
        };
        let draft = inode.as_ref().and_then(|inode| inode.draft());
        // What is on its way to the origin arrives before the removal, and nothing comes after it.
        let _held = match &draft {
            Some(draft) => Some(draft.hold().await),
            None => None,
        };
        // Also what was never taken there: there may be another file of this name, which it would have replaced.
        self.client.remove(&path).await?;
        if let Some(inode) = &inode {
            self.detach(&path, inode);
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub(crate) async fn remove_directory(&self, parent: u64, name: &[u8]) -> Result<(), Failure> {
        let path = self.child(parent, name)?;
        self.check_writable(parent, name).await?;
        let is_in_use = |(below, inode): &(FsPath, Arc<Inode>)| *below != path && inode.draft().is_some();
        if self.inodes.local_below(&path).iter().any(is_in_use) {
            return Err(Failure::new(FailureKind::NotEmpty, format!("{path} has files in it that are being written")));
        }
        match self.client.remove_directory(&path).await {
            // The kernel found it a moment ago: it was there because of its files, and went with the last of them.
            Err(failure) if failure.kind() != FailureKind::NotFound => return Err(failure),
            _ => {}
        }
        self.detach_directory(&path);
        Ok(())
    }

    /// `path` no longer leads to the directory that the kernel may hold.
    pub(crate) fn detach_directory(&self, path: &FsPath) {
        if let Some(inode) = self.inodes.get(self.inodes.directory(path)) {
            self.inodes.remove(path, &inode);
        }
    }

    /// The inode that the kernel holds of the file at `path` as it is now, if it holds any.
    pub(crate) async fn held_file(&self, path: &FsPath) -> Option<Arc<Inode>> {
        let known = self.find(path, false).await.ok()??;
        let version = known.attr.version()?.id();
        let inode = self.inodes.get(self.inodes.number(path, Some(&version)))?;
        (inode.path() == *path && inode.is_of(&known.attr) && !inode.is_removed()).then_some(inode)
    }

    /// `path` no longer leads to `inode`; what is being written of it is never taken to the origin. One that was renamed meanwhile
    /// stays.
    pub(crate) fn detach(&self, path: &FsPath, inode: &Arc<Inode>) {
        if !self.inodes.remove(path, inode) {
            return;
        }
        match inode.draft() {
            Some(draft) => draft.unlink(),
            None => self.forget_copy(version_id(&inode.known().attr)),
        }
    }

    /// The path of something new, where something new may be.
    pub(crate) async fn new_name(&self, parent: u64, name: &[u8]) -> Result<FsPath, Failure> {
        let path = self.child(parent, name)?;
        self.check_writable(parent, name).await?;
        Ok(path)
    }

    async fn check_writable(&self, parent: u64, name: &[u8]) -> Result<(), Failure> {
        if parent == ROOT && VirtualFile::named(name).is_some() {
            let message = format!("/{} is the mount's own", String::from_utf8_lossy(name));
            return Err(Failure::new(FailureKind::NotPermitted, message));
        }
        let directory = self.inode(parent)?;
        if directory.is_removed() {
            return Err(Failure::new(FailureKind::NotFound, format!("{} was removed", directory.path())));
        }
        // The kernel does not look the root up.
        let is_writable = match parent {
            ROOT => self.attributes(ROOT).await?.is_writable,
            _ => directory.known().attr.writable,
        };
        if self.staging.is_none() || !is_writable {
            return Err(read_only());
        }
        Ok(())
    }
}

/// What is known of a file that was never at the origin: nothing that could be read.
fn unborn(path: &FsPath) -> Known {
    let version = FileVersion {
        origin: "".into(),
        path: path.as_bytes().into(),
        size: 0,
        tag: VersionTag::Modified { nanos: 0, inode: 0 },
    };
    let now = Instant::now();
    Known { attr: Attr { writable: true, ..Attr::file(version) }, asked: now, fresh_until: now }
}

fn exists(path: &FsPath) -> Failure {
    Failure::new(FailureKind::Exists, format!("{path} exists"))
}
