//! The other workers, as a worker's interfaces want them: which to ask before the origin, and which take over what it
//! has.

use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Connector, Peers};
use forebay_cluster::{Backoff, MAX_PEERS, Membership};
use forebay_engine::{Fetch, Fetched};
use forebay_store::Store;
use forebay_types::{BlockKey, Failure, SectorRange};
use forebay_worker::{AdoptOutcome, DrainTargets};

/// Links of the worker in this process to the others.
pub(crate) struct WorkerPeers(Peers);

impl WorkerPeers {
    /// The links of the worker `me`.
    pub(crate) fn new(
        me: &str,
        membership: Arc<dyn Membership>,
        connector: Arc<dyn Connector>,
        backoff: Backoff,
        peer_timeout: Duration,
    ) -> Self {
        let runtime = tokio::runtime::Handle::current();
        // All that are asked for one block have so much together, so that each one's end is seen, and noted.
        let within = peer_timeout / (MAX_PEERS as u32 + 1);
        Self(Peers::new(me, membership, connector, backoff, within, runtime))
    }

    /// Ends the links.
    pub(crate) async fn close(&self) {
        self.0.close().await;
    }
}

#[async_trait::async_trait]
impl forebay_worker::Peers for WorkerPeers {
    async fn cached(&self, fetch: &Fetch, replicas: u8, buffers: &Store) -> Option<Fetched> {
        self.0.cached(fetch, replicas, buffers).await
    }

    async fn cached_by(
        &self,
        from: &str,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        buffers: &Store,
    ) -> Result<Option<Fetched>, Failure> {
        self.0.cached_by(from, key, sectors, block_length, buffers).await
    }
}

#[async_trait::async_trait]
impl DrainTargets for WorkerPeers {
    async fn adopt(&self, key: BlockKey, sectors: SectorRange, block_length: u32) -> Result<AdoptOutcome, Failure> {
        match self.0.hand_over(key, sectors, block_length).await? {
            0 => Ok(AdoptOutcome::Held),
            bytes => Ok(AdoptOutcome::Adopted(bytes)),
        }
    }
}
