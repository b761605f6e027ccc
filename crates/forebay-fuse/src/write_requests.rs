//! The requests that change something, between the kernel and the file system.
//!
//! A write is answered at once when there is room in the staging directory, by the thread that took it. Everything else goes to
//! the origin and is answered when it has arrived there.

use std::time::SystemTime;

use bytes::Bytes;
use forebay_fuse_io::{Answer, CopyRange, Errno, Operation as Asked, Reply, Request, SetAttr, SetTime};
use forebay_types::{Failure, FailureKind};

use crate::access_log::{Seen, What};
use crate::dispatcher::{Dispatcher, opened_as};
use crate::failures::read_only;
use crate::serving::{Work, tell};
use crate::stats::Operation;
use crate::virtual_files::VirtualFile;
use crate::writing::Allocation;

/// What is written by a thread that others' requests wait for. More would let them wait for the disk.
const MAX_AT_ONCE: usize = 128 << 10;

impl Dispatcher {
    /// Answers when `work` is done.
    fn change(&self, seen: Option<Seen>, work: impl Work<()>, reply: Reply) {
        self.shared.serve_patiently(Operation::Change, seen, work, |_, done| tell(reply, done));
    }

    /// Refuses what no object store keeps.
    pub(crate) fn refuse(&self, request: Request<'_>) {
        let header = *request.header();
        let (started, seen) = (request.taken(), self.seen(&header, || What::Inode(header.node)));
        let failure = match self.shared.files.staging() {
            Some(_) => Failure::new(FailureKind::NotPermitted, "an object store keeps files and directories only"),
            None => read_only(),
        };
        let errno = self.shared.failed(Operation::Change, &failure);
        request.now().error(errno);
        self.shared.answered(Operation::Change, seen, Err(errno), started);
    }

    /// Makes a file or a directory.
    pub(crate) fn make(&self, request: Request<'_>, name: Box<[u8]>, mode: u32) {
        let is_directory = match mode & libc::S_IFMT {
            libc::S_IFDIR => true,
            libc::S_IFREG | 0 => false,
            _ => return self.refuse(request),
        };
        let header = *request.header();
        let (parent, thread) = (header.node, header.pid);
        let seen = self.seen(&header, || What::Name(parent, name.clone()));
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move {
            match is_directory {
                true => shared.files.make_directory(parent, &name).await,
                false => shared.files.make_file(parent, &name, thread).await,
            }
        };
        self.shared.serve_patiently(Operation::Change, seen, work, |shared, made| match made {
            Ok(inode) => {
                reply.entry(&shared.attributes(&inode), 0, inode.name_ttl, inode.attr_ttl);
                Ok(())
            }
            Err(errno) => tell(reply, Err(errno)),
        });
    }

    /// Creates and opens a file.
    pub(crate) fn create_file(&self, request: Request<'_>, name: Box<[u8]>, flags: i32) {
        let header = *request.header();
        let (parent, thread) = (header.node, header.pid);
        let seen = self.seen(&header, || What::Name(parent, name.clone()));
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move { shared.files.create(parent, &name, flags, thread).await };
        // To its end: a writer that was counted must be known to the kernel.
        self.shared.serve_patiently(Operation::Open, seen, work, move |shared, created| match created {
            Ok((inode, opening)) => {
                // There is one time for the name and the attributes.
                let ttl = inode.attr_ttl.min(inode.name_ttl);
                reply.created(&shared.attributes(&inode), ttl, &opened_as(opening.handle, flags, &opening.how));
                Ok(())
            }
            Err(errno) => tell(reply, Err(errno)),
        });
    }

    /// Removes a file.
    pub(crate) fn unlink(&self, request: Request<'_>, name: Box<[u8]>) {
        let header = *request.header();
        let seen = self.seen(&header, || What::Name(header.node, name.clone()));
        let (shared, reply) = (self.shared(), request.keep());
        self.change(seen, async move { shared.files.unlink(header.node, &name).await }, reply);
    }

    /// Removes a directory.
    pub(crate) fn remove_directory(&self, request: Request<'_>, name: Box<[u8]>) {
        let header = *request.header();
        let seen = self.seen(&header, || What::Name(header.node, name.clone()));
        let (shared, reply) = (self.shared(), request.keep());
        self.change(seen, async move { shared.files.remove_directory(header.node, &name).await }, reply);
    }

    /// Renames.
    pub(crate) fn rename(
        &self,
        request: Request<'_>,
        from_name: Box<[u8]>,
        (to, to_name): (u64, Box<[u8]>),
        flags: u32,
    ) {
        let header = *request.header();
        let from = header.node;
        let seen = self.seen(&header, || What::Name(from, from_name.clone()));
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move {
            if flags & !libc::RENAME_NOREPLACE != 0 {
                let message = "names cannot be exchanged: an object store has no such operation";
                return Err(Failure::new(FailureKind::InvalidArgument, message));
            }
            let keep_existing = flags & libc::RENAME_NOREPLACE != 0;
            shared.files.rename((from, &from_name), (to, &to_name), keep_existing).await
        };
        self.change(seen, work, reply);
    }

