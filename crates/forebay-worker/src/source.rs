//! The peers and the origins as the source of a worker's read engine.

use std::sync::{Arc, OnceLock};

use forebay_engine::{BlockSource, Fetch, Fetched, Keeping};
use forebay_store::Store;
use forebay_types::{Failure, FileId, FileVersion};

use crate::peers::Asked;
use crate::scope::Scopes;
use crate::unaided::Unaided;

pub(crate) struct Origins {
    pub(crate) scopes: Arc<Scopes>,
    pub(crate) peers: Arc<OnceLock<Asked>>,
    pub(crate) unaided: Arc<Unaided>,
}

#[async_trait::async_trait]
impl BlockSource for Origins {
    async fn fetch(&self, fetch: &Fetch, buffers: &Store) -> Result<Fetched, Failure> {
        if let Some(peers) = self.peers.get() {
            let rules = self.scopes.of_file(fetch.key.file, &fetch.version);
            // What is not kept here is not kept elsewhere.
            if rules.keeping != Keeping::Not {
                let fetched = tokio::select! {
                    biased;
                    // A reader waits for one of them already, and will not wait longer.
                    () = self.unaided.wanted(&fetch.key) => None,
                    fetched = peers.cached(fetch, rules.replicas, buffers) => fetched,
                };
                if let Some(fetched) = fetched {
                    return Ok(fetched);
                }
            }
        }
        let scope = self.scopes.current();
        let Some(origin) = scope.namespace.origin(&fetch.version.origin) else {
            return Err(scope.namespace.no_mount_on(&fetch.version.origin));
        };
        tracing::debug!(block = %fetch.key, sectors = ?fetch.sectors, "asking the origin");
        let length = fetch.length();
        let mut filled = buffers.landing(length).await?;
        let range = fetch.layout.file_range(fetch.key.index, fetch.sectors);
        // Summed while they came, so nobody goes through them once more for that.
        let checksums = origin.read_checksummed(&fetch.version, range, &mut filled[..length as usize]).await?;
        Ok(Fetched { filled, checksums: Some(checksums), from_cache: 0 })
    }

    fn keeping(&self, file: FileId, version: &FileVersion) -> Keeping {
        self.scopes.of_file(file, version).keeping
    }
}
