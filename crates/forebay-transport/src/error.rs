//! Why a call failed: the service said so, or the link did not deliver its answer.

use std::time::Duration;

use forebay_types::{Failure, FailureKind};

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
