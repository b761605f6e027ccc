//! Which recorded tree the facts are of, when they are of none that runs here.

use serde::{Deserialize, Serialize};

/// A recorded machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// Its folder.
    pub folder: String,
    /// The release of Forebay that recorded it; `None` of a tree that was put together by hand.
    pub by: Option<String>,
    /// When.
    pub at: Option<String>,
}

impl Recording {
    /// Whether what no file tells was recorded: addresses, drivers, libibverbs, libucp, what others answered.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.by.is_some()
    }
}
