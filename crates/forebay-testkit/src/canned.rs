//! An http server that answers whatever a test hands out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;

use crate::loopback::{Body, Connection, Handler, LoopbackServer};

/// A request as the test sees it.
#[derive(Clone, Debug)]
pub struct CannedRequest {
    /// `GET`, `HEAD`…
    pub method: String,
    /// Path and query, as sent.
    pub target: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl CannedRequest {
    /// A header as text; empty when it is missing or not text.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// What to answer.
#[derive(Clone, Debug, Default)]
pub struct CannedResponse {
    /// The status.
    pub status: u16,
    /// Headers, names and values. `content-length` is that of the body unless it is given.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl CannedResponse {
    /// A status and a body.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }

    /// An error in S3's form.
    #[must_use]
    pub fn s3_error(status: u16, code: &str, message: &str) -> Self {
        Self::new(
            status,
            format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>"),
        )
    }

    /// The same answer with one more header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }
}

/// The server.
pub struct CannedServer {
    server: LoopbackServer,
    requests: Arc<AtomicU64>,
}

struct Answers<F> {
    answer: F,
    requests: Arc<AtomicU64>,
}

impl CannedServer {
    /// Starts a server that answers each request by `answer`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(answer: impl Fn(&CannedRequest) -> CannedResponse + Send + Sync + 'static) -> anyhow::Result<Self> {
        let requests = Arc::new(AtomicU64::new(0));
        let handler = Arc::new(Answers { answer, requests: Arc::clone(&requests) });
        Ok(Self { server: LoopbackServer::start("canned", 0, handler)?, requests })
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

    /// Requests answered so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl<F: Fn(&CannedRequest) -> CannedResponse + Send + Sync + 'static> Handler for Answers<F> {
    async fn handle(&self, request: Request<Incoming>, _: &Connection) -> Result<Response<Body>, std::io::Error> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        let target = parts.uri.path_and_query().map_or_else(String::new, ToString::to_string);
        let request = CannedRequest { method: parts.method.to_string(), target, headers: parts.headers, body };
        let canned = (self.answer)(&request);
        let mut response = Response::builder().status(canned.status);
        for (name, value) in &canned.headers {
            response = response.header(name, value);
        }
        let body = Full::new(Bytes::from(canned.body)).map_err(|never| match never {});
        response.body(body.boxed_unsync()).map_err(std::io::Error::other)
    }
}
