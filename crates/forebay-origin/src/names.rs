//! What a path below an origin, and a name in a listing, may be.

use forebay_types::{Failure, FailureKind, FileVersion, MAX_NAME_LEN};
use std::ops::Range;

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

/// The URL and the path as a person reads them.
pub(crate) fn shown(url: &str, path: &[u8]) -> String {
    if path.is_empty() { url.to_owned() } else { format!("{url}/{}", String::from_utf8_lossy(path)) }
}
