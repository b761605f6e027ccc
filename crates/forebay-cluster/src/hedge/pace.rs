//! Whether a worker is slow: a state machine without a clock.
//!
//! A worker is slow when reads that were sent elsewhere as well came back from there first, several in a row and for a
//! while, and none came back in time. That compares it with the others: a network or an origin that is slow for all
//! makes nobody slow. A race that another won from its cache says more than one that it won from the origin: a worker
//! that fetches from there, too, loses every other one of those.
//!
//! From then on reads go elsewhere at once, but for one every so often that finds out how it is now. It takes several of
//! those in a row that are answered in time to trust the worker again, and one that becomes slow again soon is left alone
//! for longer, so that reads do not go back and forth.

use std::time::{Duration, Instant};

/// What the races count that a worker lost in a row when it is slow: three clear ones, since one or two are a page fault
/// or a lost packet, or as many others as chance makes of one in thousands.
const LOST: u32 = 12;
/// What a clear one counts.
const CLEAR: u32 = 4;
/// For how long it has lost every race then: readers that wait together lose theirs together.
const FOR: Duration = Duration::from_millis(50);
/// The same of questions about names. Those about one directory may all wait for a page of its listing, which takes longer than
/// another worker takes to ask the origin about each of them.
const FOR_NAMES: Duration = Duration::from_millis(500);
/// Reads in a row that were answered in time when it is trusted again.
const IN_TIME: u32 = 3;
/// How long until the first read that finds out.
const FIRST_PROBE: Duration = Duration::from_millis(250);
/// How long at most.
const MAX_PROBE: Duration = Duration::from_secs(5);
/// One that becomes slow again within this has not recovered.
const RELAPSE: Duration = Duration::from_secs(30);

/// What is to be done with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Send it to the worker.
    Ask,
    /// Send it to the worker, which is slow, to find out whether it still is.
    Probe,
    /// Send it elsewhere.
    Avoid,
}

/// The record of one worker.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    lost: u32,
    /// When the first of those was lost.
    losing_since: Option<Instant>,
    /// For how long it has lost every race when it is slow.
    losing_for: Duration,
    slow: Option<Slow>,
    /// How long to the next probe, and when the worker was last trusted again.
    pause: Duration,
    trusted_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Slow {
    probe_at: Instant,
    in_time: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { lost: 0, losing_since: None, losing_for: FOR, slow: None, pause: FIRST_PROBE, trusted_at: None }
    }
}

impl Pace {
    /// The record of how a worker answers questions about names; the default is that of its reads.
    #[must_use]
    pub fn of_names() -> Self {
        Self { losing_for: FOR_NAMES, ..Self::default() }
    }