    /// Changes attributes, as far as an object store has them.
    pub(crate) fn set_attributes(&self, request: Request<'_>, set: SetAttr) {
        let header = *request.header();
        let ino = header.node;
        if VirtualFile::at(ino).is_some() {
            return request.now().error(Errno::EPERM);
        }
        let seen = self.seen(&header, || What::Inode(ino));
        let (shared, reply) = (self.shared(), request.keep());
        if let Some(handle) = set.handle.filter(|_| set.size.is_some()) {
            shared.files.note_writer(handle, header.pid);
        }
        let work = async move {
            let now = shared.files.attributes(ino).await?;
            shared.may_be(&now, set.mode, set.uid, set.gid)?;
            if let Some(size) = set.size {
                shared.files.resize(ino, set.handle, size).await?;
            }
            match set.mtime {
                Some(SetTime::At(time)) => shared.files.set_modified(ino, time)?,
                Some(SetTime::Now) => shared.files.set_modified(ino, SystemTime::now())?,
                None => {}
            }
            shared.files.attributes(ino).await
        };
        self.shared.serve_patiently(Operation::Change, seen, work, |shared, inode| match inode {
            Ok(inode) => {
                reply.attributes(&shared.attributes(&inode), inode.attr_ttl);
                Ok(())
            }
            Err(errno) => tell(reply, Err(errno)),
        });
    }

    /// Writes: at once if there is room and another thread to take requests, and otherwise when there is.
    pub(crate) fn write_bytes(&self, request: Request<'_>, handle: u64, offset: u64) {
        let Ok(Asked::Write { data, .. }) = request.operation() else { return };
        let header = *request.header();
        let ino = header.node;
        let started = request.taken();
        // The kernel sends at most 1 MiB.
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let seen = self.seen(&header, || What::Bytes(ino, length, offset));
        self.shared.files.note_writer(handle, header.pid);
        let may_wait = request.may_block() || data.len() <= MAX_AT_ONCE;
        let at_once = may_wait.then(|| self.shared.may_write()).flatten();
        let at_once = at_once.and_then(|_writing| self.shared.files.try_write(ino, handle, offset, data));
        let Some(written) = at_once else {
            let (reply, data) = request.keep_bytes();
            let (shared, data) = (self.shared(), Bytes::from_owner(data));
            let work = async move { shared.files.write(ino, handle, offset, data).await };
            return self.shared.serve_patiently(Operation::Write, seen, work, move |shared, written| match written {
                Ok(()) => {
                    shared.counters.wrote(length.into());
                    reply.written(length);
                    Ok(())
                }
                Err(errno) => tell(reply, Err(errno)),
            });
        };
        let told = written.map_err(|failure| self.shared.failed(Operation::Write, &failure));
        match told {
            Ok(()) => {
                self.shared.counters.wrote(length.into());
                request.now().written(length);
            }
            Err(errno) => request.now().error(errno),
        }
        self.shared.answered(Operation::Write, seen, told, started);
    }

    /// Takes a file to the origin, if something of it is not there: because it is closed, or because a program syncs
    /// it.
    pub(crate) fn sync(&self, request: Request<'_>, handle: u64, closes: bool) {
        let header = *request.header();
        let ino = header.node;
        let seen = self.seen(&header, || What::Inode(ino));
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move {
            match closes {
                true => shared.files.flush(ino, handle, header.pid).await,
                false => shared.files.sync(ino, handle).await,
            }
        };
        self.shared.serve_patiently(Operation::Sync, seen, work, |_, synced| tell(reply, synced));
    }

    /// What `fallocate(2)` asks for.
    pub(crate) fn allocate(&self, request: Request<'_>, handle: u64, (offset, length): (u64, u64), mode: i32) {
        const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_KEEPING_SIZE: i32 = ZERO | KEEP;
        let how = match mode {
            0 => Allocation::Reserve,
            KEEP => Allocation::ReserveKeepingSize,
            PUNCH | ZERO_KEEPING_SIZE => Allocation::Zero,
            ZERO => Allocation::ZeroAndGrow,
            _ => return request.now().error(Errno::EOPNOTSUPP),
        };
        let header = *request.header();
        let ino = header.node;
        let seen = self.seen(&header, || What::Inode(ino));
        let (shared, range) = (self.shared(), offset..offset.saturating_add(length));
        shared.files.note_writer(handle, header.pid);
        let reply = request.keep();
        self.change(seen, async move { shared.files.allocate(ino, handle, range, how).await }, reply);
    }

    /// Copies bytes from one open file to another. The kernel is told how many there were, and at most `most`, in 32 bits or in 64.
    pub(crate) fn copy_range(&self, request: Request<'_>, copy: &CopyRange, most: u64) {
        let header = *request.header();
        let CopyRange { handle, offset, to_node, to_handle, to_offset, length, .. } = *copy;
        let length = length.min(most);
        self.shared.files.note_writer(to_handle, header.pid);
        let seen = self.seen(&header, || What::Inode(to_node));
        let (shared, reply) = (self.shared(), request.keep());
        let work =
            async move { shared.files.copy_range((handle, offset), (to_node, to_handle, to_offset), length).await };
        self.shared.serve_patiently(Operation::Write, seen, work, move |shared, copied| match copied {
            Ok(copied) => {
                shared.counters.wrote(copied);
                match u32::try_from(most) {
                    // At most what was asked for.
                    Ok(_) => reply.written(u32::try_from(copied).unwrap_or(u32::MAX)),
                    Err(_) => reply.copied(copied),
                }
                Ok(())
            }
            Err(errno) => tell(reply, Err(errno)),
        });
    }
}
