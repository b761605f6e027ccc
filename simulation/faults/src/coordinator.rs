//! Coordinators: one leads, and runs jobs; and what is asked of them.
//!
//! The election and the runner of jobs are the product's; the REST interface in front of them is left out. A job that
//! was taken is watched in the cluster's state, as every process sees it: its state changes only as states may,
//! whichever coordinator leads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_client::Client;
use forebay_coordinator::jobs::{FreeSpec, JobSpec, JobState, LoadSpec};
use forebay_coordinator::{CacheAccess, HeldBytes, Loaded, Runner, RunnerOptions};
use forebay_state::{Election, StateStore};
use forebay_transport::message::{FreeReply, ListReply};
use forebay_types::{Attr, BlockKey, Failure, FileId, FileVersion, FsPath};
use rand::Rng;

use crate::cluster::{self, Settings};
use crate::etcd;
use crate::etcd::SimulatedEtcd;
use crate::kernel::{self, Process};
use crate::workload::Dataset;

/// As `forebay-coordinator` names it.
const LEADER: &str = "leader";
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// What was asked of coordinators.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reigns: u64,
    pub(crate) submitted: u64,
    pub(crate) succeeded: u64,
    pub(crate) failed: u64,
}

#[derive(Default)]
struct Seen {
    counts: Counts,
    leaders: BTreeMap<Process, Arc<Runner>>,
    /// The state of each job, as it was when it was looked at last, and since when.
    jobs: BTreeMap<String, (JobState, Duration)>,
    /// Jobs that were taken.
    taken: Vec<String>,
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::default();
}

fn seen<T>(with: impl FnOnce(&mut Seen) -> T) -> T {
    SEEN.with_borrow_mut(with)
}

/// What was asked so far.
pub(crate) fn counts() -> Counts {
    seen(|seen| seen.counts)
}

/// A coordinator's process is gone.
pub(crate) fn gone(node: usize) {
    let gone = seen(|seen| {
        let of_it: Vec<Process> = seen.leaders.keys().filter(|process| process.node == node).copied().collect();
        of_it.iter().filter_map(|process| seen.leaders.remove(process)).collect::<Vec<_>>()
    });
    drop(gone);
}

/// Starts the coordinator of a machine.
pub(crate) fn start(node: usize, settings: Settings, until_up: u64) {
    cluster::starts(node, until_up);
    kernel::start(node, move || {
        tokio::spawn(async move {
            let store: Arc<dyn StateStore> = SimulatedEtcd::new();
            let members = cluster::members_of(&store, &settings);
            members.told(Duration::from_secs(10)).await;
            let (client, _) = cluster::client_over(members, &settings).await;
            cluster::is_up(node);
            lead(node, store, client, settings).await;
        });
    });
}

