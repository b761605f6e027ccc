//! Completion queues of one connection alone, with a channel of their own: the connection of a thread that waits for its answers itself.
//! Nothing of them wakes the I/O thread while that thread has it.
//!
//! There are two: that a request has arrived ends its completion, but is nothing to be woken for. So who sleeps asks to be told of
//! what comes alone; when a connection breaks, its receives are flushed, which it is told of, too.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use forebay_verbs::{Completion, CompletionChannel, CompletionQueue, Error, Reading, wait_for_completion};

use crate::verbs::core::{Core, let_others_run};
use crate::verbs::links::Links;
use crate::verbs::options::{End, OF_SERVER};

/// See above.
pub(crate) struct OwnQueue {
    receiving: Arc<CompletionQueue>,
    sending: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
}

impl OwnQueue {
    /// With room for a client's connection.
    ///
    /// # Errors
    /// [`Error::Refused`] when the card has no more.
    pub(crate) fn new(core: &Core) -> Result<Self, Error> {
        let channel = CompletionChannel::new(core.registration.domain().device())?;
        let options = End::Client.queue_pair(&core.fabric.lone(), &OF_SERVER, Reading::None);
        let receiving = CompletionQueue::new(&channel, options.receives as usize)?;
        let sending = CompletionQueue::new(&channel, options.requests as usize)?;
        Ok(Self { receiving, sending, channel })
    }

    /// Those of receives and of requests.
    pub(crate) fn queues(&self) -> [&Arc<CompletionQueue>; 2] {
        [&self.receiving, &self.sending]
    }

    /// Appends what has ended, up to a batch of each; how many that are.
    ///
    /// # Errors
    /// [`Error::Refused`]: a queue is lost.
    pub(crate) fn poll(&self, into: &mut Vec<Completion>) -> Result<usize, Error> {
        Ok(self.sending.poll(into)? + self.receiving.poll(into)?)
    }

    /// Has the channel tell of what comes from now on. A card that cannot be asked for that tells of nothing: then the calling thread has
    /// waited for nothing, and the I/O thread, which is next, finds out why.
    pub(crate) fn arm(&self) {
        // See above.
        let _ = self.receiving.arm();
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
            self.sending.arm()?;
            self.receiving.arm()?;
            // What ended before that may not be told of.
            while self.poll(&mut ended)? > 0 {
                links.completed(ended.drain(..));
                let_others_run().await;
            }
            readiness.readable().await?;
        }
    }
}
