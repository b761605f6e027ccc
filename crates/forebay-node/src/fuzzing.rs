//! What a fuzzer has recorded in the audit log.

use std::time::SystemTime;

use forebay_identity::AuditEvent;

use crate::audit;

/// The line of `event`, which happened at `now`.
#[must_use]
pub fn audit_line(event: &AuditEvent<'_>, now: SystemTime) -> Vec<u8> {
    audit::of_event(event, now)
}
