//! Changes: what is new is written to a hidden file in the root, brought to disk, and renamed over its name.
//!
//! A rename is the one step that makes a file appear whole or not at all, also when this process or the machine ends in
//! between; the hidden file that is left then is removed when the origin is opened a week later.
//!
//! Nothing is written outside of the root: the directory that a name is in is found as for reading, links followed and the
//! result checked, and what follows is relative to that very directory's descriptor and follows no links. A symbolic link
//! is replaced and removed itself, never what it leads to.
//!
//! Directories above a new file are made, as they are implied in an object store; unlike there, they stay when they are
//! empty.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FailureKind};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::directory::{Directory, HIDDEN, is_hidden, proc_path, tag};
use super::given_up::GivenUp;
use crate::names::{
    check_change, exists, invalid, is_a_directory, not_a_directory, not_empty, not_found, shown, version_changed,
};

/// A hidden file on its way to its name; it is removed if it does not get there.
pub(super) struct Draft {
    pub(super) file: File,
    root: OwnedFd,
    name: Vec<u8>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After the rename there is nothing to remove.
        let _ = rustix::fs::unlinkat(&self.root, &*self.name, AtFlags::empty());
    }
}

impl Directory {
    /// Refuses paths that cannot be changed.
    pub(super) fn check_change(&self, path: &[u8]) -> Result<(), Failure> {
        check_change(&self.url, path)?;
        if is_hidden(path) {
            return Err(invalid(&self.url, path, "names that begin so are the origin's own"));
        }
        if !self.is_writable {
            let place = shown(&self.url, path);
            let message = format!("{place}: this process may not write to the origin's directory; give it leave to");
            return Err(Failure::new(FailureKind::ReadOnly, message));
        }
        Ok(())
    }

    pub(super) fn put(&self, path: &[u8], bytes: &Bytes, given_up: &GivenUp) -> Result<Attr, Failure> {
        self.check_file(path)?;
        let draft = self.draft(path)?;
        (&draft.file).write_all(bytes).map_err(|error| self.io_failure(path, &error))?;
        self.place(draft, path, given_up)
    }

    pub(super) fn create(&self, path: &[u8], bytes: &Bytes) -> Result<Attr, Failure> {
        self.check_file(path)?;
        let draft = self.draft(path)?;
        (&draft.file).write_all(bytes).map_err(|error| self.io_failure(path, &error))?;
        self.place_new(&draft, path)
    }

