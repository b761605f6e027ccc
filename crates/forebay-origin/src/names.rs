//! What a path below an origin, and a name in a listing, may be.

use forebay_types::{Failure, FailureKind, FileVersion, MAX_NAME_LEN};
use std::ops::Range;

/// The most parts of an upload: S3's bound.
pub(crate) const MAX_PARTS: u32 = 10_000;

/// Whether a POSIX file can have this name.
pub(crate) fn is_posix_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= MAX_NAME_LEN
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Checks a path that a caller gave: relative, normal, no name too long.
pub(crate) fn check_path(url: &str, path: &[u8]) -> Result<(), Failure> {
    if path.is_empty() {
        return Ok(());
    }
    for name in path.split(|byte| *byte == b'/') {
        if name.len() > MAX_NAME_LEN {
            return Err(Failure::new(
                FailureKind::NameTooLong,
                format!("{}: a name is longer than {MAX_NAME_LEN} bytes", shown(url, path)),
            ));
        }
        if !is_posix_name(name) {
            return Err(Failure::new(
                FailureKind::InvalidArgument,
                format!(
                    "{}: the path below an origin has an empty, `.` or `..` name, or a NUL in it",
                    shown(url, path)
                ),
            ));
        }
    }
    Ok(())
}

/// Checks a path that is to be changed: the root, which always is, is not.
pub(crate) fn check_change(url: &str, path: &[u8]) -> Result<(), Failure> {
    if path.is_empty() {
        return Err(invalid(url, path, "the root of an origin cannot be changed"));
    }
    check_path(url, path)
}

/// Checks the number of a part.
pub(crate) fn check_part(url: &str, path: &[u8], number: u32) -> Result<(), Failure> {
    match number {
        1..=MAX_PARTS => Ok(()),
        _ => Err(invalid(url, path, &format!("an upload has parts 1 to {MAX_PARTS}, and no part {number}"))),
    }
}

/// Checks how many parts there are.
pub(crate) fn check_parts(url: &str, path: &[u8], parts: &[String]) -> Result<(), Failure> {
    // 10,000 parts are far below 2^32.
    check_part(url, path, u32::try_from(parts.len()).unwrap_or(u32::MAX))
}

/// Checks that a read's version, range and buffer fit together.
pub(crate) fn check_read(url: &str, version: &FileVersion, range: &Range<u64>, length: usize) -> Result<(), Failure> {
    let refuse = |what: &str| {
        let place = shown(url, &version.path);
        Err(Failure::new(FailureKind::InvalidArgument, format!("{place}: {what}")))
    };
    if *version.origin != *url {
        return refuse(&format!("a version of the origin {} was asked of this one", version.origin));
    }
    if range.start >= range.end || range.end > version.size {
        return refuse(&format!("bytes {range:?} are not in a file of {} bytes", version.size));
    }
    if range.end - range.start != length as u64 {
        return refuse(&format!("bytes {range:?} do not fit a buffer of {length} bytes"));
    }
    if version.path.is_empty() {
        return refuse("the root of an origin is a directory, not a file");
    }
    check_path(url, &version.path)
}

/// The failure for a name that is not there.
pub(crate) fn not_found(url: &str, path: &[u8]) -> Failure {
    Failure::new(FailureKind::NotFound, format!("{}: no such file or directory", shown(url, path)))
}

/// The failure for listing a file.
pub(crate) fn not_a_directory(url: &str, path: &[u8]) -> Failure {
    Failure::new(FailureKind::NotADirectory, format!("{}: not a directory", shown(url, path)))
}

/// The failure for a version that is gone.
pub(crate) fn version_changed(url: &str, path: &[u8]) -> Failure {
    let place = shown(url, path);
    Failure::new(
        FailureKind::VersionChanged,
        format!("{place}: replaced or deleted since it was opened; open it again"),
    )
}

/// The failure for writing a file where a directory is.
pub(crate) fn is_a_directory(url: &str, path: &[u8]) -> Failure {
    Failure::new(FailureKind::IsADirectory, format!("{}: it is a directory", shown(url, path)))
}

/// The failure for making what is there.
pub(crate) fn exists(url: &str, path: &[u8]) -> Failure {
    Failure::new(FailureKind::Exists, format!("{}: there is something of that name", shown(url, path)))
}

/// The failure for removing a directory that has names in it.
pub(crate) fn not_empty(url: &str, path: &[u8]) -> Failure {
    Failure::new(FailureKind::NotEmpty, format!("{}: the directory is not empty", shown(url, path)))
}

/// The failure for an upload that is not under way.
pub(crate) fn no_such_upload(url: &str, path: &[u8]) -> Failure {
    let place = shown(url, path);
    Failure::new(
        FailureKind::NotFound,
        format!("{place}: there is no such upload (any more): it was completed, given up or cleared away"),
    )
}

/// The failure for a part's tag that the upload does not have.
pub(crate) fn no_such_part(url: &str, path: &[u8], number: usize) -> Failure {
    invalid(url, path, &format!("the upload has no part {number} with that tag: it was sent again, or never"))
}

/// The failure for a file that is not as long as it should be.
pub(crate) fn not_of_size(url: &str, path: &[u8], size: u64, found: u64) -> Failure {
    let place = shown(url, path);
    let message = format!("{place}: {found} bytes came together at the origin, not {size}");
    Failure::new(FailureKind::Corrupt, message)
}

/// The failure for what makes no sense.
pub(crate) fn invalid(url: &str, path: &[u8], what: &str) -> Failure {
    Failure::new(FailureKind::InvalidArgument, format!("{}: {what}", shown(url, path)))
}

/// The URL and the path as a person reads them.
pub(crate) fn shown(url: &str, path: &[u8]) -> String {
    if path.is_empty() { url.to_owned() } else { format!("{url}/{}", String::from_utf8_lossy(path)) }
}
