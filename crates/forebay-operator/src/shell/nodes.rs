//! Nodes that are cordoned, the workers on them, and the record of who was asked to leave.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use forebay_coordinator::ApiError;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference, Pod};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::kind::Around;
use super::pace::{AFTER_FAILURE, MAX_PAUSE, Pace};
use crate::event;
use crate::leaving::{self, Leaving, Member, News, Seen, Step, WorkerPod};
use crate::resources::MANAGER;

/// The key of the ConfigMap under which those are who were asked.
const ASKED: &str = "asked";
/// What readiness waits for.
const LISTED: &str = "nodes and pods";
/// How often it is looked how far a worker is that leaves.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);

/// Why a round was not done to its end.
#[derive(Debug, thiserror::Error)]
enum NodesError {
    #[error(transparent)]
    Coordinator(#[from] ApiError),
    #[error("the API server: {0}")]
    Kubernetes(#[from] kube::Error),
    #[error("there is no ConfigMap {0}, where it is remembered who was asked to leave: create it, empty")]
    NoRecord(String),
}

/// How workers leave nodes that are cordoned.
#[derive(Clone, Debug)]
pub struct LeavingOptions {
    /// The labels of workers' pods, `app.kubernetes.io/component=worker`.
    pub selector: String,
    /// The ConfigMap in which it is remembered who was asked to leave. It must be there.
    pub record: String,
    /// Whether pods get a label when they may be evicted.
    pub labels_pods: bool,
    /// After how long a pod may be evicted though its worker has not handed over everything.
    pub within: Duration,
}

/// Has workers leave nodes that are cordoned.
pub(super) struct Nodes<'a> {
    around: Around<'a>,
    options: LeavingOptions,
    nodes: Api<Node>,
    pods: Api<Pod>,
    records: Api<ConfigMap>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(around: Around<'a>, options: LeavingOptions) -> Self {
        let Around { client, namespace, .. } = around;
        let nodes = Api::all(client.clone());
        let pods = Api::namespaced(client.clone(), namespace);
        Self { around, options, nodes, pods, records: Api::namespaced(client.clone(), namespace) }
    }

    /// Never ends.
    pub(super) async fn keep(&self) {
        let Around { readiness, counts, .. } = self.around;
        let (nodes, node_writer) = reflector::store::<Node>();
        let (pods, pod_writer) = reflector::store::<Pod>();
        let of_workers = watcher::Config::default().labels(&self.options.selector);
        let node_events =
            watcher(self.nodes.clone(), watcher::Config::default()).default_backoff().reflect(node_writer);
        let pod_events = watcher(self.pods.clone(), of_workers).default_backoff().reflect(pod_writer);
        let node_events = node_events.map(|event| event.map(|event| ("nodes", is_listed(&event))));
        let pod_events = pod_events.map(|event| event.map(|event| ("pods", is_listed(&event))));
        let mut events = pin!(futures::stream::select(node_events, pod_events));
        let mut unlisted = vec!["nodes", "pods"];
        let mut leaving = None;
        let mut pace = Pace::new(Instant::now());
        readiness.missing(LISTED, "not listed yet");
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok((what, is_listed))) => {
                        unlisted.retain(|unlisted| !is_listed || *unlisted != what);
                        if unlisted.is_empty() {
                            readiness.there(LISTED);
                        }
                        pace.changed(Instant::now());
                    }
                    Some(Err(error)) => {
                        warn!(%error, "nodes and pods cannot be watched; trying again");
                        counts.kubernetes_failed();
                    }
                    // A watch begins again whatever happens, and has no end.
                    None => return,
                },
                () = sleep_until(pace.due()), if unlisted.is_empty() => {
                    let again = self.round(&mut leaving, &nodes, &pods).await.unwrap_or_else(|error| {
                        warn!(%error, "workers cannot be asked to leave or to stay; trying again");
                        match &error {
                            NodesError::Coordinator(error) => counts.coordinator_failed(error),
                            NodesError::Kubernetes(_) | NodesError::NoRecord(_) => counts.kubernetes_failed(),
                        }
                        AFTER_FAILURE
                    });
                    counts.are_leaving(leaving.as_ref().map_or(0, Leaving::count));
                    pace.ended(Instant::now(), again);
                }
            }
        }
    }

    /// Does what is to be done now. After how long to do so again.
    async fn round(
        &self,
        leaving: &mut Option<Leaving>,
        nodes: &Store<Node>,
        pods: &Store<Pod>,
    ) -> Result<Duration, NodesError> {
        let leaving = match leaving {
            Some(leaving) => leaving,
            None => leaving.insert(Leaving::new(self.recall().await?, self.options.within)),
        };
        let mut seen = Seen {
            pods: pods.state().iter().filter_map(|pod| leaving::worker_pod(pod)).collect(),
            nodes: nodes.state().iter().filter_map(|node| leaving::node(node)).collect(),
            members: BTreeMap::new(),
        };
        if leaving.is_quiet(&seen) {
            return Ok(MAX_PAUSE);
        }
        let told = self.around.coordinator.cluster().await;
        if let Ok(status) = &told {
            seen.members = leaving::members(&status.cluster);
        }
        let steps = leaving.steps(&seen, std::time::Instant::now());
        let is_over = steps.is_empty() && seen.members.values().all(|member| *member != Member::Leaving);
        for step in steps {
            match step {
                Step::Remember(asked) => {
                    self.remember(&asked).await?;
                    leaving.remembered(asked);
                }
                Step::Drain(pod) => {
                    info!(worker = pod.worker, "its node is cordoned: it is to hand over what it holds");
                    not_there_is_fine(self.around.coordinator.drain(&pod.worker).await.map(drop))?;
                    self.tell(leaving, &pod, News::Asked).await;
                }
                Step::Undrain(worker) => {
                    info!(worker, "it stays");
                    not_there_is_fine(self.around.coordinator.undrain(&worker).await)?;
                    if let Some(pod) = seen.pods.iter().find(|pod| pod.worker == worker) {
                        self.tell(leaving, pod, News::Stays).await;
                    }
                }
                Step::Release { pod, in_time } => {
                    self.label(&pod, true).await?;
                    self.tell(leaving, &pod, if in_time { News::HandedOver } else { News::TimedOut }).await;
                }
                Step::Hold(pod) => self.label(&pod, false).await?,
            }
        }
        // What takes no coordinator is done: also while none answers, no pod is held for ever.
        told?;
        Ok(if is_over { MAX_PAUSE } else { FOLLOW_EVERY })
    }

    /// Tells this of a pod, unless that was told, and counts it.
    async fn tell(&self, leaving: &mut Leaving, pod: &WorkerPod, news: News) {
        if !leaving.is_news(pod, news) {
            return;
        }
        if news == News::TimedOut {
            self.around.counts.drain_timed_out();
        }
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.clone()),
            namespace: Some(self.around.namespace.to_owned()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        self.around.events.tell(&about, event::of_worker(news, pod, self.options.within)).await;
    }

    /// Who was asked before.
    async fn recall(&self) -> Result<BTreeMap<String, String>, NodesError> {
        let name = &self.options.record;
        let record = self.records.get_opt(name).await?.ok_or_else(|| NodesError::NoRecord(name.clone()))?;
        let Some(text) = record.data.as_ref().and_then(|data| data.get(ASKED)) else { return Ok(BTreeMap::new()) };
        Ok(serde_json::from_str(text).unwrap_or_else(|error| {
            warn!(%error, name, "it cannot be read who was asked to leave: `forebay cluster undrain` has them stay");
            BTreeMap::new()
        }))
    }

    async fn remember(&self, asked: &BTreeMap<String, String>) -> Result<(), NodesError> {
        // Texts: their encoding cannot fail.
        let text = serde_json::to_string(asked).unwrap_or_default();
        let patch = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { ASKED: text } });
        self.records.patch(&self.options.record, &applied(), &Patch::Apply(&patch)).await?;
        Ok(())
    }

    /// Labels a pod as one that may be evicted, or takes that label away.
    async fn label(&self, pod: &WorkerPod, released: bool) -> Result<(), NodesError> {
        if !self.options.labels_pods {
            return Ok(());
        }
        info!(pod = pod.name, released, "whether it may be evicted");
        let labels = if released { json!({ leaving::released_label(): "true" }) } else { json!({}) };
        // With the uid: another pod of this name is not meant, and none is made.
        let metadata = json!({ "name": pod.name, "uid": pod.uid, "labels": labels });
        let patch: Value = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        match self.pods.patch(&pod.name, &applied(), &Patch::Apply(&patch)).await {
            // It went meanwhile.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(_) => Ok(()),
        }
    }
}

fn applied() -> PatchParams {
    PatchParams::apply(MANAGER).force()
}

fn is_listed<K>(event: &watcher::Event<K>) -> bool {
    matches!(event, watcher::Event::InitDone)
}

/// A worker that is no member cannot leave, and one that nobody asked to leave stays.
fn not_there_is_fine(answer: Result<(), ApiError>) -> Result<(), ApiError> {
    match answer {
        Err(error) if error.is_not_found() => Ok(()),
        answer => answer,
    }
}
