//! What a connection tells whoever keeps a record ([`crate::Audit`]): who is at its other end, what that asked for, and what
//! became of it.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_identity::Identity;
use forebay_transport::{Op, Request, Response, Subject};
use forebay_types::Failure;

use crate::audit::{AuditEvent, AuditOutcome, Auditing, is_recorded};
use crate::end::End;

/// One connection, as it is recorded.
#[derive(Debug)]
pub(crate) struct Witness {
    auditing: Auditing,
    peer: SocketAddr,
    /// What its peer proved to be. `None`: it had to prove nothing, or did not.
    identity: Option<Identity>,
}

/// A request that is recorded once it is answered, or once nobody is going to answer it: a peer that leaves in the middle of a
/// change is recorded, too.
#[derive(Debug)]
pub(crate) struct Pending {
    witness: Arc<Witness>,
    op: Op,
    subject: Subject,
    is_answered: bool,
}

impl Witness {
    pub(crate) fn new(auditing: &Auditing, peer: SocketAddr, identity: Option<&Identity>) -> Arc<Self> {
        Arc::new(Self { auditing: auditing.clone(), peer, identity: identity.cloned() })
    }

    /// Its peer may talk.
    pub(crate) fn admitted(&self) {
        self.record(AuditEvent::CONNECT, &Subject::default(), AuditOutcome::Allowed);
    }

    /// The connection ended: recorded if its peer was turned away.
    pub(crate) fn ended(&self, end: &End) {
        if end.turns_away() {
            self.record(AuditEvent::CONNECT, &Subject::default(), AuditOutcome::Refused(&end.to_string()));
        }
    }

    /// Its peer may not ask for `op`.
    pub(crate) fn refused(&self, op: Op, subject: &Subject, why: &Failure) {
        self.record(op.name(), subject, AuditOutcome::Refused(why.message()));
    }

    /// `request` is permitted. `None`: such ones are not recorded.
    pub(crate) fn begin(self: &Arc<Self>, request: &Request) -> Option<Box<Pending>> {
        is_recorded(self.auditing.events, request.op).then(|| {
            let (witness, subject) = (Arc::clone(self), Subject::of(request));
            Box::new(Pending { witness, op: request.op, subject, is_answered: false })
        })
    }

    fn record(&self, operation: &'static str, subject: &Subject, outcome: AuditOutcome<'_>) {
        let (identity, peer) = (self.identity.as_ref(), self.peer);
        self.auditing.audit.record(&AuditEvent { identity, peer, operation, subject, outcome });
    }
}

impl Pending {
    fn record(&self, outcome: AuditOutcome<'_>) {
        self.witness.record(self.op.name(), &self.subject, outcome);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_answered {
            self.record(AuditOutcome::Unanswered);
        }
    }
}

/// Records `answer`, if its request is recorded.
pub(crate) fn answered(pending: Option<Box<Pending>>, answer: &Result<Response, Failure>) {
    if let Some(mut pending) = pending {
        pending.is_answered = true;
        pending.record(match answer {
            Ok(_) => AuditOutcome::Allowed,
            Err(failure) => AuditOutcome::Failed(failure.kind()),
        });
    }
}
