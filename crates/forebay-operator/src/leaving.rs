//! Workers hand over what they hold before their node goes: a plain function of the nodes, of the workers' pods and of
//! what the cluster says of its members.
//!
//! The worker of a node that is cordoned is asked to leave (`forebay cluster drain`), and to stay when its node takes
//! pods again, or when it runs elsewhere. Whom the operator has asked is remembered, so that workers whom somebody else
//! asked to leave are none of its business; it is remembered before it is done, as the operator may be killed between
//! the two.
//!
//! A pod whose worker has handed over everything is *released*, by a label. The chart has, if it is wanted, a budget
//! (`PodDisruptionBudget`) that lets no other pod of a worker be evicted: then `kubectl drain` waits for the hand-over.
//! It does not wait for ever: after a time a pod is released whatever its worker says, and one that is not ready is not
//! held.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::Value;

use crate::resources::GROUP;

/// The variable of a worker's pod that says the worker's name.
const NAME_VARIABLE: &str = "FOREBAY_WORKER_NAME";

/// The label of a pod that may be evicted.
#[must_use]
pub fn released_label() -> String {
    format!("{GROUP}/released")
}

/// The pod of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerPod {
    /// Its name.
    pub name: String,
    /// Which of all that had this name.
    pub uid: String,
    /// The name of its worker in the cluster.
    pub worker: String,
    /// Where it runs.
    pub node: String,
    /// Whether it has the label of those that may be evicted.
    pub released: bool,
}

/// What a member of the cluster is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// It stays.
    Stays,
    /// It was asked to leave.
    Leaving,
    /// It has handed over everything.
    Drained,
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Pods of workers that are not ending.
    pub pods: Vec<WorkerPod>,
    /// All nodes, and whether they are cordoned.
    pub nodes: BTreeMap<String, bool>,
    /// Members of the cluster by name.
    pub members: BTreeMap<String, Member>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// These workers were asked by the operator, each with the node on which it was then.
    Remember(BTreeMap<String, String>),
    /// The worker of this pod is to hand over its share.
    Drain(WorkerPod),
    /// A worker is to stay.
    Undrain(String),
    /// A pod may be evicted.
    Release {
        /// Which one.
        pod: WorkerPod,
        /// Whether its worker has handed over everything; otherwise it has had its time.
        in_time: bool,
    },
    /// A pod may not be evicted any more.
    Hold(WorkerPod),
}

/// What people are told of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// It was asked to leave.
    Asked,
    /// It has handed over everything.
    HandedOver,
    /// It has had its time, and has not handed over everything.
    TimedOut,
    /// It stays after all.
    Stays,
}

/// Who is leaving.
#[derive(Clone, Debug)]
pub struct Leaving {
    asked: BTreeMap<String, String>,
    /// Since when the nodes of these pods are seen cordoned.
    since: BTreeMap<String, Instant>,
    /// What was told of pods since their nodes were cordoned, or not any more.
    told: BTreeSet<(String, News)>,
    within: Duration,
}

impl Leaving {
    /// With those who were asked before. A pod is released after `within`, whether its worker has handed over or not.
    #[must_use]
    pub fn new(asked: BTreeMap<String, String>, within: Duration) -> Self {
        Self { asked, since: BTreeMap::new(), told: BTreeSet::new(), within }
    }

    /// How many workers the operator has asked, and not asked to stay since.
    #[must_use]
    pub fn count(&self) -> usize {
        self.asked.len()
    }

    /// Whether this was not told of the pod yet, since its node was cordoned or not any more; from now on it was. A
    /// step may be done again and again, as a release is where pods get no label.
    pub fn is_news(&mut self, pod: &WorkerPod, news: News) -> bool {
        self.told.insert((pod.uid.clone(), news))
    }

    /// Whether there is nothing to do, whatever the members are.
    #[must_use]
    pub fn is_quiet(&self, seen: &Seen) -> bool {
        self.asked.is_empty() && seen.pods.iter().all(|pod| !seen.is_cordoned(&pod.node) && !pod.released)
    }

    /// What [`Step::Remember`] says was written.
    pub fn remembered(&mut self, asked: BTreeMap<String, String>) {
        self.asked = asked;
    }

