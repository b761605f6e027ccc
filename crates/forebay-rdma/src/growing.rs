//! Registering memory in steps, with its progress in the log.

use std::time::{Duration, Instant};

use forebay_types::ByteSize;
use tokio_util::sync::CancellationToken;

use crate::RdmaError;
use crate::trace::Trace;

/// How often the log is told how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Has `grow_with` register up to `size`, with the card called `card`, for as long as it is not `given_up`. Blocks.
///
/// # Errors
/// What `grow_with` says. What was registered stays so.
pub(crate) fn grow<E>(
    card: &str,
    size: ByteSize,
    trace: Option<&Trace>,
    given_up: &CancellationToken,
    grow_with: impl FnOnce(&mut dyn FnMut(ByteSize) -> bool) -> Result<(), E>,
) -> Result<(), RdmaError>
where
    RdmaError: From<E>,
{
    let start = Instant::now();
    let mut told = start;
    let outcome = grow_with(&mut |done| {
        if told.elapsed() >= PROGRESS_INTERVAL {
            told = Instant::now();
            tracing::info!(card, %done, total = %size, "registering memory for RDMA");
        }
        !given_up.is_cancelled()
    });
    if let Some(trace) = trace {
        trace.registered(start.elapsed(), outcome.is_ok());
    }
    if told > start && outcome.is_ok() {
        tracing::info!(card, total = %size, took = ?start.elapsed(), "memory is registered for RDMA");
    }
    outcome.map_err(RdmaError::from)
}
