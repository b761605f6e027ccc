//! When the keeper of a mount is started again that has ended before its mount: at once, and then at longer and longer intervals if
//! the next ones end, too.
//!
//! The process that serves the mount has all that was kept, so another keeper is as good as the one before. Nobody else starts one:
//! with the keeper of a process that is killed meanwhile, the mount ends. Plain: it takes events and the time, and returns what is to
//! be done.

use std::time::{Duration, Instant};

/// How often it is looked whether the keeper is there.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);
/// Between two that are started, at first.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// And at most.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// One that was there for so long after another one might have been started makes good for those before it.
const GOOD_AFTER: Duration = Duration::from_secs(60);

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Whether a keeper is there, or none is needed, as asked by [`Action::Look`].
    Looked(bool),
    /// One was started, or was not, as asked by [`Action::Start`].
    Tried,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Say whether a keeper is there, at that time.
    Look(Instant),
    /// Start one.
    Start,
}

/// A keeper that is watched.
#[derive(Clone, Debug)]
pub(crate) struct KeeperWatch {
    /// When the next one may be started.
    start_at: Instant,
    delay: Duration,
}

impl KeeperWatch {
    /// One that is there, and what is to be done first.
    pub(crate) fn begin(now: Instant) -> (Self, Action) {
        (Self { start_at: now, delay: FIRST_DELAY }, Action::Look(now + LOOKED_AT_EVERY))
    }

    /// Takes an event.
    pub(crate) fn on(&mut self, event: Event, now: Instant) -> Action {
        match event {
            Event::Looked(true) => {
                if now >= self.start_at + GOOD_AFTER {
                    self.delay = FIRST_DELAY;
                }
                Action::Look(now + LOOKED_AT_EVERY)
            }
            Event::Looked(false) if now < self.start_at => Action::Look(self.start_at),
            Event::Looked(false) => {
                self.start_at = now + self.delay;
                self.delay = (self.delay * 2).min(MAX_DELAY);
                Action::Start
            }
            Event::Tried => Action::Look(now + LOOKED_AT_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times at which one is started of which each is there for `lasts`, as long as `until`, in seconds.
    fn started(lasts: Duration, until: Duration) -> Vec<Duration> {
        let begin = Instant::now();
        let (mut watch, mut action) = KeeperWatch::begin(begin);
        let (mut now, mut ends, mut times) = (begin, begin + lasts, Vec::new());
        while now < begin + until {
            action = match action {
                Action::Look(at) => {
                    assert!(at >= now);
                    now = at;
                    watch.on(Event::Looked(now < ends), now)
                }
                Action::Start => {
                    times.push(now - begin);
                    ends = now + lasts;
                    watch.on(Event::Tried, now)
                }
            };
        }
        times
    }

    #[test]
    fn one_that_has_ended_is_followed_within_a_second_by_the_next() {
        let hour = Duration::from_secs(3600);
        let times = started(hour, 3 * hour);
        assert_eq!(times.len(), 2);
        for (number, time) in times.iter().enumerate() {
            let ended = hour * (u32::try_from(number).unwrap() + 1);
            assert!(*time >= ended && *time <= ended + 3 * LOOKED_AT_EVERY, "{times:?}");
        }
    }

    #[test]
    fn those_that_end_at_once_are_started_at_longer_and_longer_intervals() {
        let times = started(Duration::ZERO, Duration::from_secs(3600));
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.windows(2).all(|pair| pair[0] <= pair[1]), "{gaps:?}");
        assert_eq!(gaps.last(), Some(&MAX_DELAY));
        assert!(times.len() < 80, "{}", times.len());
    }

    #[test]
    fn one_that_is_there_for_long_makes_good_for_those_before() {
        let begin = Instant::now();
        let (mut watch, _) = KeeperWatch::begin(begin);
        let mut now = begin;
        for _ in 0..10 {
            assert_eq!(watch.on(Event::Looked(false), now), Action::Start);
            now += MAX_DELAY;
        }
        now += GOOD_AFTER;
        watch.on(Event::Looked(true), now);
        assert_eq!(watch.on(Event::Looked(false), now), Action::Start);
        assert_eq!(watch.on(Event::Looked(false), now), Action::Look(now + FIRST_DELAY));
    }
}
