//! Other workers, asked before the origin.
//!
//! A worker that has just joined, one of several replicas, one that takes over from another: each may find in a peer's
//! cache what it lacks. A peer answers such a question from what it holds and asks no other worker in turn, and it
//! waits for no memory to do so ([`Store::read_at_once`]). So however workers ask one another, no question waits for
//! another question, and no buffer for another buffer: there is no cycle to be stuck in. A peer that does not answer
//! soon is one that has nothing.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Fetch, Fetched};
use forebay_store::Store;
use forebay_types::{BlockKey, Failure, FailureKind, SectorRange};

/// How long peers have for an answer when nothing else is said. Longer than a busy peer takes, shorter than a reader minds.
pub const PEERS_DEADLINE: Duration = Duration::from_secs(2);

/// The other workers of the cluster, which may hold a block.
///
/// What they deliver has in [`Fetched::checksums`] what the peer sent as checksums. The caller checks the bytes against
/// them, so an implementation need not. Bytes without checksums are not believed.
#[async_trait::async_trait]
pub trait Peers: Send + Sync + 'static {
    /// Bytes that another worker has in its cache; `None` when none of those worth asking has them. Never asks the origin,
    /// and never fails: a peer that fails is a peer that has nothing. `replicas` is how many workers should hold the block.
    async fn cached(&self, fetch: &Fetch, replicas: u8, buffers: &Store) -> Option<Fetched>;

    /// The same from the worker called `from`.
    ///
    /// # Errors
    /// When there is no such worker, or it does not answer.
    async fn cached_by(
        &self,
        from: &str,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        buffers: &Store,
    ) -> Result<Option<Fetched>, Failure>;
}

/// Peers, and how long to wait for them.
pub(crate) struct Asked {
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) deadline: Duration,
}

impl Asked {
    /// Bytes that a peer has, checked.
    pub(crate) async fn cached(&self, fetch: &Fetch, replicas: u8, buffers: &Store) -> Option<Fetched> {
        let asked = tokio::time::timeout(self.deadline, self.peers.cached(fetch, replicas, buffers)).await;
        checked(asked.ok()??, fetch.key, fetch.sectors, fetch.length())
    }

    /// The same from one of them. `deadline` is the caller's: no reader waits for these bytes.
    pub(crate) async fn cached_by(
        &self,
        from: &str,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        buffers: &Store,
        deadline: Duration,
    ) -> Result<Fetched, Failure> {
        let asked =
            tokio::time::timeout(deadline, self.peers.cached_by(from, key, sectors, block_length, buffers)).await;
        let asked = asked.map_err(|_| {
            Failure::new(
                FailureKind::TimedOut,
                format!("{sectors:?} of block {key} did not come from {from} within {deadline:?}"),
            )
        })??;
        let fetched = asked.and_then(|fetched| checked(fetched, key, sectors, sectors.byte_len(block_length)));
        fetched.ok_or_else(|| {
            Failure::new(FailureKind::NotCached, format!("{from} does not have {sectors:?} of block {key}"))
        })
    }
}

fn checked(mut fetched: Fetched, key: BlockKey, sectors: SectorRange, length: u32) -> Option<Fetched> {
    let checksums = fetched.checksums.take();
    let checked = checksums.ok_or(sectors.start).and_then(|checksums| fetched.checked(sectors, length, checksums));
    match checked {
        Ok(fetched) => Some(Fetched { from_cache: length, ..fetched }),
        Err(sector) => {
            tracing::warn!(block = %key, sector, "a sector came corrupt from a peer, or without its sum");
            None
        }
    }
}
