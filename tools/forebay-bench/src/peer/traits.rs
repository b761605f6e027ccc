//! What a file system must let do with it to be compared.

use super::mounted::Mounted;
use super::place::{Place, remove_if_there};

/// A file system that caches a bucket.
pub(crate) trait Peer {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Its version; nothing where it is not installed.
    fn version(&self) -> Option<String>;

    /// What it is started with, beside where the bucket and the cache are.
    fn settings(&self) -> &'static str;

    /// What must be done once, before it is first started: most read the objects of a bucket as they are.
    ///
    /// # Errors
    /// When that fails.
    fn prepare(&self, _place: &Place<'_>, _keys: &[String]) -> anyhow::Result<()> {
        Ok(())
    }

    /// Mounts the bucket with an empty cache.
    ///
    /// # Errors
    /// When it does not.
    fn start(&self, place: &Place<'_>) -> anyhow::Result<Mounted>;

    /// Takes away what it has left, when it is not mounted any more.
    ///
    /// # Errors
    /// When something cannot be removed.
    fn clean(&self, place: &Place<'_>) -> anyhow::Result<()> {
        remove_if_there(&place.cache())
    }
}
