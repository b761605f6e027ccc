//! What a copy of a machine's files cannot say about them: which user owns them, whether they can be opened, which of
//! them cannot be read. A recorded tree has these answers beside its files.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Whether this process may use a device node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It is not there.
    #[default]
    Missing,
    /// It can be opened for reading and writing.
    Granted,
    /// It cannot: the system's words.
    Refused(String),
}

/// The owner and the permissions of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// The number of its owner.
    pub user: u32,
    /// Its permissions, as `chmod` takes them.
    pub mode: u32,
}

/// The answers, by path without the leading `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answers {
    /// What came of opening device nodes.
    pub opened: BTreeMap<String, Access>,
    /// Which files could be opened for writing.
    pub writable: BTreeMap<String, bool>,
    /// The owners and permissions of files.
    pub owned: BTreeMap<String, Ownership>,
    /// What was free in the file systems of directories, in bytes.
    pub free_bytes: BTreeMap<String, u64>,
    /// Files that were there and could not be read.
    pub unreadable: BTreeSet<String>,
    /// Folders whose file systems did not answer in time.
    pub silent: BTreeSet<String>,
}
