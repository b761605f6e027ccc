//! Which of a peer's connections takes the next call: the one with the fewest bytes to come. Pure.
//!
//! An idle connection that is open is better than making another, and making another is better than queueing behind a
//! busy one, unless making it has just failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Some bytes of a connection's load, taken off again on drop.
#[derive(Debug)]
pub(crate) struct Load {
    total: Arc<AtomicU64>,
    bytes: u64,
    before: u64,
}

impl Load {
    /// Adds `bytes` to `total`.
    pub(crate) fn new(total: &Arc<AtomicU64>, bytes: u64) -> Self {
        let before = total.fetch_add(bytes, Ordering::Relaxed);
        Self { total: Arc::clone(total), bytes, before }
    }

    /// What the connection had to do when these were added.
    pub(crate) fn before(&self) -> u64 {
        self.before
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// What the choice knows of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Whether it can be used at once.
    pub(crate) open: bool,
    /// Bytes that calls on it still wait for, those that wait for it to be made included.
    pub(crate) load: u64,
    /// When making it may be tried again after a failure.
    pub(crate) retry_at: Option<Instant>,
}

impl Candidate {
    fn resting(&self, now: Instant) -> bool {
        !self.open && self.retry_at.is_some_and(|at| now < at)
    }
}

/// The index of the best of `candidates`; when all of them rest after failures, the least loaded all the same: whether
/// to try again is for the caller to decide.
pub(crate) fn choose(candidates: impl Iterator<Item = Candidate>, now: Instant) -> Option<usize> {
    candidates
        .enumerate()
        .min_by_key(|(_, candidate)| (candidate.resting(now), candidate.load, !candidate.open))
        .map(|(index, _)| index)
}

/// The index of the least loaded open one.
pub(crate) fn choose_open(candidates: impl Iterator<Item = Candidate>) -> Option<usize> {
    candidates
        .enumerate()
        .filter(|(_, candidate)| candidate.open)
        .min_by_key(|(_, candidate)| candidate.load)
        .map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const OPEN: Candidate = Candidate { open: true, load: 0, retry_at: None };
    const CLOSED: Candidate = Candidate { open: false, load: 0, retry_at: None };

    fn best(candidates: &[Candidate], now: Instant) -> Option<usize> {
        choose(candidates.iter().copied(), now)
    }

    #[test]
    fn an_idle_open_connection_is_preferred_and_a_new_one_to_a_busy_one() {
        let now = Instant::now();
        let busy = Candidate { load: 100, ..OPEN };
        assert_eq!(best(&[CLOSED, busy, OPEN], now), Some(2));
        assert_eq!(best(&[busy, CLOSED], now), Some(1));
        assert_eq!(best(&[busy, Candidate { load: 99, ..OPEN }], now), Some(1));
        assert_eq!(best(&[], now), None);
    }

    #[test]
    fn one_that_just_failed_rests_while_others_are_open() {
        let now = Instant::now();
        let failed = Candidate { retry_at: Some(now + Duration::from_secs(1)), ..CLOSED };
        let busy = Candidate { load: 1 << 30, ..OPEN };
        assert_eq!(best(&[failed, busy], now), Some(1));
        assert_eq!(best(&[failed, busy], now + Duration::from_secs(1)), Some(0));
        assert_eq!(best(&[failed, failed], now), Some(0));
        assert_eq!(choose_open([failed, CLOSED].into_iter()), None);
        assert_eq!(choose_open([failed, busy].into_iter()), Some(1));
    }
}
