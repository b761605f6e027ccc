//! What a store holds: keys with their values, as they were at a revision.

use std::fmt;

use bytes::Bytes;

/// A point in the history of a store. Each commit that changes something has a larger one than all before.
///
/// Revisions of different stores have nothing to do with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Bytes,
    /// When the key was last written.
    pub revision: Revision,
}

/// All entries under a prefix at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// In the order of their keys' bytes.
    pub entries: Vec<Entry>,
    /// The store's revision; changes after it are not in the snapshot, those up to it are.
    pub revision: Revision,
}
