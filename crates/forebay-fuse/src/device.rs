//! Between `/dev/fuse` and the file system: `fuser` takes requests from the device, this says which answer each gets.
//!
//! A read that hits is answered at once, from the memory that the bytes lie in. How the others are, is in
//! [`crate::serving`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use forebay_types::Attr;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, FileType, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use tracing::debug;

use crate::access_log::{Seen, What};
use crate::changes::{Changed, SetAttributes};
use crate::directories::Listed;
use crate::filesystem::{Attempt, Described, Found, not_open};
use crate::inodes::ROOT;
use crate::serving::{Shared, contained, send, send_bytes};
use crate::stats::Operation;
use crate::virtual_files::{FOR_EVER, Opened, VirtualFile, part};

/// The largest read the kernel sends. FACTS: 256 KiB to 1 MiB is best, and more gains nothing.
const MAX_READ: u32 = 1 << 20;
/// A petabyte, all of it free: nobody knows how large an object store is, and tools that watch for full disks shall
/// not see one.
const TOTAL_BLOCKS: u64 = (1 << 50) / STATFS_BLOCK as u64;
const STATFS_BLOCK: u32 = 4096;
const TOTAL_FILES: u64 = 1 << 32;

/// What `fuser` hands the kernel's requests to.
pub(crate) struct Device {
    pub(crate) shared: Arc<Shared>,
    max_background: u16,
}

impl Device {
    pub(crate) fn new(shared: Arc<Shared>, max_background: u16) -> Self {
        Self { shared, max_background: max_background.max(1) }
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// What the access log is to say of a request, if anybody reads it.
    #[inline]
    pub(crate) fn seen(&self, request: &Request, what: impl FnOnce() -> What) -> Option<Seen> {
        self.shared.virtual_files.log().seen(request, what)
    }

    /// A read of a file that is in no origin. That of an access log may wait, and is not itself logged.
    fn read_virtual(&self, handle: u64, offset: u64, size: u32, reply: ReplyData) {
        match self.shared.virtual_files.opened(handle) {
            Some(Opened::Text(text)) => reply.data(part(&text, offset, size)),
            Some(Opened::Log(reader)) => {
                let ended = self.shared.ended.clone();
                let task = async move {
                    if let Some(lines) = ended.run_until_cancelled(reader.next(size as usize)).await {
                        reply.data(&lines);
                    }
                };
                self.shared.tasks.spawn_on(task, &self.shared.runtime);
            }
            None => reply.error(Errno::EBADF),
        }
    }
}

impl fuser::Filesystem for Device {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_MAX_PAGES,
            // A file that is opened to be overwritten need not be asked for first.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
        ];
        for capability in wanted {
            if config.add_capabilities(capability).is_err() {
                debug!(?capability, "the kernel is too old for this");
            }
        }
        let refused = |nearest: u32| std::io::Error::other(format!("refused; the nearest valid value is {nearest}"));
        // This bounds reads, too.
        config.set_max_write(MAX_READ).map_err(refused)?;
        config.set_max_background(self.max_background).map_err(|nearest| refused(nearest.into()))?;
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent.0 == ROOT
            && let Some(file) = VirtualFile::named(name.as_bytes())
        {
            let attributes = self.shared.virtual_attributes(file);
            return reply.entry_with_ttls(&FOR_EVER, &FOR_EVER, &attributes, Generation(0));
        }
        let seen = self.seen(req, || What::Name(parent.0, name.as_bytes().into()));
        let (shared, name) = (self.shared(), Box::<[u8]>::from(name.as_bytes()));
        let work = async move { shared.files.lookup(parent.0, &name).await };
        self.shared.serve(Operation::Lookup, seen, work, |shared, found| match found {
            Ok(Found::Inode(inode)) => {
                let attributes = shared.attributes(&inode);
                reply.entry_with_ttls(&inode.attr_ttl, &inode.name_ttl, &attributes, Generation(0));
                Ok(())
            }
            Ok(Found::Nothing(ttl)) if ttl.is_zero() => {
                reply.error(Errno::ENOENT);
                Err(Errno::ENOENT)
            }
            Ok(Found::Nothing(ttl)) => {
                // Inode number 0 is how the kernel is told for how long there is none.
                let none = Described::new(0, &Attr::directory());
                reply.entry_with_ttls(&Duration::ZERO, &ttl, &shared.attributes(&none), Generation(0));
                Err(Errno::ENOENT)
            }
            Err(errno) => {
                reply.error(errno);
                Err(errno)
            }
        });
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        contained(Operation::Other, || self.shared.files.forget(ino.0, nlookup));
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        if let Some(file) = VirtualFile::at(ino.0) {
            return reply.attr(&FOR_EVER, &self.shared.virtual_attributes(file));
        }
        let seen = self.seen(req, || What::Inode(ino.0));
        let shared = self.shared();
        let work = async move { shared.files.attributes(ino.0).await };
        self.shared.serve(Operation::GetAttr, seen, work, |shared, inode| match inode {
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

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if let Some(file) = VirtualFile::at(ino.0) {
            if flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
                return reply.error(Errno::EPERM);
            }
            contained(Operation::Open, || match self.shared.virtual_files.open(file, || self.shared.report()) {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
                Err(errno) => reply.error(errno),
            });
            return;
        }
        let seen = self.seen(req, || What::Inode(ino.0));
        let shared = self.shared();
        let thread = req.pid();
        let work = async move { shared.files.open(ino.0, flags.0, thread).await };
        // To its end: a writer that was counted must be known to the kernel.
        self.shared.serve_patiently(Operation::Open, seen, work, move |_, opened| match opened {
            Ok(handle) => {
                reply.opened(FileHandle(handle), opened_with(flags.0));
                Ok(())
            }
            Err(errno) => {
                reply.error(errno);
                Err(errno)
            }
        });
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if VirtualFile::at(ino.0).is_some() {
            return self.read_virtual(fh.0, offset, size, reply);
        }
        contained(Operation::Read, || {
            let started = Instant::now();
            let seen = self.seen(req, || What::Bytes(ino.0, size, offset));
            match self.shared.files.try_read(fh.0, offset, size) {
                Attempt::Hit(spans) => {
                    self.shared.counters.read(spans.iter().map(|span| span.len()).sum(), true);
                    send(reply, &spans);
                    self.shared.answered(Operation::Read, seen, Ok(()), started);
                }
                Attempt::Miss(open) => {
                    let shared = self.shared();
                    let work = async move { shared.files.read(&open, offset, size).await };
                    self.shared.serve(Operation::Read, seen, work, |shared, read| match read {
                        Ok(bytes) => {
                            shared.counters.read(bytes.len(), false);
                            send_bytes(reply, &bytes);
                            Ok(())
                        }
                        Err(errno) => {
                            reply.error(errno);
                            Err(errno)
                        }
                    });
                }
                Attempt::NotOpen => {
                    let errno = self.shared.failed(Operation::Read, &not_open());
                    reply.error(errno);
                    self.shared.answered(Operation::Read, seen, Err(errno), started);
                }
            }
        });
    }

