//! What filling a file needs of the world: whole blocks, with the checksums that were computed nearer to the origin.

use std::sync::Arc;

use forebay_memory::Spans;
use forebay_types::{BlockLayout, Failure, FileVersion, SectorChecksums};

/// Where files come from: the workers, as a client reaches them.
pub trait Source: Send + Sync + 'static {
    /// The blocks of a version. Does no I/O; what it returns lives as long as the file is being filled, so it is the place for
    /// what all blocks of a file need, such as a handle.
    fn open(&self, version: &FileVersion) -> Arc<dyn Blocks>;
}

/// The blocks of one version.
#[async_trait::async_trait]
pub trait Blocks: Send + Sync + 'static {
    /// How the file is cut into them.
    fn layout(&self) -> BlockLayout;

    /// Block `index`, whole. Implementations try again and fail over by themselves, within deadlines of their own, take buffers
    /// only as long as readers do not want them, and stop when the future is dropped. `scrub`: what was delivered before was
    /// wrong; a worker that has the bytes checks its copy first.
    ///
    /// `VersionChanged` when the origin has another version by now and the bytes are nowhere any more.
    async fn read(&self, index: u64, scrub: bool) -> Result<Checksummed, Failure>;
}

/// Bytes and their checksums.
#[derive(Clone, Debug)]
pub struct Checksummed {
    /// The bytes, in order. All but the last of the spans end at the end of a sector.
    pub spans: Spans,
    /// One checksum for each sector, as it was computed when the bytes came from the origin, not of these bytes. They need not have
    /// been compared with these bytes: that is done with what was written.
    pub checksums: SectorChecksums,
}
