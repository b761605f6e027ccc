//! A coordinator in the life of its process: what `coordinator` and `up` have in common.
//!
//! `forebay-coordinator` decides and answers. This module implements its interfaces: the cache, through a client of the
//! workers, and the members of the cluster, as this process knows them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use forebay_client::Client;
use forebay_cluster::records::members::{Capacity, WORKERS, WorkerRecord, WorkerState};
use forebay_cluster::records::mounts::MountRecord;
use forebay_cluster::{Freshness, topology_of};
use forebay_config::Loaded;
use forebay_coordinator::api::Mount;
use forebay_coordinator::{
    CacheAccess, ClusterView, Coordinator, CoordinatorOptions, HeldBytes, Listen, Loaded as LoadedBlock,
    PlainConnector, RunnerOptions,
};
use forebay_metrics::{MetricsServer, ProcessStats, Readiness, Token, counters};
use forebay_state::membership::{Members, Table};
use forebay_transport::message::{FreeReply, ListReply};
use forebay_types::{Attr, BlockKey, Failure, FailureKind, FileId, FileVersion, FsPath, Role};
use serde_json::{Value, json};

use crate::cluster::{self, Cluster};
use crate::elsewhere::Elsewhere;
use crate::hot::Hot;
use crate::security::{self, Security};
use crate::{assembly, binding, http, metrics, namespaces};

/// How often is looked whether another coordinator leads.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What is known of the cluster without its state.
#[derive(Clone)]
pub(crate) struct Known {
    /// What is mounted whatever the state says.
    pub(crate) mounts: Vec<forebay_config::Mount>,
    /// What the one worker of the cluster can hold, if that is in this process.
    pub(crate) own: Option<Capacity>,
}

/// The coordinator of this process.
pub(crate) struct Coordinating {
    coordinator: Arc<Coordinator>,
    view: Arc<View>,
    hot: Hot,
    /// What its address demands.
    token: Option<Token>,
    /// The listener for probes, if there is one.
    probes: Option<MetricsServer>,
}

