//! Between the kernel and the file system: which answer each request gets, whatever carries it.
//!
//! A read that hits is answered at once, by the thread that took it and from the memory that the bytes lie in: a short one while
//! they are looked at there, which costs no reference to them. How the others are, is in [`crate::serving`]; those that change
//! something are in [`crate::write_requests`].

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_fuse_io::{
    Answer, Dispatch, Errno, Kind, Opened as OpenedAs, OpenedFlags, Operation as Asked, Request, may_be_repeated,
};
use forebay_types::FsPath;
use tracing::debug;

use crate::access_log::What;
use crate::described::Found;
use crate::directories::{Listed, Lookups};
use crate::dispatcher::{Dispatcher, opened_as};
use crate::failures::not_open;
use crate::filesystem::Attempt;
use crate::inodes::ROOT;
use crate::interrupts::Waiter;
use crate::room::{Seen as SeenRoom, WAITS, shown};
use crate::serving::{send, send_bytes, tell};
use crate::stats::Operation;
use crate::virtual_files::{FOR_EVER, Opened, VirtualFile, part};

impl Dispatcher {
    fn lookup(&self, request: Request<'_>, name: Box<[u8]>) {
        let header = *request.header();
        let parent = header.node;
        if parent == ROOT
            && let Some(file) = VirtualFile::named(&name)
        {
            return request.now().entry(&self.shared.virtual_attributes(file), 0, FOR_EVER, FOR_EVER);
        }
        let seen = self.seen(&header, || What::Name(parent, name.clone()));
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move { shared.files.lookup(parent, &name).await };
        self.shared.serve(Waiter::of(&header), Operation::Lookup, seen, work, |shared, found| match found {
            Ok(Found::Inode(inode)) => {
                reply.entry(&shared.attributes(&inode), 0, inode.name_ttl, inode.attr_ttl);
                Ok(())
            }
            Ok(Found::Nothing(ttl)) if ttl.is_zero() => tell(reply, Err(Errno::ENOENT)),
            Ok(Found::Nothing(ttl)) => {
                reply.no_entry(ttl);
                Err(Errno::ENOENT)
            }
            Err(errno) => tell(reply, Err(errno)),
        });
    }

    fn attributes(&self, request: Request<'_>) {
        let header = *request.header();
        let ino = header.node;
        if let Some(file) = VirtualFile::at(ino) {
            return request.now().attributes(&self.shared.virtual_attributes(file), FOR_EVER);
        }
        let seen = self.seen(&header, || What::Inode(ino));
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move { shared.files.attributes(ino).await };
        self.shared.serve(Waiter::of(&header), Operation::GetAttr, seen, work, |shared, inode| match inode {
            Ok(inode) => {
                reply.attributes(&shared.attributes(&inode), inode.attr_ttl);
                Ok(())
            }
            Err(errno) => tell(reply, Err(errno)),
        });
    }

    fn open(&self, request: Request<'_>, flags: i32) {
        let header = *request.header();
        let (ino, thread) = (header.node, header.pid);
        if let Some(file) = VirtualFile::at(ino) {
            return self.open_virtual(request, file, flags);
        }
        let seen = self.seen(&header, || What::Inode(ino));
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move { shared.files.open(ino, flags, thread).await };
        // To its end: a writer that was counted must be known to the kernel.
        self.shared.serve_patiently(Operation::Open, seen, work, move |_, opened| match opened {
            Ok(opening) => {
                reply.opened(&opened_as(opening.handle, flags, &opening.how));
                Ok(())
            }
            Err(errno) => tell(reply, Err(errno)),
        });
    }

