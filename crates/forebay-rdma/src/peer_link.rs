//! What a server's connection is made of, whatever carries its messages: UCX or verbs.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use bytes::Bytes;
use forebay_memory::Spans;
use forebay_one_sided::Location;
use forebay_transport::wire::{HEADER_LEN, Hello};

/// A reply that is ready to be sent.
pub(crate) struct OutgoingReply {
    /// The number of its request.
    pub(crate) id: u64,
    /// The header, with its tag.
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) body: Bytes,
    /// Empty for none.
    pub(crate) payload: Spans,
}

/// Whether a reply was taken by the peer, once that is known.
pub(crate) type Taken = Pin<Box<dyn Future<Output = bool>>>;

/// A reply that the link has no way to send.
#[derive(Debug)]
pub(crate) struct Unfit;

/// What a peer may see of the service's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// All of it.
    pub(crate) sees_all: bool,
    /// Its reads are recorded.
    pub(crate) is_recorded: bool,
    /// Counts the changes of what is shown.
    pub(crate) number: u64,
}

/// A server's end of a connection. Clones are the same one.
pub(crate) trait PeerLink: Clone + 'static {
    /// Its number among those of its I/O thread.
    fn key(&self) -> usize;

    /// Reads the hello that a peer says: the tag that it shows.
    ///
    /// # Errors
    /// Why we may not talk to it.
    fn check_hello(&self, ours: &Hello, hello: &[u8]) -> Result<u64, String>;

    /// Answers a hello, showing `tag`.
    fn welcome(&self, ours: &Hello, tag: u64);

    /// Sends a reply. If that `is_watched`, gives what tells whether it was taken.
    ///
    /// # Errors
    /// [`Unfit`], and nothing was sent.
    fn reply(&self, reply: OutgoingReply, is_watched: bool) -> Result<Option<Taken>, Unfit>;

    /// Whether the peer can read our memory by itself, and may be told where something lies.
    fn may_tell(&self, _seen: Seen) -> bool {
        false
    }

    /// Lets the peer read what `location` speaks of; whether it can then.
    fn open(&self, _location: &Location) -> bool {
        false
    }

    /// To be called now and then: a peer that may not see all any more has to forget what it was told.
    fn look(&self, _seen: Seen, _now: Instant) {}

    /// Messages that the peer has not taken yet.
    fn operations(&self) -> usize;

    /// Counts those that it has taken, or that failed: as many as count as getting on are one.
    fn ended(&self) -> u64;

    /// Returns when the connection is broken; how it broke.
    fn failed(&self) -> impl Future<Output = String>;

    /// Returns when what was sent was taken, or will not be.
    fn flush(&self) -> impl Future<Output = ()>;

    /// Ends it, and returns when nothing of it is under way any more.
    fn close(&self) -> impl Future<Output = ()>;
}