    fn flush(&self, req: &Request, ino: INodeNo, fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        if self.shared.files.staging().is_none() {
            // There is nothing to flush: with this answer the kernel never asks again, and close(2) costs no round trip.
            return reply.error(Errno::ENOSYS);
        }
        self.sync(req, ino, fh, true, reply);
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if VirtualFile::at(ino.0).is_some() {
            self.shared.virtual_files.release(fh.0);
            return reply.ok();
        }
        contained(Operation::Release, || {
            let (started, seen) = (Instant::now(), self.seen(req, || What::Inode(ino.0)));
            let written = self.shared.files.release(fh.0);
            reply.ok();
            if let Some(inode) = written {
                self.shared.finish(inode);
            }
            self.shared.answered(Operation::Release, seen, Ok(()), started);
        });
    }

    fn fsync(&self, req: &Request, ino: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        if VirtualFile::at(ino.0).is_some() || self.shared.files.staging().is_none() {
            return reply.ok();
        }
        self.sync(req, ino, fh, false, reply);
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        contained(Operation::OpenDir, || {
            let (started, seen) = (Instant::now(), self.seen(req, || What::Inode(ino.0)));
            let opened = self.shared.files.open_directory(ino.0);
            let told = opened.map_err(|failure| self.shared.failed(Operation::OpenDir, &failure));
            match told {
                Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
                Err(errno) => reply.error(errno),
            }
            self.shared.answered(Operation::OpenDir, seen, told.map(drop), started);
        });
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let seen = self.seen(req, || What::Names(ino.0, offset));
        let shared = self.shared();
        let work = async move {
            let take = |listed: Listed<'_>| {
                let kind = match listed.inode.is_directory {
                    true => FileType::Directory,
                    false => FileType::RegularFile,
                };
                !reply.add(INodeNo(listed.inode.ino), listed.next, kind, OsStr::from_bytes(listed.name))
            };
            let read = shared.files.read_directory(fh.0, offset, false, take).await;
            Ok((read.map_err(|failure| shared.failed(Operation::ReadDir, &failure)), reply))
        };
        self.shared.serve(Operation::ReadDir, seen, work, |_, read| {
            // If the deadline passed, the reply went with it: the kernel was told EIO.
            let (read, reply) = read?;
            match read {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
            read
        });
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let seen = self.seen(req, || What::Names(ino.0, offset));
        let shared = self.shared();
        let work = async move {
            let take = |listed: Listed<'_>| {
                let attributes = shared.attributes(&listed.inode);
                let name = OsStr::from_bytes(listed.name);
                let ttl = listed.inode.name_ttl;
                !reply.add(INodeNo(listed.inode.ino), listed.next, name, &ttl, &attributes, Generation(0))
            };
            let read = shared.files.read_directory(fh.0, offset, true, take).await;
            Ok((read.map_err(|failure| shared.failed(Operation::ReadDir, &failure)), reply))
        };
        self.shared.serve(Operation::ReadDir, seen, work, |_, read| {
            // If the deadline passed, the reply went with it: the kernel was told EIO.
            let (read, reply) = read?;
            match read {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
            read
        });
    }

