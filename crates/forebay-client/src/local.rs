//! The client as the source of materialised files: whole blocks with the checksums of their sectors.
//!
//! What a worker owns whose memory this process sees comes as it lies there. Everything else goes through the client's own
//! engine, so that a fill and the readers of a file share what is fetched: whichever asks first, the other joins. Fills have a
//! few places of their own, so that they take none from fetches ahead of readers.

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::PlacementKey;
use forebay_materialise::{Blocks, Checksummed, Kept, Source};
use forebay_memory::Spans;
use forebay_transport::{Flags, Payload, Reply};
use forebay_types::{BlockKey, BlockLayout, Failure, FailureKind, FileId, FileVersion, SectorChecksums};
use tokio::time::Instant;

use crate::client::Client;
use crate::shared::ClientShared;

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

impl Client {
    /// A mount of this client has the files of `kept` read by the kernel: they are not fetched before they are opened. Of several mounts
    /// of one client, those of the last one are known.
    pub fn passes_over(&self, kept: Kept) {
        *self.shared.kept.write() = Some(kept);
    }
}

/// One version, while it is being materialised.
struct Version {
    client: Arc<ClientShared>,
    version: Arc<FileVersion>,
    id: FileId,
    layout: BlockLayout,
}

#[async_trait::async_trait]
impl Blocks for Version {
    fn layout(&self) -> BlockLayout {
        self.layout
    }

    async fn read(&self, index: u64, scrub: bool) -> Result<Checksummed, Failure> {
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
    async fn read_block(&self, index: u64, scrub: bool) -> Result<Checksummed, Failure> {
        let key = BlockKey { file: self.id, index };
        let length = self.layout.block_len(index);
        let (client, buffers) = (&self.client, self.client.engine.store());
        let is_near = client.router.routes().is_near(PlacementKey::from(&key), 1);
        if scrub || is_near {
            let flags = if scrub { Flags::CHECKSUMS.and(Flags::SCRUB) } else { Flags::CHECKSUMS };
            let reply = client.router.read(&self.version, key, 0, length, flags, buffers).await?;
            client.stats.delivered(reply.provenance);
            return checksummed(reply);
        }
        let read = client.engine.read(&self.version, key, self.layout, 0, length).await?;
        // As they came from the origin, if they are still there; the bytes were checked against them a moment ago.
        let checksums = buffers.checksums(&key, 0, length).unwrap_or_else(|| checksums_of(&read.spans));
        Ok(Checksummed { spans: read.spans, checksums })
    }
}

/// What a reply brought. Bytes without checksums the worker vouches for.
fn checksummed(reply: Reply) -> Result<Checksummed, Failure> {
    let spans = match reply.payload {
        Payload::Shared(spans) => spans,
        Payload::Landed(span) => Spans::from_iter([span.freeze()]),
        Payload::None => return Err(Failure::new(FailureKind::Internal, "a read was answered without bytes")),
    };
    let checksums = SectorChecksums::from_bytes(reply.body).filter(|checksums| !checksums.is_empty());
    let checksums = checksums.unwrap_or_else(|| checksums_of(&spans));
    Ok(Checksummed { spans, checksums })
}

/// The checksums of spans, all but the last of which end where a sector does.
fn checksums_of(spans: &Spans) -> SectorChecksums {
    let checksums: Vec<u8> = spans.iter().flat_map(|span| SectorChecksums::of(span).as_bytes().to_vec()).collect();
    // One whole checksum for each sector.
    SectorChecksums::from_bytes(checksums.into()).unwrap_or_else(|| SectorChecksums::of(&[]))
}
