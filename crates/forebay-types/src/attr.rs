//! What a `stat` or a listing says of a name.

use crate::FileVersion;

/// What a name is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A directory, real or implied by the keys below it.
    Directory,
    /// A file, with the version that it has now.
    File(FileVersion),
}

/// The attributes of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// File or directory.
    pub kind: FileKind,
    /// Last modification, nanoseconds since 1970; 0 where the origin knows none (an implied directory).
    pub modified_nanos: i64,
    /// How many workers hold each of its blocks, 1 to [`crate::MAX_REPLICAS`]: a wish of the namespace's, not the origin's.
    pub replicas: u8,
    /// Whether the namespace takes changes here. False for what only exists to lead to mounts, and for origins that cannot be
    /// written.
    pub writable: bool,
}

impl Attr {
    /// A directory that is implied by the keys below it.
    #[must_use]
    pub fn directory() -> Self {
        Self { kind: FileKind::Directory, modified_nanos: 0, replicas: 1, writable: false }
    }

    /// A file of this version, without a time of modification.
    #[must_use]
    pub fn file(version: FileVersion) -> Self {
        Self { kind: FileKind::File(version), modified_nanos: 0, replicas: 1, writable: false }
    }

    /// The file version, if this is a file.
    #[must_use]
    pub fn version(&self) -> Option<&FileVersion> {
        match &self.kind {
            FileKind::Directory => None,
            FileKind::File(version) => Some(version),
        }
    }

    /// Length in bytes; 0 for a directory.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.version().map_or(0, |version| version.size)
    }
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: any bytes but `/` and NUL.
    pub name: Box<[u8]>,
    /// What it is.
    pub attr: Attr,
}
