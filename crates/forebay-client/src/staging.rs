//! The client as what files that are being written need of the world.

use std::sync::Arc;

use bytes::Bytes;
use forebay_memory::Spans;
use forebay_staging::{Base, Remote};
use forebay_types::{Attr, Failure, FileVersion, FsPath};

use crate::client::Client;
use crate::open_file::OpenFile;

#[async_trait::async_trait]
impl Remote for Client {
    async fn put(&self, path: &FsPath, bytes: Bytes) -> Result<Attr, Failure> {
        Client::put(self, path, bytes).await
    }

    async fn begin(&self, path: &FsPath) -> Result<String, Failure> {
        self.begin_upload(path).await
    }

    async fn part(&self, path: &FsPath, upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        self.upload_part(path, upload, number, bytes).await
    }

    async fn complete(&self, path: &FsPath, upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        self.complete_upload(path, upload, size, parts).await
    }

    async fn abort(&self, path: &FsPath, upload: &str) -> Result<(), Failure> {
        self.abort_upload(path, upload).await
    }

    fn open(&self, version: FileVersion) -> Arc<dyn Base> {
        Arc::new(Pinned(Client::open(self, version)))
    }
}

/// A handle, as the version that a file that is being written began as.
struct Pinned(Arc<OpenFile>);

#[async_trait::async_trait]
impl Base for Pinned {
    fn version(&self) -> &FileVersion {
        self.0.version()
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Spans, Failure> {
        self.0.read(offset, length).await
    }
}
