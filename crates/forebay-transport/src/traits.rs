//! The two traits, and what passes between them.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use forebay_memory::{SpanMut, Spans};
use forebay_types::{BlockKey, Failure, FailureKind, FileId};

use crate::caller::Caller;
use crate::file_slice::FileSlice;
use crate::limits::{MAX_CHANGE_BODY, MAX_PAYLOAD, MAX_REPLY_BODY, MAX_REQUEST_BODY, MAX_UPLOAD_BODY};
use crate::look::{Look, look_at};

/// What is asked. The numbers are part of the wire protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// Answer, so that the caller knows that the peer is alive.
    Ping = 1,
    /// Bytes of a block. Body: empty, or the file version's description.
    Read = 2,
    /// Bring bytes of a block into the cache and send none. Body as for [`Op::Read`].
    Fill = 3,
    /// Attributes of a path. Body: the path.
    Stat = 4,
    /// One page of a directory. Body: [`crate::message::ListRequest`].
    List = 5,
    /// Which sectors of a block are cached, and where. Body: empty.
    Coverage = 6,
    /// The worker's counters. Body of the reply: a JSON object.
    Stats = 7,
    /// The ways to reach the worker besides this one. Body of the reply: [`crate::message::PathsReply`].
    Paths = 8,
    /// Drop blocks from the cache. Body: [`crate::message::FreeRequest`]. Body of the reply: [`crate::message::FreeReply`].
    Free = 9,
    /// Take a part of a block that another worker holds, and is about to lose, into the cache. Body:
    /// [`crate::message::AdoptRequest`]. Bytes that are held already are not fetched; the reply's provenance says which were.
    Adopt = 10,
    /// Change the namespace. Body: [`crate::message::Change`]. Body of the reply: [`crate::message::ChangeReply`].
    Change = 11,
    /// Take the bytes of a small file, or a part of a larger one, to the origin. Body: [`crate::message::UploadRequest`]. Body of
    /// the reply: [`crate::message::ChangeReply`].
    Upload = 12,
    /// Forget what is known of a path, and ask the origin when it is asked for next. Body: the path. With [`Flags::BELOW`] also of
    /// everything below it. A worker has those wait who ask for it too often.
    Refresh = 13,
    /// Attributes of a path, and with them the bytes of a small file. Body: the path. The length is the most bytes that the caller
    /// has room for; with [`Flags::CACHED`], it wants none that would have to be fetched. Body of the reply:
    /// [`crate::message::StatReadReply`]; payload: the whole file, or nothing.
    StatRead = 14,
    /// Let the caller make one connection that proves nothing itself, over UCX. Body: the client id that it connects with, a `u64`.
    /// Body of the reply: the pass that it shows then, of 16 bytes. The server over TCP answers it: it knows who asks.
    Admit = 15,
}

impl Op {
    /// The operation with this wire number.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        use Op::*;
        const OPS: [Op; 15] = [
            Ping, Read, Fill, Stat, List, Coverage, Stats, Paths, Free, Adopt, Change, Upload, Refresh, StatRead, Admit,
        ];
        OPS.into_iter().find(|op| *op as u8 == number)
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Read => "read",
            Self::Fill => "fill",
            Self::Stat => "stat",
            Self::List => "list",
            Self::Coverage => "coverage",
            Self::Stats => "stats",
            Self::Paths => "paths",
            Self::Free => "free",
            Self::Adopt => "adopt",
            Self::Change => "change",
            Self::Upload => "upload",
            Self::Refresh => "refresh",
            Self::StatRead => "stat-read",
            Self::Admit => "admit",
        }
    }

    /// Whether answers bring a payload, which lands in the caller's buffer.
    #[must_use]
    pub fn brings_payload(self) -> bool {
        matches!(self, Self::Read | Self::StatRead)
    }

    /// The longest body that a request of this kind has.
    #[must_use]
    pub fn max_body(self) -> u32 {
        match self {
            Self::Upload => MAX_UPLOAD_BODY,
            Self::Change => MAX_CHANGE_BODY,
            _ => MAX_REQUEST_BODY,
        }
    }
}

