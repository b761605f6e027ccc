//! A watch: what is under a prefix, and then what changes.

use std::future::poll_fn;
use std::task::{Context, Poll};

use tokio::sync::mpsc;

use crate::entry::{Entry, Revision, Snapshot};

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// All there is under the prefix. Replaces all that was known.
    Snapshot(Snapshot),
    /// What changed after the update before; several commits may be joined, a key then appears once, as it is at
    /// `revision`. Without puts and deletes it says that the store is back.
    Changed {
        /// Keys that were made or replaced.
        puts: Vec<Entry>,
        /// Keys that were deleted, by a commit or with their lease.
        deletes: Vec<String>,
        /// Everything up to it is known now.
        revision: Revision,
    },
    /// The store cannot be reached. What is known stays as it is, and may be out of date. When the store is back, a
    /// `Snapshot` or a `Changed` follows.
    Lost {
        /// The cause, for people.
        reason: String,
    },
}

/// Updates of one prefix, in order. Ends when it is dropped or when the store is closed.
#[derive(Debug)]
pub struct Watch {
    updates: mpsc::Receiver<Update>,
}

impl Watch {
    /// A watch and the end of it that the store keeps; at most `capacity` updates wait to be taken.
    ///
    /// # Panics
    /// If `capacity` is 0.
    #[must_use]
    pub fn new(capacity: usize) -> (WatchSender, Self) {
        let (sender, updates) = mpsc::channel(capacity);
        (WatchSender { sender }, Self { updates })
    }

    /// The next update; `None` when the store was closed. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Update> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// [`Watch::next`] for callers that poll.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Update>> {
        self.updates.poll_recv(context)
    }
}

/// The store's end of a watch.
#[derive(Debug)]
pub struct WatchSender {
    sender: mpsc::Sender<Update>,
}

impl WatchSender {
    /// Hands out an update; waits while too many are not yet taken. False when the watch was dropped.
    pub async fn send(&self, update: Update) -> bool {
        self.sender.send(update).await.is_ok()
    }

    /// Waits until the watch is dropped.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}
