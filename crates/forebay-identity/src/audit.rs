//! Who asked for what, and what became of it: an interface between what serves others and whoever keeps a record of that. The record
//! itself is no part of a transport, nor of an HTTP listener.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_types::{AuditEvents, FailureKind, Role, Subject};

use crate::name::Identity;

/// Keeps a record of what others ask for.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Takes `event` down. What serves connections calls it: it must not wait, and what it has no room for is lost.
    fn record(&self, event: &AuditEvent<'_>);
}

/// What a server has recorded, and where.
#[derive(Clone, Debug)]
pub struct Auditing {
    /// What is recorded of what is permitted.
    pub events: AuditEvents,
    /// Who records it.
    pub audit: Arc<dyn Audit>,
}

/// Something that somebody asked for, or that it connected.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// Who it proved to be. `None`: it had to prove nothing, or did not.
    pub identity: Option<&'a Identity>,
    /// The role of the token that it showed, if it showed one that is taken, and its certificate was not enough.
    pub token: Option<Role>,
    /// Where it came from.
    pub peer: AuditPeer,
    /// What it asked for: the name of a worker's operation, a method and a place of an HTTP interface, or one of the names below.
    pub operation: &'a str,
    /// What its request is about.
    pub subject: &'a Subject,
    /// What became of it.
    pub outcome: AuditOutcome<'a>,
}

impl AuditEvent<'_> {
    /// The operation of a peer that was admitted, or turned away: at once, or when it was denied, or did not keep to the protocol.
    pub const CONNECT: &'static str = "connect";
    /// The same of a process of this machine that wants to see a worker's memory.
    pub const SEE_MEMORY: &'static str = "see-memory";
}

/// Where somebody came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditPeer {
    /// Over a network.
    Address(SocketAddr),
    /// Over a Unix socket: which process connected, as the kernel knows it. `None`: it does not say, or the process has no number
    /// in our namespace.
    Process {
        /// The number of its user.
        user: Option<u32>,
        /// Its own number.
        process: Option<u32>,
    },
}

impl AuditPeer {
    /// A process of which nothing is known.
    pub const UNKNOWN: Self = Self::Process { user: None, process: None };
}

impl From<SocketAddr> for AuditPeer {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

impl fmt::Display for AuditPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: &Option<u32>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Process { user, process } => write!(f, "uid={},pid={}", number(user), number(process)),
        }
    }
}

/// What became of what somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditOutcome<'a> {
    /// It was permitted, and done.
    Allowed,
    /// It was not permitted, for this reason.
    Refused(&'a str),
    /// It was permitted, and could not be done.
    Failed(FailureKind),
    /// It was permitted and begun, and the connection ended before the answer: it may have been done.
    Unanswered,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_an_address_or_a_process() {
        let address = AuditPeer::from(SocketAddr::from(([10, 0, 0, 7], 4711)));
        assert_eq!(address.to_string(), "10.0.0.7:4711");
        let process = |process| AuditPeer::Process { user: Some(1000), process };
        assert_eq!(process(Some(42)).to_string(), "uid=1000,pid=42");
        assert_eq!(process(None).to_string(), "uid=1000,pid=?");
        assert_eq!(AuditPeer::UNKNOWN.to_string(), "uid=?,pid=?");
    }
}
