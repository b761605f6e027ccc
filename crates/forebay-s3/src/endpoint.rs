//! The endpoint: requests as they come over HTTP, from before they are looked at until their answers are recorded.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use forebay_client::Client;
use forebay_identity::{AuditPeer, Auditing};
use forebay_metrics::{Access, HttpLimits, HttpServer};
use hyper::body::{Body as _, Frame, SizeHint};
use s3s::HttpResponse;
use s3s::config::{S3Config, S3ConfigProvider, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::time::Sleep;

use crate::access::{AccessLists, Denies, Rules};
use crate::asked::{Asked, Unread};
use crate::bucket::Buckets;
use crate::chunks::ShortChunks;
use crate::gate;
use crate::hosts::{BucketNames, Domains};
use crate::keyring::Keyring;
use crate::listing::Orders;
use crate::memory::BodyMemory;
use crate::operations::{MAX_XML, Noting, Operations};
use crate::receive::of_list;
use crate::reread::Reread;
use crate::served::Served;
use crate::stats::Stats;

/// The header with which an answer says its number, for logs and for people who ask what happened.
const REQUEST_ID: &str = "x-amz-request-id";
/// The least that a client takes of an answer, in bytes a second: with it, a piece is gone within the minute that others
/// stand in line for its memory.
const WRITE_RATE: u64 = 32 << 10;
/// How long a client may send nothing of a body.
const IDLE: Duration = Duration::from_secs(30);
/// Forms are refused before they are read; this bounds them all the same.
const MAX_FORM: usize = 64 << 10;
/// How far the clocks of clients may be off, as Amazon has it.
const CLOCK_SKEW_SECONDS: u32 = 900;

/// Clients keep connections for a while, and may send and receive large objects over them.
fn limits(connections: usize) -> HttpLimits {
    HttpLimits {
        connections,
        head_within: Duration::from_secs(60),
        body_within: Duration::from_secs(3600),
        write_within: Duration::from_secs(30),
        write_rate: WRITE_RATE,
        lasts_at_most: Duration::from_secs(24 * 3600),
        ends_within: Duration::from_secs(10),
    }
}

/// What an endpoint is made of.
pub struct EndpointOptions {
    /// The keys that requests are signed with.
    pub keys: Arc<Keyring>,
    /// Which clients may use which mount.
    pub lists: Arc<dyn AccessLists>,
    /// Which clients are denied.
    pub denies: Denies,
    /// Which buckets there are.
    pub buckets: Buckets,
    /// Names below which each name is a bucket.
    pub domains: Vec<String>,
    /// Connections at once.
    pub connections: usize,
    /// Memory of bodies, in bytes, of all requests together.
    pub memory: u64,
    /// Bytes in a part of an object that is put.
    pub part_size: u64,
    /// Whether anything may be changed.
    pub writes: bool,
    /// Where it is recorded who asks for what, if it is.
    pub audit: Option<Auditing>,
}

/// An endpoint, while it serves. Dropping it ends its tasks without waiting for them.
pub struct Endpoint {
    address: SocketAddr,
    server: HttpServer,
    shared: Arc<Shared>,
}

struct Shared {
    service: S3Service,
    stats: Arc<Stats>,
    memory: BodyMemory,
    audit: Option<Auditing>,
}

impl Endpoint {
    /// Serves what `client` reads to all that come to `listener`; `access` says whether they speak TLS. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// When the listener does not say where it listens.
    pub fn start(
        listener: TcpListener,
        client: Client,
        access: Access,
        options: EndpointOptions,
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        let (stats, memory) = (Arc::new(Stats::default()), BodyMemory::new(options.memory));
        let EndpointOptions { keys, lists, denies, buckets, domains, connections, part_size, writes, audit, .. } =
            options;
        let rules = Rules { keys, lists, denies, writes };
        let served = Served {
            client,
            buckets,
            rules: rules.clone(),
            memory: memory.clone(),
            part_size,
            stats: Arc::clone(&stats),
            orders: Orders::default(),
        };
        let service = service(served, rules, domains);
        let access = access.recorded(audit.clone());
        let shared = Arc::new(Shared { service, stats, memory, audit });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let server = HttpServer::start_judging(listener, router, access, limits(connections));
        Ok(Self { address, server, shared })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// What it counts, as a function that may outlive it.
    pub fn reporter(&self) -> impl Fn() -> serde_json::Value + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || shared.stats.report(shared.memory.held())
    }

    /// Ends it. Answers under way may finish, for a moment.
    pub async fn close(&self) {
        self.server.close().await;
    }
}

fn service(served: Served, rules: Rules, domains: Vec<String>) -> S3Service {
    let memory = served.memory.clone();
    let mut config = S3Config::default();
    config.xml_max_body_size = MAX_XML;
    config.post_object_max_file_size = MAX_FORM as u64;
    config.form_max_field_size = MAX_FORM;
    config.form_max_fields_size = MAX_FORM;
    config.form_max_parts = 1;
    config.presigned_url_max_skew_time_secs = CLOCK_SKEW_SECONDS;
    let config: Arc<dyn S3ConfigProvider> = Arc::new(StaticConfigProvider::new(Arc::new(config)));
    let (operations, domains) = (Operations(Arc::new(served)), Domains::new(domains));
    let builder = || {
        let mut builder = S3ServiceBuilder::new(operations.clone());
        builder.set_config(Arc::clone(&config));
        builder.set_auth(rules.clone());
        builder.set_access(Noting { rules: rules.clone(), memory: memory.clone() });
        builder.set_validation(BucketNames);
        builder.set_host(domains.clone());
        builder
    };
    let mut service = builder();
    service.set_route(Reread::by(builder().build()));
    service.build()
}

/// One request, from its head to the head of its answer. Where its client leaves before that, its end is counted and
/// recorded, too.
struct UnderWay<'a> {
    stats: &'a Stats,
    asked: Asked,
    is_answered: bool,
}

