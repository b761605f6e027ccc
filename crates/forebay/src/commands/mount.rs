//! `forebay mount`: a mount of what workers in other processes serve.

use std::path::PathBuf;

use forebay_config::Loaded;

use crate::config_args::{ConfigArgs, RdmaArgs};
use crate::exit::{Exit, Fault};
use crate::mounted::{self, Begun, Offer, Place, StayArgs};
use crate::signals::Signals;
use crate::state::Role;
use crate::{assembly, rdma, runtime};

/// Mount what workers serve
///
/// Goes to the background once the mount answers. A mount that a killed process left at the same place is repaired.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay mount /mnt/data --workers node1:29999,node2:29999
  forebay umount /mnt/data")]
pub(crate) struct Args {
    /// An existing directory
    mountpoint: PathBuf,
    /// The workers [default: cluster.workers]
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    workers: Vec<String>,
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    pub(crate) stay: StayArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// When no worker answers, or it cannot be mounted.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let workers = (!args.workers.is_empty()).then(|| format!("cluster.workers={}", args.workers.join(",")));
    let loaded = args.config.load(workers.into_iter().chain(args.rdma.settings()))?;
    if loaded.config.cluster_workers.is_empty() {
        let next = "name them with `--workers HOST:PORT,...` or as `cluster.workers`; \
                    to mount an origin without workers, use `forebay up ORIGIN MOUNTPOINT`";
        return Err(Fault::new(Exit::Usage, "no workers are named", next).into());
    }
    let begun = mounted::begin(&args.stay, &loaded, &args.mountpoint, "mounting")?;
    let Begun::Stay { log } = begun else { return Ok(()) };
    rdma::load_early(&loaded.config);
    runtime::block_on(mount(&loaded, args.mountpoint, log, args.stay.background_child))
}

async fn mount(loaded: &Loaded, mountpoint: PathBuf, log: Option<PathBuf>, in_background: bool) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let place = Place::take(&mountpoint)?;
    let workers: Vec<String> = loaded.config.cluster_workers.iter().map(ToString::to_string).collect();
    let client = assembly::remote_client(&loaded.config, &workers).await?;
    let source = format!("forebay://{}", workers.join(","));
    let offer = Offer { client, source, workers, role: Role::Mount };
    let served = place.serve(&offer, loaded, log, in_background, &mut signals).await;
    offer.client.close().await;
    served
}
