//! A cache node in the life of its process: what `worker`, `up` and a mount that shares its cache have in common.
//!
//! It is a block store, the worker over it, and what listens for others. In a cluster it is also the node's registration, its
//! links to the other workers, and the mounts and policies that the cluster agreed on, which may change at any time.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_cluster::records::members::{Addresses, Capacity, WorkerRecord};
use forebay_cluster::{Backoff, Membership as _};
use forebay_config::{Config, Host, Loaded};
use forebay_identity::Auditing;
use forebay_materialise::Lender as _;
use forebay_memory::Sharing;
use forebay_peering::{JoinOptions, Joined};
use forebay_state::membership::RegisteredOptions;
use forebay_store::{Prewarm, Store};
use forebay_tcp::{TcpError, TcpServer};
use forebay_transport::Service;
use forebay_types::Role;
use forebay_worker::{DrainOptions, Worker};
use tracing::{info, warn};

use crate::audit::AuditLog;
use crate::binding::{self, Moving, Ports, WorkerAddresses, host_and_port};
use crate::clients::TcpConnector;
use crate::cluster::Cluster;
use crate::error::{Exit, Fault};
use crate::lending::StoreLender;
use crate::measured::Measured;
use crate::namespaces::{self, Namespaces};
use crate::security::{self, Security};
use crate::window::{self, Windows};
use crate::{assembly, disks, rdma};

/// How long what is queued for the disks may take to be written at the end. What is not is read again from the origin.
const FLUSH_WITHIN: Duration = Duration::from_secs(20);
/// How long a mount waits for the registration of its own worker.
const REGISTERED_WITHIN: Duration = Duration::from_secs(10);
/// How often a mount looks whether its own worker is known yet.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A cache node that listens.
pub(crate) struct WorkerNode {
    /// What it may cache.
    capacity: Capacity,
    store: Store,
    worker: Arc<Worker>,
    /// Who it is, towards clients and other workers.
    security: Option<Arc<Security>>,
    /// Where it records what others do to it.
    audit: Option<Auditing>,
    /// The worker, as servers ask it.
    measured: Arc<Measured>,
    servers: Vec<TcpServer>,
    /// The server for this user alone.
    private: Option<TcpServer>,
    /// Where it takes data, where that has an interface of its own.
    data: Option<IpAddr>,
    rdma: Option<Arc<rdma::Servers>>,
    /// Its memory, as other processes of this host see it.
    windows: Arc<Windows>,
    namespaces: Option<Namespaces>,
    joined: Option<Joined>,
    /// Who lends its memory to files of a mount in this process, or why nobody does.
    lender: Result<Arc<StoreLender>, String>,
}

/// What a node is to be.
pub(crate) struct WorkerNodeOptions<'a> {
    /// The configuration.
    pub(crate) loaded: &'a Loaded,
    /// Where it listens, if that is a port.
    pub(crate) addresses: Option<WorkerAddresses>,
    /// The Unix socket where it listens for this user alone.
    pub(crate) socket: Option<PathBuf>,
    /// What it shows whatever the cluster says.
    pub(crate) mounts: Vec<forebay_config::Mount>,
    /// When it takes its memory.
    pub(crate) prewarm: Prewarm,
    /// The cluster whose mounts and policies it shows.
    pub(crate) cluster: Option<&'a Cluster>,
    /// The audit log of the process, if it has one.
    pub(crate) audit: Option<&'a AuditLog>,
    /// What becomes of default ports that are taken.
    pub(crate) ports: Ports,
    /// Whether other processes may use it: it listens for RDMA where that is asked for, shows its memory to those on this host, and
    /// is registered in its cluster.
    pub(crate) shared: bool,
    /// Whether its memory is lent to files of a mount in this process, where it can be.
    pub(crate) lends: bool,
}

