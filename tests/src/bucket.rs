//! A bucket in a real S3 server, reached through a proxy that counts and fails on command.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use forebay_testkit::{DataSet, FaultProxy, S3Server};
use tempfile::TempDir;

/// The name of the bucket.
pub const BUCKET: &str = "data";

/// An S3 server with one bucket, and the proxy in front of it. Both end when it is dropped.
pub struct Bucket {
    proxy: FaultProxy,
    server: S3Server,
    directory: TempDir,
    drafts: AtomicU64,
}

impl Default for Bucket {
    fn default() -> Self {
        Self::new()
    }
}

impl Bucket {
    /// An empty bucket.
    ///
    /// # Panics
    /// When the server cannot be started.
    #[must_use]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory for the S3 server");
        let server = S3Server::start(directory.path()).expect("the S3 server");
        server.create_bucket(BUCKET).expect("the bucket");
        let proxy = FaultProxy::start(server.address()).expect("the proxy");
        Self { proxy, server, directory, drafts: AtomicU64::new(0) }
    }

    /// Puts an object, at once: a reader sees the old one or the new one.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn put(&self, key: &str, data: DataSet, size: u64) {
        let draft = self.directory.path().join(format!(".draft-{}", self.drafts.fetch_add(1, Ordering::Relaxed)));
        data.write_file(&draft, size).expect("writing an object");
        let path = self.path_of(key);
        std::fs::create_dir_all(path.parent().expect("a key is below the bucket")).expect("the object's directory");
        std::fs::rename(draft, path).expect("placing an object");
    }

    /// Puts an object with this text.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn put_text(&self, key: &str, text: &str) {
        let path = self.path_of(key);
        std::fs::create_dir_all(path.parent().expect("a key is below the bucket")).expect("the object's directory");
        std::fs::write(path, text).expect("writing an object");
    }

    /// Makes an object look as if it had been written an hour ago.
    ///
    /// # Panics
    /// When it is not there.
    pub fn age(&self, key: &str) {
        let object = std::fs::File::options().write(true).open(self.path_of(key)).expect("the object");
        object.set_modified(SystemTime::now() - Duration::from_secs(3600)).expect("setting its time");
    }

    /// Removes an object.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&self, key: &str) {
        std::fs::remove_file(self.path_of(key)).expect("removing an object");
    }

    /// The proxy, to count requests and to make them fail.
    #[must_use]
    pub fn proxy(&self) -> &FaultProxy {
        &self.proxy
    }

    /// The server behind the proxy.
    #[must_use]
    pub fn server(&self) -> &S3Server {
        &self.server
    }

    /// GETs of objects so far.
    #[must_use]
    pub fn gets(&self) -> u64 {
        self.proxy.counts().object_gets
    }

    /// Requests of any kind so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.proxy.counts().requests.values().sum()
    }

    /// `s3://data`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}")
    }

    /// The environment of a process that uses this bucket through the proxy.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let mut environment = self.server.environment();
        for (name, value) in &mut environment {
            if *name == "AWS_ENDPOINT_URL" {
                *value = self.proxy.url();
            }
        }
        environment
    }

    /// The bytes of an object, as the server has them now.
    ///
    /// # Panics
    /// When it is not there.
    #[must_use]
    #[track_caller]
    pub fn object(&self, key: &str) -> Vec<u8> {
        std::fs::read(self.path_of(key)).unwrap_or_else(|error| panic!("the object {key}: {error}"))
    }

    /// Where the server keeps an object, or everything below a prefix, as a file or directory.
    #[must_use]
    pub fn path_of(&self, key: &str) -> PathBuf {
        self.directory.path().join(BUCKET).join(key)
    }
}
