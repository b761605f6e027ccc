//! The interface to the cache: what a job needs of the workers.

use std::sync::Arc;

use bytes::Bytes;
use forebay_transport::message::{FreeReply, ListReply};
use forebay_types::{Attr, BlockKey, Failure, FileId, FileVersion, FsPath};

/// What came of loading a block, in bytes; of all replicas together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Brought into a cache now.
    pub fetched: u64,
    /// There already.
    pub held: u64,
}

/// How many bytes of a block are cached: of several replicas, by the one that holds least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBytes(pub u64);

/// Access to the cache of a cluster.
///
/// # Contract
///
/// * Every call ends within a deadline of the implementation's own, and is safe to repeat.
/// * A failure that is transient ([`forebay_types::FailureKind::is_transient`]) is tried again by the caller; the
///   implementation fails over between replicas, and does not retry beyond that.
/// * Dropping a future gives up the waiting; what was asked for may still happen.
#[async_trait::async_trait]
pub trait CacheAccess: Send + Sync + 'static {
    /// What `path` is. `fresh`: as the origin has it now, whatever a metadata cache says.
    ///
    /// # Errors
    /// `NotFound`, and what workers and origins fail with.
    async fn stat(&self, path: &FsPath, fresh: bool) -> Result<Attr, Failure>;

    /// A page of a directory, of at most `max` names, from `token` on.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, and what workers and origins fail with.
    async fn list(&self, path: &FsPath, token: Option<&str>, max: u32) -> Result<ListReply, Failure>;

    /// Brings all bytes of a block to the first `replicas` workers that own it.
    ///
    /// # Errors
    /// `VersionChanged` when the origin has another version, and what workers and origins fail with.
    async fn load_block(&self, version: &FileVersion, block: BlockKey, replicas: u8) -> Result<Loaded, Failure>;

    /// How much of a block the first `replicas` workers that own it hold. `check`: after every sector's sum was checked
    /// and what was wrong was dropped.
    ///
    /// # Errors
    /// What workers fail with.
    async fn coverage(
        &self,
        version: &FileVersion,
        block: BlockKey,
        replicas: u8,
        check: bool,
    ) -> Result<HeldBytes, Failure>;

    /// Drops all blocks of these files from all workers; each file comes with its number of blocks.
    ///
    /// # Errors
    /// What workers fail with; then some may have dropped them.
    async fn free(&self, files: &[(FileId, u64)]) -> Result<FreeReply, Failure>;

    /// Drops what is cached at `path` or below it of all files that workers know of, also of those that are gone.
    ///
    /// # Errors
    /// As [`CacheAccess::free`].
    async fn free_below(&self, path: &FsPath) -> Result<FreeReply, Failure>;

    /// Bytes of a file, for index files; fewer than asked for only at its end.
    ///
    /// # Errors
    /// What a read fails with.
    async fn read(&self, version: &FileVersion, offset: u64, length: u32) -> Result<Bytes, Failure>;

    /// A number that changes whenever blocks come to have other owners. What was loaded before that may be on workers that
    /// [`CacheAccess::coverage`] does not ask any more.
    fn placement(&self) -> u64;

    /// The counters of each worker, by name: what `Op::Stats` answers.
    async fn worker_stats(&self) -> Vec<(Arc<str>, Result<serde_json::Value, Failure>)>;
}
