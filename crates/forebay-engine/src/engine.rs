//! The engine: a store, a source, and the fetches between them.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_memory::{SpanMut, Spans};
use forebay_store::{Keep, Store};
use forebay_types::{
    BlockKey, BlockLayout, Failure, FailureKind, FileId, FileVersion, MAX_SECTORS, SectorChecksums, SectorRange,
};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::in_flight::{FetchGuard, FetchedSectors, InFlightFetch, InFlightFetches};
use crate::patience::{Failed, Patience};
use crate::plan::{FetchPolicy, overlap, sectors_of};

/// Rounds of looking and fetching. Another round is needed when what was cached is evicted, or found corrupt, between
/// looking and reading. The second one fetches everything at once, whatever the store has, so it needs no luck: where memory is
/// scarce, what has come is evicted before the rest of it has come. In one piece, so that a reader holds nothing while it waits for
/// memory: several that held some of it, and waited for what others were to fetch, waited for one another.
const ROUNDS: u32 = 2;

/// What to fetch.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// The file version.
    pub version: Arc<FileVersion>,
    /// Its block.
    pub key: BlockKey,
    /// Which sectors.
    pub sectors: SectorRange,
    /// How the file is cut.
    pub layout: BlockLayout,
}

impl Fetch {
    /// Where the block's sectors start, in bytes from the start of the block.
    #[must_use]
    pub fn offset(&self) -> u32 {
        self.sectors.byte_offset()
    }

    /// How many bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.sectors.byte_len(self.layout.block_len(self.key.index))
    }
}

/// Bytes that a source delivered.
#[derive(Debug)]
pub struct Fetched {
    /// A buffer from [`Store::landing`] that starts with exactly the bytes asked for.
    pub filled: SpanMut,
    /// The checksums of their sectors, if the source has checked the bytes against them.
    pub checksums: Option<SectorChecksums>,
    /// How many of them the source had in a cache of its own.
    pub from_cache: u32,
}

impl Fetched {
    /// The same, when its bytes are what `checksums` say, one for each of `sectors`, which have `length` bytes.
    ///
    /// # Errors
    /// The first sector of the block that is not; the first of all when there are not as many checksums as sectors.
    pub fn checked(self, sectors: SectorRange, length: u32, checksums: SectorChecksums) -> Result<Self, u32> {
        let bytes = self.filled.get(..length as usize).ok_or(sectors.start)?;
        if checksums.len() != sectors.len() as usize {
            return Err(sectors.start);
        }
        checksums.check(bytes).map_err(|sector| sectors.start + sector)?;
        Ok(Self { checksums: Some(checksums), ..self })
    }
}

/// What becomes of the bytes of a file once they were fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// The store keeps them in this way.
    As(Keep),
    /// Only the readers that waited for them get them.
    Not,
}

impl Default for Keeping {
    fn default() -> Self {
        Self::As(Keep::default())
    }
}

/// Where the engine fetches what its store lacks.
#[async_trait::async_trait]
pub trait BlockSource: Send + Sync + 'static {
    /// Fetches all of `fetch`, of exactly that version, into a buffer that it takes from `buffers` when it is ready to.
    ///
    /// # Errors
    /// [`FailureKind::VersionChanged`] when the version is gone; any other when the bytes cannot be had. Retries are
    /// the source's business: the engine does none, but for a read that joined a fetch which had begun before it asked.
    async fn fetch(&self, fetch: &Fetch, buffers: &Store) -> Result<Fetched, Failure>;

    /// What becomes of what was fetched of this file, which has this version. Asked when a read misses, so it is best cheap.
    fn keeping(&self, _file: FileId, _version: &FileVersion) -> Keeping {
        Keeping::default()
    }
}

/// How an engine behaves.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// How fetches are shaped.
    pub policy: FetchPolicy,
    /// How long a read may wait for its fetches.
    pub deadline: Duration,
}

/// A read's bytes and where they came from.
#[derive(Debug, Default)]
pub struct EngineRead {
    /// The bytes, in order.
    pub spans: Spans,
    /// Bytes that were in the store's memory.
    pub from_memory: u32,
    /// Bytes that were on the store's disks.
    pub from_disk: u32,
    /// Bytes that had to be fetched.
    pub from_source: u32,
    /// Those of the fetched bytes that the source had in a cache of its own.
    pub from_cache: u32,
}

/// What a fill had to fetch, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineFill {
    /// All of it.
    pub from_source: u32,
    /// What the source had in a cache of its own.
    pub from_cache: u32,
}

