//! The directory that is the origin: finding a path in it and never outside of it, what is found there, and its bytes.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_types::{Attr, DirEntry, Failure, FailureKind, FileKind, FileVersion, VersionTag};
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use super::completed::Completed;
use super::pieces::{PIECE, Pieces};
use crate::ListPage;
use crate::names::{is_posix_name, not_a_directory, not_found, shown, version_changed};

/// Bytes that one `getdents64` fills: about 200 names.
const DIRENT_BUFFER: usize = 8 << 10;
/// What the names of hidden files begin with. They lie in the root, which may be in another origin's directory; so of no directory is
/// such a name shown.
pub(super) const HIDDEN: &[u8] = b".forebay-upload-";

/// The directory of an origin.
pub(super) struct Directory {
    pub(super) url: Arc<str>,
    /// Absolute, without symbolic links.
    pub(super) root: PathBuf,
    pub(super) is_writable: bool,
    pub(super) completed: Completed,
    pub(super) pieces: Pieces,
}

impl Directory {
    /// Finds `path`, links followed, inside the root; the descriptor is a mere reference (`O_PATH`).
    pub(super) fn open(&self, path: &[u8]) -> Result<(OwnedFd, Stat), Failure> {
        if is_hidden(path) {
            return Err(not_found(&self.url, path));
        }
        let full = if path.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(path)) };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = rustix::fs::open(full, flags, Mode::empty()).map_err(|error| self.failure(path, error))?;
        let actual = std::fs::read_link(proc_path(&fd)).map_err(|error| self.io_failure(path, &error))?;
        let Ok(below) = actual.strip_prefix(&self.root) else {
            let place = shown(&self.url, path);
            return Err(Failure::new(
                FailureKind::PermissionDenied,
                format!("{place}: a symbolic link leads to {}, outside of the origin", actual.display()),
            ));
        };
        // A link that leads to the root, or to one of them.
        if is_hidden(below.as_os_str().as_bytes()) {
            return Err(not_found(&self.url, path));
        }
        let stat = rustix::fs::fstat(&fd).map_err(|error| self.failure(path, error))?;
        Ok((fd, stat))
    }

    /// `None` for what is neither file nor directory.
    pub(super) fn attr(&self, path: &[u8], stat: &Stat) -> Option<Attr> {
        let modified_nanos = nanos(stat.st_mtime, stat.st_mtime_nsec);
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => FileKind::Directory,
            FileType::RegularFile => FileKind::File(FileVersion {
                origin: Arc::clone(&self.url),
                path: path.into(),
                // A regular file's size is not negative.
                size: u64::try_from(stat.st_size).unwrap_or(0),
                tag: tag(stat),
            }),
            _ => return None,
        };
        Some(Attr { kind, modified_nanos, ..Attr::directory() })
    }

    pub(super) fn list(&self, path: &[u8], cookie: u64, max: usize) -> Result<ListPage, Failure> {
        let (fd, stat) = self.open(path)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::RegularFile => return Err(not_a_directory(&self.url, path)),
            _ => return Err(not_found(&self.url, path)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(proc_path(&fd), flags, Mode::empty()).map_err(|error| self.failure(path, error))?;
        rustix::fs::seek(&directory, SeekFrom::Start(cookie)).map_err(|error| self.failure(path, error))?;

        let mut buffer = [MaybeUninit::uninit(); DIRENT_BUFFER];
        let mut names = RawDir::new(directory.as_fd(), &mut buffer);
        let mut page = ListPage::default();
        while let Some(entry) = names.next() {
            let entry = entry.map_err(|error| self.failure(path, error))?;
            let name = entry.file_name().to_bytes();
            let next = entry.next_entry_cookie();
            if is_posix_name(name) && !name.starts_with(HIDDEN) {
                let child = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
                // A name that vanished meanwhile, or that leads outside or nowhere, is not listed.
                if let Some(attr) = self.open(&child).ok().and_then(|(_, stat)| self.attr(&child, &stat)) {
                    page.entries.push(DirEntry { name: name.into(), attr });
                }
            }
            if page.entries.len() == max {
                page.next = Some(next.to_string());
                break;
            }
        }
        Ok(page)
    }

    /// Reads `range` piece by piece, [`PIECE`] bytes each: `hand_over` gets all but the last, which is returned, and says whether anybody
    /// waits for them still. What was handed over is of `version` only if this succeeds.
    pub(super) fn read(
        &self,
        version: &FileVersion,
        range: Range<u64>,
        mut hand_over: impl FnMut(Vec<u8>) -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let path = &version.path;
        let changed = || version_changed(&self.url, path);
        let (fd, stat) = self.open(path).map_err(|failure| match failure.kind() {
            FailureKind::NotFound => changed(),
            _ => failure,
        })?;
        let is_this =
            |stat: &Stat| self.attr(path, stat).and_then(|attr| attr.version().cloned()).as_ref() == Some(version);
        if !is_this(&stat) {
            return Err(changed());
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open(proc_path(&fd), flags, Mode::empty()).map_err(|error| self.failure(path, error))?;
        let mut at = range.start;
        let last = loop {
            let length = range.end.saturating_sub(at).min(PIECE);
            let piece = read_exactly(&file, at, length as usize, self.pieces.take(length as usize)).map_err(
                |error| match error {
                    None => changed(),
                    Some(error) => self.failure(path, error),
                },
            )?;
            at += length;
            if at >= range.end {
                break piece;
            }
            if !hand_over(piece) {
                return Err(Failure::new(FailureKind::TimedOut, "nobody waits any more"));
            }
        };
        // Unchanged after the read as before it: no write fell in between.
        let after = rustix::fs::fstat(&file).map_err(|error| self.failure(path, error))?;
        if is_this(&after) { Ok(last) } else { Err(changed()) }
    }

    pub(super) fn io_failure(&self, path: &[u8], error: &std::io::Error) -> Failure {
        self.failure(path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    pub(super) fn failure(&self, path: &[u8], error: Errno) -> Failure {
        let place = shown(&self.url, path);
        let (kind, remedy) = match error {
            // Below a file there is nothing.
            Errno::NOENT | Errno::NOTDIR => return not_found(&self.url, path),
            Errno::ACCESS | Errno::PERM => (
                FailureKind::PermissionDenied,
                "; give the user that runs this process leave to read, or to change, it",
            ),
            Errno::NOSPC | Errno::DQUOT => (FailureKind::NoSpace, "; make room on the origin's file system"),
            Errno::FBIG => (FailureKind::TooLarge, ""),
            Errno::ROFS => (FailureKind::ReadOnly, ""),
            Errno::XDEV => {
                (FailureKind::CrossDevice, "; another file system is mounted there: make it an origin of its own")
            }
            Errno::NAMETOOLONG => (FailureKind::NameTooLong, ""),
            Errno::LOOP => (FailureKind::InvalidArgument, "; its symbolic links go in a circle"),
            Errno::MFILE | Errno::NFILE => (FailureKind::OutOfResources, "; raise the limit of open files (ulimit -n)"),
            _ => (FailureKind::Unavailable, ""),
        };
        Failure::new(kind, format!("{place}: {error}{remedy}"))
    }
}

/// Whether `path` leads to, or through, what is hidden.
pub(super) fn is_hidden(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name.starts_with(HIDDEN))
}

/// So many bytes from a place on, in `bytes`, which is empty and has room for them. An error, or `None` where the file ends before.
fn read_exactly(file: &OwnedFd, from: u64, length: usize, mut bytes: Vec<u8>) -> Result<Vec<u8>, Option<Errno>> {
    while bytes.len() < length {
        let at = from + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), at) {
            Ok(0) => return Err(None),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Some(error)),
        }
    }
    // There may have been room for more.
    bytes.truncate(length);
    Ok(bytes)
}

pub(super) fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub(super) fn tag(stat: &Stat) -> VersionTag {
    VersionTag::Modified { nanos: nanos(stat.st_ctime, stat.st_ctime_nsec), inode: stat.st_ino }
}

pub(super) fn nanos(seconds: i64, nanos: u64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(i64::try_from(nanos).unwrap_or(0))
}
