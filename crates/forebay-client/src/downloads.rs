//! How many requests on blocks may be under way to workers of other processes at once: those of all readers, and what is fetched ahead
//! of them. A mount on a link that it shares takes no more of it than that; without a limit it is as many as are asked for.

use std::time::{Duration, Instant};

use forebay_types::{Failure, FailureKind};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::routes::Link;

/// The limit, if there is one.
pub(crate) struct Downloads(Option<Semaphore>);

impl Downloads {
    pub(crate) fn unlimited() -> Self {
        Self(None)
    }

    /// `most` at once.
    pub(crate) fn at_most(most: usize) -> Self {
        Self(Some(Semaphore::new(most.min(Semaphore::MAX_PERMITS))))
    }

    /// Waits for a turn to ask `link`, for `left` at most; it lasts until it is dropped. And what is left of that then.
    ///
    /// # Errors
    /// When no turn came.
    pub(crate) async fn turn(
        &self,
        link: &Link,
        left: Duration,
    ) -> Result<(Option<SemaphorePermit<'_>>, Duration), Failure> {
        let Some(turns) = self.0.as_ref().filter(|_| !link.is_local) else { return Ok((None, left)) };
        let began = Instant::now();
        match tokio::time::timeout(left, turns.acquire()).await {
            Ok(Ok(turn)) => Ok((Some(turn), left.saturating_sub(began.elapsed()))),
            // It is never closed.
            Ok(Err(_)) | Err(_) => {
                let message = "no turn to fetch from a worker in time; raise client.max_concurrency";
                Err(Failure::new(FailureKind::TimedOut, message))
            }
        }
    }
}
