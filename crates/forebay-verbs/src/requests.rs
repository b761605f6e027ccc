//! What a queue pair is asked for, and what it tells.

use forebay_memory::{Span, SpanMut, Spans};
use forebay_verbs_sys as sys;

/// How large a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairOptions {
    /// Messages that the peer may send before they are looked at.
    pub receives: u32,
    /// Bytes of the longest of those.
    pub receive_length: usize,
    /// Requests that may be under way, each message, each piece of memory and each window one.
    pub requests: u32,
    /// Messages that may be under way and do not fit into their request.
    pub frames: u32,
    /// Bytes of the longest message that is sent.
    pub frame_length: usize,
    /// Bytes that fit into a request, as far as the card has them.
    pub inline: u32,
    /// Buffers that the peer may write to at once.
    pub windows: usize,
    /// Reads of the peer's memory that may be under way.
    pub reads: u32,
}

/// Which end of a connection reads the other one's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// Neither.
    #[default]
    None,
    /// This one.
    Ours,
    /// The peer, as far as it is shown some.
    Theirs,
}

/// What of the path of a connection is not left to rdma_cm. Not over iWARP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathOptions {
    /// InfiniBand's service level; over RoCE the priority of Ethernet. Of what this end sends.
    pub service_level: Option<u8>,
    /// Bytes of the largest packet, a power of two from 256 to 4096, where the path takes larger ones. Both ends have to have the same.
    pub mtu: Option<u16>,
}

impl PathOptions {
    /// Whether anything is.
    #[must_use]
    pub fn is_chosen(self) -> bool {
        self != Self::default()
    }
}

/// What both ends say when they connect.
#[derive(Clone, Copy, Debug)]
pub struct Handshake<'a> {
    /// What the peer is told: 56 bytes at most of one that connects, 196 of one that accepts.
    pub private_data: &'a [u8],
    /// How often a message that is not acknowledged is sent again, 7 at most. The peer that connects decides for both.
    pub retries: u8,
    /// How often the peer sends a message again for which this end had no receive; 7 is for ever.
    pub receiver_not_ready_retries: u8,
    /// Who reads.
    pub reading: Reading,
    /// What is not left to rdma_cm.
    pub path: PathOptions,
}

/// Memory at the peer that it has exposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Where it begins, as the peer knows it.
    pub address: u64,
    /// Its key.
    pub key: u32,
}

/// A buffer of ours that the peer may write to, once its window is bound ([`Post::bind`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exposure {
    /// The window's number.
    pub window: usize,
    /// What the peer is told.
    pub remote: Remote,
}

/// A read or write of the peer's memory by itself, with the memory at this end.
#[derive(Debug)]
pub enum Plain {
    /// The peer's bytes come into all of this.
    Read(SpanMut),
    /// These bytes go to the peer.
    Write(Span),
}

impl Plain {
    /// Where its memory is, and how many bytes that are.
    pub(crate) fn place(&self) -> (usize, usize) {
        match self {
            Self::Read(into) => (into.pointer().addr().get(), into.len()),
            Self::Write(from) => (from.as_ptr().addr(), from.len()),
        }
    }
}

/// What goes with a message.
#[derive(Debug, Default)]
pub struct Post {
    /// The window is bound before.
    pub bind: Option<usize>,
    /// This one is, through which the peer may read ([`Shown`](crate::Shown)).
    pub shows: Option<usize>,
    /// The bytes are written to the peer's memory before.
    pub write: Option<(Spans, Remote)>,
    /// The use of this key of the peer's ends when it gets the message.
    pub invalidate: Option<u32>,
    /// A completion is wanted. Without, what the message owns is kept until that of a later one.
    pub signalled: bool,
}

/// What a completion has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A receive: a message lies in it ([`QueuePair::message_in`](crate::QueuePair::message_in)).
    Received {
        /// The receive.
        receive: u32,
        /// Bytes of the message.
        length: usize,
    },
    /// Requests; what they owned is free.
    Sent,
    /// A request failed, for this reason: the connection is broken.
    Failed(String),
    /// One that is of no interest: its connection was broken before.
    Flushed,
}

/// As many reads as the card can have under way, at the end that reads, and none at the other one.
pub(crate) fn parameters(handshake: Handshake<'_>) -> sys::rdma_conn_param {
    let most_if = |reading| if handshake.reading == reading { u8::MAX } else { 0 };
    sys::rdma_conn_param {
        private_data: handshake.private_data.as_ptr().cast(),
        private_data_len: handshake.private_data.len().min(usize::from(u8::MAX)) as u8,
        responder_resources: most_if(Reading::Theirs),
        initiator_depth: most_if(Reading::Ours),
        flow_control: 1,
        retry_count: handshake.retries.min(7),
        rnr_retry_count: handshake.receiver_not_ready_retries.min(7),
        srq: 0,
        qp_num: 0,
    }
}

/// The request that sends `piece`.
pub(crate) fn message_request(
    piece: *mut sys::ibv_sge,
    (is_inline, signalled): (bool, bool),
    invalidate: Option<u32>,
) -> sys::ibv_send_wr {
    let opcode = if invalidate.is_some() { sys::IBV_WR_SEND_WITH_INV } else { sys::IBV_WR_SEND };
    let inline = if is_inline { sys::IBV_SEND_INLINE } else { 0 };
    let signal = if signalled { sys::IBV_SEND_SIGNALED } else { 0 };
    let mut request = sys::ibv_send_wr::new(0, opcode, inline | signal);
    request.invalidate_rkey = invalidate.unwrap_or(0);
    (request.sg_list, request.num_sge) = (piece, 1);
    request
}
