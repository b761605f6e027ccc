//! When objects are gone over again: soon after something changed, and now and then in any case, as what was brought
//! about may be undone by somebody else.

use std::time::Duration;

use tokio::time::Instant;

/// Changes come in crowds: a chart has several objects.
const AFTER_CHANGE: Duration = Duration::from_millis(200);
/// Between two rounds. What a round writes is a change, too.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Without any change.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(60);
/// When something failed that may succeed.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// When the next round is.
#[derive(Debug)]
pub(super) struct Pace {
    last: Instant,
    due: Instant,
}

impl Pace {
    /// Nothing was gone over yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now, due: now }
    }

    /// When the next round is.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Something changed.
    pub(super) fn changed(&mut self, now: Instant) {
        self.due = self.due.min((now + AFTER_CHANGE).max(self.last + MIN_PAUSE));
    }

    /// A round has ended; the next one is wished for after this time.
    pub(super) fn ended(&mut self, now: Instant, again: Duration) {
        self.last = now;
        self.due = now + again.clamp(MIN_PAUSE, MAX_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_brings_the_next_round_forward_and_never_holds_it_up() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        pace.ended(start, MAX_PAUSE);
        pace.changed(start);
        assert_eq!(pace.due(), start + MIN_PAUSE, "what the round itself has written");
        pace.changed(start + MIN_PAUSE);
        assert_eq!(pace.due(), start + MIN_PAUSE);
        let later = start + Duration::from_secs(30);
        pace.ended(start, MAX_PAUSE);
        pace.changed(later);
        assert_eq!(pace.due(), later + AFTER_CHANGE);
        pace.ended(later, Duration::ZERO);
        assert_eq!(pace.due(), later + MIN_PAUSE);
        pace.ended(later, Duration::from_secs(86_400));
        assert_eq!(pace.due(), later + MAX_PAUSE);
    }
}
