//! What a listener tells whoever keeps a record ([`forebay_identity::Audit`]): who asked for what, and what became of it.
//!
//! A request is known by its method and its place as the router has it, never by what it was spelled as: whatever somebody wrote
//! into a URL, its query or a header by mistake, as a token, is in no record. What it is about, its handler says ([`About`]), once
//! that makes sense. What is refused is refused unread: it is about what its URL names, and whose interface it is says what is a
//! name there ([`crate::access::Naming`]).

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use forebay_identity::{AuditEvent, AuditOutcome, AuditPeer, Auditing};
use forebay_locks::Mutex;
use forebay_types::{AuditEvents, FailureKind, Permission, Role, Subject};
use tokio::net::UnixStream;

use crate::access::{Access, Caller};

/// What a request turns out to be about. Handlers take it as they take what a request carries, and note what they know to be so.
#[derive(Clone, Debug, Default)]
pub struct About(Option<Arc<Mutex<Subject>>>);

impl About {
    /// Whether anybody is going to hear of it.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Adds to what is known, if anybody is going to hear of it.
    pub fn note(&self, note: impl FnOnce(&mut Subject)) {
        if let Some(subject) = &self.0 {
            note(&mut subject.lock());
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for About {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// One request, as it is recorded.
#[derive(Debug)]
pub(crate) struct RequestAudit {
    auditing: Auditing,
    peer: AuditPeer,
    caller: Caller,
    /// The role of the token that it shows, if that is one of ours and was needed.
    token: Option<Role>,
    operation: String,
}

/// A request that is recorded once it is answered, or once nobody is going to answer it: whoever leaves in the middle of a change
/// is recorded, too.
#[derive(Debug)]
pub(crate) struct Pending {
    audit: RequestAudit,
    subject: Arc<Mutex<Subject>>,
    is_answered: bool,
}

impl RequestAudit {
    pub(crate) fn of(auditing: &Auditing, request: &Request, token: Option<Role>) -> Self {
        let extensions = request.extensions();
        Self {
            auditing: auditing.clone(),
            peer: extensions.get().copied().unwrap_or(AuditPeer::UNKNOWN),
            caller: extensions.get().cloned().unwrap_or(Caller(None)),
            token,
            operation: operation(request.method(), extensions.get().map(MatchedPath::as_str)),
        }
    }

    /// It is not answered, for this reason. It was not read, and is about `subject` for all that is known.
    pub(crate) fn refused(&self, subject: &Subject, why: &dyn Display) {
        self.record(subject, AuditOutcome::Refused(&why.to_string()));
    }

    /// It is permitted. `None`: such ones are not recorded.
    pub(crate) fn begin(self, method: &Method, permission: Option<Permission>) -> Option<Pending> {
        is_recorded(self.auditing.events, method, permission).then(|| Pending {
            audit: self,
            subject: Arc::default(),
            is_answered: false,
        })
    }

    fn record(&self, subject: &Subject, outcome: AuditOutcome<'_>) {
        let identity = self.caller.0.as_deref().map(|peer| &peer.identity);
        let (token, peer, operation) = (self.token, self.peer, self.operation.as_str());
        self.auditing.audit.record(&AuditEvent { identity, token, peer, operation, subject, outcome });
    }
}

impl Pending {
    /// Where its handler says what it is about.
    pub(crate) fn about(&self) -> About {
        About(Some(Arc::clone(&self.subject)))
    }

    fn record(&self, outcome: AuditOutcome<'_>) {
        self.audit.record(&self.subject.lock(), outcome);
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_answered {
            self.record(AuditOutcome::Unanswered);
        }
    }
}

/// Records that it is answered with `status`, if it is recorded.
pub(crate) fn answered(pending: Option<Pending>, status: StatusCode) {
    if let Some(mut pending) = pending {
        pending.is_answered = true;
        pending.record(outcome(status));
    }
}

/// The process at the other end of a Unix socket.
pub(crate) fn process_of(stream: &UnixStream) -> AuditPeer {
    let Ok(peer) = stream.peer_cred() else { return AuditPeer::UNKNOWN };
    // A process of another namespace has the number 0 in ours.
    let process = peer.pid().and_then(|process| u32::try_from(process).ok()).filter(|process| *process > 0);
    AuditPeer::Process { user: Some(peer.uid()), process }
}

/// Records that somebody comes no further than its connection, if that is recorded.
pub(crate) fn turned_away(access: &Access, peer: Option<AuditPeer>, why: &str) {
    if let Some(auditing) = access.audit() {
        auditing.audit.record(&AuditEvent {
            identity: None,
            token: None,
            peer: peer.unwrap_or(AuditPeer::UNKNOWN),
            operation: AuditEvent::CONNECT,
            subject: &Subject::default(),
            outcome: AuditOutcome::Refused(why),
        });
    }
}

/// Whether what is permitted is recorded. Counters are read all the time, and name nothing.
fn is_recorded(events: AuditEvents, method: &Method, permission: Option<Permission>) -> bool {
    let is_of_counters = matches!(permission, None | Some(Permission::Observe));
    !method.is_safe() || (events == AuditEvents::All && !is_of_counters)
}

/// What is asked for: `POST /api/v1/mounts`. Without a place: there is none of this kind.
fn operation(method: &Method, place: Option<&str>) -> String {
    // A method is whatever somebody sent.
    let method = match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS") => known,
        _ => "another method",
    };
    place.map_or_else(|| method.to_owned(), |place| format!("{method} {place}"))
}

/// What an answer with `status` says of what was permitted.
fn outcome(status: StatusCode) -> AuditOutcome<'static> {
    AuditOutcome::Failed(match status {
        StatusCode::NOT_FOUND => FailureKind::NotFound,
        StatusCode::CONFLICT => FailureKind::Exists,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => FailureKind::PermissionDenied,
        StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => FailureKind::TimedOut,
        StatusCode::PAYLOAD_TOO_LARGE => FailureKind::TooLarge,
        StatusCode::TOO_MANY_REQUESTS => FailureKind::OutOfResources,
        StatusCode::METHOD_NOT_ALLOWED => FailureKind::Unsupported,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => FailureKind::Unavailable,
        status if status.is_client_error() => FailureKind::InvalidArgument,
        status if status.is_server_error() => FailureKind::Internal,
        _ => return AuditOutcome::Allowed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_recorded_and_reads_if_that_is_wanted_and_counters_never() {
        use Permission::{Administer, Manage, Observe};
        let recorded = |events| {
            let asked = [
                (Method::POST, Some(Manage)),
                (Method::DELETE, Some(Administer)),
                (Method::GET, Some(Manage)),
                (Method::HEAD, Some(Manage)),
                (Method::GET, Some(Observe)),
                (Method::GET, None),
            ];
            asked.map(|(method, permission)| is_recorded(events, &method, permission))
        };
        assert_eq!(recorded(AuditEvents::Changes), [true, true, false, false, false, false]);
        assert_eq!(recorded(AuditEvents::All), [true, true, true, true, false, false]);
    }

    #[test]
    fn an_operation_is_what_the_router_knows_and_nothing_that_was_sent() {
        assert_eq!(operation(&Method::POST, Some("/api/v1/jobs/{id}/stop")), "POST /api/v1/jobs/{id}/stop");
        assert_eq!(operation(&Method::GET, None), "GET");
        let sent = Method::from_bytes(b"SECRET").unwrap();
        assert_eq!(operation(&sent, Some("/api/v1/jobs")), "another method /api/v1/jobs");
    }

    #[test]
    fn an_answer_says_what_became_of_it() {
        let of = |status: u16| outcome(StatusCode::from_u16(status).unwrap());
        for status in [200, 201, 204] {
            assert_eq!(of(status), AuditOutcome::Allowed, "{status}");
        }
        for (status, kind) in [
            (400, FailureKind::InvalidArgument),
            (404, FailureKind::NotFound),
            (409, FailureKind::Exists),
            (415, FailureKind::InvalidArgument),
            (500, FailureKind::Internal),
            (503, FailureKind::Unavailable),
            (504, FailureKind::TimedOut),
        ] {
            assert_eq!(of(status), AuditOutcome::Failed(kind), "{status}");
        }
    }

    #[test]
    fn what_nobody_records_is_noted_nowhere() {
        let about = About::default();
        about.note(|_| panic!("nobody hears of it"));
        assert!(!about.is_recorded());
    }
}
