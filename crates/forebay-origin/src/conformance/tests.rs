//! The suite, run by every implementation of this crate.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_testkit::{S3Server, VersityGw};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use super::{Fixture, check, uploads_come_in_pages};
use crate::object::test_support::{FlatS3, s3_origin, s3_store};
use crate::{FakeOrigin, FileOrigin, Origin, OriginOptions};

struct Fake(FakeOrigin);

#[async_trait::async_trait]
impl Fixture for Fake {
    fn origin(&self) -> Arc<dyn Origin> {
        Arc::new(self.0.clone())
    }
    async fn put(&self, path: &str, bytes: &[u8]) {
        self.0.put(path, bytes.to_vec());
    }
    async fn delete(&self, path: &str) {
        self.0.delete(path);
    }
    async fn make_directory(&self, path: &str) -> bool {
        self.0.make_directory(path);
        true
    }
    fn has_shadowing(&self) -> bool {
        true
    }
}

struct Files {
    origin: Arc<FileOrigin>,
    root: PathBuf,
}

#[async_trait::async_trait]
impl Fixture for Files {
    fn origin(&self) -> Arc<dyn Origin> {
        self.origin.clone()
    }
    async fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    async fn delete(&self, path: &str) {
        std::fs::remove_file(self.root.join(path)).unwrap();
    }
    async fn make_directory(&self, path: &str) -> bool {
        std::fs::create_dir_all(self.root.join(path)).unwrap();
        true
    }
    fn has_shadowing(&self) -> bool {
        false
    }
}

/// An S3 origin below a prefix, changed by a client of its own.
struct S3 {
    origin: Arc<dyn Origin>,
    store: Arc<dyn ObjectStore>,
}

#[async_trait::async_trait]
impl Fixture for S3 {
    fn origin(&self) -> Arc<dyn Origin> {
        self.origin.clone()
    }
    async fn put(&self, path: &str, bytes: &[u8]) {
        let key = Path::parse(format!("some prefix/{path}")).unwrap();
        self.store.put(&key, PutPayload::from(bytes.to_vec())).await.unwrap();
    }
    async fn delete(&self, path: &str) {
        self.store.delete(&Path::parse(format!("some prefix/{path}")).unwrap()).await.unwrap();
    }
    async fn make_directory(&self, _: &str) -> bool {
        false
    }
    fn has_shadowing(&self) -> bool {
        false
    }
}

struct Flat {
    origin: Arc<dyn Origin>,
    server: FlatS3,
}

#[async_trait::async_trait]
impl Fixture for Flat {
    fn origin(&self) -> Arc<dyn Origin> {
        self.origin.clone()
    }
    async fn put(&self, path: &str, bytes: &[u8]) {
        self.server.put(path, bytes);
    }
    async fn delete(&self, path: &str) {
        self.server.delete(path);
    }
    async fn make_directory(&self, path: &str) -> bool {
        self.server.put(&format!("{path}/"), b"");
        true
    }
    fn has_shadowing(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn the_fake_origin_conforms() {
    let origin = FakeOrigin::new("fake://test");
    check(&Fake(origin.clone())).await;
    uploads_come_in_pages(&origin).await;
}

#[tokio::test]
async fn the_file_origin_conforms() {
    let root = tempfile::tempdir().unwrap();
    let origin = FileOrigin::new("file:///test", root.path(), &OriginOptions::default()).unwrap();
    let fixture = Files { origin: Arc::new(origin), root: root.path().to_owned() };
    check(&fixture).await;
    uploads_come_in_pages(&*fixture.origin).await;
}

#[tokio::test]
async fn the_s3_origin_conforms_on_the_testkits_server() {
    let directory = tempfile::tempdir().unwrap();
    let server = S3Server::start(directory.path()).unwrap();
    let keys = (server.access_key(), server.secret_key());
    for (in_place, bucket) in [(true, "bucket"), (false, "another")] {
        server.create_bucket(bucket).unwrap();
        let url = format!("s3://{bucket}/some%20prefix");
        let origin = Arc::new(s3_origin(&server.url(), &url, keys, |options| options.in_place = in_place));
        check(&S3 { origin: origin.clone(), store: s3_store(&server.url(), bucket, keys) }).await;
        uploads_come_in_pages(&*origin).await;
    }
}

#[tokio::test]
async fn the_s3_origin_conforms_on_versitygw() {
    let Some(server) = VersityGw::start() else { return };
    server.create_bucket("bucket").unwrap();
    let keys = (server.access_key(), server.secret_key());
    let origin = Arc::new(s3_origin(&server.url(), "s3://bucket/some%20prefix", keys, |_| {}));
    check(&S3 { origin, store: s3_store(&server.url(), "bucket", keys) }).await;
}

#[tokio::test]
async fn the_s3_origin_conforms_on_a_flat_store_with_shadowing_and_markers() {
    for server in [FlatS3::start(), FlatS3::start_hiding_markers()] {
        let origin = Arc::new(s3_origin(&server.url(), "s3://bucket", ("a", "s"), |_| {}));
        let flat = Flat { origin: origin.clone(), server };
        check(&flat).await;
        uploads_come_in_pages(&*origin).await;
    }
}