    fn open_virtual(&self, request: Request<'_>, file: VirtualFile, flags: i32) {
        let reply = request.now();
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            return reply.error(Errno::EPERM);
        }
        match self.shared.virtual_files.open(file, || self.shared.report()) {
            Ok(handle) => reply.opened(&OpenedAs { handle, flags: OpenedFlags::DIRECT_IO, backing: None }),
            Err(errno) => reply.error(errno),
        }
    }

    #[inline]
    fn read(&self, request: Request<'_>, handle: u64, offset: u64, size: u32) {
        let header = *request.header();
        let ino = header.node;
        if VirtualFile::at(ino).is_some() {
            return self.read_virtual(request, handle, offset, size);
        }
        let started = request.taken();
        let seen = self.seen(&header, || What::Bytes(ino, size, offset));
        let mut unanswered = Some(request);
        let answer = |bytes: &[&[u8]]| {
            if let Some(request) = unanswered.take() {
                self.shared.counters.read(bytes.iter().map(|bytes| bytes.len()).sum(), true);
                request.now().slices(bytes);
            }
        };
        let attempt = self.shared.files.try_read(handle, (offset, size), header.pid, answer);
        match (attempt, unanswered) {
            (Attempt::Seen, _) => self.shared.answered(Operation::Read, seen, Ok(()), started),
            (Attempt::Hit(spans), Some(request)) => {
                self.shared.counters.read(spans.iter().map(|span| span.len()).sum(), true);
                send(request.now(), &spans);
                self.shared.answered(Operation::Read, seen, Ok(()), started);
            }
            (Attempt::Miss(open), Some(request)) => {
                let may_wait = request.may_block();
                let (shared, mut reply) = (self.shared(), request.keep());
                // What lands nowhere goes with the work, and is the reply's again. What a transport still has when the deadline
                // passes keeps the answer from the kernel until it is dropped.
                let mut lent = reply.lend();
                let work = async move { shared.files.read_into(&open, offset, size, &mut || lent.take()).await };
                self.shared.serve_read(Waiter::of(&header), may_wait, seen, work, |shared, read| match read {
                    Ok(bytes) => {
                        shared.counters.read(bytes.len(), false);
                        if send_bytes(reply, bytes) {
                            shared.counters.read_landed();
                        }
                        Ok(())
                    }
                    Err(errno) => tell(reply, Err(errno)),
                });
            }
            (Attempt::NotOpen, Some(request)) => {
                let errno = self.shared.failed(Operation::Read, &not_open());
                request.now().error(errno);
                self.shared.answered(Operation::Read, seen, Err(errno), started);
            }
            // It is answered only when the bytes are seen.
            (_, None) => {}
        }
    }

    /// A read of a file that is in no origin. That of an access log may wait, and is not itself logged.
    fn read_virtual(&self, request: Request<'_>, handle: u64, offset: u64, size: u32) {
        match self.shared.virtual_files.opened(handle) {
            Some(Opened::Text(text)) => request.now().data(part(&text, offset, size)),
            Some(Opened::Log(reader)) => {
                let (ended, reply) = (self.shared.ended.clone(), request.keep());
                let task = async move {
                    if let Some(lines) = ended.run_until_cancelled(reader.next(size as usize)).await {
                        reply.data(&lines);
                    }
                };
                self.shared.tasks.spawn_on(task, &self.shared.runtime);
            }
            None => request.now().error(Errno::EBADF),
        }
    }

    fn flush(&self, request: Request<'_>, handle: u64) {
        if self.shared.files.staging().is_none() {
            // There is nothing to flush: with this answer the kernel never asks again, and close(2) costs no round trip.
            return request.now().error(Errno::ENOSYS);
        }
        self.sync(request, handle, true);
    }

    fn fsync(&self, request: Request<'_>, handle: u64) {
        if VirtualFile::at(request.header().node).is_some() || self.shared.files.staging().is_none() {
            return request.now().ok();
        }
        self.sync(request, handle, false);
    }

    fn release(&self, request: Request<'_>, handle: u64) {
        let header = *request.header();
        if VirtualFile::at(header.node).is_some() {
            self.shared.virtual_files.release(handle);
            return request.now().ok();
        }
        let (started, seen) = (request.taken(), self.seen(&header, || What::Inode(header.node)));
        let written = self.shared.files.release(handle);
        request.now().ok();
        if let Some(inode) = written {
            self.shared.finish(inode);
        }
        self.shared.answered(Operation::Release, seen, Ok(()), started);
    }

    fn open_directory(&self, request: Request<'_>) {
        let header = *request.header();
        let (started, seen) = (request.taken(), self.seen(&header, || What::Inode(header.node)));
        let opened = self.shared.files.open_directory(header.node);
        let told = opened.map_err(|failure| self.shared.failed(Operation::OpenDir, &failure));
        match told {
            Ok(handle) => request.now().opened(&OpenedAs { handle, ..OpenedAs::default() }),
            Err(errno) => request.now().error(errno),
        }
        self.shared.answered(Operation::OpenDir, seen, told.map(drop), started);
    }

    /// Names of a directory; with `plus`, also their attributes.
    fn read_directory(&self, request: Request<'_>, handle: u64, offset: u64, size: u32, plus: bool) {
        let header = *request.header();
        let seen = self.seen(&header, || What::Names(header.node, offset));
        let (shared, mut names) = (self.shared(), request.keep().names(size));
        let theirs = self.shared();
        let mut lookups = Lookups::new(move |ino| theirs.files.forget(ino, 1));
        let work = async move {
            let take = |listed: Listed<'_>| {
                let Listed { name, next, inode } = listed;
                if plus {
                    let attributes = shared.attributes(&inode);
                    let is_full = names.add_plus(&attributes, next, name, inode.name_ttl, inode.name_ttl);
                    if !is_full && !matches!(name, b"." | b"..") {
                        lookups.push(inode.ino);
                    }
                    return !is_full;
                }
                let kind = if inode.is_directory { Kind::Directory } else { Kind::RegularFile };
                !names.add(inode.ino, next, kind, name)
            };
            let read = shared.files.read_directory(handle, offset, plus, take).await;
            Ok((read.map_err(|failure| shared.failed(Operation::ReadDir, &failure)), names, lookups))
        };
        self.shared.serve(Waiter::of(&header), Operation::ReadDir, seen, work, |_, read| {
            // If the deadline passed, the reply went with it: the kernel was told EIO, and the lookups were given back.
            let (read, names, lookups) = read?;
            match read {
                Ok(()) => {
                    lookups.sent();
                    names.send();
                }
                Err(errno) => names.error(errno),
            }
            read
        });
    }

    fn release_directory(&self, request: Request<'_>, handle: u64) {
        let header = *request.header();
        let (started, seen) = (request.taken(), self.seen(&header, || What::Inode(header.node)));
        self.shared.files.release_directory(handle);
        request.now().ok();
        self.shared.answered(Operation::ReleaseDir, seen, Ok(()), started);
    }

    fn statfs(&self, request: Request<'_>) {
        let header = *request.header();
        let Some(staging) = self.shared.files.staging() else {
            request.now().statfs(&shown(&SeenRoom::default(), &FsPath::root()));
            return self.shared.counters.answered(Operation::Other, Duration::ZERO);
        };
        let inode = self.shared.files.inodes.get(header.node);
        let path = inode.map_or_else(FsPath::root, |inode| inode.path());
        let (mut ended, look) = match self.shared.rooms.ask(Instant::now()) {
            Ok(seen) => {
                request.now().statfs(&shown(&seen, &path));
                return self.shared.counters.answered(Operation::Other, Duration::ZERO);
            }
            Err(unseen) => unseen,
        };
        if let Some(look) = look {
            let look = look.look(self.shared.files.client().clone(), staging.clone());
            let ended = self.shared.ended.clone();
            let task = async move { ended.run_until_cancelled(look).await };
            self.shared.aside.spawn_on(task, &self.shared.runtime);
        }
        let (shared, reply) = (self.shared(), request.keep());
        let work = async move {
            // Later it is told of to the next one.
            let _ = tokio::time::timeout(WAITS, ended.changed()).await;
            Ok(shown(&shared.rooms.last(), &path))
        };
        self.shared.serve(Waiter::of(&header), Operation::Other, None, work, |_, shown| {
            let shown = shown?;
            reply.statfs(&shown);
            Ok(())
        });
    }

    fn access(&self, request: Request<'_>, mask: i32) {
        // The kernel checks permissions itself; this is asked only where it was mounted otherwise.
        let refused = mask & libc::W_OK != 0 && self.shared.files.staging().is_none();
        if refused { request.now().error(Errno::EROFS) } else { request.now().ok() }
    }

    /// What comes less often than once for each file.
    fn dispatch_other(&self, request: Request<'_>) {
        let asked = match request.operation() {
            Ok(asked) => asked,
            Err(malformed) => {
                debug!(opcode = request.header().opcode, %malformed, "a request makes no sense");
                return request.now().error(malformed.errno());
            }
        };
        match asked {
            Asked::Flush { handle } => self.flush(request, handle),
            Asked::Fsync { handle, .. } => self.fsync(request, handle),
            Asked::OpenDir { .. } => self.open_directory(request),
            Asked::ReadDir { handle, offset, size } => self.read_directory(request, handle, offset, size, false),
            Asked::ReadDirPlus { handle, offset, size } => self.read_directory(request, handle, offset, size, true),
            Asked::ReleaseDir { handle } => self.release_directory(request, handle),
            Asked::FsyncDir { .. } => request.now().ok(),
            Asked::Statfs => self.statfs(request),
            Asked::Access { mask } => self.access(request, mask),
            Asked::ReadLink => request.now().error(Errno::EINVAL),
            Asked::SetAttr(set) => self.set_attributes(request, set),
            Asked::MakeNode { name, mode, .. } => {
                let name = name.into();
                self.make(request, name, mode);
            }
            Asked::MakeDirectory { name, .. } => {
                let name = name.into();
                self.make(request, name, libc::S_IFDIR);
            }
            Asked::Unlink { name } => {
                let name = name.into();
                self.unlink(request, name);
            }
            Asked::RemoveDirectory { name } => {
                let name = name.into();
                self.remove_directory(request, name);
            }
            Asked::Rename { name, new_directory, new_name, flags } => {
                let (name, new_name) = (name.into(), new_name.into());
                self.rename(request, name, (new_directory, new_name), flags);
            }
            Asked::Symlink { .. } | Asked::Link { .. } => self.refuse(request),
            Asked::Create { name, flags, .. } => {
                let name = name.into();
                self.create_file(request, name, flags);
            }
            Asked::Fallocate { handle, offset, length, mode } => self.allocate(request, handle, (offset, length), mode),
            Asked::CopyFileRange(copy) => self.copy_range(request, &copy, u32::MAX.into()),
            Asked::CopyFileRange64(copy) => self.copy_range(request, &copy, u64::MAX),
            // There are no extended attributes, and files have no holes. With this answer the kernel says so by itself from now
            // on, and does not ask before each write whether there are capabilities to take away.
            _ => request.now().error(Errno::ENOSYS),
        }
    }
}

