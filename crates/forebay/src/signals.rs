//! The signals that ask this process to end.

use std::future::Future;

use anyhow::Context as _;
use forebay_node::{Node, NodeBuilder};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Fault;

/// The name of the signal by which service managers end a process.
pub(crate) const TERM: &str = "SIGTERM";

/// SIGTERM, SIGINT and SIGHUP. From its making on they end nothing by themselves.
#[derive(Debug)]
pub(crate) struct Signals {
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes the signals. To be called in a runtime.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let take = |kind| signal(kind).context("cannot take signals");
        Ok(Self {
            term: take(SignalKind::terminate())?,
            interrupt: take(SignalKind::interrupt())?,
            hangup: take(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one. Its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => TERM,
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }

    /// What `work` gives, unless a signal comes first; then `work` is dropped.
    ///
    /// # Errors
    /// Those of `work`, and the interruption.
    pub(crate) async fn unless_any<T>(&mut self, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        tokio::select! {
            done = work => done,
            signal = self.next() => Err(Fault::interrupted(signal).into()),
        }
    }
}

/// Starts a node, unless a signal comes first; then what was started is ended, in order. A second signal ends that. A mount that it has
/// by then may be one that was left to it: it is left again, as by a node that runs.
///
/// # Errors
/// Those of the node, and the interruption.
pub(crate) async fn start(signals: &mut Signals, node: NodeBuilder) -> anyhow::Result<Node> {
    let cancelled = CancellationToken::new();
    let mut starting = std::pin::pin!(node.cancelled_by(cancelled.clone()).start());
    tokio::select! {
        started = &mut starting => Ok(started?),
        signal = signals.next() => {
            cancelled.cancel();
            let ending = async {
                if let Ok(node) = starting.await {
                    let _ = if signal == TERM { node.stop().await } else { node.shutdown().await };
                }
            };
            tokio::select! {
                () = ending => {}
                signal = signals.next() => tracing::warn!(signal, "ending at once"),
            }
            Err(Fault::interrupted(signal).into())
        }
    }
}
