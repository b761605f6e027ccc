//! What an open of a materialised file, or a request for one, gets: the file, a wait for it, or why it does not come.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_types::FileId;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::stats::Counts;

/// What an open gets.
#[derive(Debug)]
pub enum Verdict {
    /// The file is here whole: pass it through.
    Ready(LocalFile),
    /// It will be: wait for it, or do not.
    Waiting(Waiting),
    /// Serve it as ever.
    No,
}

/// What asked for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// `forebay job load --to-clients`.
    Job,
    /// `forebay fs local add`.
    Command,
}

/// What a handle read of a file that was served the ordinary way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes of reads that began where one before ended.
    pub sequential: u64,
    /// How far the file was read from its start, without a gap to speak of.
    pub from_start: u64,
    /// Whether a program maps the file.
    pub is_mapped: bool,
}

/// A whole and checked file. As long as one of these lives the file is not evicted, so keep it for as long as the kernel may open
/// more handles of its descriptor: from an inode's first handle that is passed through to its last. Clones are the same pin.
#[derive(Clone)]
pub struct LocalFile {
    pub(crate) pinned: Arc<Pinned>,
}

/// A pin, and what is read through it.
pub(crate) struct Pinned {
    pub(crate) id: FileId,
    pub(crate) size: u64,
    pub(crate) descriptor: OwnedFd,
    /// A check found that it is not what it was.
    pub(crate) is_wrong: AtomicBool,
    /// Told when the last clone is gone.
    pub(crate) release: Box<dyn Fn(FileId) + Send + Sync>,
}

impl LocalFile {
    /// Which version it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.pinned.id
    }

    /// How many bytes it has.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.pinned.size
    }

    /// Whether it is what it should be: no check has found it wrong. If it is not, pass no further handle through to
    /// it.
    #[must_use]
    pub fn is_right(&self) -> bool {
        !self.pinned.is_wrong.load(Ordering::Acquire)
    }
}

impl AsFd for LocalFile {
    /// For reading, on a mount that takes no writes: it cannot be opened again for writing.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pinned.descriptor.as_fd()
    }
}

impl fmt::Debug for LocalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalFile({})", self.pinned.id)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        (self.release)(self.id);
    }
}

/// Why a file that was waited for did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// Materialised files are off.
    #[error("materialised files are off")]
    Off,
    /// It was not there within `client.local.first_open_wait`.
    #[error("it was not there in time")]
    Late,
    /// What is there is worth more, or is in use.
    #[error("there is no room for it in client.local.size")]
    NoRoom,
    /// It is empty, or larger than all the room there is.
    #[error("it is empty, or larger than client.local.size")]
    Size,
    /// The origin has another version by now.
    #[error("the object changed")]
    Changed,
    /// It was dropped before it was whole.
    #[error("it was dropped before it was whole")]
    Dropped,
    /// It could not be filled.
    #[error("{0}")]
    Failed(String),
}

/// A file that is on its way.
#[derive(Debug)]
pub struct Waiting {
    pub(crate) file: oneshot::Receiver<Result<LocalFile, NotTaken>>,
    /// How long an open waits. `None`: a job or a command asked for the file, and waits until it comes or not.
    pub(crate) limit: Option<Duration>,
    pub(crate) counts: Arc<Counts>,
}

impl Waiting {
    /// The file, when it is there whole; for an open, no longer than an open waits.
    ///
    /// # Errors
    /// [`NotTaken`] when it does not come: serve it as ever.
    pub async fn done(self) -> Result<LocalFile, NotTaken> {
        let told = match self.limit {
            Some(limit) => match tokio::time::timeout(limit, self.file).await {
                Ok(told) => told,
                Err(_) => Ok(Err(NotTaken::Late)),
            },
            None => self.file.await,
        };
        // When files are turned off, waiters are dropped without an answer.
        let file = told.unwrap_or(Err(NotTaken::Off));
        let count = if file.is_ok() { &self.counts.waited } else { &self.counts.in_vain };
        Counts::add(count, 1);
        file
    }
}
