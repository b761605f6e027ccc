//! A coordinator: it answers for the cluster, and runs its jobs while it leads.
//!
//! Several may run. Each registers under `coordinators/NAME`, serves the REST interface and samples the workers'
//! counters; one of them holds the key `leader` under a lease, and has the [`Runner`]. When it dies, the lease ends,
//! the next one takes the key, and resumes the jobs from their records. What a deposed leader still writes is refused
//! by the state store, since every write is under the condition that its own leadership is the present one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::records::coordinators::{COORDINATORS, LEADER};
use forebay_identity::Auditing;
use forebay_locks::Mutex;
use forebay_metrics::{Access, HostNames, HttpLimits, HttpServer};
use forebay_state::{Election, Leadership, StateError, StateStore, Transaction, encode_segment};
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api;
use crate::cache::CacheAccess;
use crate::jobs::JobReport;
use crate::leader::{LeaderConnector, LeaderRecord, PlainConnector};
use crate::listening::{CoordinatorError, Listen, Listeners};
use crate::runner::{Runner, RunnerOptions};
use crate::series::{STEP, Series};
use crate::service::{ClusterView, MountCheck, Service};

/// How long after a failure of the state store the next try is.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// Browsers, `forebay` on the command line, and Prometheus: each keeps a connection or a few.
const LIMITS: HttpLimits = HttpLimits {
    connections: 512,
    head_within: Duration::from_secs(30),
    body_within: Duration::from_secs(10),
    write_within: Duration::from_secs(10),
    write_rate: 0,
    lasts_at_most: Duration::from_secs(600),
    ends_within: Duration::from_secs(5),
};

/// How a coordinator runs.
#[derive(Clone)]
pub struct CoordinatorOptions {
    /// Its name, unlike all others'.
    pub name: String,
    /// Where it listens.
    pub listen: Listen,
    /// Where others reach it, `HOST:PORT`; where it listens if not given.
    pub advertise: Option<String>,
    /// The names that it answers to, besides that at which others reach it.
    pub hosts: HostNames,
    /// What it demands of those who come to its address.
    pub access: Access,
    /// What is recorded of those who come, and where: all that is refused, what changes something, and what is read if that is wanted.
    /// `None`: nothing.
    pub audit: Option<Auditing>,
    /// The release that it says it is.
    pub version: String,
    /// How long its leadership outlives it.
    pub lease: Duration,
    /// How much jobs take.
    pub runner: RunnerOptions,
    /// How the coordinator that leads is reached, if it is another one.
    pub leader: Arc<dyn LeaderConnector>,
    /// What mounts must fulfil.
    pub mount_check: Option<Arc<MountCheck>>,
    /// The mounts that there are whatever the cluster agrees on.
    pub mounts: Vec<api::Mount>,
    /// Further pages that it serves: `/metrics` and `/stats`. Others are an admin's alone, where somebody has to prove who it is.
    pub pages: axum::Router,
}

/// A coordinator, while it runs. Dropping it ends it, too, without waiting.
pub struct Coordinator {
    address: Option<SocketAddr>,
    socket: Option<PathBuf>,
    service: Arc<Service>,
    servers: Vec<HttpServer>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl CoordinatorOptions {
    /// Options with defaults for all but these.
    #[must_use]
    pub fn new(name: impl Into<String>, listen: impl Into<Listen>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            listen: listen.into(),
            advertise: None,
            hosts: HostNames::new(),
            access: Access::everybody(),
            audit: None,
            version: version.into(),
            lease: Duration::from_secs(10),
            runner: RunnerOptions::default(),
            leader: Arc::new(PlainConnector::default()),
            mount_check: None,
            mounts: Vec::new(),
            pages: axum::Router::new(),
        }
    }
}

impl Coordinator {
    /// Starts to listen, to answer and to campaign. The state store need not be reachable.
    ///
    /// # Errors
    /// [`CoordinatorError`]: it cannot listen.
    pub async fn start(
        options: CoordinatorOptions,
        store: Arc<dyn StateStore>,
        cache: Arc<dyn CacheAccess>,
        view: Arc<dyn ClusterView>,
    ) -> Result<Self, CoordinatorError> {
        let listeners = Listeners::bind(&options.listen).await?;
        let (address, socket) = (listeners.address(), listeners.socket().map(Path::to_owned));
        let service = Arc::new(Service {
            name: options.name.clone(),
            version: options.version.clone(),
            store,
            cache,
            view,
            mount_check: options.mount_check.clone(),
            mounts: options.mounts.clone(),
            connector: Arc::clone(&options.leader),
            runner: watch::Sender::default(),
            series: Mutex::new(Series::default()),
            stats: Mutex::default(),
        });
        let advertised = options.advertise.clone().unwrap_or_else(|| listeners.reached_at());
        let pages = api::router(Arc::clone(&service)).merge(options.pages.clone());
        // Other coordinators send their clients to it by this name.
        let hosts = options.hosts.clone().with_own(&advertised);
        let servers = listeners.serve(&pages, &options.access, options.audit.as_ref(), &hosts, LIMITS);
        let record = LeaderRecord { name: options.name.clone(), address: advertised };
        // A struct of texts: its encoding cannot fail.
        let record = serde_json::to_vec(&record).unwrap_or_default();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(lead(Arc::clone(&service), options.clone(), record.clone(), stop.clone()));
        tasks.spawn(register(Arc::clone(&service), options.lease, record, stop.clone()));
        tasks.spawn(sample(Arc::clone(&service), stop.clone()));
        tasks.close();
        tracing::info!(name = options.name, ?address, ?socket, "the coordinator answers");
        Ok(Self { address, socket, service, servers, stop, tasks })
    }