/// How a request wants to be treated: a set of bits, part of the wire protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// Ask the origin, whatever a metadata cache says.
    pub const REVALIDATE: Self = Self(1);
    /// The caller checks the bytes of a read itself: send the checksums of its sectors as the reply's body, in the form of
    /// [`forebay_types::SectorChecksums::as_bytes`], and check nothing on the way. A service that cannot leaves the body empty
    /// and vouches for the bytes.
    pub const CHECKSUMS: Self = Self(2);
    /// What was sent before was corrupt: check what is cached of the block, whatever the settings, and drop what is bad.
    pub const SCRUB: Self = Self(4);
    /// Give only what is cached; what is not is [`forebay_types::FailureKind::NotCached`], and neither another worker
    /// nor the origin is asked for it.
    pub const CACHED: Self = Self(8);
    /// What is asked concerns everything below the path, too.
    pub const BELOW: Self = Self(16);

    /// All bits of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    /// What is asked.
    pub op: Op,
    /// How to treat it.
    pub flags: Flags,
    /// The block, for the operations on blocks; zero for the others.
    pub block: BlockKey,
    /// Where in the block, in bytes.
    pub offset: u32,
    /// How many bytes.
    pub length: u32,
    /// How long the caller will wait. The transport holds it to that; the service may give up earlier.
    pub deadline: Duration,
    /// What the operation says it is.
    pub body: Bytes,
    /// The rest of the body, where it would have to be copied to be in one piece with it, as the bytes of an upload
    /// would. Transports send both as one, so a service that gets a request from another process finds all of it in
    /// `body`.
    pub tail: Bytes,
    /// Who asks, as the transport says that hands the request to the service. It does not go over the wire.
    pub caller: Caller,
}

impl Request {
    /// A request on a block.
    #[must_use]
    pub fn on_block(op: Op, block: BlockKey, offset: u32, length: u32, deadline: Duration) -> Self {
        let (flags, body, tail, caller) = (Flags::default(), Bytes::new(), Bytes::new(), Caller::default());
        Self { op, flags, block, offset, length, deadline, body, tail, caller }
    }

    /// A request on the namespace.
    #[must_use]
    pub fn on_path(op: Op, body: Bytes, deadline: Duration) -> Self {
        let block = BlockKey { file: FileId([0; 16]), index: 0 };
        Self { body, ..Self::on_block(op, block, 0, 0, deadline) }
    }

    /// How much payload the answer may bring: every transport that copies or receives asks before it sends.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] when the request is over the protocol's limits, or `into` too small for it.
    pub fn payload_limit(&self, into: Option<&SpanMut>) -> Result<u32, Failure> {
        let invalid = |message: String| Err(Failure::new(FailureKind::InvalidArgument, message));
        let (body, length) = (self.body_len(), self.length);
        let most = self.op.max_body();
        if body > most as usize {
            return invalid(format!("a request body of {body} bytes is over the limit of {most}"));
        }
        if length > MAX_PAYLOAD {
            return invalid(format!("a request for {length} bytes is over the limit of {MAX_PAYLOAD}"));
        }
        if !self.op.brings_payload() {
            return Ok(0);
        }
        match into.map_or(0, |span| span.len()) {
            room if room < length as usize => invalid(format!("a read of {length} bytes has a buffer of {room}")),
            _ => Ok(length),
        }
    }

    /// Bytes of the body, its tail included.
    #[must_use]
    pub fn body_len(&self) -> usize {
        self.body.len() + self.tail.len()
    }

    /// The same request with `flags`.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// The same request with `body`.
    #[must_use]
    pub fn with_body(mut self, body: Bytes) -> Self {
        self.body = body;
        self
    }

    /// The same request of `caller`.
    #[must_use]
    pub fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }
}

/// Where the bytes of a reply came from, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The worker's memory.
    pub memory: u32,
    /// The worker's disks.
    pub disk: u32,
    /// The origin.
    pub origin: u32,
}

impl Provenance {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            memory: self.memory.saturating_add(other.memory),
            disk: self.disk.saturating_add(other.disk),
            origin: self.origin.saturating_add(other.origin),
        }
    }
}

/// The payload of a reply, as the caller sees it.
#[derive(Debug)]
pub enum Payload {
    /// None.
    None,
    /// In the caller's buffer, which is cut to the bytes that landed.
    Landed(SpanMut),
    /// In the service's own memory, which the caller may read for as long as it likes; also when `into` was given.
    Shared(Spans),
}

/// The answer to a request that succeeded.
#[derive(Debug)]
pub struct Reply {
    /// Where the payload came from.
    pub provenance: Provenance,
    /// What the operation says it is.
    pub body: Bytes,
    /// The bytes of a read.
    pub payload: Payload,
}

