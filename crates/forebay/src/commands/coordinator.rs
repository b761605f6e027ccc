//! `forebay coordinator`: jobs, the REST interface and the web page, in the foreground.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_client::Away;
use forebay_cluster::Reach;
use forebay_config::{Loaded, SharedMemory};
use tracing::{info, warn};

use crate::binding;
use crate::cluster::{self, Cluster};
use crate::config_args::{ClusterArgs, ConfigArgs};
use crate::coordinating::{Coordinating, Known};
use crate::signals::Signals;
use crate::{assembly, logging, node, output, runtime};

/// Run the coordinator: jobs, the REST API and the web page
///
/// Answers `forebay job`, `forebay mounts`, `forebay policy` and `forebay cluster`, and shows the cluster in a browser, until
/// SIGTERM or Ctrl-C. Several may run: with etcd, one of them is elected to run the jobs, and another goes on with them when
/// it dies. Without etcd it keeps its state in files and concerns the workers of `cluster.workers`. No read needs it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay coordinator --etcd http://etcd1:2379,http://etcd2:2379
  forebay coordinator -o cluster.workers=node1:29999,node2:29999
  curl http://localhost:19999/api/v1/cluster")]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// When it cannot start.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let loaded = args.config.load(args.cluster.settings())?;
    logging::start(&loaded.config)?;
    runtime::block_on(serve(&loaded))
}

async fn serve(loaded: &Loaded) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let mut config = loaded.config.clone();
    binding::check(&config, &[])?;
    let address = binding::coordinator_address(&config)?;
    // It moves no data itself.
    config.network_rdma_data_enabled = false;
    config.network_rdma_metadata_enabled = false;
    config.network_shared_memory = SharedMemory::Off;
    config.client_prefetch_max_part_number = Some(0);
    let cluster = match Cluster::open(&config, Reach::Requests).await? {
        Some(cluster) => cluster,
        None => Cluster::in_files(&config, cluster::state_directory(&config)?).await?,
    };
    let members = Arc::clone(cluster.members()) as Arc<dyn forebay_cluster::Membership>;
    let client = assembly::remote_client(&config, Reach::Requests, members, None, Away::Fail).await?;
    let known = Known { mounts: config.mounts.clone(), own: None };
    let advertised = advertised(loaded, address)?;
    let started = Coordinating::start(loaded, &cluster, client.clone(), known, address, advertised).await;
    let coordinating = match started {
        Ok(coordinating) => coordinating,
        Err(error) => {
            client.close().await;
            cluster.close().await;
            return Err(error);
        }
    };
    let address = coordinating.address();
    output::say(&format!("coordinator listening on {address}"));
    info!(%address, state = cluster.store().describe(), "coordinator listening");
    let signal = signals.next().await;
    info!(signal, "ending");
    let end = async {
        coordinating.close().await;
        client.close().await;
        cluster.close().await;
    };
    tokio::select! {
        () = end => info!("ended"),
        signal = signals.next() => warn!(signal, "ending at once"),
    }
    Ok(())
}

/// Where others reach the coordinator, if that is not where it listens. With port 0 that is known only when it does. Of several
/// coordinators with one configuration, `coordinator.hostname` is one's.
fn advertised(loaded: &Loaded, address: SocketAddr) -> anyhow::Result<Option<String>> {
    if !address.ip().is_unspecified() || address.port() == 0 {
        return Ok(None);
    }
    let config = &loaded.config;
    let own = config.coordinator_hostname.as_ref().filter(|host| binding::is_of_this_machine(host));
    let host = node::hostname_or(own.or(config.worker_hostname.as_ref()))?;
    Ok(Some(binding::host_and_port(&host, address.port())))
}
