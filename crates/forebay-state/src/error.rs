//! What can go wrong, in the words of the person who has to act.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_private::{NotOurs, PrivateError};

/// A failure of a state store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StateError {
    /// The store cannot be reached now. What was asked for may have been done or not: read before trying again.
    #[error("{store} cannot be reached ({reason}): check that it runs and that the network lets this machine through")]
    Unavailable {
        /// [`crate::StateStore::describe`].
        store: String,
        /// The cause.
        reason: String,
    },
    /// The store did not answer in time. What was asked for may have been done or not: read before trying again.
    #[error("{store} did not answer within {deadline:?} to {operation}: check its load, its disk and the network")]
    TimedOut {
        /// [`crate::StateStore::describe`].
        store: String,
        /// What was asked for, with its key.
        operation: String,
        /// The configured deadline.
        deadline: Duration,
    },
    /// The store refused: credentials, permissions, no space.
    #[error("{store} refused {operation} ({reason}): {remedy}")]
    Refused {
        /// [`crate::StateStore::describe`].
        store: String,
        /// What was asked for, with its key.
        operation: String,
        /// What the store said.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The key cannot be stored.
    #[error(
        "`{key}` is no key of the state store ({reason}): keys are segments joined by `/`, 1 to 512 bytes long; encode \
         names that hold anything else as one segment"
    )]
    InvalidKey {
        /// The key; only its beginning where it is too long.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The value is larger than [`crate::MAX_VALUE_SIZE`].
    #[error(
        "the value of `{key}` has {size} bytes, and the state store takes at most {limit}: keep large data elsewhere"
    )]
    ValueTooLarge {
        /// The key.
        key: String,
        /// Bytes in the value.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The transaction cannot be carried out in any state of the store.
    #[error("a transaction that touches `{key}` cannot be committed ({reason}): split it")]
    InvalidTransaction {
        /// One of its keys.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The lease that a write names has expired or was revoked.
    #[error("the lease for `{key}` is no longer held in {store}: take a new one and write again")]
    LeaseLost {
        /// [`crate::StateStore::describe`].
        store: String,
        /// The key.
        key: String,
    },
    /// Another process uses the directory.
    #[error("the state directory {} is in use by {holder}: stop that process or give this one a directory of its own", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, as far as it can be told.
        holder: String,
    },
    /// Another user could read or change the state.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// A file of the store is damaged other than by a crash in the middle of a write.
    #[error(
        "{} is damaged at byte {offset} ({reason}): nothing was changed; restore the directory from a copy, or move it \
         away to start with an empty state", file.display()
    )]
    Corrupted {
        /// The file.
        file: PathBuf,
        /// Where, in bytes from its beginning.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A file or directory of the store cannot be used.
    #[error("cannot {action} {} ({cause}): check its permissions and the space left on its disk", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        cause: Arc<std::io::Error>,
    },
    /// The options cannot be used.
    #[error("{setting} cannot be used ({reason}): correct it in the configuration")]
    Options {
        /// The setting.
        setting: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store was closed by this process.
    #[error("{store} was closed")]
    Closed {
        /// [`crate::StateStore::describe`].
        store: String,
    },
}

impl From<PrivateError> for StateError {
    fn from(error: PrivateError) -> Self {
        match error {
            PrivateError::NotOurs(not_ours) => Self::NotOurs(not_ours),
            PrivateError::Io { action, path, error } => Self::Io { action, path, cause: Arc::new(error) },
        }
    }
}

impl StateError {
    /// Whether the same may succeed later without anyone's changing anything: the store cannot be reached or is slow.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::TimedOut { .. })
    }

    /// Whether the same never succeeds, whatever becomes of the store: what was to be written is nothing that can be.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::InvalidKey { .. } | Self::ValueTooLarge { .. } | Self::InvalidTransaction { .. })
    }
}
