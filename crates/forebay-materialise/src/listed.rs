//! What people are shown of a file.

use std::time::SystemTime;

use forebay_types::FileId;
use serde::Serialize;

use crate::file::Why;

/// A file, for people.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Its version's name.
    #[serde(skip)]
    pub key: FileId,
    /// The same in hexadecimal.
    pub id: String,
    /// Its origin.
    pub origin: String,
    /// Its path below the origin; bytes that are no text are replaced.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// Where it is on its way.
    pub state: LocalState,
    /// How much of it is written.
    pub written: u64,
    /// Inodes that are passed through to it.
    pub pins: u64,
    /// Opens since it came.
    pub opens: u64,
    /// What asked for it; `None`: it was worth it without that.
    pub asked: Option<Why>,
    /// Since when it is in this state.
    pub since: SystemTime,
}

/// Where a file is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalState {
    /// Waiting for its turn, or for room.
    Queued,
    /// Being filled.
    Filling,
    /// Found in the directory, and not yet checked.
    Unchecked,
    /// Whole and checked.
    Ready,
    /// Gone, but for the handles that have it open.
    Leaving,
    /// Failed, and left alone for a while.
    Cooling,
}
