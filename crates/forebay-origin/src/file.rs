//! A directory of this machine (or of a file system that every worker mounts) as an origin.
//!
//! **Versions.** The tag is the inode number and its *change* time, not the modification time: programs set the latter
//! at will (`touch -d`, `tar`, `rsync --inplace -t`), the former moves with every write. A `chmod` makes a new version
//! too, which costs a refill and never shows wrong bytes. A file that is rewritten in place, to the same length, within
//! one tick of the file system's clock (at most 4 ms; none since Linux 6.13, whose time stamps are finer once looked
//! at) keeps its version: replace files by renaming a new one over them.
//!
//! **Symbolic links** are followed, and what they lead to must lie in the origin's directory: a link out of it answers
//! `PermissionDenied`, whoever made it. The check is made on the file that was opened (by what `/proc/self/fd` says of
//! it), so that no swap of a link in between gets past it. Listings leave out links that lead outside or nowhere,
//! and whatever is neither file nor directory.
//!
//! **Changes** (`file/changes.rs`) are renames of hidden files that lie in the origin's root until they are whole; uploads in
//! parts (`file/uploads.rs`) are hidden directories there. No path leads to them, and no listing shows them.
//!
//! **Listings** hold one page in memory: the token is the directory's own position cookie (`getdents64`'s `d_off`), the
//! one that NFS servers rely on.

mod changes;
mod room;
mod uploads;

use std::ffi::OsStr;
use std::fs::File;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_types::{Attr, DirEntry, Failure, FailureKind, FileKind, FileVersion, VersionTag};
use rustix::fs::{Access, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use crate::names::{
    check_part, check_parts, check_path, check_read, invalid, is_posix_name, not_a_directory, not_found, shown,
    version_changed,
};
use crate::stats::{Operation, OriginStats, Outcome};
use crate::{ListPage, Origin, OriginCounts, OriginError, OriginOptions, Room};

/// Bytes that one `getdents64` fills: about 200 names.
const DIRENT_BUFFER: usize = 8 << 10;
/// What the names of hidden files begin with; only in the root.
const HIDDEN: &[u8] = b".forebay-upload-";
/// The least rate at which file systems take or copy bytes, those that are far away included: a longer time than the
/// deadline is allowed for what is large.
const SLOWEST: u64 = 16 << 20;

/// A directory as an origin.
pub struct FileOrigin {
    inner: Arc<Inner>,
    deadline: Duration,
}

struct Inner {
    url: Arc<str>,
    /// Absolute, without symbolic links.
    root: PathBuf,
    is_writable: bool,
    completed: uploads::Completed,
    room: Arc<room::Look>,
    stats: Arc<OriginStats>,
}

impl FileOrigin {
    /// Opens the directory `root`, which `url` names.
    ///
    /// # Errors
    /// [`OriginError::Directory`] when it is not a directory that can be read.
    pub fn new(url: &str, root: &Path, options: &OriginOptions) -> Result<Self, OriginError> {
        let directory = |source| OriginError::Directory { url: url.to_owned(), source };
        let root = root.canonicalize().map_err(directory)?;
        std::fs::read_dir(&root).map_err(directory)?;
        let is_writable = rustix::fs::access(&root, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        let inner = Inner {
            url: url.into(),
            root,
            is_writable,
            completed: Default::default(),
            room: Arc::default(),
            stats: Arc::default(),
        };
        inner.remove_left_over();
        Ok(Self { inner: Arc::new(inner), deadline: options.retry_deadline })
    }

    /// Runs `work` on a thread that may block. A network file system that hangs costs that thread, not the caller:
    /// after the deadline the caller gets its failure.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &[u8],
        work: impl FnOnce(&Inner) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.blocking_for(operation, path, self.deadline, work).await
    }

    async fn blocking_for<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &[u8],
        deadline: Duration,
        work: impl FnOnce(&Inner) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let inner = Arc::clone(&self.inner);
        let started = Instant::now();
        let task = tokio::task::spawn_blocking(move || work(&inner));
        let place = || shown(&self.inner.url, path);
        let result = match tokio::time::timeout(deadline, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(Failure::new(FailureKind::Internal, format!("{}: {error}", place()))),
            Err(_) => Err(Failure::new(
                FailureKind::TimedOut,
                format!("{}: the file system did not answer within {deadline:?}", place()),
            )),
        };
        let outcome = result.as_ref().map_or_else(|failure| Outcome::of(failure.kind()), |_| Outcome::Ok);
        self.inner.stats.attempted(operation, outcome, started.elapsed());
        if matches!(outcome, Outcome::TimedOut | Outcome::Failed) {
            self.inner.stats.count_error();
        }
        result
    }

    /// As [`FileOrigin::blocking`], for changes that move `bytes` bytes. Its deadline given up for, a change may still come
    /// about.
    async fn changing<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &[u8],
        bytes: u64,
        work: impl FnOnce(&Inner) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.inner.check_change(path)?;
        let deadline = self.deadline + Duration::from_secs(bytes / SLOWEST);
        self.blocking_for(operation, path, deadline, work).await
    }
}