/// Why a link did not deliver an answer. It says nothing about the request, which another peer may answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// No connection could be made.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// The peer's address.
        peer: String,
        /// Why not.
        reason: String,
    },
    /// The peer is not one that we may talk to.
    #[error("{peer} refused: {reason}")]
    Refused {
        /// The peer's address.
        peer: String,
        /// What does not match, by name and version.
        reason: String,
    },
    /// One of the two did not prove to the other that it is who it has to be.
    #[error("{peer}: identities do not fit: {reason}")]
    Unproved {
        /// The peer's address.
        peer: String,
        /// What does not fit and, behind `; `, what helps.
        reason: String,
    },
    /// The peer is there, and none of the paths to it may be used.
    #[error("no path to {peer} may be used: {reason}")]
    NotAllowed {
        /// The peer's address.
        peer: String,
        /// What is wrong with those that might.
        reason: String,
    },
    /// The connection broke while the request was under way.
    #[error("connection to {peer} lost: {reason}")]
    Lost {
        /// The peer's address.
        peer: String,
        /// How.
        reason: String,
    },
    /// The path that the request took is down, and there is another to the same peer: ask again, with another buffer.
    #[error("a path to {peer} failed: {reason}")]
    OtherPath {
        /// The peer's address.
        peer: String,
        /// How.
        reason: String,
    },
    /// No answer within the deadline.
    #[error("no answer from {peer} within {waited:?}")]
    TimedOut {
        /// The peer's address.
        peer: String,
        /// How long it waited.
        waited: Duration,
    },
    /// The peer sent what the protocol does not allow.
    #[error("{peer} broke the protocol: {reason}")]
    Protocol {
        /// The peer's address.
        peer: String,
        /// What it sent.
        reason: String,
    },
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The service answered that it could not.
    #[error("{0}")]
    Service(Failure),
    /// The service did not answer.
    #[error("{0}")]
    Link(#[from] LinkError),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Service(failure) => failure,
            CallError::Link(link @ LinkError::TimedOut { .. }) => Self::new(FailureKind::TimedOut, link.to_string()),
            CallError::Link(link @ LinkError::Unproved { .. }) => {
                Self::new(FailureKind::PermissionDenied, link.to_string())
            }
            CallError::Link(link) => Self::new(FailureKind::Unavailable, link.to_string()),
        }
    }
}

/// Which implementation a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// Within the process.
    Local,
    /// Over TCP sockets.
    Tcp,
    /// Through OpenUCX: RDMA where there is a card for it.
    Ucx,
    /// Programmable, for tests.
    Fake,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Tcp => "tcp",
            Self::Ucx => "ucx",
            Self::Fake => "fake",
        })
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

    /// Whether the bytes of reads come as views of the peer's memory ([`Payload::Shared`]), so that a caller needs no buffer for
    /// them and gains nothing by copying them. The peer cannot use those bytes for anything else while there is a view: a caller
    /// that keeps some for readers to come keeps few, and not for long. It may change at any time, and may not be so for one read: a
    /// caller that was told yes and brought no buffer gets [`LinkError::OtherPath`] then, and asks again with one.
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

/// The payload of a reply, as the service gives it.
#[derive(Debug)]
pub enum ResponsePayload {
    /// None.
    None,
    /// Views of memory.
    Spans(Spans),
    /// Bytes of a file; only to a caller that said it takes them.
    File(FileSlice),
}

impl ResponsePayload {
    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Spans(spans) => spans.iter().map(|span| span.len()).sum(),
            Self::File(slice) => slice.length as usize,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The service's answer.
#[derive(Debug)]
pub struct Response {
    /// Where the payload came from.
    pub provenance: Provenance,
    /// What the operation says it is.
    pub body: Bytes,
    /// The bytes of a read.
    pub payload: ResponsePayload,
}

impl Response {
    /// An answer without payload.
    #[must_use]
    pub fn of_body(body: Bytes) -> Self {
        Self { provenance: Provenance::default(), body, payload: ResponsePayload::None }
    }

    /// Bytes in memory.
    #[must_use]
    pub fn of_spans(spans: Spans, provenance: Provenance) -> Self {
        Self { provenance, body: Bytes::new(), payload: ResponsePayload::Spans(spans) }
    }

    /// The same answer if it is one that `request` allows: every transport asks before it sends.
    ///
    /// # Errors
    /// [`FailureKind::Internal`] when the service gave more payload than was asked for, or a body over the limit.
    pub fn fitting(self, request: &Request) -> Result<Self, Failure> {
        let allowed = if request.op.brings_payload() { request.length as usize } else { 0 };
        let (payload, body) = (self.payload.len(), self.body.len());
        if payload > allowed {
            let op = request.op.name();
            let message = format!("the service answered a {op} with {payload} bytes, {allowed} were asked");
            return Err(Failure::new(FailureKind::Internal, message));
        }
        if body > MAX_REPLY_BODY as usize {
            let op = request.op.name();
            let message = format!("the service answered a {op} with a body of {body} bytes, too long");
            return Err(Failure::new(FailureKind::Internal, message));
        }
        Ok(self)
    }
}

/// What answers requests. Implementations check every field: a request may come from any process (invariant 7).
#[async_trait::async_trait]
pub trait Service: Send + Sync + 'static {
    /// Whether `caller` may read all that is cached. Who is shown the memory itself sees all of it, whatever it asks for.
    fn shows_all(&self, _caller: &Caller) -> bool {
        true
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

    /// Answers. `takes_files` says whether the payload may be [`ResponsePayload::File`].
    ///
    /// # Errors
    /// The failure that the caller gets as [`CallError::Service`].
    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure>;
}
