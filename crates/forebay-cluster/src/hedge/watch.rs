//! What becomes of one read that waits for its worker: a state machine without a clock.
//!
//! It is told when the time is over that it said to wait for, and whether there is somebody to ask and a token to do it
//! with. Without, it looks again a little later: tokens come with the reads of others, and the worker may be found slow
//! meanwhile, which needs none. A read that has waited for very long does not wait for a token, either: when the bucket
//! is empty and all readers wait for a worker that stands still, no reads fill it.

use std::time::Duration;

/// The most hedges of one read: the second is for when the first one failed.
const MAX_HEDGES: u32 = 2;
/// How long a read that could not be hedged waits before it tries again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(40);
/// A read is urgent when it has waited for so long, and so many times as long as reads that are not overdue: an origin
/// that is slow for all makes no read urgent once that is known.
const URGENT: Duration = Duration::from_secs(1);
const URGENT_TIMES: u32 = 4;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send the read to another, if the budget has a token for it.
    Hedge,
    /// Only wait for the answers that are to come.
    Wait,
}

/// The hedges of one read that is overdue.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    hedges: u32,
    pause: Duration,
    urgent_after: Duration,
}

impl Watch {
    /// Of a read that is overdue after so long.
    #[must_use]
    pub fn new(overdue_after: Duration) -> Self {
        let urgent_after = overdue_after.saturating_mul(URGENT_TIMES).max(URGENT);
        Self { hedges: 0, pause: FIRST_PAUSE, urgent_after }
    }

    /// Whether it may be hedged on credit, having waited so long.
    #[must_use]
    pub fn is_urgent(&self, waited: Duration) -> bool {
        waited >= self.urgent_after
    }

    /// What is to be done now, while none of its hedges is under way.
    #[must_use]
    pub fn step(&self) -> Step {
        if self.hedges < MAX_HEDGES { Step::Hedge } else { Step::Wait }
    }

    /// A hedge was sent.
    pub fn sent(&mut self) {
        self.hedges += 1;
    }

    /// None could be sent: how long to wait before the next try.
    pub fn refused(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(MAX_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERDUE: Duration = Duration::from_millis(2);

    #[test]
    fn a_read_has_two_hedges_at_most() {
        let mut watch = Watch::new(OVERDUE);
        for _ in 0..2 {
            assert_eq!(watch.step(), Step::Hedge);
            watch.sent();
        }
        assert_eq!(watch.step(), Step::Wait);
    }

    #[test]
    fn one_that_finds_no_token_looks_again_soon_and_not_all_the_time() {
        let mut watch = Watch::new(OVERDUE);
        let pauses: Vec<_> = (0..6).map(|_| watch.refused().as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 40, 40]);
        assert_eq!(watch.step(), Step::Hedge);
    }

    #[test]
    fn one_that_has_waited_for_very_long_is_urgent_and_not_one_whose_worker_always_takes_long() {
        let (quick, slow) = (Watch::new(OVERDUE), Watch::new(Duration::from_secs(3)));
        assert!(!quick.is_urgent(URGENT - OVERDUE) && quick.is_urgent(URGENT));
        assert!(!slow.is_urgent(Duration::from_secs(11)) && slow.is_urgent(Duration::from_secs(12)));
        assert!(!Watch::new(Duration::MAX).is_urgent(Duration::from_secs(3600)));
    }
}
