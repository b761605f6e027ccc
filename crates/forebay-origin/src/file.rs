//! A directory of this machine (or of a file system that every worker mounts) as an origin.
//!
//! **Versions.** The tag is the inode number and its *change* time, not the modification time: programs set the latter
//! at will (`touch -d`, `tar`, `rsync --inplace -t`), the former moves with every write. A `chmod` makes a new version
//! too, which costs a refill and never shows wrong bytes. A file that is rewritten in place, to the same length, within
//! one tick of the file system's clock (at most 4 ms; none since Linux 6.13, whose time stamps are finer once looked
//! at) keeps its version: replace files by renaming a new one over them.
//!
//! **Symbolic links** are followed (`file/directory.rs`), and what they lead to must lie in the origin's directory: a
//! link out of it answers `PermissionDenied`, whatever made it. The check is made on the file that was opened (by what
//! `/proc/self/fd` says of it), so that no swap of a link in between gets past it. Listings leave out links that lead
//! outside or nowhere, and whatever is neither file nor directory.
//!
//! **Changes** (`file/writes.rs`) are renames of hidden files that lie in the origin's root until they are whole; uploads in
//! parts (`file/uploads.rs`) are hidden directories there. No path leads to them, by whatever links, and no listing shows them: nor
//! those of another origin whose root is in this one's directory.
//!
//! **Listings** hold one page in memory: the token is the directory's own position cookie (`getdents64`'s `d_off`), the
//! one that NFS servers rely on.

mod completed;
mod directory;
mod given_up;
mod pieces;
mod room;
mod uploads;
mod writes;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_types::{
    Attr, Failure, FailureKind, FileVersion, PartPage, RunningChecksums, SECTOR_SIZE, SectorChecksums, UploadMarker,
    UploadPage,
};
use rustix::fs::Access;
use tokio::sync::mpsc;

use self::completed::Completed;
use self::directory::Directory;
use self::given_up::GivenUp;
use self::pieces::Pieces;
use crate::names::{check_part, check_parts, check_path, check_read, invalid, not_found, shown};
use crate::stats::{Operation, OriginStats, Outcome};
use crate::{ListPage, Origin, OriginCounts, OriginError, OriginOptions, Room};

/// The least rate at which file systems take or copy bytes, those that are far away included: a longer time than the
/// deadline is allowed for what is large.
const SLOWEST: u64 = 16 << 20;

/// Pieces that a thread reads ahead of their being copied: with fewer, both wake each other for each.
const AHEAD: usize = 4;

/// A directory as an origin.
pub struct FileOrigin {
    directory: Arc<Directory>,
    deadline: Duration,
    room: Arc<room::Look>,
    stats: OriginStats,
}

impl FileOrigin {
    /// Opens the directory `root`, which `url` names.
    ///
    /// # Errors
    /// [`OriginError::Directory`] when it is not a directory that can be read.
    pub fn new(url: &str, root: &Path, options: &OriginOptions) -> Result<Self, OriginError> {
        let unusable = |source| OriginError::Directory { url: url.to_owned(), source };
        let root = root.canonicalize().map_err(unusable)?;
        std::fs::read_dir(&root).map_err(unusable)?;
        let is_writable = rustix::fs::access(&root, Access::WRITE_OK | Access::EXEC_OK).is_ok();
        let directory = Directory {
            url: url.into(),
            root,
            is_writable,
            completed: Completed::default(),
            pieces: Pieces::default(),
        };
        directory.remove_left_over();
        Ok(Self {
            directory: Arc::new(directory),
            deadline: options.retry_deadline,
            room: Arc::default(),
            stats: OriginStats::default(),
        })
    }

