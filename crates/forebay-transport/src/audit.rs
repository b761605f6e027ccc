//! What a server's connection tells whoever keeps a record ([`forebay_identity::Audit`]): who is at its other end, what that asked
//! for, and what became of it. Whatever the transport, the same is recorded of a request.

use std::fmt::Display;
use std::sync::Arc;

use forebay_identity::{AuditEvent, AuditOutcome, AuditPeer, Auditing, Identity};
use forebay_types::{AuditEvents, Failure, Subject};

use crate::op::Op;
use crate::reply::Response;
use crate::request::Request;
use crate::subject::subject_of;

/// One connection, as it is recorded.
#[derive(Debug)]
pub struct ConnectionAudit {
    auditing: Auditing,
    peer: AuditPeer,
    /// What its peer proved to be. `None`: it had to prove nothing, or did not.
    identity: Option<Identity>,
}

/// A request that is recorded once it is answered, or once nobody is going to answer it: a peer that leaves in the middle of a
/// change is recorded, too.
#[derive(Debug)]
pub struct PendingRecord {
    audit: Arc<ConnectionAudit>,
    op: Op,
    subject: Subject,
    is_answered: bool,
}

impl ConnectionAudit {
    /// Of a connection from `peer`, which proved to be `identity`.
    #[must_use]
    pub fn new(auditing: &Auditing, peer: AuditPeer, identity: Option<&Identity>) -> Arc<Self> {
        Arc::new(Self { auditing: auditing.clone(), peer, identity: identity.cloned() })
    }

    /// Its peer may talk.
    pub fn admitted(&self) {
        self.record(AuditEvent::CONNECT, &Subject::default(), AuditOutcome::Allowed);
    }

    /// Its peer may not talk, or not any more.
    pub fn turned_away(&self, why: &dyn Display) {
        self.record(AuditEvent::CONNECT, &Subject::default(), AuditOutcome::Refused(&why.to_string()));
    }

    /// Its peer may not ask for `op`.
    pub fn refused(&self, op: Op, subject: &Subject, why: &Failure) {
        self.record(op.name(), subject, AuditOutcome::Refused(why.message()));
    }

    /// Whether such requests are recorded where they are permitted.
    #[must_use]
    pub fn records(&self, op: Op) -> bool {
        is_recorded(self.auditing.events, op)
    }

    /// `request` is permitted. `None`: such ones are not recorded, and it cost a comparison to know.
    #[must_use]
    pub fn begin(self: &Arc<Self>, request: &Request) -> Option<Box<PendingRecord>> {
        is_recorded(self.auditing.events, request.op).then(|| {
            let (audit, subject) = (Arc::clone(self), subject_of(request));
            Box::new(PendingRecord { audit, op: request.op, subject, is_answered: false })
        })
    }

    fn record(&self, operation: &'static str, subject: &Subject, outcome: AuditOutcome<'_>) {
        let (identity, peer) = (self.identity.as_ref(), self.peer);
        self.auditing.audit.record(&AuditEvent { identity, token: None, peer, operation, subject, outcome });
    }
}

impl PendingRecord {
    /// Records `answer`, if its request is recorded.
    pub fn answered(pending: Option<Box<Self>>, answer: &Result<Response, Failure>) {
        if let Some(mut pending) = pending {
            pending.is_answered = true;
            pending.record(match answer {
                Ok(_) => AuditOutcome::Allowed,
                Err(failure) => AuditOutcome::Failed(failure.kind()),
            });
        }
    }

    fn record(&self, outcome: AuditOutcome<'_>) {
        self.audit.record(self.op.name(), &self.subject, outcome);
    }
}

impl Drop for PendingRecord {
    fn drop(&mut self) {
        if !self.is_answered {
            self.record(AuditOutcome::Unanswered);
        }
    }
}

/// Whether `op` is recorded where it is permitted. Where it is refused, it always is.
fn is_recorded(events: AuditEvents, op: Op) -> bool {
    match op {
        Op::Change | Op::Upload | Op::Free | Op::Refresh | Op::Admit => true,
        Op::Stat | Op::StatRead | Op::List => events == AuditEvents::All,
        // Of single blocks, of which there are too many; and what names nothing.
        Op::Read | Op::Fill | Op::Coverage | Op::Adopt | Op::Part | Op::Ping | Op::Paths | Op::Stats => false,
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
