//! The requests that change something, between the device and the file system.
//!
//! A write is answered at once when there is room in the staging directory, by the thread that took it. Everything else goes to
//! the origin and is answered when it has arrived there.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use forebay_types::{Failure, FailureKind};
use fuser::{
    Errno, FileHandle, Generation, INodeNo, RenameFlags, ReplyAttr, ReplyCreate, ReplyEmpty, ReplyEntry, ReplyWrite,
    Request,
};

use crate::access_log::{Seen, What};
use crate::device::{Device, opened_with};
use crate::filesystem::read_only;
use crate::serving::contained;
use crate::stats::Operation;
use crate::virtual_files::VirtualFile;
use crate::writing::Allocation;

/// The attributes that are to be changed.
pub(crate) struct SetAttributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    /// The handle through which the size is changed.
    pub(crate) handle: Option<u64>,
    pub(crate) modified: Option<SystemTime>,
}

/// Where the answer to a change goes that has nothing to say but whether it was done.
pub(crate) enum Changed {
    /// To who expects nothing else.
    Done(ReplyEmpty),
    /// To who expects an inode, and does not get it.
    Entry(ReplyEntry),
}

impl Changed {
    fn error(self, errno: Errno) {
        match self {
            Self::Done(reply) => reply.error(errno),
            Self::Entry(reply) => reply.error(errno),
        }
    }
}

