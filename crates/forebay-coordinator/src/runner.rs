//! Runs jobs: the shell around `jobs`.
//!
//! One coordinator of a cluster has a [`Runner`], the leader. It takes over every job that is not ended from the state
//! store, asks the cache what the jobs want to know, and writes their records down. Each write carries the condition
//! under which this process is the leader, so one that was deposed and does not know it yet changes nothing: the first
//! write that is refused ends its runner.
//!
//! What changes a job is done in tasks of the runner's own. Who asked for it, a request, may go away in the middle, and
//! waits for the outcome only.
//!
//! What is under way is bounded for each job (`Limits`) and for all together; jobs beyond the number that may run wait
//! for their turn, in the order in which they came.

mod course;
mod deliver;
mod record_store;
mod submission;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_state::{Condition, StateError, StateStore};
use forebay_types::FsPath;
use parking_lot::Mutex;
use rand::Rng as _;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cache::CacheAccess;
use crate::jobs::{Job, JobKind, JobRecord, JobReport, JobSpec, Limits, SpecProblem};

pub(crate) use record_store::RecordStore;
use submission::Taken;

/// How much jobs take.
#[derive(Clone, Copy, Debug)]
pub struct RunnerOptions {
    /// Of each job.
    pub limits: Limits,
    /// Jobs that run at once.
    pub running: usize,
    /// Jobs that may wait for their turn.
    pub waiting: usize,
    /// Requests for blocks that are under way, of all jobs together.
    pub blocks: usize,
    /// Jobs that ended and are remembered, at most.
    pub kept: usize,
    /// How long they are remembered.
    pub kept_for: Duration,
    /// A mount that is to keep files and is away for so long does not come back.
    pub mounts_away: Duration,
}

impl Default for RunnerOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            running: 4,
            waiting: 1000,
            blocks: 128,
            kept: 200,
            kept_for: Duration::from_secs(7 * 24 * 3600),
            mounts_away: Duration::from_secs(30),
        }
    }
}

