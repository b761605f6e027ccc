//! What an I/O thread counts and others read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) connections: AtomicUsize,
    pub(crate) unadmitted: AtomicU64,
    pub(crate) forged: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) no_room: AtomicU64,
    /// Reads of workers' memory without their help, and those that were not believed.
    pub(crate) one_sided: AtomicU64,
    pub(crate) one_sided_refused: AtomicU64,
    /// Bytes of payload that came in messages, for want of memory windows.
    pub(crate) in_messages: AtomicU64,
}

impl Gauges {
    pub(crate) fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn discount_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count_unadmitted(&self) {
        self.unadmitted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_no_room(&self) {
        self.no_room.fetch_add(1, Ordering::Relaxed);
    }

    /// A message of `peer`'s connection does not show its pass: UCX believes what a message says of the connection that it belongs
    /// to. That connection is the one that somebody lies about, so it goes on.
    #[cold]
    pub(crate) fn count_forged(&self, peer: &str) {
        if self.forged.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(
                peer,
                "dropped a message that does not show the pass of its connection; more are counted only"
            );
        }
    }
}

/// One of the connections that an I/O thread counts.
pub(crate) struct Counted(pub(crate) Arc<Gauges>);

impl Counted {
    /// Of a connection that was counted.
    pub(crate) fn new(gauges: &Arc<Gauges>) -> Self {
        Self(Arc::clone(gauges))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.discount_connection();
    }
}
