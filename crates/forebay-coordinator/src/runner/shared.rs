//! What the tasks of a runner share: the jobs that it lists, where they are written down, and how many may run.
//!
//! A write that is refused because another coordinator leads ends all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_locks::Mutex;
use forebay_state::Revision;
use forebay_types::FsPath;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::deliver::MaterialiseRequests;
use super::entry::{Entry, Taken};
use super::error::RunnerError;
use super::options::RunnerOptions;
use super::record_store::{MAX_AT_ONCE, RecordStore};
use crate::cache::CacheAccess;
use crate::clock::wall_clock;
use crate::jobs::{JobRecord, JobSpec};

pub(super) struct RunnerShared {
    pub(super) name: String,
    pub(super) records: RecordStore,
    pub(super) requests: MaterialiseRequests,
    pub(super) cache: Arc<dyn CacheAccess>,
    pub(super) options: RunnerOptions,
    pub(super) entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    pub(super) turns: Semaphore,
    pub(super) blocks: Semaphore,
    /// Ends the runner: it is closed, or was deposed.
    pub(super) ended: CancellationToken,
}

impl RunnerShared {
    /// Lists a job.
    pub(super) fn enter(&self, record: JobRecord, taken: Taken) -> Arc<Entry> {
        let entry = Arc::new(Entry::new(record, self.options.limits, taken));
        self.entries.lock().insert(entry.id.clone(), Arc::clone(&entry));
        entry
    }

    pub(super) fn entry(&self, id: &str) -> Result<Arc<Entry>, RunnerError> {
        self.entries.lock().get(id).cloned().ok_or_else(|| RunnerError::NoJob(id.to_owned()))
    }

    /// Jobs that are not ended.
    pub(super) fn open(&self) -> usize {
        self.entries.lock().values().filter(|entry| !entry.is_ended()).count()
    }

    /// The job of `spec` that goes on. One that was asked to stop is of no use to who submits it again, and while the state store is
    /// away it does not end.
    pub(super) fn unfinished(&self, spec: &JobSpec) -> Option<Arc<Entry>> {
        let entries = self.entries.lock();
        let same = |entry: &&Arc<Entry>| {
            entry.spec.kind() == spec.kind()
                && entry.spec.path() == spec.path()
                && entry.spec.index_file() == spec.index_file()
                && entry.spec.to_clients() == spec.to_clients()
                && !entry.is_ending()
        };
        entries.values().find(same).cloned()
    }

    /// Writes a job down as it is when its turn to be written comes.
    pub(super) async fn write(&self, entry: &Entry) -> Result<(), RunnerError> {
        let mut known = entry.writing.lock().await;
        let record = entry.job.lock().record(wall_clock());
        self.save(&record, None, &mut known).await
    }

    /// The same, and mounts are asked to keep `path`.
    pub(super) async fn write_request(&self, entry: &Entry, path: &FsPath) -> Result<(), RunnerError> {
        let mut known = entry.writing.lock().await;
        let record = entry.job.lock().record(wall_clock());
        self.save(&record, Some(path), &mut known).await
    }

    /// Writes it down without all that a job can do without once it has ended, for a record that is too large.
    pub(super) async fn write_in_brief(&self, entry: &Entry) -> Result<(), RunnerError> {
        let mut known = entry.writing.lock().await;
        let record = entry.job.lock().record(wall_clock()).in_brief();
        self.save(&record, None, &mut known).await
    }

    async fn save(
        &self,
        record: &JobRecord,
        wanted: Option<&FsPath>,
        known: &mut Option<Revision>,
    ) -> Result<(), RunnerError> {
        if self.ended.is_cancelled() {
            return Err(RunnerError::Deposed);
        }
        if self.records.save(record, wanted, known).await? {
            return Ok(());
        }
        tracing::warn!(job = %record.id, "another coordinator leads by now: jobs are let go of");
        self.ended.cancel();
        Err(RunnerError::Deposed)
    }

    /// Drops what ended long ago, and the oldest of too many. One whose end is still to be written would come back with that.
    pub(super) async fn forget_old(&self) {
        let entries: Vec<_> = self.entries.lock().values().cloned().collect();
        let mut ended: Vec<_> = entries
            .iter()
            .filter(|entry| entry.is_settled.load(Ordering::Acquire))
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
        for some in old.chunks(MAX_AT_ONCE) {
            match self.records.delete(some).await {
                Ok(()) => self.entries.lock().retain(|id, _| !some.contains(id)),
                // They are found again when the next job ends.
                Err(error) => tracing::warn!(%error, "old jobs are not forgotten yet"),
            }
        }
    }
}
