//! `forebay worker`: a cache node, in the foreground, as systemd and Kubernetes want it.

use forebay_cluster::Reach;
use forebay_config::Loaded;
use tracing::{info, warn};

use crate::binding::{self, Part, Ports, WorkerAddresses};
use crate::cluster::Cluster;
use crate::config_args::{ClusterArgs, ConfigArgs, RdmaArgs, ServeArgs};
use crate::exit::{Exit, Fault};
use crate::memory::{self, Parts, Takes};
use crate::node::{Node, NodeOptions};
use crate::signals::Signals;
use crate::web::Web;
use crate::{logging, output, rdma, runtime};

/// Run a cache node
///
/// Caches the origins that `mounts` and, with etcd, `forebay mounts` name, and serves them to `forebay mount` on other
/// machines, until SIGTERM or Ctrl-C. Says `worker listening on ADDRESS` on standard error when it does, and logs there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay worker --config /etc/forebay/forebay.toml
  forebay worker --etcd http://etcd1:2379,http://etcd2:2379 --cache-group training
  forebay worker -o mounts=/=s3://bucket/prefix -o worker.memory.size=64GiB -o worker.rpc.port=29999")]
pub(crate) struct Args {
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// When the worker cannot start.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let flags = args.rdma.settings().into_iter().chain(args.cluster.settings()).chain(args.serve.settings());
    let mut loaded = args.config.load(flags)?;
    logging::start(&loaded.config)?;
    let takes = Takes::of_shared(&loaded);
    memory::check(&mut loaded, Parts { worker: Some(takes), client: false })?;
    rdma::say_which_are_idle(&loaded, false);
    rdma::load_early(&loaded.config);
    runtime::block_on(serve(&loaded))
}

async fn serve(loaded: &Loaded) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let config = &loaded.config;
    binding::check(config, &[Part::Worker])?;
    let cluster = Cluster::open(config, Reach::Data).await?;
    if config.mounts.is_empty() && cluster.is_none() {
        let next = "name one in `forebay.toml` or with `-o mounts=/=s3://bucket/prefix`, or the cluster with `--etcd`";
        return Err(Fault::new(Exit::Usage, "the worker has no origin to cache: `mounts` is empty", next).into());
    }
    let options = NodeOptions {
        loaded,
        addresses: WorkerAddresses::of(config)?,
        mounts: config.mounts.clone(),
        prewarm: config.worker_memory_prewarm,
        cluster: cluster.as_ref(),
        ports: Ports::Stay,
        shared: true,
    };
    let mut node = signals.unless_any(Node::start(options)).await?;
    let web = Web::of_worker(loaded, &node).await;
    if let Some(cluster) = &cluster {
        let joined = node.join(config, cluster, web.as_ref().map(|web| web.advertised.clone()));
        if let Err(error) = joined {
            end(node, web, Some(cluster)).await;
            return Err(error);
        }
    }
    for address in node.addresses() {
        output::say(&format!("worker listening on {address}"));
        info!(%address, "worker listening");
    }
    let signal = signals.next().await;
    info!(signal, "ending");
    tokio::select! {
        () = end(node, web, cluster.as_ref()) => info!("ended"),
        signal = signals.next() => warn!(signal, "ending at once"),
    }
    Ok(())
}

async fn end(node: Node, web: Option<Web>, cluster: Option<&Cluster>) {
    node.close().await;
    if let Some(web) = web {
        web.close().await;
    }
    if let Some(cluster) = cluster {
        cluster.close().await;
    }
}
