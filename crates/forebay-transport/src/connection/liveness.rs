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
    /// The first and the latest ping since anything was heard.
    pings: Option<(Instant, Instant)>,
}

impl Liveness {
    /// A clock that starts at `now`.
    #[must_use]
    pub fn new(keepalive: Duration, dead_after: Duration, now: Instant) -> Self {
        Self { keepalive, dead_after, heard: now, pings: None }
    }

    /// The peer sent something, or calls are under way again after a time without any, when silence meant nothing.
    pub fn heard(&mut self, now: Instant) {
        self.heard = now;
        self.pings = None;
    }

    /// What the silence until `now` means.
    pub fn check(&mut self, now: Instant) -> Verdict {
        let dead_at = self.heard + self.dead_after;
        let Some((first, latest)) = self.pings else {
            let due = self.heard + self.keepalive;
            if now < due {
                return Verdict::Wait(due);
            }
            self.pings = Some((now, now));
            return Verdict::Ping(now + self.keepalive);
        };
        // Our own process may have stood still for longer than the peer was silent: it must have had time to answer.
        let dead_at = dead_at.max(first + self.dead_after.saturating_sub(self.keepalive) / 2);
        if now >= dead_at {
            return Verdict::Dead;
        }
        let due = latest + self.keepalive;
        if now < due {
            return Verdict::Wait(due.min(dead_at));
        }
        self.pings = Some((first, now));
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
    fn a_process_that_stood_still_itself_gives_the_peer_time_to_answer() {
        let start = Instant::now();
        let mut clock = clock(start);
        assert!(matches!(clock.check(at(start, 60_000)), Verdict::Ping(_)));
        assert_eq!(clock.check(at(start, 61_000)), Verdict::Wait(at(start, 62_000)));
        assert_eq!(clock.check(at(start, 62_000)), Verdict::Dead);
    }
}
