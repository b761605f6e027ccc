//! A real S3 server on a directory: `s3s` for the protocol and the signatures, `s3s-fs` for buckets, and methods of our own
//! where `s3s-fs` 0.14 is not what a cache must be tested against. It
//!
//! * ignores `If-Match` on GET, gives listings without entity tags, and keeps entity tags in files beside the objects,
//!   written after them, so a reader can get the old tag with the new bytes;
//! * reads the whole object for the tag when that file is missing, and streams in pieces of 4 KiB;
//! * walks the whole bucket for each page of a listing, and shows directories as objects to HEAD;
//! * cannot store keys longer than about 150 bytes, since their base64 form has to be a file name;
//! * completes an upload by reading and writing every byte, computes MD5 on the way, and takes parts of any size;
//! * forgets a directory's marker with the last object below it.
//!
//! Ours (`s3/backend.rs`): the tag is made of the inode, the modification time and the size of the very file that is
//! open, so it always belongs to the bytes, and ends with the number of parts, as S3's does; replacing is a rename
//! (`s3/draft.rs`); uploads are joined in the kernel (`s3/uploads.rs`); listings page through a directory in order; what a
//! file has no place for is kept in extended attributes (`s3/kept.rs`).
//!
//! Bytes of a bucket are plain files below `DIRECTORY/BUCKET/`, so a test may put them there itself.

mod backend;
mod directory;
mod draft;
mod entity_tag;
mod kept;
mod uploads;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};

use crate::loopback::{Body, Connection, Handler, LoopbackServer};
use backend::Backend;
use uploads::Uploads;

/// How to start an [`S3Server`].
#[derive(Clone, Debug)]
pub struct S3ServerOptions {
    /// The port on loopback; 0 takes a free one.
    pub port: u16,
    /// The access key that requests must be signed with.
    pub access_key: String,
    /// Its secret key.
    pub secret_key: String,
    /// How long each request waits before it is answered, as one to a distant store does.
    pub latency: Duration,
}

impl Default for S3ServerOptions {
    fn default() -> Self {
        Self {
            port: 0,
            access_key: "forebay-test".into(),
            secret_key: "forebay-test-secret".into(),
            latency: Duration::ZERO,
        }
    }
}

impl S3ServerOptions {
    /// The environment that makes a process use the server with these keys at `url`.
    pub(crate) fn environment(&self, url: String) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", url),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", self.access_key.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret_key.clone()),
        ]
    }
}

/// A running S3 server; it ends when dropped.
pub struct S3Server {
    server: LoopbackServer,
    uploads: Arc<Uploads>,
    directory: PathBuf,
    options: S3ServerOptions,
}

impl S3Server {
    /// Serves `directory`, whose subdirectories are the buckets, on a free port.
    ///
    /// # Errors
    /// When the directory is not there or no port can be had.
    pub fn start(directory: &Path) -> anyhow::Result<Self> {
        Self::start_with(directory, S3ServerOptions::default())
    }

    /// As [`S3Server::start`], with port and keys of one's own.
    ///
    /// # Errors
    /// As [`S3Server::start`].
    pub fn start_with(directory: &Path, options: S3ServerOptions) -> anyhow::Result<Self> {
        let uploads = Arc::<Uploads>::default();
        let backend = Backend::new(directory, Arc::clone(&uploads))
            .with_context(|| format!("cannot serve the directory {}", directory.display()))?;
        let mut builder = S3ServiceBuilder::new(backend);
        builder.set_auth(SimpleAuth::from_single(options.access_key.clone(), options.secret_key.clone()));
        let handler = Arc::new(S3Handler { service: builder.build(), latency: options.latency });
        let server = LoopbackServer::start("s3", options.port, handler)?;
        Ok(Self { server, uploads, directory: directory.to_owned(), options })
    }

    /// Makes a bucket; one that is there stays as it is.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn create_bucket(&self, name: &str) -> std::io::Result<()> {
        std::fs::create_dir_all(self.directory.join(name))
    }

    /// The uploads in parts that were begun and neither completed nor aborted, each as `BUCKET/KEY`.
    #[must_use]
    pub fn uploads(&self) -> Vec<String> {
        self.uploads.names()
    }

    /// How many parts of those uploads are here.
    #[must_use]
    pub fn parts_of_uploads(&self) -> usize {
        self.uploads.parts_here()
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The directory that it serves.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The access key.
    #[must_use]
    pub fn access_key(&self) -> &str {
        &self.options.access_key
    }

    /// The secret key.
    #[must_use]
    pub fn secret_key(&self) -> &str {
        &self.options.secret_key
    }

    /// The environment that makes a process use this server: endpoint, region, keys.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        self.options.environment(self.url())
    }
}

struct S3Handler {
    service: S3Service,
    latency: Duration,
}

#[async_trait::async_trait]
impl Handler for S3Handler {
    async fn handle(&self, request: Request<Incoming>, _: &Connection) -> Result<Response<Body>, std::io::Error> {
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        let response = self.service.call(request.map(s3s::Body::from)).await;
        let response = response.map_err(|error| std::io::Error::other(format!("{error:?}")))?;
        Ok(response.map(|body| BodyExt::boxed_unsync(body.map_err(std::io::Error::other))))
    }
}
