//! What the handlers of the REST interface share.

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::coordinators::LEADER;
use forebay_cluster::records::mounts::MountRecord;
use forebay_locks::Mutex;
use forebay_state::{StateError, StateStore};
use serde_json::Value;
use tokio::sync::watch;

use crate::cache::CacheAccess;
use crate::clock::wall_clock;
use crate::jobs::JobReport;
use crate::leader::{LeaderConnector, LeaderRecord};
use crate::mount::Mount;
use crate::runner::{RecordStore, Runner, newest_first};
use crate::series::{Plot, Series, Window};
use crate::worker_stats::WorkerStats;

/// How long workers may take to answer with their counters. Each has a deadline of its own, too.
const STATS_WITHIN: Duration = Duration::from_secs(10);

/// What a coordinator knows of the cluster beside what the state store says.
#[async_trait::async_trait]
pub trait ClusterView: Send + Sync + 'static {
    /// An object that says which members are in the cluster, with shares, versions and health. `warnings`, an array of
    /// sentences, is told first. Answers from what is known, without waiting.
    async fn status(&self) -> Value;
}

/// Whether a mount can be, beside what its record says: an origin that can be opened, a path that does not collide with
/// the other mounts. The message of a refusal never tells an option's value.
pub type MountCheck = dyn Fn(&MountRecord, &[MountRecord]) -> Result<(), String> + Send + Sync;

pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) store: Arc<dyn StateStore>,
    pub(crate) cache: Arc<dyn CacheAccess>,
    pub(crate) view: Arc<dyn ClusterView>,
    pub(crate) mount_check: Option<Arc<MountCheck>>,
    /// Those that no one can remove.
    pub(crate) mounts: Vec<Mount>,
    /// How the coordinator that leads is reached, if it is another one.
    pub(crate) connector: Arc<dyn LeaderConnector>,
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

    /// The coordinator that leads, if there is one.
    pub(crate) async fn leader(&self) -> Result<Option<LeaderRecord>, StateError> {
        let entry = self.store.get(LEADER).await?;
        Ok(entry.and_then(|entry| serde_json::from_slice(&entry.value).ok()))
    }

    /// The coordinator that leads, if that is another one.
    pub(crate) async fn other_leader(&self) -> Result<Option<LeaderRecord>, StateError> {
        Ok(self.leader().await?.filter(|leader| leader.name != self.name))
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
        *self.stats.lock() = WorkerStats::of(now, answers);
    }
}
