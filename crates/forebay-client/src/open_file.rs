//! A handle: reads of one file version.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_cluster::{Backoff, Pauses, PlacementKey};
use forebay_locks::Mutex;
use forebay_memory::{SpanMut, Spans};
use forebay_transport::Payload;
use forebay_types::{BlockKey, BlockLayout, Failure, FailureKind, FileId, FileVersion, Piece};
use smallvec::SmallVec;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::crossing::together;
use crate::fast_path::StreamFastPath;
use crate::fetching::{FetchTo, Fetcher};
use crate::landing::{CallerBuffer, Landing};
use crate::pace::Pace;
use crate::prefetch::Streams;
use crate::prefetch_budget::Reservation;
use crate::routes::Routes;
use crate::run::Waits;
use crate::scattered::Scattered;
use crate::shared::ClientShared;
use crate::showing;
use crate::stats::ReadSource;

/// Reads of at least this many bytes go through the prefetch buffers even when they continue no stream: another reader
/// of the same shard is likely to want them, and they are whole sectors anyway.
const BUFFERED_FROM: u32 = 256 << 10;

/// How long a reader that starved leaves memory to others. A read of a block over a network card takes less than the first pause.
const STARVED: Backoff = Backoff { initial: Duration::from_millis(5), max: Duration::from_millis(500) };

/// The bytes of a read.
#[derive(Debug)]
pub enum ReadPayload {
    /// Where others may read them, too.
    Shared(Spans),
    /// In memory that no other reader sees: the caller's buffer, or one of the client's.
    Landed(SpanMut),
}

impl ReadPayload {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Shared(spans) => spans.iter().map(|span| span.len()).sum(),
            Self::Landed(span) => span.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For many to read.
    #[must_use]
    pub fn into_spans(self) -> Spans {
        match self {
            Self::Shared(spans) => spans,
            Self::Landed(span) => Spans::from_iter([span.freeze()]),
        }
    }
}

/// The streams of a handle, and what it has reserved of the prefetch budget for them.
struct Followed {
    streams: Streams,
    reservation: Reservation,
}

/// One of the reads that wait, as long as it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn among(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A handle pinned to one file version.
pub struct OpenFile {
    client: Arc<ClientShared>,
    version: Arc<FileVersion>,
    id: FileId,
    layout: BlockLayout,
    /// How many workers own each of its blocks.
    replicas: u8,
    /// Only ever tried, never waited for: a read that finds it taken by another read of this handle goes unrecorded.
    followed: Mutex<Followed>,
    /// What most reads update instead.
    fast_path: StreamFastPath,
    /// How long fetches ahead took.
    pace: Arc<Pace>,
    /// How far reads got that took long.
    waits: Waits,
    /// Of a model, whether it is touched all over.
    scattered: Option<Scattered>,
}

impl OpenFile {
    pub(crate) fn new(client: Arc<ClientShared>, version: FileVersion, replicas: u8) -> Self {
        let block_size = client.options.block_size;
        let streams = Streams::new(version.size, block_size, client.options.prefetch);
        let layout = BlockLayout::new(version.size, block_size);
        let id = version.id();
        client.router.replicate(id, replicas);
        let fast_path = StreamFastPath::new(&streams);
        let followed = Mutex::new(Followed { streams, reservation: Reservation::default() });
        let scattered = Scattered::of(&version).filter(|_| client.options.prefetch.models);
        let (version, pace) = (Arc::new(version), Arc::new(Pace::new()));
        Self { id, layout, replicas, followed, fast_path, pace, waits: Waits::default(), scattered, version, client }
    }

    /// The version that this handle is pinned to.
    #[must_use]
    pub fn version(&self) -> &FileVersion {
        &self.version
    }

    /// The name of that version.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }

    /// How the file is cut into blocks.
    #[must_use]
    pub fn layout(&self) -> BlockLayout {
        self.layout
    }

    /// How many workers own each of its blocks.
    #[must_use]
    pub fn replicas(&self) -> u8 {
        self.replicas
    }

