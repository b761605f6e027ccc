//! Taking back the kernel's belief in a name.
//!
//! The kernel takes the directory's lock for it, which may be held by a lookup that waits for us: so it is never done
//! by a thread that serves requests, but by one of its own, fed through a bounded queue. A name that does not fit is
//! left out: its inode is marked all the same, and `open` says `ESTALE`.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use forebay_fuse_io::Notifier;
use tracing::debug;

const QUEUE: usize = 1024;

enum Message {
    Name {
        parent: u64,
        name: Box<[u8]>,
    },
    /// A thread wants to know when everything before it is done.
    Done(SyncSender<()>),
    End,
}

/// Where stale names are put.
#[derive(Clone)]
pub(crate) struct StaleNames(SyncSender<Message>);

/// Where they are taken from.
pub(crate) struct StaleQueue(Receiver<Message>);

/// An empty queue.
pub(crate) fn stale_names() -> (StaleNames, StaleQueue) {
    let (sender, receiver) = sync_channel(QUEUE);
    (StaleNames(sender), StaleQueue(receiver))
}

impl StaleNames {
    /// The kernel shall look `name` in directory `parent` up again. Does not wait.
    pub(crate) fn push(&self, parent: u64, name: &[u8]) {
        if self.0.try_send(Message::Name { parent, name: name.into() }).is_err() {
            debug!("the queue of stale names is full");
        }
    }

    /// The same, waiting while the queue is full.
    pub(crate) fn push_patiently(&self, parent: u64, name: &[u8]) {
        // It fails only when the thread has ended: then the kernel need not be told any more.
        let _ = self.0.send(Message::Name { parent, name: name.into() });
    }

    /// Waits until the kernel was told of all that was pushed before, no longer than `within`.
    pub(crate) fn wait(&self, within: Duration) {
        let (done, is_done) = sync_channel(1);
        // A lookup that the kernel waits for, with the directory locked, may take longer; its answer is a new one then.
        if self.0.send(Message::Done(done)).is_ok() && is_done.recv_timeout(within).is_err() {
            debug!(?within, "the kernel was not told of all stale names yet");
        }
    }

    /// Ends the thread that runs [`StaleQueue::serve`], after what is in the queue.
    pub(crate) fn end(&self) {
        // It fails only when the thread has ended.
        let _ = self.0.send(Message::End);
    }
}

impl StaleQueue {
    /// Tells the kernel of each name, until [`StaleNames::end`].
    pub(crate) fn serve(self, notifier: &Notifier) {
        while let Ok(message) = self.0.recv() {
            match message {
                // This fails after an unmount, when the mount is gone.
                Message::Name { parent, name } => {
                    if let Err(error) = notifier.inval_entry(parent, &name) {
                        debug!(%error, "the kernel was not told of a stale name");
                    }
                }
                // The waiter may have given up.
                Message::Done(done) => drop(done.try_send(())),
                Message::End => break,
            }
        }
    }
}
