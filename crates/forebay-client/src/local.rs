//! The client as the source of materialised files: whole blocks with the sums of their sectors.
//!
//! What a worker owns whose memory this process sees comes as it lies there. Everything else goes through the client's own
//! engine, so that a fill and the readers of a file share what is fetched: whichever asks first, the other joins. Fills have a
//! few places of their own, so that they take none from fetches ahead of readers.

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::PlacementKey;
use forebay_materialise::{Blocks, Source, Summed};
use forebay_memory::Spans;
use forebay_transport::{Flags, Payload, Reply};
use forebay_types::{BlockKey, BlockLayout, Failure, FailureKind, FileId, FileVersion, SectorSums};
use tokio::time::Instant;

use crate::client::Client;
use crate::shared::Shared;

/// How long a fill that found no buffers leaves them to others.
const PAUSE: Duration = Duration::from_millis(20);

impl Source for Client {
    fn open(&self, version: &FileVersion) -> Arc<dyn Blocks> {
        Arc::new(Version {
            id: version.id(),
            layout: self.layout(version.size),
            version: Arc::new(version.clone()),
            client: Arc::clone(&self.shared),
        })
    }
}

/// One version, while it is being materialised.
struct Version {
    client: Arc<Shared>,
    version: Arc<FileVersion>,
    id: FileId,
    layout: BlockLayout,
}

#[async_trait::async_trait]
impl Blocks for Version {
    fn layout(&self) -> BlockLayout {
        self.layout
    }

    async fn read(&self, index: u64, scrub: bool) -> Result<Summed, Failure> {
        let deadline = Instant::now() + self.client.options.request_timeout;
        loop {
            let Ok(place) = self.client.fills.acquire().await else {
                return Err(Failure::new(FailureKind::Unavailable, "the client is closed"));
            };
            let read = self.read_block(index, scrub).await;
            // Others may have its place while it pauses.
            drop(place);
            match read {
                // Readers have the memory. They come first.
                Err(failure) if failure.kind() == FailureKind::OutOfResources && Instant::now() < deadline => {
                    tokio::time::sleep(PAUSE).await;
                }
                settled => return settled,
            }
        }
    }
}

impl Version {
    async fn read_block(&self, index: u64, scrub: bool) -> Result<Summed, Failure> {
        let key = BlockKey { file: self.id, index };
        let length = self.layout.block_len(index);
        let (client, buffers) = (&self.client, self.client.engine.store());
        let is_near = client.router.routes().is_near(PlacementKey::from(&key), 1);
        if scrub || is_near {
            let flags = if scrub { Flags::SUMS.and(Flags::SCRUB) } else { Flags::SUMS };
            let reply = client.router.read(&self.version, key, 0, length, flags, buffers).await?;
            client.stats.delivered(reply.provenance);
            return summed(reply);
        }
        let read = client.engine.read(&self.version, key, self.layout, 0, length).await?;
        // As they came from the origin, if they are still there; the bytes were checked against them a moment ago.
        let sums = buffers.sums(&key, 0, length).unwrap_or_else(|| sums_of(&read.spans));
        Ok(Summed { spans: read.spans, sums })
    }
}

/// What a reply brought. Bytes without sums the worker vouches for.
fn summed(reply: Reply) -> Result<Summed, Failure> {
    let spans = match reply.payload {
        Payload::Shared(spans) => spans,
        Payload::Landed(span) => Spans::from_iter([span.freeze()]),
        Payload::None => return Err(Failure::new(FailureKind::Internal, "a read was answered without bytes")),
    };
    let sums = SectorSums::from_bytes(reply.body).filter(|sums| !sums.is_empty());
    let sums = sums.unwrap_or_else(|| sums_of(&spans));
    Ok(Summed { spans, sums })
}

/// The sums of spans, all but the last of which end where a sector does.
fn sums_of(spans: &Spans) -> SectorSums {
    let sums: Vec<u8> = spans.iter().flat_map(|span| SectorSums::of(span).as_bytes().to_vec()).collect();
    // One whole sum for each sector.
    SectorSums::from_bytes(sums.into()).unwrap_or_else(|| SectorSums::of(&[]))
}
