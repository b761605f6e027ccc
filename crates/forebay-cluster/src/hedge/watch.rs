//! What becomes of one read that waits for its worker: a state machine without a clock.
//!
//! It is told when the time is over that it said to wait for, and whether there is somebody to ask and a token to do it
//! with. Without, it looks again a little later: tokens come with the reads of others, and the worker may be found slow
//! meanwhile, which needs none.

use std::time::Duration;

/// The most hedges of one read: the second is for when the first one failed.
const MAX_HEDGES: u32 = 2;
/// How long a read that could not be hedged waits before it tries again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(40);

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
}

impl Default for Watch {
    fn default() -> Self {
        Self { hedges: 0, pause: FIRST_PAUSE }
    }
}

impl Watch {
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

    #[test]
    fn a_read_has_two_hedges_at_most() {
        let mut watch = Watch::default();
        for _ in 0..2 {
            assert_eq!(watch.step(), Step::Hedge);
            watch.sent();
        }
        assert_eq!(watch.step(), Step::Wait);
    }

    #[test]
    fn one_that_finds_no_token_looks_again_soon_and_not_all_the_time() {
        let mut watch = Watch::default();
        let pauses: Vec<_> = (0..6).map(|_| watch.refused().as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 40, 40]);
        assert_eq!(watch.step(), Step::Hedge);
    }
}
