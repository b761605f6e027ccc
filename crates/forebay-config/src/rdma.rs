//! Settings for RDMA: those that one library carries out and the other does not, and what follows from several.

use std::time::Duration;

use crate::keys::Config;

/// How often a message that was not acknowledged is sent again if nothing is set: as often as can be said.
const RETRIES: u32 = 7;

impl Config {
    /// Whether something is set for data that only UCX can be told: verbs have no transports, and the partition of their interface.
    #[must_use]
    pub fn needs_ucx_for_data(&self) -> bool {
        !self.network_rdma_data_transports.is_empty() || self.network_rdma_data_partition_key.is_some()
    }

    /// The same for metadata.
    #[must_use]
    pub fn needs_ucx_for_metadata(&self) -> bool {
        !self.network_rdma_data_transports.is_empty()
    }

    /// How long a connection by verbs may be without acknowledgement, all attempts together, where `network.rdma.data.ack_timeout` says
    /// nothing: no longer than an operation may take, and less than silence takes to mean death.
    #[must_use]
    pub fn rdma_unacknowledged(&self) -> Duration {
        (self.network_tcp_dead_after * 2 / 3).min(self.network_rdma_data_operation_timeout)
    }

    /// How long a message is tried by the card at least, if `network.rdma.data.ack_timeout` is set: one wait for each attempt.
    pub(crate) fn rdma_tries_for(&self) -> Option<Duration> {
        let retries = u32::try_from(self.network_rdma_data_retry_count).unwrap_or(RETRIES);
        Some(self.network_rdma_data_ack_timeout?.saturating_mul(retries.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_acknowledged_is_given_up_before_its_operation_and_before_its_peer() {
        let config = Config::default();
        assert_eq!(config.rdma_unacknowledged(), Duration::from_secs(4));
        let short = Config { network_rdma_data_operation_timeout: Duration::from_millis(900), ..Config::default() };
        assert_eq!(short.rdma_unacknowledged(), Duration::from_millis(900));
        let patient = Config { network_tcp_dead_after: Duration::from_secs(60), ..Config::default() };
        assert_eq!(patient.rdma_unacknowledged(), Duration::from_secs(40));
    }
}
