//! One request, as it is counted and recorded: who asked for what, as far as that is known.

use std::sync::Arc;

use forebay_identity::{AuditEvent, AuditOutcome, AuditPeer, Auditing, Identity};
use forebay_locks::Mutex;
use forebay_types::{AuditEvents, FailureKind, FsPath, Permission, Subject};

/// What an operation is called in the audit log, before its name.
const PREFIX: &str = "s3:";

/// What becomes known of a request while it is answered. Clones are of the same request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    known: Arc<Mutex<Known>>,
    auditing: Option<Auditing>,
    peer: AuditPeer,
}

impl Default for Asked {
    fn default() -> Self {
        Self::new(None, AuditPeer::UNKNOWN)
    }
}

#[derive(Clone, Debug, Default)]
struct Known {
    operation: Option<String>,
    identity: Option<Identity>,
    wish: Option<Permission>,
    subject: Subject,
    refused: Option<String>,
    /// A list in the body is being read, and the operation is not called yet.
    is_list_awaited: bool,
    broke: Option<Unread>,
}

/// Why a list in a body is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Its client sent nothing of it for too long.
    Late,
    /// Its client broke off.
    BrokenOff,
    /// It came, and is not what was signed.
    NotAsSigned,
}

impl Asked {
    /// A request from `peer`, of which nothing is known yet.
    pub(crate) fn new(auditing: Option<Auditing>, peer: AuditPeer) -> Self {
        Self { known: Arc::default(), auditing, peer }
    }

    /// One of several things that it asks for, which is recorded on its own.
    pub(crate) fn part(&self) -> Self {
        let Known { operation, identity, .. } = self.known.lock().clone();
        let known = Known { operation, identity, ..Known::default() };
        Self { known: Arc::new(Mutex::new(known)), auditing: self.auditing.clone(), peer: self.peer }
    }

    /// It asks for this operation.
    pub(crate) fn operation(&self, name: &str) {
        self.known.lock().operation = Some(name.to_owned());
    }

    /// The name of the operation, when that is known.
    pub(crate) fn name(&self) -> Option<String> {
        self.known.lock().operation.clone()
    }

    /// It is signed by this client.
    pub(crate) fn signed_by(&self, identity: &Identity) {
        self.known.lock().identity = Some(identity.clone());
    }

    /// Whether its signature was good.
    pub(crate) fn is_signed(&self) -> bool {
        self.known.lock().identity.is_some()
    }

    /// The library reads a list in the body, before it calls the operation.
    pub(crate) fn awaits_list(&self) {
        self.known.lock().is_list_awaited = true;
    }

    /// The operation was called, with the list in the body if there is one.
    pub(crate) fn is_called(&self) {
        self.known.lock().is_list_awaited = false;
    }

    /// The body ends early; `why` as far as it is known by whoever receives it.
    pub(crate) fn broke(&self, why: Unread) {
        self.known.lock().broke = Some(why);
    }

    /// Why the list is not read, of a request that failed while that was awaited.
    pub(crate) fn unread(&self) -> Option<Unread> {
        let known = self.known.lock();
        known.is_list_awaited.then(|| known.broke.unwrap_or(Unread::NotAsSigned))
    }

    /// It is about `path`, and wants this of it. Of a copy, what is read is told first.
    pub(crate) fn about(&self, path: &FsPath, wish: Permission) {
        let mut known = self.known.lock();
        if known.wish == Some(Permission::Read) && wish == Permission::Write {
            known.subject.from = known.subject.path.take();
        }
        known.wish = Some(wish);
        known.subject.path = Subject::of_path(path.as_bytes()).path;
    }

    /// It may not have what it wants, for this reason.
    pub(crate) fn refused(&self, why: &str) {
        self.known.lock().refused = Some(why.to_owned());
    }

    /// Records that it was answered with `status`, or that nobody waited for its answer, if such requests are recorded.
    pub(crate) fn record(&self, status: Option<u16>) {
        let Some(Auditing { events, audit }) = &self.auditing else { return };
        let known = self.known.lock();
        let outcome = match (&known.refused, status) {
            (Some(why), _) => AuditOutcome::Refused(why),
            (None, Some(403)) => AuditOutcome::Refused("the request is not signed as it should be"),
            (None, Some(status)) => outcome(status),
            (None, None) => AuditOutcome::Unanswered,
        };
        let is_change = known.wish == Some(Permission::Write);
        if !(is_change || *events == AuditEvents::All || matches!(outcome, AuditOutcome::Refused(_))) {
            return;
        }
        let operation = format!("{PREFIX}{}", known.operation.as_deref().unwrap_or("request"));
        let (identity, subject, peer) = (known.identity.as_ref(), &known.subject, self.peer);
        audit.record(&AuditEvent { identity, token: None, peer, operation: &operation, subject, outcome });
    }
}