    /// The bytes of a read, if all of them are in memory of this process: without waiting. Cut off at the end of the
    /// file, and never short otherwise.
    #[must_use]
    pub fn try_read(&self, offset: u64, length: u32) -> Option<Spans> {
        let routes = self.client.router.routes_seen();
        let mut spans = Spans::new();
        let mut sources = [0; 2];
        for piece in self.layout.pieces(offset, length) {
            let (hit, source) = self.try_piece(&routes, piece)?;
            sources[source as usize] += u64::from(piece.length);
            if spans.is_empty() {
                spans = hit;
            } else {
                spans.extend(hit);
            }
        }
        for (source, bytes) in [(ReadSource::LocalMemory, sources[0]), (ReadSource::Buffered, sources[1])] {
            if bytes > 0 {
                self.client.stats.hit(source, bytes);
            }
        }
        self.observe(offset, length);
        Some(spans)
    }

    /// The same where the bytes lie: `look` is called with them, in order. So readers of one block share nothing that they write
    /// to. They cannot be evicted meanwhile, so it is best short.
    pub fn try_look<R>(&self, offset: u64, length: u32, look: impl FnOnce(&[&[u8]]) -> R) -> Option<R> {
        let mut pieces = self.layout.pieces(offset, length);
        let (Some(piece), None) = (pieces.next(), pieces.next()) else {
            let spans = self.try_read(offset, length)?;
            return Some(look(&spans.iter().map(|span| &**span).collect::<Vec<_>>()));
        };
        let key = BlockKey { file: self.id, index: piece.index };
        let (mut look, mut looked) = (Some(look), None);
        let mut once = |bytes: &[&[u8]]| looked = look.take().map(|look| look(bytes));
        let routes = self.client.router.routes_seen();
        let local = routes.local.as_ref().and_then(|link| link.transport.memory());
        let source = if local.is_some_and(|memory| memory.try_look(&key, piece.offset, piece.length, &mut once)) {
            ReadSource::LocalMemory
        } else if let Some(spans) = self.client.views.get(&key, piece.offset, piece.length) {
            once(&spans.iter().map(|span| &**span).collect::<SmallVec<[&[u8]; 2]>>());
            ReadSource::Buffered
        } else {
            self.client.engine.try_look(&key, piece.offset, piece.length, &mut once)?;
            ReadSource::Buffered
        };
        self.client.stats.hit(source, u64::from(piece.length));
        self.observe(offset, length);
        looked
    }

    fn try_piece(&self, routes: &Routes, piece: Piece) -> Option<(Spans, ReadSource)> {
        let key = BlockKey { file: self.id, index: piece.index };
        // Whichever worker owns the block: what the worker in this process holds is nearest.
        if let Some(memory) = routes.local.as_ref().and_then(|link| link.transport.memory())
            && let Some(spans) = memory.try_read(&key, piece.offset, piece.length)
        {
            return Some((spans, ReadSource::LocalMemory));
        }
        if let Some(spans) = self.client.views.get(&key, piece.offset, piece.length) {
            return Some((spans, ReadSource::Buffered));
        }
        let spans = self.client.engine.try_read(&key, piece.offset, piece.length)?;
        Some((spans, ReadSource::Buffered))
    }

    /// The bytes of a read, cut off at the end of the file.
    ///
    /// # Errors
    /// [`forebay_types::FailureKind::VersionChanged`] when the object is no longer this version and the bytes are not
    /// cached; any other kind when no worker could deliver them in time.
    pub async fn read(self: &Arc<Self>, offset: u64, length: u32) -> Result<Spans, Failure> {
        Ok(self.read_into(offset, length, &mut || None).await?.into_spans())
    }