    pub(super) fn copy(&self, from: &[u8], to: &[u8], given_up: &GivenUp) -> Result<Attr, Failure> {
        let (fd, before) = self.open(from)?;
        if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
            return Err(not_found(&self.url, from));
        }
        if from == to {
            return self.attr(from, &before).ok_or_else(|| not_found(&self.url, from));
        }
        if self.are_one_name(from, to)? {
            return Err(invalid(&self.url, to, &format!("it is {} itself, by another way", shown(&self.url, from))));
        }
        self.check_file(to)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let source = rustix::fs::open(proc_path(&fd), flags, Mode::empty());
        let mut source = File::from(source.map_err(|error| self.failure(from, error))?);
        let draft = self.draft(to)?;
        // Copies in the kernel.
        std::io::copy(&mut source, &mut &draft.file).map_err(|error| self.io_failure(to, &error))?;
        let after = rustix::fs::fstat(&source).map_err(|error| self.failure(from, error))?;
        if tag(&after) != tag(&before) {
            return Err(version_changed(&self.url, from));
        }
        let mode = Mode::from_raw_mode(before.st_mode & 0o777);
        rustix::fs::fchmod(&draft.file, mode).map_err(|error| self.failure(to, error))?;
        self.place(draft, to, given_up)
    }

    pub(super) fn remove(&self, path: &[u8], given_up: &GivenUp) -> Result<(), Failure> {
        let parent = match self.parent(path, false) {
            Err(failure) if matches!(failure.kind(), FailureKind::NotFound | FailureKind::NotADirectory) => {
                return Ok(());
            }
            parent => parent?,
        };
        if self.is_directory(&parent, path)? {
            return Err(is_a_directory(&self.url, path));
        }
        self.check_wanted(path, given_up)?;
        match rustix::fs::unlinkat(&parent, last_name(path), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.failure(path, error)),
            Ok(()) => self.sync_directory(&parent, path),
        }
    }

    pub(super) fn make_directory(&self, path: &[u8]) -> Result<Attr, Failure> {
        let parent = self.parent(path, true)?;
        match rustix::fs::mkdirat(&parent, last_name(path), Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => return Err(exists(&self.url, path)),
            made => made.map_err(|error| self.failure(path, error))?,
        }
        self.sync_directory(&parent, path)?;
        let (_, stat) = self.open(path)?;
        self.attr(path, &stat).ok_or_else(|| not_found(&self.url, path))
    }

    pub(super) fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        let parent = match self.parent(path, false) {
            // Below a file there is nothing.
            Err(failure) if failure.kind() == FailureKind::NotADirectory => return Err(not_found(&self.url, path)),
            parent => parent?,
        };
        match rustix::fs::unlinkat(&parent, last_name(path), AtFlags::REMOVEDIR) {
            Ok(()) => self.sync_directory(&parent, path),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(not_empty(&self.url, path)),
            Err(Errno::NOTDIR) if self.is_directory(&parent, path)? => {
                let place = shown(&self.url, path);
                let message = format!("{place}: it is a symbolic link to a directory; remove it where the origin lies");
                Err(Failure::new(FailureKind::NotPermitted, message))
            }
            Err(Errno::NOTDIR) => Err(not_a_directory(&self.url, path)),
            Err(error) => Err(self.failure(path, error)),
        }
    }

    /// Refuses to begin with a file where none can be in the end.
    pub(super) fn check_file(&self, path: &[u8]) -> Result<(), Failure> {
        let parent = match self.parent(path, false) {
            // It will be made.
            Err(failure) if failure.kind() == FailureKind::NotFound => return Ok(()),
            parent => parent?,
        };
        if self.is_directory(&parent, path)? { Err(is_a_directory(&self.url, path)) } else { Ok(()) }
    }

    /// A new hidden file.
    pub(super) fn draft(&self, path: &[u8]) -> Result<Draft, Failure> {
        let root = self.root(path)?;
        let name = [HIDDEN, new_name().as_bytes()].concat();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&root, &*name, flags, Mode::from_raw_mode(0o666));
        let file = File::from(fd.map_err(|error| self.failure(path, error))?);
        Ok(Draft { file, root, name })
    }

    /// Gives a draft, whose bytes are complete, its name.
    pub(super) fn place(&self, draft: Draft, path: &[u8], given_up: &GivenUp) -> Result<Attr, Failure> {
        let failed = |error| self.failure(path, error);
        let (parent, name) = (self.parent(path, true)?, last_name(path));
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                // Users who could read the file before can read it now.
                FileType::RegularFile => {
                    rustix::fs::fchmod(&draft.file, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(failed)?;
                }
                FileType::Symlink if !self.is_directory(&parent, path)? => {}
                FileType::Symlink | FileType::Directory => return Err(is_a_directory(&self.url, path)),
                // A socket or a pipe belongs to a program, though it is not shown.
                _ => return Err(exists(&self.url, path)),
            },
        }
        rustix::fs::fsync(&draft.file).map_err(failed)?;
        self.check_wanted(path, given_up)?;
        rustix::fs::renameat(&draft.root, &*draft.name, &parent, name).map_err(|error| match error {
            Errno::ISDIR => is_a_directory(&self.url, path),
            error => failed(error),
        })?;
        self.sync_directory(&parent, path)?;
        // After the rename, which is a change of the file's state, too.
        let stat = rustix::fs::fstat(&draft.file).map_err(failed)?;
        self.attr(path, &stat).ok_or_else(|| not_found(&self.url, path))
    }

    /// Refuses the last step of a change that nobody waits for any more: it would undo what came after it.
    fn check_wanted(&self, path: &[u8], given_up: &GivenUp) -> Result<(), Failure> {
        let late = || format!("{}: the file system answered too late", shown(&self.url, path));
        if given_up.is_so() { Err(Failure::new(FailureKind::TimedOut, late())) } else { Ok(()) }
    }

    /// The same where there is nothing of that name: a second name, which a file system refuses where there is one, and then the
    /// first one goes.
    fn place_new(&self, draft: &Draft, path: &[u8]) -> Result<Attr, Failure> {
        let failed = |error| self.failure(path, error);
        let (parent, name) = (self.parent(path, true)?, last_name(path));
        rustix::fs::fsync(&draft.file).map_err(failed)?;
        let linked = rustix::fs::linkat(&draft.root, &*draft.name, &parent, name, AtFlags::empty());
        linked.map_err(|error| match error {
            Errno::EXIST => exists(&self.url, path),
            // A file system on which a file has one name.
            Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS => {
                let place = shown(&self.url, path);
                let message = format!("{place}: its file system cannot make files only where there is none ({error})");
                Failure::new(FailureKind::Unsupported, message)
            }
            error => failed(error),
        })?;
        rustix::fs::unlinkat(&draft.root, &*draft.name, AtFlags::empty()).map_err(failed)?;
        self.sync_directory(&parent, path)?;
        // After the names, which are of the file's state, too.
        let stat = rustix::fs::fstat(&draft.file).map_err(failed)?;
        self.attr(path, &stat).ok_or_else(|| not_found(&self.url, path))
    }

    /// The directory that `path` is in; with `make`, it is made if need be.
    fn parent(&self, path: &[u8], make: bool) -> Result<OwnedFd, Failure> {
        let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |slash| &path[..slash]);
        match self.open(parent) {
            Ok((fd, stat)) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => Ok(fd),
            Ok(_) => Err(not_a_directory(&self.url, parent)),
            Err(failure) if make && failure.kind() == FailureKind::NotFound && !parent.is_empty() => {
                let (above, name) = (self.parent(parent, true)?, last_name(parent));
                match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) => self.sync_directory(&above, parent)?,
                    Err(Errno::EXIST) => {}
                    Err(error) => return Err(self.failure(parent, error)),
                }
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(&above, name, flags, Mode::empty()).map_err(|error| match error {
                    Errno::NOTDIR | Errno::LOOP => not_a_directory(&self.url, parent),
                    error => self.failure(parent, error),
                })
            }
            Err(failure) => Err(failure),
        }
    }

    /// Whether both are one name of one directory, to which links (or mounts of the system) lead in two ways. A copy would replace what it
    /// is made of, and whoever then removes the old name would remove the only one.
    fn are_one_name(&self, from: &[u8], to: &[u8]) -> Result<bool, Failure> {
        let directories = match (self.parent(from, false), self.parent(to, false)) {
            (Ok(from), Ok(to)) => [from, to],
            // It cannot be copied to, or is yet to be made.
            (Ok(_), Err(_)) => return Ok(false),
            (Err(failure), _) => return Err(failure),
        };
        let [from_entry, to_entry] = [(0, from), (1, to)]
            .map(|(at, path)| rustix::fs::statat(&directories[at], last_name(path), AtFlags::SYMLINK_NOFOLLOW));
        let (Ok(from_entry), Ok(to_entry)) = (from_entry, to_entry) else { return Ok(false) };
        let is_one = |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
        if !is_one(&from_entry, &to_entry) {
            return Ok(false);
        }
        if from_entry.st_nlink == 1 {
            return Ok(true);
        }
        // Of several names of one file, each may be replaced and removed by itself.
        let stat = |directory: &OwnedFd| rustix::fs::fstat(directory).map_err(|error| self.failure(to, error));
        Ok(last_name(from) == last_name(to) && is_one(&stat(&directories[0])?, &stat(&directories[1])?))
    }

    /// Whether the last name of `path` is a directory, or a link to one inside the root.
    fn is_directory(&self, parent: &OwnedFd, path: &[u8]) -> Result<bool, Failure> {
        match rustix::fs::statat(parent, last_name(path), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.failure(path, error)),
            Ok(stat) => Ok(match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => true,
                FileType::Symlink => {
                    self.open(path).is_ok_and(|(_, stat)| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
                }
                _ => false,
            }),
        }
    }

    pub(super) fn root(&self, path: &[u8]) -> Result<OwnedFd, Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.root, flags, Mode::empty()).map_err(|error| self.failure(path, error))
    }

    /// Brings the names in a directory to disk.
    pub(super) fn sync_directory(&self, directory: &OwnedFd, path: &[u8]) -> Result<(), Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let sync = || rustix::fs::fsync(rustix::fs::open(proc_path(directory), flags, Mode::empty())?);
        match sync() {
            // A file system without the like keeps names as it can; a directory that may not be read is not opened.
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::ACCESS) => Ok(()),
            Err(error) => Err(self.failure(path, error)),
        }
    }
}

/// A name that nothing else has.
pub(super) fn new_name() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn last_name(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path))
}
