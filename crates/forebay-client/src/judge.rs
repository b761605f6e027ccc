//! What an answer, or that there was none, says of the worker that was asked.

use std::sync::Arc;

use forebay_cluster::Backoff;
use forebay_transport::{CallError, LinkError, Reply};
use forebay_types::Failure;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::outage::Outage;
use crate::routes::Link;
use crate::stats::ClientStats;

/// See above.
pub(crate) struct Judge {
    pub(crate) backoff: Backoff,
    pub(crate) stats: Arc<ClientStats>,
    pub(crate) outage: Outage,
    /// Whether the origin can be asked in the place of workers: then workers that failed a moment ago are left out.
    pub(crate) has_resort: bool,
}

impl Judge {
    /// What the answer of one member, asked without failover, says about its health, and the answer.
    pub(crate) fn note(&self, link: &Link, answer: Result<Reply, CallError>) -> Result<Reply, Failure> {
        match &answer {
            Err(CallError::Link(LinkError::OtherPath { .. })) => {}
            Err(CallError::Link(error)) => self.unreachable(link, error),
            Ok(_) | Err(CallError::Service(_)) => self.reached(link),
        }
        answer.map_err(Failure::from)
    }

    /// Whether it is worth asking now.
    pub(crate) fn admits(&self, link: &Link) -> bool {
        link.health.lock().admit(Instant::now().into_std(), &self.backoff)
    }

    /// It did not answer.
    pub(crate) fn unreachable(&self, link: &Link, error: &LinkError) {
        if link.health.lock().failed(Instant::now().into_std(), &self.backoff) {
            warn!(worker = %link.member, %error, "worker cannot be reached");
        }
    }

    /// It answered.
    pub(crate) fn reached(&self, link: &Link) {
        if link.health.lock().succeeded() {
            info!(worker = %link.member, "worker is back");
        }
        self.outage.answered();
    }
}