impl WorkerNode {
    /// Starts a node. What was started of one that cannot be is ended again.
    ///
    /// # Errors
    /// When memory, disks, origins or addresses cannot be had.
    pub(crate) async fn start(options: WorkerNodeOptions<'_>) -> anyhow::Result<Self> {
        let config = &options.loaded.config;
        let name = config.worker_name.clone().unwrap_or_else(security::machine);
        let security = Security::open(config, Role::Worker, &name)?;
        let mounts = namespaces::configured(options.loaded, &options.mounts)?;
        let sharing = if options.shared { window::sharing(config) } else { Sharing::Private };
        let disks = disks::resolve(config)?;
        let capacity = Capacity {
            memory: config.worker_memory_size.as_u64(),
            disk: disks.iter().map(|disk| disk.size.as_u64()).sum(),
        };
        let store = assembly::worker_store(config, disks, options.prewarm, sharing, options.shared).await?;
        let worker = match assembly::worker(config, store.clone(), mounts.clone(), options.cluster.is_some()) {
            Ok(worker) => worker,
            Err(error) => {
                store.close().await;
                return Err(error);
            }
        };
        let measured = Measured::new(Arc::clone(&worker) as Arc<dyn Service>, security.clone(), options.audit);
        let lender = lender(config, &store, &options);
        let mut node = Self {
            capacity,
            lender,
            store,
            worker,
            security,
            audit: options.audit.map(AuditLog::auditing),
            measured,
            servers: Vec::new(),
            private: None,
            data: options.addresses.and_then(|addresses| addresses.data).map(|address| address.ip()),
            rdma: None,
            windows: Arc::default(),
            namespaces: None,
            joined: None,
        };
        if let Some(cluster) = options.cluster {
            node.namespaces = Some(Namespaces::follow(options.loaded, cluster, &node.worker, mounts));
        }
        match node.listen(&options).await {
            Ok(()) => Ok(node),
            Err(error) => {
                node.close().await;
                Err(error)
            }
        }
    }

    async fn listen(&mut self, options: &WorkerNodeOptions<'_>) -> anyhow::Result<()> {
        let config = &options.loaded.config;
        let service = || Arc::clone(&self.measured) as Arc<dyn Service>;
        if options.shared {
            let (security, audit) = (self.security.as_deref().map(Security::rdma_server), self.audit.clone());
            let (ports, pool) = (options.ports, self.store.pool());
            let rdma = rdma::Servers::start(options.loaded, ports, pool, service(), security, audit);
            self.rdma = rdma.await?.map(Arc::new);
        }
        if let Some(rdma) = &self.rdma {
            let reported = Arc::clone(rdma);
            self.worker.offer_paths(rdma.paths.clone(), move || reported.report());
        }
        let audit = || self.audit.clone();
        if let Some(path) = &options.socket {
            let server = assembly::private_server(config, path, service(), self.security.as_deref(), audit())?;
            self.measured.served_by(&server);
            self.private = Some(server);
        }
        let serve = |address| {
            let security = self.security.as_deref();
            assembly::server(config, address, service(), options.shared, security, audit())
        };
        for address in options.addresses.iter().flat_map(WorkerAddresses::listeners) {
            let server = match serve(address) {
                Err(TcpError::AddressInUse { .. })
                    if options.ports.of(options.loaded, binding::RPC_PORT) == Moving::AtOnce =>
                {
                    let free = SocketAddr::new(address.ip(), 0);
                    let server = serve(free)?;
                    let (taken, address) = (address, server.local_addr());
                    info!(%taken, %address, "the default port is taken: a free one is used, and names this worker unless worker.name does");
                    server
                }
                server => server.map_err(cannot_listen)?,
            };
            self.measured.served_by(&server);
            self.servers.push(server);
        }
        if options.shared {
            let instance = self.worker.instance();
            let security = self.security.as_deref();
            let (addresses, audit) = (self.addresses(), self.audit.as_ref());
            let windows = Windows::open(config, self.store.pool(), addresses, instance, &service(), security, audit)?;
            self.windows = Arc::new(windows);
            self.measured.seen_through(&self.windows);
        }
        self.worker.watch_hot_blocks(config.coordinator_hot_replicas > 0);
        Ok(())
    }

