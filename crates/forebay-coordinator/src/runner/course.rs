//! One job from its turn to its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_types::{Failure, FailureKind};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, sleep, sleep_until};

use super::entry::Entry;
use super::error::RunnerError;
use super::shared::RunnerShared;
use crate::cache::CacheAccess;
use crate::clock::{now, wall_clock};
use crate::jobs::{Answer, Delivery, Question, Step};

/// How long after a failed write of a job's end the next try is.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// Waits for the turn, runs the job, and writes down how it ended.
pub(super) async fn run(shared: Arc<RunnerShared>, entry: Arc<Entry>) {
    let turn = tokio::select! {
        turn = shared.turns.acquire() => turn.ok(),
        () = entry.stop.notified() => None,
        () = shared.ended.cancelled() => return,
    };
    if !entry.job.lock().stop_asked() {
        entry.job.lock().start(&shared.name, wall_clock());
        tracing::info!(job = entry.id, path = %entry.spec.path(), "a job runs");
        let written = shared.write(&entry).await;
        if let Err(error) = written {
            tracing::warn!(job = entry.id, %error, "the start of a job is not written down yet");
        }
    }
    let is_ended = tokio::select! {
        () = work(&shared, &entry) => true,
        () = shared.ended.cancelled() => false,
    };
    if is_ended {
        // The state store may be away for long: others can run meanwhile.
        drop(turn);
        write_end(&shared, &entry).await;
    }
}

/// Does what the job says until it ends.
async fn work(shared: &RunnerShared, entry: &Entry) {
    let mut asked = FuturesUnordered::new();
    let mut writing = FuturesUnordered::new();
    loop {
        let step = {
            let mut job = entry.job.lock();
            job.placed(shared.cache.placement());
            job.next(now())
        };
        match step {
            Step::Ended => break,
            Step::Ask(id, question) => asked.push(async move { (id, ask(shared, entry, question).await) }),
            Step::Checkpoint => writing.push(shared.write(entry)),
            Step::Wait(until) => {
                let wake = async {
                    match until {
                        Some(until) => sleep_until(Instant::from_std(until)).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    Some((id, answer)) = asked.next() => entry.job.lock().answer(now(), id, answer),
                    Some(written) = writing.next() => {
                        if let Err(error) = written {
                            tracing::warn!(job = entry.id, %error, "the progress of a job is not written down");
                        }
                        entry.job.lock().written(now());
                    }
                    () = entry.stop.notified() => {}
                    () = wake => {}
                }
            }
        }
    }
    drop(asked);
    // A write that is given up may still happen, and would then replace the record of the end.
    while writing.next().await.is_some() {}
}

/// Writes down how a job ended: until it is, or another coordinator leads, or the state store says that it can never be.
async fn write_end(shared: &RunnerShared, entry: &Entry) {
    let mut in_brief = false;
    loop {
        let written = if in_brief { shared.write_in_brief(entry).await } else { shared.write(entry).await };
        match written {
            Ok(()) => break,
            Err(RunnerError::Deposed) => return,
            Err(RunnerError::State(error)) if error.is_lasting() && !in_brief => {
                tracing::warn!(job = entry.id, %error, "the end of a job is written down without the files that it names");
                in_brief = true;
                continue;
            }
            Err(RunnerError::State(error)) if error.is_lasting() => {
                tracing::error!(job = entry.id, %error, "the end of a job cannot be written down: the next leader runs it again");
                break;
            }
            Err(error) => tracing::warn!(job = entry.id, %error, "the end of a job is not written down yet"),
        }
        tokio::select! {
            () = sleep(WRITE_AGAIN) => {}
            () = shared.ended.cancelled() => return,
        }
    }
    entry.is_settled.store(true, Ordering::Release);
    let report = entry.report();
    tracing::info!(job = entry.id, state = report.state.as_str(), failures = report.failures.count, "a job ended");
    shared.forget_old().await;
}

/// The answer of the cache. Questions about blocks wait until there is room among those of all jobs.
async fn ask(shared: &RunnerShared, entry: &Entry, question: Question) -> Result<Answer, Failure> {
    let cache: &dyn CacheAccess = &*shared.cache;
    let _room = match &question {
        Question::Load { .. } | Question::Coverage { .. } => {
            let closed = |_| Failure::new(FailureKind::Unavailable, "the coordinator is shutting down");
            Some(shared.blocks.acquire().await.map_err(closed)?)
        }
        _ => None,
    };
    Ok(match question {
        Question::Stat { path, fresh } => Answer::Attributes(cache.stat(&path, fresh).await?),
        Question::List { path, token, max } => Answer::Listed(cache.list(&path, token.as_deref(), max).await?),
        Question::Read { version, offset, length } => Answer::Bytes(cache.read(&version, offset, length).await?),
        Question::Load { version, block, replicas } => {
            Answer::Loaded(cache.load_block(&version, block, replicas).await?)
        }
        Question::Coverage { version, block, replicas, check } => {
            Answer::Held(cache.coverage(&version, block, replicas, check).await?)
        }
        Question::Free { files } => Answer::Freed(cache.free(&files).await?),
        Question::FreeBelow { path } => Answer::Freed(cache.free_below(&path).await?),
        Question::Deliver { path } => {
            let requested = shared.write_request(entry, &path);
            let progress = |delivery: &Delivery| entry.job.lock().delivering(delivery);
            Answer::Delivered(shared.requests.deliver(&entry.id, &path, requested, progress).await?)
        }
    })
}
