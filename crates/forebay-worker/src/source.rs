//! The origins as the source of a worker's read engine.

use forebay_engine::{BlockSource, Fetch, Fetched};
use forebay_store::Store;
use forebay_types::{Failure, FailureKind};

use crate::namespace::Namespace;

pub(crate) struct Origins(pub(crate) Namespace);

#[async_trait::async_trait]
impl BlockSource for Origins {
    async fn fetch(&self, fetch: &Fetch, buffers: &Store) -> Result<Fetched, Failure> {
        let Some(origin) = self.0.origin(&fetch.version.origin) else {
            let message = format!("no mount of this worker is on {}", fetch.version.origin);
            return Err(Failure::new(FailureKind::InvalidArgument, message));
        };
        let length = fetch.length();
        let mut filled = buffers.landing(length).await?;
        let range = fetch.layout.file_range(fetch.key.index, fetch.sectors);
        origin.read(&fetch.version, range, &mut filled[..length as usize]).await?;
        Ok(Fetched { filled, sums: None, from_cache: 0 })
    }
}
