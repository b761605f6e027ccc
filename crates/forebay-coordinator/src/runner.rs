//! Runs jobs: the shell around `jobs`.
//!
//! One coordinator of a cluster has a [`Runner`], the leader. It takes over every job that is not ended from the state
//! store, asks the cache what the jobs want to know, and writes their records down. Each write carries the condition
//! under which this process is the leader, so one that was deposed and does not know it yet changes nothing: the first
//! write that is refused ends its runner.
//!
//! What changes a job is done in tasks of the runner's own. The request that asked for it only waits for the outcome, and
//! may go away in the middle.
//!
//! What is under way is bounded for each job (`Limits`) and for all together; jobs beyond the number that may run wait
//! for their turn, in the order in which they came.

mod course;
mod deliver;
mod entry;
mod error;
mod options;
mod record_store;
mod shared;
mod submission;

use std::sync::Arc;

use forebay_locks::Mutex;
use forebay_state::{Condition, StateStore};
use forebay_types::FsPath;
use rand::Rng as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cache::CacheAccess;
use crate::clock::wall_clock;
use crate::jobs::{JobKind, JobRecord, JobReport, JobSpec};

pub use error::RunnerError;
pub use options::RunnerOptions;
pub(crate) use record_store::RecordStore;

use entry::{Entry, Taken};
use shared::RunnerShared;

/// Runs the jobs of a cluster while it leads.
pub struct Runner {
    shared: Arc<RunnerShared>,
    tasks: TaskTracker,
    /// One job is taken at a time, so that no two are for one path. When the last one was, so that no two are of one
    /// millisecond, and their order is known.
    submitting: Mutex<u64>,
}

impl Runner {
    /// Takes over the jobs in the state store. `leads` holds while this process leads.
    ///
    /// # Errors
    /// When the jobs cannot be read.
    pub async fn start(
        name: &str,
        store: Arc<dyn StateStore>,
        leads: Condition,
        cache: Arc<dyn CacheAccess>,
        options: RunnerOptions,
    ) -> Result<Self, RunnerError> {
        let requests = deliver::MaterialiseRequests::new(Arc::clone(&store), leads.clone(), options.mounts_away);
        let records = RecordStore::new(store, Some(leads));
        let found = records.list().await?;
        requests.clear(&found).await;
        let runner = Self {
            shared: Arc::new(RunnerShared {
                name: name.to_owned(),
                records,
                requests,
                cache,
                options,
                entries: Mutex::default(),
                turns: Semaphore::new(options.running),
                blocks: Semaphore::new(options.blocks),
                ended: CancellationToken::new(),
            }),
            tasks: TaskTracker::new(),
            submitting: Mutex::default(),
        };
        // Those that ran go first: they were first before.
        let (running, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|record| record.state == crate::jobs::JobState::Running);
        for record in running.into_iter().chain(others) {
            runner.resume(record);
        }
        runner.shared.forget_old().await;
        Ok(runner)
    }

    /// Takes a job, or finds the one of this kind for this path that is not ended, and not asked to. The flag says whether it is new.
    ///
    /// It is listed at once, and written down and run whether or not this future is waited for.
    ///
    /// # Errors
    /// When the options do not go together, too many jobs wait, or it cannot be written down. After
    /// [`RunnerError::Unclear`] the job is there, and submitting the same again finds it, unless it was stopped.
    pub async fn submit(&self, spec: JobSpec) -> Result<(JobReport, bool), RunnerError> {
        spec.check()?;
        let (entry, is_new) = self.take(spec)?;
        submission::outcome(&entry).await?;
        Ok((entry.report(), is_new))
    }

    /// Ends a job; one that has ended stays as it is. Written down before this returns.
    ///
    /// # Errors
    /// When there is no such job, or it cannot be written down: it ends all the same, unless this process dies now.
    pub async fn stop(&self, id: &str) -> Result<JobReport, RunnerError> {
        let entry = self.shared.entry(id)?;
        let is_open = !entry.is_ended();
        if is_open {
            entry.job.lock().stop();
            entry.stop.notify_one();
            let (shared, stopped) = (Arc::clone(&self.shared), Arc::clone(&entry));
            let written = self.tasks.spawn(async move { shared.write(&stopped).await }).await;
            // A task ends without an answer only with its runtime.
            written.unwrap_or(Err(RunnerError::Deposed))?;
        }
        Ok(entry.report())
    }

    /// How far a job is.
    ///
    /// # Errors
    /// When there is no such job.
    pub fn report(&self, id: &str) -> Result<JobReport, RunnerError> {
        Ok(self.shared.entry(id)?.report())
    }

    /// All jobs, the newest first.
    #[must_use]
    pub fn reports(&self) -> Vec<JobReport> {
        let entries: Vec<_> = self.shared.entries.lock().values().cloned().collect();
        let mut reports: Vec<_> = entries.iter().map(|entry| entry.report()).collect();
        newest_first(&mut reports);
        reports
    }

    /// Waits until this process was found not to lead any more.
    pub async fn ended(&self) {
        self.shared.ended.cancelled().await;
    }

    /// Lets go of all jobs, as they are: the next leader resumes them.
    pub async fn close(&self) {
        self.shared.ended.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The job of `spec` that goes on, or a new one, which a task writes down and runs.
    fn take(&self, spec: JobSpec) -> Result<(Arc<Entry>, bool), RunnerError> {
        let mut last = self.submitting.lock();
        if self.shared.ended.is_cancelled() {
            return Err(RunnerError::Deposed);
        }
        if let Some(entry) = self.shared.unfinished(&spec) {
            return Ok((entry, false));
        }
        let waiting = self.shared.open().saturating_sub(self.shared.options.running);
        if waiting >= self.shared.options.waiting {
            return Err(RunnerError::TooMany(waiting));
        }
        let now = wall_clock().max(*last + 1);
        *last = now;
        let id = format!("{}-{now:x}-{:04x}", spec.kind().as_str(), rand::rng().random::<u16>());
        let entry = self.shared.enter(JobRecord::new(id, spec, now), Taken::Asked);
        self.tasks.spawn(submission::run(Arc::clone(&self.shared), Arc::clone(&entry)));
        Ok((entry, true))
    }

    /// Goes on with a job that is in the state store.
    fn resume(&self, record: JobRecord) {
        let is_ended = record.state.is_final();
        let entry = self.shared.enter(record, Taken::Written);
        if !is_ended {
            self.tasks.spawn(course::run(Arc::clone(&self.shared), entry));
        }
    }
}

/// The newest job first.
pub(crate) fn newest_first(reports: &mut [JobReport]) {
    reports.sort_by(|a, b| b.created_ms.cmp(&a.created_ms).then_with(|| b.id.cmp(&a.id)));
}

/// The jobs of `reports` that are of this kind and for this path, where given.
pub(crate) fn matching(reports: Vec<JobReport>, path: Option<&FsPath>, kind: Option<JobKind>) -> Vec<JobReport> {
    let wanted = |report: &JobReport| {
        path.is_none_or(|path| report.spec.path() == path) && kind.is_none_or(|kind| report.spec.kind() == kind)
    };
    reports.into_iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests;