#[async_trait::async_trait]
impl Origin for FileOrigin {
    fn url(&self) -> &Arc<str> {
        &self.inner.url
    }

    fn counts(&self) -> OriginCounts {
        self.inner.stats.counts()
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        check_path(&self.inner.url, path)?;
        let owned = path.to_vec();
        self.blocking(Operation::Stat, path, move |inner| {
            let (_, stat) = inner.open(&owned)?;
            inner.attr(&owned, &stat).ok_or_else(|| not_found(&inner.url, &owned))
        })
        .await
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        check_path(&self.inner.url, path)?;
        let cookie = match token.map(str::parse) {
            None => 0,
            Some(Ok(cookie)) => cookie,
            Some(Err(_)) => return Err(invalid(&self.inner.url, path, "not a listing token of this origin")),
        };
        let owned = path.to_vec();
        self.blocking(Operation::List, path, move |inner| inner.list(&owned, cookie, max.max(1))).await
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        check_read(&self.inner.url, version, &range, into.len())?;
        let version = version.clone();
        let path = Arc::clone(&version.path);
        // The thread cannot borrow the caller's buffer: a dropped future would leave it writing there. Hence one copy.
        let bytes = self.blocking(Operation::Read, &path, move |inner| inner.read(&version, range)).await?;
        into.copy_from_slice(&bytes);
        self.inner.stats.count_bytes(bytes.len() as u64);
        Ok(())
    }

    fn takes_changes(&self) -> bool {
        self.inner.is_writable
    }

    async fn room(&self) -> Option<Room> {
        self.inner.room.at(&self.inner.root).await
    }

    async fn put(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let (owned, length) = (path.to_vec(), bytes.len());
        let put = move |inner: &Inner| inner.put(&owned, &bytes);
        let attr = self.changing(Operation::Put, path, length as u64, put).await?;
        self.inner.stats.count_uploaded(length);
        Ok(attr)
    }

    async fn begin_upload(&self, path: &[u8]) -> Result<String, Failure> {
        let owned = path.to_vec();
        self.changing(Operation::Begin, path, 0, move |inner| inner.begin_upload(&owned)).await
    }

    async fn upload_part(&self, path: &[u8], upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        check_part(&self.inner.url, path, number)?;
        let (owned, upload, length) = (path.to_vec(), upload.to_owned(), bytes.len());
        let add = move |inner: &Inner| inner.upload_part(&owned, &upload, number, &bytes);
        let tag = self.changing(Operation::Part, path, length as u64, add).await?;
        self.inner.stats.count_uploaded(length);
        Ok(tag)
    }

    async fn complete_upload(&self, path: &[u8], upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        check_parts(&self.inner.url, path, parts)?;
        let (owned, upload, parts) = (path.to_vec(), upload.to_owned(), parts.to_vec());
        let complete = move |inner: &Inner| inner.complete_upload(&owned, &upload, size, &parts);
        self.changing(Operation::Complete, path, size, complete).await
    }

