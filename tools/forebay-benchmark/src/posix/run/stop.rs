//! Asking a run to end, from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Whether a run is to end. Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicU32>,
    /// So many have been heard.
    heard: u32,
}

impl Stop {
    /// Asks it to end. What is under way is ended, the record kept, what was made cleaned up; asked again, the cleaning ends, too.
    pub fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > self.heard
    }

    /// For what is done after it was asked: to be asked again.
    pub(super) fn again(&self) -> Self {
        Self { asked: Arc::clone(&self.asked), heard: self.asked.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cleans_up_after_a_stop_ends_at_the_next_one() {
        let stop = Stop::default();
        let asking = stop.clone();
        assert!(!stop.is_asked());
        asking.ask();
        assert!(stop.is_asked());
        let cleaning = stop.again();
        assert!(!cleaning.is_asked());
        asking.ask();
        assert!(cleaning.is_asked());
    }
}
