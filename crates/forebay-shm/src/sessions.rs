//! What the sessions of a server have in common, and why one ends.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use forebay_identity::{Identity, Peer, Unproved};
use forebay_locks::Mutex;
use forebay_memory::{FRAME_SIZE, Place, Pool, Spans};
use forebay_transport::wire::{Hello, WireError};
use forebay_transport::{Caller, Request, Service};
use forebay_types::{Failure, FailureKind};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::known::Known;
use crate::options::ServerOptions;
use crate::pins::{Bound, Frame, Frames, Mistaken};
use crate::wire::{self, MAX_PLACES, Malformed};

/// What the sessions of a server have in common.
pub(crate) struct SessionsShared {
    pub(crate) options: ServerOptions,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) hello: Hello,
    pub(crate) pool: Pool,
    pub(crate) stop: CancellationToken,
    /// How many there were, which is the number of the next.
    pub(crate) sessions: AtomicU64,
    pub(crate) line: Mutex<Line>,
    /// How many have not exchanged hellos yet.
    pub(crate) greeting: Arc<AtomicUsize>,
    pub(crate) known: Known,
}

impl SessionsShared {
    /// Tells sessions to end whose clients are denied, have to prove anew who they are, or are not on an access list that is new.
    pub(crate) fn look_over(&self, now: SystemTime) {
        if let Some(security) = &self.options.security {
            let sees_all = |peer: &Peer| self.service.shows_all(&caller_of(peer));
            self.known.look_over(|peer| security.standing(peer, now), sees_all);
        }
    }
}

/// A client that proved to be `peer`, as its requests say it.
pub(crate) fn caller_of(peer: &Peer) -> Caller {
    let identity = &peer.identity;
    Caller::proved(identity.role(), identity.name(), &identity.to_string())
}

/// Why `request` is not for its caller, or not for a session of this kind, if that is so.
pub(crate) fn refusal(request: &Request) -> Option<Failure> {
    let of_role = request.caller.role().and_then(|role| request.op.refusal(request.flags, role));
    of_role.or_else(|| {
        let message = || format!("a {} is not for a session of this kind, which serves reads", request.op.name());
        (!wire::is_served(request.op)).then(|| Failure::new(FailureKind::InvalidArgument, message()))
    })
}

/// Counts something for as long as it is there.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What all sessions show, and how to wake those that wait to.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) bound: Bound,
    wakers: HashMap<u64, Arc<Notify>>,
}

impl Line {
    pub(crate) fn new(limit: u64) -> Self {
        Self { bound: Bound::new(limit), wakers: HashMap::new() }
    }

    /// A session, and what wakes it.
    pub(crate) fn enter(&mut self, session: u64, waker: &Arc<Notify>) {
        self.wakers.insert(session, Arc::clone(waker));
    }

    /// It is no more.
    pub(crate) fn leave(&mut self, session: u64) {
        self.wakers.remove(&session);
    }

    /// Has the session look again whose turn it is.
    pub(crate) fn wake_next(&self) {
        if let Some(waker) = self.bound.next().and_then(|next| self.wakers.get(&next)) {
            waker.notify_one();
        }
    }
}

/// Why a session serves no more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The client closed it.
    #[error("the client closed it")]
    Closed,
    /// The server closes.
    #[error("the worker is closing")]
    Stopped,
    /// The client took too long for its hello.
    #[error("it sent no hello within {0:?}")]
    Late(Duration),
    /// The client does not keep to the protocol.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// Neither does this one.
    #[error("{0}")]
    Mistaken(#[from] Mistaken),
    /// Nor this one.
    #[error("it had more than the {0} requests under way that it may have")]
    TooMany(usize),
    /// The client proves nothing.
    #[error("clients prove to this worker who they are; set `security.mode` alike on both sides")]
    ProvesNothing,
    /// The client wants a proof.
    #[error("this worker takes no proofs; set `security.mode` alike on both sides")]
    TakesNoProof,
    /// The client did not prove who it is.
    #[error("{0}")]
    Unproved(#[from] Unproved),
    /// What is proved is proved by another process than the one that has the socket.
    #[error("another process than the one that proves who it is has this socket; see which one is between the two")]
    Relayed,
    /// The client's role may not read.
    #[error("{}", .0.message())]
    Forbidden(Failure),
    /// The client may read what is cached of some mounts only.
    #[error(
        "a mount has an access list that is not for this client, which reads over TCP: memory shows what is cached of all mounts"
    )]
    Confined,
    /// The client was admitted, and may not be here any more.
    #[error("`{0}` is denied; take it out of the worker's `security.denied_file` if it may come back")]
    Denied(Box<Identity>),
    /// The client has to come again, with a certificate that is valid.
    #[error("its certificate has expired")]
    Expired,
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<WireError> for End {
    fn from(error: WireError) -> Self {
        Self::Malformed(error.into())
    }
}

impl End {
    /// Whether an operator should know.
    pub(crate) fn is_remarkable(&self) -> bool {
        !matches!(self, Self::Closed | Self::Stopped | Self::Confined | Self::Expired)
    }

    /// Whether the worker would not have the client, or not any more, for what it is or does. Who only breaks off, or is slow, is not
    /// turned away.
    pub(crate) fn turns_away(&self) -> bool {
        match self {
            Self::Malformed(_)
            | Self::Mistaken(_)
            | Self::TooMany(_)
            | Self::ProvesNothing
            | Self::TakesNoProof
            | Self::Unproved(_)
            | Self::Relayed
            | Self::Forbidden(_)
            | Self::Confined
            | Self::Denied(_) => true,
            Self::Closed | Self::Stopped | Self::Late(_) | Self::Expired | Self::Io(_) => false,
        }
    }

    /// What the client is told.
    pub(crate) fn goodbye(&self) -> Vec<u8> {
        let kind = match self {
            Self::Closed | Self::Stopped | Self::Expired | Self::Io(_) => FailureKind::Unavailable,
            Self::Late(_) | Self::Malformed(_) | Self::Mistaken(_) | Self::TooMany(_) => FailureKind::InvalidArgument,
            Self::ProvesNothing
            | Self::TakesNoProof
            | Self::Relayed
            | Self::Forbidden(_)
            | Self::Confined
            | Self::Denied(_) => FailureKind::PermissionDenied,
            // TLS has told it, in its own words.
            Self::Unproved(_) => {
                let reason = "the worker does not believe who this client is; the worker's log says why";
                return wire::goodbye(FailureKind::PermissionDenied, &reason);
            }
        };
        wire::goodbye(kind, self)
    }
}

/// Where `spans` lie in `pool`, and in which frames; `None` when they do not, or in too many places.
pub(crate) fn places_of(spans: &Spans, pool: &Pool) -> Option<(SmallVec<[Place; 4]>, Frames)> {
    let (mut places, mut frames) = (SmallVec::<[Place; 4]>::new(), Frames::new());
    for span in spans.iter().filter(|span| !span.is_empty()) {
        let place = span.place()?;
        // If the span is of another pool, other bytes are at that place.
        let start = (pool.mapping().0.as_ptr() as usize).checked_add(usize::try_from(place.offset).ok()?)?;
        if start != span.as_ptr() as usize {
            return None;
        }
        // No extent lies in two frames.
        let size = FRAME_SIZE as u64;
        let frame = Frame { base: place.offset - place.offset % size, size };
        if !frames.contains(&frame) {
            frames.push(frame);
        }
        match places.last_mut() {
            Some(last) if last.offset + u64::from(last.length) == place.offset => last.length += place.length,
            _ => places.push(place),
        }
    }
    (places.len() <= MAX_PLACES).then_some((places, frames))
}