    /// Where it listens, if that is an address.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// The Unix socket that it listens on, if there is one.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// Whether it leads.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.service.runner().is_some()
    }

    /// Waits until it leads.
    pub async fn leads(&self) {
        // The sender is in `self`, so a leader comes, or the waiting has no end.
        let _ = self.service.runner.subscribe().wait_for(Option::is_some).await;
    }

    /// The coordinator that leads, if one does.
    ///
    /// # Errors
    /// When the cluster's state does not answer.
    pub async fn leader(&self) -> Result<Option<LeaderRecord>, StateError> {
        self.service.leader().await
    }

    /// Asks whether it is ready, as `/readyz` does, for a listener that answers nothing else.
    pub fn readiness(&self) -> impl Fn() -> BoxFuture<'static, bool> + Clone + Send + Sync + use<> {
        let service = Arc::clone(&self.service);
        move || -> BoxFuture<'static, bool> {
            let service = Arc::clone(&service);
            Box::pin(async move { api::is_ready(&service).await })
        }
    }

    /// The jobs that it runs or ran, if it leads.
    #[must_use]
    pub fn reports(&self) -> Vec<JobReport> {
        self.service.runner().map_or(Vec::new(), |runner| runner.reports())
    }

    /// Lets go of its jobs and its leadership, for others to take over, and ends.
    pub async fn close(self) {
        self.stop.cancel();
        self.tasks.wait().await;
        futures::future::join_all(self.servers.iter().map(HttpServer::close)).await;
    }
}

/// Campaigns, and runs jobs while it leads, until it is time to stop.
async fn lead(service: Arc<Service>, options: CoordinatorOptions, record: Vec<u8>, stop: CancellationToken) {
    let election = Election::new(Arc::clone(&service.store), LEADER, options.lease);
    loop {
        let leadership = tokio::select! {
            leadership = election.campaign(record.clone()) => leadership,
            () = stop.cancelled() => return,
        };
        let failed = match leadership {
            Ok(leadership) => reign(&service, &options, leadership, &stop).await.err(),
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = failed {
            tracing::warn!(error, "this coordinator does not lead now, and tries again");
        }
        tokio::select! {
            () = sleep(TRY_AGAIN) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Runs jobs until the leadership is lost or it is time to stop.
async fn reign(
    service: &Arc<Service>,
    options: &CoordinatorOptions,
    leadership: Leadership,
    stop: &CancellationToken,
) -> Result<(), String> {
    let (store, cache) = (Arc::clone(&service.store), Arc::clone(&service.cache));
    let started = Runner::start(&options.name, store, leadership.fence(), cache, options.runner).await;
    let runner = match started {
        Ok(runner) => Arc::new(runner),
        Err(error) => {
            leadership.resign().await;
            return Err(error.to_string());
        }
    };
    tracing::info!(name = options.name, "this coordinator leads");
    service.runner.send_replace(Some(Arc::clone(&runner)));
    tokio::select! {
        () = leadership.lost() => tracing::warn!("the leadership is lost"),
        () = runner.ended() => {}
        () = stop.cancelled() => {}
    }
    service.runner.send_replace(None);
    runner.close().await;
    leadership.resign().await;
    Ok(())
}

/// Keeps this coordinator registered until it is time to stop.
async fn register(service: Arc<Service>, ttl: Duration, record: Vec<u8>, stop: CancellationToken) {
    let key = format!("{COORDINATORS}{}", encode_segment(service.name()));
    loop {
        let registered = async {
            let lease = service.store.lease(ttl).await?;
            let write = Transaction::new().put_leased(&key, record.clone(), lease.id());
            service.store.commit(write).await?;
            Ok::<_, StateError>(lease)
        };
        tokio::select! {
            registered = registered => match registered {
                Ok(lease) => tokio::select! {
                    () = lease.lost() => tracing::warn!("the registration of this coordinator is lost"),
                    () = stop.cancelled() => return lease.revoke().await,
                },
                Err(error) => tracing::warn!(%error, "this coordinator is not registered yet"),
            },
            () = stop.cancelled() => return,
        }
        tokio::select! {
            () = sleep(TRY_AGAIN) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Samples the workers' counters until it is time to stop.
async fn sample(service: Arc<Service>, stop: CancellationToken) {
    let mut ticks = interval(STEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = async { ticks.tick().await; service.sample().await } => {}
            () = stop.cancelled() => return,
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
