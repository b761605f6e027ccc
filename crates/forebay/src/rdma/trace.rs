//! The statistics of RDMA operations in the log, each `network.rdma.data.trace.print_interval`.

use std::sync::Arc;

use forebay_config::Config;
use forebay_rdma::Trace;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

/// A trace, and the task that logs it.
pub(super) struct Tracing {
    pub(super) trace: Arc<Trace>,
    _printing: AbortOnDropHandle<()>,
}

impl Tracing {
    /// Begins, if it is asked for.
    pub(super) fn start(config: &Config) -> Option<Self> {
        config.network_rdma_data_trace_enabled.then(|| {
            let trace = Arc::new(Trace::new());
            let (printed, every) = (Arc::clone(&trace), config.network_rdma_data_trace_print_interval);
            let printing = tokio::spawn(async move {
                let mut ticks = tokio::time::interval(every);
                ticks.tick().await;
                loop {
                    ticks.tick().await;
                    print(&printed);
                }
            });
            Self { trace, _printing: AbortOnDropHandle::new(printing) }
        })
    }
}

/// One line for each kind of operation that there was.
fn print(trace: &Trace) {
    let report = trace.report();
    for operation in report.operations.iter().filter(|operation| operation.count > 0) {
        info!(operation = %operation.kind, statistics = %operation, interval = ?report.interval, "RDMA trace");
    }
    if let Some(took) = report.registration {
        let failures = report.registration_failures;
        info!(count = took.count, failures, took_us = %took, "RDMA trace: registration");
    }
}
