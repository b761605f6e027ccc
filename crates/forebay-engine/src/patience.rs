//! When a read that waited for a fetch in vain fetches anew.

use std::time::Duration;

use forebay_types::{Failure, FailureKind};
use tokio::time::Instant;

/// Why a read has failed.
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    /// When the fetch began that failed so; `None` if none did.
    pub(crate) since: Option<Instant>,
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self { failure, since: None }
    }
}

/// How long a read may take that has asked, and what became of the fetches that it waited for.
pub(crate) struct Patience {
    asked: Instant,
    pub(crate) deadline: Instant,
    /// What a fetch failed with that had begun before.
    earlier: Option<Failure>,
}

impl Patience {
    /// That of a read that asks now.
    pub(crate) fn new(deadline: Duration) -> Self {
        let asked = Instant::now();
        Self { asked, deadline: asked + deadline, earlier: None }
    }

    /// A fetch that had begun before a read asked has less time left than that read: what was in its way may be gone before the read's
    /// is over. What is fetched anew is fetched once for all that come as late, and is no earlier one.
    ///
    /// # Errors
    /// When it is final.
    pub(crate) fn tries_again_after(&mut self, failed: Failed, now: Instant) -> Result<(), Failure> {
        let Failed { failure, since } = failed;
        let had_begun = since.is_some_and(|since| since < self.asked);
        if had_begun && failure.kind().is_transient() && now < self.deadline {
            self.earlier = Some(failure);
            return Ok(());
        }
        match self.earlier.take() {
            // What it waited for in vain says more than that its time is over.
            Some(earlier) if since.is_none() && failure.kind() == FailureKind::TimedOut => Err(earlier),
            _ => Err(failure),
        }
    }
}
