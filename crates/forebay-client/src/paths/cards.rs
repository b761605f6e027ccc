//! What goes over one network card of this host, to whichever worker: paths to several workers share it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a card.
#[derive(Debug, Default)]
pub struct CardTraffic {
    /// The NUMA node that the card is next to, if that is known.
    pub numa_node: Option<u32>,
    in_flight: AtomicU64,
    received: AtomicU64,
}

impl CardTraffic {
    /// A card next to this NUMA node.
    #[must_use]
    pub fn next_to(numa_node: Option<u32>) -> Self {
        Self { numa_node, ..Self::default() }
    }

    /// Bytes of payload that were asked for over it by reads that may be striped, and have not come.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Bytes that came over it with answers.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn sent(&self, bytes: u32) {
        self.in_flight.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    pub(super) fn ended(&self, bytes: u32) {
        self.in_flight.fetch_sub(u64::from(bytes), Ordering::Relaxed);
    }

    pub(super) fn answered(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
