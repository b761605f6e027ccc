//! `forebay up`: a worker and a mount of it in one process.
//!
//! The mount reads from the worker's memory without a copy. `forebay fs`, `job` and `stats` reach the process over Unix sockets
//! of its user alone; the run state says where. It listens at a port only with `--web`.

use std::path::PathBuf;

use forebay_node::{Node, origin};
use forebay_types::ByteSize;

use crate::config_args::{ConfigArgs, ReadOnlyArg};
use crate::mounting::{self, Begun, ReplaceArgs, StayArgs};
use crate::runtime;

/// Mount an object store or a directory, cached by this machine
///
/// The command runs a worker, a mount and a coordinator in one process. Nothing else needs setting up. The command goes
/// to the background once the mount answers. With --replace the command takes over a mount that a running process
/// serves, as for an upgrade: programs that have files open go on, and their reads wait until the new worker is there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay up s3://bucket/prefix /mnt/data --memory 8GiB --disk /mnt/nvme0/forebay:500GiB
  forebay up /srv/datasets /mnt/data --foreground -o log.level=debug
  forebay up s3://bucket/prefix /mnt/data --web
  forebay up s3://bucket/prefix /mnt/data --replace     # with a new version of forebay
  forebay umount /mnt/data")]
pub(crate) struct Args {
    /// What to mount: s3://…, gs://…, az://…, http(s)://…, file:///… or a directory
    origin: String,
    /// An existing directory
    mountpoint: PathBuf,
    /// Memory for cached blocks [default: worker.memory.size, 1GiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// A directory for cached blocks and how much it may hold; may be repeated
    #[arg(long, value_name = "PATH:SIZE")]
    disk: Vec<String>,
    /// Serve the web page, REST and metrics on the loopback interface, for who has the printed URL, and so its token [default
    /// port: coordinator.port, or a free one]
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true)]
    web: Option<Option<u16>>,
    #[command(flatten)]
    read_only: ReadOnlyArg,
    #[command(flatten)]
    replace: ReplaceArgs,
    #[command(flatten)]
    pub(crate) stay: StayArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// When anything about origin, mountpoint, memory or disks is wrong.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let memory = args.memory.map(|size| format!("worker.memory.size={size}"));
    let disks = (!args.disk.is_empty()).then(|| format!("worker.disks={}", args.disk.join(",")));
    let loaded = args.config.load(memory.into_iter().chain(disks).chain(args.read_only.setting()))?;
    let (config, origin) = (loaded.config.clone(), origin::url_of(&args.origin)?);
    let mut node = Node::builder().config(loaded).standalone(&origin).mount(&args.mountpoint);
    if let Some(port) = args.web {
        node = node.web(port);
    }
    node = args.replace.apply(node);
    node.check()?;
    let begun = mounting::begin(&args.stay, &args.replace, &config, &args.mountpoint, &format!("mounting {origin}"))?;
    let Begun::Stay { log } = begun else { return Ok(()) };
    node.load_early()?;
    let node = node.keeper(args.stay.keeper(log.as_deref())?);
    runtime::block_on(mounting::serve(node.logs_to(log), &args.stay))
}