impl Coordinating {
    /// Starts a coordinator that listens where `listen` says and is reached at `advertised`, and reads through `client`.
    ///
    /// # Errors
    /// When it cannot listen.
    pub(crate) async fn start(
        loaded: &Loaded,
        cluster: &Cluster,
        client: Client,
        known: Known,
        listen: Listen,
        advertised: Option<String>,
    ) -> anyhow::Result<Self> {
        let config = &loaded.config;
        let security = Security::open(config, Role::Coordinator, &security::machine())?;
        let connector = Arc::new(assembly::TcpConnector::of_asker(config, security)?);
        let leader = Arc::new(PlainConnector::from_source(binding::group_source(config)?));
        let workers = Table::watch(cluster.store(), WORKERS, WorkerRecord::decode);
        let group = config.cluster_cache_group.as_str().to_owned();
        let elsewhere = Elsewhere::new(group.clone(), workers.records(), connector);
        let view = Arc::new(View {
            client: client.clone(),
            workers: parking_lot::Mutex::new(Some(workers)),
            members: Arc::clone(cluster.members()),
            cluster: config.cluster_name.as_str().to_owned(),
            group,
            own: known.own,
            elsewhere: Arc::new(elsewhere),
        });
        let blocks = config.coordinator_job_concurrency as usize;
        let mut runner = RunnerOptions { blocks, ..RunnerOptions::default() };
        runner.limits.blocks = runner.limits.blocks.min(blocks);
        runner.limits.block_size = u32::try_from(config.block_size.as_u64()).unwrap_or(forebay_types::MAX_BLOCK_SIZE);
        let configured: Vec<Mount> = known.mounts.iter().map(shown).collect();
        let (checked, taken) = (loaded.clone(), known.mounts);
        let check = move |mount: &MountRecord, others: &[MountRecord]| check_mount(&checked, &taken, mount, others);
        // Two coordinators on one machine listen at two ports; which one port 0 will be is not known yet.
        let name = match (&advertised, &listen) {
            (Some(advertised), _) => advertised.clone(),
            (None, Listen::Address(address)) if address.port() != 0 => address.to_string(),
            (None, Listen::Address(address)) => format!("{}, process {}", address.ip(), std::process::id()),
            (None, Listen::Private { .. }) => format!("this machine, process {}", std::process::id()),
        };
        let token = match &listen {
            Listen::Private { web: Some((_, token)), .. } => Some(token.clone()),
            _ => None,
        };
        // It is there once it has started.
        let itself: Arc<OnceLock<Weak<Coordinator>>> = Arc::default();
        let (counted, client_of, members) = (Arc::clone(&itself), client.clone(), Arc::clone(cluster.members()));
        let certificates = cluster.certificates().cloned();
        let site = metrics::site(Readiness::new(), move || {
            let coordinator = counted.get().and_then(Weak::upgrade);
            json!({
                "process": ProcessStats::now(),
                "client": client_of.report()["client"],
                "cluster": cluster::report(&client_of.topology(), Some(&members)),
                "etcd": certificates.as_deref().map(cluster::report_certificates),
                "coordinator": coordinator.map(|coordinator| counted_of(&coordinator)),
            })
        });
        let options = CoordinatorOptions {
            leader,
            pages: counters(site),
            advertise: advertised,
            hosts: http::host_names(config),
            lease: config.cluster_lease_ttl,
            runner,
            mount_check: Some(Arc::new(check)),
            mounts: configured,
            ..CoordinatorOptions::new(name, listen, env!("CARGO_PKG_VERSION"))
        };
        let cache = Arc::new(Cache { client: client.clone(), elsewhere: Arc::clone(&view.elsewhere) });
        let started = Coordinator::start(options, Arc::clone(cluster.store()), cache, Arc::clone(&view) as _).await;
        let coordinator = match started {
            Ok(coordinator) => coordinator,
            Err(error) => {
                view.close().await;
                return Err(error.into());
            }
        };
        let coordinator = Arc::new(coordinator);
        // Nothing else sets it.
        let _ = itself.set(Arc::downgrade(&coordinator));
        let hot = Hot::start(config, cluster, &coordinator, client);
        let port = config.coordinator_health_port;
        let probes = http::probes(config, "coordinator.health.port", port, coordinator.readiness()).await;
        Ok(Self { coordinator, view, hot, token, probes })
    }

