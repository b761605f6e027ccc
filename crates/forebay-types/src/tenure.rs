//! For how long the others take a process for the owner of what it owns, as far as it can tell by its own clock.
//!
//! A process owns what its lease covers for as long as it has renewed the lease. When that time is over, or ended while the process was
//! stopped, others may own it now, and may have changed it. No task runs when the time is over: a caller that needs to know compares
//! the end with the present time, so there is no moment at which it is over and not known to be.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The time until which something is held. The code that renews it and the code that asks share it.
#[derive(Debug)]
pub struct Tenure {
    start: Instant,
    /// Since the start.
    until: AtomicU64,
}

impl Tenure {
    /// One that does not end by itself.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { start: Instant::now(), until: AtomicU64::new(u64::MAX) }
    }

    /// It is held until then.
    pub fn hold_until(&self, until: Instant) {
        self.until.store(self.nanos(until), Ordering::Release);
    }

    /// It is over, since `now` at the latest.
    pub fn end(&self, now: Instant) {
        self.until.fetch_min(self.nanos(now), Ordering::AcqRel);
    }

    /// Whether what was true at `asked` can be relied on at `now`: the tenure is not over, or was over already.
    #[must_use]
    pub fn covers(&self, asked: Instant, now: Instant) -> bool {
        let until = self.until.load(Ordering::Acquire);
        self.nanos(now) < until || self.nanos(asked) >= until
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_true_before_a_tenure_ended_is_not_relied_on_after_it() {
        let tenure = Tenure::unlimited();
        let at = |seconds| tenure.start + Duration::from_secs(seconds);
        assert!(tenure.covers(at(1), at(1_000_000)), "one without an end covers everything");
        tenure.hold_until(at(10));
        assert!(tenure.covers(at(1), at(9)));
        assert!(!tenure.covers(at(1), at(10)) && !tenure.covers(at(9), at(60)));
        assert!(tenure.covers(at(10), at(60)), "what was asked for when it was over is as true as for anybody");
        tenure.hold_until(at(20));
        assert!(tenure.covers(at(1), at(15)), "it was renewed");
        tenure.end(at(16));
        tenure.end(at(18));
        assert!(!tenure.covers(at(15), at(17)) && tenure.covers(at(16), at(17)));
    }
}
