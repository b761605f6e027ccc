//! The descriptions of file versions that this worker was told, so that a client need not attach them to each request.
//!
//! A table of bounded size. If a description was dropped from it, the next client is asked for it again.

use std::sync::Arc;

use forebay_types::{Failure, FailureKind, FileId, FileVersion, VersionTag};
use moka::sync::Cache;

use crate::weight::names;

/// A description takes a few hundred bytes, 100 MB in all; a longer one counts as several.
const CAPACITY: u64 = 262_144;

pub(crate) struct Versions(Cache<FileId, Arc<FileVersion>>);

impl Versions {
    pub(crate) fn new() -> Self {
        let weigh = |_: &FileId, version: &Arc<FileVersion>| {
            let tag = match &version.tag {
                VersionTag::Etag(etag) => etag.len(),
                VersionTag::Modified { .. } => 0,
            };
            names(1, version.origin.len() + version.path.len() + tag)
        };
        Self(Cache::builder().max_capacity(CAPACITY).weigher(weigh).build())
    }

    pub(crate) fn get(&self, id: FileId) -> Option<Arc<FileVersion>> {
        self.0.get(&id)
    }

    /// Takes a description that claims to be that of `id`.
    pub(crate) fn learn(&self, id: FileId, description: &[u8]) -> Result<Arc<FileVersion>, Failure> {
        let refused = |why: String| Failure::new(FailureKind::InvalidArgument, why);
        let version = FileVersion::decode(description).map_err(|error| refused(error.to_string()))?;
        if version.id() != id {
            return Err(refused(format!("a description was sent for {id} that is not its own")));
        }
        let version = Arc::new(version);
        self.0.insert(id, Arc::clone(&version));
        Ok(version)
    }

    /// Takes a description that this worker made itself.
    pub(crate) fn remember(&self, id: FileId, version: FileVersion) -> Arc<FileVersion> {
        let version = Arc::new(version);
        self.0.insert(id, Arc::clone(&version));
        version
    }

    /// All of them, as they are now.
    pub(crate) fn all(&self) -> Vec<(FileId, Arc<FileVersion>)> {
        self.0.iter().map(|(id, version)| (*id, version)).collect()
    }

    pub(crate) fn forget(&self, id: FileId) {
        self.0.invalidate(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_must_hash_to_the_id_that_it_claims() {
        let version = |size| FileVersion {
            origin: "s3://b".into(),
            path: b"k".as_slice().into(),
            size,
            tag: VersionTag::Etag("\"1\"".into()),
        };
        let versions = Versions::new();
        let poison = versions.learn(version(1).id(), &version(2).encode()).unwrap_err();
        assert_eq!(poison.kind(), FailureKind::InvalidArgument);
        assert!(versions.get(version(1).id()).is_none());
        assert_eq!(*versions.learn(version(1).id(), &version(1).encode()).unwrap(), version(1));
    }
}
