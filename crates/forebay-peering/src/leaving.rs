//! Hands over what a worker holds when the cluster asks it to leave, and stays when it is asked to.

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::Membership as _;
use forebay_cluster::records::members::DrainProgress;
use forebay_state::membership::{Members, Registered};
use forebay_worker::{DrainOptions, DrainVerdict, Worker};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::worker_peers::WorkerPeers;

/// How long until what could not be handed over is tried again.
const DRAIN_AGAIN: Duration = Duration::from_secs(5);
/// How often a worker that is to leave looks whether it is out of the ring yet.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// See above.
pub(crate) struct Leaving {
    pub(crate) name: String,
    pub(crate) worker: Arc<Worker>,
    pub(crate) peers: Arc<WorkerPeers>,
    pub(crate) registered: Arc<Registered>,
    pub(crate) members: Arc<Members>,
    pub(crate) options: DrainOptions,
}

impl Leaving {
    pub(crate) async fn whenever_asked(self, stop: CancellationToken) {
        let mut leave = self.registered.leave();
        loop {
            tokio::select! {
                asked = leave.wait_for(|leave| *leave) => if asked.is_err() { return },
                () = stop.cancelled() => return,
            }
            let over = stop.child_token();
            let taken_back = async {
                let _ = leave.wait_for(|leave| !*leave).await;
                over.cancel();
            };
            tokio::join!(taken_back_or(taken_back, &over), self.hand_over(&over));
            if stop.is_cancelled() {
                return;
            }
        }
    }

    /// Hands over again and again until all is handed over, and then waits for `over`. Ends early when `over` is
    /// cancelled.
    async fn hand_over(&self, over: &CancellationToken) {
        // Until all others know, they would give it back.
        while self.members.topology().ring.position(&self.name).is_some() && !over.is_cancelled() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        info!(worker = self.name, "handing over what this worker holds");
        while !over.is_cancelled() {
            let verdict = self.pass(over).await;
            info!(worker = self.name, verdict = verdict.name(), "handed over");
            if verdict == DrainVerdict::Complete {
                // What is read through it from now on stays behind, and its new owners have their own.
                over.cancelled().await;
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(DRAIN_AGAIN) => {}
                () = over.cancelled() => {}
            }
        }
    }

    async fn pass(&self, over: &CancellationToken) -> DrainVerdict {
        let (tell, mut told) = watch::channel(forebay_worker::DrainProgress::default());
        let targets = Arc::clone(&self.peers) as Arc<dyn forebay_worker::DrainTargets>;
        let tell_on = async {
            while told.changed().await.is_ok() {
                let progress = *told.borrow_and_update();
                self.registered.drained(recorded(progress), progress.verdict == DrainVerdict::Complete);
            }
        };
        let work = async move { self.worker.drain(targets, self.options, &tell, over).await };
        let (progress, ()) = tokio::join!(work, tell_on);
        self.registered.drained(recorded(progress), progress.verdict == DrainVerdict::Complete);
        progress.verdict
    }
}

async fn taken_back_or(taken_back: impl Future<Output = ()>, over: &CancellationToken) {
    tokio::select! {
        () = taken_back => {}
        () = over.cancelled() => {}
    }
}

fn recorded(progress: forebay_worker::DrainProgress) -> DrainProgress {
    DrainProgress {
        bytes_total: progress.bytes_total,
        bytes_done: progress.bytes_done,
        bytes_moved: progress.bytes_adopted,
        failed: progress.runs_failed,
    }
}
