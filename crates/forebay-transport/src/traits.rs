//! The two traits: what a link and a service promise, about buffers first, and what a caller may see of a peer's memory.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_memory::{SpanMut, Spans};
use forebay_one_sided::Location;
use forebay_types::{BlockKey, Failure, FileVersion};

use crate::caller::Caller;
use crate::error::CallError;
use crate::look::{Look, look_at};
use crate::op::Op;
use crate::reply::{Reply, Response, ResponsePayload};
use crate::request::Request;

/// Which implementation a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// Within the process.
    Local,
    /// Over TCP sockets.
    Tcp,
    /// Through OpenUCX: RDMA where there is a card for it.
    Ucx,
    /// By verbs: RDMA.
    Verbs,
    /// Programmable, for tests.
    Fake,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Tcp => "tcp",
            Self::Ucx => "ucx",
            Self::Verbs => "verbs",
            Self::Fake => "fake",
        })
    }
}

impl TransportKind {
    /// Whether a card may move the bytes by itself, so that it is best to have registered the memory that they go to. Such links carry
    /// no large bodies.
    #[must_use]
    pub fn is_rdma(self) -> bool {
        matches!(self, Self::Ucx | Self::Verbs)
    }
}

/// The memory of a peer, as far as this process sees it.
pub trait PeerMemory: Send + Sync {
    /// The bytes of a read that lie in memory which this process sees: without waiting, without copying.
    fn try_read(&self, _block: &BlockKey, _offset: u32, _length: u32) -> Option<Spans> {
        None
    }

    /// The same where they lie: calls `look` with them, in order, once, and says whether it did.
    fn try_look(&self, block: &BlockKey, offset: u32, length: u32, look: Look<'_>) -> bool {
        look_at(self.try_read(block, offset, length), look)
    }

    /// Whether [`PeerMemory::try_read`] would have the bytes now, as far as can be told without checking them.
    fn holds(&self, _block: &BlockKey, _offset: u32, _length: u32) -> bool {
        false
    }

    /// Says that `ranges` of a block, each a place and a length in it in bytes, are about to be read, so that a peer in this process may
    /// fetch together what it lacks of them and no more than `gap` bytes lie between. Without waiting.
    fn expect_reads(&self, _version: &Arc<FileVersion>, _block: &BlockKey, _ranges: &[(u32, u32)], _gap: u32) {}

    /// Whether the bytes of reads come as views of the peer's memory ([`Payload::Shared`](crate::Payload::Shared)), so that a caller needs no buffer for
    /// them and gains nothing by copying them. The peer cannot use those bytes for anything else while there is a view: a caller
    /// that keeps some for readers to come keeps few, and not for long. It may change at any time, and may not be so for one read: a
    /// caller that was told yes and brought no buffer gets [`LinkError::OtherPath`](crate::LinkError::OtherPath) then, and asks again with one.
    fn is_open(&self) -> bool;

    /// Whether that can ever be so, as far as is known. A caller that keeps the answer asks again when the members change.
    fn may_open(&self) -> bool {
        self.is_open()
    }

    /// How many bytes of it are seen now; what a reader looks at, the peer cannot use for anything else.
    fn visible_bytes(&self) -> u64 {
        0
    }
}

/// A link to one worker.
///
/// The contract, which [`crate::conformance`] tests:
///
/// * A call ends, with a reply or an error, within the request's deadline and a little; also when the peer hangs.
/// * `into` must hold `request.length` bytes for an operation that [brings a payload](Op::brings_payload). The
///   transport owns it until the operation has ended, which may be later than the call: a call that timed out, or whose
///   future was dropped, leaves its buffer with the operation, and no other code sees those bytes until no peer can
///   write to them any more (invariant 3).
/// * Bytes in the buffer beyond what landed are unspecified. A reply never carries more than was asked for.
/// * Calls are independent: any number run at once, and the failure or cancellation of one disturbs no other.
/// * A link that was lost is made again by the next call. Nothing is retried within a call: the caller decides.
#[async_trait::async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends `request`; payload lands in `into`.
    ///
    /// # Errors
    /// [`CallError::Service`] is the peer's answer, [`CallError::Link`] that there was none.
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError>;

    /// The peer's memory, if this kind of link can ever see it.
    fn memory(&self) -> Option<&dyn PeerMemory> {
        None
    }

    /// Which implementation this is.
    fn kind(&self) -> TransportKind;

    /// The peer's address, for logs.
    fn peer(&self) -> &str;

    /// Ends the link and waits until every operation on it has ended. Later calls fail.
    async fn close(&self);
}

/// What answers requests. Implementations check every field: a request may come from any process (invariant 7).
#[async_trait::async_trait]
pub trait Service: Send + Sync + 'static {
    /// Whether `caller` may read all that is cached. Who is shown the memory itself sees all of it, whatever it asks for.
    fn shows_all(&self, _caller: &Caller) -> bool {
        true
    }

    /// Counts the changes of what is shown: of mounts and of who may use them. Whoever was shown memory before the last of them is
    /// asked to forget it.
    fn shown_number(&self) -> u64 {
        0
    }

    /// Where the bytes of a read lie that was just answered from memory, for a caller that [may see all](Service::shows_all) and can read
    /// them there. What is asked for often enough is made ready to be told; without waiting for that.
    fn locate(&self, _request: &Request) -> Option<Location> {
        None
    }

    /// Answers at once, without waiting, or not at all: the hot path of a hit.
    fn try_handle(&self, _request: &Request) -> Option<Response> {
        None
    }

    /// Bytes of a read, as [`Service::try_handle`] would give them to a caller in this process, which needs nothing but
    /// them.
    fn try_read(&self, block: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        let request = Request::on_block(Op::Read, *block, offset, length, Duration::ZERO).by(Caller::Local);
        match self.try_handle(&request)?.fitting(&request).ok()?.payload {
            ResponsePayload::Spans(spans) => Some(spans),
            _ => None,
        }
    }

    /// The same where they lie: calls `look` with them, in order, once, and says whether it did.
    fn try_look(&self, block: &BlockKey, offset: u32, length: u32, look: Look<'_>) -> bool {
        look_at(self.try_read(block, offset, length), look)
    }

    /// Whether [`Service::try_read`] would have the bytes now, as far as can be told without checking them.
    fn holds(&self, _block: &BlockKey, _offset: u32, _length: u32) -> bool {
        false
    }

    /// [`PeerMemory::expect_reads`], of a caller in this process.
    fn expect_reads(&self, _version: &Arc<FileVersion>, _block: &BlockKey, _ranges: &[(u32, u32)], _gap: u32) {}

    /// Answers. `takes_files` says whether the payload may be [`ResponsePayload::File`].
    ///
    /// # Errors
    /// The failure that the caller gets as [`CallError::Service`].
    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure>;
}
