//! From a plan to a node that runs: its parts are started from the lowest to the mount, and ended again where one cannot be.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use forebay_client::{Away, Client};
use forebay_cluster::{Member, Membership, Reach};
use forebay_config::{Config, SharedMemory};
use forebay_fuse::ReportSource;
use forebay_metrics::ProcessStats;
use forebay_private::socket_address;
use forebay_store::Prewarm;
use forebay_transport::Service;
use forebay_types::FsPath;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::assembly;
use crate::audit::AuditLog;
use crate::binding::{self, Ports, WorkerAddresses};
use crate::clients::{self, LinkReports, RemoteClient};
use crate::cluster::{self, Cluster};
use crate::coordinating::{Coordinating, Known, Listening};
use crate::direct::Direct;
use crate::giving_up::unless_cancelled;
use crate::handover::{Handover, Rescuer};
use crate::keeper_watcher::KeeperWatcher;
use crate::local::Automatic;
use crate::mounted::{self, Mounted, Offer};
use crate::node::{Node, Parts};
use crate::page::{Page, PageToken};
use crate::plan::Plan;
use crate::private_coordinator::Private;
use crate::rescuing::Rescue;
use crate::s3::{Given, S3};
use crate::security::Security;
use crate::state::{self, Role};
use crate::stopping::Stopping;
use crate::takeover::Takeover;
use crate::web::Web;
use crate::worker_node::{WorkerNode, WorkerNodeOptions, hostname_or};

/// Starts what `plan` names.
///
/// # Errors
/// When a part cannot be had, or `cancelled` is before all of them are there.
pub(crate) async fn start(plan: Plan, cancelled: &CancellationToken) -> anyhow::Result<Node> {
    let takeover = Takeover::new(&plan, cancelled);
    let mut starting = Starting { plan: &plan, cancelled, parts: Parts::default(), takeover };
    let started = match &plan.standalone {
        Some(origin) => starting.standalone(origin).await,
        None => starting.of_cluster().await,
    };
    let parts = starting.parts;
    match started {
        Ok(()) => Ok(Node::of(parts)),
        Err(error) => {
            // No process can have opened a file that is worth waiting for. The token that cancelled the start is the
            // caller's.
            let at_once = CancellationToken::new();
            at_once.cancel();
            let _ = parts.close(&at_once).await;
            Err(error)
        }
    }
}

struct Starting<'a> {
    plan: &'a Plan,
    cancelled: &'a CancellationToken,
    parts: Parts,
    takeover: Takeover<'a>,
}

