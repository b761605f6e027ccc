//! The workers as the source of a client's own read engine.

use std::sync::Arc;

use forebay_engine::{BlockSource, Fetch, Fetched};
use forebay_memory::{SpanMut, Spans};
use forebay_store::Store;
use forebay_transport::Payload;
use forebay_types::{Failure, FailureKind};

use crate::router::Router;

/// Fetches blocks from the workers that own them.
pub(crate) struct Workers(pub(crate) Arc<Router>);

#[async_trait::async_trait]
impl BlockSource for Workers {
    async fn fetch(&self, fetch: &Fetch, buffers: &Store) -> Result<Fetched, Failure> {
        let reply = self.0.read(&fetch.version, fetch.key, fetch.offset(), fetch.length(), buffers).await?;
        self.0.stats.delivered(reply.provenance);
        let from_cache = reply.provenance.memory.saturating_add(reply.provenance.disk);
        let filled = match reply.payload {
            Payload::Landed(filled) => filled,
            Payload::Shared(spans) => copy_of(&spans, fetch.length(), buffers).await?,
            Payload::None => return Err(Failure::new(FailureKind::Internal, "a read was answered without bytes")),
        };
        Ok(Fetched { filled, from_cache })
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
