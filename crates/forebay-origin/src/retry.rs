//! When to try an operation again: jittered exponential back-off with a deadline and a bound on attempts.
//!
//! A pure state machine: it is told what happened and when, and answers how long to wait or to give up.
//!
//! The wait before attempt n+1 is drawn evenly from [half, whole] of `first_wait` × 2^(n-1), at most `longest_wait`
//! ("equal jitter": the random half keeps the readers that one overloaded origin refused together from coming back
//! together, the fixed half keeps the waits growing). A wait that the origin asks for (`Retry-After`) is taken when it
//! is longer.

use std::time::{Duration, Instant};

/// What an attempt's failure says about trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The same request would fail in the same way.
    Final,
    /// Another attempt may succeed.
    Transient,
    /// The origin asks for fewer requests: 429, 503 SlowDown.
    Throttled {
        /// The wait that the origin asked for.
        retry_after: Option<Duration>,
    },
}

/// The bounds of an operation's attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    pub(crate) max_attempts: u32,
    pub(crate) deadline: Duration,
    pub(crate) first_wait: Duration,
    pub(crate) longest_wait: Duration,
}

/// The attempts of one operation.
#[derive(Debug)]
pub(crate) struct RetryState {
    policy: RetryPolicy,
    deadline: Instant,
    failed_attempts: u32,
}

impl RetryState {
    /// An operation that starts now.
    pub(crate) fn new(policy: RetryPolicy, now: Instant) -> Self {
        Self { policy, deadline: now + policy.deadline, failed_attempts: 0 }
    }

    /// When the operation must have ended.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Attempts that failed so far.
    pub(crate) fn failed_attempts(&self) -> u32 {
        self.failed_attempts
    }

    /// An attempt failed at `now`: how long to wait before the next one, or `None` to give up. `random` is drawn evenly
    /// from 0..1.
    pub(crate) fn after_failure(&mut self, verdict: Verdict, now: Instant, random: f64) -> Option<Duration> {
        self.failed_attempts += 1;
        let asked_for = match verdict {
            Verdict::Final => return None,
            Verdict::Transient => Duration::ZERO,
            Verdict::Throttled { retry_after } => retry_after.unwrap_or_default(),
        };
        if self.failed_attempts >= self.policy.max_attempts {
            return None;
        }
        // 2^20 first waits are beyond any longest wait that makes sense.
        let doublings = (self.failed_attempts - 1).min(20);
        let whole = self.policy.first_wait.saturating_mul(1 << doublings).min(self.policy.longest_wait);
        let wait = whole.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0).max(asked_for);
        // A wait that ends at the deadline leaves no time for an attempt. The origin may ask for any.
        (wait < self.deadline.saturating_duration_since(now)).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: RetryPolicy = RetryPolicy {
        max_attempts: 6,
        deadline: Duration::from_secs(60),
        first_wait: Duration::from_millis(100),
        longest_wait: Duration::from_secs(10),
    };

    #[test]
    fn a_wait_without_an_end_is_not_waited_for() {
        let now = Instant::now();
        let throttled = Verdict::Throttled { retry_after: Some(Duration::from_secs(u64::MAX)) };
        assert_eq!(RetryState::new(POLICY, now).after_failure(throttled, now, 0.5), None);
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        let now = Instant::now();
        let mut retry = RetryState::new(RetryPolicy { max_attempts: 100, ..POLICY }, now);
        let waits: Vec<u128> =
            (0..9).map(|_| retry.after_failure(Verdict::Transient, now, 1.0).unwrap().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }

    #[test]
    fn a_final_failure_is_not_tried_again() {
        let now = Instant::now();
        assert_eq!(RetryState::new(POLICY, now).after_failure(Verdict::Final, now, 0.0), None);
    }

    #[test]
    fn the_sixth_failure_is_the_last() {
        let now = Instant::now();
        let mut retry = RetryState::new(POLICY, now);
        let waits = (0..6).filter(|_| retry.after_failure(Verdict::Transient, now, 0.0).is_some()).count();
        assert_eq!(waits, 5);
    }

    #[test]
    fn a_wait_that_the_origin_asks_for_is_kept_unless_it_passes_the_deadline() {
        let now = Instant::now();
        let asked = |seconds| Verdict::Throttled { retry_after: Some(Duration::from_secs(seconds)) };
        assert_eq!(RetryState::new(POLICY, now).after_failure(asked(7), now, 0.5), Some(Duration::from_secs(7)));
        assert_eq!(RetryState::new(POLICY, now).after_failure(asked(61), now, 0.5), None);
    }

    proptest! {
        #[test]
        fn every_wait_ends_before_the_deadline_and_attempts_are_bounded(
            steps in prop::collection::vec((0u64..20_000, 0.0f64..1.0), 1..50),
        ) {
            let start = Instant::now();
            let mut now = start;
            let mut retry = RetryState::new(POLICY, start);
            let mut waits = 0;
            for (took_millis, random) in steps {
                now += Duration::from_millis(took_millis);
                let Some(wait) = retry.after_failure(Verdict::Transient, now, random) else { break };
                waits += 1;
                prop_assert!(now + wait < start + POLICY.deadline);
                prop_assert!(wait >= POLICY.first_wait / 2 && wait <= POLICY.longest_wait);
                now += wait;
            }
            prop_assert!(waits < POLICY.max_attempts);
        }
    }
}
