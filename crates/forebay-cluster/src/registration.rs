//! What a worker says of itself as time goes by: a state machine without I/O.
//!
//! A worker decides about itself and tells the result, so that no two machines compare their clocks. When it starts it looks
//! at when it joined lately: one that flaps is *damped*, it owns nothing until it has stayed for a while. Then it is active,
//! and *warming* for a time in which it asks the previous owners of its blocks before the origin. When it is asked to leave it
//! is draining until it has handed over what it holds, and drained then; when the request is taken back it is active again.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::records::members::{DrainProgress, WorkerState};

/// Joins within this time count.
const WINDOW: Duration = Duration::from_secs(600);
/// So many joins are nothing unusual: an upgrade, a reboot and a mistake.
const FREE_JOINS: usize = 3;
/// How long the first join too many is damped; each further one twice as long.
const FIRST_PENALTY: Duration = Duration::from_secs(30);
/// The longest that one is damped.
const LONGEST_PENALTY: Duration = Duration::from_secs(600);
/// When others may forget a join: far more than [`WINDOW`] and what their clocks differ by.
const OLD_AFTER: Duration = Duration::from_secs(24 * 3600);

/// When a worker joined lately, by its own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinHistory {
    /// Seconds since 1970, ascending.
    pub joins: Vec<u64>,
}

impl JoinHistory {
    /// Adds a join at `now`, in seconds since 1970, and forgets those that count no more. Returns how long the worker is to
    /// own nothing.
    pub fn join(&mut self, now: u64) -> Duration {
        // One that seems to come from the future was written before the clock was set back.
        self.joins.retain(|join| *join <= now && now - join < WINDOW.as_secs());
        self.joins.push(now);
        match self.joins.len().checked_sub(FREE_JOINS + 1) {
            None => Duration::ZERO,
            Some(too_many) => (FIRST_PENALTY * (1 << too_many.min(10))).min(LONGEST_PENALTY),
        }
    }

    /// Whether none of the joins counts any more at `now`, in seconds since 1970 by the clock of any machine.
    #[must_use]
    pub fn is_old(&self, now: u64) -> bool {
        self.joins.iter().all(|join| now.saturating_sub(*join) >= OLD_AFTER.as_secs())
    }
}

/// A worker on its way into the cluster and out of it.
#[derive(Clone, Debug)]
pub struct Registration {
    damped_until: Option<Instant>,
    /// How long a new worker asks previous owners.
    warmup: Duration,
    warm_at: Option<Instant>,
    drain: Option<Drain>,
}

#[derive(Clone, Copy, Debug)]
struct Drain {
    progress: DrainProgress,
    done: bool,
}

/// What the worker's record is to say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Standing {
    /// What it is about to do.
    pub state: WorkerState,
    /// Whether it is new.
    pub warming: bool,
    /// How far it is, if it leaves.
    pub drain: Option<DrainProgress>,
}

impl Registration {
    /// A worker that starts now: damped for `penalty`, then warming for `warmup`.
    #[must_use]
    pub fn new(now: Instant, penalty: Duration, warmup: Duration) -> Self {
        let damped_until = (!penalty.is_zero()).then(|| now + penalty);
        let warm_at = Some(damped_until.unwrap_or(now) + warmup);
        Self { damped_until, warmup, warm_at, drain: None }
    }

    /// It joined, for the first time or again after the others had lost it, and is damped for `penalty` for having done so
    /// too often.
    pub fn joined(&mut self, now: Instant, penalty: Duration) {
        if !penalty.is_zero() {
            self.damped_until = Some(now + penalty);
            self.warm_at = self.warm_at.max(Some(now + penalty + self.warmup));
        }
    }

    /// The worker is asked to leave. Returns whether that is news.
    pub fn drain(&mut self) -> bool {
        let news = self.drain.is_none();
        self.drain.get_or_insert(Drain { progress: DrainProgress::default(), done: false });
        news
    }

    /// It may stay after all. Returns whether that is news. What it holds may be out of date by what was read meanwhile, so
    /// it is new again.
    pub fn stay(&mut self, now: Instant) -> bool {
        let news = self.drain.take().is_some();
        if news {
            self.warm_at = Some(now + self.warmup);
        }
        news
    }

