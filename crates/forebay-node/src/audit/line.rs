//! An event as a line: one JSON object, whatever bytes a peer sent. Pure.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::SystemTime;

use forebay_identity::{AuditEvent, AuditOutcome};
use forebay_types::Role;
use serde::Serialize;

/// Longest reason, in characters: it may quote what a peer sent.
const MAX_WHY: usize = 1000;

/// The fields, in this order. What an event lacks is left out, but for its identity.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    identity: Option<String>,
    /// The role of a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'static str>,
    peer: String,
    operation: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Cow<'a, str>>,
    /// Of a path that is no UTF-8, which `path` shows with replacements: no two paths are told as one.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_hex: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
    /// How many there are, if `files` does not name all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    file_count: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a str>,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

/// What stands where events were lost.
#[derive(Serialize)]
struct Lost {
    time: String,
    operation: &'static str,
    events: u64,
}

/// The line of `event`, which happened at `now`.
pub(crate) fn of_event(event: &AuditEvent<'_>, now: SystemTime) -> Vec<u8> {
    let subject = event.subject;
    let (path, path_hex) = shown(subject.path.as_deref());
    let (from, from_hex) = shown(subject.from.as_deref());
    let (outcome, why, failure) = match event.outcome {
        AuditOutcome::Allowed => ("allowed", None, None),
        AuditOutcome::Refused(why) => ("refused", Some(why.chars().take(MAX_WHY).collect()), None),
        AuditOutcome::Failed(kind) => ("failed", None, Some(format!("{kind:?}"))),
        AuditOutcome::Unanswered => ("failed", None, Some("Unanswered".to_owned())),
    };
    line(&Line {
        time: time(now),
        identity: event.identity.map(ToString::to_string),
        token: event.token.map(Role::as_str),
        peer: event.peer.to_string(),
        operation: event.operation,
        change: subject.change,
        path,
        path_hex,
        from,
        from_hex,
        files: subject.files.iter().map(ToString::to_string).collect(),
        file_count: Some(subject.file_count).filter(|count| *count > subject.files.len()),
        origin: subject.origin.as_deref(),
        job: subject.job.as_deref(),
        worker: subject.worker.as_deref(),
        outcome,
        why,
        failure,
    })
}

/// The line that says that `events` have none.
pub(super) fn of_lost(events: u64, now: SystemTime) -> Vec<u8> {
    line(&Lost { time: time(now), operation: "lost", events })
}

fn line(fields: &impl Serialize) -> Vec<u8> {
    // It fails for maps with keys that are no strings and for writers that fail: there are none.
    let mut line = serde_json::to_vec(fields).unwrap_or_default();
    line.push(b'\n');
    line
}

fn time(now: SystemTime) -> String {
    humantime::format_rfc3339_millis(now).to_string()
}

