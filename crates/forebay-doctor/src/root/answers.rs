//! What a machine answers to questions about its files that a copy of them cannot: who owns them, who may open them, which of
//! them cannot be read. A recorded tree has these beside its files.

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

/// Who owns a file, and who may do what with it.
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
    /// Who owns files.
    pub owned: BTreeMap<String, Ownership>,
    /// What was free in the file systems of directories, in bytes.
    pub free_bytes: BTreeMap<String, u64>,
    /// Files that were there and could not be read.
    pub unreadable: BTreeSet<String>,
}
