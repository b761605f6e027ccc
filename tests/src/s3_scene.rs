//! A bucket, a worker that caches it, and an S3 endpoint in front of both.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use object_store::ObjectStoreExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::signer::{Method, SignedUrlOptions, Signer as _};
use tokio::runtime::Runtime;

use crate::{BUCKET, Bucket, S3Endpoint, S3Key, S3Keys, Setup, Worker};

const SOON: Duration = Duration::from_secs(60);

/// An endpoint, what it serves, and who may write there.
pub struct S3Scene {
    runtime: Runtime,
    /// The endpoint.
    pub endpoint: S3Endpoint,
    /// The keys that it knows.
    pub keys: S3Keys,
    writer: S3Key,
    _worker: Worker,
    /// The origin.
    pub bucket: Bucket,
}

impl S3Scene {
    /// The bucket of the endpoint; that of the origin is called otherwise.
    pub const BUCKET: &str = "sets";

    /// One with the settings that there are anyway.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// One with these settings, of worker and endpoint.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn with(settings: &[&str]) -> Self {
        let (bucket, keys) = (Bucket::new(), S3Keys::new());
        let writer = keys.add("writer", "tests");
        let worker = Setup::of(&bucket).options(settings).worker(&bucket);
        let setup = Setup::without_origin().options(&[&format!("s3.buckets={}=/", Self::BUCKET)]).options(settings);
        let endpoint = setup.s3([&worker], &keys);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { runtime: runtime.expect("a runtime"), endpoint, keys, writer, _worker: worker, bucket }
    }

    /// A client of the endpoint that may write.
    #[must_use]
    pub fn client(&self) -> AmazonS3 {
        self.client_of(&self.writer)
    }

    /// A client of the endpoint with this key.
    #[must_use]
    pub fn client_of(&self, key: &S3Key) -> AmazonS3 {
        self.endpoint.client(Self::BUCKET, key)
    }

    /// A client of the origin itself.
    ///
    /// # Panics
    /// When there can be none.
    #[must_use]
    pub fn origin(&self) -> AmazonS3 {
        let server = self.bucket.server();
        AmazonS3Builder::new()
            .with_endpoint(server.url())
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(BUCKET)
            .with_access_key_id(server.access_key())
            .with_secret_access_key(server.secret_key())
            .build()
            .expect("a client of the origin")
    }

    /// Does what a client is to do.
    ///
    /// # Panics
    /// When it takes too long.
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(SOON, work).await.expect("an answer") })
    }

    /// All bytes of an object.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    #[track_caller]
    pub fn read(&self, key: &str) -> Vec<u8> {
        let client = self.client();
        self.run(async move { client.get(&at(key)).await?.bytes().await }).expect("the object").to_vec()
    }

    /// A URL that is signed with the writer's key: its path and query.
    ///
    /// # Panics
    /// When it cannot be signed.
    #[must_use]
    pub fn signed(&self, method: Method, key: &str) -> String {
        let client = self.client();
        let url = self.run(client.signed_url(method, &at(key), SOON)).expect("a signed URL");
        format!("{}?{}", url.path(), url.query().unwrap_or_default())
    }

    /// What `client` gets at a URL that it signs with this query besides; without a key, one of the bucket.
    ///
    /// # Panics
    /// When it cannot be signed, or nobody listens.
    #[must_use]
    pub fn query(&self, client: &AmazonS3, method: Method, key: &str, query: &[(&str, &str)]) -> String {
        let (name, options) = (method.to_string(), SignedUrlOptions::default().with_query(query.iter().copied()));
        let url = self.run(client.signed_url_opts(method, &at(key), SOON, &options)).expect("a signed URL");
        self.ask(&name, &format!("{}?{}", url.path(), url.query().unwrap_or_default()), &[], b"")
    }

    /// Sends these lines and bytes. The answer, to its end.
    ///
    /// # Panics
    /// When nobody listens.
    #[must_use]
    pub fn ask(&self, method: &str, target: &str, headers: &[&str], body: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.endpoint.address()).expect("the endpoint listens");
        stream.set_read_timeout(Some(SOON)).expect("a deadline");
        let host = self.endpoint.address();
        let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{lines}connection: close\r\n\r\n");
        // It may have been refused before all of it was sent.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }
}

/// A key as it is: this client would encode some characters of it.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn at(key: &str) -> Path {
    Path::parse(key).expect("a key")
}

/// The status of an answer as it was sent.
///
/// # Panics
/// When it is none.
#[must_use]
#[track_caller]
pub fn s3_status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

/// What is refused, with an error of S3 that has this code and the number of its request.
///
/// # Panics
/// When it is answered otherwise.
#[track_caller]
pub fn assert_s3_refused(answer: &str, expected: u16, code: &str) {
    assert_eq!(s3_status(answer), expected, "{answer}");
    assert!(answer.contains(&format!("<Code>{code}</Code>")), "{answer}");
    let id =
        answer.lines().find_map(|line| line.strip_prefix("x-amz-request-id: ")).expect("the number of the request");
    assert!(answer.contains(&format!("<RequestId>{}</RequestId>", id.trim())), "{answer}");
}