    /// Runs `work` on a thread that may block. A network file system that hangs costs that thread, not the caller:
    /// after the deadline the caller gets its failure.
    async fn blocking<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &[u8],
        work: impl FnOnce(&Directory) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.blocking_for(operation, path, self.deadline, work).await
    }

    async fn blocking_for<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &[u8],
        deadline: Duration,
        work: impl FnOnce(&Directory) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let directory = Arc::clone(&self.directory);
        let started = Instant::now();
        let task = tokio::task::spawn_blocking(move || work(&directory));
        let place = || shown(&self.directory.url, path);
        let result = match tokio::time::timeout(deadline, task).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(Failure::new(FailureKind::Internal, format!("{}: {error}", place()))),
            Err(_) => Err(Failure::new(
                FailureKind::TimedOut,
                format!("{}: the file system did not answer within {deadline:?}", place()),
            )),
        };
        let outcome = result.as_ref().map_or_else(|failure| Outcome::of(failure.kind()), |_| Outcome::Ok);
        self.stats.attempted(operation, outcome, started.elapsed());
        if matches!(outcome, Outcome::TimedOut | Outcome::Failed) {
            self.stats.count_error();
        }
        result
    }

    /// As [`FileOrigin::blocking`], for changes that move `bytes` bytes. Nobody waits for a change any more whose deadline is over: it
    /// may have been asked for again, and something else after that. So its last step is not taken then.
    async fn changing<T: Send + 'static>(
        &self,
        operation: Operation,
        path: &[u8],
        bytes: u64,
        work: impl FnOnce(&Directory, &GivenUp) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.directory.check_change(path)?;
        let deadline = self.deadline + Duration::from_secs(bytes / SLOWEST);
        let given_up = GivenUp::default();
        let _waiting = given_up.waited_for();
        self.blocking_for(operation, path, deadline, move |directory| work(directory, &given_up)).await
    }
}

/// A caller's buffer, and the checksums of what is in it.
struct Filled<'a> {
    into: &'a mut [u8],
    length: usize,
    checksums: RunningChecksums,
    kept: &'a Pieces,
}

impl Filled<'_> {
    /// Adds what comes next.
    fn add(&mut self, piece: Vec<u8>) {
        for sector in piece.chunks(SECTOR_SIZE as usize) {
            let end = self.length + sector.len();
            self.into[self.length..end].copy_from_slice(sector);
            self.length = end;
            self.checksums.advance(&self.into[..end]);
        }
        self.kept.keep(piece);
    }
}

#[async_trait::async_trait]
impl Origin for FileOrigin {
    fn url(&self) -> &Arc<str> {
        &self.directory.url
    }

    fn counts(&self) -> OriginCounts {
        self.stats.counts()
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        check_path(&self.directory.url, path)?;
        let owned = path.to_vec();
        self.blocking(Operation::Stat, path, move |directory| {
            let (_, stat) = directory.open(&owned)?;
            directory.attr(&owned, &stat).ok_or_else(|| not_found(&directory.url, &owned))
        })
        .await
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        check_path(&self.directory.url, path)?;
        let cookie = match token.map(str::parse) {
            None => 0,
            Some(Ok(cookie)) => cookie,
            Some(Err(_)) => return Err(invalid(&self.directory.url, path, "not a listing token of this origin")),
        };
        let owned = path.to_vec();
        self.blocking(Operation::List, path, move |directory| directory.list(&owned, cookie, max.max(1))).await
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        self.read_checksummed(version, range, into).await.map(drop)
    }

