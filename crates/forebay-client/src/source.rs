//! The workers as the source of a client's own read engine.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_engine::{BlockSource, Fetch, Fetched};
use forebay_memory::{SpanMut, Spans};
use forebay_store::Store;
use forebay_transport::{Flags, Payload, Reply};
use forebay_types::{Failure, FailureKind, SectorChecksums, SectorRange};

use crate::router::Router;

/// Fetches blocks from the workers that own them.
///
/// Workers do not check what they send here: they send their checksums along, and the bytes are checked where they arrived,
/// once, against what the worker computed when it got them from the origin. What is wrong is asked for again, and the worker
/// checks its own copy first, whatever its settings.
pub(crate) struct Workers(pub(crate) Arc<Router>);

#[async_trait::async_trait]
impl BlockSource for Workers {
    async fn fetch(&self, fetch: &Fetch, buffers: &Store) -> Result<Fetched, Failure> {
        let first = self.ask(fetch, Flags::CHECKSUMS, buffers).await?;
        let wrong = match checked(fetch.sectors, fetch.length(), first) {
            Ok(fetched) => return Ok(fetched),
            Err(sector) => sector,
        };
        self.0.stats.corrupt_sectors.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(block = %fetch.key, sector = wrong, "a sector arrived corrupt, its worker is asked to check it");
        let second = self.ask(fetch, Flags::CHECKSUMS.and(Flags::SCRUB), buffers).await?;
        checked(fetch.sectors, fetch.length(), second).map_err(|sector| {
            let message = format!("sector {sector} of block {} arrived corrupt twice", fetch.key);
            Failure::new(FailureKind::Corrupt, message)
        })
    }
}

impl Workers {
    /// The bytes of `fetch`, and the checksums to check them against, if they came along.
    async fn ask(&self, fetch: &Fetch, flags: Flags, buffers: &Store) -> Result<Answered, Failure> {
        let (offset, length) = (fetch.offset(), fetch.length());
        let reply = self.0.read(&fetch.version, fetch.key, offset, length, flags, buffers).await?;
        self.0.stats.delivered(reply.provenance);
        fetched_of(reply, length, buffers).await
    }
}

/// Bytes that a worker sent, and their checksums, if it sent them along.
pub(crate) type Answered = (Fetched, Option<SectorChecksums>);

/// What a reply brought.
///
/// # Errors
/// When it brought nothing, or there is no memory for it.
pub(crate) async fn fetched_of(reply: Reply, length: u32, buffers: &Store) -> Result<Answered, Failure> {
    let from_cache = reply.provenance.memory.saturating_add(reply.provenance.disk);
    let filled = match reply.payload {
        Payload::Landed(filled) => filled,
        Payload::Shared(spans) => copy_of(&spans, length, buffers).await?,
        Payload::None => return Err(Failure::new(FailureKind::Internal, "a read was answered without bytes")),
    };
    let checksums = SectorChecksums::from_bytes(reply.body).filter(|checksums| !checksums.is_empty());
    Ok((Fetched { filled, checksums: None, from_cache }, checksums))
}

/// What was fetched of `sectors`, if it is what the checksums say; the sector that is not. Bytes without checksums the worker vouches
/// for.
fn checked(sectors: SectorRange, length: u32, (fetched, checksums): Answered) -> Result<Fetched, u32> {
    match checksums {
        Some(checksums) => fetched.checked(sectors, length, checksums),
        None => Ok(fetched),
    }
}

/// A worker in this process answered in the place of one that is not: its memory is not ours to keep.
async fn copy_of(spans: &Spans, length: u32, buffers: &Store) -> Result<SpanMut, Failure> {
    let mut copy = buffers.landing(length).await?;
    let mut at = 0;
    for span in spans {
        copy[at..at + span.len()].copy_from_slice(span);
        at += span.len();
    }
    Ok(copy)
}