    /// What is to be done, in this order. If one step fails, those behind it are not to be done. Labels come first, which take no
    /// coordinator: a pod whose time is over is not held for a worker that cannot be asked.
    pub fn steps(&mut self, seen: &Seen, now: Instant) -> Vec<Step> {
        let cordoned: BTreeSet<&str> = seen.on_cordoned_nodes().map(|pod| &*pod.uid).collect();
        self.since.retain(|uid, _| cordoned.contains(&**uid));
        self.told.retain(|(uid, news)| match news {
            News::Stays => !cordoned.contains(&**uid) && seen.pods.iter().any(|pod| pod.uid == *uid),
            _ => cordoned.contains(&**uid),
        });
        let mut asked = self.asked.clone();
        let (mut leave, mut labels) = (Vec::new(), Vec::new());
        for pod in seen.on_cordoned_nodes() {
            let since = *self.since.entry(pod.uid.clone()).or_insert(now);
            let member = seen.members.get(&pod.worker);
            if member == Some(&Member::Stays) {
                asked.insert(pod.worker.clone(), pod.node.clone());
                leave.push(Step::Drain(pod.clone()));
            }
            let in_time = member == Some(&Member::Drained);
            let may_go = in_time || now.duration_since(since) >= self.within;
            labels.extend((may_go && !pod.released).then(|| Step::Release { pod: pod.clone(), in_time }));
        }
        let elsewhere = seen.pods.iter().filter(|pod| pod.released && !seen.is_cordoned(&pod.node));
        labels.extend(elsewhere.cloned().map(Step::Hold));
        let staying = asked.iter().filter(|(worker, node)| seen.stays(worker, node));
        let stay: Vec<String> = staying.map(|(worker, _)| worker.clone()).collect();
        let mut left = asked.clone();
        left.retain(|worker, _| !stay.contains(worker));
        let mut steps = labels;
        steps.extend((asked != self.asked).then(|| Step::Remember(asked.clone())));
        steps.extend(leave.into_iter().chain(stay.into_iter().map(Step::Undrain)));
        steps.extend((left != asked).then_some(Step::Remember(left)));
        steps
    }
}

impl Seen {
    fn is_cordoned(&self, node: &str) -> bool {
        self.nodes.get(node).copied().unwrap_or(false)
    }

    fn on_cordoned_nodes(&self) -> impl Iterator<Item = &WorkerPod> {
        self.pods.iter().filter(|pod| self.is_cordoned(&pod.node))
    }

    /// Whether a worker that was asked to leave `node` is to stay: it runs where pods may run, or it is one that is
    /// named after its node, and there is no such node any more.
    fn stays(&self, worker: &str, node: &str) -> bool {
        match self.pods.iter().find(|pod| pod.worker == worker) {
            Some(pod) => !self.is_cordoned(&pod.node),
            None => worker == node && !self.nodes.contains_key(node),
        }
    }
}

/// The worker of a pod; `None` for one that is ending, runs nowhere yet, or does not say its worker's name.
#[must_use]
pub fn worker_pod(pod: &Pod) -> Option<WorkerPod> {
    let (metadata, spec) = (&pod.metadata, pod.spec.as_ref()?);
    if metadata.deletion_timestamp.is_some() {
        return None;
    }
    let (name, node) = (metadata.name.clone()?, spec.node_name.clone()?);
    let mut variables = spec.containers.iter().flat_map(|container| container.env.iter().flatten());
    let variable = variables.find(|variable| variable.name == NAME_VARIABLE)?;
    let field = || variable.value_from.as_ref()?.field_ref.as_ref().map(|field| &*field.field_path);
    let worker = match (&variable.value, field()) {
        (Some(value), _) => value.clone(),
        (None, Some("metadata.name")) => name.clone(),
        (None, Some("spec.nodeName")) => node.clone(),
        (None, _) => return None,
    };
    let label = released_label();
    let released = metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(&label));
    Some(WorkerPod { name, uid: metadata.uid.clone()?, worker, node, released })
}

/// The name of a node, and whether it is cordoned.
#[must_use]
pub fn node(node: &Node) -> Option<(String, bool)> {
    let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    Some((node.metadata.name.clone()?, cordoned))
}

/// The members in what a coordinator says of the cluster.
#[must_use]
pub fn members(cluster: &Value) -> BTreeMap<String, Member> {
    let members = cluster["members"].as_array().into_iter().flatten();
    let member = |described: &Value| {
        let state = match described["state"].as_str()? {
            "draining" => Member::Leaving,
            "drained" => Member::Drained,
            _ => Member::Stays,
        };
        Some((described["name"].as_str()?.to_owned(), state))
    };
    members.filter_map(member).collect()
}

#[cfg(test)]
mod tests;
