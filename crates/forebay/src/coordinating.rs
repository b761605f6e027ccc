//! A coordinator in the life of its process: what `coordinator` and `up` have in common.
//!
//! `forebay-coordinator` decides and answers; here are its seams: the cache, through a client of the workers, and who is in the
//! cluster, from what this process knows of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use forebay_client::Client;
use forebay_cluster::records::members::{WORKERS, WorkerRecord, WorkerState};
use forebay_cluster::records::mounts::MountRecord;
use forebay_cluster::{Freshness, topology_of};
use forebay_config::Loaded;
use forebay_coordinator::{
    CacheAccess, ClusterView, Coordinator, CoordinatorOptions, HeldBytes, Loaded as LoadedBlock, RunnerOptions,
};
use forebay_metrics::{ProcessStats, Readiness, counters};
use forebay_registry::{Members, Table};
use forebay_transport::message::{FreeReply, ListReply};
use forebay_types::{Attr, BlockKey, Failure, FailureKind, FileId, FileVersion, FsPath};
use serde_json::{Value, json};

use crate::cluster::{self, Cluster};
use crate::hot::Hot;
use crate::{metrics, namespaces};

/// The coordinator of this process.
pub(crate) struct Coordinating {
    coordinator: Arc<Coordinator>,
    view: Arc<View>,
    hot: Hot,
}

impl Coordinating {
    /// Starts a coordinator that listens at `address` and is reached at `advertised`, and reads through `client`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(crate) async fn start(
        loaded: &Loaded,
        cluster: &Cluster,
        client: Client,
        address: SocketAddr,
        advertised: Option<String>,
    ) -> anyhow::Result<Self> {
        let config = &loaded.config;
        let workers = Table::watch(cluster.store(), WORKERS, WorkerRecord::decode);
        let view = Arc::new(View {
            client: client.clone(),
            workers: parking_lot::Mutex::new(Some(workers)),
            members: Arc::clone(cluster.members()),
        });
        let blocks = config.coordinator_job_concurrency as usize;
        let mut runner = RunnerOptions { blocks, ..RunnerOptions::default() };
        runner.limits.blocks = runner.limits.blocks.min(blocks);
        runner.limits.block_size = u32::try_from(config.block_size.as_u64()).unwrap_or(forebay_types::MAX_BLOCK_SIZE);
        let checked = loaded.clone();
        let check = move |mount: &MountRecord, others: &[MountRecord]| check_mount(&checked, mount, others);
        // Two coordinators on one machine listen at two ports; which one port 0 will be is not known yet.
        let name = match (&advertised, address.port()) {
            (Some(advertised), _) => advertised.clone(),
            (None, 0) => format!("{}, process {}", address.ip(), std::process::id()),
            (None, _) => address.to_string(),
        };
        // It is there once it has started.
        let itself: Arc<OnceLock<Weak<Coordinator>>> = Arc::default();
        let (counted, client_of, members) = (Arc::clone(&itself), client.clone(), Arc::clone(cluster.members()));
        let site = metrics::site(Readiness::new(), move || {
            let coordinator = counted.get().and_then(Weak::upgrade);
            json!({
                "process": ProcessStats::now(),
                "client": client_of.report()["client"],
                "cluster": cluster::report(&client_of.topology(), Some(&members)),
                "coordinator": coordinator.map(|coordinator| counted_of(&coordinator)),
            })
        });
        let options = CoordinatorOptions {
            pages: counters(site),
            advertise: advertised,
            lease: config.cluster_lease_ttl,
            runner,
            mount_check: Some(Arc::new(check)),
            ..CoordinatorOptions::new(name, address, env!("CARGO_PKG_VERSION"))
        };
        let cache = Arc::new(Cache(client.clone()));
        let started = Coordinator::start(options, Arc::clone(cluster.store()), cache, Arc::clone(&view) as _).await;
        let coordinator = match started {
            Ok(coordinator) => coordinator,
            Err(error) => {
                view.close().await;
                return Err(error.into());
            }
        };
        let coordinator = Arc::new(coordinator);
        // Nobody else sets it.
        let _ = itself.set(Arc::downgrade(&coordinator));
        let hot = Hot::start(config, cluster, &coordinator, client);
        Ok(Self { coordinator, view, hot })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.coordinator.address()
    }

    /// Lets go of its jobs, for others to take over, and ends.
    pub(crate) async fn close(self) {
        self.hot.close().await;
        // A page that is being made has it for a moment at most.
        if let Some(coordinator) = Arc::into_inner(self.coordinator) {
            coordinator.close().await;
        }
        self.view.close().await;
    }
}

/// What a coordinator counts.
fn counted_of(coordinator: &Coordinator) -> Value {
    let reports = coordinator.reports();
    let mut jobs: BTreeMap<&str, u64> = BTreeMap::new();
    for report in &reports {
        *jobs.entry(report.state.as_str()).or_default() += 1;
    }
    let running = reports.iter().filter(|report| !report.state.is_final());
    let rate: f64 = running.map(|report| report.progress.bytes_per_second).sum();
    let failures: u64 = reports.iter().map(|report| report.failures.count).sum();
    json!({
        "leads": coordinator.is_leading(), "jobs": jobs, "bytes_per_second": rate, "failures": failures,
    })
}