/// A store that fills itself. Clones are the same engine.
#[derive(Clone)]
pub struct ReadEngine {
    shared: Arc<EngineShared>,
}

struct EngineShared {
    store: Store,
    source: Arc<dyn BlockSource>,
    options: EngineOptions,
    in_flight: Arc<InFlightFetches>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl ReadEngine {
    /// An engine over `store` that fetches from `source`. It runs its fetches on the runtime of its callers.
    #[must_use]
    pub fn new(store: Store, source: Arc<dyn BlockSource>, options: EngineOptions) -> Self {
        let (in_flight, tasks, stop) = (InFlightFetches::new(), TaskTracker::new(), CancellationToken::new());
        Self { shared: Arc::new(EngineShared { store, source, options, in_flight, tasks, stop }) }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// How many fetches are under way.
    #[must_use]
    pub fn fetches(&self) -> usize {
        self.shared.in_flight.count()
    }

    /// A read that hits: no wait, no lock.
    #[must_use]
    pub fn try_read(&self, key: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        self.shared.store.try_read(key, offset, length)
    }

    /// The same where the bytes lie: `look` is called with them, in order, and what it returns is returned.
    pub fn try_look<R>(&self, key: &BlockKey, offset: u32, length: u32, look: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        self.shared.store.try_look(key, offset, length, look)
    }

    /// `length` bytes at `offset` of a block, fetched if need be.
    ///
    /// # Errors
    /// [`FailureKind::InvalidArgument`] for a range that is not in the block, [`FailureKind::TimedOut`] after the
    /// deadline, or what the source failed with.
    pub async fn read(
        &self,
        version: &Arc<FileVersion>,
        key: BlockKey,
        layout: BlockLayout,
        offset: u32,
        length: u32,
    ) -> Result<EngineRead, Failure> {
        let wanted = sectors_of(&layout, key, offset, length)?;
        let mut patience = Patience::new(self.shared.options.deadline);
        loop {
            match self.read_within(patience.deadline, version, key, layout, wanted, offset..offset + length).await {
                Ok(read) => return Ok(read),
                Err(failed) => self.goes_on(&mut patience, failed)?,
            }
        }
    }

    /// Whether a reader fetches anew what has failed.
    fn goes_on(&self, patience: &mut Patience, failed: Failed) -> Result<(), Failure> {
        match self.shared.stop.is_cancelled() {
            true => Err(failed.failure),
            false => patience.tries_again_after(failed, Instant::now()),
        }
    }

    async fn read_within(
        &self,
        deadline: Instant,
        version: &Arc<FileVersion>,
        key: BlockKey,
        layout: BlockLayout,
        wanted: SectorRange,
        range: Range<u32>,
    ) -> Result<EngineRead, Failed> {
        let (offset, length) = (range.start, range.end - range.start);
        // How many of the read's bytes were fetched for it and are now in the store's memory.
        let mut fetched = EngineFill::default();
        for round in 1..=ROUNDS {
            if let Some(read) = self.shared.store.read(&key, offset, length).await.map_err(Failure::from)? {
                let from_source = read.from_memory.min(fetched.from_source);
                let from_cache = from_source.min(fetched.from_cache);
                let (from_memory, from_disk) = (read.from_memory - from_source, read.from_disk);
                return Ok(EngineRead { spans: read.spans, from_memory, from_disk, from_source, from_cache });
            }
            let is_kept = self.shared.source.keeping(key.file, version) != Keeping::Not;
            let fetches = match round {
                ROUNDS => vec![self.join_or_start_whole(version, key, layout, wanted)],
                _ => self.join_or_start(version, key, layout, wanted, is_kept),
            };
            if fetches.len() > 1 && is_kept {
                let wanted = fetches.iter().map(|fetch| overlap(&layout, key, fetch.sectors, range.clone()));
                let wanted = wanted.sum();
                let total = self.wait_for_all(key, fetches, deadline).await?;
                fetched = EngineFill { from_source: wanted, from_cache: total.from_cache.min(wanted) };
                continue;
            }
            let held = self.wait_and_hold(key, fetches, deadline).await?;
            if let Some(read) = self.assemble(&held, key, offset, length).await? {
                return Ok(read);
            }
        }
        let message = format!("block {key} was fetched whole and is still not complete");
        Err(Failure::new(FailureKind::Internal, message).into())
    }

    /// Brings `length` bytes at `offset` of a block into the store, unless their file is not to be kept.
    ///
    /// # Errors
    /// As for [`ReadEngine::read`].
    pub async fn fill(
        &self,
        version: &Arc<FileVersion>,
        key: BlockKey,
        layout: BlockLayout,
        offset: u32,
        length: u32,
    ) -> Result<EngineFill, Failure> {
        let wanted = sectors_of(&layout, key, offset, length)?;
        if self.shared.source.keeping(key.file, version) == Keeping::Not {
            return Ok(EngineFill::default());
        }
        let mut patience = Patience::new(self.shared.options.deadline);
        let fetched = loop {
            let fetches = self.join_or_start(version, key, layout, wanted, true);
            match self.wait_for_all(key, fetches, patience.deadline).await {
                Ok(fetched) => break fetched,
                Err(failed) => self.goes_on(&mut patience, failed)?,
            }
        };
        // What is on disk only is read now, so that the store brings it up to memory before the reader comes. What is in
        // memory is not: to check its bytes here and again for the reader doubled the cost of a warm sequential read.
        if !self.shared.store.coverage(&key).memory.iter().any(|held| held.contains(wanted)) {
            self.shared.store.read(&key, offset, length).await.map_err(Failure::from)?;
        }
        Ok(fetched)
    }

    /// Begins to fetch what a block lacks of `ranges`, each a place and a length in it in bytes, which are about to be read: those
    /// between which lie `hole` bytes or less by one request. Who reads them joins that. What is not to be kept, and what does not
    /// lie in the block, is left to its readers.
    pub fn begin(
        &self,
        version: &Arc<FileVersion>,
        key: BlockKey,
        layout: BlockLayout,
        ranges: &[(u32, u32)],
        hole: u32,
    ) {
        let shared = &self.shared;
        if shared.source.keeping(key.file, version) == Keeping::Not {
            return;
        }
        let in_block = |(offset, length): &(u32, u32)| sectors_of(&layout, key, *offset, *length).ok();
        let wanted: Vec<SectorRange> = ranges.iter().filter_map(in_block).collect();
        let policy = shared.options.policy.bridging(hole);
        let sectors = layout.sectors(key.index);
        let guards = shared.in_flight.start(key, &wanted, sectors, &policy, || self.cached(&key));
        self.spawn_fetches(version, key, layout, guards);
    }

    /// Which sectors of a block the store has.
    fn cached(&self, key: &BlockKey) -> Vec<SectorRange> {
        let coverage = self.shared.store.coverage(key);
        coverage.memory.into_iter().chain(coverage.disk).collect()
    }

    /// Joins a fetch under way that brings all of `wanted`, or starts one, as if nothing were cached.
    fn join_or_start_whole(
        &self,
        version: &Arc<FileVersion>,
        key: BlockKey,
        layout: BlockLayout,
        wanted: SectorRange,
    ) -> InFlightFetch {
        let (in_flight, guard) = self.shared.in_flight.join_or_start_whole(key, wanted);
        if let Some(guard) = guard {
            self.spawn_fetch(Fetch { version: Arc::clone(version), key, sectors: wanted, layout }, guard);
        }
        in_flight
    }

    /// Joins the fetches under way that `wanted` needs, and starts those that it lacks. What is not kept is fetched in one piece: its
    /// reader holds on to all of it, and one that holds some and waits for more may wait for itself.
    fn join_or_start(
        &self,
        version: &Arc<FileVersion>,
        key: BlockKey,
        layout: BlockLayout,
        wanted: SectorRange,
        is_kept: bool,
    ) -> Vec<InFlightFetch> {
        let shared = &self.shared;
        let mut policy = shared.options.policy;
        if !is_kept {
            policy.max = MAX_SECTORS;
        }
        let (sectors, cached) = (layout.sectors(key.index), || self.cached(&key));
        let (fetches, guards) = shared.in_flight.join_or_start(key, wanted, sectors, &policy, cached);
        self.spawn_fetches(version, key, layout, guards);
        fetches
    }

    fn spawn_fetches(&self, version: &Arc<FileVersion>, key: BlockKey, layout: BlockLayout, guards: Vec<FetchGuard>) {
        for guard in guards {
            let fetch = Fetch { version: Arc::clone(version), key, sectors: guard.sectors, layout };
            self.spawn_fetch(fetch, guard);
        }
    }

    /// Waits for several fetches and holds on to the bytes of none: readers that held some and waited for others, which
    /// wait for memory, would wait for one another. How many bytes came.
    async fn wait_for_all(
        &self,
        key: BlockKey,
        fetches: Vec<InFlightFetch>,
        deadline: Instant,
    ) -> Result<EngineFill, Failed> {
        let results = fetches.into_iter().map(|fetch| async move {
            let fetched = self.wait_for(key, fetch, deadline).await?;
            Ok::<_, Failed>((u32::try_from(fetched.bytes.len()).unwrap_or(u32::MAX), fetched.from_cache))
        });
        let mut results: FuturesUnordered<_> = results.collect();
        let mut total = EngineFill::default();
        while let Some(result) = results.next().await {
            let (bytes, from_cache) = result?;
            total.from_source += bytes;
            total.from_cache += from_cache;
        }
        Ok(total)
    }

    /// Waits for fetches and holds on to what they bring: their sectors and bytes, in order.
    async fn wait_and_hold(
        &self,
        key: BlockKey,
        fetches: Vec<InFlightFetch>,
        deadline: Instant,
    ) -> Result<Vec<(SectorRange, FetchedSectors)>, Failed> {
        let mut held = Vec::with_capacity(fetches.len());
        for fetch in fetches {
            held.push((fetch.sectors, self.wait_for(key, fetch, deadline).await?));
        }
        held.sort_by_key(|(sectors, _)| *sectors);
        Ok(held)
    }

    /// What one fetch brought.
    async fn wait_for(&self, key: BlockKey, fetch: InFlightFetch, deadline: Instant) -> Result<FetchedSectors, Failed> {
        let (sectors, since) = (fetch.sectors, fetch.since);
        let result = tokio::time::timeout_at(deadline, fetch.wait()).await.map_err(|_| {
            let waited = self.shared.options.deadline;
            Failure::new(FailureKind::TimedOut, format!("{sectors:?} of block {key} did not come within {waited:?}"))
        })?;
        result.map_err(|failure| Failed { failure, since: Some(since) })
    }

    /// Carries out a fetch in a task of its own.
    fn spawn_fetch(&self, fetch: Fetch, guard: FetchGuard) {
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move {
            let result = tokio::select! {
                result = shared.fetch(&fetch) => result,
                () = shared.stop.cancelled() => Err(Failure::new(FailureKind::NotReady, "the cache is shutting down")),
            };
            guard.complete(result);
        });
    }

    /// Puts a read together from what was fetched and what the store holds; `None` if some of it is gone again.
    async fn assemble(
        &self,
        held: &[(SectorRange, FetchedSectors)],
        key: BlockKey,
        offset: u32,
        length: u32,
    ) -> Result<Option<EngineRead>, Failure> {
        let mut read = EngineRead::default();
        let (mut at, end) = (offset, offset + length);
        let mut held = held.iter().peekable();
        while at < end {
            let Some((sectors, FetchedSectors { bytes: span, from_cache })) =
                held.next_if(|(sectors, _)| sectors.byte_offset() <= at)
            else {
                let until = held.peek().map_or(end, |(sectors, _)| sectors.byte_offset().min(end));
                let stored = self.shared.store.read(&key, at, until - at).await.map_err(Failure::from)?;
                let Some(stored) = stored else { return Ok(None) };
                read.from_memory += stored.from_memory;
                read.from_disk += stored.from_disk;
                read.spans.extend(stored.spans);
                at = until;
                continue;
            };
            let start = (at - sectors.byte_offset()) as usize;
            let take = span.len().saturating_sub(start).min((end - at) as usize);
            if take > 0 {
                read.spans.push(span.slice(start..start + take));
                // At most `length`, which is a u32.
                read.from_source += take as u32;
                read.from_cache += (take as u32).min(*from_cache);
                at += take as u32;
            }
        }
        Ok(Some(read))
    }

    /// Stops all fetches and waits until they have ended; their readers get an error. The store stays open.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl EngineShared {
    async fn fetch(&self, fetch: &Fetch) -> Result<FetchedSectors, Failure> {
        let length = fetch.length();
        let fetched = self.source.fetch(fetch, &self.store).await?;
        if fetched.filled.len() < length as usize {
            let message = format!("the source delivered {} of {length} bytes", fetched.filled.len());
            return Err(Failure::new(FailureKind::Internal, message));
        }
        let block_length = fetch.layout.block_len(fetch.key.index);
        let Fetched { filled, checksums, from_cache } = fetched;
        let bytes = match self.source.keeping(fetch.key.file, &fetch.version) {
            Keeping::As(keep) => self.store.publish_as(fetch.key, fetch.sectors, block_length, filled, checksums, keep),
            Keeping::Not => filled.freeze().slice(0..length as usize),
        };
        Ok(FetchedSectors { bytes, from_cache: from_cache.min(length) })
    }
}
