//! How long to pause before something is tried again: a state machine without a clock.
//!
//! A pause doubles with each failure, and half of it is chance ([`Backoff::jittered`]). None ends after the deadline of
//! the request.

use std::time::{Duration, Instant};

use crate::Backoff;

/// The pauses of one request.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    backoff: Backoff,
    deadline: Instant,
    failures: u32,
}

impl Pauses {
    /// Those of a request that is to have ended by `deadline`.
    #[must_use]
    pub fn until(deadline: Instant, backoff: Backoff) -> Self {
        Self { backoff, deadline, failures: 0 }
    }

    /// It failed at `now`: how long to pause, or `None` when no time would be left after that. `random` is drawn evenly from
    /// 0..1.
    pub fn next(&mut self, now: Instant, random: f64) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        let pause = self.backoff.jittered(self.failures, random);
        (now + pause < self.deadline).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(10), max: Duration::from_millis(500) };

    #[test]
    fn pauses_double_up_to_the_longest_and_half_of_each_is_chance() {
        let now = Instant::now();
        let pauses = |random| {
            let mut pauses = Pauses::until(now + Duration::from_secs(3600), BACKOFF);
            let millis = move || Some(pauses.next(now, random)?.as_millis());
            std::iter::from_fn(millis).take(8).collect::<Vec<_>>()
        };
        assert_eq!(pauses(1.0), [10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pauses(0.0), [5, 10, 20, 40, 80, 160, 250, 250]);
    }

    proptest! {
        #[test]
        fn no_pause_ends_after_the_deadline_and_there_are_few_in_it(
            within in 0u64..20_000,
            steps in prop::collection::vec((0u64..3_000, 0.0f64..1.0), 10_000),
        ) {
            let start = Instant::now();
            let deadline = start + Duration::from_millis(within);
            let (mut now, mut pauses, mut count) = (start, Pauses::until(deadline, BACKOFF), 0);
            for (took_millis, random) in steps {
                now += Duration::from_millis(took_millis);
                let Some(pause) = pauses.next(now, random) else { break };
                now += pause;
                count += 1;
                prop_assert!(now < deadline && pause >= BACKOFF.initial / 2 && pause <= BACKOFF.max);
            }
            prop_assert!(count <= 7 + within / 250);
        }
    }
}
