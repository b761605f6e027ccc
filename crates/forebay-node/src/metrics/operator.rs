//! Metrics of an operator of Kubernetes.

use forebay_metrics::Families;

use crate::report::Operator;

pub(super) fn of_operator(operator: &Operator, families: &mut Families) {
    for (kind, counts) in &operator.kinds {
        families
            .gauge("forebay_operator_objects", "Objects of Kubernetes that an operator brings about, by kind")
            .add([("kind", kind)], counts.objects);
        families
            .gauge("forebay_operator_unready_objects", "Objects that are refused or could not be dealt with, by kind")
            .add([("kind", kind)], counts.unready);
        for (outcome, count) in &counts.outcomes {
            let help = "Times that an operator dealt with an object, by kind and outcome";
            families
                .counter("forebay_operator_reconciles_total", help)
                .add([("kind", kind), ("outcome", outcome)], *count);
        }
        families
            .histogram("forebay_operator_reconcile_duration_seconds", "Time to deal with an object, by kind")
            .record([("kind", kind)], &counts.latency);
    }
    families
        .gauge("forebay_operator_leaving_workers", "Workers that an operator asked to leave their nodes")
        .add([], operator.leaving);
    families
        .counter(
            "forebay_operator_drain_timeouts_total",
            "Pods that may be evicted although their workers have not handed over everything",
        )
        .add([], operator.drain_timeouts);
    for (reason, count) in &operator.coordinator_errors {
        let help = "Requests of an operator that the coordinator did not carry out, by reason";
        families.counter("forebay_operator_coordinator_errors_total", help).add([("reason", reason)], *count);
    }
    families
        .counter("forebay_operator_kubernetes_errors_total", "Failed requests of an operator to the API server")
        .add([], operator.kubernetes_errors);
    families
        .counter("forebay_operator_lost_events_total", "Events that the API server did not accept from an operator")
        .add([], operator.lost_events);
}
