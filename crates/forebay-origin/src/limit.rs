//! How many requests may be under way at one origin: additive increase, multiplicative decrease.
//!
//! [`AdaptiveLimit`] is the pure rule, TCP's congestion avoidance in units of requests: every `limit` successes raise
//! the limit by one, up to the configured maximum, and a "slow down" halves it. The answers that say "slow down" come in
//! bursts, for requests that were all sent under the old limit, so the limit is halved at most once in a window;
//! otherwise one burst would take it to 1. Until the first of them every success raises the limit by one, as in TCP's
//! slow start: from 128 to 256 it would else take 24,000 requests, which a program that reads little never makes.
//!
//! [`Limiter`] is the async shell: it hands out permits, in the order of asking.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The least time between two halvings: about as long as a request takes, the unit in which an origin's answers to one
/// burst arrive.
const HALVING_WINDOW: Duration = Duration::from_secs(1);

/// The rule.
#[derive(Debug)]
pub(crate) struct AdaptiveLimit {
    limit: usize,
    max: usize,
    successes: usize,
    last_halved: Option<Instant>,
}

impl AdaptiveLimit {
    /// Starts at half of `max`: high enough to be fast at once, low enough to have asked gently.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.max(1);
        Self { limit: max.div_ceil(2), max, successes: 0, last_halved: None }
    }

    /// The most requests that may be under way now.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A request succeeded.
    pub(crate) fn on_success(&mut self) {
        if self.limit == self.max {
            return;
        }
        self.successes += 1;
        if self.last_halved.is_none() || self.successes >= self.limit {
            self.successes = 0;
            self.limit += 1;
        }
    }

    /// The origin asked for fewer requests.
    pub(crate) fn on_throttle(&mut self, now: Instant) {
        if self.last_halved.is_some_and(|last| now < last + HALVING_WINDOW) {
            return;
        }
        self.last_halved = Some(now);
        self.successes = 0;
        self.limit = (self.limit / 2).max(1);
    }
}

/// Hands out permits within an [`AdaptiveLimit`].
#[derive(Debug)]
pub(crate) struct Limiter {
    semaphore: Arc<Semaphore>,
    state: Mutex<LimiterState>,
}

#[derive(Debug)]
struct LimiterState {
    rule: AdaptiveLimit,
    /// Permits that exist, in the semaphore or handed out.
    issued: usize,
}

/// Leave for one request; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    limiter: &'a Limiter,
    permit: Option<OwnedSemaphorePermit>,
}

impl Limiter {
    /// At most `max` requests at once.
    pub(crate) fn new(max: usize) -> Self {
        let rule = AdaptiveLimit::new(max);
        let issued = rule.limit();
        Self { semaphore: Arc::new(Semaphore::new(issued)), state: Mutex::new(LimiterState { rule, issued }) }
    }

    /// Waits for leave for one request.
    pub(crate) async fn acquire(&self) -> Permit<'_> {
        // The semaphore is never closed; without a permit the request would merely go uncounted.
        let permit = Arc::clone(&self.semaphore).acquire_owned().await.ok();
        Permit { limiter: self, permit }
    }

    /// A request succeeded.
    pub(crate) fn on_success(&self) {
        self.state.lock().rule.on_success();
        self.settle();
    }

    /// The origin asked for fewer requests.
    pub(crate) fn on_throttle(&self, now: Instant) {
        self.state.lock().rule.on_throttle(now);
        self.settle();
    }

    /// Brings the permits that exist to the limit, as far as they are not handed out: those follow as they come back.
    fn settle(&self) {
        let mut state = self.state.lock();
        let limit = state.rule.limit();
        if state.issued < limit {
            self.semaphore.add_permits(limit - state.issued);
            state.issued = limit;
        } else if state.issued > limit {
            state.issued -= self.semaphore.forget_permits(state.issued - limit);
        }
    }

    /// The most requests that may be under way now.
    #[cfg(test)]
    pub(crate) fn limit(&self) -> usize {
        self.state.lock().rule.limit()
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        if state.issued > state.rule.limit()
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
            state.issued -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn once_it_was_halved_the_limit_grows_by_one_for_every_limit_successes() {
        let mut rule = AdaptiveLimit::new(16);
        rule.on_throttle(Instant::now());
        assert_eq!(rule.limit(), 4);
        for expected in [4, 4, 4, 5, 5, 5, 5, 5, 6] {
            rule.on_success();
            assert_eq!(rule.limit(), expected);
        }
        for _ in 0..200 {
            rule.on_success();
        }
        assert_eq!(rule.limit(), 16);
    }

    #[test]
    fn until_an_origin_asks_for_fewer_every_success_lets_one_more_request_go() {
        let limiter = Limiter::new(8);
        let permits = || (limiter.limit(), limiter.semaphore.available_permits());
        assert_eq!(permits(), (4, 4));
        for expected in [5, 6, 7, 8, 8] {
            limiter.on_success();
            assert_eq!(permits(), (expected, expected));
        }
        limiter.on_throttle(Instant::now());
        limiter.on_success();
        assert_eq!(permits(), (4, 4));
    }

    #[test]
    fn a_burst_of_refusals_halves_the_limit_once() {
        let mut rule = AdaptiveLimit::new(64);
        let now = Instant::now();
        for millis in 0..100 {
            rule.on_throttle(now + Duration::from_millis(millis));
        }
        assert_eq!(rule.limit(), 16);
        rule.on_throttle(now + HALVING_WINDOW);
        assert_eq!(rule.limit(), 8);
    }

    #[tokio::test]
    async fn permits_that_are_out_when_the_limit_falls_are_not_handed_out_again() {
        let limiter = Limiter::new(8);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(limiter.acquire().await);
        }
        limiter.on_throttle(Instant::now());
        assert_eq!(limiter.limit(), 2);
        held.truncate(2);
        assert_eq!(limiter.semaphore.available_permits(), 0);
        held.truncate(1);
        assert_eq!(limiter.semaphore.available_permits(), 1);
        held.clear();
        assert_eq!(limiter.semaphore.available_permits(), 2);
    }

    proptest! {
        #[test]
        fn the_limit_stays_between_one_and_the_maximum(max in 0usize..200, steps in prop::collection::vec((any::<bool>(), 0u64..3000), 0..500)) {
            let mut rule = AdaptiveLimit::new(max);
            let mut now = Instant::now();
            for (success, millis) in steps {
                now += Duration::from_millis(millis);
                if success { rule.on_success() } else { rule.on_throttle(now) }
                prop_assert!((1..=max.max(1)).contains(&rule.limit()));
            }
        }
    }
}