/// As `forebay_coordinator::Coordinator` does.
async fn lead(node: usize, store: Arc<dyn StateStore>, client: Client, settings: Settings) {
    let (election, process) = (Election::new(Arc::clone(&store), LEADER, settings.lease), kernel::current());
    loop {
        match election.campaign(format!("c{node}")).await {
            Ok(leadership) => {
                let mut options = RunnerOptions { running: 3, ..RunnerOptions::default() };
                options.limits.block_size = settings.block_size;
                let cache = Arc::new(Cache(client.clone()));
                let started =
                    Runner::start(&format!("c{node}"), Arc::clone(&store), leadership.fence(), cache, options).await;
                match started {
                    Ok(runner) => {
                        kernel::note("leads");
                        let runner = Arc::new(runner);
                        seen(|seen| {
                            seen.counts.reigns += 1;
                            seen.leaders.insert(process, Arc::clone(&runner));
                        });
                        tokio::select! {
                            biased;
                            () = leadership.lost() => kernel::note("does not lead any more"),
                            () = runner.ended() => kernel::note("was deposed"),
                        }
                        drop(seen(|seen| seen.leaders.remove(&process)));
                        runner.close().await;
                    }
                    Err(error) => kernel::note(format!("cannot lead: {error}")),
                }
                leadership.resign().await;
            }
            Err(error) => kernel::note(format!("cannot stand for election: {error}")),
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// The cache, as jobs see it.
struct Cache(Client);

#[async_trait::async_trait]
impl CacheAccess for Cache {
    async fn stat(&self, path: &FsPath, fresh: bool) -> Result<Attr, Failure> {
        Ok(self.0.stat(path, fresh).await?.attr)
    }

    async fn list(&self, path: &FsPath, token: Option<&str>, max: u32) -> Result<ListReply, Failure> {
        self.0.list(path, token.map(str::to_owned), max, false).await
    }

    async fn load_block(&self, version: &FileVersion, block: BlockKey, replicas: u8) -> Result<Loaded, Failure> {
        let loaded = self.0.load_block(version, block, replicas).await?;
        let all = loaded.bytes * u64::from(loaded.workers);
        Ok(Loaded { fetched: loaded.fetched, held: all.saturating_sub(loaded.fetched) })
    }

    async fn coverage(
        &self,
        version: &FileVersion,
        block: BlockKey,
        replicas: u8,
        check: bool,
    ) -> Result<HeldBytes, Failure> {
        let held = self.0.held(self.0.layout(version.size), block, replicas, check).await?;
        Ok(HeldBytes(u64::from(held)))
    }

    async fn free(&self, files: &[(FileId, u64)]) -> Result<FreeReply, Failure> {
        self.0.free(files).await
    }

    async fn free_below(&self, path: &FsPath) -> Result<FreeReply, Failure> {
        self.0.free_below(path).await
    }

    async fn read(&self, version: &FileVersion, offset: u64, length: u32) -> Result<Bytes, Failure> {
        let spans = self.0.open(version.clone()).read(offset, length).await?;
        Ok(spans.iter().flat_map(|span| span.iter().copied()).collect::<Vec<u8>>().into())
    }

    fn placement(&self) -> u64 {
        self.0.placement()
    }

    async fn worker_stats(&self) -> Vec<(Arc<str>, Result<serde_json::Value, Failure>)> {
        Vec::new()
    }
}

/// Asks the leading coordinator for a job.
pub(crate) fn submit(dataset: &Dataset) {
    let leader = seen(|seen| seen.leaders.iter().next_back().map(|(process, runner)| (*process, Arc::clone(runner))));
    let Some((process, runner)) = leader.filter(|(process, _)| kernel::is_alive(*process)) else { return };
    let place = dataset.any();
    let path = if kernel::once_in(4) { place.shown } else { place.shown.parent() };
    let spec = match kernel::chance(|random| random.random_range(0..4)) {
        0 => JobSpec::Free(FreeSpec::new(path)),
        kind => JobSpec::Load(LoadSpec { verify: kind == 1, partial_listing: kind == 2, ..LoadSpec::new(path) }),
    };
    kernel::after_at(process, Duration::ZERO, move || {
        tokio::spawn(async move {
            match runner.submit(spec.clone()).await {
                Ok((report, is_new)) => {
                    kernel::note(format!("job {} was taken: {spec:?}", report.id));
                    if is_new {
                        seen(|seen| {
                            seen.counts.submitted += 1;
                            seen.taken.push(report.id);
                        });
                    }
                }
                Err(error) => kernel::note(format!("a job was not taken: {error}")),
            }
        });
    });
}

/// Looks at all jobs in the cluster's state.
pub(crate) fn look() {
    let entries = etcd::entries("jobs/");
    for entry in entries {
        let Ok(record) = serde_json::from_slice::<serde_json::Value>(&entry.value) else {
            kernel::violated("jobs", format!("the record {} cannot be read", entry.key));
            continue;
        };
        let id = record["id"].as_str().unwrap_or_default().to_owned();
        let Ok(state) = serde_json::from_value::<JobState>(record["state"].clone()) else { continue };
        let before = seen(|seen| seen.jobs.get(&id).copied());
        match before {
            Some((before, _)) if before == state => {}
            Some((before, _)) if !(before.may_become(state) || before == JobState::Waiting && state.is_final()) => {
                kernel::violated("jobs", format!("{id} was {before:?}, and is {state:?}"));
            }
            _ => seen(|seen| {
                seen.counts.succeeded += u64::from(state == JobState::Succeeded);
                seen.counts.failed += u64::from(state == JobState::Failed);
                seen.jobs.insert(id, (state, kernel::now()));
            }),
        }
    }
    // One that was taken is there, unless it ended and was forgotten.
    let lost = seen(|seen| seen.taken.iter().find(|id| !seen.jobs.contains_key(*id)).cloned());
    if let Some(lost) = lost {
        kernel::violated("jobs", format!("{lost} was taken and is not in the cluster's state"));
    }
}

/// Jobs that have been under way for longer than that.
pub(crate) fn older_than(age: Duration) -> Option<String> {
    let now = kernel::now();
    seen(|seen| {
        let old = seen.jobs.iter().find(|(_, (state, since))| !state.is_final() && *since + age < now);
        old.map(|(id, (state, since))| format!("{id} is {state:?} since {}", kernel::clock(since.as_nanos() as u64)))
    })
}