    fn releasedir(&self, req: &Request, ino: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        contained(Operation::ReleaseDir, || {
            let (started, seen) = (Instant::now(), self.seen(req, || What::Inode(ino.0)));
            self.shared.files.release_directory(fh.0);
            reply.ok();
            self.shared.answered(Operation::ReleaseDir, seen, Ok(()), started);
        });
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let name_length = forebay_types::MAX_NAME_LEN as u32;
        reply.statfs(
            TOTAL_BLOCKS,
            TOTAL_BLOCKS,
            TOTAL_BLOCKS,
            TOTAL_FILES,
            TOTAL_FILES,
            STATFS_BLOCK,
            name_length,
            STATFS_BLOCK,
        );
        self.shared.counters.answered(Operation::Other, Duration::ZERO);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        // The kernel checks permissions itself; this is asked only where it was mounted otherwise.
        let refused = mask.contains(AccessFlags::W_OK) && self.shared.files.staging().is_none();
        if refused { reply.error(Errno::EROFS) } else { reply.ok() }
    }

    // There are no extended attributes. With this answer the kernel says so by itself from now on, and does not ask before each
    // write whether there are capabilities to take away.

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        // Files have no holes. With this answer the kernel says so by itself from now on.
        reply.error(Errno::ENOSYS);
    }

    fn readlink(&self, _req: &Request, _ino: INodeNo, reply: ReplyData) {
        reply.error(Errno::EINVAL);
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let modified = mtime.map(|time| match time {
            TimeOrNow::SpecificTime(time) => time,
            TimeOrNow::Now => SystemTime::now(),
        });
        let handle = fh.map(|fh| fh.0);
        self.set_attributes(req, ino, SetAttributes { mode, uid, gid, size, handle, modified }, reply);
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        self.make(req, parent, name, mode, reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, _mode: u32, _umask: u32, reply: ReplyEntry) {
        self.make(req, parent, name, libc::S_IFDIR, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (shared, directory, name) = (self.shared(), parent.0, Box::<[u8]>::from(name.as_bytes()));
        let seen = self.seen(req, || What::Name(directory, name.clone()));
        self.change(seen, async move { shared.files.unlink(directory, &name).await }, Changed::Done(reply));
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (shared, directory, name) = (self.shared(), parent.0, Box::<[u8]>::from(name.as_bytes()));
        let seen = self.seen(req, || What::Name(directory, name.clone()));
        self.change(seen, async move { shared.files.remove_directory(directory, &name).await }, Changed::Done(reply));
    }

    fn symlink(&self, req: &Request, parent: INodeNo, _: &OsStr, _: &Path, reply: ReplyEntry) {
        self.refuse(req, parent, Changed::Entry(reply));
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.rename_to(req, (parent, name), (newparent, newname), flags, reply);
    }

    fn link(&self, req: &Request, ino: INodeNo, _newparent: INodeNo, _newname: &OsStr, reply: ReplyEntry) {
        self.refuse(req, ino, Changed::Entry(reply));
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.write_bytes(req, ino, fh, offset, data, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.create_file(req, parent, name, flags, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.allocate(req, ino, fh, (offset, length), mode, reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        _ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.copy_range(req, (fh_in, offset_in), (ino_out, fh_out, offset_out), length, reply);
    }
}

/// How the kernel treats a file that is opened. Its pages stay right: an inode is one version, or what is being written, which
/// comes through the kernel. `O_DIRECT` needs no flag of ours: the kernel honours it.
pub(crate) fn opened_with(flags: i32) -> FopenFlags {
    // What is only read has nothing to flush: close(2) costs no round trip.
    FopenFlags::FOPEN_KEEP_CACHE | if writes(flags) { FopenFlags::empty() } else { FopenFlags::FOPEN_NOFLUSH }
}

/// Whether a file is opened to be changed.
pub(crate) fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0
}
