//! What the suite is run on: an origin, and the means to change it behind its back.

use std::sync::Arc;

use crate::Origin;

/// An empty origin and the means to change it.
#[async_trait::async_trait]
pub trait Fixture: Send + Sync {
    /// The origin.
    fn origin(&self) -> Arc<dyn Origin>;
    /// Stores or replaces an object, making the directories above it where they are real.
    async fn put(&self, path: &str, bytes: &[u8]);
    /// Deletes an object.
    async fn delete(&self, path: &str);
    /// Makes an empty directory (or its marker); `false` when the origin has none.
    async fn make_directory(&self, path: &str) -> bool;
    /// Whether a file and a directory of one name can be there together.
    fn has_shadowing(&self) -> bool;
}
