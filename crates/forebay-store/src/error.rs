//! What can go wrong in a store, told so that a person can act on it.

use std::io;
use std::path::{Path, PathBuf};

use forebay_memory::PoolError;
use forebay_private::{NotOurs, PrivateError};
use forebay_types::{ByteSize, Failure, FailureKind};

/// Why a store could not be opened, or did not do what it was asked. Bad bytes and failing disks are not among these:
/// they are misses, counted in [`StoreStats`](crate::StoreStats).
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No memory for a fill or a read.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// The watermarks make no sense.
    #[error("watermarks want low < high <= 100, not low {low} and high {high}")]
    Watermarks {
        /// Where eviction starts, in percent.
        high: u8,
        /// Where it stops, in percent.
        low: u8,
    },
    /// The block size makes no sense.
    #[error("a block size is a power of two from 256KiB to 4MiB, not {size}")]
    BlockSize {
        /// The size as configured.
        size: ByteSize,
    },
    /// The cache directory is something else.
    #[error("cache directory {} is not a directory; give a directory, or remove what is there", dir.display())]
    NotADirectory {
        /// The path as configured.
        dir: PathBuf,
    },
    /// Another user could read or change what is cached.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// The directory that the cache directory is to be made in is not there.
    #[error(
        "cannot make cache directory {}: what it is in is not there; mount its disk, or `mkdir -p` that",
        dir.display()
    )]
    NoParent {
        /// The path as configured.
        dir: PathBuf,
    },
    /// The cache directory or a file in it cannot be made, opened, read or written.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Another store uses the directory.
    #[error("cache directory {} is in use by {holder}; stop it, or give each worker a directory of its own", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Which process holds it: `process 1234`, or `another process` when its lock file does not say.
        holder: String,
    },
    /// A file called `slab` that no store wrote.
    #[error("{} is not a forebay slab, so it is left alone; move it away or give another directory", path.display())]
    NotASlab {
        /// The file.
        path: PathBuf,
    },
    /// A slab of a newer format.
    #[error("{} has slab format {found}, and this version writes {known}; remove it to start with an empty cache", path.display())]
    SlabVersion {
        /// The file.
        path: PathBuf,
        /// The version in its superblock.
        found: u32,
        /// The version that this program writes.
        known: u32,
    },
    /// A configured size that holds not even one block.
    #[error("a disk of {size} in {} is too small: a slab takes at least {least}", dir.display())]
    TooSmall {
        /// The directory.
        dir: PathBuf,
        /// The size as configured.
        size: ByteSize,
        /// The smallest slab.
        least: ByteSize,
    },
    /// The file system has less room than the slab takes.
    #[error("{} needs {needed} more for its slab and its file system has {available}; free some space or configure a smaller size", dir.display())]
    NoSpace {
        /// The directory.
        dir: PathBuf,
        /// Bytes that the slab file still takes.
        needed: ByteSize,
        /// Bytes that the file system has left.
        available: ByteSize,
    },
    /// The disk says nothing.
    #[error(
        "the disk of cache directory {} does not answer; see what the kernel's log says of it, or leave the directory out",
        dir.display()
    )]
    Silent {
        /// The directory.
        dir: PathBuf,
    },
    /// io_uring was asked for and the kernel refuses it.
    #[error("the kernel refuses io_uring: {error}; configure the I/O backend `auto` or `threads`")]
    NoUring {
        /// The kernel's answer.
        error: io::Error,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path, error: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), error }
    }
}

impl From<PrivateError> for StoreError {
    fn from(error: PrivateError) -> Self {
        match error {
            PrivateError::NotOurs(not_ours) => Self::NotOurs(not_ours),
            PrivateError::Io { action, path, error } => Self::Io { action, path, error },
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let kind = match &error {
            StoreError::Memory(PoolError::TooLarge(_) | PoolError::Sizes { .. })
            | StoreError::Watermarks { .. }
            | StoreError::BlockSize { .. }
            | StoreError::TooSmall { .. } => FailureKind::InvalidArgument,
            StoreError::Memory(_) | StoreError::NoSpace { .. } => FailureKind::OutOfResources,
            StoreError::NotADirectory { .. } => FailureKind::NotADirectory,
            StoreError::NoParent { .. } => FailureKind::NotFound,
            StoreError::NotOurs(_) => FailureKind::PermissionDenied,
            StoreError::Io { error, .. } => match error.kind() {
                io::ErrorKind::PermissionDenied => FailureKind::PermissionDenied,
                io::ErrorKind::ReadOnlyFilesystem => FailureKind::ReadOnly,
                io::ErrorKind::NotFound => FailureKind::NotFound,
                _ => FailureKind::Unavailable,
            },
            StoreError::InUse { .. } | StoreError::Silent { .. } => FailureKind::Unavailable,
            StoreError::NotASlab { .. } | StoreError::SlabVersion { .. } | StoreError::NoUring { .. } => {
                FailureKind::Unsupported
            }
        };
        Self::new(kind, error.to_string())
    }
}
