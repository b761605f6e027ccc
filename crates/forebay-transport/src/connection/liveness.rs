//! When silence means death: a clock over one connection, for the time that calls are under way on it.
//!
//! Silence for `keepalive` asks the peer whether it lives; silence for `dead_after` gives the connection up. A peer that
//! is busy but lives answers the question at once, so the length of a request's deadline does not matter here. Pure.

use std::time::{Duration, Instant};

/// What to do now, and when to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing before this time.
    Wait(Instant),
    /// Send a ping, and ask again at this time.
    Ping(Instant),
    /// Give the connection up.
    Dead,
}

/// The clock.
#[derive(Debug)]
pub struct Liveness {
    keepalive: Duration,
    dead_after: Duration,
    heard: Instant,
    /// The latest ping since anything was heard.
    pinged: Option<Instant>,
    /// When it is to be asked again. A process that asks later has stood still meanwhile.
    due: Instant,
}

impl Liveness {
    /// A clock that starts at `now`.
    #[must_use]
    pub fn new(keepalive: Duration, dead_after: Duration, now: Instant) -> Self {
        Self { keepalive, dead_after, heard: now, pinged: None, due: now + keepalive }
    }

    /// The peer sent something, or calls are under way again after a time without any, when silence meant nothing.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.pinged = None;
        self.due = now + self.keepalive;
    }

    /// What the silence until `now` means. Time that our own process stood still, stopped or on a machine that was, is not
    /// the peer's silence: what it has answered meanwhile may not have been looked at yet.
    pub fn check(&mut self, now: Instant) -> Verdict {
        let stood_still = now.saturating_duration_since(self.due);
        self.heard += stood_still;
        self.pinged = self.pinged.map(|pinged| pinged + stood_still);
        let verdict = self.verdict(now);
        if let Verdict::Wait(due) | Verdict::Ping(due) = verdict {
            self.due = due;
        }
        verdict
    }

    fn verdict(&mut self, now: Instant) -> Verdict {
        let dead_at = self.heard + self.dead_after;
        if self.pinged.is_some() && now >= dead_at {
            return Verdict::Dead;
        }
        let due = self.pinged.unwrap_or(self.heard) + self.keepalive;
        if now < due {
            return Verdict::Wait(due.min(dead_at));
        }
        self.pinged = Some(now);
        Verdict::Ping((now + self.keepalive).min(dead_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    fn clock(start: Instant) -> Liveness {
        Liveness::new(Duration::from_secs(2), Duration::from_secs(6), start)
    }

    #[test]
    fn silence_is_asked_about_and_then_taken_for_death() {
        let start = Instant::now();
        let mut clock = clock(start);
        assert_eq!(clock.check(at(start, 1999)), Verdict::Wait(at(start, 2000)));
        assert_eq!(clock.check(at(start, 2000)), Verdict::Ping(at(start, 4000)));
        assert_eq!(clock.check(at(start, 3000)), Verdict::Wait(at(start, 4000)));
        assert_eq!(clock.check(at(start, 4000)), Verdict::Ping(at(start, 6000)));
        assert_eq!(clock.check(at(start, 5999)), Verdict::Wait(at(start, 6000)));
        assert_eq!(clock.check(at(start, 6000)), Verdict::Dead);
    }

    #[test]
    fn whatever_is_heard_starts_the_clock_again() {
        let start = Instant::now();
        let mut clock = clock(start);
        assert!(matches!(clock.check(at(start, 2500)), Verdict::Ping(_)));
        clock.heard(at(start, 5000));
        assert_eq!(clock.check(at(start, 6500)), Verdict::Wait(at(start, 7000)));
    }

    #[test]
    fn time_that_the_process_stood_still_itself_is_not_the_peers_silence() {
        let start = Instant::now();
        let mut before_it_asked = clock(start);
        assert_eq!(before_it_asked.check(at(start, 60_000)), Verdict::Ping(at(start, 62_000)));
        assert_eq!(before_it_asked.check(at(start, 61_000)), Verdict::Wait(at(start, 62_000)));
        assert_eq!(before_it_asked.check(at(start, 62_000)), Verdict::Ping(at(start, 64_000)));
        assert_eq!(before_it_asked.check(at(start, 64_000)), Verdict::Dead);

        let mut after_it_asked = clock(start);
        assert_eq!(after_it_asked.check(at(start, 2000)), Verdict::Ping(at(start, 4000)));
        assert_eq!(after_it_asked.check(at(start, 60_000)), Verdict::Ping(at(start, 62_000)));
        assert_eq!(after_it_asked.check(at(start, 62_000)), Verdict::Dead);
    }

    #[test]
    fn a_clock_that_is_looked_at_late_each_time_still_finds_death() {
        let start = Instant::now();
        let (mut clock, mut now) = (clock(start), at(start, 2000));
        let mut looked = 0;
        while let Verdict::Wait(due) | Verdict::Ping(due) = clock.check(now) {
            now = due + Duration::from_secs(1);
            looked += 1;
        }
        assert_eq!((looked, now), (2, at(start, 8000)));
    }
}
