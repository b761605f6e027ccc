//! The entity tag of a file, made of what the file system says of it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The entity tag of a file, without quotes: it changes whenever the file is replaced or written to. No `-`, which S3 puts
/// before the number of parts.
pub(super) fn entity_tag(metadata: &Metadata) -> String {
    let nanos = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    format!("{:x}.{nanos:x}.{:x}", metadata.ino(), metadata.len())
}
