//! What drafts need of the world: where finished bytes go, and where those of the version before come from.

use std::sync::Arc;

use bytes::Bytes;
use forebay_memory::Spans;
use forebay_types::{Attr, Failure, FileVersion, FsPath};

/// The origins, as a client reaches them: through a worker. Implementations try again and fail over by themselves, within
/// deadlines of their own.
#[async_trait::async_trait]
pub trait Remote: Send + Sync + 'static {
    /// Makes `path` a file of these bytes, at most [`MAX_PART`](crate::MAX_PART) of them.
    async fn put(&self, path: &FsPath, bytes: Bytes) -> Result<Attr, Failure>;

    /// Begins an upload in parts, and names it.
    async fn begin(&self, path: &FsPath) -> Result<String, Failure>;

    /// Sends a part, counted from 1, and tells its tag. A part that is sent again replaces the one before. `NotFound`: there is no
    /// such upload any more.
    async fn part(&self, path: &FsPath, upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure>;

    /// Makes `path` a file of `size` bytes from the parts with these tags.
    async fn complete(&self, path: &FsPath, upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure>;

    /// Gives an upload up; no failure when there is none.
    async fn abort(&self, path: &FsPath, upload: &str) -> Result<(), Failure>;

    /// The bytes of a version that is at the origin. Does no I/O.
    fn open(&self, version: FileVersion) -> Arc<dyn Base>;
}

/// The version that a draft began as, or became.
#[async_trait::async_trait]
pub trait Base: Send + Sync + 'static {
    /// Which one.
    fn version(&self) -> &FileVersion;

    /// Bytes of it; cut off at its end, and never short otherwise. `VersionChanged` when the origin has another one by now.
    async fn read(&self, offset: u64, length: u32) -> Result<Spans, Failure>;
}
