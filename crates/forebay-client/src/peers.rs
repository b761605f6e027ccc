//! The cluster as one of its workers sees it: which others may hold a block, and which is to have it.
//!
//! Bytes that another worker has in its cache are cheaper than those of the origin. They are asked for as cached bytes only:
//! a worker that is asked fetches nothing, so no chain of workers ever waits for itself. They come with the checksums that their holder
//! computed when it got them from the origin, and the worker that asked checks them against these (invariant 2).

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::{Backoff, Membership, PlacementKey};
use forebay_engine::{Fetch, Fetched};
use forebay_store::Store;
use forebay_transport::message::AdoptRequest;
use forebay_transport::{Flags, Op, Request};
use forebay_types::{BlockKey, Failure, FailureKind, SectorRange};

use crate::connector::Connector;
use crate::router::Router;
use crate::routes::Link;
use crate::source::fetched_of;
use crate::stats::ClientStats;

/// Links from a worker to the others.
pub struct Peers {
    me: Arc<str>,
    router: Router,
    /// How long a peer may take before the origin is asked in its place.
    within: Duration,
}

impl Peers {
    /// The links of the worker `me` to the other members. They are closed on `runtime`.
    #[must_use]
    pub fn new(
        me: impl Into<Arc<str>>,
        membership: Arc<dyn Membership>,
        connector: Arc<dyn Connector>,
        backoff: Backoff,
        within: Duration,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let router = Router::new(membership, connector, backoff, within, Arc::new(ClientStats::default()), runtime);
        Self { me: me.into(), router, within }
    }

    /// Bytes that another worker has in its cache, of a block that `replicas` workers own, with the checksums that it sent; `None`
    /// when none of those worth asking has all of them. A worker that fails is one that has nothing.
    pub async fn cached(&self, fetch: &Fetch, replicas: u8, buffers: &Store) -> Option<Fetched> {
        let routes = Arc::clone(&self.router.routes());
        let key = PlacementKey::from(&fetch.key);
        for member in routes.topology.peers(&self.me, key, usize::from(replicas)) {
            let Some(link) = routes.link(&member.name) else { continue };
            let block_length = fetch.layout.block_len(fetch.key.index);
            match self.ask(link, fetch.key, fetch.sectors, block_length, buffers).await {
                Ok(Some(fetched)) => return Some(fetched),
                Ok(None) => {}
                Err(failure) => tracing::debug!(worker = %link.member, block = %fetch.key, %failure, "peer failed"),
            }
        }
        None
    }

    /// The bytes that the worker called `from` has of a block in its cache.
    ///
    /// # Errors
    /// When there is no such worker, or it does not answer.
    pub async fn cached_by(
        &self,
        from: &str,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        buffers: &Store,
    ) -> Result<Option<Fetched>, Failure> {
        let routes = Arc::clone(&self.router.routes());
        let link = routes
            .link(from)
            .filter(|link| link.member != self.me)
            .ok_or_else(|| Failure::new(FailureKind::InvalidArgument, format!("no other worker is called `{from}`")))?;
        self.ask(link, key, sectors, block_length, buffers).await
    }

    async fn ask(
        &self,
        link: &Link,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        buffers: &Store,
    ) -> Result<Option<Fetched>, Failure> {
        if !self.router.judge.admits(link) {
            return Ok(None);
        }
        let (offset, length) = (sectors.byte_offset(), sectors.byte_len(block_length));
        let request = Request::on_block(Op::Read, key, offset, length, self.within);
        let request = request.with_flags(Flags::CACHED.and(Flags::CHECKSUMS));
        let into = match link.is_local {
            true => None,
            false => Some(buffers.landing(length).await?),
        };
        let answer = link.transport.call(request.clone(), into).await;
        let reply = match self.router.note(link, answer) {
            Ok(reply) => crate::blocks::complete(reply, &request)?,
            Err(failure) if failure.kind() == FailureKind::NotCached => return Ok(None),
            Err(failure) => return Err(failure),
        };
        let (fetched, checksums) = fetched_of(reply, length, buffers).await?;
        Ok(Some(Fetched { checksums, ..fetched }))
    }

    /// Asks the worker that owns a block to take a part of it from this one. Returns how many bytes it took; 0 when it had
    /// them.
    ///
    /// # Errors
    /// When there is no such worker, or it did not take them.
    pub async fn hand_over(&self, key: BlockKey, sectors: SectorRange, block_length: u32) -> Result<u32, Failure> {
        let routes = Arc::clone(&self.router.routes());
        let owner = routes.owners(PlacementKey::from(&key), 1).next().filter(|link| link.member != self.me);
        let owner = owner
            .ok_or_else(|| Failure::new(FailureKind::Unavailable, "there is no other worker that could take blocks"))?;
        let body = AdoptRequest { from: self.me.to_string(), block_length }.encode();
        let (offset, length) = (sectors.byte_offset(), sectors.byte_len(block_length));
        // The other side asks us back, within the same time.
        let request = Request::on_block(Op::Adopt, key, offset, length, self.within * 2).with_body(body);
        let answer = owner.transport.call(request, None).await;
        let provenance = self.router.note(owner, answer)?.provenance;
        Ok(provenance.memory.saturating_add(provenance.disk).saturating_add(provenance.origin))
    }

    /// Ends the links.
    pub async fn close(&self) {
        self.router.close().await;
    }
}
