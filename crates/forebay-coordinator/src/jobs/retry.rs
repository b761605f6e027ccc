//! Which failures are worth another try, and when.

use std::time::{Duration, Instant};

use forebay_types::Failure;

/// How often a request is tried, and how long after each failure.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Tries, the first one included; at least 1.
    pub attempts: u32,
    /// The wait after the first failure. It doubles each time.
    pub initial: Duration,
    /// The longest wait.
    pub max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 5, initial: Duration::from_millis(200), max: Duration::from_secs(10) }
    }
}

/// Requests that failed for good in a row until no request is tried twice: when a whole origin is gone, waiting for
/// each of its files would take weeks. The first success ends it.
const HOPELESS: u32 = 256;

/// What a job knows of its failures.
#[derive(Clone, Debug, Default)]
pub(super) struct Patience {
    in_a_row: u32,
}

impl Patience {
    /// When to try again what failed for the `attempt`th time; `None` if that is of no use. `number` is the request's:
    /// requests that failed together are spread over half of the wait.
    pub(super) fn again(
        &mut self,
        retry: &Retry,
        failure: &Failure,
        attempt: u32,
        number: u64,
        now: Instant,
    ) -> Option<Instant> {
        if !failure.kind().is_transient() {
            return None;
        }
        if attempt < retry.attempts && self.in_a_row < HOPELESS {
            let wait = retry.initial.saturating_mul(1 << attempt.saturating_sub(1).min(20)).min(retry.max);
            return Some(now + wait / 2 + wait / 2 / 16 * u32::try_from(number % 17).unwrap_or(0));
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        None
    }

    pub(super) fn succeeded(&mut self) {
        self.in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::FailureKind;

    #[test]
    fn what_passes_is_tried_again_with_growing_waits_and_what_stays_is_not() {
        let (retry, now, mut patience) = (Retry::default(), Instant::now(), Patience::default());
        let down = Failure::new(FailureKind::Unavailable, "x");
        let waits: Vec<_> =
            (1..=5).map(|attempt| patience.again(&retry, &down, attempt, 16, now).map(|at| at - now)).collect();
        let expected = [200, 400, 800, 1600].map(|wait| Some(Duration::from_millis(wait)));
        assert_eq!((&waits[..4], waits[4]), (&expected[..], None));
        let gone = Failure::new(FailureKind::NotFound, "x");
        assert_eq!(patience.again(&retry, &gone, 1, 0, now), None);
    }

    #[test]
    fn when_nothing_works_nothing_is_tried_twice_until_something_does() {
        let (retry, now, mut patience) = (Retry::default(), Instant::now(), Patience::default());
        let down = Failure::new(FailureKind::Unavailable, "x");
        for _ in 0..HOPELESS {
            patience.again(&retry, &down, retry.attempts, 0, now);
        }
        assert_eq!(patience.again(&retry, &down, 1, 0, now), None);
        patience.succeeded();
        assert!(patience.again(&retry, &down, 1, 0, now).is_some());
    }
}
