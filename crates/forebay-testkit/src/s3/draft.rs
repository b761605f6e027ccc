//! Files on their way to becoming objects: whole ones, and parts of uploads.
//!
//! They lie in the server's own directory, where no bucket is, and are placed by a rename. One lock is held while names
//! come and go: a delete removes the directories that an object was the last in, and a put that finds its directory must
//! not lose it before the object is there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_locks::Mutex;
use futures::StreamExt;
use http::StatusCode;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc64Nvme};
use s3s::dto::{ETag, StreamingBlob};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use tokio::io::AsyncWriteExt;

use super::entity_tag::entity_tag;
use super::kept::{Kept, has_marker, put_marker, remove_marker};

/// Where drafts are made and placed.
#[derive(Debug)]
pub(super) struct Drafts {
    root: PathBuf,
    made: AtomicU64,
    last_modified: AtomicI64,
    names: Mutex<()>,
}

/// A file on its way to becoming an object; it is removed if it does not.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) file: File,
    pub(super) path: DraftPath,
}

/// The path of a draft, which is removed with it.
#[derive(Debug)]
pub(super) struct DraftPath(PathBuf);

impl Drop for DraftPath {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl AsRef<Path> for DraftPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drafts {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            made: AtomicU64::new(0),
            last_modified: AtomicI64::new(0),
            names: Mutex::default(),
        }
    }

    /// An empty draft.
    pub(super) fn make(&self, kind: &str) -> S3Result<Draft> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let path = DraftPath(self.root.join(format!(".{kind}-{}-{number}", std::process::id())));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        Ok(Draft { file: file.map_err(|error| s3_error!(error, InternalError))?, path })
    }

    /// A draft of what a client sends.
    pub(super) async fn receive(
        &self,
        kind: &str,
        body: Option<StreamingBlob>,
        length: Option<i64>,
        crc64nvme: Option<&str>,
    ) -> S3Result<Draft> {
        let draft = self.make(kind)?;
        let copy = draft.file.try_clone().map_err(|error| s3_error!(error, InternalError))?;
        let mut writer = tokio::io::BufWriter::with_capacity(1 << 20, tokio::fs::File::from_std(copy));
        let mut body = body.ok_or_else(|| s3_error!(IncompleteBody))?;
        let mut written = 0;
        let mut hasher = ChecksumHasher { crc64nvme: crc64nvme.map(|_| Crc64Nvme::new()), ..ChecksumHasher::default() };
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|_| s3_error!(IncompleteBody))?;
            hasher.update(&chunk);
            writer.write_all(&chunk).await.map_err(|error| s3_error!(error, InternalError))?;
            written += chunk.len() as u64;
        }
        writer.flush().await.map_err(|error| s3_error!(error, InternalError))?;
        if length.is_some_and(|expected| i64::try_from(written) != Ok(expected)) {
            return Err(s3_error!(IncompleteBody));
        }
        if hasher.finalize().checksum_crc64nvme.as_deref() != crc64nvme {
            return Err(s3_error!(BadDigest));
        }
        Ok(draft)
    }

    /// Gives a draft a time that none got before: its entity tag is its own.
    pub(super) fn stamp(&self, draft: &Draft) -> S3Result<String> {
        let stamp = || -> std::io::Result<String> {
            draft.file.set_modified(self.next_modified())?;
            Ok(entity_tag(&draft.file.metadata()?))
        };
        stamp().map_err(|error| s3_error!(error, InternalError))
    }

    /// Makes a draft the object at `target`; with `only_new`, only where there is none.
    pub(super) fn place(&self, draft: &Draft, target: &Path, kept: &Kept, only_new: bool) -> S3Result<ETag> {
        self.stamp(draft)?;
        kept.write(&draft.file).map_err(|error| s3_error!(error, InternalError))?;
        let metadata = draft.file.metadata().map_err(|error| s3_error!(error, InternalError))?;
        // Read back: where nothing can be kept, the tag is the plain one, here as later.
        let etag = Kept::of_file(&draft.file, &metadata).entity_tag(&metadata);
        let _names = self.names.lock();
        if only_new && target.exists() {
            return Err(s3_error!(PreconditionFailed));
        }
        make_parents(target)?;
        std::fs::rename(&draft.path, target).map_err(|error| match error.kind() {
            std::io::ErrorKind::IsADirectory => conflict("ExistingObjectIsDirectory"),
            _ => s3_error!(error, InternalError),
        })?;
        Ok(ETag::Strong(etag))
    }

    /// Puts the marker of a directory; its entity tag.
    pub(super) fn place_marker(&self, directory: &Path) -> S3Result<ETag> {
        let _names = self.names.lock();
        make_parents(directory)?;
        let make = || -> std::io::Result<String> {
            if !directory.is_dir() {
                std::fs::create_dir(directory)?;
            }
            put_marker(directory)?;
            Ok(entity_tag(&directory.metadata()?))
        };
        make().map(ETag::Strong).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => conflict("ObjectParentIsFile"),
            _ => s3_error!(error, InternalError),
        })
    }

    /// Deletes an object, or the marker of a directory, and the directories that it was the last in, as far as they were but
    /// implied by it.
    pub(super) fn delete(&self, bucket: &Path, path: &Path, is_marker: bool) -> std::io::Result<()> {
        use std::io::ErrorKind::{DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound};
        let _names = self.names.lock();
        if is_marker {
            remove_marker(path);
        }
        let removed = if is_marker { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
        match removed {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory | DirectoryNotEmpty) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        for parent in path.ancestors().skip(1).take_while(|parent| *parent != bucket) {
            if has_marker(parent) || std::fs::remove_dir(parent).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn next_modified(&self) -> SystemTime {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let next = |last: i64| last.saturating_add(1).max(now);
        let previous = self.last_modified.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        let nanos = next(previous.unwrap_or_default());
        UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
    }
}

/// The directories above `target`. A directory cannot hold the file `a` and the directory `a` at once, as a bucket could.
fn make_parents(target: &Path) -> S3Result<()> {
    let Some(parent) = target.parent() else { return Ok(()) };
    std::fs::create_dir_all(parent).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotADirectory | std::io::ErrorKind::AlreadyExists => conflict("ObjectParentIsFile"),
        _ => s3_error!(error, InternalError),
    })
}

/// What servers on file systems answer in place of holding both; the codes are versitygw's.
fn conflict(code: &'static str) -> S3Error {
    let message = "a file and a directory of one name do not go together here";
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(StatusCode::CONFLICT);
    error
}
