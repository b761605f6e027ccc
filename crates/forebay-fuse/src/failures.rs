//! The failures that several requests of the kernel end with, each worded once.

use forebay_types::{Failure, FailureKind, FsPath, PathError};

pub(crate) fn stale(path: &FsPath) -> Failure {
    Failure::new(FailureKind::VersionChanged, format!("{path} has another version by now"))
}

/// Of a handle that was open for writing.
pub(crate) fn lost(path: &FsPath) -> Failure {
    let next = "`forebay fs staged ls` lists what was written";
    let message = format!("{path} was open for writing when the process died that served the mount: {next}");
    Failure::new(FailureKind::Unavailable, message)
}

pub(crate) fn impossible_name(error: PathError) -> Failure {
    let kind = match error {
        PathError::NameTooLong(_) => FailureKind::NameTooLong,
        PathError::Relative(_) | PathError::BadName(_) => FailureKind::InvalidArgument,
    };
    Failure::new(kind, error.to_string())
}

pub(crate) fn read_only() -> Failure {
    Failure::new(FailureKind::ReadOnly, "the mount does not take writes")
}

pub(crate) fn not_open() -> Failure {
    Failure::new(FailureKind::InvalidArgument, "the handle is not open")
}

pub(crate) fn too_many_open() -> Failure {
    Failure::new(FailureKind::OutOfResources, "too many files are open")
}
