//! When to try to see a worker's memory. Pure: it is told the time and what has happened.
//!
//! Trying is cheap but not free, and most workers of a cluster are on other hosts: what cannot change without a person, such as that,
//! is looked at again once a minute. A worker that was there is looked for again soon: it is being restarted, perhaps.

use std::time::{Duration, Instant};

/// After an attempt that failed.
const AGAIN: Duration = Duration::from_secs(5);
/// After one that failed for a reason that lasts.
const SELDOM: Duration = Duration::from_secs(60);
/// After a session was lost, and after each attempt that failed since.
const AFTER_LOSS: Duration = Duration::from_secs(1);
/// For how long a worker that was lost is looked for that often.
const RESTART: Duration = Duration::from_secs(60);
/// How long reads go another way after one whose bytes could not be seen: the caller's next attempt, above all.
const ASIDE: Duration = Duration::from_millis(100);

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Wait,
    /// Connect; [`Attempts::opened`] or [`Attempts::failed`] must follow.
    Connect,
    /// Use the session that there is again.
    Resume,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed { until: Option<Instant> },
    Trying,
    Open,
    Aside { until: Instant },
    Ended,
}

/// The state of the attempts at one worker.
#[derive(Debug)]
pub(crate) struct Attempts {
    phase: Phase,
    /// Until when it may be restarting.
    missed_until: Option<Instant>,
}

impl Attempts {
    /// Nothing was tried yet.
    pub(crate) fn new() -> Self {
        Self { phase: Phase::Closed { until: None }, missed_until: None }
    }

    /// A caller would like to see the memory at `now`.
    pub(crate) fn step(&mut self, now: Instant) -> Step {
        let (phase, step) = match self.phase {
            Phase::Closed { until } if until.is_none_or(|until| now >= until) => (Phase::Trying, Step::Connect),
            Phase::Aside { until } if now >= until => (Phase::Open, Step::Resume),
            phase => (phase, Step::Wait),
        };
        self.phase = phase;
        step
    }

    /// The session is open. False when it is not wanted any more.
    pub(crate) fn opened(&mut self) -> bool {
        self.turn(Phase::Open)
    }

    /// The attempt failed at `now`. `is_lasting`: for a reason that will be there the next time.
    pub(crate) fn failed(&mut self, now: Instant, is_lasting: bool) {
        let wait = match self.missed_until {
            Some(until) if now < until => AFTER_LOSS,
            _ if is_lasting => SELDOM,
            _ => AGAIN,
        };
        self.turn(Phase::Closed { until: Some(now + wait) });
    }

    /// The session was lost at `now`.
    pub(crate) fn lost(&mut self, now: Instant) {
        self.missed_until = Some(now + RESTART);
        self.turn(Phase::Closed { until: Some(now + AFTER_LOSS) });
    }

    /// The session is open, and had bytes at `now` that could not be seen. Whether reads go another way for a while.
    pub(crate) fn aside(&mut self, now: Instant) -> bool {
        matches!(self.phase, Phase::Open) && self.turn(Phase::Aside { until: now + ASIDE })
    }

    /// The memory is not wanted any more.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Ended;
    }

    /// Before when nothing is to be done; `None` while something else has to happen first.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        match self.phase {
            Phase::Closed { until } => until,
            Phase::Aside { until } => Some(until),
            Phase::Trying | Phase::Open | Phase::Ended => None,
        }
    }

    /// In one word, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self.phase {
            Phase::Open | Phase::Aside { .. } => "open",
            Phase::Trying => "trying",
            Phase::Closed { .. } | Phase::Ended => "closed",
        }
    }

    fn turn(&mut self, phase: Phase) -> bool {
        let goes_on = self.phase != Phase::Ended;
        if goes_on {
            self.phase = phase;
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the next attempt is made, of a caller that asks each 100 ms for two minutes.
    fn next(attempts: &mut Attempts, now: Instant) -> Option<Duration> {
        (0..1200)
            .map(|tenth| Duration::from_millis(100) * tenth)
            .find(|after| attempts.step(now + *after) == Step::Connect)
    }

    #[test]
    fn the_first_call_tries_at_once_and_one_attempt_is_made_at_a_time() {
        let (mut attempts, now) = (Attempts::new(), Instant::now());
        assert_eq!(attempts.step(now), Step::Connect);
        assert_eq!((next(&mut attempts, now), attempts.name()), (None, "trying"));
    }

    #[test]
    fn what_may_change_is_tried_again_soon_and_what_lasts_seldom() {
        let (mut attempts, now) = (Attempts::new(), Instant::now());
        attempts.step(now);
        attempts.failed(now, false);
        assert_eq!(next(&mut attempts, now), Some(AGAIN));
        attempts.failed(now, true);
        assert_eq!(next(&mut attempts, now), Some(SELDOM));
        assert!(attempts.opened());
        assert_eq!((next(&mut attempts, now), attempts.name()), (None, "open"));
        attempts.lost(now);
        assert_eq!(next(&mut attempts, now), Some(AFTER_LOSS));
        attempts.failed(now + RESTART / 2, true);
        assert_eq!(next(&mut attempts, now + RESTART / 2), Some(AFTER_LOSS), "it may be on its way back");
        attempts.failed(now + RESTART, false);
        assert_eq!(next(&mut attempts, now + RESTART), Some(AGAIN));
    }

    #[test]
    fn bytes_that_cannot_be_seen_send_reads_another_way_for_a_moment() {
        let (mut attempts, now) = (Attempts::new(), Instant::now());
        assert!(!attempts.aside(now));
        attempts.step(now);
        attempts.opened();
        assert!(attempts.aside(now) && !attempts.aside(now));
        assert_eq!(attempts.step(now + ASIDE / 2), Step::Wait);
        assert_eq!((attempts.step(now + ASIDE), attempts.step(now + ASIDE)), (Step::Resume, Step::Wait));
        assert!(attempts.aside(now));
        attempts.lost(now);
        assert_eq!(next(&mut attempts, now), Some(AFTER_LOSS));
    }

    #[test]
    fn after_the_end_nothing_is_tried() {
        let (mut attempts, now) = (Attempts::new(), Instant::now());
        attempts.step(now);
        attempts.end();
        assert!(!attempts.opened());
        attempts.failed(now, false);
        attempts.lost(now);
        assert_eq!((next(&mut attempts, now), attempts.name()), (None, "closed"));
    }
}