    /// How far it is in handing over.
    pub fn drained(&mut self, progress: DrainProgress, done: bool) {
        if let Some(drain) = &mut self.drain {
            *drain = Drain { progress, done };
        }
    }

    /// What its record is to say at `now`, and when that changes by itself.
    #[must_use]
    pub fn standing(&self, now: Instant) -> (Standing, Option<Instant>) {
        let ahead = |at: Option<Instant>| at.filter(|at| now < *at);
        let (damped, cold) = (ahead(self.damped_until), ahead(self.warm_at));
        let state = match (self.drain, damped) {
            (Some(Drain { done: true, .. }), _) => WorkerState::Drained,
            (Some(_), _) => WorkerState::Draining,
            (None, Some(_)) => WorkerState::Damped,
            (None, None) => WorkerState::Active,
        };
        let standing = Standing {
            state,
            warming: state == WorkerState::Active && cold.is_some(),
            drain: self.drain.map(|drain| drain.progress),
        };
        (standing, damped.or(cold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARMUP: Duration = Duration::from_secs(300);

    #[test]
    fn one_that_flaps_waits_longer_each_time_and_is_forgiven_after_a_while() {
        let mut history = JoinHistory::default();
        let penalties: Vec<u64> = (0..10).map(|at| history.join(1_000 + at).as_secs()).collect();
        assert_eq!(penalties, [0, 0, 0, 30, 60, 120, 240, 480, 600, 600]);
        assert_eq!(history.join(1_010 + WINDOW.as_secs()), Duration::ZERO);
        assert_eq!(history.joins.len(), 1, "what counts no more is not kept");
        assert_eq!(history.join(5), Duration::ZERO, "the clock was set back");
    }

    #[test]
    fn a_history_is_old_when_no_clock_has_its_last_join_count() {
        let mut history = JoinHistory::default();
        history.join(1_000);
        history.join(1_010);
        assert!(!history.is_old(0) && !history.is_old(1_010 + OLD_AFTER.as_secs() - 1));
        assert!(history.is_old(1_010 + OLD_AFTER.as_secs()));
    }

    #[test]
    fn a_worker_is_damped_then_warming_then_warm() {
        let start = Instant::now();
        let registration = Registration::new(start, FIRST_PENALTY, WARMUP);
        let at = |after: Duration| registration.standing(start + after);
        let (standing, next) = at(Duration::ZERO);
        assert_eq!((standing.state, standing.warming, next), (WorkerState::Damped, false, Some(start + FIRST_PENALTY)));
        let (standing, next) = at(FIRST_PENALTY);
        let warm_at = FIRST_PENALTY + WARMUP;
        assert_eq!((standing.state, standing.warming, next), (WorkerState::Active, true, Some(start + warm_at)));
        let mut again = registration.clone();
        again.joined(start, Duration::ZERO);
        assert_eq!(again.standing(start), registration.standing(start), "a lease that was lost once changes nothing");
        let (standing, next) = at(warm_at);
        assert_eq!((standing.state, standing.warming, next), (WorkerState::Active, false, None));
    }

    #[test]
    fn a_drain_ends_in_drained_and_can_be_taken_back() {
        let start = Instant::now();
        let mut registration = Registration::new(start, Duration::ZERO, Duration::ZERO);
        assert!(registration.drain() && !registration.drain());
        let progress = DrainProgress { bytes_total: 10, bytes_done: 4, bytes_moved: 3, failed: 1 };
        registration.drained(progress, false);
        let (standing, _) = registration.standing(start);
        assert_eq!((standing.state, standing.drain), (WorkerState::Draining, Some(progress)));
        registration.drained(progress, true);
        assert_eq!(registration.standing(start).0.state, WorkerState::Drained);
        assert!(registration.stay(start) && !registration.stay(start));
        registration.drained(progress, true);
        assert_eq!(registration.standing(start).0.state, WorkerState::Active, "a late word of a drain that was ended");
    }
}