/// A path as text, and byte by byte if that does not say it all.
fn shown(path: Option<&[u8]>) -> (Option<Cow<'_, str>>, Option<String>) {
    let Some(path) = path else { return (None, None) };
    let text = String::from_utf8_lossy(path);
    let hex = matches!(text, Cow::Owned(_)).then(|| hex(path));
    (Some(text), hex)
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_identity::{AuditPeer, Scope};
    use forebay_types::{FailureKind, FileId, MAX_SUBJECT_FILES, Subject};
    use serde_json::{Value, json};

    use super::*;

    const PEER: &str = "10.0.0.7:4711";

    fn peer() -> AuditPeer {
        AuditPeer::Address(PEER.parse().unwrap())
    }

    fn of(operation: &str, subject: &Subject, outcome: AuditOutcome<'_>) -> Value {
        let identity = Scope::new("example.org", "prod").unwrap().identity(Role::Reader, "team-a").unwrap();
        let event = AuditEvent { identity: Some(&identity), token: None, peer: peer(), operation, subject, outcome };
        let line = of_event(&event, SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123));
        let (end, json) = line.split_last().unwrap();
        assert!(*end == b'\n' && !json.contains(&b'\n'));
        serde_json::from_slice(json).unwrap()
    }

    #[test]
    fn a_line_says_who_did_what_to_which_path_and_what_came_of_it() {
        let (time, identity) = ("2023-11-14T22:13:20.123Z", "spiffe://example.org/forebay/prod/reader/team-a");
        let path = |path: &[u8]| Subject { path: Some(path.to_vec()), ..Subject::default() };
        let removed = Subject { change: Some("remove"), ..path(b"/a b") };
        let refused = of("change", &removed, AuditOutcome::Refused("a reader may not write"));
        let expected = json!({
            "time": time, "identity": identity, "peer": PEER, "operation": "change", "change": "remove", "path": "/a b",
            "outcome": "refused", "why": "a reader may not write",
        });
        assert_eq!(refused, expected);

        let freed = Subject::of_files([0xab, 0xcd].map(|byte| FileId([byte; 16])).into_iter());
        let failed = of("free", &freed, AuditOutcome::Failed(FailureKind::NotFound));
        let expected = json!({
            "time": time, "identity": identity, "peer": PEER, "operation": "free",
            "files": ["ab".repeat(16), "cd".repeat(16)], "outcome": "failed", "failure": "NotFound",
        });
        assert_eq!(failed, expected);
        assert_eq!(of("upload", &path(b"/a"), AuditOutcome::Unanswered)["failure"], "Unanswered");

        let (subject, outcome) = (Subject::default(), AuditOutcome::Allowed);
        let (peer, operation) = (peer(), AuditEvent::CONNECT);
        let event = AuditEvent { identity: None, token: None, peer, operation, subject: &subject, outcome };
        let line = String::from_utf8(of_event(&event, SystemTime::UNIX_EPOCH)).unwrap();
        assert!(line.contains(r#""identity":null"#) && !line.contains("path"), "{line}");
    }

    #[test]
    fn a_change_over_rest_is_told_with_the_role_of_the_token_and_the_origin() {
        let subject = Subject { origin: Some("s3://bucket".to_owned()), ..Subject::of_path(b"/s3") };
        let event = AuditEvent {
            identity: None,
            token: Some(Role::Admin),
            peer: AuditPeer::Process { user: Some(1000), process: Some(42) },
            operation: "POST /api/v1/mounts",
            subject: &subject,
            outcome: AuditOutcome::Allowed,
        };
        let line: Value = serde_json::from_slice(&of_event(&event, SystemTime::UNIX_EPOCH)).unwrap();
        let expected = json!({
            "time": "1970-01-01T00:00:00.000Z", "identity": null, "token": "admin", "peer": "uid=1000,pid=42",
            "operation": "POST /api/v1/mounts", "path": "/s3", "origin": "s3://bucket", "outcome": "allowed",
        });
        assert_eq!(line, expected);
        let subject = Subject { job: Some("j1".to_owned()), worker: Some("w1".to_owned()), ..Subject::default() };
        let line: Value = of("POST /api/v1/jobs/{id}/stop", &subject, AuditOutcome::Allowed);
        assert_eq!((&line["job"], &line["worker"], line.get("token")), (&json!("j1"), &json!("w1"), None));
    }

    /// What a peer writes into its paths makes no line of its own, and hides behind no other path.
    #[test]
    fn no_path_forges_a_line_or_passes_for_another() {
        let forged = Subject { path: Some(b"/a\"}\n{\"operation\":\"free\"".to_vec()), ..Subject::default() };
        let line = of("upload", &forged, AuditOutcome::Allowed);
        assert_eq!((&line["path"], &line["operation"]), (&json!("/a\"}\n{\"operation\":\"free\""), &json!("upload")));
        let odd = |byte: u8| Subject { path: Some(vec![b'/', byte]), from: Some(vec![byte]), ..Subject::default() };
        let [one, other] = [0xfe, 0xff].map(|byte| of("change", &odd(byte), AuditOutcome::Allowed));
        assert_eq!(one["path"], other["path"]);
        assert_eq!((&one["path_hex"], &other["path_hex"]), (&json!("2ffe"), &json!("2fff")));
        assert_eq!(one["from_hex"], "fe");
        let long = of("change", &odd(1), AuditOutcome::Refused(&"ä".repeat(2 * MAX_WHY)));
        assert_eq!(long["why"].as_str().unwrap().chars().count(), MAX_WHY);
    }

    #[test]
    fn of_many_files_a_line_names_some_and_says_how_many_there_are() {
        let freed = Subject::of_files((0..200).map(|number| FileId([number; 16])));
        let line = of("free", &freed, AuditOutcome::Allowed);
        let named = line["files"].as_array().unwrap();
        assert_eq!((named.len(), &line["file_count"]), (MAX_SUBJECT_FILES, &json!(200)));
        assert_eq!((&named[0], &named[15]), (&json!("00".repeat(16)), &json!("0f".repeat(16))));
    }

    #[test]
    fn what_is_lost_is_said() {
        let line = String::from_utf8(of_lost(7, SystemTime::UNIX_EPOCH)).unwrap();
        assert_eq!(line, "{\"time\":\"1970-01-01T00:00:00.000Z\",\"operation\":\"lost\",\"events\":7}\n");
    }
}