    /// Where it listens, if that is an address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.coordinator.address()
    }

    /// Where commands on this machine reach it.
    pub(crate) fn reached_at(&self) -> Option<String> {
        let socket = self.coordinator.socket().map(forebay_private::socket_address);
        // What demands a token is for a browser.
        let address = self.address().filter(|_| self.token.is_none());
        socket.or_else(|| address.map(|address| address.to_string()))
    }

    /// The URL of its web page, with the token that it demands.
    pub(crate) fn page(&self) -> Option<String> {
        let address = self.address()?;
        Some(match &self.token {
            Some(token) => format!("http://{address}/#token={}", token.reveal()),
            None => format!("http://{address}/"),
        })
    }

    /// Waits until it leads.
    pub(crate) async fn leads(&self) {
        self.coordinator.leads().await;
    }

    /// Waits until it leads, or another one of its cluster does.
    pub(crate) async fn is_led(&self) {
        let other = async {
            while !matches!(self.coordinator.leader().await, Ok(Some(_))) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = self.coordinator.leads() => {}
            () = other => {}
        }
    }

    /// Lets go of its jobs, for others to take over, and ends.
    pub(crate) async fn close(self) {
        self.hot.close().await;
        if let Some(probes) = &self.probes {
            probes.close().await;
        }
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

/// A mount of the configuration, without credentials that its URL may have.
fn shown(mount: &forebay_config::Mount) -> Mount {
    let origin = match url::Url::parse(&mount.origin) {
        Ok(mut url) if !url.username().is_empty() || url.password().is_some() => {
            // A URL with a user has a host, and so can have another.
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.to_string()
        }
        _ => mount.origin.clone(),
    };
    Mount { path: mount.path.to_string(), origin, options: BTreeMap::new() }
}

/// Whether a mount can be beside the others, and those that are `configured`.
fn check_mount(
    loaded: &Loaded,
    configured: &[forebay_config::Mount],
    mount: &MountRecord,
    others: &[MountRecord],
) -> Result<(), String> {
    let path = FsPath::new(&mount.path).map_err(|error| error.to_string())?;
    let taken = |at: &FsPath| *at == path;
    if configured.iter().any(|mount| taken(&mount.path)) {
        return Err(format!("`{}` is a mount of the configuration; choose another path", mount.path));
    }
    if others.iter().any(|other| FsPath::new(&other.path).is_ok_and(|at| taken(&at)) && other.origin != mount.origin) {
        let next = "remove that mount first, or choose another path";
        return Err(format!("`{}` shows another origin already; {next}", mount.path));
    }
    namespaces::check(loaded, mount)
}

/// The cache, as jobs see it.
struct Cache {
    client: Client,
    elsewhere: Arc<Elsewhere>,
}

#[async_trait::async_trait]
impl CacheAccess for Cache {
    async fn stat(&self, path: &FsPath, fresh: bool) -> Result<Attr, Failure> {
        Ok(self.client.stat(path, fresh).await?.attr)
    }

    async fn list(&self, path: &FsPath, token: Option<&str>, max: u32) -> Result<ListReply, Failure> {
        self.client.list(path, token.map(str::to_owned), max, false).await
    }

    async fn load_block(&self, version: &FileVersion, block: BlockKey, replicas: u8) -> Result<LoadedBlock, Failure> {
        let loaded = self.client.load_block(version, block, replicas).await?;
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
        let held = self.client.held(self.client.layout(version.size), block, replicas, check).await?;
        Ok(HeldBytes(u64::from(held)))
    }

    async fn free(&self, files: &[(FileId, u64)]) -> Result<FreeReply, Failure> {
        self.client.free(files).await
    }

    async fn free_below(&self, path: &FsPath) -> Result<FreeReply, Failure> {
        self.client.free_below(path).await
    }

    async fn read(&self, version: &FileVersion, offset: u64, length: u32) -> Result<Bytes, Failure> {
        let spans = self.client.open(version.clone()).read(offset, length).await?;
        let mut bytes = Vec::with_capacity(length as usize);
        spans.iter().for_each(|span| bytes.extend_from_slice(span));
        Ok(bytes.into())
    }

    fn placement(&self) -> u64 {
        self.client.placement()
    }

    async fn worker_stats(&self) -> Vec<(Arc<str>, Result<Value, Failure>)> {
        let parse = |text: String| {
            serde_json::from_str(&text).map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))
        };
        let (ours, theirs) = tokio::join!(self.client.worker_stats(), self.elsewhere.worker_stats());
        ours.into_iter().chain(theirs).map(|(worker, answer)| (worker, answer.and_then(parse))).collect()
    }
}

/// Which workers and mounts are in the cluster.
struct View {
    client: Client,
    /// The workers of all groups; taken when it ends.
    workers: parking_lot::Mutex<Option<Table<WorkerRecord>>>,
    members: Arc<Members>,
    /// The names of the cluster and of our group.
    cluster: String,
    group: String,
    /// What the worker in this process can hold, where it is the only one.
    own: Option<Capacity>,
    elsewhere: Arc<Elsewhere>,
}

impl View {
    /// Ends the watching of the workers.
    async fn close(&self) {
        self.elsewhere.close().await;
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
                let mut described = json!({
                    "name": &*member.name, "address": &*member.address, "state": "active", "group": self.group,
                    "weight": member.weight, "share": share,
                });
                if let Some(capacity) = &self.own {
                    described["version"] = json!(env!("CARGO_PKG_VERSION"));
                    described["capacity"] = json!(capacity);
                }
                described
            }));
        }
        if members.is_empty() {
            warnings.push("there are no workers".to_owned());
        }
        json!({ "name": self.cluster, "group": self.group, "members": members, "warnings": warnings })
    }
}

fn described(record: &WorkerRecord, share: f64) -> Value {
    // A struct of texts and numbers.
    let mut value = serde_json::to_value(record).unwrap_or_default();
    value["share"] = json!(share);
    value
}
