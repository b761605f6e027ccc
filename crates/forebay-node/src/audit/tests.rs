use std::path::Path;

use forebay_identity::AuditPeer;
use forebay_types::{Role, Subject};
use serde_json::json;

use super::*;

fn event<'a>(subject: &'a Subject, outcome: AuditOutcome<'a>) -> AuditEvent<'a> {
    AuditEvent { identity: None, token: None, peer: AuditPeer::UNKNOWN, operation: "change", subject, outcome }
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn all_that_is_recorded_is_there_when_the_log_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let config = Config { security_audit_file: Some(path.clone()), ..Config::default() };
    let log = AuditLog::open(&config).unwrap().unwrap();
    let (auditing, lost) = (log.auditing(), log.lost_count());
    assert_eq!(auditing.events, AuditEvents::Changes);
    for _ in 0..1000 {
        auditing.audit.record(&event(&Subject::default(), AuditOutcome::Allowed));
    }
    log.close().await;
    assert_eq!((lines(&path).len(), lost()), (1000, 0));
    // Whoever records still is told by the count alone.
    auditing.audit.record(&event(&Subject::default(), AuditOutcome::Allowed));
    assert_eq!((lines(&path).len(), lost()), (1000, 1));
}

#[test]
fn a_log_that_cannot_be_opened_is_told_with_its_key() {
    let directory = tempfile::tempdir().unwrap();
    assert!(AuditLog::open(&Config::default()).unwrap().is_none());
    let path = directory.path().join("missing/audit");
    let config = Config { security_audit_file: Some(path), ..Config::default() };
    let Err(error) = AuditLog::open(&config) else { panic!("it was opened") };
    assert!(error.to_string().starts_with("security.audit.file: cannot open "), "{error}");
}

#[test]
fn what_has_no_room_is_counted_and_nobody_waits() {
    let (sender, queued) = mpsc::channel(2);
    let lost = Arc::new(AtomicU64::new(0));
    let recorder = Recorder { queue: sender.downgrade(), ration: Mutex::default(), lost: Arc::clone(&lost) };
    let subject = Subject::default();
    for _ in 0..5 {
        recorder.record(&event(&subject, AuditOutcome::Allowed));
    }
    assert_eq!((queued.len(), lost.load(Ordering::Relaxed)), (2, 3));
}

/// The queue has room for all of it, and the log is not theirs to fill.
#[test]
fn a_flood_of_refusals_leaves_room_for_those_who_are_known() {
    let (sender, queued) = mpsc::channel(10_000);
    let lost = Arc::new(AtomicU64::new(0));
    let recorder = Recorder { queue: sender.downgrade(), ration: Mutex::default(), lost: Arc::clone(&lost) };
    let subject = Subject::default();
    let began = Instant::now();
    for _ in 0..5000 {
        recorder.record(&event(&subject, AuditOutcome::Refused("it proves nothing")));
    }
    let seconds = began.elapsed().as_secs() as usize + 2;
    assert!(queued.len() <= 20 * seconds && queued.len() + lost.load(Ordering::Relaxed) as usize == 5000);
    let before = queued.len();
    recorder.record(&event(&subject, AuditOutcome::Allowed));
    let with_token = AuditEvent { token: Some(Role::Metrics), ..event(&subject, AuditOutcome::Refused("it may not")) };
    (0..100).for_each(|_| recorder.record(&with_token));
    assert_eq!(queued.len(), before + 101);
}

#[test]
fn what_a_disk_does_not_take_is_counted_and_the_next_line_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    drop(AuditFile::open(&path, 1 << 20, 1).unwrap());
    let (_sender, queue) = mpsc::channel(1);
    let lost = Arc::new(AtomicU64::new(0));
    let file = file::tests::unwritable(&path);
    let mut writer = Writer { queue, file, lost: Arc::clone(&lost), told_lost: 0, complained_at: None };
    writer.write(b"{}\n{}\n".to_vec(), 2);
    writer.write(b"{}\n".to_vec(), 1);
    assert!(lost.load(Ordering::Relaxed) == 3 && writer.complained_at.is_some());
    writer.file = AuditFile::open(&path, 1 << 20, 1).unwrap();
    writer.write(b"{}\n".to_vec(), 1);
    writer.write(b"{}\n".to_vec(), 1);
    let lines = lines(&path);
    assert_eq!((lines.len(), &lines[0]["operation"], &lines[0]["events"]), (3, &json!("lost"), &json!(3)));
}
