//! What a device's thread is told, and what it answers.

use forebay_memory::Spans;
use tokio::sync::oneshot;

use crate::error::Error;
use crate::handles::{DeviceAddress, Stream};
use crate::outstanding::Ticket;
use crate::staging::StagingBuffer;

/// What is copied. It is held until the copy has ended, and with it the lease of what lies in a worker's memory.
#[derive(Debug)]
pub enum Source {
    /// Bytes where they lie in memory that can be registered ([`forebay_memory::Span::registrable`]), one span behind the other.
    Shared(Spans),
    /// Bytes of a pinned buffer.
    Staged(StagingBuffer),
}

/// How a copy ended.
#[derive(Debug)]
pub enum Ended {
    /// The bytes are in the device's memory.
    Copied,
    /// Nothing was copied: the memory that these lie in cannot be registered. They are to be copied from a pinned buffer.
    NotRegistered(Spans),
}

/// Where an answer goes. Who asked may have left.
pub(crate) type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Command {
    /// One more pinned buffer.
    Pin(Answer<StagingBuffer>),
    /// Copies from now on come after what this stream of others has by now.
    Follow(Stream, Answer<()>),
    /// A copy.
    Copy(CopyTask),
}

/// A copy.
#[derive(Debug)]
pub(crate) struct CopyTask {
    pub(crate) source: Source,
    pub(crate) to: DeviceAddress,
    pub(crate) ticket: Ticket,
    pub(crate) done: Answer<Ended>,
}

impl CopyTask {
    /// It has ended, one way or the other: nothing reads its source, and nothing writes for it.
    pub(crate) fn end(self, ended: Result<Ended, Error>) {
        let Self { source, ticket, done, .. } = self;
        drop(source);
        drop(ticket);
        let _ = done.send(ended);
    }
}
