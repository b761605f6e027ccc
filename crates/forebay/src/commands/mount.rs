//! `forebay mount`: a mount of what workers serve; with a cache of its own, it is one of them.

use std::path::PathBuf;

use forebay_node::Node;
use forebay_types::ByteSize;

use crate::config_args::{ClusterArgs, ConfigArgs, RdmaArgs, ReadOnlyArg, ServeArgs};
use crate::mounting::{self, Begun, ReplaceArgs, StayArgs};
use crate::runtime;

/// Mount what workers serve
///
/// The command goes to the background once the mount answers. It repairs a mount that a killed process left at the same
/// place. With --cache-group the mount is also a worker of that group: it shares its own cache with the others, unless
/// --no-sharing is set. Without --etcd the group is the list of --workers. All nodes of the group must have the same
/// list, and it must contain this mount. With --replace the command takes over a mount that a running process serves,
/// as for an upgrade: programs that have files open go on, and the other process ends. A mount that shares its cache
/// starts with an empty memory then; reads wait while it starts.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay mount /mnt/data --workers node1:29999,node2:29999
  forebay mount /mnt/data --workers w1=node1:29999,w2=node2:29999
  forebay mount /mnt/data --etcd http://etcd1:2379
  forebay mount /mnt/data --etcd http://etcd1:2379 --cache-group training --memory 64GiB
  forebay mount /mnt/data --workers node1:29999,node2:29999 --replace     # with a new version of forebay
  forebay mount /mnt/data --workers node1:29999 -o fuse.survive_crash=true
  forebay umount /mnt/data")]
pub(crate) struct Args {
    /// An existing directory
    mountpoint: PathBuf,
    /// The workers; with a name, the one whose certificate has it and nobody else [default: cluster.workers]
    #[arg(long, value_name = "[NAME=]HOST:PORT,...", value_delimiter = ',')]
    workers: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Only read from the cache group, and cache nothing for it
    #[arg(long)]
    no_sharing: bool,
    /// Memory for the blocks that this mount caches for its group [default: worker.memory.size, 1GiB]
    #[arg(long, value_name = "SIZE", conflicts_with = "no_sharing")]
    memory: Option<ByteSize>,
    /// A directory for these blocks and how much it may hold; may be repeated
    #[arg(long, value_name = "PATH:SIZE", conflicts_with = "no_sharing")]
    disk: Vec<String>,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    read_only: ReadOnlyArg,
    #[command(flatten)]
    replace: ReplaceArgs,
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
    let loaded = args.config.load(args.settings())?;
    let config = loaded.config.clone();
    let node = Node::builder().config(loaded).mount(&args.mountpoint);
    let mut node = args.replace.apply(if args.shares() { node.worker() } else { node });
    node.check()?;
    let begun = mounting::begin(&args.stay, &args.replace, &config, &args.mountpoint, "mounting")?;
    let Begun::Stay { log } = begun else { return Ok(()) };
    node.load_early()?;
    let node = node.keeper(args.stay.keeper(log.as_deref())?);
    runtime::block_on(mounting::serve(node.logs_to(log), &args.stay))
}
