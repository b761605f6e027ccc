//! Bringing bytes of a file nearer before anybody waits for them: ahead of streams, by a plan that a program announced, and of a whole
//! file that a program touches all over.
//!
//! Plans and whole files have places of their own ([`ClientShared::announced`]), so that they hold up no stream, and however long
//! they are, no more is under way than there are places.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use forebay_cluster::PlacementKey;
use forebay_types::{BlockKey, BlockLayout, Failure, FailureKind, FileId, FileVersion, Piece};
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::pace::{FetchSource, Pace};
use crate::shared::ClientShared;
use crate::showing;

/// Pieces of one range, and blocks of one whole file, that are under way at once: 64 MiB, which is 25 Gb/s over 20 ms.
const AT_ONCE: usize = 16;

/// How near bytes are brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchTo {
    /// To this process: memory of a worker in it or on this host, else the client's buffers. For who reads them here, soon.
    Here,
    /// To the workers that own the blocks. For who reads them elsewhere, or not all of them.
    Workers,
}

/// Fetches bytes of one version.
#[derive(Clone)]
pub(crate) struct Fetcher {
    pub(crate) client: Arc<ClientShared>,
    pub(crate) version: Arc<FileVersion>,
    pub(crate) id: FileId,
    pub(crate) layout: BlockLayout,
    pub(crate) replicas: u8,
    pub(crate) pace: Arc<Pace>,
}

impl Fetcher {
    /// Fetches a piece. Where it came from.
    ///
    /// # Errors
    /// What a read of it would meet.
    pub(crate) async fn piece(&self, piece: Piece, to: FetchTo) -> Result<FetchSource, Failure> {
        let (began, length) = (self.pace.now(), piece.length);
        let from_origin = self.fetch(piece, to).await?;
        self.client.stats.prefetched.fetch_add(u64::from(length), Ordering::Relaxed);
        let from = if from_origin > 0 { FetchSource::Origin } else { FetchSource::Cache };
        self.pace.fetched(from, length, began);
        Ok(from)
    }

    /// How many bytes the origin gave.
    async fn fetch(&self, piece: Piece, to: FetchTo) -> Result<u32, Failure> {
        let Self { client, version, layout, .. } = self;
        let Piece { index, offset, length } = piece;
        let key = BlockKey { file: self.id, index };
        let (is_local, is_near) = {
            let (routes, place) = (client.router.routes(), PlacementKey::from(&key));
            (routes.is_local(place, self.replicas), routes.is_near(place, self.replicas))
        };
        if is_local || to == FetchTo::Workers {
            return Ok(client.router.fill(version, key, offset, length).await?.provenance.origin);
        }
        if is_near {
            return Ok(showing::show(client, version, key, offset, length).await?.origin);
        }
        let filled = client.engine.fill(version, key, *layout, offset, length).await?;
        Ok(filled.from_source - filled.from_cache)
    }

    /// The same when there is a place for it.
    async fn in_turn(&self, piece: Piece, to: FetchTo) -> Result<(), Failure> {
        let Ok(_place) = self.client.announced.acquire().await else {
            return Err(Failure::new(FailureKind::Unavailable, "the client is closed"));
        };
        self.piece(piece, to).await.map(drop)
    }

    /// Fetches `length` bytes at `offset`, cut off at the end of the file.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) async fn range(&self, offset: u64, length: u64, to: FetchTo) -> Result<(), Failure> {
        let block_size = u64::from(self.client.options.block_size);
        let end = offset.saturating_add(length).min(self.version.size);
        let blocks = if offset < end { offset / block_size..end.div_ceil(block_size) } else { 0..0 };
        let pieces = blocks.map(|index| {
            let start = index * block_size;
            let within = offset.max(start) - start;
            // Both are within a block, whose size is a u32.
            Piece { index, offset: within as u32, length: (end.min(start + block_size) - start - within) as u32 }
        });
        let fetches = stream::iter(pieces).map(Ok);
        fetches.try_for_each_concurrent(AT_ONCE, |piece| self.in_turn(piece, to)).await
    }

    /// Has the workers fetch all of it, in order, for as long as `reader` is there. The reader meets the failure that ends it.
    pub(crate) async fn whole(self, reader: Weak<()>) {
        let mut left = 0..self.layout.blocks();
        let blocks = std::iter::from_fn(|| left.next().filter(|_| reader.strong_count() > 0));
        let fetched = stream::iter(blocks).map(Ok).try_for_each_concurrent(AT_ONCE, |index| {
            let piece = Piece { index, offset: 0, length: self.layout.block_len(index) };
            self.in_turn(piece, FetchTo::Workers)
        });
        if let Err(failure) = fetched.await {
            tracing::debug!(file = %self.id, %failure, "a whole file was not fetched");
        }
    }
}
