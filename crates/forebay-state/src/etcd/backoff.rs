//! When to try again after failures, and when to say that the store is lost.

use std::time::Duration;

/// The first pause, which doubles up to the last.
const FIRST: Duration = Duration::from_millis(50);
const LAST: Duration = Duration::from_secs(3);

/// Failures in a row.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// It works again.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// It failed: how long to wait. `jitter`, between 0 and 1, spreads clients that lost the same member.
    pub(super) fn failed(&mut self, jitter: f64) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.failures.min(16)).min(LAST);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
    }

    /// Failures since it last worked.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_start_again_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<u128> = (0..8).map(|_| backoff.failed(1.0).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1600, 3000, 3000]);
        assert_eq!(backoff.failures(), 8);
        for _ in 0..100 {
            assert!(backoff.failed(0.0) <= LAST / 2);
        }
        backoff.succeeded();
        assert_eq!((backoff.failures(), backoff.failed(0.0)), (0, FIRST / 2));
    }
}