    /// Joins the cluster: other workers are asked before the origin, and clients find this one. `web` is where it answers to
    /// `/metrics`.
    ///
    /// # Errors
    /// When this machine's name is not to be had and none is configured.
    pub(crate) fn join(&mut self, config: &Config, cluster: &Cluster, web: Option<String>) -> anyhow::Result<()> {
        let addresses = self.advertised(config, web)?;
        let name = config.worker_name.clone().unwrap_or_else(|| addresses.rpc.clone());
        let capacity = self.capacity;
        let record = WorkerRecord {
            name,
            group: config.cluster_cache_group.as_str().to_owned(),
            addresses,
            capacity,
            block_size: config.block_size.as_u64(),
            weight: config.worker_weight.map_or_else(|| capacity.weight(), f64::from),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            identity: self.security.as_deref().map(Security::name),
            zone: config.cluster_zone.clone(),
            since: unix_seconds(),
            ..WorkerRecord::default()
        };
        let connector = Arc::new(TcpConnector::of_worker(config, self.security.as_deref())?);
        // Clients that read from it expect it to know the mounts.
        let told = self.namespaces.as_ref().map(Namespaces::told);
        let told = async move {
            if let Some(told) = told {
                told.await;
            }
        };
        let options = JoinOptions {
            peer_timeout: config.worker_peer_timeout,
            backoff: Backoff { initial: config.client_retry_initial_backoff, max: config.client_retry_max_backoff },
            registration: RegisteredOptions { ttl: config.cluster_lease_ttl, warmup: config.worker_warmup },
            drain: DrainOptions {
                bandwidth: Some(config.worker_drain_bandwidth).filter(|bandwidth| bandwidth.as_u64() > 0),
                ..DrainOptions::default()
            },
        };
        if let Some(certificates) = cluster.certificates() {
            self.measured.with_certificates(certificates);
        }
        let (store, members) = (Arc::clone(cluster.store()), Arc::clone(cluster.members()));
        self.joined = Some(Joined::join(&self.worker, record, store, members, connector, options, told));
        Ok(())
    }

    /// Waits until the worker is registered, or until that seems to take too long and others are there to read from.
    ///
    /// # Errors
    /// When it is not registered and no other worker is.
    pub(crate) async fn registered(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let Some(joined) = &self.joined else { return Ok(()) };
        let mut standing = joined.standing();
        let name = joined.name();
        let listed = async {
            let _ = standing.wait_for(Option::is_some).await;
            while cluster.members().topology().member(name).is_none() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        match tokio::time::timeout(REGISTERED_WITHIN, listed).await {
            Ok(()) => Ok(()),
            Err(_) => cluster.told().await,
        }
    }

    /// Waits until it is registered, if it has joined a cluster.
    pub(crate) async fn standing(&self) {
        if let Some(joined) = &self.joined {
            let mut standing = joined.standing();
            let _ = standing.wait_for(Option::is_some).await;
        }
    }

    /// How much it can hold.
    pub(crate) fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Who lends its memory to files of a mount in this process, or why nobody does.
    pub(crate) fn lender(&self) -> Result<&Arc<StoreLender>, &str> {
        self.lender.as_ref().map_err(String::as_str)
    }

    /// The worker.
    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Who it is, if it proves that.
    pub(crate) fn security(&self) -> Option<&Security> {
        self.security.as_deref()
    }

    /// The worker with what is measured of it: its report is that of the node.
    pub(crate) fn measured(&self) -> Arc<Measured> {
        Arc::clone(&self.measured)
    }

    /// Its name in the cluster, once it has joined.
    pub(crate) fn name(&self) -> Option<&str> {
        self.joined.as_ref().map(Joined::name)
    }

    /// At which ports it listens, for requests first.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.servers.iter().map(TcpServer::local_addr)
    }

