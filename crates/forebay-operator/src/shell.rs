//! The shell around the decisions: it watches the API server, asks the coordinator, and does what was decided.

mod events;
mod kind;
mod loads;
mod mounts;
mod nodes;
mod pace;
mod policies;

use std::sync::Arc;
use std::time::Duration;

use forebay_coordinator::ApiClient;
use forebay_metrics::Readiness;
use kube::Client;
use tracing::info;

use crate::counts::Counts;
use events::Events;
use kind::{Around, keep};
use loads::Loads;
use mounts::Mounts;
pub use nodes::LeavingOptions;
use nodes::Nodes;
use policies::Policies;

/// How long an API server may say nothing: longer than it has nothing to say over a watch, which it ends after 290 s.
const SILENT_FOR: Duration = Duration::from_secs(330);

/// What an operator is for.
#[derive(Clone, Debug, Default)]
pub struct OperatorOptions {
    /// The namespace whose objects it brings about. `None`: that of its service account, or of the kubeconfig's
    /// context.
    pub namespace: Option<String>,
    /// How workers leave nodes; `None` if that is none of its business.
    pub leaving: Option<LeavingOptions>,
}

/// Why there is no operator.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Nothing says where the API server is.
    #[error("no Kubernetes is named: {0}")]
    NoCluster(#[source] kube::config::InferConfigError),
    /// What says so cannot be used.
    #[error("the configuration of the API server's client cannot be used: {0}")]
    Client(#[source] kube::Error),
}

/// Brings about what objects of one namespace say.
pub struct Operator {
    client: Client,
    coordinator: ApiClient,
    namespace: String,
    leaving: Option<LeavingOptions>,
    readiness: Readiness,
    counts: Arc<Counts>,
}

impl Operator {
    /// An operator that speaks to this coordinator, and to the API server that its pod or a kubeconfig names. Nothing
    /// is asked yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there is no API server to speak to.
    pub async fn connect(coordinator: ApiClient, options: OperatorOptions) -> Result<Self, OperatorError> {
        let config = kube::Config::infer().await.map_err(OperatorError::NoCluster)?;
        let client = Client::try_from(bounded(config)).map_err(OperatorError::Client)?;
        let namespace = options.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        let readiness = Readiness::new();
        readiness.missing("start", "not started yet");
        Ok(Self { client, coordinator, namespace, leaving: options.leaving, readiness, counts: Arc::default() })
    }

    /// The namespace whose objects it brings about.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What it waits for: that the objects of each kind are listed.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> Arc<Counts> {
        Arc::clone(&self.counts)
    }

    /// Brings it about, and never ends by itself. Whoever drops this ends it at any point: the next one goes on from
    /// there.
    pub async fn run(&self) {
        info!(namespace = self.namespace, "watching ForebayMounts, ForebayLoads and ForebayPolicies");
        let Self { client, coordinator, namespace, leaving, readiness, counts } = self;
        let events = Events::new(client.clone(), Arc::clone(counts));
        let around = Around { client, namespace, coordinator, readiness, events: &events, counts };
        let nodes = async {
            if let Some(options) = leaving {
                Nodes::new(around, options.clone()).keep().await;
            }
        };
        // Last: by then each of the others has said what it waits for.
        let started = async { readiness.there("start") };
        tokio::join!(
            biased;
            keep::<Mounts>(around),
            keep::<Policies>(around),
            keep::<Loads>(around),
            nodes,
            started,
        );
    }
}

/// The same, for a client that waits for nothing without an end. An API server that hangs, with its connections open, would otherwise keep
/// the round that asks it, and all objects of its kind, for ever.
fn bounded(mut config: kube::Config) -> kube::Config {
    config.read_timeout = config.read_timeout.or(Some(SILENT_FOR));
    // From a request on, and not from the answer before it.
    config.reset_reader_on_write = true;
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_server_that_hangs_is_not_waited_for_without_an_end() {
        let config = bounded(kube::Config::new("http://localhost".parse().unwrap()));
        // A watch of kube's own has this end, if nothing changes.
        assert!(config.read_timeout.is_some_and(|within| within > Duration::from_secs(290)));
        assert!(config.connect_timeout.is_some() && config.write_timeout.is_some() && config.reset_reader_on_write);
    }
}
