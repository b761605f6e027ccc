//! `forebay s3`: an S3 endpoint of what workers serve, in the foreground, as systemd and Kubernetes want it.

use forebay_node::Node;

use crate::config_args::{ClusterArgs, ConfigArgs, RdmaArgs, ReadOnlyArg};
use crate::{foreground, logging, output, runtime};

/// Serve what workers serve to S3 clients
///
/// Programs that speak S3 read through the cache with their own client: boto3, rclone, DuckDB. Requests are signed with
/// keys of this cache, from the file that s3.credentials_file names; `forebay key s3` makes one. Each directory at the
/// top of the namespace is a bucket, or those that s3.buckets lists are. The endpoint runs until SIGTERM or Ctrl-C.
/// A worker, and `forebay up`, serve the same where s3.port is set.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay key s3 --role reader --client team-a > /etc/forebay/s3-keys
  forebay s3 --workers node1:29999 -o s3.credentials_file=/etc/forebay/s3-keys
  forebay s3 --listen 0.0.0.0:9000 --etcd http://etcd1:2379 --config /etc/forebay/forebay.toml
  aws s3 ls s3://imagenet/ --endpoint-url http://127.0.0.1:9000")]
pub(crate) struct Args {
    /// Where to listen [default: s3.bind.host and s3.port, 127.0.0.1:9000]
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen)]
    listen: Option<Listen>,
    /// The workers; with a name, the one whose certificate has it and nobody else [default: cluster.workers]
    #[arg(long, value_name = "[NAME=]HOST:PORT,...", value_delimiter = ',')]
    workers: Vec<String>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    read_only: ReadOnlyArg,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listen {
    host: String,
    port: u16,
}

fn parse_listen(text: &str) -> Result<Listen, String> {
    let invalid = || format!("`{text}` is not HOST:PORT, as in `127.0.0.1:9000` or `[::1]:9000`");
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = bracketed.unwrap_or(host);
    if host.is_empty() || (bracketed.is_none() && host.contains(':')) {
        return Err(invalid());
    }
    Ok(Listen { host: host.to_owned(), port: port.parse().map_err(|_| invalid())? })
}

impl Args {
    fn settings(&self) -> impl Iterator<Item = String> {
        let workers = (!self.workers.is_empty()).then(|| format!("cluster.workers={}", self.workers.join(",")));
        let listen = self.listen.iter();
        let listen =
            listen.flat_map(|Listen { host, port }| [format!("s3.bind.host={host}"), format!("s3.port={port}")]);
        let flags = workers.into_iter().chain(listen).chain(self.read_only.setting());
        flags.chain(self.cluster.settings()).chain(self.rdma.settings())
    }
}

/// Runs it.
///
/// # Errors
/// When there are no keys, no workers are named, or it cannot listen.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let loaded = args.config.load(args.settings())?;
    logging::start(&loaded.config)?;
    let mut node = Node::builder().config(loaded).s3();
    node.load_early()?;
    runtime::block_on(foreground::serve(node, |addresses| {
        if let Some(address) = addresses.s3 {
            output::say(&format!("S3 endpoint listening on {address}"));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_to_listen_at_is_a_host_and_a_port() {
        let listen = |host: &str, port| Ok(Listen { host: host.to_owned(), port });
        assert_eq!(parse_listen("0.0.0.0:9000"), listen("0.0.0.0", 9000));
        assert_eq!(parse_listen("[::1]:0"), listen("::1", 0));
        for wrong in ["9000", ":9000", "::1:9000", "host", "host:", "host:x", "host:70000", "[]:1"] {
            assert!(parse_listen(wrong).unwrap_err().contains("is not HOST:PORT"), "{wrong}");
        }
    }
}
