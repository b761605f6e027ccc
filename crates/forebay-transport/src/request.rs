//! One request, as both sides see it.

use std::time::Duration;

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_types::{BlockKey, Failure, FailureKind, FileId};

use crate::caller::Caller;
use crate::limits::MAX_PAYLOAD;
use crate::op::{Flags, Op};

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
