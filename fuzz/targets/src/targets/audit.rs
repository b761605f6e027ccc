//! Lines of the audit log, of whatever a peer asks for.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use forebay_identity::{AuditEvent, AuditOutcome, AuditPeer, Scope};
use forebay_node::fuzzing::audit_line;
use forebay_types::{FailureKind, FileId, MAX_SUBJECT_FILES, Role, Subject};
use serde_json::Value;

use crate::input::{Input, Output};
use crate::targets::Seed;

pub(super) mod audit_lines {
    use super::*;

    const OPERATIONS: [&str; 4] = ["change", "upload", AuditEvent::CONNECT, "POST /api/v1/mounts"];

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let kind = input.u8();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let scope = Scope::new("forebay", "prod").expect("both are names");
        let identity = scope.identity(Role::Writer, "team-a").expect("it is a name");
        let path = input.piece();
        let from = (flags & 2 != 0).then(|| input.piece().to_vec());
        let file = (flags & 8 != 0).then(|| FileId(input.array()));
        let file_count = usize::from(input.u8());
        let subject = Subject {
            change: (flags & 1 != 0).then_some("copy"),
            from,
            path: (flags & 4 != 0).then(|| path.to_vec()),
            files: file.map_or_else(Vec::new, |file| vec![file; file_count.min(MAX_SUBJECT_FILES)]),
            file_count,
            origin: (flags & 16 != 0).then(|| text(input.piece())),
            job: (flags & 32 != 0).then(|| text(input.piece())),
            worker: (flags & 64 != 0).then(|| text(input.piece())),
        };
        let why = text(input.rest());
        let outcome = match kind & 3 {
            0 => AuditOutcome::Allowed,
            1 => AuditOutcome::Refused(&why),
            2 => AuditOutcome::Failed(FailureKind::NotFound),
            _ => AuditOutcome::Unanswered,
        };
        let event = AuditEvent {
            identity: (kind & 4 != 0).then_some(&identity),
            token: (kind & 8 != 0).then_some(Role::Admin),
            peer: if kind & 16 == 0 { AuditPeer::UNKNOWN } else { SocketAddr::from(([10, 0, 0, 7], 4711)).into() },
            operation: OPERATIONS[usize::from(kind >> 5) % OPERATIONS.len()],
            subject: &subject,
            outcome,
        };
        is_told(&event, &audit_line(&event, SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)));
    }

    /// It is one line, and says what happened and nothing else.
    fn is_told(event: &AuditEvent<'_>, line: &[u8]) {
        let (end, json) = line.split_last().expect("there is a line");
        assert!(*end == b'\n' && !json.iter().any(|byte| byte.is_ascii_control() && *byte != 127), "it is one line");
        let told: Value = serde_json::from_slice(json).expect("it is JSON");
        let said = |name: &str| told.get(name).and_then(Value::as_str);
        assert_eq!(said("operation"), Some(event.operation));
        assert_eq!(said("identity").is_some(), event.identity.is_some());
        assert_eq!(
            said("outcome"),
            Some(match event.outcome {
                AuditOutcome::Allowed => "allowed",
                AuditOutcome::Refused(_) => "refused",
                AuditOutcome::Failed(_) | AuditOutcome::Unanswered => "failed",
            })
        );
        let subject = event.subject;
        assert_eq!(bytes_of(&told, "path"), subject.path);
        assert_eq!(bytes_of(&told, "from"), subject.from);
        let files: Vec<_> = subject.files.iter().map(|file| Value::from(file.to_string())).collect();
        assert!(told.get("files").and_then(Value::as_array).into_iter().flatten().eq(&files));
        let counted = (subject.file_count > files.len()).then_some(subject.file_count);
        assert_eq!(told.get("file_count").and_then(Value::as_u64), counted.map(|count| count as u64));
        let texts = [("origin", &subject.origin), ("job", &subject.job), ("worker", &subject.worker)];
        assert!(texts.iter().all(|(name, text)| said(name) == text.as_deref()));
        if let AuditOutcome::Refused(why) = event.outcome {
            assert!(said("why").is_some_and(|told| why.starts_with(told)), "the reason, or how it begins");
        }
    }

    /// A path, as whoever reads the log has it: no two paths are told as one.
    fn bytes_of(told: &Value, name: &str) -> Option<Vec<u8>> {
        let text = told.get(name)?.as_str().expect("a path is text");
        let Some(hex) = told.get(format!("{name}_hex")) else { return Some(text.into()) };
        let hex = hex.as_str().expect("it is text, too");
        let digits = hex.as_bytes().chunks(2).map(|pair| str::from_utf8(pair).ok());
        digits.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect()
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let seed = |flags: u8, kind: u8, path: &[u8]| Output::default().u8(flags).u8(kind).piece(path);
        vec![
            ("change", seed(1 | 4, 4 | 16, b"/s3/a b").u8(0).done()),
            ("copy", seed(1 | 2 | 4, 4, b"/s3/\xff\n").piece(b"/s3/\"}\n{").u8(0).done()),
            ("free", seed(8, 2 | 4, b"").bytes([0xab; 16]).u8(3).done()),
            ("mount", seed(4 | 16, 8 | 96, b"/s3").u8(0).piece("s3://bucket").done()),
            ("refused", seed(0, 1 | 64, b"").u8(0).bytes("it shows\nno certificate \u{1b}[2J").done()),
            ("job", seed(32 | 64, 3 | 96, b"").u8(0).piece("load-1").piece("w1").done()),
        ]
    }
}