    /// The same. What comes from another process for this reader alone, and lies in one block, lands in the buffer that
    /// `caller_buffer` returns; what is prefetched, waited for by others too or kept does not.
    ///
    /// The caller owns its buffer again if it is in the answer. Otherwise, as when the read fails or is given up, a transport may
    /// go on writing to it until it drops it (invariant 3).
    ///
    /// # Errors
    /// As for [`OpenFile::read`].
    pub async fn read_into(
        self: &Arc<Self>,
        offset: u64,
        length: u32,
        caller_buffer: &mut CallerBuffer<'_>,
    ) -> Result<ReadPayload, Failure> {
        let sequential = self.observe(offset, length);
        let (_waits, began) = (Waiting::among(&self.client.waiting), Instant::now());
        let pieces: Vec<_> = self.layout.pieces(offset, length).collect();
        let read = async {
            match self.read_pieces(&pieces, sequential, caller_buffer).await {
                Err(failure) if failure.kind() == FailureKind::OutOfResources => {}
                settled => return settled,
            }
            // Readers that each hold a part of the memory that the others wait for have let go of it by now. A reader that
            // starved goes on alone, so that one gets all that it needs.
            let deadline = Instant::now() + self.client.options.request_timeout;
            let mut pauses = Pauses::until(deadline.into_std(), STARVED);
            let _alone = self.turn(&self.client.starved).await?;
            loop {
                let failure = match self.read_pieces(&pieces, sequential, caller_buffer).await {
                    Err(failure) if failure.kind() == FailureKind::OutOfResources => failure,
                    settled => return settled,
                };
                // It may be a worker that has no memory: to ask again at once would keep it busy with saying so.
                match pauses.next(Instant::now().into_std(), rand::random()) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(failure),
                }
            }
        };
        match read.await {
            Ok(payload) => {
                self.waits.answered(offset.saturating_add(payload.len() as u64), began.elapsed());
                Ok(payload)
            }
            Err(failure) => {
                self.client.stats.failed_reads.fetch_add(1, Ordering::Relaxed);
                Err(failure)
            }
        }
    }

    /// Whether anything is fetched before it is read, by itself.
    #[must_use]
    pub fn prefetches(&self) -> bool {
        self.client.options.prefetch.max_part_number > 0
    }

    /// Brings `length` bytes at `offset` nearer, cut off at the end of the file, in turn with whatever else was announced: nobody waits
    /// for them yet. What is evicted before it is read was fetched in vain.
    ///
    /// # Errors
    /// The first that a read of them would meet.
    pub async fn fetch(&self, offset: u64, length: u64, to: FetchTo) -> Result<(), Failure> {
        self.fetcher().range(offset, length, to).await
    }

    /// Says that `ranges` of one block, each a place and a length in it in bytes, are about to be read. A worker in this process that
    /// owns the block begins to fetch what it lacks of them, together where no more than `gap` bytes lie between; the reads join
    /// that. Without waiting: within a runtime.
    pub fn expect_reads(&self, index: u64, ranges: &[(u32, u32)], gap: u32) {
        let (routes, key) = (self.client.router.routes(), BlockKey { file: self.id, index });
        if let Some(local) = routes.local.as_ref().filter(|_| routes.is_local(PlacementKey::from(&key), self.replicas))
            && let Some(memory) = local.transport.memory()
        {
            memory.expect_reads(&self.version, &key, ranges, gap);
        }
    }

    /// Waits for a turn, no longer than for a worker.
    async fn turn<'a>(&self, turns: &'a Semaphore) -> Result<Option<SemaphorePermit<'a>>, Failure> {
        let waited = self.client.options.request_timeout;
        match tokio::time::timeout(waited, turns.acquire()).await {
            // Never closed; without a permit the read would merely be one too many.
            Ok(permit) => Ok(permit.ok()),
            Err(_) => {
                let message =
                    format!("no buffers within {waited:?}; raise client.memory.size or lower the concurrency");
                Err(Failure::new(FailureKind::TimedOut, message))
            }
        }
    }

    async fn read_pieces(
        &self,
        pieces: &[Piece],
        sequential: bool,
        caller_buffer: &mut CallerBuffer<'_>,
    ) -> Result<ReadPayload, Failure> {
        if let [piece] = pieces {
            return self.read_piece(*piece, sequential, caller_buffer).await;
        }
        let _crossing = self.turn(&self.client.crossings).await?;
        let reads = pieces
            .iter()
            .map(|piece| async move { Ok(self.read_piece(*piece, sequential, &mut || None).await?.into_spans()) });
        Ok(ReadPayload::Shared(together(reads, self.client.engine.store().pool()).await?))
    }

    async fn read_piece(
        &self,
        piece: Piece,
        sequential: bool,
        caller_buffer: &mut CallerBuffer<'_>,
    ) -> Result<ReadPayload, Failure> {
        let Piece { offset, length, .. } = piece;
        let key = BlockKey { file: self.id, index: piece.index };
        // A small file is being fetched whole since it was opened.
        let is_buffered = sequential || length >= BUFFERED_FROM || self.client.small.is_small(&self.version);
        let is_near = self.is_near(&key);
        if is_buffered && !is_near {
            let read = self.client.engine.read(&self.version, key, self.layout, offset, length).await?;
            self.client.stats.hit(ReadSource::Buffered, u64::from(read.from_memory));
            return Ok(ReadPayload::Shared(read.spans));
        }
        let landing = Landing::new(self.client.engine.store(), caller_buffer, &*self.client.router.connector);
        let reply = self.client.router.read_into(&self.version, key, offset, length, landing).await?;
        self.client.stats.delivered(reply.provenance);
        Ok(match reply.payload {
            Payload::Shared(spans) => ReadPayload::Shared(spans),
            Payload::Landed(span) => {
                if is_near {
                    // The worker has no more to show.
                    self.client.views.clear();
                }
                ReadPayload::Landed(span)
            }
            Payload::None => ReadPayload::Shared(Spans::new()),
        })
    }

    /// Whether a worker owns a block whose memory this process sees: nothing is gained by keeping it here too.
    pub(crate) fn is_near(&self, key: &BlockKey) -> bool {
        self.client.router.routes().is_near(PlacementKey::from(key), self.replicas)
    }

    /// Whether memory of this process has the bytes already.
    fn is_here(&self, piece: &Piece) -> bool {
        let key = BlockKey { file: self.id, index: piece.index };
        let routes = self.client.router.routes_seen();
        let local = routes.local.as_ref().and_then(|link| link.transport.memory());
        local.is_some_and(|memory| memory.holds(&key, piece.offset, piece.length))
            || self.client.views.has(&key, piece.offset, piece.length)
            || self.client.engine.store().is_in_memory(&key, piece.offset, piece.length)
    }

    /// Tells the streams of a read; starts what they want fetched ahead. Whether the read continues a stream.
    #[inline]
    fn observe(&self, offset: u64, length: u32) -> bool {
        if self.client.options.prefetch.max_part_number == 0 {
            return false;
        }
        let end = offset.saturating_add(u64::from(length)).min(self.version.size);
        if let Some(scattered) = self.scattered.as_ref().filter(|scattered| scattered.shows(offset, end)) {
            self.client.tasks.spawn_on(self.fetcher().whole(scattered.watch()), &self.client.runtime);
        }
        self.fast_path.try_record(offset, end).unwrap_or_else(|| self.tell(offset, length, end))
    }

    /// The same for a read that may change the streams.
    fn tell(&self, offset: u64, length: u32, end: u64) -> bool {
        let Some(mut followed) = self.followed.try_lock() else { return false };
        let Followed { streams, reservation } = &mut *followed;
        self.fast_path.write_back(streams, offset, end);
        streams.at(self.pace.now(), self.pace.shortest());
        streams.waited(self.waits.reached(&self.client.waiting));
        let room = || {
            showing::ahead_at_most(&self.client)
                .saturating_sub(self.client.prefetch_budget.reserved_by_others(reservation))
        };
        let ahead = streams.on_read(offset, length, room);
        self.client.prefetch_budget.renew(reservation, streams.ahead());
        self.fast_path.refresh(streams);
        drop(followed);
        if let Some(range) = ahead.fetch {
            let wanted = range.end;
            let reached = self.prefetch(range);
            if reached < wanted
                && let Some(mut followed) = self.followed.try_lock()
            {
                let Followed { streams, reservation } = &mut *followed;
                streams.shrink(wanted, reached);
                self.client.prefetch_budget.renew(reservation, streams.ahead());
                self.fast_path.refresh(streams);
            }
        }
        ahead.sequential
    }

    fn fetcher(&self) -> Fetcher {
        Fetcher {
            client: Arc::clone(&self.client),
            version: Arc::clone(&self.version),
            id: self.id,
            layout: self.layout,
            replicas: self.replicas,
            pace: Arc::clone(&self.pace),
        }
    }

    /// Fetches ahead, as far as there are permits to: a client with nothing to spare shrinks its windows. How far that
    /// is.
    fn prefetch(&self, range: Range<u64>) -> u64 {
        let (mut at, end) = (range.start, range.end);
        while at < end {
            let length = u32::try_from(end - at).unwrap_or(u32::MAX);
            for piece in self.layout.pieces(at, length) {
                if self.is_here(&piece) {
                    at += u64::from(piece.length);
                    continue;
                }
                let Ok(permit) = Arc::clone(&self.client.prefetches).try_acquire_owned() else { return at };
                at += u64::from(piece.length);
                let fetcher = self.fetcher();
                let task = async move {
                    // The reader will meet the same failure, and gets it as an error.
                    if let Err(failure) = fetcher.piece(piece, FetchTo::Here).await {
                        tracing::debug!(file = %fetcher.id, block = piece.index, %failure, "prefetch failed");
                    }
                    drop(permit);
                };
                self.client.tasks.spawn_on(task, &self.client.runtime);
            }
        }
        at
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.client.prefetch_budget.renew(&mut self.followed.get_mut().reservation, 0);
    }
}
