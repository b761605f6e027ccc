//! What the real implementations share: operations, and the bound on how many are under way.

use std::io;
use std::sync::Arc;

use forebay_memory::SpanMut;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::traits::DiskIo;
use super::write_buffer::WriteBuffer;

/// An operation and everything that it needs, owned until it has ended.
pub(super) struct Operation {
    pub(super) offset: u64,
    pub(super) kind: Kind,
    pub(super) _turn: OwnedSemaphorePermit,
}

/// What to do, and where the result goes.
pub(super) enum Kind {
    Read { into: SpanMut, done: oneshot::Sender<io::Result<SpanMut>> },
    Write { from: WriteBuffer, done: oneshot::Sender<io::Result<()>> },
}

impl Operation {
    /// Bytes to be moved.
    pub(super) fn len(&self) -> usize {
        match &self.kind {
            Kind::Read { into, .. } => into.len(),
            Kind::Write { from, .. } => from.len(),
        }
    }

    /// Tells the result to the caller, if it still waits for it; the memory goes along or is let go.
    pub(super) fn end(self, result: io::Result<()>) {
        match self.kind {
            Kind::Read { into, done } => _ = done.send(result.map(|()| into)),
            Kind::Write { done, .. } => _ = done.send(result),
        }
    }
}

/// Where operations go. It takes as many as the [`Front`] lets through.
pub(super) trait Back: Send + Sync + 'static {
    /// Begins an operation, or ends it with an error.
    fn begin(&self, operation: Operation);
}

/// Lets a bounded number of operations through to its back.
pub(super) struct Front<B> {
    back: Arc<B>,
    turns: Arc<Semaphore>,
}

impl<B> Front<B> {
    pub(super) fn new(back: B, bound: usize) -> Self {
        Self { back: Arc::new(back), turns: Arc::new(Semaphore::new(bound)) }
    }
}

impl<B: Back> DiskIo for Front<B> {
    fn read_at(&self, offset: u64, into: SpanMut) -> BoxFuture<'static, io::Result<SpanMut>> {
        let (back, turns) = (Arc::clone(&self.back), Arc::clone(&self.turns));
        Box::pin(async move {
            let turn = turns.acquire_owned().await.map_err(|_| gone())?;
            let (done, result) = oneshot::channel();
            back.begin(Operation { offset, kind: Kind::Read { into, done }, _turn: turn });
            result.await.unwrap_or_else(|_| Err(gone()))
        })
    }

    fn write_at(&self, offset: u64, from: WriteBuffer) -> BoxFuture<'static, io::Result<()>> {
        let (back, turns) = (Arc::clone(&self.back), Arc::clone(&self.turns));
        Box::pin(async move {
            let turn = turns.acquire_owned().await.map_err(|_| gone())?;
            let (done, result) = oneshot::channel();
            back.begin(Operation { offset, kind: Kind::Write { from, done }, _turn: turn });
            result.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

fn gone() -> io::Error {
    io::Error::other("the disk I/O threads have stopped")
}