    async fn abort_upload(&self, path: &[u8], upload: &str) -> Result<(), Failure> {
        let (owned, upload) = (path.to_vec(), upload.to_owned());
        self.changing(Operation::Abort, path, 0, move |inner| inner.abort_upload(&owned, &upload)).await
    }

    async fn copy(&self, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        check_path(&self.inner.url, from)?;
        self.inner.check_change(to)?;
        let size = self.stat(from).await?.size();
        let (from, owned) = (from.to_vec(), to.to_vec());
        self.changing(Operation::Copy, to, size, move |inner| inner.copy(&from, &owned)).await
    }

    async fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        let owned = path.to_vec();
        self.changing(Operation::Remove, path, 0, move |inner| inner.remove(&owned)).await
    }

    async fn make_directory(&self, path: &[u8]) -> Result<Attr, Failure> {
        let owned = path.to_vec();
        self.changing(Operation::Put, path, 0, move |inner| inner.make_directory(&owned)).await
    }

    async fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        let owned = path.to_vec();
        self.changing(Operation::Remove, path, 0, move |inner| inner.remove_directory(&owned)).await
    }
}

impl Inner {
    /// Finds `path`, links followed, inside the root; the descriptor is a mere reference (`O_PATH`).
    fn open(&self, path: &[u8]) -> Result<(OwnedFd, Stat), Failure> {
        if path.starts_with(HIDDEN) {
            return Err(not_found(&self.url, path));
        }
        let full = if path.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(path)) };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let fd = rustix::fs::open(full, flags, Mode::empty()).map_err(|error| self.failure(path, error))?;
        let actual = std::fs::read_link(proc_path(&fd)).map_err(|error| self.io_failure(path, &error))?;
        if !actual.starts_with(&self.root) {
            let place = shown(&self.url, path);
            return Err(Failure::new(
                FailureKind::PermissionDenied,
                format!("{place}: a symbolic link leads to {}, outside of the origin", actual.display()),
            ));
        }
        let stat = rustix::fs::fstat(&fd).map_err(|error| self.failure(path, error))?;
        Ok((fd, stat))
    }

    /// `None` for what is neither file nor directory.
    fn attr(&self, path: &[u8], stat: &Stat) -> Option<Attr> {
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

    fn list(&self, path: &[u8], cookie: u64, max: usize) -> Result<ListPage, Failure> {
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
            if is_posix_name(name) && !(path.is_empty() && name.starts_with(HIDDEN)) {
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

    fn read(&self, version: &FileVersion, range: Range<u64>) -> Result<Vec<u8>, Failure> {
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
        let fd = rustix::fs::open(proc_path(&fd), flags, Mode::empty()).map_err(|error| self.failure(path, error))?;
        let file = File::from(fd);
        // `check_read` has compared this with the length of a buffer.
        let mut bytes = vec![0; (range.end - range.start) as usize];
        match file.read_exact_at(&mut bytes, range.start) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(changed()),
            Err(error) => return Err(self.io_failure(path, &error)),
        }
        // Unchanged after the read as before it: no write fell in between.
        let after = rustix::fs::fstat(&file).map_err(|error| self.failure(path, error))?;
        if is_this(&after) { Ok(bytes) } else { Err(changed()) }
    }

    fn io_failure(&self, path: &[u8], error: &std::io::Error) -> Failure {
        self.failure(path, Errno::from_io_error(error).unwrap_or(Errno::IO))
    }

    fn failure(&self, path: &[u8], error: Errno) -> Failure {
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

fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn tag(stat: &Stat) -> VersionTag {
    VersionTag::Modified { nanos: nanos(stat.st_ctime, stat.st_ctime_nsec), inode: stat.st_ino }
}

fn nanos(seconds: i64, nanos: u64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(i64::try_from(nanos).unwrap_or(0))
}

#[cfg(test)]
mod tests;
