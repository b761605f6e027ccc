//! When a disk that fails is left alone. Pure.
//!
//! A few write errors in a row, or one for lack of space, and nothing more is written for a while; reads go on. Then
//! writes are tried again: one error, and the disk rests again; one success, and it is healthy.

use std::io;
use std::time::{Duration, Instant};

/// Errors in a row that make a disk degraded.
const TOLERATED: u32 = 3;
/// How long a degraded disk rests.
const REST: Duration = Duration::from_secs(30);

/// The health of one disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Health {
    errors_in_a_row: u32,
    rests_until: Option<Instant>,
}

impl Health {
    /// Whether to write to it.
    pub(crate) fn takes_writes(&self, now: Instant) -> bool {
        self.rests_until.is_none_or(|until| until <= now)
    }

    /// Whether it rests or has yet to prove itself again.
    pub(crate) fn is_degraded(&self) -> bool {
        self.rests_until.is_some()
    }

    /// Notes a write that worked; whether the disk has just recovered.
    pub(crate) fn wrote(&mut self) -> bool {
        let recovered = self.is_degraded();
        *self = Self::default();
        recovered
    }

    /// Notes a write that failed; whether the disk is degraded by it.
    pub(crate) fn failed(&mut self, error: &io::Error, now: Instant) -> bool {
        self.errors_in_a_row += 1;
        let no_space = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let degrades = no_space || self.errors_in_a_row >= TOLERATED || self.is_degraded();
        if degrades {
            self.rests_until = Some(now + REST);
        }
        degrades
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_rests_after_errors_in_a_row_and_is_tried_again() {
        let (mut health, now) = (Health::default(), Instant::now());
        let error = io::Error::other("broken");
        assert!(!health.failed(&error, now));
        health.wrote();
        assert!(!health.failed(&error, now) && !health.failed(&error, now));
        assert!(health.takes_writes(now));
        assert!(health.failed(&error, now));
        assert!(!health.takes_writes(now + REST / 2));
        let later = now + REST;
        assert!(health.takes_writes(later));
        assert!(health.failed(&error, later), "one error is enough for a disk on trial");
        assert!(!health.takes_writes(later));
        assert!(health.wrote());
        assert!(!health.is_degraded());
    }

    #[test]
    fn a_full_file_system_degrades_at_once() {
        let (mut health, now) = (Health::default(), Instant::now());
        assert!(health.failed(&io::Error::from(io::ErrorKind::StorageFull), now));
        assert!(!health.takes_writes(now));
    }
}
