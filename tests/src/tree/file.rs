//! One file of a test.

use forebay_testkit::DataSet;

/// Where it is, and what it must read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeFile {
    /// Its path below the mount, and its key below the prefix.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its contents.
    pub data: DataSet,
}
