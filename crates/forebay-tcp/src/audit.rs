//! Who asked a server for what: an interface for whoever keeps a record of it. The record itself is no part of a transport.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_identity::Identity;
use forebay_transport::{Op, Subject};
use forebay_types::{AuditEvents, FailureKind};

/// Keeps a record of what peers ask of a server.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Takes `event` down. The threads that serve connections call it: it must not wait, and what it has no room for is lost.
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

/// Something that a peer asked for, or that it connected.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// Who it proved to be. `None`: it had to prove nothing, or did not.
    pub identity: Option<&'a Identity>,
    /// Where it connected from.
    pub peer: SocketAddr,
    /// [`Op::name`], or [`AuditEvent::CONNECT`].
    pub operation: &'static str,
    /// What its request is about.
    pub subject: &'a Subject,
    /// What became of it.
    pub outcome: AuditOutcome<'a>,
}

impl AuditEvent<'_> {
    /// The operation of a peer that was admitted, or turned away: at once, or when it was denied, or did not keep to the protocol.
    pub const CONNECT: &'static str = "connect";
}

/// What became of what a peer asked for.
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

/// Whether `op` is recorded where it is permitted. Where it is refused, it always is.
pub(crate) fn is_recorded(events: AuditEvents, op: Op) -> bool {
    match op {
        Op::Change | Op::Upload | Op::Free | Op::Refresh | Op::Admit => true,
        Op::Stat | Op::StatRead | Op::List => events == AuditEvents::All,
        // Of single blocks, of which there are too many; and what names nothing.
        Op::Read | Op::Fill | Op::Coverage | Op::Adopt | Op::Ping | Op::Paths | Op::Stats => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_recorded_and_lookups_if_that_is_wanted_and_reads_of_blocks_never() {
        let recorded = |events| -> Vec<_> {
            (0..=u8::MAX).filter_map(Op::from_wire).filter(|op| is_recorded(events, *op)).map(Op::name).collect()
        };
        assert_eq!(recorded(AuditEvents::Changes), ["free", "change", "upload", "refresh", "admit"]);
        let all = ["stat", "list", "free", "change", "upload", "refresh", "stat-read", "admit"];
        assert_eq!(recorded(AuditEvents::All), all);
    }
}
