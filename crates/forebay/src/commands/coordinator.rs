//! `forebay coordinator`: jobs, the REST interface and the web page, in the foreground.

use forebay_node::Node;

use crate::config_args::{ClusterArgs, ConfigArgs};
use crate::{foreground, logging, output, runtime};

/// Run the coordinator: jobs, the REST API and the web page
///
/// The coordinator answers `forebay job`, `forebay mounts`, `forebay policy` and `forebay cluster`. It also shows the
/// cluster in a browser. It runs until SIGTERM or Ctrl-C. Several coordinators may run. With etcd they elect one to run
/// the jobs, and another one continues the jobs when it dies. Without etcd the coordinator keeps its state in files and
/// manages the workers of `cluster.workers`. Reads do not need a coordinator.
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
    runtime::block_on(foreground::serve(Node::builder().config(loaded).coordinator(), |addresses| {
        if let Some(address) = addresses.coordinator {
            output::say(&format!("coordinator listening on {address}"));
        }
    }))
}
