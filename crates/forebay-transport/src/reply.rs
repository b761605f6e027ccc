//! The answer to a request: a [`Response`] as the service gives it, a [`Reply`] as the caller gets it.

use bytes::Bytes;
use forebay_memory::{SpanMut, Spans};
use forebay_types::{Failure, FailureKind};

use crate::file_slice::FileSlice;
use crate::limits::MAX_REPLY_BODY;
use crate::request::Request;

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