    async fn read_checksummed(
        &self,
        version: &FileVersion,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<SectorChecksums, Failure> {
        check_read(&self.directory.url, version, &range, into.len())?;
        let version = version.clone();
        let path = Arc::clone(&version.path);
        // The thread cannot borrow the caller's buffer: a dropped future would leave it writing there. Hence one copy, piece by piece
        // while the thread reads the next one, and summed while it is in the processor's cache.
        let (pieces, mut handed_over) = mpsc::channel(AHEAD);
        let reading = self.blocking(Operation::Read, &path, move |directory| {
            directory.read(&version, range, |piece| pieces.blocking_send(piece).is_ok())
        });
        tokio::pin!(reading);
        let kept = &self.directory.pieces;
        let mut filled = Filled { checksums: RunningChecksums::of_length(into.len()), into, length: 0, kept };
        let last = loop {
            tokio::select! {
                Some(piece) = handed_over.recv() => filled.add(piece),
                last = &mut reading => break last?,
            }
        };
        while let Ok(piece) = handed_over.try_recv() {
            filled.add(piece);
        }
        filled.add(last);
        self.stats.count_bytes(filled.length as u64);
        Ok(filled.checksums.end(filled.into))
    }

    fn takes_changes(&self) -> bool {
        self.directory.is_writable
    }

    async fn room(&self) -> Option<Room> {
        self.room.at(&self.directory.root).await
    }

    async fn put(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let (owned, length) = (path.to_vec(), bytes.len());
        let put = move |directory: &Directory, given_up: &GivenUp| directory.put(&owned, &bytes, given_up);
        let attr = self.changing(Operation::Put, path, length as u64, put).await?;
        self.stats.count_uploaded(length);
        Ok(attr)
    }

    async fn create(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let (owned, length) = (path.to_vec(), bytes.len());
        let create = move |directory: &Directory, _: &GivenUp| directory.create(&owned, &bytes);
        let attr = self.changing(Operation::Put, path, length as u64, create).await?;
        self.stats.count_uploaded(length);
        Ok(attr)
    }

    async fn begin_upload(&self, path: &[u8]) -> Result<String, Failure> {
        let owned = path.to_vec();
        self.changing(Operation::Begin, path, 0, move |directory, _| directory.begin_upload(&owned)).await
    }

    async fn upload_part(&self, path: &[u8], upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        check_part(&self.directory.url, path, number)?;
        let (owned, upload, length) = (path.to_vec(), upload.to_owned(), bytes.len());
        let add = move |directory: &Directory, _: &GivenUp| directory.upload_part(&owned, &upload, number, &bytes);
        let tag = self.changing(Operation::Part, path, length as u64, add).await?;
        self.stats.count_uploaded(length);
        Ok(tag)
    }

    async fn complete_upload(&self, path: &[u8], upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        check_parts(&self.directory.url, path, parts)?;
        let (owned, upload, parts) = (path.to_vec(), upload.to_owned(), parts.to_vec());
        let complete = move |directory: &Directory, given_up: &GivenUp| {
            directory.complete_upload(&owned, (&*upload, size, &*parts), given_up)
        };
        self.changing(Operation::Complete, path, size, complete).await
    }

    async fn abort_upload(&self, path: &[u8], upload: &str) -> Result<(), Failure> {
        let (owned, upload) = (path.to_vec(), upload.to_owned());
        self.changing(Operation::Abort, path, 0, move |directory, _| directory.abort_upload(&owned, &upload)).await
    }

    async fn list_parts(&self, path: &[u8], upload: &str, after: u32, max: usize) -> Result<PartPage, Failure> {
        self.directory.check_change(path)?;
        let (owned, upload) = (path.to_vec(), upload.to_owned());
        let list = move |directory: &Directory| directory.list_parts(&owned, &upload, after, max.max(1));
        self.blocking(Operation::List, path, list).await
    }

    async fn list_uploads(
        &self,
        prefix: &[u8],
        after: Option<&UploadMarker>,
        max: usize,
    ) -> Result<UploadPage, Failure> {
        let (owned, after) = (prefix.to_vec(), after.cloned());
        let list = move |directory: &Directory| directory.list_uploads(&owned, after.as_ref(), max);
        self.blocking(Operation::List, prefix, list).await
    }

    async fn copy(&self, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        check_path(&self.directory.url, from)?;
        self.directory.check_change(to)?;
        let size = self.stat(from).await?.size();
        let (from, owned) = (from.to_vec(), to.to_vec());
        let copy = move |directory: &Directory, given_up: &GivenUp| directory.copy(&from, &owned, given_up);
        self.changing(Operation::Copy, to, size, copy).await
    }

    async fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        let owned = path.to_vec();
        let remove = move |directory: &Directory, given_up: &GivenUp| directory.remove(&owned, given_up);
        self.changing(Operation::Remove, path, 0, remove).await
    }

    async fn make_directory(&self, path: &[u8]) -> Result<Attr, Failure> {
        let owned = path.to_vec();
        self.changing(Operation::Put, path, 0, move |directory, _| directory.make_directory(&owned)).await
    }

    async fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        let owned = path.to_vec();
        self.changing(Operation::Remove, path, 0, move |directory, _| directory.remove_directory(&owned)).await
    }
}

#[cfg(test)]
mod tests;
