//! Uploading a tree through the S3 protocol, for servers whose bytes are not ours to write.

use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutPayload};

use crate::Tree;

/// Puts every file of `tree` into the bucket `bucket` of the server at `endpoint`.
///
/// # Panics
/// When the server refuses.
pub fn upload(tree: &Tree, endpoint: &str, bucket: &str, access_key: &str, secret_key: &str) {
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(bucket)
        .with_access_key_id(access_key)
        .with_secret_access_key(secret_key)
        .build()
        .expect("a client of the S3 server");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for file in &tree.files {
            let path = Path::parse(&file.path).unwrap_or_else(|error| panic!("{}: {error}", file.path));
            let bytes = file.data.expected(0..file.size);
            let put = store.put(&path, PutPayload::from(bytes)).await;
            put.unwrap_or_else(|error| panic!("putting {}: {error}", file.path));
        }
    });
}
