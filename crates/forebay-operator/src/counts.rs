//! What an operator counts, for `/metrics` and `/stats`.
//!
//! Kinds, outcomes and reasons are fixed: however many objects there are, the series are the same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_coordinator::ApiError;
use forebay_metrics::LatencyHistogram;
use serde_json::{Value, json};

/// What came of dealing with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is as it says, or on its way there.
    Done,
    /// It is not, and its conditions say why: somebody has to change something.
    Refused,
    /// The coordinator or the API server could not be asked; it is tried again.
    Failed,
}

/// Objects of one kind.
#[derive(Debug, Default)]
pub(crate) struct KindCounts {
    objects: AtomicU64,
    unready: AtomicU64,
    done: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    latency: LatencyHistogram,
}

/// What an operator counts since it started.
#[derive(Debug, Default)]
pub struct Counts {
    pub(crate) mounts: KindCounts,
    pub(crate) loads: KindCounts,
    pub(crate) policies: KindCounts,
    leaving: AtomicU64,
    drain_timeouts: AtomicU64,
    coordinator_unreachable: AtomicU64,
    coordinator_refused: AtomicU64,
    kubernetes_errors: AtomicU64,
    lost_events: AtomicU64,
}

impl KindCounts {
    /// An object was dealt with.
    pub(crate) fn reconciled(&self, outcome: Outcome, took: Duration) {
        let counter = match outcome {
            Outcome::Done => &self.done,
            Outcome::Refused => &self.refused,
            Outcome::Failed => &self.failed,
        };
        add(counter);
        self.latency.record(took);
    }

    /// There are so many objects, and so many of them are not as they say.
    pub(crate) fn are(&self, objects: usize, unready: usize) {
        self.objects.store(objects as u64, Ordering::Relaxed);
        self.unready.store(unready as u64, Ordering::Relaxed);
    }

    fn report(&self) -> Value {
        json!({
            "objects": get(&self.objects),
            "unready": get(&self.unready),
            "outcomes": { "done": get(&self.done), "refused": get(&self.refused), "failed": get(&self.failed) },
            "latency": self.latency,
        })
    }
}

impl Counts {
    /// So many workers were asked to leave, and not to stay since.
    pub(crate) fn are_leaving(&self, workers: usize) {
        self.leaving.store(workers as u64, Ordering::Relaxed);
    }

    /// A pod may be evicted though its worker has not handed over everything.
    pub(crate) fn drain_timed_out(&self) {
        add(&self.drain_timeouts);
    }

    /// The coordinator did not do what it was asked for.
    pub(crate) fn coordinator_failed(&self, error: &ApiError) {
        add(if error.is_unavailable() { &self.coordinator_unreachable } else { &self.coordinator_refused });
    }

    /// The API server did not do what it was asked for.
    pub(crate) fn kubernetes_failed(&self) {
        add(&self.kubernetes_errors);
    }

    /// It did not take an Event.
    pub(crate) fn event_lost(&self) {
        add(&self.lost_events);
    }

    /// All of them, as JSON.
    #[must_use]
    pub fn report(&self) -> Value {
        json!({
            "kinds": {
                "ForebayMount": self.mounts.report(),
                "ForebayLoad": self.loads.report(),
                "ForebayPolicy": self.policies.report(),
            },
            "leaving": get(&self.leaving),
            "drain_timeouts": get(&self.drain_timeouts),
            "coordinator_errors": {
                "unreachable": get(&self.coordinator_unreachable),
                "refused": get(&self.coordinator_refused),
            },
            "kubernetes_errors": get(&self.kubernetes_errors),
            "lost_events": get(&self.lost_events),
        })
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_reported_by_kind_and_outcome() {
        let counts = Counts::default();
        counts.loads.reconciled(Outcome::Done, Duration::from_millis(3));
        counts.loads.reconciled(Outcome::Done, Duration::from_millis(4));
        counts.loads.reconciled(Outcome::Refused, Duration::from_millis(5));
        counts.mounts.reconciled(Outcome::Failed, Duration::ZERO);
        counts.loads.are(2, 1);
        counts.are_leaving(4);
        counts.drain_timed_out();
        counts.coordinator_failed(&ApiError::Address("x".into()));
        counts.kubernetes_failed();
        counts.event_lost();
        let report = counts.report();
        let loads = &report["kinds"]["ForebayLoad"];
        assert_eq!(loads["outcomes"], json!({ "done": 2, "refused": 1, "failed": 0 }));
        assert_eq!(
            (&loads["objects"], &loads["unready"], &loads["latency"]["count"]),
            (&json!(2), &json!(1), &json!(3))
        );
        assert_eq!(report["kinds"]["ForebayMount"]["outcomes"]["failed"], 1);
        assert_eq!((&report["leaving"], &report["drain_timeouts"]), (&json!(4), &json!(1)));
        assert_eq!(report["coordinator_errors"], json!({ "unreachable": 0, "refused": 1 }));
        assert_eq!((&report["kubernetes_errors"], &report["lost_events"]), (&json!(1), &json!(1)));
        counts.loads.are(0, 0);
        assert_eq!(counts.report()["kinds"]["ForebayLoad"]["objects"], 0, "an object that is gone is not unready");
    }
}