impl Starting<'_> {
    /// A worker of one origin for this machine, and all that uses it.
    async fn standalone(&mut self, origin: &str) -> anyhow::Result<()> {
        let loaded = &self.plan.loaded;
        self.parts.place = self.takeover.claim().await?;
        let claimed = self.takeover.mountpoint().map(state::mount_state).transpose()?;
        let sockets = self.parts.place.as_ref().map(|place| place.claim.private_sockets().clone());
        let token = match self.plan.page {
            Page::None => None,
            Page::AnyPort | Page::Port(_) => Some(PageToken::new()?),
        };
        self.parts.audit = AuditLog::open(&loaded.config)?;
        let audit = self.parts.audit.as_ref();
        let cluster = if claimed.is_none() && self.plan.state_in_memory {
            Cluster::in_memory(&loaded.config)?
        } else {
            // That of the cluster is made only if it is to be used.
            let directory = claimed.map_or_else(|| cluster::state_directory(&loaded.config), Ok)?;
            Cluster::in_files(&loaded.config, directory).await?
        };
        let cluster = self.parts.cluster.insert(cluster);
        let options = WorkerNodeOptions {
            loaded,
            addresses: None,
            socket: sockets.as_ref().map(|sockets| sockets.worker.clone()),
            mounts: vec![root(origin)],
            prewarm: self.plan.prewarm_alone,
            cluster: Some(cluster),
            audit,
            ports: Ports::Stay,
            shared: false,
            lends: self.plan.lends(),
        };
        let started = async {
            assembly::probe_origin(loaded, origin).await?;
            WorkerNode::start(options).await
        };
        let worker = self.parts.worker.insert(unless_cancelled(self.cancelled, started).await?);
        let client = clients::local_client(&loaded.config, Arc::clone(worker.worker()) as Arc<dyn Service>).await?;
        self.parts.client = Some(client.clone());
        let known = Known { mounts: vec![root(origin)], own: Some(worker.capacity()) };
        let private = Private { sockets: sockets.as_ref(), page: self.plan.page, token: token.as_ref(), audit };
        self.parts.coordinating = private.coordinator(loaded, cluster, &client, known).await?;
        let (measured, room) = (worker.measured(), Automatic::of_worker(worker.lender()));
        self.s3(client.clone(), Some(origin)).await?;
        let coordinating = self.parts.coordinating.as_ref();
        let offer = Offer {
            client,
            source: origin.to_owned(),
            workers: sockets.iter().map(|sockets| socket_address(&sockets.worker)).collect(),
            identities: BTreeMap::new(),
            role: Role::Up,
            node: None,
            members: None,
            coordinator: coordinating.and_then(Coordinating::reached_at),
            page: coordinating.and_then(Coordinating::page),
            s3: self.parts.s3.as_ref().map(|s3| s3.local_addr().to_string()),
            token,
            state: self.parts.cluster.as_ref().map(|cluster| Arc::clone(cluster.store())),
            report: measured.source(),
            links: LinkReports::default(),
            log: self.plan.log.clone(),
            room,
        };
        self.mount(&offer).await
    }

    /// The parts that were asked for, of the cluster that the configuration names.
    async fn of_cluster(&mut self) -> anyhow::Result<()> {
        let plan = self.plan;
        let loaded = &plan.loaded;
        self.parts.place = self.takeover.claim().await?;
        if plan.worker || plan.coordinator || plan.s3 {
            self.parts.audit = AuditLog::open(&loaded.config)?;
        }
        let moves_data = plan.worker || plan.client || plan.mountpoint.is_some();
        let config = if moves_data { loaded.config.clone() } else { without_data(&loaded.config) };
        let reach = if moves_data { Reach::Data } else { Reach::Requests };
        self.parts.cluster = match Cluster::open(&config, reach).await? {
            None if plan.coordinator => Some(Cluster::in_files(&config, cluster::state_directory(&config)?).await?),
            cluster => cluster,
        };
        let own = if plan.worker { self.worker_of_cluster().await? } else { None };
        let reads = plan.client || plan.mountpoint.is_some();
        if reads || plan.coordinator {
            let (client, links) = self.client_of_cluster(&config, reach, own.as_deref()).await?;
            if plan.coordinator {
                self.coordinator_of_cluster(client.clone()).await?;
            }
            self.s3(client.clone(), None).await?;
            if plan.mountpoint.is_some() {
                let offer = self.offer_of_cluster(client, links, own);
                self.mount(&offer).await?;
            }
        }
        Ok(())
    }

    /// A worker that others read from. Its name in its group, for a client of this process.
    async fn worker_of_cluster(&mut self) -> anyhow::Result<Option<String>> {
        let (plan, config) = (self.plan, &self.plan.loaded.config);
        let cluster = self.parts.cluster.as_ref();
        let is_mounted = plan.mountpoint.is_some();
        let options = WorkerNodeOptions {
            loaded: &plan.loaded,
            addresses: Some(WorkerAddresses::of(config)?),
            socket: None,
            mounts: config.mounts.clone(),
            prewarm: if config.worker_memory_prewarm { Prewarm::AtStart } else { Prewarm::AsFilled },
            cluster,
            audit: self.parts.audit.as_ref(),
            // Others find that of a mount by its record; a fixed list names its port.
            ports: if is_mounted && cluster.is_some() { Ports::Move } else { Ports::Stay },
            shared: true,
            lends: plan.lends(),
        };
        let worker = unless_cancelled(self.cancelled, WorkerNode::start(options)).await?;
        let worker = self.parts.worker.insert(worker);
        self.parts.web = Web::of_worker(&plan.loaded, worker).await;
        for address in worker.addresses() {
            info!(%address, "worker listening");
        }
        let Some(cluster) = cluster else {
            let address = worker.reached_at(config)?;
            return if is_mounted { cluster::listed_as(config, &address).map(Some) } else { Ok(Some(address)) };
        };
        worker.join(config, cluster, self.parts.web.as_ref().map(|web| web.advertised.clone()))?;
        if is_mounted || plan.client {
            unless_cancelled(self.cancelled, worker.registered(cluster)).await?;
        }
        Ok(worker.name().map(str::to_owned))
    }

    async fn client_of_cluster(
        &mut self,
        config: &Config,
        reach: Reach,
        own: Option<&str>,
    ) -> anyhow::Result<(Client, LinkReports)> {
        let plan = self.plan;
        let cluster = self.parts.cluster.as_ref();
        let reads = plan.client || plan.mountpoint.is_some();
        let membership: Arc<dyn Membership> = match (cluster, own) {
            (Some(cluster), _) => Arc::clone(cluster.members()) as Arc<dyn Membership>,
            // Of no list, it reads from the worker in this process.
            (None, Some(own)) if config.cluster_workers.is_empty() => {
                Arc::new(forebay_cluster::StaticMembership::new([own]))
            }
            (None, _) => Arc::new(cluster::static_members(config)),
        };
        if let (Some(cluster), true, None) = (cluster, reads && !config.cluster_etcd_endpoints.is_empty(), own) {
            unless_cancelled(self.cancelled, cluster.told()).await?;
        }
        if plan.mountpoint.is_some() {
            let direct = Direct::start(&plan.loaded, cluster);
            self.parts.direct = unless_cancelled(self.cancelled, direct).await?;
        }
        let otherwise = if plan.mountpoint.is_some() { Away::Wait } else { Away::Fail };
        let away = self.parts.direct.as_ref().map_or(otherwise, Direct::away);
        let worker = self.parts.worker.as_ref();
        let own = own.zip(worker).map(|(name, node)| (name.into(), Arc::clone(node.worker()) as Arc<dyn Service>));
        // An endpoint that knows no access lists is one whom workers hold to them: as an admin, who passes all, it would
        // read for whoever has a key what the mount's list forbids.
        let is_held_to_lists = plan.mountpoint.is_some() || (plan.s3 && cluster.is_none());
        self.parts.client_security = Security::of_client(config, is_held_to_lists)?;
        let security = self.parts.client_security.as_deref();
        // It may take seconds to have the kernel back its memory.
        let client = clients::remote_client(config, reach, membership, own, away, security);
        let RemoteClient { client, links } = unless_cancelled(self.cancelled, client).await?;
        Ok((self.parts.client.insert(client).clone(), links))
    }

    async fn coordinator_of_cluster(&mut self, client: Client) -> anyhow::Result<()> {
        let loaded = &self.plan.loaded;
        let address = binding::coordinator_address(&loaded.config)?;
        let known = Known { mounts: loaded.config.mounts.clone(), own: None };
        let advertised = advertised(&loaded.config, address)?;
        // It was opened: a coordinator without etcd keeps its state in files.
        let Some(cluster) = &self.parts.cluster else { return Ok(()) };
        let listening = Listening::ForCluster { address, advertised };
        let audit = self.parts.audit.as_ref();
        let started = Coordinating::start(loaded, cluster, client, known, listening, audit).await?;
        if let Some(address) = started.address() {
            info!(%address, state = cluster.store().describe(), "coordinator listening");
        }
        self.parts.coordinating = Some(started);
        Ok(())
    }

    /// The S3 endpoint, if one was asked for. `origin` is the whole namespace of a node that stands alone.
    async fn s3(&mut self, client: Client, origin: Option<&str>) -> anyhow::Result<()> {
        let loaded = &self.plan.loaded;
        if !self.plan.s3 {
            return Ok(());
        }
        let given = Given {
            client: client.clone(),
            cluster: self.parts.cluster.as_ref(),
            audit: self.parts.audit.as_ref(),
            security: self.parts.client_security.clone(),
            origin: origin.map(str::to_owned),
        };
        let started = S3::start(loaded, given).await?;
        let s3 = self.parts.s3.insert(started);
        let reported = s3.reporter();
        match &self.parts.worker {
            Some(worker) => worker.measured().serving_s3(Box::new(reported)),
            None if self.plan.mountpoint.is_none() => {
                let asked = client.clone();
                let report = move || {
                    let mut report = client.report();
                    report["process"] = serde_json::json!(ProcessStats::now());
                    report["s3"] = reported();
                    report
                };
                self.parts.web = Web::of_mount(loaded, report, None).await;
                if let Some(web) = &self.parts.web {
                    s3.tell_of_workers(web.readiness(), asked);
                }
            }
            None => {}
        }
        if let (Some(s3), Some(web)) = (&mut self.parts.s3, &self.parts.web) {
            s3.tell(web.readiness());
        }
        Ok(())
    }

    fn offer_of_cluster(&self, client: Client, links: LinkReports, own: Option<String>) -> Offer {
        let (config, cluster) = (&self.plan.loaded.config, self.parts.cluster.as_ref());
        let topology = client.topology();
        let members = topology.ring.members();
        let workers: Vec<String> = members.iter().map(|member| member.address.to_string()).collect();
        let identity = |member: &Member| Some((member.address.to_string(), member.identity.as_ref()?.to_string()));
        let in_etcd = cluster.filter(|_| !config.cluster_etcd_endpoints.is_empty());
        let source = match in_etcd {
            Some(cluster) => format!("forebay://{}", cluster.describe(config)),
            None => format!("forebay://{}", workers.join(",")),
        };
        Offer {
            client,
            source,
            workers,
            identities: members.iter().filter_map(identity).collect(),
            role: Role::Mount,
            node: own,
            members: in_etcd.map(|cluster| Arc::clone(cluster.members())),
            coordinator: self.parts.coordinating.as_ref().and_then(Coordinating::reached_at),
            page: self.parts.coordinating.as_ref().and_then(Coordinating::page),
            s3: self.parts.s3.as_ref().map(|s3| s3.local_addr().to_string()),
            token: None,
            state: cluster.map(|cluster| Arc::clone(cluster.store())),
            report: match &self.parts.worker {
                // With what there is to say of etcd.
                Some(worker) => worker.measured().source(),
                None => report_without_worker(cluster),
            },
            links,
            log: self.plan.log.clone(),
            room: match &self.parts.worker {
                Some(worker) => Automatic::of_worker(worker.lender()),
                None => Automatic::Own,
            },
        }
    }

    async fn mount(&mut self, offer: &Offer) -> anyhow::Result<()> {
        let Some(mountpoint) = self.takeover.mountpoint().map(Path::to_owned) else { return Ok(()) };
        let plan = self.plan;
        let (mount, claimed) = self.takeover.mount(&mountpoint, offer).await?;
        if let Some(place) = claimed {
            self.parts.place = Some(place);
        }
        let Some(place) = &self.parts.place else { return Ok(()) };
        let mounted = Mounted::start(mount, place, offer, &plan.loaded).await?;
        if let (Some(s3), Some(readiness)) = (&mut self.parts.s3, mounted.readiness()) {
            s3.tell(readiness);
        }
        let identity = mounted::identity(&mountpoint, &plan.namespace(), &plan.loaded);
        let rescue = plan.keeper.clone().map(|program| {
            let rescue = Rescue { mountpoint: mountpoint.clone(), program, identity: identity.clone() };
            Arc::new(move |given| rescue.keep(given)) as Rescuer
        });
        match Handover::serve(&place.claim.private_sockets().handover, identity, rescue, mounted.hand_over()) {
            Ok(handover) => self.parts.handover = Some(handover),
            Err(error) => warn!(%error, "`--replace` will not find this mount"),
        }
        if let Some(program) = plan.keeper.clone().filter(|_| mounted.hand_over().keeper().is_some()) {
            let watcher = KeeperWatcher::start(mountpoint.clone(), program, mounted.hand_over());
            self.parts.keeper_watcher = Some(watcher);
        }
        self.parts.stopping = plan.keeper.clone().map(|program| Stopping {
            on_stop: plan.loaded.config.fuse_on_stop,
            program,
            identity: mounted::identity(&mountpoint, &plan.namespace(), &plan.loaded),
            keeper: self.takeover.keeper().cloned(),
            hand_over: mounted.hand_over(),
            mountpoint,
        });
        self.parts.mounted = Some(mounted);
        Ok(())
    }
}