/// Why a runner did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The options do not go together.
    #[error(transparent)]
    Spec(#[from] SpecProblem),
    /// No such job.
    #[error("there is no job `{0}`")]
    NoJob(String),
    /// Too many wait.
    #[error("{0} jobs wait for their turn already")]
    TooMany(usize),
    /// Another coordinator leads.
    #[error("another coordinator leads by now")]
    Deposed,
    /// A job was taken, and the state store did not say whether it has it. It is listed, and runs when it does.
    #[error("the job `{id}` was taken, but it is not known to be written down ({error})")]
    Unclear {
        /// The job.
        id: String,
        /// What the state store said.
        #[source]
        error: StateError,
    },
    /// The state store did not do it.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Runs the jobs of a cluster while it leads.
pub struct Runner {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    /// One job is taken at a time, so that no two are for one path. When the last one was, so that no two are of one
    /// millisecond, and their order is known.
    submitting: Mutex<u64>,
}

struct Shared {
    name: String,
    records: RecordStore,
    orders: deliver::Orders,
    cache: Arc<dyn CacheAccess>,
    options: RunnerOptions,
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    turns: Semaphore,
    blocks: Semaphore,
    /// Ends the runner: it is closed, or was deposed.
    ended: CancellationToken,
}

/// A job, under way or ended.
struct Entry {
    id: String,
    spec: JobSpec,
    job: Mutex<Job>,
    taken: watch::Sender<Taken>,
    /// Someone asked for its end.
    stop: Notify,
    /// Writes go one after the other, so that the last one is of the last state.
    writing: tokio::sync::Mutex<()>,
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
        let orders = deliver::Orders::new(Arc::clone(&store), leads.clone(), options.mounts_away);
        let records = RecordStore::new(store, Some(leads));
        let found = records.list().await?;
        orders.clear(&found).await;
        let runner = Self {
            shared: Arc::new(Shared {
                name: name.to_owned(),
                records,
                orders,
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

    /// Takes a job, or finds the one of this kind for this path that is not ended. The flag says whether it is new.
    ///
    /// It is listed at once, and written down and run whether or not this future is waited for.
    ///
    /// # Errors
    /// When the options do not go together, too many jobs wait, or it cannot be written down. After
    /// [`RunnerError::Unclear`] the job is there, and submitting the same again finds it.
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

    /// The job of `spec` that is not ended, or a new one, which a task writes down and runs.
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

impl Shared {
    /// Lists a job.
    fn enter(&self, record: JobRecord, taken: Taken) -> Arc<Entry> {
        let (id, spec) = (record.id.clone(), record.spec.clone());
        let entry = Arc::new(Entry {
            id: id.clone(),
            spec,
            job: Mutex::new(Job::new(record, self.options.limits, now())),
            taken: watch::Sender::new(taken),
            stop: Notify::new(),
            writing: tokio::sync::Mutex::default(),
        });
        self.entries.lock().insert(id, Arc::clone(&entry));
        entry
    }

    fn entry(&self, id: &str) -> Result<Arc<Entry>, RunnerError> {
        self.entries.lock().get(id).cloned().ok_or_else(|| RunnerError::NoJob(id.to_owned()))
    }

    /// Jobs that are not ended.
    fn open(&self) -> usize {
        self.entries.lock().values().filter(|entry| !entry.is_ended()).count()
    }

    fn unfinished(&self, spec: &JobSpec) -> Option<Arc<Entry>> {
        let entries = self.entries.lock();
        let same = |entry: &&Arc<Entry>| {
            entry.spec.kind() == spec.kind()
                && entry.spec.path() == spec.path()
                && entry.spec.index_file() == spec.index_file()
                && entry.spec.to_clients() == spec.to_clients()
                && !entry.is_ended()
        };
        entries.values().find(same).cloned()
    }

    /// Writes a job down as it is when its turn to be written comes.
    async fn write(&self, entry: &Entry) -> Result<(), RunnerError> {
        let _in_order = entry.writing.lock().await;
        let record = entry.job.lock().record(wall_clock());
        self.save(&record).await
    }

    async fn save(&self, record: &JobRecord) -> Result<(), RunnerError> {
        if self.ended.is_cancelled() {
            return Err(RunnerError::Deposed);
        }
        if self.records.save(record).await? {
            return Ok(());
        }
        tracing::warn!(job = %record.id, "another coordinator leads by now: jobs are let go of");
        self.ended.cancel();
        Err(RunnerError::Deposed)
    }

    /// Drops what ended long ago, and the oldest of too many.
    async fn forget_old(&self) {
        let entries: Vec<_> = self.entries.lock().values().cloned().collect();
        let mut ended: Vec<_> = entries
            .iter()
            .filter(|entry| entry.is_ended())
            .map(|entry| {
                let report = entry.report();
                (report.finished_ms.unwrap_or(report.created_ms), entry.id.clone())
            })
            .collect();
        ended.sort_unstable_by(|a, b| b.cmp(a));
        let oldest = wall_clock().saturating_sub(self.options.kept_for.as_millis() as u64);
        let old: Vec<_> = ended
            .into_iter()
            .enumerate()
            .filter(|(at, (finished, _))| *at >= self.options.kept || *finished < oldest)
            .map(|(_, (_, id))| id)
            .collect();
        for some in old.chunks(record_store::MOST_AT_ONCE) {
            match self.records.delete(some).await {
                Ok(()) => self.entries.lock().retain(|id, _| !some.contains(id)),
                // They are found again when the next job ends.
                Err(error) => tracing::warn!(%error, "old jobs are not forgotten yet"),
            }
        }
    }
}

impl Entry {
    fn report(&self) -> JobReport {
        self.job.lock().report(now(), wall_clock())
    }

    fn is_ended(&self) -> bool {
        self.job.lock().is_ended()
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

/// The clock of jobs: tokio's, which tests can stop.
fn now() -> std::time::Instant {
    tokio::time::Instant::now().into_std()
}

/// Milliseconds since 1970.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