impl Dispatcher {
    /// A request of a process that is gone. What changes something may have been done or not: the program is told that it is not known,
    /// as after any failure of a disk.
    #[cold]
    fn dispatch_resent(&self, request: Request<'_>) {
        self.shared.resent.fetch_add(1, Ordering::Relaxed);
        let opcode = request.header().opcode;
        if may_be_repeated(opcode) {
            return self.dispatch_any(request);
        }
        debug!(opcode, "a request of a process that is gone is not repeated");
        request.now().error(Errno::EIO);
    }

    #[inline]
    fn dispatch_any(&self, request: Request<'_>) {
        match request.operation() {
            Ok(Asked::Read { handle, offset, size, .. }) => self.read(request, handle, offset, size),
            Ok(Asked::Lookup { name }) => {
                let name = name.into();
                self.lookup(request, name);
            }
            Ok(Asked::GetAttr { .. }) => self.attributes(request),
            Ok(Asked::Open { flags }) => self.open(request, flags),
            Ok(Asked::Release { handle, .. }) => self.release(request, handle),
            Ok(Asked::Write { handle, offset, .. }) => self.write_bytes(request, handle, offset),
            _ => self.dispatch_other(request),
        }
    }
}

impl Dispatch for Dispatcher {
    #[inline]
    fn dispatch(&self, request: Request<'_>) {
        if request.header().is_resent() {
            return self.dispatch_resent(request);
        }
        self.dispatch_any(request);
    }

    fn forget(&self, node: u64, count: u64) {
        self.shared.files.forget(node, count);
    }

    fn interrupted(&self, unique: u64) {
        self.shared.interrupts.interrupted(unique);
    }

    fn ended(&self, error: Option<&io::Error>) {
        self.shared.end(error);
    }
}
