//! How fast a job goes: what happened in the last few seconds.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::counts::FileCounts;

/// Long enough to be steady, short enough to show that something stopped.
const WINDOW: Duration = Duration::from_secs(15);
/// The grain of the window.
const STEP: Duration = Duration::from_millis(500);

/// Files and bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Files a second.
    pub files: f64,
    /// Bytes a second.
    pub bytes: f64,
}

#[derive(Clone, Debug)]
pub(super) struct Rate {
    start: Instant,
    /// What happened in each step, with when it started; the oldest first, no more of them than fit the window.
    steps: VecDeque<(Instant, FileCounts)>,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Self {
        Self { start: now, steps: VecDeque::new() }
    }

    pub(super) fn add(&mut self, now: Instant, counts: FileCounts) {
        match self.steps.back_mut() {
            Some((at, sum)) if now < *at + STEP => sum.add(counts),
            _ => {
                self.forget(now);
                self.steps.push_back((now, counts));
            }
        }
    }

    /// The mean of the window, or of the time since the start if that is shorter.
    pub(super) fn speed(&self, now: Instant) -> Speed {
        let mut sum = FileCounts::default();
        for (_, counts) in self.steps.iter().filter(|(at, _)| now < *at + WINDOW) {
            sum.add(*counts);
        }
        let seconds = now.saturating_duration_since(self.start).min(WINDOW).max(STEP).as_secs_f64();
        Speed { files: sum.files as f64 / seconds, bytes: sum.bytes as f64 / seconds }
    }

    fn forget(&mut self, now: Instant) {
        while self.steps.front().is_some_and(|(at, _)| now >= *at + WINDOW) {
            self.steps.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let mut now = start;
        for _ in 0..600 {
            now += Duration::from_millis(100);
            rate.add(now, FileCounts { files: 1, bytes: 1000 });
        }
        let speed = rate.speed(now);
        assert!((speed.files - 10.0).abs() < 0.5 && (speed.bytes - 10_000.0).abs() < 500.0, "{speed:?}");
        assert!(rate.steps.len() <= 31);
        assert_eq!(rate.speed(now + WINDOW), Speed::default());
    }

    #[test]
    fn a_young_job_has_a_speed() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        rate.add(start, FileCounts { files: 4, bytes: 8 });
        assert_eq!(rate.speed(start + Duration::from_secs(4)), Speed { files: 1.0, bytes: 2.0 });
    }
}
