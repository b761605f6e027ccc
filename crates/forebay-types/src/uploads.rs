//! Uploads in parts, and files that were made by them, as an origin tells of them.

use std::ops::Range;

/// A part that an upload has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadedPart {
    /// Its number, from 1 to 10,000.
    pub number: u32,
    /// Its tag, with which the upload is completed.
    pub tag: String,
    /// How many bytes it has.
    pub size: u64,
    /// When it was taken, in nanoseconds since 1970; 0 where the origin does not say.
    pub modified_nanos: i64,
}

/// Some of the parts of an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartPage {
    /// The parts, each with a higher number than the one before.
    pub parts: Vec<UploadedPart>,
    /// Whether there are parts with higher numbers than the last one here.
    pub has_more: bool,
}

/// An upload that was begun, and neither completed nor given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingUpload {
    /// The file that it is to become, below what was asked about.
    pub path: Vec<u8>,
    /// Its name.
    pub upload: String,
    /// When it was begun, in nanoseconds since 1970; 0 where the origin does not say.
    pub begun_nanos: i64,
}

/// Where a page of uploads ends, and the next one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadMarker {
    /// The file of the last upload, below what was asked about.
    pub path: Vec<u8>,
    /// The name of that upload; empty: all uploads of the file are passed over.
    pub upload: String,
}

/// Some of the uploads that are under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// The uploads, in the order of their paths.
    pub uploads: Vec<PendingUpload>,
    /// Where the next page begins; `None` on the last one.
    pub next: Option<UploadMarker>,
}

/// A part of a file that was uploaded in several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Its bytes in the file.
    pub range: Range<u64>,
    /// How many parts the file has.
    pub count: u32,
}
