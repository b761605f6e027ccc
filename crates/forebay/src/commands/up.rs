//! `forebay up`: a worker and a mount of it in one process.
//!
//! The mount reads from the worker's memory without a copy. The worker also listens on a free port of the loopback
//! interface, for `forebay fs` and `forebay stats`; the run state says which.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::Client;
use forebay_cluster::records::members::Capacity;
use forebay_config::Loaded;
use forebay_transport::Service;
use forebay_types::{ByteSize, FsPath};
use tracing::warn;

use crate::binding::{self, Ports, WorkerAddresses};
use crate::cluster::Cluster;
use crate::config_args::{ConfigArgs, ReadOnlyArg};
use crate::coordinating::{Coordinating, Known};
use crate::exit::{Exit, Fault};
use crate::memory::{self, Parts, Takes};
use crate::mounted::{self, Begun, Offer, Place, StayArgs};
use crate::node::{Node, NodeOptions};
use crate::signals::Signals;
use crate::state::{self, Role};
use crate::{assembly, rdma, runtime};

/// How long the mount waits for its coordinator, which nobody runs against: it leads when the state's files are written.
const LEADS_WITHIN: Duration = Duration::from_secs(10);

/// Mount an object store or a directory, cached by this machine
///
/// Runs a worker, a mount and a coordinator in one process, with nothing else to set up. Goes to the background once the mount
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
    read_only: ReadOnlyArg,
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
    let mut loaded = args.config.load(memory.into_iter().chain(disks).chain(args.read_only.setting()))?;
    binding::check(&loaded.config, &[])?;
    let worker = Some(if is_prewarmed(&loaded) { Takes::AtStart } else { Takes::AsUsed });
    memory::check(&mut loaded, Parts { worker, client: false })?;
    let origin = origin_url(&args.origin)?;
    let begun = mounted::begin(&args.stay, &loaded, &args.mountpoint, &format!("mounting {origin}"))?;
    let Begun::Stay { log } = begun else { return Ok(()) };
    rdma::say_which_are_idle(&loaded, true);
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
    let directory = state::mount_state(place.mountpoint())?;
    let cluster = Cluster::in_files(&loaded.config, directory).await?;
    let served = signals.unless_any(start(loaded, origin, &cluster)).await;
    let served = match served {
        Ok(node) => {
            let served = serve(&place, loaded, origin, &cluster, &node, log, in_background, &mut signals).await;
            node.close().await;
            served
        }
        Err(error) => Err(error),
    };
    cluster.close().await;
    served
}

/// On a machine that does other work, memory is taken as it is needed, unless somebody has said otherwise.
fn is_prewarmed(loaded: &Loaded) -> bool {
    let told = loaded.origin("worker.memory.prewarm") != forebay_config::Origin::Default;
    told && loaded.config.worker_memory_prewarm
}

async fn start(loaded: &Loaded, origin: &str, cluster: &Cluster) -> anyhow::Result<Node> {
    assembly::probe_origin(loaded, origin).await?;
    let options = NodeOptions {
        loaded,
        addresses: WorkerAddresses { rpc: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), data: None },
        mounts: vec![root(origin)],
        prewarm: is_prewarmed(loaded),
        cluster: Some(cluster),
        ports: Ports::Stay,
        shared: false,
    };
    Node::start(options).await
}

#[expect(clippy::too_many_arguments, reason = "all that a mount is made of")]
async fn serve(
    place: &Place,
    loaded: &Loaded,
    origin: &str,
    cluster: &Cluster,
    node: &Node,
    log: Option<PathBuf>,
    in_background: bool,
    signals: &mut Signals,
) -> anyhow::Result<()> {
    let config = &loaded.config;
    let client = assembly::local_client(config, Arc::clone(node.worker()) as Arc<dyn Service>).await?;
    let coordinating = coordinator(loaded, origin, cluster, &client, node.capacity()).await;
    let workers = node.addresses().map(|address| address.to_string()).collect();
    let coordinator = coordinating.as_ref().map(|coordinating| coordinating.address().to_string());
    let report = node.measured().source();
    let offer = Offer {
        client,
        source: origin.to_owned(),
        workers,
        role: Role::Up,
        node: None,
        members: None,
        coordinator,
        state: Some(Arc::clone(cluster.store())),
        report,
    };
    let served = place.serve(&offer, loaded, log, in_background, signals).await;
    if let Some(coordinating) = coordinating {
        coordinating.close().await;
    }
    offer.client.close().await;
    served
}

/// What the mount shows.
fn root(origin: &str) -> forebay_config::Mount {
    forebay_config::Mount { path: FsPath::root(), origin: origin.to_owned() }
}

/// The coordinator, for this machine only; at a free port if the configured one is taken. A mount without is a mount, too.
async fn coordinator(
    loaded: &Loaded,
    origin: &str,
    cluster: &Cluster,
    client: &Client,
    own: Capacity,
) -> Option<Coordinating> {
    let ports = [loaded.config.coordinator_port, 0];
    let mut problem = None;
    for port in ports {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let known = Known { mounts: vec![root(origin)], own: Some(own) };
        match Coordinating::start(loaded, cluster, client.clone(), known, address, None).await {
            Ok(coordinating) => {
                coordinating.leads(LEADS_WITHIN).await;
                return Some(coordinating);
            }
            Err(error) => problem = Some(error),
        }
    }
    if let Some(error) = problem {
        warn!(error = format!("{error:#}"), "there is no coordinator: `forebay job` and the web page do not work");
    }
    None
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