impl Device {
    /// Answers when `work` is done.
    pub(crate) fn change<F>(&self, seen: Option<Seen>, work: F, reply: Changed)
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.shared.serve_patiently(Operation::Change, seen, work, |_, done| {
            match (done, reply) {
                (Ok(()), Changed::Done(reply)) => reply.ok(),
                (Ok(()), Changed::Entry(reply)) => reply.error(Errno::EIO),
                (Err(errno), reply) => reply.error(errno),
            }
            done
        });
    }

    /// Refuses what no object store keeps.
    pub(crate) fn refuse(&self, request: &Request, ino: INodeNo, reply: Changed) {
        let (started, seen) = (Instant::now(), self.seen(request, || What::Inode(ino.0)));
        let failure = match self.shared.files.staging() {
            Some(_) => Failure::new(FailureKind::NotPermitted, "an object store keeps files and directories only"),
            None => read_only(),
        };
        let errno = self.shared.failed(Operation::Change, &failure);
        reply.error(errno);
        self.shared.answered(Operation::Change, seen, Err(errno), started);
    }

    /// Makes a file or a directory.
    pub(crate) fn make(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, reply: ReplyEntry) {
        let is_directory = match mode & libc::S_IFMT {
            libc::S_IFDIR => true,
            libc::S_IFREG | 0 => false,
            _ => return self.refuse(request, parent, Changed::Entry(reply)),
        };
        let (shared, name, thread) = (self.shared(), Box::<[u8]>::from(name.as_bytes()), request.pid());
        let seen = self.seen(request, || What::Name(parent.0, name.clone()));
        let work = async move {
            match is_directory {
                true => shared.files.make_directory(parent.0, &name).await,
                false => shared.files.make_file(parent.0, &name, thread).await,
            }
        };
        self.shared.serve_patiently(Operation::Change, seen, work, |shared, made| match made {
            Ok(inode) => {
                let attributes = shared.attributes(&inode);
                reply.entry_with_ttls(&inode.attr_ttl, &inode.name_ttl, &attributes, Generation(0));
                Ok(())
            }
            Err(errno) => {
                reply.error(errno);
                Err(errno)
            }
        });
    }

    /// Creates and opens a file.
    pub(crate) fn create_file(&self, request: &Request, parent: INodeNo, name: &OsStr, flags: i32, reply: ReplyCreate) {
        let (shared, name) = (self.shared(), Box::<[u8]>::from(name.as_bytes()));
        let seen = self.seen(request, || What::Name(parent.0, name.clone()));
        let thread = request.pid();
        let work = async move { shared.files.create(parent.0, &name, flags, thread).await };
        // To its end: a writer that was counted must be known to the kernel.
        self.shared.serve_patiently(Operation::Open, seen, work, move |shared, created| match created {
            Ok((inode, handle)) => {
                let attributes = shared.attributes(&inode);
                // There is one time for the name and the attributes.
                let ttl = inode.attr_ttl.min(inode.name_ttl);
                reply.created(&ttl, &attributes, Generation(0), FileHandle(handle), opened_with(flags));
                Ok(())
            }
            Err(errno) => {
                reply.error(errno);
                Err(errno)
            }
        });
    }

    /// Renames.
    pub(crate) fn rename_to(
        &self,
        request: &Request,
        (from, from_name): (INodeNo, &OsStr),
        (to, to_name): (INodeNo, &OsStr),
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from_name = Box::<[u8]>::from(from_name.as_bytes());
        let to_name = Box::<[u8]>::from(to_name.as_bytes());
        let seen = self.seen(request, || What::Name(from.0, from_name.clone()));
        let shared = self.shared();
        let work = async move {
            if !(flags & !RenameFlags::RENAME_NOREPLACE).is_empty() {
                let message = "names cannot be exchanged: an object store has no such operation";
                return Err(Failure::new(FailureKind::InvalidArgument, message));
            }
            let keep_existing = flags.contains(RenameFlags::RENAME_NOREPLACE);
            shared.files.rename((from.0, &from_name), (to.0, &to_name), keep_existing).await
        };
        self.change(seen, work, Changed::Done(reply));
    }

    /// Changes attributes, as far as an object store has them.
    pub(crate) fn set_attributes(&self, request: &Request, ino: INodeNo, set: SetAttributes, reply: ReplyAttr) {
        if VirtualFile::at(ino.0).is_some() {
            return reply.error(Errno::EPERM);
        }
        let seen = self.seen(request, || What::Inode(ino.0));
        let shared = self.shared();
        if let Some(handle) = set.handle.filter(|_| set.size.is_some()) {
            shared.files.note_writer(handle, request.pid());
        }
        let work = async move {
            let SetAttributes { mode, uid, gid, size, handle, modified } = set;
            let now = shared.files.attributes(ino.0).await?;
            shared.may_be(&now, mode, uid, gid)?;
            if let Some(size) = size {
                shared.files.resize(ino.0, handle, size).await?;
            }
            if let Some(modified) = modified {
                shared.files.set_modified(ino.0, modified)?;
            }
            shared.files.attributes(ino.0).await
        };
        self.shared.serve_patiently(Operation::Change, seen, work, |shared, inode| match inode {
            Ok(inode) => {
                reply.attr(&inode.attr_ttl, &shared.attributes(&inode));
                Ok(())
            }
            Err(errno) => {
                reply.error(errno);
                Err(errno)
            }
        });
    }

    /// Writes: at once if there is room and another thread to take requests, and otherwise when there is.
    pub(crate) fn write_bytes(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        reply: ReplyWrite,
    ) {
        contained(Operation::Write, || {
            let started = Instant::now();
            // The kernel sends at most 1 MiB.
            let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let seen = self.seen(request, || What::Bytes(ino.0, length, offset));
            self.shared.files.note_writer(handle.0, request.pid());
            let at_once =
                self.shared.may_write().and_then(|_writing| self.shared.files.try_write(ino.0, handle.0, offset, data));
            let Some(written) = at_once else {
                let (shared, data) = (self.shared(), Bytes::copy_from_slice(data));
                let work = async move { shared.files.write(ino.0, handle.0, offset, data).await };
                return self.shared.serve_patiently(Operation::Write, seen, work, move |shared, written| {
                    match written {
                        Ok(()) => {
                            shared.counters.wrote(length);
                            reply.written(length);
                        }
                        Err(errno) => reply.error(errno),
                    }
                    written
                });
            };
            let told = written.map_err(|failure| self.shared.failed(Operation::Write, &failure));
            match told {
                Ok(()) => {
                    self.shared.counters.wrote(length);
                    reply.written(length);
                }
                Err(errno) => reply.error(errno),
            }
            self.shared.answered(Operation::Write, seen, told, started);
        });
    }

    /// Takes a file to the origin, if there is something that is not there; because it is closed, or because somebody wants that.
    pub(crate) fn sync(&self, request: &Request, ino: INodeNo, handle: FileHandle, closes: bool, reply: ReplyEmpty) {
        let seen = self.seen(request, || What::Inode(ino.0));
        let (shared, thread) = (self.shared(), request.pid());
        let work = async move {
            match closes {
                true => shared.files.flush(ino.0, handle.0, thread).await,
                false => shared.files.sync(ino.0, handle.0).await,
            }
        };
        self.shared.serve_patiently(Operation::Sync, seen, work, |_, synced| {
            match synced {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
            synced
        });
    }

    /// What `fallocate(2)` asks for.
    pub(crate) fn allocate(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        (offset, length): (u64, u64),
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEPING_SIZE: i32 = ZERO | KEEP;
        let how = match mode {
            0 => Allocation::Reserve,
            KEEP => Allocation::ReserveKeepingSize,
            PUNCH | ZERO_KEEPING_SIZE => Allocation::Zero,
            ZERO => Allocation::ZeroAndGrow,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let seen = self.seen(request, || What::Inode(ino.0));
        let (shared, range) = (self.shared(), offset..offset.saturating_add(length));
        shared.files.note_writer(handle.0, request.pid());
        let work = async move { shared.files.allocate(ino.0, handle.0, range, how).await };
        self.change(seen, work, Changed::Done(reply));
    }

    /// Copies bytes from one open file to another.
    pub(crate) fn copy_range(
        &self,
        request: &Request,
        (from, from_offset): (FileHandle, u64),
        (ino, to, to_offset): (INodeNo, FileHandle, u64),
        length: u64,
        reply: ReplyWrite,
    ) {
        // The kernel is told how many there were in 32 bits.
        let length = length.min(u64::from(u32::MAX));
        self.shared.files.note_writer(to.0, request.pid());
        let seen = self.seen(request, || What::Inode(ino.0));
        let shared = self.shared();
        let work =
            async move { shared.files.copy_range((from.0, from_offset), (ino.0, to.0, to_offset), length).await };
        self.shared.serve_patiently(Operation::Write, seen, work, |shared, copied| {
            match copied {
                Ok(copied) => {
                    // At most what was asked for.
                    let copied = u32::try_from(copied).unwrap_or(u32::MAX);
                    shared.counters.wrote(copied);
                    reply.written(copied);
                }
                Err(errno) => reply.error(errno),
            }
            copied.map(drop)
        });
    }
}
