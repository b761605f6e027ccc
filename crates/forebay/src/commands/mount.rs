//! `forebay mount`: a mount of what workers serve; with a cache of its own, it is one of them.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_client::Away;
use forebay_cluster::{Membership, Reach};
use forebay_config::{Config, Loaded};
use forebay_fuse::ReportSource;
use forebay_metrics::ProcessStats;
use forebay_transport::Service;
use forebay_types::ByteSize;

use crate::binding::{self, Part, Ports, WorkerAddresses};
use crate::cluster::{self, Cluster};
use crate::config_args::{ClusterArgs, ConfigArgs, RdmaArgs, ReadOnlyArg, ServeArgs};
use crate::direct::Direct;
use crate::exit::{Exit, Fault};
use crate::memory::{self, Parts, Takes};
use crate::mounted::{self, Begun, Offer, Place, StayArgs};
use crate::node::{Node, NodeOptions};
use crate::signals::Signals;
use crate::state::Role;
use crate::web::Web;
use crate::{assembly, rdma, runtime};

/// Mount what workers serve
///
/// Goes to the background once the mount answers. A mount that a killed process left at the same place is repaired. With
/// --cache-group the mount is a worker of that group, too: it shares a cache of its own with the others, unless --no-sharing. Without
/// --etcd the group is the list of --workers, the same on all of its nodes, in which this mount must stand, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay mount /mnt/data --workers node1:29999,node2:29999
  forebay mount /mnt/data --etcd http://etcd1:2379
  forebay mount /mnt/data --etcd http://etcd1:2379 --cache-group training --memory 64GiB
  forebay umount /mnt/data")]
pub(crate) struct Args {
    /// An existing directory
    mountpoint: PathBuf,
    /// The workers [default: cluster.workers]
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    workers: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Only read from the cache group, and cache nothing for it
    #[arg(long)]
    no_sharing: bool,
    /// Memory for the blocks that this mount caches for its group [default: worker.memory.size, 1GiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "no_sharing")]
    memory: Option<ByteSize>,
    /// A directory for them and how much it may hold; may be repeated
    #[arg(long, value_name = "PATH:SIZE", conflicts_with = "no_sharing")]
    disk: Vec<String>,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    read_only: ReadOnlyArg,
    #[command(flatten)]
    pub(crate) stay: StayArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

impl Args {
    fn settings(&self) -> impl Iterator<Item = String> {
        let workers = (!self.workers.is_empty()).then(|| format!("cluster.workers={}", self.workers.join(",")));
        let memory = self.memory.map(|size| format!("worker.memory.size={size}"));
        let disks = (!self.disk.is_empty()).then(|| format!("worker.disks={}", self.disk.join(",")));
        let flags = workers.into_iter().chain(memory).chain(disks).chain(self.read_only.setting());
        flags.chain(self.cluster.settings()).chain(self.serve.settings()).chain(self.rdma.settings())
    }

    /// Whether the mount is to be a worker, too.
    fn shares(&self) -> bool {
        let asked = self.cluster.cache_group.is_some() || self.memory.is_some() || !self.disk.is_empty();
        asked && !self.no_sharing
    }
}

/// Runs it.
///
/// # Errors
/// When no worker answers, or it cannot be mounted.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut loaded = args.config.load(args.settings())?;
    let in_cluster = !loaded.config.cluster_etcd_endpoints.is_empty();
    if loaded.config.cluster_workers.is_empty() && !in_cluster {
        let next = "name them with `--workers HOST:PORT,...` or as `cluster.workers`, or their cluster with `--etcd URL`; \
                    to mount an origin without workers, use `forebay up ORIGIN MOUNTPOINT`";
        return Err(Fault::new(Exit::Usage, "no workers are named", next).into());
    }
    if args.shares() && !in_cluster && loaded.config.mounts.is_empty() {
        let next = "name one in `forebay.toml` or with `-o mounts=/=s3://bucket/prefix`, the same on all nodes of the group, or the \
                    cluster with `--etcd`";
        return Err(Fault::new(Exit::Usage, "the mount has no origin to cache: `mounts` is empty", next).into());
    }
    let parts = if args.shares() { &[Part::Client, Part::Worker][..] } else { &[Part::Client] };
    binding::check(&loaded.config, parts)?;
    let worker = args.shares().then(|| Takes::of_shared(&loaded));
    memory::check(&mut loaded, Parts { worker, client: true })?;
    let begun = mounted::begin(&args.stay, &loaded, &args.mountpoint, "mounting")?;
    let Begun::Stay { log } = begun else { return Ok(()) };
    rdma::say_which_are_idle(&loaded, false);
    rdma::load_early(&loaded.config);
    runtime::block_on(mount(&loaded, &args, log))
}

