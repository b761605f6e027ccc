//! Whether a member that failed is worth another try: a state machine without a clock.
//!
//! After a failure the member is left out for a while that doubles with each failure in a row. When the while is over,
//! one caller may try; the others go on leaving it out until that try has ended, so a dead member costs one request a
//! period and not all of them.

use std::time::{Duration, Instant};

/// How long a member is left out.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub initial: Duration,
    /// At most.
    pub max: Duration,
}

impl Backoff {
    /// The same, drawn evenly from the upper half of it, so that requests that failed together are not tried again
    /// together: `random` is drawn evenly from 0..1.
    #[must_use]
    pub fn jittered(&self, failures: u32, random: f64) -> Duration {
        self.after(failures).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }

    /// How long after `failures` in a row.
    fn after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        self.initial.saturating_mul(1 << doublings).min(self.max)
    }
}

/// The record of one member.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    failures: u32,
    /// Set while the member is left out.
    retry_at: Option<Instant>,
}

impl Health {
    /// Whether to send a request. Answering yes for a member that was left out counts as its one try: until it
    /// succeeds or fails, others are told no, for at most one more period.
    pub fn admit(&mut self, now: Instant, backoff: &Backoff) -> bool {
        match self.retry_at {
            None => true,
            Some(at) if now < at => false,
            Some(_) => {
                self.retry_at = Some(now + backoff.after(self.failures));
                true
            }
        }
    }

    /// Whether the member is left out at present.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.retry_at.is_some()
    }

    /// The member answered. Returns whether it had been left out.
    pub fn succeeded(&mut self) -> bool {
        let was_down = self.is_down();
        *self = Self::default();
        was_down
    }

    /// The member could not be reached. Returns whether this is news.
    pub fn failed(&mut self, now: Instant, backoff: &Backoff) -> bool {
        let news = !self.is_down();
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + backoff.after(self.failures));
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(500), max: Duration::from_secs(30) };

    #[test]
    fn a_dead_member_is_tried_by_one_caller_a_period() {
        let start = Instant::now();
        let mut health = Health::default();
        assert!(health.admit(start, &BACKOFF));
        assert!(health.failed(start, &BACKOFF));
        assert!(!health.admit(start + Duration::from_millis(499), &BACKOFF));
        let probe = start + Duration::from_millis(500);
        assert!(health.admit(probe, &BACKOFF));
        assert!(!health.admit(probe, &BACKOFF), "the second caller waits for the first one's try");
        assert!(!health.failed(probe, &BACKOFF), "still dead is no news");
        assert!(!health.admit(probe + Duration::from_millis(999), &BACKOFF));
        assert!(health.admit(probe + Duration::from_millis(1000), &BACKOFF));
        assert!(health.succeeded());
        assert!(health.admit(probe, &BACKOFF));
    }

    #[test]
    fn the_period_doubles_up_to_its_limit() {
        let now = Instant::now();
        let mut health = Health::default();
        for _ in 0..100 {
            health.failed(now, &BACKOFF);
        }
        assert!(!health.admit(now + Duration::from_millis(29_999), &BACKOFF));
        assert!(health.admit(now + BACKOFF.max, &BACKOFF));
    }
}
