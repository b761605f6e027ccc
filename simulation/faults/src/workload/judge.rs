//! What answers are held against.

use std::sync::Arc;
use std::time::Duration;

use forebay_client::Client;
use forebay_types::Failure;

use super::dataset::{Dataset, Place};
use super::state::{Own, state};
use crate::faults::Fault;
use crate::kernel::{self, Process};
use crate::model::{self, Object};
use crate::{cluster, faults, origin};

/// Changes of one name that are remembered: more than are ever under way at once.
const MAX_OWN: usize = 256;

/// One operation on one mount.
#[derive(Clone)]
pub(super) struct Operation {
    pub(super) dataset: Arc<Dataset>,
    pub(super) process: Process,
    pub(super) client: Client,
}

/// A call of the client, and when it began.
pub(super) struct Asked {
    pub(super) at: Duration,
    ring: Vec<usize>,
}

impl Operation {
    pub(super) fn asked(&self) -> Asked {
        Asked { at: kernel::now(), ring: self.ring() }
    }

    /// The workers that the mount knows to own blocks.
    pub(super) fn ring(&self) -> Vec<usize> {
        let topology = self.client.topology();
        let is_in = |node: &&usize| topology.ring.position(&cluster::worker_name(**node)).is_some();
        self.dataset.workers.iter().filter(is_in).copied().collect()
    }

    /// What the answer says of the deadline.
    pub(super) fn on_time(&self, asked: &Asked, limit: Duration, what: impl FnOnce() -> String) {
        let took = kernel::now() - asked.at;
        let stopped = || faults::since(asked.at).contains(&Fault::Process(self.process.node));
        let is_strict = state(|state| state.strict_since).is_some_and(|since| asked.at >= since);
        let limit = if is_strict { Duration::from_secs(10) } else { limit };
        if took > limit + Duration::from_secs(1) && !stopped() {
            kernel::violated("deadlines", format!("{} took {took:?}, and may take {limit:?}", what()));
        }
    }

    /// A request got this error: there must have been no worker that could have answered.
    pub(super) fn failed(&self, asked: &Asked, origin: usize, failure: &Failure, what: impl FnOnce() -> String) {
        let what = what();
        kernel::note(format!("{what}: {failure}"));
        state(|state| state.counts.excused += 1);
        let took = kernel::now() - asked.at;
        if state(|state| state.strict_since).is_some_and(|since| asked.at >= since) {
            return kernel::violated(
                "it heals",
                format!("{what} failed after {took:?}, and nothing is wrong: {failure}"),
            );
        }
        // Connections that break need a moment to be made again.
        let troubles = faults::since(asked.at.saturating_sub(Duration::from_secs(2)));
        if troubles.contains(&Fault::Mount) || troubles.contains(&Fault::Process(self.process.node)) {
            return;
        }
        let (me, store) = (self.process.node, origin::node(origin));
        let touches_origin = |worker: usize| {
            troubles.iter().any(|fault| match fault {
                Fault::Origin(number) => *number == origin,
                Fault::Cut(from, to) => [(worker, store), (store, worker)].contains(&(*from, *to)),
                _ => false,
            })
        };
        let touches = |worker: usize| {
            troubles.iter().any(|fault| match fault {
                Fault::Process(node) => *node == worker,
                Fault::Cut(from, to) => [(worker, me), (me, worker)].contains(&(*from, *to)),
                Fault::Breaks => true,
                _ => false,
            })
        };
        // While no worker can be reached a question waits for one, for as long as it may take.
        let only_silent = troubles.iter().all(|fault| !matches!(fault, Fault::Origin(_) | Fault::Breaks))
            && !self.dataset.workers.iter().any(|worker| touches_origin(*worker));
        let waits = self.dataset.settings.request_timeout.saturating_sub(Duration::from_secs(4));
        let is_known = state(|state| state.answered.contains(&self.process));
        if only_silent && is_known && took < waits {
            kernel::violated("an outage is waited for", format!("{what} failed after {took:?}: {failure}"));
        }
        // A client that asks several workers, which wait for their origin in vain, has no time left for one that need
        // not wait.
        let behind = self.dataset.workers.iter().filter(|worker| touches_origin(**worker)).count();
        let ring_now = self.ring();
        let well = asked
            .ring
            .iter()
            .find(|worker| ring_now.contains(worker) && !touches(**worker) && !touches_origin(**worker));
        if let Some(well) = well
            && behind <= 1
        {
            let worker = cluster::worker_name(*well);
            kernel::violated(
                "failure is local",
                format!("{what} failed after {took:?}, and {worker} was well: {failure}"),
            );
        }
    }

    /// What a name is said to be, it was a moment ago.
    pub(super) fn is_fresh(&self, place: &Place, object: Option<Object>, asked: &Asked, ttl: Duration) {
        let oldest = asked.at.saturating_sub(ttl);
        // A change that is acknowledged only when the question has been asked may not be seen by it.
        let own = state(|state| {
            let own = state.own.get(&(self.process, place.origin, place.below.clone()))?;
            own.iter().filter(|own| own.acknowledged <= asked.at).map(|own| own.took_effect).max()
        });
        let since = own.map_or(oldest, |own| own.max(oldest));
        if model::was(place.origin, &place.below, object, since, kernel::now()) {
            return;
        }
        let was = model::between(place.origin, &place.below, oldest.saturating_sub(ttl), kernel::now());
        let why = if own.is_some_and(|own| since == own) { "own changes are seen" } else { "freshness" };
        let shown = &place.shown;
        let [since, asked] = [since, asked.at].map(|at| kernel::clock(at.as_nanos() as u64));
        kernel::violated(
            why,
            format!("{shown} asked for at {asked} is said to be {object:x?}, which it was not since {since}: {was:x?}"),
        );
    }

    /// A change was acknowledged that made `place` this: from when on it was.
    pub(super) fn acknowledged(&self, place: &Place, object: Option<Object>, asked: &Asked) {
        state(|state| state.counts.changes += 1);
        let Some(at) = model::became(place.origin, &place.below, object, asked.at) else {
            return kernel::violated(
                "acknowledged is durable",
                format!("{} was never {object:x?} since it was said to be", place.shown),
            );
        };
        let key = (self.process, place.origin, place.below.clone());
        state(|state| {
            let known = state.own.entry(key).or_default();
            known.push_back(Own { took_effect: at, acknowledged: kernel::now() });
            if known.len() > MAX_OWN {
                known.pop_front();
            }
        });
    }
}