    /// Whether it is slow.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.slow.is_some()
    }

    /// Whether it has nothing to forget: an answer in time says nothing new.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.lost == 0 && self.slow.is_none()
    }

    /// What is to be done with a read. To have said [`Turn::Probe`] counts: the next reads avoid the worker.
    pub fn turn(&mut self, now: Instant) -> Turn {
        let Some(slow) = &mut self.slow else { return Turn::Ask };
        if now < slow.probe_at {
            return Turn::Avoid;
        }
        slow.probe_at = now + self.pause;
        self.pause = (self.pause * 2).min(MAX_PROBE);
        Turn::Probe
    }

    /// A read came from elsewhere first; `is_clear`: from a cache. Whether the worker is slow because of that and was not
    /// before.
    pub fn lost(&mut self, now: Instant, is_clear: bool) -> bool {
        if let Some(slow) = &mut self.slow {
            slow.in_time = 0;
            return false;
        }
        self.lost = self.lost.saturating_add(if is_clear { CLEAR } else { 1 });
        self.losing_since.get_or_insert(now);
        self.still_waits(now)
    }

    /// A read waits for the worker that should have been answered, and cannot be sent elsewhere. Whether the worker is slow,
    /// by the races that it lost before, and was not yet: when the budget is used up, no more races are lost.
    pub fn still_waits(&mut self, now: Instant) -> bool {
        let Some(since) = self.losing_since.filter(|_| self.lost >= LOST && self.slow.is_none()) else { return false };
        if now.saturating_duration_since(since) < self.losing_for {
            return false;
        }
        let is_relapse = self.trusted_at.is_some_and(|at| now.saturating_duration_since(at) < RELAPSE);
        if !is_relapse {
            self.pause = FIRST_PROBE;
        }
        self.slow = Some(Slow { probe_at: now + self.pause, in_time: 0 });
        (self.lost, self.losing_since) = (0, None);
        true
    }

    /// The worker answered in time, or before the others. Whether it was slow until now.
    pub fn in_time(&mut self, now: Instant) -> bool {
        (self.lost, self.losing_since) = (0, None);
        let Some(slow) = &mut self.slow else { return false };
        slow.in_time += 1;
        if slow.in_time < IN_TIME {
            // The next read shall find out more.
            slow.probe_at = now;
            return false;
        }
        (self.slow, self.trusted_at) = (None, Some(now));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn slow(at: Instant) -> Pace {
        let mut pace = Pace::default();
        assert!(!pace.lost(at, true) && !pace.lost(at + FOR, true));
        assert!(pace.lost(at + FOR, true));
        pace
    }

    #[test]
    fn a_worker_that_loses_for_a_while_is_slow_and_one_that_answers_now_and_then_is_not() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(!(0..100).any(|_| pace.lost(start, true)), "a hundred readers that waited at the same moment");
        assert!(!pace.in_time(start + ms(20)) && pace.is_settled());
        for step in 0..100 {
            assert!(!pace.lost(start + ms(step * 100), true) && !pace.lost(start + ms(step * 100 + 90), true));
            assert!(!pace.in_time(start + ms(step * 100 + 95)));
        }
        let mut pace = slow(start);
        assert!(pace.is_slow() && pace.turn(start + FOR) == Turn::Avoid);
    }

    #[test]
    fn races_that_the_origin_decides_make_a_worker_slow_only_if_it_loses_many() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(!(0..LOST as u64 - 1).any(|race| pace.lost(start + ms(race * 20), false)));
        assert!(pace.lost(start + ms(LOST as u64 * 20), false));
    }

    #[test]
    fn who_waits_finds_a_worker_slow_that_lost_its_races_and_only_such_a_one() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert!(!pace.still_waits(start) && !pace.still_waits(start + ms(10_000)), "nobody was faster");
        assert!(!(0..LOST).any(|_| pace.lost(start, false)));
        assert!(!pace.still_waits(start + FOR - ms(1)));
        let mut answers = pace;
        assert!(!answers.in_time(start + ms(10)) && !answers.still_waits(start + FOR));
        assert!(pace.still_waits(start + FOR) && pace.is_slow());
        assert!(!pace.still_waits(start + FOR), "once");
    }

    #[test]
    fn names_that_wait_for_one_page_of_a_listing_make_no_worker_slow_and_one_that_stands_still_is() {
        let start = Instant::now();
        let mut pace = Pace::of_names();
        assert!(!(0..1000).any(|race| pace.lost(start + ms(race % 100), false)));
        assert!(!pace.still_waits(start + ms(300)) && !pace.in_time(start + ms(300)) && pace.is_settled());
        assert!(!(0..LOST as u64).any(|race| pace.lost(start + ms(race * 20), false)));
        assert!(!pace.still_waits(start + FOR_NAMES - ms(1)) && pace.still_waits(start + FOR_NAMES));
    }

    #[test]
    fn one_read_a_period_finds_out_and_the_periods_grow() {
        let start = Instant::now();
        let mut pace = slow(start);
        let mut probes = Vec::new();
        for step in 0..60_000 {
            if pace.turn(start + FOR + ms(step)) == Turn::Probe {
                probes.push(step);
                assert!(!pace.lost(start + FOR + ms(step + 2), true));
            }
        }
        assert_eq!(probes[..5], [250, 500, 1000, 2000, 4000]);
        assert!(probes.len() < 20 && probes.windows(2).all(|pair| pair[1] - pair[0] <= 5000), "{probes:?}");
    }

    #[test]
    fn it_is_trusted_again_after_several_answers_in_time_and_left_alone_for_longer_after_a_relapse() {
        let start = Instant::now();
        let mut pace = slow(start);
        let mut now = start + FOR + FIRST_PROBE;
        assert_eq!(pace.turn(now), Turn::Probe);
        assert!(!pace.in_time(now));
        assert_eq!(pace.turn(now), Turn::Probe, "good news is followed up at once");
        assert!(!pace.lost(now, false), "and one answer late undoes it");
        for answer in 0..IN_TIME {
            now += MAX_PROBE;
            assert_eq!(pace.turn(now), Turn::Probe);
            assert_eq!(pace.in_time(now), answer + 1 == IN_TIME);
        }
        assert!(!pace.is_slow() && pace.turn(now) == Turn::Ask);
        assert!(!pace.lost(now, true) && !pace.lost(now + FOR, true) && pace.lost(now + FOR, true));
        assert_eq!(pace.turn(now + FOR + FIRST_PROBE), Turn::Avoid, "a relapse");
        assert_eq!(pace.turn(now + FOR + MAX_PROBE), Turn::Probe);
    }

    proptest! {
        #[test]
        fn a_worker_is_slow_only_after_losing_all_races_for_a_while_and_is_probed_for_ever(
            steps in prop::collection::vec((0u64..200, any::<bool>(), any::<bool>()), 1..500),
        ) {
            let mut now = Instant::now();
            let mut pace = Pace::default();
            let (mut in_a_row, mut since) = (0, None);
            for (millis, loses, is_clear) in steps {
                now += ms(millis);
                match loses {
                    true => {
                        in_a_row += if is_clear { CLEAR } else { 1 };
                        let since = *since.get_or_insert(now);
                        prop_assert!(!pace.lost(now, is_clear) || (in_a_row >= LOST && now - since >= FOR));
                    }
                    false => {
                        (in_a_row, since) = (0, None);
                        pace.in_time(now);
                    }
                }
                prop_assert!(pace.pause <= MAX_PROBE);
                let mut later = pace;
                let turn = later.turn(now + MAX_PROBE);
                prop_assert_eq!(turn, if pace.is_slow() { Turn::Probe } else { Turn::Ask });
            }
        }
    }
}