    /// Where others reach it for requests.
    ///
    /// # Errors
    /// When this machine's name is not to be had and none is configured.
    pub(crate) fn reached_at(&self, config: &Config) -> anyhow::Result<String> {
        Ok(self.advertised(config, None)?.rpc)
    }

    /// Where others reach it.
    fn advertised(&self, config: &Config, web: Option<String>) -> anyhow::Result<Addresses> {
        let reach = |address: SocketAddr| -> anyhow::Result<String> {
            if config.worker_hostname.is_none() && !address.ip().is_unspecified() {
                return Ok(address.to_string());
            }
            Ok(host_and_port(&hostname_or(config.worker_hostname.as_ref())?, address.port()))
        };
        let listening = self.addresses().next().context("a worker that listens nowhere cannot join a cluster")?;
        // A name stands for one interface, and this one was named by itself.
        let tcp_data = self.data.map(|ip| {
            let own = self.addresses().find(|address| address.ip() == ip);
            host_and_port(&ip.to_string(), own.unwrap_or(listening).port())
        });
        let rdma = self
            .rdma
            .iter()
            .flat_map(|rdma| rdma.paths.data.iter().chain(rdma.paths.verbs.iter().flat_map(|verbs| &verbs.data)));
        let rdma_data = rdma.map(|path| host_and_port(&path.host, path.port)).collect();
        Ok(Addresses { rpc: reach(listening)?, tcp_data: tcp_data.into_iter().collect(), rdma_data, web })
    }

    /// Leaves the cluster, ends what listens, and writes what is queued for the disks, as far as there is time.
    pub(crate) async fn close(self) {
        if let Some(joined) = self.joined {
            joined.close().await;
        }
        futures::future::join_all(self.servers.iter().chain(&self.private).map(TcpServer::close)).await;
        drop((self.servers, self.private));
        self.windows.close().await;
        drop(self.windows);
        if let Some(rdma) = &self.rdma {
            rdma.close().await;
        }
        if let Some(namespaces) = self.namespaces {
            namespaces.close().await;
        }
        if let Ok(lender) = &self.lender {
            lender.end();
        }
        self.worker.close().await;
        if tokio::time::timeout(FLUSH_WITHIN, self.store.flush()).await.is_err() {
            warn!("the disks are too slow to write all that is queued: the rest is not kept");
        }
        drop(self.worker);
        self.store.close().await;
        if let Some(security) = self.security {
            security.close().await;
        }
    }
}

/// Who lends the memory of `store` to files, or why nobody does.
fn lender(config: &Config, store: &Store, options: &WorkerNodeOptions<'_>) -> Result<Arc<StoreLender>, String> {
    if !options.lends {
        return Err("client.local.size says what there is".to_owned());
    }
    if options.shared && (config.network_rdma_data_enabled || config.network_rdma_metadata_enabled) {
        return Err("the worker's memory is registered for RDMA, and is lent to nobody".to_owned());
    }
    StoreLender::over(store, options.shared)
}

/// The error as a person is told it, with the setting that it is about.
fn cannot_listen(error: TcpError) -> anyhow::Error {
    let TcpError::AddressInUse { address } = error else {
        return anyhow::Error::from(error).context("cannot start the worker's server");
    };
    let (key, port) = (binding::RPC_PORT, address.port());
    let next = format!(
        "`ss -ltnp 'sport = :{port}'` names who has it: end that, or set {key} to another port, or to 0, which takes a free one"
    );
    Fault::new(Exit::Busy, format!("{key}: cannot listen on {address}: the port is in use"), next).into()
}

/// The configured name of this machine, or the one that it has.
///
/// # Errors
/// When it has none.
pub(crate) fn hostname_or(configured: Option<&Host>) -> anyhow::Result<String> {
    if let Some(host) = configured {
        return Ok(host.to_string());
    }
    let name = rustix::system::uname().nodename().to_str().map(str::to_owned);
    name.ok().filter(|name| !name.is_empty()).context("this machine has no host name; set worker.hostname")
}

fn unix_seconds() -> u64 {
    // A clock before 1970 is one that was never set.
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
