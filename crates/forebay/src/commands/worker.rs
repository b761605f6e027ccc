//! `forebay worker`: a cache node, in the foreground, as systemd and Kubernetes want it.

use forebay_node::Node;

use crate::config_args::{ClusterArgs, ConfigArgs, RdmaArgs, ServeArgs};
use crate::{foreground, logging, output, runtime};

/// Run a cache node
///
/// A worker caches the origins that `mounts` names and, with etcd, those that `forebay mounts` names. It serves them to
/// `forebay mount` on other machines until SIGTERM or Ctrl-C. When it listens, it prints `worker listening on ADDRESS`
/// on standard error. It also logs there.
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
    let loaded = args.config.load(flags)?;
    logging::start(&loaded.config)?;
    let mut node = Node::builder().config(loaded).worker();
    node.load_early()?;
    runtime::block_on(foreground::serve(node, |addresses| {
        for address in addresses.worker {
            output::say(&format!("worker listening on {address}"));
        }
        if let Some(address) = addresses.s3 {
            output::say(&format!("S3 endpoint listening on {address}"));
        }
    }))
}