fn outcome(status: u16) -> AuditOutcome<'static> {
    AuditOutcome::Failed(match status {
        404 => FailureKind::NotFound,
        409 => FailureKind::Exists,
        412 => FailureKind::VersionChanged,
        501 => FailureKind::Unsupported,
        503 => FailureKind::Unavailable,
        400..=499 => FailureKind::InvalidArgument,
        500..=599 => FailureKind::Internal,
        _ => return AuditOutcome::Allowed,
    })
}

#[cfg(test)]
mod tests {
    use forebay_identity::{Audit, Scope};
    use forebay_types::Role;

    use super::*;

    #[derive(Debug, Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Audit for Kept {
        fn record(&self, event: &AuditEvent<'_>) {
            let who = event.identity.map_or("nobody", Identity::name);
            let path = event.subject.path.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            self.0.lock().push(format!("{who} {} {path} {:?}", event.operation, event.outcome));
        }
    }

    fn recorded(events: AuditEvents, status: u16, wish: Option<Permission>, refused: Option<&str>) -> Vec<String> {
        let kept = Arc::new(Kept::default());
        let auditing = Auditing { events, audit: Arc::clone(&kept) as Arc<dyn Audit> };
        let asked = Asked::new(Some(auditing), AuditPeer::UNKNOWN);
        if let Some(wish) = wish {
            asked.operation("AnObject");
            asked.signed_by(&Scope::new("forebay", "prod").unwrap().identity(Role::Writer, "a").unwrap());
            asked.about(&FsPath::new("/b/k").unwrap(), wish);
        }
        refused.iter().for_each(|why| asked.refused(why));
        asked.record(Some(status));
        kept.0.lock().clone()
    }

    #[test]
    fn changes_and_refusals_are_recorded_and_reads_if_that_is_wanted() {
        use AuditEvents::{All, Changes};
        let (read, write) = (Some(Permission::Read), Some(Permission::Write));
        assert_eq!(recorded(Changes, 200, read, None), Vec::<String>::new());
        assert_eq!(recorded(All, 206, read, None), ["a s3:AnObject /b/k Allowed"]);
        assert_eq!(recorded(Changes, 204, write, None), ["a s3:AnObject /b/k Allowed"]);
        assert_eq!(recorded(Changes, 503, write, None), ["a s3:AnObject /b/k Failed(Unavailable)"]);
        assert_eq!(recorded(Changes, 403, read, Some("no")), ["a s3:AnObject /b/k Refused(\"no\")"]);
        let nobody = recorded(Changes, 403, None, None);
        assert!(nobody.len() == 1 && nobody[0].starts_with("nobody s3:request  Refused"), "{nobody:?}");
        assert_eq!(recorded(All, 400, None, None), ["nobody s3:request  Failed(InvalidArgument)"]);
    }

    #[test]
    fn what_is_asked_for_together_is_recorded_one_by_one() {
        let kept = Arc::new(Kept::default());
        let auditing = Auditing { events: AuditEvents::Changes, audit: Arc::clone(&kept) as Arc<dyn Audit> };
        let asked = Asked::new(Some(auditing), AuditPeer::UNKNOWN);
        asked.operation("DeleteObjects");
        for (path, status) in [("/b/1", 204), ("/b/2", 403)] {
            let part = asked.part();
            part.about(&FsPath::new(path).unwrap(), Permission::Write);
            part.record(Some(status));
        }
        asked.record(Some(200));
        let lines = kept.0.lock().clone();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("s3:DeleteObjects /b/1 Allowed") && lines[1].contains("/b/2 Refused"), "{lines:?}");
    }

    #[test]
    fn a_change_whose_client_leaves_is_recorded_too() {
        let kept = Arc::new(Kept::default());
        let auditing = Auditing { events: AuditEvents::Changes, audit: Arc::clone(&kept) as Arc<dyn Audit> };
        let asked = Asked::new(Some(auditing), AuditPeer::UNKNOWN);
        asked.operation("PutObject");
        asked.about(&FsPath::new("/b/k").unwrap(), Permission::Write);
        asked.record(None);
        assert_eq!(*kept.0.lock(), ["nobody s3:PutObject /b/k Unanswered"]);
    }

    #[test]
    fn of_a_copy_both_ends_are_known() {
        let asked = Asked::default();
        asked.about(&FsPath::new("/b/from").unwrap(), Permission::Read);
        asked.about(&FsPath::new("/b/to").unwrap(), Permission::Write);
        let known = asked.known.lock();
        assert_eq!(known.subject.from.as_deref(), Some(&b"/b/from"[..]));
        assert_eq!(known.subject.path.as_deref(), Some(&b"/b/to"[..]));
    }
}
