//! Plain GETs from the S3 server, many at once, their bytes thrown away: the most that anything can do that reads from it.

use forebay_testkit::S3Process;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};

use crate::fixture::{BUCKET, Fixture, LARGE};
use crate::reading::READERS;

/// Bytes in a GET of a part: a block, the most that Forebay fetches at once by default.
const PART: u64 = 4 << 20;
/// GETs of parts at once: the blocks that Forebay fetches ahead of one stream by default (`client.prefetch.max_part_number`).
pub(crate) const PARTS_AT_ONCE: usize = 8;

/// A server, and a plain client of it.
pub(crate) struct Source {
    /// The server's.
    pub(crate) url: String,
    store: AmazonS3,
}

impl Source {
    /// A client of `server`, which has the fixture's keys.
    ///
    /// # Errors
    /// When there is no such client.
    pub(crate) fn new(fixture: &Fixture, server: &S3Process) -> anyhow::Result<Self> {
        let store = AmazonS3Builder::new()
            .with_endpoint(server.url())
            .with_bucket_name(BUCKET)
            .with_region("us-east-1")
            // All servers have the keys of the first one.
            .with_access_key_id(fixture.server.access_key())
            .with_secret_access_key(fixture.server.secret_key())
            .with_allow_http(true)
            .build()?;
        Ok(Self { url: server.url().to_owned(), store })
    }

    /// Gets the `size` bytes of the large file in parts, [`PARTS_AT_ONCE`] at once; how many bytes came.
    ///
    /// # Errors
    /// When a GET fails.
    pub(crate) async fn get_parts(&self, size: u64) -> anyhow::Result<u64> {
        let path = Path::from(LARGE);
        let parts = (0..size).step_by(PART as usize).map(|start| {
            let (path, range) = (&path, start..(start + PART).min(size));
            async move { anyhow::Ok(drain(self.store.get_opts(path, ranged(range)).await?).await?) }
        });
        let parts = futures::stream::iter(parts).buffer_unordered(PARTS_AT_ONCE);
        parts.try_fold(0, async |sum, bytes| Ok(sum + bytes)).await
    }

    /// Gets each of these files whole, [`READERS`] at once; how many bytes came.
    ///
    /// # Errors
    /// When a GET fails.
    pub(crate) async fn get_files(&self, keys: &[String]) -> anyhow::Result<u64> {
        let gets = keys
            .iter()
            .map(|key| async move { anyhow::Ok(drain(self.store.get(&Path::from(key.as_str())).await?).await?) });
        let gets = futures::stream::iter(gets).buffer_unordered(READERS);
        gets.try_fold(0, async |sum, bytes| Ok(sum + bytes)).await
    }
}

fn ranged(range: std::ops::Range<u64>) -> object_store::GetOptions {
    object_store::GetOptions { range: Some(range.into()), ..Default::default() }
}

/// Takes a body and throws it away.
async fn drain(got: object_store::GetResult) -> object_store::Result<u64> {
    got.into_stream().try_fold(0, async |sum, bytes| Ok(sum + bytes.len() as u64)).await
}
