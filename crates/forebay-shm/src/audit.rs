//! What a session tells whoever keeps a record ([`forebay_identity::Audit`]): which process wants to see the memory, who it proved
//! to be, and whether it does. What it reads then is in no record, as over TCP. Nothing else is asked for over a session:
//! whatever is, is refused, and recorded.

use std::fmt::Display;

use forebay_identity::{AuditEvent, AuditOutcome, AuditPeer, Auditing, Identity};
use forebay_transport::{Request, subject_of};
use forebay_types::{Failure, Subject};

use crate::sessions::End;
use crate::socket::Socket;

/// One session, as it is recorded.
#[derive(Debug)]
pub(crate) struct SessionAudit {
    auditing: Auditing,
    peer: AuditPeer,
    /// What its client proved to be. `None`: it had to prove nothing, or did not yet.
    identity: Option<Identity>,
}

impl SessionAudit {
    /// Of the client at the other end of `socket`, of which is known only what the kernel says.
    pub(crate) fn new(auditing: &Auditing, socket: &Socket) -> Self {
        let peer = socket.peer().map_or(AuditPeer::UNKNOWN, |peer| {
            // A process of another namespace has the number 0 in ours.
            let process = u32::try_from(peer.pid).ok().filter(|process| *process > 0);
            AuditPeer::Process { user: Some(peer.uid), process }
        });
        Self { auditing: auditing.clone(), peer, identity: None }
    }

    /// Its client has proved who it is; whether that may see the memory is another question.
    pub(crate) fn proved(&mut self, identity: &Identity) {
        self.identity = Some(identity.clone());
    }

    /// Its client sees the memory.
    pub(crate) fn admitted(&self) {
        self.record(AuditEvent::SEE_MEMORY, &Subject::default(), AuditOutcome::Allowed);
    }

    /// Its client is not taken in.
    pub(crate) fn refused(&self, why: &dyn Display) {
        self.record(AuditEvent::SEE_MEMORY, &Subject::default(), AuditOutcome::Refused(&why.to_string()));
    }

    /// Its client sees the memory, and may not ask for `request` here.
    pub(crate) fn refused_request(&self, request: &Request, why: &Failure) {
        self.record(request.op.name(), &subject_of(request), AuditOutcome::Refused(why.message()));
    }

    /// The session ended: recorded if its client was turned away.
    pub(crate) fn ended(&self, end: &End) {
        if end.turns_away() {
            self.refused(end);
        }
    }

    fn record(&self, operation: &'static str, subject: &Subject, outcome: AuditOutcome<'_>) {
        let (identity, peer) = (self.identity.as_ref(), self.peer);
        self.auditing.audit.record(&AuditEvent { identity, token: None, peer, operation, subject, outcome });
    }
}
