//! Why a connection of a server ended, and what follows from that: what its peer is told, and what is counted.

use std::io;
use std::time::Duration;

use forebay_identity::{Identity, Unproved};
use forebay_transport::connection::Refusal;
use forebay_transport::wire::WireError;
use forebay_types::{Failure, FailureKind};

use crate::closings::CloseReason;
use crate::options::ServerOptions;

/// How long a connection that the server ends may take for what it has sent already, if that must not change before it
/// has arrived.
pub(crate) const PARTING: Duration = Duration::from_secs(1);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The peer closed it between messages.
    #[error("the peer closed it")]
    Closed,
    /// The server closes.
    #[error("the server is closing")]
    Stopped,
    /// The peer took too long for its hello or for the rest of a message.
    #[error("it sent no complete {what} within {waited:?}")]
    Late {
        /// What was missing.
        what: &'static str,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A large body came too slowly.
    #[error("it sent no complete upload within {0:?}")]
    SlowUpload(Duration),
    /// The peer took next to nothing of what there was for it.
    #[error("it took next to none of its replies for {0:?}")]
    Stalled(Duration),
    /// The peer closed it within a message.
    #[error("it closed the connection in the middle of a {0}")]
    Truncated(&'static str),
    /// The peer does not keep to the protocol.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The server has all the connections that it may have.
    #[error(
        "this server has its {0} connections; raise its `worker.max_connections` or lower the clients' \
         `client.connections_per_worker`"
    )]
    Full(usize),
    /// The peer's host has all the connections that one may have.
    #[error(
        "this server has {0} connections from your address; raise its `worker.max_connections_per_client` or lower the \
         clients' `client.connections_per_worker`"
    )]
    ClientFull(usize),
    /// It had not greeted when its place was needed, or not in time for it.
    #[error("too many connections had not said hello")]
    Crowded,
    /// It was idle, or its certificate has expired, and was told to go.
    #[error("it makes way; it has read no request that it did not answer")]
    MadeWay,
    /// It was told to go, and did not come to an end of what it was at.
    #[error("it was to make way, and what it had asked for took longer than {0:?}")]
    Unfinished(Duration),
    /// It did not prove who it is.
    #[error("{0}")]
    Unproved(#[from] Unproved),
    /// It may not ask for what it began to send the body of.
    #[error("{}", .0.message())]
    Forbidden(Failure),
    /// It was admitted, and may not be here any more.
    #[error("`{0}` is denied; take it out of the worker's `security.denied_file` if it may come back")]
    Denied(Box<Identity>),
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full(limit) => Self::Full(limit),
            Refusal::Client(limit) => Self::ClientFull(limit),
            Refusal::MadeWay => Self::Crowded,
        }
    }
}

impl End {
    /// What it is counted as, if an operator should know. Who was told to go was counted then.
    pub(crate) fn reason(&self) -> Option<CloseReason> {
        match self {
            Self::Late { what: "hello", .. } => Some(CloseReason::LateHello),
            Self::Late { .. } => Some(CloseReason::LateRequest),
            Self::SlowUpload(_) => Some(CloseReason::SlowUpload),
            Self::Stalled(_) => Some(CloseReason::RepliesNotTaken),
            Self::Truncated(_) | Self::Wire(_) => Some(CloseReason::Protocol),
            Self::Full(_) => Some(CloseReason::Limit),
            Self::ClientFull(_) => Some(CloseReason::ClientLimit),
            Self::Unproved(_) => Some(CloseReason::Unproved),
            Self::Denied(_) | Self::Forbidden(_) => Some(CloseReason::Denied),
            Self::Closed | Self::Stopped | Self::Crowded | Self::MadeWay | Self::Unfinished(_) | Self::Io(_) => None,
        }
    }

    /// What the peer is told, when it can still be told anything.
    pub(crate) fn goodbye(&self) -> Option<Failure> {
        let kind = match self {
            // A slow upload is no fault of the other calls on its connection, which are made again elsewhere.
            Self::Stopped | Self::SlowUpload(_) | Self::Unfinished(_) => FailureKind::Unavailable,
            Self::Full(_) | Self::ClientFull(_) => FailureKind::OutOfResources,
            Self::Wire(_) | Self::Late { .. } => FailureKind::InvalidArgument,
            Self::MadeWay => FailureKind::NotReady,
            Self::Denied(_) => FailureKind::PermissionDenied,
            // TLS has told it, in its own words. In ours it is not to be trusted with any.
            Self::Unproved(_) => return None,
            Self::Forbidden(why) => return Some(why.clone()),
            Self::Closed | Self::Stalled(_) | Self::Truncated(_) | Self::Crowded | Self::Io(_) => return None,
        };
        Some(Failure::new(kind, self.to_string()))
    }

    /// Whether the server would not have the peer, or not any more, for what it is or does. Who only breaks off, or is slow, is not
    /// turned away.
    pub(crate) fn turns_away(&self) -> bool {
        matches!(self, Self::Unproved(_) | Self::Denied(_) | Self::Wire(_) | Self::Full(_) | Self::ClientFull(_))
    }

    /// Whether the peer must hear what it was told last, whatever it still sends: that it may go on as if nothing had happened,
    /// or that it is refused, which is final.
    pub(crate) fn needs_hearing_out(&self) -> bool {
        matches!(self, Self::MadeWay | Self::Unproved(_) | Self::Denied(_) | Self::Forbidden(_))
    }

    /// Whether nothing more can reach the peer.
    pub(crate) fn is_abrupt(&self) -> bool {
        matches!(self, Self::Stalled(_))
    }

    /// How long the peer may take to acknowledge what was sent.
    pub(crate) fn patience(&self, options: &ServerOptions) -> Duration {
        match self {
            Self::Closed => options.stall_timeout,
            Self::Stalled(_) => Duration::ZERO,
            _ => PARTING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_makes_way_is_told_that_all_may_be_sent_again() {
        let ends = [
            End::Stopped,
            End::Late { what: "hello", waited: PARTING },
            End::SlowUpload(PARTING),
            End::Full(1),
            End::ClientFull(1),
            End::Unfinished(PARTING),
        ];
        for end in ends {
            assert!(end.goodbye().is_some_and(|why| why.kind() != FailureKind::NotReady) && !end.needs_hearing_out());
        }
        let goodbye = End::MadeWay.goodbye().map(|why| why.kind());
        assert!(goodbye == Some(FailureKind::NotReady) && End::MadeWay.needs_hearing_out());
    }
}
