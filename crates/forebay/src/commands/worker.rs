//! `forebay worker`: a cache node, in the foreground, as systemd and Kubernetes want it.

use std::sync::Arc;

use anyhow::Context as _;
use forebay_config::Loaded;
use forebay_transport::Service;
use tracing::{info, warn};

use crate::commands::up::close_worker;
use crate::config_args::{ConfigArgs, RdmaArgs};
use crate::exit::{Exit, Fault};
use crate::signals::Signals;
use crate::{assembly, logging, output, rdma, runtime};

/// Run a cache node
///
/// Caches the origins that `mounts` names and serves them to `forebay mount` on other machines, until SIGTERM or
/// Ctrl-C. Says `worker listening on ADDRESS` on standard error when it does, and logs there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay worker --config /etc/forebay/forebay.toml
  forebay worker -o mounts=/=s3://bucket/prefix -o worker.memory.size=64GiB -o worker.rpc.port=29999")]
pub(crate) struct Args {
    #[command(flatten)]
    rdma: RdmaArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Runs it.
///
/// # Errors
/// When the worker cannot start.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let loaded = args.config.load(args.rdma.settings())?;
    logging::start(&loaded.config)?;
    rdma::load_early(&loaded.config);
    runtime::block_on(serve(&loaded))
}

async fn serve(loaded: &Loaded) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let config = &loaded.config;
    if config.mounts.is_empty() {
        let next = "name one in `forebay.toml` or with `-o mounts=/=s3://bucket/prefix`";
        return Err(Fault::new(Exit::Usage, "the worker has no origin to cache: `mounts` is empty", next).into());
    }
    let addresses = assembly::worker_addresses(config)?;
    let origin = |mount: &forebay_config::Mount| {
        let origin = assembly::open_origin(loaded, &mount.origin);
        Ok((mount.path.clone(), origin.with_context(|| format!("mount {}", mount.path))?))
    };
    let mounts = config.mounts.iter().map(origin).collect::<anyhow::Result<Vec<_>>>()?;
    let store = signals.unless_any(assembly::worker_store(config, config.worker_memory_prewarm)).await?;
    let worker = assembly::worker(config, store.clone(), mounts)?;
    let service = Arc::clone(&worker) as Arc<dyn Service>;
    let rdma = match signals.unless_any(rdma::Servers::start(config, store.pool(), service)).await {
        Ok(rdma) => rdma.map(Arc::new),
        Err(error) => {
            close_worker(worker, store).await;
            return Err(error);
        }
    };
    if let Some(rdma) = &rdma {
        let reported = Arc::clone(rdma);
        worker.offer_paths(rdma.paths.clone(), move || reported.report());
    }
    let servers: Result<Vec<_>, _> = addresses
        .into_iter()
        .map(|address| assembly::server(config, address, Arc::clone(&worker) as Arc<dyn Service>))
        .collect();
    let servers = match servers {
        Ok(servers) => servers,
        Err(error) => {
            if let Some(rdma) = &rdma {
                rdma.close().await;
            }
            close_worker(worker, store).await;
            return Err(error.into());
        }
    };
    for server in &servers {
        output::say(&format!("worker listening on {}", server.local_addr()));
        info!(address = %server.local_addr(), "worker listening");
    }
    let signal = signals.next().await;
    info!(signal, "ending");
    let end = async {
        futures::future::join_all(servers.iter().map(forebay_tcp::TcpServer::close)).await;
        drop(servers);
        if let Some(rdma) = &rdma {
            rdma.close().await;
        }
        close_worker(worker, store).await;
    };
    tokio::select! {
        () = end => info!("ended"),
        signal = signals.next() => warn!(signal, "ending at once"),
    }
    Ok(())
}
