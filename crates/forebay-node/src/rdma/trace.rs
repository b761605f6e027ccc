//! The statistics of RDMA operations in the log, each `network.rdma.data.trace.print_interval`: of each card, and of its peers.
//!
//! Each number is a field of its own, so that a log in JSON can be searched and added up. `docs/RDMA.md` says what each means.

use std::sync::Arc;

use forebay_config::Config;
use forebay_locks::Mutex;
use forebay_rdma::{OperationReport, PeerReport, StageReport, Trace, TraceReport};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

/// Peers of one card that have a line, the busiest and those that failed: a worker may have thousands.
const MAX_PEERS: usize = 16;

/// The cards' traces, and the task that logs them.
pub(super) struct Tracing {
    traces: Arc<Traces>,
    _printing: AbortOnDropHandle<()>,
}

/// A trace for each card, by the card's name in logs.
type Traces = Mutex<Vec<(String, Arc<Trace>)>>;

impl Tracing {
    /// Begins, if it is asked for.
    pub(super) fn start(config: &Config) -> Option<Self> {
        config.network_rdma_data_trace_enabled.then(|| {
            let traces = Arc::<Traces>::default();
            let (printed, every) = (Arc::clone(&traces), config.network_rdma_data_trace_print_interval);
            let printing = tokio::spawn(async move {
                let mut ticks = tokio::time::interval(every);
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    let traces = printed.lock().clone();
                    traces.iter().for_each(|(card, trace)| print(card, &trace.report()));
                }
            });
            Self { traces, _printing: AbortOnDropHandle::new(printing) }
        })
    }

    /// A trace for this card.
    pub(super) fn of(&self, card: &str) -> Arc<Trace> {
        let trace = Arc::new(Trace::new());
        self.traces.lock().push((card.to_owned(), Arc::clone(&trace)));
        trace
    }
}

/// One line for each kind of operation that there was, each kind of failure, and each peer.
fn print(card: &str, report: &TraceReport) {
    for operation in report.operations.iter().filter(|operation| operation.count > 0) {
        print_operation(card, operation, report.interval.as_secs_f64());
        for (failure, count) in &operation.failures {
            info!(card, operation = %operation.kind, failure, count, "RDMA trace: failures");
        }
    }
    let (shown, left_out) = shown(&report.peers);
    for peer in shown {
        let PeerReport { peer, count, failures, bytes, longest_wire } = peer;
        info!(
            card,
            peer,
            count,
            failures,
            bytes = bytes.as_u64(),
            wire_max_us = micros(*longest_wire),
            "RDMA trace: peer"
        );
    }
    if left_out > 0 {
        info!(card, peers = left_out, "RDMA trace: further peers");
    }
    if let Some(took) = &report.registration {
        info!(
            card,
            count = took.count,
            failures = report.registration_failures,
            p50_us = micros(took.p50),
            p99_us = micros(took.p99),
            max_us = micros(took.max),
            "RDMA trace: registration"
        );
    }
}

fn print_operation(card: &str, operation: &OperationReport, interval_s: f64) {
    let OperationReport { kind, count, described, failures, bytes, queue, store, wire } = operation;
    let at = |stage: &Option<StageReport>, of: fn(&StageReport) -> std::time::Duration| {
        stage.as_ref().map(|stage| micros(of(stage)))
    };
    info!(
        card,
        operation = %kind,
        count,
        descriptions = described,
        failures = failures.values().sum::<u64>(),
        bytes = bytes.as_u64(),
        interval_s,
        queue_p50_us = at(queue, |stage| stage.p50),
        queue_p99_us = at(queue, |stage| stage.p99),
        queue_max_us = at(queue, |stage| stage.max),
        store_p50_us = at(store, |stage| stage.p50),
        store_p99_us = at(store, |stage| stage.p99),
        store_max_us = at(store, |stage| stage.max),
        wire_p50_us = at(wire, |stage| stage.p50),
        wire_p99_us = at(wire, |stage| stage.p99),
        wire_max_us = at(wire, |stage| stage.max),
        "RDMA trace"
    );
}

/// The peers that have a line: those that failed, and the busiest; and how many have none.
fn shown(peers: &[PeerReport]) -> (Vec<&PeerReport>, usize) {
    let (failed, well): (Vec<_>, Vec<_>) = peers.iter().partition(|peer| peer.failures > 0);
    let shown: Vec<_> = failed.into_iter().chain(well).take(MAX_PEERS).collect();
    let left_out = peers.len() - shown.len();
    (shown, left_out)
}

/// Microseconds, to a tenth.
fn micros(took: std::time::Duration) -> f64 {
    (took.as_secs_f64() * 1e7).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn peers_that_failed_have_a_line_before_the_busiest_and_the_rest_is_counted() {
        let peer = |at: u64, failures| PeerReport {
            peer: format!("node{at}:59999"),
            count: 1,
            failures,
            bytes: forebay_types::ByteSize::kib(1000 - at),
            longest_wire: Duration::from_nanos(1234),
        };
        let peers: Vec<_> = (0..20).map(|at| peer(at, u64::from(at == 19))).collect();
        let (shown, left_out) = shown(&peers);
        assert_eq!((shown.len(), left_out, &*shown[0].peer, &*shown[1].peer), (16, 4, "node19:59999", "node0:59999"));
        assert!((micros(shown[0].longest_wire) - 1.2).abs() < 1e-9);
    }
}
