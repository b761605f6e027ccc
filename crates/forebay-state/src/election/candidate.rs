//! What a candidate does next. No store, no clock: [`super::Election`] carries out the actions and reports the events.

use std::time::Duration;

/// The first pause after a failure, which doubles up to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A process leads.
    Occupied,
    /// No process leads.
    Vacant,
    /// The claim succeeded.
    Claimed,
    /// Another process was there first.
    Taken,
    /// The claim failed, or it is not known whether it did.
    Failed,
    /// The pause is over.
    Paused,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Wait for news of the leader.
    Observe,
    /// Try to become it.
    Claim,
    /// Wait before the next try.
    Pause(Duration),
    /// Begin.
    Lead,
}

/// One that wants to lead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Candidate {
    failures: u32,
}

impl Candidate {
    pub(super) fn start(&self) -> Action {
        Action::Observe
    }

    /// After a failed claim the seat is claimed again and not observed: it was vacant, and if it no longer is the claim
    /// says so. After a claim that came too late the news of the winner is still to come, and the news of its end after
    /// it: none can be missed.
    pub(super) fn next(&mut self, event: Event) -> Action {
        match event {
            Event::Vacant | Event::Paused => Action::Claim,
            Event::Occupied => Action::Observe,
            Event::Taken => {
                self.failures = 0;
                Action::Observe
            }
            Event::Claimed => Action::Lead,
            Event::Failed => {
                let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LAST_PAUSE);
                self.failures = self.failures.saturating_add(1);
                Action::Pause(pause)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn failures_are_repeated_ever_more_slowly() {
        let mut candidate = Candidate::default();
        assert_eq!(candidate.start(), Action::Observe);
        assert_eq!(candidate.next(Event::Vacant), Action::Claim);
        for milliseconds in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            assert_eq!(candidate.next(Event::Failed), Action::Pause(Duration::from_millis(milliseconds)));
            assert_eq!(candidate.next(Event::Paused), Action::Claim);
        }
        assert_eq!(candidate.next(Event::Taken), Action::Observe);
        assert_eq!(candidate.next(Event::Vacant), Action::Claim);
        assert_eq!(candidate.next(Event::Failed), Action::Pause(FIRST_PAUSE));
    }

    /// A candidate in virtual time, with the news that wait for it.
    struct Simulated {
        candidate: Candidate,
        action: Action,
        news: std::collections::VecDeque<Event>,
        /// When its pause ends.
        wakes: Duration,
        /// When the key that it made goes with its lease.
        ends: Option<Duration>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Answered,
        Lost,
        DoneButLost,
    }

    proptest! {
        /// Candidates of one seat in virtual time. Claims fail, or succeed without the candidate's knowing, in which case
        /// the key goes when the lease that the candidate dropped ends. Leaders serve for a second.
        #[test]
        fn every_candidate_leads_in_the_end_and_never_two(
            fates in proptest::collection::vec(prop_oneof![Just(Fate::Answered), Just(Fate::Lost), Just(Fate::DoneButLost)], 0..60),
            order in proptest::collection::vec(0usize..4, 400),
        ) {
            let mut seat: Option<usize> = None;
            let mut has_led = [false; 4];
            let mut candidates: Vec<Simulated> = (0..4)
                .map(|_| {
                    let candidate = Candidate::default();
                    let news = [Event::Vacant].into();
                    Simulated { action: candidate.start(), candidate, news, wakes: Duration::ZERO, ends: None }
                })
                .collect();
            let mut fates = fates.into_iter();
            let mut now = Duration::ZERO;
            for turn in order.into_iter().chain((0..4).cycle()).take(4000) {
                now += Duration::from_millis(25);
                let tell = |candidates: &mut Vec<Simulated>, event| {
                    candidates.iter_mut().for_each(|other| other.news.push_back(event));
                };
                if candidates[turn].ends.is_some_and(|ends| now >= ends) {
                    prop_assert_eq!(seat, Some(turn));
                    candidates[turn].ends = None;
                    seat = None;
                    tell(&mut candidates, Event::Vacant);
                }
                let event = match candidates[turn].action {
                    // It does not stand again.
                    Action::Lead => continue,
                    Action::Observe => candidates[turn].news.pop_front(),
                    Action::Pause(_) => (now >= candidates[turn].wakes).then_some(Event::Paused),
                    Action::Claim => Some(match fates.next().unwrap_or(Fate::Answered) {
                        Fate::Lost => Event::Failed,
                        _ if seat.is_some() => Event::Taken,
                        fate => {
                            seat = Some(turn);
                            candidates[turn].ends = Some(now + Duration::from_secs(1));
                            tell(&mut candidates, Event::Occupied);
                            if matches!(fate, Fate::Answered) { Event::Claimed } else { Event::Failed }
                        }
                    }),
                };
                let Some(event) = event else { continue };
                let candidate = &mut candidates[turn];
                candidate.action = candidate.candidate.next(event);
                if let Action::Pause(pause) = candidate.action {
                    candidate.wakes = now + pause;
                }
                if candidate.action == Action::Lead {
                    prop_assert_eq!(seat, Some(turn), "leads without the seat");
                    has_led[turn] = true;
                }
            }
            prop_assert_eq!(has_led, [true; 4]);
        }
    }
}
