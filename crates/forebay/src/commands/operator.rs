//! `forebay operator`: mounts, loads and policies as objects of Kubernetes, in the foreground, in a pod.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use forebay_config::Loaded;
use forebay_metrics::{HostNames, ProcessStats, Readiness, serve_health};
use forebay_node::Pages;
use forebay_operator::{LeavingOptions, Operator, OperatorOptions};
use serde_json::json;
use tracing::info;

use crate::config_args::ConfigArgs;
use crate::coordinator_args::{Coordinator, Known};
use crate::exit::{Exit, Fault};
use crate::service::Service;
use crate::signals::Signals;
use crate::{logging, output, runtime};

/// How often it is looked whether the objects are listed.
const READY_POLL: Duration = Duration::from_millis(100);

/// Bring about what objects of Kubernetes say of mounts, loads and policies
///
/// A ForebayMount becomes a mount of the cluster, a ForebayLoad a load job, and a ForebayPolicy a policy, through a
/// coordinator that is asked with the identity of the configuration, which must be an admin's. With --drain-pods the
/// workers on cordoned nodes hand over what they hold. The operator is for one namespace, and runs until SIGTERM or
/// Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Example:
  forebay operator crds | kubectl apply --server-side -f -
  forebay operator --namespace forebay --coordinator forebay-coordinator.forebay.svc:19999
  forebay operator --drain-pods app.kubernetes.io/component=worker --drain-record forebay-operator"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The coordinator [default: coordinator.hostname, or that of the `forebay up` on this machine]
    #[arg(long, value_name = "HOST:PORT")]
    coordinator: Option<String>,
    /// The namespace [default: that of the pod, or of the kubeconfig's context]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Have the workers whose pods have these labels hand over what they hold when their node is cordoned
    #[arg(long, value_name = "LABEL=VALUE,...", requires = "drain_record")]
    drain_pods: Option<String>,
    /// The ConfigMap, empty at first, in which it is remembered which workers were asked to
    #[arg(long, value_name = "NAME", requires = "drain_pods")]
    drain_record: Option<String>,
    /// Label pods with forebay.io/released when they may be evicted, for PodDisruptionBudgets
    #[arg(long, requires = "drain_pods")]
    label_pods: bool,
    /// After how long a pod may be evicted though its worker has not handed over everything
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = humantime::parse_duration)]
    drain_timeout: Duration,
    /// Where to serve /healthz and /readyz [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    health: Option<SocketAddr>,
    /// Where to serve /metrics, /stats, /healthz and /readyz to who may ask the processes of the cluster [default:
    /// nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the definitions of ForebayMount, ForebayLoad and ForebayPolicy
    #[command(after_help = "\
Example:
  forebay operator crds | kubectl apply --server-side -f -")]
    Crds,
}

/// Runs it.
///
/// # Errors
/// When no coordinator or no Kubernetes is named, it cannot prove who it is, or an address cannot be listened on.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match args.command {
        Some(Command::Crds) => output::print(&forebay_operator::crds()),
        None => {
            let loaded = args.config.load([])?;
            logging::start(&loaded.config)?;
            runtime::block_on(serve(args, &loaded))
        }
    }
}

impl Args {
    fn leaving(&self) -> Option<LeavingOptions> {
        let (selector, record) = self.drain_pods.clone().zip(self.drain_record.clone())?;
        Some(LeavingOptions { selector, record, labels_pods: self.label_pods, within: self.drain_timeout })
    }

    fn address(&self, loaded: &Loaded) -> anyhow::Result<String> {
        if let Some(address) = &self.coordinator {
            return Ok(address.clone());
        }
        match Known::find(loaded, None)? {
            Known::Address(address) => Ok(address),
            Known::Mount(state) => Ok(state.coordinator.unwrap_or_default()),
        }
    }
}

async fn serve(args: &Args, loaded: &Loaded) -> anyhow::Result<()> {
    let mut signals = Signals::take()?;
    let service = Service::of_environment();
    let coordinator = Coordinator::at(&args.address(loaded)?, &loaded.config)?;
    let options = OperatorOptions { namespace: args.namespace.clone(), leaving: args.leaving() };
    let operator = Operator::connect(coordinator.clone(), options).await.map_err(|error| {
        let next = "run it in a pod with a service account, or set KUBECONFIG";
        Fault::new(Exit::Usage, error.to_string(), next)
    })?;
    let readiness = operator.readiness();
    let probes = match args.health {
        Some(address) => Some(probes(address, readiness.clone()).await?),
        None => None,
    };
    let pages = match args.metrics {
        Some(address) => Some(pages(loaded, address, &operator).await?),
        None => None,
    };
    output::say(&format!("operator of the namespace {}", operator.namespace()));
    let signal = tokio::select! {
        () = operator.run() => "the end of all watches",
        signal = service.follow(ready(&readiness), signals.next()) => signal,
    };
    service.ends();
    // Nothing is lost: the next operator goes on from what the objects say.
    info!(signal, "ended");
    if let Some(probes) = probes {
        probes.close().await;
    }
    if let Some(pages) = pages {
        pages.close().await;
    }
    Ok(())
}

/// What the operator counts, for Prometheus.
async fn pages(loaded: &Loaded, address: SocketAddr, operator: &Operator) -> anyhow::Result<Pages> {
    let counts = operator.counts();
    let report = move || json!({ "process": ProcessStats::now(), "operator": counts.report() });
    Pages::of_operator(loaded, address, operator.readiness(), report).await
}

async fn probes(address: SocketAddr, readiness: Readiness) -> anyhow::Result<forebay_metrics::MetricsServer> {
    let is_ready = move || {
        let is_ready = readiness.reasons().is_empty();
        async move { is_ready }
    };
    serve_health(address, is_ready, HostNames::new())
        .await
        .with_context(|| format!("cannot answer probes at {address}"))
}

/// Waits until the objects are listed.
async fn ready(readiness: &Readiness) {
    while !readiness.reasons().is_empty() {
        tokio::time::sleep(READY_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parse(arguments: &str) -> Result<Args, clap::Error> {
        let words = ["forebay", "operator"].into_iter().chain(arguments.split_whitespace());
        crate::cli::Cli::try_parse_from(words).map(|cli| match cli.command {
            crate::cli::Command::Operator(args) => args,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn who_drains_says_whose_pods_and_where_it_is_remembered() {
        assert!(parse("").unwrap().leaving().is_none());
        let leaving = parse("--drain-pods a=b --drain-record r --label-pods --drain-timeout 5m").unwrap().leaving();
        let leaving = leaving.unwrap();
        assert_eq!((leaving.selector.as_str(), leaving.record.as_str(), leaving.labels_pods), ("a=b", "r", true));
        assert_eq!(leaving.within, Duration::from_secs(300));
        for bad in [
            "--drain-pods a=b",
            "--drain-record r",
            "--label-pods",
            "crds --namespace n",
            "--health here",
            "--metrics 1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let shown = parse("--health 127.0.0.1:1 --metrics [::1]:2").unwrap();
        assert_eq!(shown.metrics.map(|address| address.port()), Some(2));
        assert!(matches!(parse("crds").unwrap().command, Some(Command::Crds)));
    }
}
