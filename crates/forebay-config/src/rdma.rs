//! Settings for RDMA that one library carries out and the other does not.

use crate::keys::Config;

impl Config {
    /// Whether something is set for data that only UCX can be told: over verbs, rdma_cm chooses it.
    #[must_use]
    pub fn needs_ucx_for_data(&self) -> bool {
        !self.network_rdma_data_transports.is_empty()
            || self.network_rdma_data_gid_index >= 0
            || self.network_rdma_data_service_level >= 0
            || self.network_rdma_data_partition_key.is_some()
    }

    /// The same for metadata.
    #[must_use]
    pub fn needs_ucx_for_metadata(&self) -> bool {
        !self.network_rdma_data_transports.is_empty() || self.network_rdma_metadata_gid_index >= 0
    }
}
