//! What the handlers of the REST interface share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::mounts::MountRecord;
use forebay_state::{StateError, StateStore};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::api::{HotFile, Mount, OneWorker, WorkerStats};
use crate::cache::CacheAccess;
use crate::jobs::JobReport;
use crate::runner::{RecordStore, Runner, newest_first, wall_clock};
use crate::series::{Plot, Series, Window};

/// The key of the election.
pub(crate) const LEADER: &str = "leader";
/// Files that are told as the hottest.
const HOTTEST: usize = 20;
/// How long workers may take to answer with their counters. Each has a deadline of its own, too.
const STATS_WITHIN: Duration = Duration::from_secs(10);

/// What a coordinator knows of the cluster beside what the state store says.
#[async_trait::async_trait]
pub trait ClusterView: Send + Sync + 'static {
    /// An object that says who is in the cluster, with shares, versions and health. `warnings`, an array of sentences,
    /// is told first. Answers from what is known: it waits for nobody.
    async fn status(&self) -> Value;
}

/// Whether a mount can be, beside what its record says: an origin that can be opened, a path that does not collide with
/// the other mounts. The message of a refusal never tells an option's value.
pub type MountCheck = dyn Fn(&MountRecord, &[MountRecord]) -> Result<(), String> + Send + Sync;

/// The coordinator that leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaderRecord {
    /// Its name.
    pub name: String,
    /// Where its REST interface is, `HOST:PORT`.
    pub address: String,
}

pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) cache: Arc<dyn CacheAccess>,
    pub(crate) view: Arc<dyn ClusterView>,
    pub(crate) mount_check: Option<Arc<MountCheck>>,
    /// Those that no one can remove.
    pub(crate) mounts: Vec<Mount>,
    /// While this coordinator leads.
    pub(crate) runner: watch::Sender<Option<Arc<Runner>>>,
    pub(crate) series: Mutex<Series>,
    pub(crate) stats: Mutex<WorkerStats>,
}

impl Service {
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    pub(crate) fn store(&self) -> &dyn StateStore {
        &*self.store
    }

    pub(crate) fn view(&self) -> &dyn ClusterView {
        &*self.view
    }

    pub(crate) fn runner(&self) -> Option<Arc<Runner>> {
        self.runner.borrow().clone()
    }

    pub(crate) fn worker_stats(&self) -> WorkerStats {
        self.stats.lock().clone()
    }

    pub(crate) fn plot(&self, window: Window) -> Plot {
        self.series.lock().plot(window)
    }

    pub(crate) fn check_mount(&self, mount: &MountRecord, others: &[MountRecord]) -> Result<(), String> {
        self.mount_check.as_ref().map_or(Ok(()), |check| check(mount, others))
    }

    /// Who leads, if somebody does.
    pub(crate) async fn leader(&self) -> Result<Option<LeaderRecord>, StateError> {
        let entry = self.store.get(LEADER).await?;
        Ok(entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()))
    }

    /// All jobs, the newest first: as they are if they run here, or else as they were last written down.
    pub(crate) async fn job_reports(&self) -> Result<Vec<JobReport>, StateError> {
        if let Some(runner) = self.runner() {
            return Ok(runner.reports());
        }
        let records = RecordStore::new(Arc::clone(&self.store), None).list().await?;
        let mut reports: Vec<_> = records.iter().map(|record| JobReport::of(record, None)).collect();
        newest_first(&mut reports);
        Ok(reports)
    }

    /// Asks all workers for their counters.
    pub(crate) async fn sample(&self) {
        let Ok(answers) = tokio::time::timeout(STATS_WITHIN, self.cache.worker_stats()).await else { return };
        let now = wall_clock();
        let answered = answers.iter().filter_map(|(name, answer)| Some((name, answer.as_ref().ok()?)));
        self.series.lock().sample(now, answered);
        let mut workers: Vec<_> = answers.into_iter().map(one_worker).collect();
        workers.sort_by(|a, b| a.name.cmp(&b.name));
        let hottest = hottest(&workers);
        *self.stats.lock() = WorkerStats { as_of_ms: now, workers, hottest };
    }
}

fn one_worker((name, answer): (Arc<str>, Result<Value, forebay_types::Failure>)) -> OneWorker {
    let name = name.to_string();
    match answer {
        Ok(stats) => OneWorker { name, stats: Some(stats), error: None },
        Err(failure) => OneWorker { name, stats: None, error: Some(failure.to_string()) },
    }
}

/// Of what each worker says in `hottest`, an array of `{path, bytes_per_minute}`.
fn hottest(workers: &[OneWorker]) -> Vec<HotFile> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let told = workers.iter().filter_map(|worker| worker.stats.as_ref()?.get("hottest")?.as_array());
    for file in told.flatten() {
        if let (Some(path), Some(rate)) = (file["path"].as_str(), file["bytes_per_minute"].as_f64()) {
            let sum = sums.entry(path).or_default();
            *sum = sum.saturating_add(rate as u64);
        }
    }
    let hot = |(path, bytes_per_minute): (&str, u64)| HotFile { path: path.to_owned(), bytes_per_minute };
    let mut files: Vec<_> = sums.into_iter().map(hot).collect();
    files.sort_by(|a, b| b.bytes_per_minute.cmp(&a.bytes_per_minute).then_with(|| a.path.cmp(&b.path)));
    files.truncate(HOTTEST);
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_files_are_those_of_all_workers_together() {
        let worker =
            |files: Value| OneWorker { stats: Some(serde_json::json!({ "hottest": files })), ..OneWorker::default() };
        let workers = [
            worker(
                serde_json::json!([{ "path": "/a", "bytes_per_minute": 5 }, { "path": "/b", "bytes_per_minute": 4 }]),
            ),
            worker(serde_json::json!([{ "path": "/b", "bytes_per_minute": 3 }, { "path": "/bad" }])),
            OneWorker::default(),
        ];
        let files: Vec<_> = hottest(&workers).into_iter().map(|file| (file.path, file.bytes_per_minute)).collect();
        assert_eq!(files, [("/b".to_owned(), 7), ("/a".to_owned(), 5)]);
    }
}