/// What a process reports that mounts, and has no worker.
fn report_without_worker(cluster: Option<&Cluster>) -> ReportSource {
    let certificates = cluster.and_then(Cluster::certificates).cloned();
    ReportSource::new(move || {
        let etcd = certificates.as_deref().map(cluster::report_certificates);
        serde_json::json!({ "process": ProcessStats::now(), "etcd": etcd })
    })
}

/// The configuration of a process that asks workers things, and moves no data itself.
fn without_data(config: &Config) -> Config {
    Config {
        network_rdma_data_enabled: false,
        network_rdma_metadata_enabled: false,
        network_shared_memory: SharedMemory::Off,
        client_prefetch_max_part_number: Some(0),
        client_prefetch_directory_budget: forebay_types::ByteSize::bytes(0),
        ..config.clone()
    }
}

/// What a standalone node shows.
fn root(origin: &str) -> forebay_config::Mount {
    forebay_config::Mount { path: FsPath::root(), origin: origin.to_owned() }
}

/// Where others reach the coordinator, if that is not where it listens. With port 0 that is known only when it does. Of several
/// coordinators with one configuration, `coordinator.hostname` is one's.
fn advertised(config: &Config, address: SocketAddr) -> anyhow::Result<Option<String>> {
    if !address.ip().is_unspecified() || address.port() == 0 {
        return Ok(None);
    }
    let own = config.coordinator_hostname.as_ref().filter(|host| binding::is_of_this_machine(host));
    let host = hostname_or(own.or(config.worker_hostname.as_ref()))?;
    Ok(Some(binding::host_and_port(&host, address.port())))
}