/// Whether a mount can be beside the others.
fn check_mount(loaded: &Loaded, mount: &MountRecord, others: &[MountRecord]) -> Result<(), String> {
    let path = FsPath::new(&mount.path).map_err(|error| error.to_string())?;
    let taken = |at: &FsPath| *at == path;
    if loaded.config.mounts.iter().any(|mount| taken(&mount.path)) {
        return Err(format!("`{}` is a mount of the configuration; choose another path", mount.path));
    }
    if others.iter().any(|other| FsPath::new(&other.path).is_ok_and(|at| taken(&at)) && other.origin != mount.origin) {
        let next = "remove that mount first, or choose another path";
        return Err(format!("`{}` shows another origin already; {next}", mount.path));
    }
    namespaces::check(loaded, mount)
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

    async fn load_block(&self, version: &FileVersion, block: BlockKey, replicas: u8) -> Result<LoadedBlock, Failure> {
        let loaded = self.0.load_block(version, block, replicas).await?;
        let all = loaded.bytes * u64::from(loaded.workers);
        Ok(LoadedBlock { fetched: loaded.fetched, held: all.saturating_sub(loaded.fetched) })
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

    async fn read(&self, version: &FileVersion, offset: u64, length: u32) -> Result<Bytes, Failure> {
        let spans = self.0.open(version.clone()).read(offset, length).await?;
        let mut bytes = Vec::with_capacity(length as usize);
        spans.iter().for_each(|span| bytes.extend_from_slice(span));
        Ok(bytes.into())
    }

    async fn worker_stats(&self) -> Vec<(Arc<str>, Result<Value, Failure>)> {
        let parse = |text: String| {
            serde_json::from_str(&text).map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))
        };
        let answers = self.0.worker_stats().await;
        answers.into_iter().map(|(worker, answer)| (worker, answer.and_then(parse))).collect()
    }
}

/// Who is in the cluster.
struct View {
    client: Client,
    /// The workers of all groups; taken when it ends.
    workers: parking_lot::Mutex<Option<Table<WorkerRecord>>>,
    members: Arc<Members>,
}

impl View {
    /// Ends the watching of the workers.
    async fn close(&self) {
        let workers = self.workers.lock().take();
        if let Some(workers) = workers {
            workers.close().await;
        }
    }
}

#[async_trait::async_trait]
impl ClusterView for View {
    async fn status(&self) -> Value {
        let told = self.workers.lock().as_ref().and_then(|workers| workers.records().borrow().clone());
        let mut groups: BTreeMap<String, Vec<WorkerRecord>> = BTreeMap::new();
        for record in told.iter().flat_map(|records| records.values()) {
            groups.entry(record.group.clone()).or_default().push(record.clone());
        }
        let mut warnings = Vec::new();
        if let Freshness::LastKnown { since, reason } = self.members.knowledge().freshness {
            let waited = Duration::from_secs(since.elapsed().as_secs());
            warnings.push(format!(
                "the cluster's state cannot be reached for {}: the last known ring is in use ({reason})",
                humantime::format_duration(waited)
            ));
        }
        let mut members = Vec::new();
        for (group, records) in &groups {
            let topology = topology_of(records);
            let shares = topology.ring.shares();
            let share = |name: &str| topology.ring.position(name).map_or(0.0, |at| shares[at]);
            members.extend(records.iter().map(|record| described(record, share(&record.name))));
            let damped = records.iter().filter(|record| record.state == WorkerState::Damped).count();
            if damped > 0 {
                warnings.push(format!(
                    "{damped} of the workers of group `{group}` came and went too often, and own nothing for a while"
                ));
            }
            let nobody_stays = records.iter().all(|record| record.state != WorkerState::Active);
            if nobody_stays && records.iter().any(|record| record.state == WorkerState::Draining) {
                warnings.push(format!(
                    "no worker of group `{group}` stays: those that leave own its blocks until another one joins, or `forebay cluster \
                     undrain` keeps one"
                ));
            }
            let versions: std::collections::BTreeSet<_> = records.iter().map(|record| &record.version).collect();
            if versions.len() > 1 {
                warnings.push(format!("the workers of group `{group}` run {} different releases", versions.len()));
            }
        }
        if groups.is_empty() {
            // A fixed list, or the one worker of `up`.
            let topology = self.client.topology();
            let of_ring = topology.ring.members().iter().zip(topology.ring.shares());
            members.extend(of_ring.map(|(member, share)| {
                json!({
                    "name": &*member.name, "address": &*member.address, "state": "active",
                    "weight": member.weight, "share": share,
                })
            }));
        }
        if members.is_empty() {
            warnings.push("there are no workers".to_owned());
        }
        json!({ "members": members, "warnings": warnings })
    }
}

fn described(record: &WorkerRecord, share: f64) -> Value {
    // A struct of texts and numbers.
    let mut value = serde_json::to_value(record).unwrap_or_default();
    value["share"] = json!(share);
    value
}
