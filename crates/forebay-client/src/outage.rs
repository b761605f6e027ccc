//! While no worker can be reached: what waits for one, and that it is told once.
//!
//! An outage begins with the first request that every worker was silent to, and ends with the first answer of any. In between,
//! requests pause and try again, each until its own deadline; an answer to one ends the pauses of all. The log has one line of the
//! beginning and one of the end, however many requests wait.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use forebay_cluster::Pauses;
use forebay_locks::Mutex;
use forebay_types::Failure;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::stats::ClientStats;

/// See above.
#[derive(Default)]
pub(crate) struct Outage {
    /// How things are: calls look at this.
    standing: AtomicU8,
    since: Mutex<Option<Instant>>,
    over: Notify,
    closed: CancellationToken,
}

/// No worker has answered yet.
const UNKNOWN: u8 = 0;
/// The last that was heard of workers is an answer.
const WELL: u8 = 1;
/// There is an outage.
const AWAY: u8 = 2;

/// What requests do in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Wait, up to so long.
    Wait(Duration),
    /// Go to the origin.
    Origin,
}

impl Outage {
    /// No worker could be reached, because of `cause`, and this is done about it.
    #[cold]
    pub(crate) fn begin(&self, cause: Option<&Failure>, remedy: Remedy, stats: &ClientStats) {
        let mut since = self.since.lock();
        if since.is_some() {
            return;
        }
        *since = Some(Instant::now());
        self.standing.store(AWAY, Ordering::Relaxed);
        stats.outages.fetch_add(1, Ordering::Relaxed);
        let cause = cause.map(Failure::to_string).unwrap_or_else(|| "there is none".to_owned());
        match remedy {
            Remedy::Wait(most) => warn!(cause, ?most, "no worker can be reached: requests wait for one"),
            Remedy::Origin => warn!(cause, "no worker can be reached: reads go to the origin"),
        }
    }

    /// A worker answered.
    #[inline]
    pub(crate) fn answered(&self) {
        if self.standing.load(Ordering::Relaxed) != WELL {
            self.end();
        }
    }

    /// Whether no worker has ever answered, so that none is being restarted.
    pub(crate) fn is_first(&self) -> bool {
        self.standing.load(Ordering::Relaxed) == UNKNOWN
    }

    #[cold]
    fn end(&self) {
        let mut since = self.since.lock();
        self.standing.store(WELL, Ordering::Relaxed);
        let Some(since) = since.take() else { return };
        self.over.notify_waiters();
        info!(lasted = ?since.elapsed(), "a worker can be reached again");
    }

    /// Pauses before workers are asked again, but only until one has answered. Returns whether there is time left to
    /// ask, and the client is not closed.
    pub(crate) async fn pause(&self, pauses: &mut Pauses, stats: &ClientStats) -> bool {
        let Some(pause) = pauses.next(Instant::now().into_std(), rand::random()) else { return false };
        let _waits = Waiting::among(&stats.waiting_for_workers);
        let over = self.over.notified();
        if self.standing.load(Ordering::Relaxed) != AWAY {
            return true;
        }
        tokio::select! {
            () = self.closed.cancelled() => false,
            () = over => true,
            () = tokio::time::sleep(pause) => true,
        }
    }

    /// The same before workers are asked again of which one is not ready: that others have their answers does not make it so.
    pub(crate) async fn pause_for_one(&self, pauses: &mut Pauses, stats: &ClientStats) -> bool {
        let Some(pause) = pauses.next(Instant::now().into_std(), rand::random()) else { return false };
        let _waits = Waiting::among(&stats.waiting_for_workers);
        tokio::select! {
            () = self.closed.cancelled() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }

    /// From now on, no request waits any more.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }
}

/// One that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn among(all: &'a AtomicU64) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_cluster::Backoff;

    fn pauses(within: Duration) -> Pauses {
        let backoff = Backoff { initial: Duration::from_secs(3600), max: Duration::from_secs(3600) };
        Pauses::until((Instant::now() + within).into_std(), backoff)
    }

    const AGES: Duration = Duration::from_secs(100_000);

    #[tokio::test(start_paused = true)]
    async fn an_answer_ends_the_pauses_of_all_and_so_does_the_end_of_the_client() {
        let (outage, stats) = (Outage::default(), ClientStats::default());
        outage.begin(None, Remedy::Wait(AGES), &stats);
        outage.begin(None, Remedy::Wait(AGES), &stats);
        assert_eq!(stats.outages.load(Ordering::Relaxed), 1, "one that is on does not begin again");
        let answer = async {
            tokio::task::yield_now().await;
            assert_eq!(stats.waiting_for_workers.load(Ordering::Relaxed), 2);
            outage.answered();
        };
        let began = tokio::time::Instant::now();
        let (mut first, mut second) = (pauses(AGES), pauses(AGES));
        let waited = tokio::join!(outage.pause(&mut first, &stats), outage.pause(&mut second, &stats), answer);
        assert_eq!((waited.0, waited.1), (true, true));
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(stats.waiting_for_workers.load(Ordering::Relaxed), 0);

        outage.begin(None, Remedy::Wait(AGES), &stats);
        assert_eq!(stats.outages.load(Ordering::Relaxed), 2);
        let close = async { outage.close() };
        let (goes_on, ()) = tokio::join!(outage.pause(&mut first, &stats), close);
        assert!(!goes_on, "there is nobody left who would ask");
    }

    #[test]
    fn whether_a_worker_has_ever_answered_is_remembered() {
        let (outage, stats) = (Outage::default(), ClientStats::default());
        assert!(outage.is_first());
        outage.answered();
        assert!(!outage.is_first());
        outage.begin(None, Remedy::Origin, &stats);
        assert!(!outage.is_first());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_pauses_beyond_a_deadline_or_when_it_is_over_already() {
        let (outage, stats) = (Outage::default(), ClientStats::default());
        outage.begin(None, Remedy::Wait(AGES), &stats);
        assert!(!outage.pause(&mut pauses(Duration::from_secs(1)), &stats).await);
        outage.answered();
        let began = tokio::time::Instant::now();
        assert!(outage.pause(&mut pauses(AGES), &stats).await);
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
