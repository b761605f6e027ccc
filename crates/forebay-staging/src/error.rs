//! What can go wrong with staging, in the words of the person who has to act.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_private::{NotOurs, PrivateError};
use forebay_types::{ByteSize, Failure, FailureKind, FsPath};

/// A failure of the staging directory.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StagingError {
    /// Parts that origins would not take.
    #[error("parts of {0} cannot be uploaded: set write.part_size to 5MiB or more, up to 64MiB")]
    PartSize(ByteSize),
    /// No part might be in flight.
    #[error("write.memory of {0} is less than one part may have: set it to 64MiB or more")]
    Memory(ByteSize),
    /// No part might be staged.
    #[error("write.staging_size of {given} does not hold the largest part of a file: set it to {least} or more")]
    Size {
        /// What was given.
        given: ByteSize,
        /// What is needed.
        least: ByteSize,
    },
    /// Another user could read or change what is staged.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// The file system refused.
    #[error("cannot {action} {path}: {cause}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        cause: Arc<io::Error>,
    },
}

impl From<PrivateError> for StagingError {
    fn from(error: PrivateError) -> Self {
        match error {
            PrivateError::NotOurs(not_ours) => Self::NotOurs(not_ours),
            PrivateError::Io { action, path, error } => Self::Io { action, path, cause: Arc::new(error) },
        }
    }
}

impl From<StagingError> for Failure {
    fn from(error: StagingError) -> Self {
        let kind = match &error {
            StagingError::Io { cause, .. } => kind_of(cause),
            StagingError::NotOurs(_) => FailureKind::PermissionDenied,
            StagingError::PartSize(_) | StagingError::Memory(_) | StagingError::Size { .. } => {
                FailureKind::InvalidArgument
            }
        };
        Self::new(kind, error.to_string())
    }
}

/// Makes a [`StagingError::Io`] of the file system's answer.
pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StagingError {
    let path = path.to_owned();
    move |cause| StagingError::Io { action, path, cause: Arc::new(cause) }
}

fn kind_of(error: &io::Error) -> FailureKind {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => FailureKind::NoSpace,
        Some(libc::EFBIG) => FailureKind::TooLarge,
        _ => match error.kind() {
            io::ErrorKind::NotFound => FailureKind::NotFound,
            io::ErrorKind::PermissionDenied => FailureKind::PermissionDenied,
            _ => FailureKind::Internal,
        },
    }
}

/// Bytes were asked for that only an upload has.
pub(crate) fn let_go(path: &FsPath, range: &Range<u64>) -> Failure {
    let message = format!(
        "the staging directory is too small for {path}: bytes {} to {} have been uploaded and let go of, and can \
         neither be read nor changed in part before the file is synced; raise write.staging_size",
        range.start, range.end
    );
    Failure::new(FailureKind::NoSpace, message)
}

/// No room was found in time.
pub(crate) fn no_room(path: &FsPath, size: u64, kept: (usize, u64)) -> Failure {
    let size = ByteSize::bytes(size);
    let mut message = format!(
        "no room to write {path}: the {size} of write.staging_size are in use, and no upload freed some in time"
    );
    if kept.0 > 0 {
        let bytes = ByteSize::bytes(kept.1);
        message += &format!("; {} files that could not be uploaded hold {bytes}: forebay fs staged ls", kept.0);
    }
    Failure::new(FailureKind::NoSpace, message)
}

/// Larger than all parts together.
pub(crate) fn too_large(path: &FsPath, most: u64) -> Failure {
    let most = ByteSize::bytes(most);
    Failure::new(
        FailureKind::TooLarge,
        format!("{path} would be larger than {most}, what 10000 parts hold; raise write.part_size"),
    )
}

/// The mount goes away.
pub(crate) fn closing() -> Failure {
    Failure::new(FailureKind::Unavailable, "the mount is being closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_space() {
        let error = |number| failed("write", Path::new("/x"))(io::Error::from_raw_os_error(number));
        assert_eq!(Failure::from(error(libc::ENOSPC)).kind(), FailureKind::NoSpace);
        assert_eq!(Failure::from(error(libc::EIO)).kind(), FailureKind::Internal);
        assert!(Failure::from(error(libc::EIO)).message().starts_with("cannot write /x: "));
    }
}
