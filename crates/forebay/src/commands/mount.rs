//! `forebay mount`: a mount of what workers serve; with a cache of its own, it is one of them.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_cluster::{Membership, Reach};
use forebay_config::Loaded;
use forebay_fuse::ReportSource;
use forebay_metrics::ProcessStats;
use forebay_transport::Service;
use forebay_types::ByteSize;

use crate::binding::{self, Part, WorkerAddresses};
use crate::cluster::{self, Cluster};
use crate::config_args::{ClusterArgs, ConfigArgs, RdmaArgs, ReadOnlyArg};
use crate::exit::{Exit, Fault};
use crate::mounted::{self, Begun, Offer, Place, StayArgs};
use crate::node::{Node, NodeOptions};
use crate::signals::Signals;
use crate::state::Role;
use crate::web::Web;
use crate::{assembly, rdma, runtime};

/// Mount what workers serve
///
/// Goes to the background once the mount answers. A mount that a killed process left at the same place is repaired. With
/// --cache-group the mount is a worker of that group, too: it shares a cache of its own with the others, unless --no-sharing.
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
        flags.chain(self.cluster.settings()).chain(self.rdma.settings())
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
    let loaded = args.config.load(args.settings())?;
    let in_cluster = !loaded.config.cluster_etcd_endpoints.is_empty();
    if loaded.config.cluster_workers.is_empty() && !in_cluster {
        let next = "name them with `--workers HOST:PORT,...` or as `cluster.workers`, or their cluster with `--etcd URL`; \
                    to mount an origin without workers, use `forebay up ORIGIN MOUNTPOINT`";
        return Err(Fault::new(Exit::Usage, "no workers are named", next).into());
    }
    if args.shares() && !in_cluster {
        let next = "name the cluster's etcd with `--etcd URL`, so that others find this mount's cache";
        return Err(Fault::new(Exit::Usage, "a mount can share its cache only in a cluster", next).into());
    }
    let parts = if args.shares() { &[Part::Client, Part::Worker][..] } else { &[Part::Client] };
    binding::check(&loaded.config, parts)?;
    let begun = mounted::begin(&args.stay, &loaded, &args.mountpoint, "mounting")?;
    let Begun::Stay { log } = begun else { return Ok(()) };
    rdma::load_early(&loaded.config);
    runtime::block_on(mount(&loaded, &args, log))
}

async fn mount(loaded: &Loaded, args: &Args, log: Option<PathBuf>) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let place = Place::take(&args.mountpoint)?;
    let cluster = Cluster::open(&loaded.config, Reach::Data).await?;
    let served = match &cluster {
        None => {
            let membership = Arc::new(cluster::static_members(&loaded.config));
            serve(&place, loaded, args, log, membership, None, &mut signals).await
        }
        Some(cluster) => in_cluster(&place, loaded, args, log, cluster, &mut signals).await,
    };
    if let Some(cluster) = &cluster {
        cluster.close().await;
    }
    served
}

async fn in_cluster(
    place: &Place,
    loaded: &Loaded,
    args: &Args,
    log: Option<PathBuf>,
    cluster: &Cluster,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let membership = Arc::clone(cluster.members()) as Arc<dyn Membership>;
    if !args.shares() {
        signals.unless_any(cluster.told()).await?;
        return serve(place, loaded, args, log, membership, Some((cluster, None)), signals).await;
    }
    let options = NodeOptions {
        loaded,
        addresses: WorkerAddresses::of(&loaded.config)?,
        mounts: loaded.config.mounts.clone(),
        prewarm: loaded.config.worker_memory_prewarm,
        cluster: Some(cluster),
        shared: true,
    };
    let mut node = signals.unless_any(Node::start(options)).await?;
    let web = Web::of_worker(loaded, &node).await;
    let served = match node.join(&loaded.config, cluster, web.as_ref().map(|web| web.advertised.clone())) {
        Ok(()) => match signals.unless_any(node.registered(cluster)).await {
            Ok(()) => serve(place, loaded, args, log, membership, Some((cluster, Some(&node))), signals).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    node.close().await;
    if let Some(web) = web {
        web.close().await;
    }
    served
}

/// Mounts, and serves until the mount has ended; reads what `node` holds directly.
async fn serve(
    place: &Place,
    loaded: &Loaded,
    args: &Args,
    log: Option<PathBuf>,
    membership: Arc<dyn Membership>,
    cluster: Option<(&Cluster, Option<&Node>)>,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let node = cluster.and_then(|(_, node)| node);
    let own = node.and_then(|node| {
        let service = Arc::clone(node.worker()) as Arc<dyn Service>;
        Some((node.name()?.into(), service))
    });
    let client = assembly::remote_client(&loaded.config, Reach::Data, Arc::clone(&membership), own).await?;
    let topology = membership.topology();
    let workers: Vec<String> = topology.ring.members().iter().map(|member| member.address.to_string()).collect();
    let source = match cluster {
        Some((cluster, _)) => format!("forebay://{}", cluster.describe(&loaded.config)),
        None => format!("forebay://{}", workers.join(",")),
    };
    let members = cluster.map(|(cluster, _)| Arc::clone(cluster.members()));
    let report = match node {
        Some(node) => node.measured().source(),
        None => ReportSource::new(|| serde_json::json!({ "process": ProcessStats::now() })),
    };
    let state = cluster.map(|(cluster, _)| Arc::clone(cluster.store()));
    let offer = Offer { client, source, workers, role: Role::Mount, members, coordinator: None, state, report };
    let served = place.serve(&offer, loaded, log, args.stay.background_child, signals).await;
    offer.client.close().await;
    served
}
