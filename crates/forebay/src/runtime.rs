//! The runtime that commands run in.

use std::future::Future;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How long blocking work, such as a write to a disk that hangs, may hold up the end of the process.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Runs `work` to its end, on one thread a core.
///
/// # Errors
/// Those of `work`.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("forebay")
        .build()
        .context("cannot start the runtime's threads")?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(END_WITHIN);
    result
}

/// Runs `work` to its end, on this thread.
///
/// # Errors
/// Those of `work`.
pub(crate) fn on_one_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(work)
}

/// Allows as many open files and connections as the system does. The usual soft limit of 1024 is there for programs that
/// use `select(2)`, of which this is none.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!(%error, "the limit on open files stays as it is");
    }
}
