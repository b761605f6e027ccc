//! A coordinator in the life of its process: what `coordinator` and `up` have in common.
//!
//! `forebay-coordinator` decides and answers. This module implements its interfaces: the cache, through a client of the
//! workers, and the members of the cluster, as this process knows them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use forebay_client::Client;
use forebay_cluster::records::members::{Capacity, WORKERS, WorkerRecord, WorkerState};
use forebay_cluster::records::mounts::MountRecord;
use forebay_cluster::{Freshness, topology_of};
use forebay_config::{Config, Loaded, SecurityMode};
use forebay_coordinator::api::Mount;
use forebay_coordinator::{
    CacheAccess, ClusterView, Coordinator, CoordinatorOptions, HeldBytes, LeaderConnector, Listen,
    Loaded as LoadedBlock, PlainConnector, RunnerOptions, SecureConnector,
};
use forebay_metrics::{Access, MetricsServer, ProcessStats, Readiness, counters};
use forebay_private::socket_address;
use forebay_state::membership::{Members, Table};
use forebay_transport::message::{FreeReply, ListReply};
use forebay_types::{Attr, BlockKey, Failure, FailureKind, FileId, FileVersion, FsPath, Role};
use serde_json::{Value, json};

use crate::audit::AuditLog;
use crate::clients::TcpConnector;
use crate::cluster::{self, Cluster};
use crate::elsewhere::Elsewhere;
use crate::error::Fault;
use crate::hot::Hot;
use crate::http::Terms;
use crate::page::PageToken;
use crate::security::{self, Security};
use crate::{binding, http, metrics, namespaces};

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

/// Where a coordinator listens, and for whom.
pub(crate) enum Listening {
    /// For its cluster.
    ForCluster {
        /// The address that it listens at.
        address: SocketAddr,
        /// Where others reach it, `HOST:PORT`, if that is not there.
        advertised: Option<String>,
    },
    /// For the user of this process alone.
    ForOwner {
        /// The Unix socket for commands.
        socket: Option<PathBuf>,
        /// An address on loopback for a browser, and what it demands.
        web: Option<(SocketAddr, PageToken)>,
    },
}

impl Listening {
    fn listen(&self) -> Listen {
        match self {
            Self::ForCluster { address, .. } => (*address).into(),
            Self::ForOwner { socket, web } => {
                Listen { address: web.as_ref().map(|(address, _)| *address), socket: socket.clone() }
            }
        }
    }

    /// What the address demands.
    fn terms(&self, config: &Config, security: Option<&Security>) -> Result<Terms, Fault> {
        match self {
            Self::ForCluster { .. } => Terms::of(config, security),
            Self::ForOwner { web: Some((_, token)), .. } => Ok(Terms::by_token(config, token)),
            // There is no address.
            Self::ForOwner { web: None, .. } => {
                Ok(Terms { access: Access::everybody(), names: http::host_names(config) })
            }
        }
    }

    fn advertised(&self) -> Option<String> {
        match self {
            Self::ForCluster { advertised, .. } => advertised.clone(),
            Self::ForOwner { .. } => None,
        }
    }

    /// What its coordinator is called, unlike all others.
    fn name(&self) -> String {
        match self {
            Self::ForCluster { advertised: Some(advertised), .. } => advertised.clone(),
            // Two coordinators on one machine listen at two ports; which one port 0 will be is not known yet.
            Self::ForCluster { address, .. } if address.port() != 0 => address.to_string(),
            Self::ForCluster { address, .. } => format!("{}, process {}", address.ip(), std::process::id()),
            Self::ForOwner { .. } => format!("this machine, process {}", std::process::id()),
        }
    }

    /// The URL of the web page at `address`, which the coordinator listens at.
    fn page(&self, config: &Config, address: SocketAddr) -> Option<String> {
        match self {
            Self::ForCluster { .. } if config.security_mode == SecurityMode::Off => Some(format!("http://{address}/")),
            Self::ForCluster { .. } => Some(format!("https://{address}/")),
            Self::ForOwner { web, .. } => web.as_ref().map(|(_, token)| token.url(address)),
        }
    }
}

/// The coordinator of this process.
pub(crate) struct Coordinating {
    coordinator: Arc<Coordinator>,
    view: Arc<View>,
    hot: Hot,
    /// Where commands on this machine reach it.
    reached_at: Option<String>,
    /// The URL of its web page.
    page: Option<String>,
    /// The listener for probes, if there is one.
    probes: Option<MetricsServer>,
    /// Who it is, if it proves that.
    security: Option<Arc<Security>>,
}