impl<'a> UnderWay<'a> {
    fn among(stats: &'a Stats, asked: &Asked) -> Self {
        stats.began();
        Self { stats, asked: asked.clone(), is_answered: false }
    }

    fn answered(mut self, status: u16, took: Duration) {
        self.is_answered = true;
        self.stats.answered(self.asked.name().as_deref(), status, took);
        self.asked.record(Some(status));
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.stats.ended();
        if !self.is_answered {
            self.asked.record(None);
        }
    }
}

async fn answer(State(shared): State<Arc<Shared>>, mut request: Request) -> Response {
    let (began, id) = (Instant::now(), request_id());
    let peer = request.extensions().get().copied().unwrap_or(AuditPeer::UNKNOWN);
    let asked = Asked::new(shared.audit.clone(), peer);
    let under_way = UnderWay::among(&shared.stats, &asked);
    request.extensions_mut().insert(asked.clone());
    let has_body = !request.body().is_end_stream();
    let in_chunks = gate::is_in_chunks(request.headers());
    let answered = match gate::check(request.method(), request.uri(), request.headers()) {
        Ok(()) => {
            let answered = shared.service.call(request.map(|body| incoming(body, in_chunks, &asked))).await;
            settle_list(answered.ok(), &asked)
        }
        Err(refusal) => refusal.to_http_response().ok(),
    };
    let mut response = answered.map_or_else(failed, |response| finished(response, &id));
    let status = response.status().as_u16();
    // A client that sends a body which nobody reads would have it taken for its next request.
    if status >= 400 && has_body {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if status == 403 && !asked.is_signed() {
        shared.stats.nobodys();
    }
    tracing::debug!(id, status, operation = asked.name(), "a request over S3 was answered");
    under_way.answered(status, began.elapsed());
    response
}

/// The library's answer. What a client does wrong with a list in a body, the library tells as an error of the server.
fn settle_list(answered: Option<HttpResponse>, asked: &Asked) -> Option<HttpResponse> {
    let is_failed = |response: &HttpResponse| response.status() == StatusCode::INTERNAL_SERVER_ERROR;
    match asked.unread() {
        Some(unread) if answered.as_ref().is_some_and(is_failed) => of_list(unread).to_http_response().ok(),
        _ => answered,
    }
}

/// The number of a request: 16 hexadecimal digits.
fn request_id() -> String {
    format!("{:016X}", rand::random::<u64>())
}

fn failed() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// The library's answer; an error has the number of its request in it, and what is told of a part that it is one.
fn finished(response: HttpResponse, id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    if parts.status == StatusCode::OK && parts.headers.contains_key(CONTENT_RANGE) {
        parts.status = StatusCode::PARTIAL_CONTENT;
    }
    let is_error = parts.status.is_client_error() || parts.status.is_server_error();
    let xml = body.bytes().filter(|bytes| is_error && !bytes.is_empty());
    let Some(xml) = xml.and_then(|xml| with_request_id(&xml, id)) else {
        return Response::from_parts(parts, Body::new(body));
    };
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/xml"));
    Response::from_parts(parts, Body::from(xml))
}

/// An error of S3 with the number of its request, if it is one and has none.
fn with_request_id(xml: &[u8], id: &str) -> Option<Vec<u8>> {
    const END: &[u8] = b"</Error>";
    const ELEMENT: &[u8] = b"<RequestId>";
    let rest = xml.strip_suffix(END)?;
    if rest.windows(ELEMENT.len()).any(|window| window == ELEMENT) {
        return None;
    }
    Some([rest, ELEMENT, id.as_bytes(), b"</RequestId>", END].concat())
}

/// The body of a request, as the library gets it.
fn incoming(body: Body, in_chunks: bool, asked: &Asked) -> s3s::Body {
    let body = Patient::new(body, asked.clone());
    if in_chunks { s3s::Body::http_body_unsync(ShortChunks::of(body)) } else { s3s::Body::http_body_unsync(body) }
}

/// The body of a request. It fails if its client sends nothing of it for too long.
struct Patient {
    body: Body,
    late: Option<Pin<Box<Sleep>>>,
    /// Where it is noted why it fails.
    asked: Asked,
}

impl Patient {
    fn new(body: Body, asked: Asked) -> Self {
        Self { body, late: None, asked }
    }
}

impl hyper::body::Body for Patient {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = self.get_mut();
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.late = None;
            if matches!(frame, Some(Err(_))) {
                this.asked.broke(Unread::BrokenOff);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(std::io::Error::other)));
        }
        let late = this.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(IDLE)));
        ready!(late.as_mut().poll(cx));
        this.asked.broke(Unread::Late);
        let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "the body of the request did not come in time");
        Poll::Ready(Some(Err(error)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use s3s::{S3Error, S3ErrorCode};

    use super::*;

    #[test]
    fn an_error_has_the_number_of_its_request() {
        let told = |xml: &str| with_request_id(xml.as_bytes(), "0A").map(|xml| String::from_utf8(xml).unwrap());
        let expected = "<Error><Code>NoSuchKey</Code><RequestId>0A</RequestId></Error>";
        assert_eq!(told("<Error><Code>NoSuchKey</Code></Error>").as_deref(), Some(expected));
        assert_eq!(told(expected), None);
        assert_eq!(told("<ListBucketResult></ListBucketResult>"), None);
        assert_eq!(told(""), None);
        assert_eq!(request_id().len(), 16);
    }

    #[test]
    fn an_answer_that_is_no_error_stays_as_it_is() {
        let response = HttpResponse::new(s3s::Body::from("<Error></Error>".to_owned()));
        let response = finished(response, "0A");
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.headers().get(CONTENT_TYPE).is_none());
        let mut error = HttpResponse::new(s3s::Body::from("<Error></Error>".to_owned()));
        *error.status_mut() = StatusCode::NOT_FOUND;
        assert_eq!(finished(error, "0A").headers()[CONTENT_TYPE], "application/xml");
    }

    #[test]
    fn what_is_told_of_a_part_says_that_it_is_one() {
        let mut response = HttpResponse::new(s3s::Body::empty());
        response.headers_mut().insert(CONTENT_RANGE, HeaderValue::from_static("bytes 0-1/5"));
        assert_eq!(finished(response, "0A").status(), StatusCode::PARTIAL_CONTENT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_nothing_is_not_waited_for_without_end() {
        let silent = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let mut body = Patient::new(silent, Asked::default());
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let error = frame.unwrap().unwrap_err();
        assert!(error.to_string().contains("did not come in time"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_does_not_come_as_it_should_is_no_error_of_ours() {
        let told = |asked: &Asked| {
            let mut failed = HttpResponse::new(s3s::Body::empty());
            *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            let told = settle_list(Some(failed), asked).unwrap();
            let text = told.body().bytes().unwrap_or_default();
            (told.status().as_u16(), String::from_utf8(text.to_vec()).unwrap())
        };
        let frame = async |body: Body, asked: &Asked| {
            let mut body = Patient::new(body, asked.clone());
            std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap()
        };
        let asked = Asked::default();
        assert_eq!(told(&asked).0, 500, "it has no list");
        asked.awaits_list();
        let (status, text) = told(&asked);
        assert!(status == 403 && text.contains("SignatureDoesNotMatch"), "{status} {text}");
        let broken = futures::stream::iter([Err::<Bytes, _>(std::io::Error::other("reset"))]);
        assert!(frame(Body::from_stream(broken), &asked).await.is_err());
        let (status, text) = told(&asked);
        assert!(status == 400 && text.contains("IncompleteBody"), "{status} {text}");
        let silent = futures::stream::pending::<Result<Bytes, std::io::Error>>();
        assert!(frame(Body::from_stream(silent), &asked).await.is_err());
        let (status, text) = told(&asked);
        assert!(status == 400 && text.contains("RequestTimeout"), "{status} {text}");
        let fine = HttpResponse::new(s3s::Body::empty());
        assert_eq!(settle_list(Some(fine), &asked).unwrap().status(), StatusCode::OK);
        asked.is_called();
        assert_eq!(told(&asked).0, 500, "what fails afterwards is ours");
    }

    #[test]
    fn what_a_library_cannot_tell_is_an_error_of_ours() {
        assert_eq!(failed().status(), StatusCode::INTERNAL_SERVER_ERROR);
        let refusal = S3Error::with_message(S3ErrorCode::AccessDenied, "no");
        let response = finished(refusal.to_http_response().unwrap(), "0B");
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
        assert_eq!(response.headers().get_all(CONTENT_TYPE).iter().count(), 1);
    }
}
