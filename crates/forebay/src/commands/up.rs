//! `forebay up`: a worker and a mount of it in one process.
//!
//! The mount reads from the worker's memory without a copy. The worker also listens on a free port of the loopback
//! interface, for `forebay fs` and `forebay stats`; the run state says which.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forebay_config::Loaded;
use forebay_store::Store;
use forebay_tcp::TcpServer;
use forebay_transport::Service;
use forebay_types::{ByteSize, FsPath};
use forebay_worker::Worker;
use tracing::warn;

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::mounted::{self, Begun, Offer, Place, StayArgs};
use crate::signals::Signals;
use crate::state::Role;
use crate::{assembly, runtime};

/// How long what is queued for the disks may take to be written at the end. What is not is read again from the origin.
const FLUSH_WITHIN: Duration = Duration::from_secs(20);

/// Mount an object store or a directory, cached by this machine
///
/// Runs a worker and a mount in one process, with nothing else to set up. Goes to the background once the mount
/// answers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay up s3://bucket/prefix /mnt/data --memory 8GiB --disk /mnt/nvme0/forebay:500GiB
  forebay up /srv/datasets /mnt/data --foreground -o log.level=debug
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
    let loaded = args.config.load(memory.into_iter().chain(disks))?;
    let origin = origin_url(&args.origin)?;
    let begun = mounted::begin(&args.stay, &loaded, &args.mountpoint, &format!("mounting {origin}"))?;
    let Begun::Stay { log } = begun else { return Ok(()) };
    runtime::block_on(up(&loaded, &origin, &args.mountpoint, log, args.stay.background_child))
}

/// The URL that `origin` means: itself, or that of the directory that it names.
fn origin_url(origin: &str) -> anyhow::Result<String> {
    if origin.contains("://") {
        return Ok(origin.to_owned());
    }
    let directory = Path::new(origin).canonicalize().map_err(|error| {
        let next = "give a URL, as in s3://bucket/prefix, or an existing directory";
        Fault::new(Exit::NotFound, format!("origin `{origin}` is neither a URL nor a directory: {error}"), next)
    })?;
    let url = url::Url::from_directory_path(&directory);
    let url = url.map_err(|()| anyhow::anyhow!("{} cannot be written as a URL", directory.display()))?;
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

async fn up(
    loaded: &Loaded,
    origin: &str,
    mountpoint: &Path,
    log: Option<PathBuf>,
    in_background: bool,
) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let place = Place::take(mountpoint)?;
    let node = signals.unless_any(Node::start(loaded, origin)).await?;
    let client = assembly::local_client(&loaded.config, Arc::clone(&node.worker) as Arc<dyn Service>).await?;
    let workers = vec![node.server.local_addr().to_string()];
    let offer = Offer { client, source: origin.to_owned(), workers, role: Role::Up };
    let served = place.serve(&offer, loaded, log, in_background, &mut signals).await;
    offer.client.close().await;
    drop(offer);
    node.close().await;
    served
}

/// The worker and its server.
struct Node {
    store: Store,
    worker: Arc<Worker>,
    server: TcpServer,
}

impl Node {
    async fn start(loaded: &Loaded, origin: &str) -> anyhow::Result<Self> {
        assembly::probe_origin(loaded, origin).await?;
        let origin = assembly::open_origin(loaded, origin)?;
        // On a machine that does other work, memory is taken as it is needed.
        let told = loaded.origin("worker.memory.prewarm") != forebay_config::Origin::Default;
        let prewarm = told && loaded.config.worker_memory_prewarm;
        let store = assembly::worker_store(&loaded.config, prewarm).await?;
        let worker = assembly::worker(&loaded.config, store.clone(), vec![(FsPath::root(), origin)])?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = assembly::server(&loaded.config, address, Arc::clone(&worker) as Arc<dyn Service>)
            .context("cannot start the worker's server")?;
        Ok(Self { store, worker, server })
    }

    async fn close(self) {
        self.server.close().await;
        close_worker(self.worker, self.store).await;
    }
}

/// Ends a worker whose servers are closed: what is queued for its disks is written, as far as there is time.
pub(crate) async fn close_worker(worker: Arc<Worker>, store: Store) {
    worker.close().await;
    if tokio::time::timeout(FLUSH_WITHIN, store.flush()).await.is_err() {
        warn!("the disks are too slow to write all that is queued: the rest is not kept");
    }
    drop(worker);
    store.close().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_a_file_origin_and_a_url_stays_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("a b");
        std::fs::create_dir(&path).unwrap();
        let url = origin_url(path.to_str().unwrap()).unwrap();
        assert!(url.starts_with("file:///") && url.ends_with("/a%20b"), "{url}");
        assert_eq!(origin_url("s3://b/p/").unwrap(), "s3://b/p/");
        let error = origin_url("/no/such/directory").unwrap_err();
        assert!(error.to_string().contains("neither a URL nor a directory"));
    }
}