async fn mount(loaded: &Loaded, args: &Args, log: Option<PathBuf>) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let place = Place::take(&args.mountpoint)?;
    let cluster = Cluster::open(&loaded.config, Reach::Data).await?;
    let membership: Arc<dyn Membership> = match &cluster {
        None => Arc::new(cluster::static_members(&loaded.config)),
        Some(cluster) => Arc::clone(cluster.members()) as Arc<dyn Membership>,
    };
    let mut site =
        Site { place: &place, loaded, args, log, cluster: cluster.as_ref(), membership, signals: &mut signals };
    let served = if args.shares() { site.share().await } else { site.read().await };
    if let Some(cluster) = &cluster {
        cluster.close().await;
    }
    served
}

/// A mount that is to be.
struct Site<'a> {
    place: &'a Place,
    loaded: &'a Loaded,
    args: &'a Args,
    log: Option<PathBuf>,
    cluster: Option<&'a Cluster>,
    membership: Arc<dyn Membership>,
    signals: &'a mut Signals,
}

impl Site<'_> {
    /// Mounts what others serve.
    async fn read(&mut self) -> anyhow::Result<()> {
        if let Some(cluster) = self.cluster {
            self.signals.unless_any(cluster.told()).await?;
        }
        self.serve(None).await
    }

    /// The same, with a worker of its own that others read from, too.
    async fn share(&mut self) -> anyhow::Result<()> {
        let config = &self.loaded.config;
        let options = NodeOptions {
            loaded: self.loaded,
            addresses: WorkerAddresses::of(config)?,
            mounts: config.mounts.clone(),
            prewarm: config.worker_memory_prewarm,
            cluster: self.cluster,
            // Others find it by its record; a fixed list names its port.
            ports: if self.cluster.is_some() { Ports::Move } else { Ports::Stay },
            shared: true,
        };
        let mut node = self.signals.unless_any(Node::start(options)).await?;
        let web = Web::of_worker(self.loaded, &node).await;
        let served = match self.join(&mut node, web.as_ref()).await {
            Ok(name) => self.serve(Some((&node, &name))).await,
            Err(error) => Err(error),
        };
        node.close().await;
        if let Some(web) = web {
            web.close().await;
        }
        served
    }

    /// Makes the node a member of its group: its name there.
    async fn join(&mut self, node: &mut Node, web: Option<&Web>) -> anyhow::Result<String> {
        let config = &self.loaded.config;
        let Some(cluster) = self.cluster else { return listed(config, &node.reached_at(config)?) };
        node.join(config, cluster, web.map(|web| web.advertised.clone()))?;
        self.signals.unless_any(node.registered(cluster)).await?;
        Ok(node.name().unwrap_or_default().to_owned())
    }

    /// Mounts, and serves until the mount has ended; reads directly what its own node holds, which the group knows by this name.
    async fn serve(&mut self, node: Option<(&Node, &str)>) -> anyhow::Result<()> {
        let direct = self.signals.unless_any(Direct::start(self.loaded, self.cluster)).await?;
        let away = direct.as_ref().map_or(Away::Wait, Direct::away);
        let served = self.serve_or(away, node).await;
        if let Some(direct) = direct {
            direct.close().await;
        }
        served
    }

    /// The same; this is done while no worker can be reached.
    async fn serve_or(&mut self, away: Away, node: Option<(&Node, &str)>) -> anyhow::Result<()> {
        let config = &self.loaded.config;
        let own = node.map(|(node, name)| (name.into(), Arc::clone(node.worker()) as Arc<dyn Service>));
        let client = assembly::remote_client(config, Reach::Data, Arc::clone(&self.membership), own, away);
        // It may take seconds to have the kernel back its memory.
        let client = self.signals.unless_any(client).await?;
        let topology = self.membership.topology();
        let workers: Vec<String> = topology.ring.members().iter().map(|member| member.address.to_string()).collect();
        let source = match self.cluster {
            Some(cluster) => format!("forebay://{}", cluster.describe(config)),
            None => format!("forebay://{}", workers.join(",")),
        };
        let members = self.cluster.map(|cluster| Arc::clone(cluster.members()));
        let report = match node {
            Some((node, _)) => node.measured().source(),
            None => ReportSource::new(|| serde_json::json!({ "process": ProcessStats::now() })),
        };
        let state = self.cluster.map(|cluster| Arc::clone(cluster.store()));
        let node = node.map(|(_, name)| name.to_owned());
        let offer =
            Offer { client, source, workers, role: Role::Mount, node, members, coordinator: None, state, report };
        let in_background = self.args.stay.background_child;
        let served = self.place.serve(&offer, self.loaded, self.log.take(), in_background, self.signals).await;
        offer.client.close().await;
        served
    }
}

/// The name of a node that is reached at `address` in a group that is a fixed list.
fn listed(config: &Config, address: &str) -> anyhow::Result<String> {
    if config.cluster_workers.iter().any(|worker| worker.to_string() == address) {
        return Ok(address.to_owned());
    }
    let what = format!(
        "this mount shares its cache at {address}, which is not among `cluster.workers`: nobody would read from it"
    );
    let next = "name it in `--workers` on every node of the group, have `worker.hostname` and `--port` say what is named there, or name \
                an etcd with `--etcd URL`; `--no-sharing` only reads";
    Err(Fault::new(Exit::Usage, what, next).into())
}
