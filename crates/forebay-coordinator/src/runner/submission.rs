//! How a job is taken: it is listed, written down, and then run.
//!
//! The state store may carry out a write and its answer be lost. A record that this process did not know of could be
//! neither seen nor stopped, and the next leader would run it. So a job is listed before it is written, and when it is
//! not known whether it was, the same record is written again until that is known, or until another coordinator leads
//! and finds what there is. It does not run before that.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::course;
use super::entry::{Entry, Taken};
use super::error::RunnerError;
use super::shared::RunnerShared;

/// How long after a write of which the outcome is not known the next try is.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// Writes a new job down and runs it.
pub(super) async fn run(shared: Arc<RunnerShared>, entry: Arc<Entry>) {
    let taken = tokio::select! {
        taken = write_down(&shared, &entry) => taken,
        // What is still being written then gets there only if no other coordinator leads yet: the next leader finds it.
        () = shared.ended.cancelled() => Taken::Deposed,
    };
    let is_written = matches!(taken, Taken::Written);
    if !is_written {
        shared.entries.lock().remove(&entry.id);
    }
    entry.taken.send_replace(taken);
    if is_written {
        course::run(shared, entry).await;
    }
}

/// Waits until something is known about a job that was submitted: not longer than the state store takes to answer once.
pub(super) async fn outcome(entry: &Entry) -> Result<(), RunnerError> {
    let mut taken = entry.taken.subscribe();
    let known = taken.wait_for(|taken| !matches!(taken, Taken::Asked)).await.map(|taken| taken.clone());
    match known {
        Ok(Taken::Written) => Ok(()),
        Ok(Taken::Unclear(error)) => Err(RunnerError::Unclear { id: entry.id.clone(), error }),
        Ok(Taken::Refused(error)) => Err(RunnerError::State(error)),
        // The sender is in the entry, so none of these is seen but the first.
        Ok(Taken::Deposed | Taken::Asked) | Err(_) => Err(RunnerError::Deposed),
    }
}

/// Writes until it is known whether the job is written.
async fn write_down(shared: &RunnerShared, entry: &Entry) -> Taken {
    let mut is_unclear = false;
    loop {
        match shared.write(entry).await {
            Ok(()) => return Taken::Written,
            // That this try was refused says nothing about the ones before.
            Err(RunnerError::State(error)) if is_unclear || error.is_unavailable() => {
                if !is_unclear {
                    tracing::warn!(job = entry.id, %error, "a new job may not be written down: it is tried again");
                }
                is_unclear = true;
                entry.taken.send_replace(Taken::Unclear(error));
            }
            Err(RunnerError::State(error)) => return Taken::Refused(error),
            Err(_) => return Taken::Deposed,
        }
        sleep(WRITE_AGAIN).await;
    }
}
