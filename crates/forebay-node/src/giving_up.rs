//! Starting a node takes time, and is given up when its caller says so.

use tokio_util::sync::CancellationToken;

use crate::error::{Exit, Fault};

/// What `work` gives, unless starting is given up first; then `work` is dropped.
///
/// # Errors
/// That of `work`, or that starting was given up.
pub(crate) async fn unless_cancelled<T>(
    cancelled: &CancellationToken,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        () = cancelled.cancelled() => Err(Fault::without_remedy(Exit::Interrupted, "starting was given up").into()),
        done = work => done,
    }
}
