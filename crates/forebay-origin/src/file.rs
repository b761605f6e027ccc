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
//! **Listings** hold one page in memory: the token is the directory's own position cookie (`getdents64`'s `d_off`), the
//! one that NFS servers rely on.

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

use forebay_types::{Attr, DirEntry, Failure, FailureKind, FileKind, FileVersion, VersionTag};
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use crate::names::{check_path, check_read, is_posix_name, not_a_directory, not_found, shown, version_changed};
use crate::stats::{Operation, OriginStats, Outcome};
use crate::{ListPage, Origin, OriginCounts, OriginError, OriginOptions};

/// Bytes that one `getdents64` fills: about 200 names.
const DIRENT_BUFFER: usize = 8 << 10;

/// A directory as an origin.
pub struct FileOrigin {
    inner: Arc<Inner>,
    deadline: Duration,
}

struct Inner {
    url: Arc<str>,
    /// Absolute, without symbolic links.
    root: PathBuf,
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
        let inner = Inner { url: url.into(), root, stats: Arc::default() };
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
        let inner = Arc::clone(&self.inner);
        let started = Instant::now();
        let task = tokio::task::spawn_blocking(move || work(&inner));
        let place = || shown(&self.inner.url, path);
        let result = match tokio::time::timeout(self.deadline, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(Failure::new(FailureKind::Internal, format!("{}: {error}", place()))),
            Err(_) => Err(Failure::new(
                FailureKind::TimedOut,
                format!("{}: the file system did not answer within {:?}", place(), self.deadline),
            )),
        };
        let outcome = result.as_ref().map_or_else(|failure| Outcome::of(failure.kind()), |_| Outcome::Ok);
        self.inner.stats.attempted(operation, outcome, started.elapsed());
        if matches!(outcome, Outcome::TimedOut | Outcome::Failed) {
            self.inner.stats.count_error();
        }
        result
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
            Some(Err(_)) => {
                let message = format!("{}: not a listing token of this origin", shown(&self.inner.url, path));
                return Err(Failure::new(FailureKind::InvalidArgument, message));
            }
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
}

impl Inner {
    /// Finds `path`, links followed, inside the root; the descriptor is a mere reference (`O_PATH`).
    fn open(&self, path: &[u8]) -> Result<(OwnedFd, Stat), Failure> {
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
            if is_posix_name(name) {
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
            Errno::ACCESS | Errno::PERM => {
                (FailureKind::PermissionDenied, "; give the user that runs this process leave to read it")
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
mod tests {
    use super::*;
    use crate::OriginOptions;
    use std::os::unix::fs::symlink;

    fn origin(root: &Path) -> FileOrigin {
        FileOrigin::new("file:///t", root, &OriginOptions::default()).unwrap()
    }

    #[tokio::test]
    async fn a_symbolic_link_is_followed_inside_the_origin_and_refused_outside_of_it() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), b"s").unwrap();
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("sub")).unwrap();
        std::fs::write(root.path().join("sub/file"), b"inside").unwrap();
        symlink("sub/file", root.path().join("relative")).unwrap();
        symlink(root.path().join("sub/file"), root.path().join("absolute")).unwrap();
        symlink(outside.path().join("secret"), root.path().join("escape")).unwrap();
        symlink(outside.path(), root.path().join("escape-dir")).unwrap();
        symlink("nowhere", root.path().join("dangling")).unwrap();
        symlink("loop", root.path().join("loop")).unwrap();

        let origin = origin(root.path());
        for inside in ["relative", "absolute"] {
            let attr = origin.stat(inside.as_bytes()).await.unwrap();
            let mut into = [0; 6];
            origin.read(attr.version().unwrap(), 0..6, &mut into).await.unwrap();
            assert_eq!(&into, b"inside", "{inside}");
        }
        for escape in ["escape", "escape-dir", "escape-dir/secret"] {
            let failure = origin.stat(escape.as_bytes()).await.unwrap_err();
            assert_eq!(failure.kind(), FailureKind::PermissionDenied, "{failure}");
        }
        assert_eq!(origin.stat(b"dangling").await.unwrap_err().kind(), FailureKind::NotFound);
        assert_eq!(origin.stat(b"loop").await.unwrap_err().kind(), FailureKind::InvalidArgument);
        let page = origin.list(b"", None, 100).await.unwrap();
        let mut names: Vec<_> = page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
        names.sort();
        assert_eq!(names, ["absolute", "relative", "sub"]);
    }

    #[tokio::test]
    async fn names_are_any_bytes() {
        let root = tempfile::tempdir().unwrap();
        let name = b"\xff\xfe odd\n\"name";
        std::fs::write(root.path().join(OsStr::from_bytes(name)), b"x").unwrap();
        let origin = origin(root.path());
        assert_eq!(&*origin.list(b"", None, 10).await.unwrap().entries[0].name, name);
        assert_eq!(origin.stat(name).await.unwrap().size(), 1);
    }

    #[tokio::test]
    async fn a_file_rewritten_in_place_with_its_old_times_is_another_version() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        std::fs::write(&path, b"old").unwrap();
        let origin = origin(root.path());
        let version = origin.stat(b"f").await.unwrap().version().unwrap().clone();
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        // The clock of the file system may need a tick to tell the two writes apart.
        loop {
            let file = File::options().write(true).open(&path).unwrap();
            file.write_all_at(b"new", 0).unwrap();
            file.set_modified(modified).unwrap();
            let mut into = [0; 3];
            match origin.read(&version, 0..3, &mut into).await {
                Err(failure) => break assert_eq!(failure.kind(), FailureKind::VersionChanged),
                Ok(()) => assert!(Instant::now() < deadline, "the change was never seen"),
            }
        }
    }

    #[test]
    fn a_file_is_no_origin() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(
            FileOrigin::new("file:///t", file.path(), &OriginOptions::default()),
            Err(OriginError::Directory { .. })
        ));
    }

    #[tokio::test]
    async fn pipes_and_sockets_are_not_there() {
        let root = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.path().join("socket")).unwrap();
        let origin = origin(root.path());
        assert_eq!(origin.stat(b"socket").await.unwrap_err().kind(), FailureKind::NotFound);
        assert!(origin.list(b"", None, 10).await.unwrap().entries.is_empty());
    }
}