impl Coordinating {
    /// Starts a coordinator that listens where `listening` says, reads through `client`, and records who asks for what in `audit`.
    ///
    /// # Errors
    /// When it cannot listen, or cannot prove who it is though it should.
    pub(crate) async fn start(
        loaded: &Loaded,
        cluster: &Cluster,
        client: Client,
        known: Known,
        listening: Listening,
        audit: Option<&AuditLog>,
    ) -> anyhow::Result<Self> {
        let config = &loaded.config;
        let security = Security::open(config, Role::Coordinator, &security::machine())?;
        let connector = Arc::new(TcpConnector::of_asker(config, security.as_deref())?);
        let leader = leader_connector(config, security.as_deref())?;
        let terms = listening.terms(config, security.as_deref())?;
        let workers = Table::watch(cluster.store(), WORKERS, WorkerRecord::decode);
        let group = config.cluster_cache_group.as_str().to_owned();
        let elsewhere = Elsewhere::new(group.clone(), workers.records(), connector);
        let view = Arc::new(View {
            client: client.clone(),
            workers: forebay_locks::Mutex::new(Some(workers)),
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
        // It is there once it has started.
        let itself: Arc<OnceLock<Weak<Coordinator>>> = Arc::default();
        let (counted, client_of, members) = (Arc::clone(&itself), client.clone(), Arc::clone(cluster.members()));
        let certificates = cluster.certificates().cloned();
        let audit_lost = audit.map(|audit| Box::new(audit.lost_count()) as Box<dyn Fn() -> u64 + Send + Sync>);
        let site = metrics::site(Readiness::new(), move || {
            let coordinator = counted.get().and_then(Weak::upgrade);
            json!({
                "process": ProcessStats::now(),
                "client": client_of.report()["client"],
                "cluster": cluster::report(&client_of.topology(), Some(&members)),
                "etcd": certificates.as_deref().map(cluster::report_certificates),
                "coordinator": coordinator.map(|coordinator| counted_of(&coordinator)),
                "audit": audit_lost.as_ref().map(|lost| json!({ "lost": lost() })),
            })
        });
        let options = CoordinatorOptions {
            leader,
            pages: counters(site),
            advertise: listening.advertised(),
            hosts: terms.names,
            access: terms.access,
            audit: audit.map(AuditLog::auditing),
            lease: config.cluster_lease_ttl,
            runner,
            mount_check: Some(Arc::new(check)),
            mounts: configured,
            ..CoordinatorOptions::new(listening.name(), listening.listen(), env!("CARGO_PKG_VERSION"))
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
        let (address, socket) = (coordinator.address(), coordinator.socket().map(socket_address));
        let page = address.and_then(|address| listening.page(config, address));
        let reached_at = match listening {
            Listening::ForCluster { .. } => address.map(|address| address.to_string()),
            // What demands a token is for a browser.
            Listening::ForOwner { .. } => socket,
        };
        Ok(Self { coordinator, view, hot, reached_at, page, probes, security })
    }

    /// Where it listens, if that is an address.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.coordinator.address()
    }

    /// Where commands on this machine reach it.
    pub(crate) fn reached_at(&self) -> Option<String> {
        self.reached_at.clone()
    }

    /// The URL of its web page, with the token that it demands.
    pub(crate) fn page(&self) -> Option<String> {
        self.page.clone()
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
        if let Some(security) = self.security {
            security.close().await;
        }
    }
}

/// How the coordinator that leads is reached, if it is another one: as commands reach this one.
fn leader_connector(config: &Config, security: Option<&Security>) -> anyhow::Result<Arc<dyn LeaderConnector>> {
    let plain = PlainConnector::from_source(binding::group_source(config)?);
    let proved = security.map(|security| security.http_client(Some(Role::Coordinator))).transpose()?.flatten();
    let connector: Arc<dyn LeaderConnector> = match proved {
        Some(proved) => Arc::new(SecureConnector::over(plain, proved)),
        None => Arc::new(plain),
    };
    Ok(connector)
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
    Mount { path: mount.path.to_string(), origin, options: BTreeMap::new(), acl: None }
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
    workers: forebay_locks::Mutex<Option<Table<WorkerRecord>>>,
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
