//! A completion queue of one connection alone, with a channel of its own: the connection of a thread that waits for its answers itself.
//! Nothing of it wakes the I/O thread while that thread has it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use forebay_verbs::{Completion, CompletionChannel, CompletionQueue, Error, QueuePair, Reading, wait_for_completion};

use crate::verbs::core::{Core, let_others_run};
use crate::verbs::links::Links;
use crate::verbs::options::End;

/// See above.
pub(crate) struct OwnQueue {
    queue: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
}

impl OwnQueue {
    /// One with room for a client's connection.
    ///
    /// # Errors
    /// [`Error::Refused`] when the card has no more.
    pub(crate) fn new(core: &Core) -> Result<Self, Error> {
        let channel = CompletionChannel::new(core.registration.domain().device())?;
        let entries = QueuePair::entries(&End::Client.queue_pair(&End::Server.offer(), Reading::Ours));
        Ok(Self { queue: CompletionQueue::new(&channel, entries)?, channel })
    }

    /// The queue.
    pub(crate) fn queue(&self) -> &Arc<CompletionQueue> {
        &self.queue
    }

    /// Appends what has ended, up to a batch of it; how many that are.
    ///
    /// # Errors
    /// [`Error::Refused`]: the queue is lost.
    pub(crate) fn poll(&self, into: &mut Vec<Completion>) -> Result<usize, Error> {
        self.queue.poll(into)
    }

    /// Has the channel tell of what ends from now on. A card that cannot be asked for that tells of nothing: then the calling thread has
    /// waited for nothing, and the I/O thread, which is next, finds out why.
    pub(crate) fn arm(&self) {
        // See above.
        let _ = self.queue.arm();
    }

    /// Sleeps until something is told, but for no longer than `at_most`, and takes that.
    pub(crate) fn sleep(&self, at_most: Duration) {
        // If it cannot sleep, there are more looks than one.
        let _ = wait_for_completion(&self.channel, at_most);
        self.channel.take_events();
    }

    /// Hands out what ends to `links`, for as long as it is polled: on the I/O thread, while the connection is one of its links. Why
    /// it cannot go on.
    pub(crate) async fn drive(&self, links: &Links) -> Error {
        match self.try_drive(links).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_drive(&self, links: &Links) -> Result<Infallible, Error> {
        let readiness = self.channel.readiness()?;
        let mut ended = Vec::new();
        loop {
            // First, or what was told is taken for what is asked for now.
            self.channel.take_events();
            self.queue.arm()?;
            // What came before that may not be told of.
            while self.queue.poll(&mut ended)? > 0 {
                links.completed(ended.drain(..));
                let_others_run().await;
            }
            readiness.readable().await?;
        }
    }
}
