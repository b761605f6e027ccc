//! The shell around [`Liveness`]: what it is told, by the clock, and whom it tells.
//!
//! An operation is under way for as long as its [`UnderWay`] lives, which goes with the operation and its memory: it ends
//! when the kernel has ended the operation, whoever still waits for that.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use tokio::sync::watch;

use super::liveness::{Cause, Change, Direction, Liveness};

/// How a disk may hold readers up, and what it may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long a reader waits for a read that the kernel has; zero: for ever.
    pub(crate) read_timeout: Duration,
    /// Most bytes that reads under way may land in. If the disk hangs, this memory is gone until it goes on.
    pub(crate) read_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { read_timeout: Duration::ZERO, read_bytes: u64::MAX }
    }
}

/// What is known of a disk that does not answer.
#[derive(Debug, Default)]
struct WatchCounters {
    reads_given_up: AtomicU64,
    taken_out: AtomicU64,
    returned: AtomicU64,
}

/// What a disk's record says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchStats {
    pub(crate) is_out: bool,
    pub(crate) under_way: u64,
    pub(crate) reads_given_up: u64,
    pub(crate) taken_out: u64,
    pub(crate) returned: u64,
}

/// Whether a disk answers.
#[derive(Debug)]
pub(crate) struct Watch {
    dir: PathBuf,
    limits: Limits,
    liveness: Mutex<Liveness>,
    /// The same as the liveness says, for those who wait for it.
    is_out: watch::Sender<bool>,
    counters: WatchCounters,
}

/// An operation that the kernel has, until this drops.
#[derive(Debug)]
pub(crate) struct UnderWay {
    watch: Arc<Watch>,
    number: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.watch.liveness.lock().ended(self.number, now());
    }
}

/// Of a disk that is waited for.
impl Default for Watch {
    fn default() -> Self {
        Self::new(Path::new(""), Limits::default())
    }
}

impl Watch {
    pub(crate) fn new(dir: &Path, limits: Limits) -> Self {
        Self {
            dir: dir.to_owned(),
            limits,
            liveness: Mutex::new(Liveness::new(limits.read_timeout)),
            is_out: watch::Sender::new(false),
            counters: WatchCounters::default(),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether nothing is asked of the disk but probes.
    pub(crate) fn is_out(&self) -> bool {
        *self.is_out.borrow()
    }

    /// Waits until the disk is out.
    pub(crate) async fn taken_out(&self) {
        let mut is_out = self.is_out.subscribe();
        // Its sender is here.
        let _ = is_out.wait_for(|is_out| *is_out).await;
    }

    /// The kernel is about to have an operation.
    pub(super) fn begin(self: &Arc<Self>, direction: Direction) -> UnderWay {
        let number = self.liveness.lock().begun(direction, now());
        UnderWay { watch: Arc::clone(self), number }
    }

    /// A reader does not wait for its read any more.
    pub(super) fn gave_up(&self) {
        self.counters.reads_given_up.fetch_add(1, Ordering::Relaxed);
        self.note(|liveness| liveness.gave_up(now()));
    }

    /// Looks for operations that are overdue.
    pub(crate) fn look(&self) {
        self.note(|liveness| liveness.look(now()));
    }

    /// Whether a probe is to begin now; then its outcome is told to [`Watch::probed`].
    pub(crate) fn begin_probe(&self) -> bool {
        self.is_out() && self.liveness.lock().begin_probe(now())
    }

    /// What came of a probe.
    pub(crate) fn probed(&self, has_answered: bool) {
        self.note(|liveness| liveness.probed(has_answered, now()))
    }

    pub(crate) fn stats(&self) -> WatchStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let liveness = self.liveness.lock();
        WatchStats {
            is_out: liveness.is_out(),
            under_way: liveness.under_way() as u64,
            reads_given_up: count(&self.counters.reads_given_up),
            taken_out: count(&self.counters.taken_out),
            returned: count(&self.counters.returned),
        }
    }

    fn note(&self, happened: impl FnOnce(&mut Liveness) -> Option<Change>) {
        let mut liveness = self.liveness.lock();
        let Some(change) = happened(&mut liveness) else { return };
        // Under the lock, so that changes are told in their order.
        self.is_out.send_replace(liveness.is_out());
        let under_way = liveness.under_way();
        drop(liveness);
        let dir = self.dir.display();
        match change {
            Change::TakenOut(cause) => {
                self.counters.taken_out.fetch_add(1, Ordering::Relaxed);
                let cause = match cause {
                    Cause::ReadsInARow(reads) => {
                        format!("{reads} reads in a row took longer than {:?}", self.limits.read_timeout)
                    }
                    Cause::Overdue(Direction::Read, taken) => format!("a read takes {taken:?}"),
                    Cause::Overdue(Direction::Write, taken) => format!("a write takes {taken:?}"),
                };
                tracing::warn!(%dir, cause, under_way, "disk hangs and is taken out: what it has is read elsewhere");
            }
            Change::Returned(out_for) => {
                self.counters.returned.fetch_add(1, Ordering::Relaxed);
                tracing::info!(%dir, ?out_for, "disk answers again and is used again");
            }
        }
    }
}

/// By the runtime's clock, which tests may turn.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_disk_hears_when_it_is_taken_out() {
        let limits = Limits { read_timeout: Duration::from_secs(2), ..Limits::default() };
        let watch = Arc::new(Watch::new(Path::new("/d"), limits));
        let waiting = tokio::spawn({
            let watch = Arc::clone(&watch);
            async move { watch.taken_out().await }
        });
        let stuck = watch.begin(Direction::Read);
        tokio::time::sleep(Duration::from_secs(3)).await;
        watch.look();
        assert!(!waiting.is_finished() && !watch.is_out());
        tokio::time::sleep(Duration::from_secs(1)).await;
        watch.look();
        waiting.await.unwrap();
        assert!(watch.is_out() && !watch.begin_probe());
        drop(stuck);
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(watch.begin_probe());
            watch.probed(true);
        }
        let expected = WatchStats { taken_out: 1, returned: 1, ..WatchStats::default() };
        assert_eq!(watch.stats(), expected);
    }
}
