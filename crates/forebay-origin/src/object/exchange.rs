//! What the origin really answered, seen from under the object store's client.
//!
//! The client turns answers into its own errors and, on the way, loses what a person needs: the error's code, the
//! bucket's region, the server's clock. And its parser of listings gives up on a whole page because of one key that is
//! no path. So every request carries an [`Exchange`], and [`ObservingConnector`] puts a layer around the HTTP client that
//! notes refusals in it and takes listings out whole, for `listing.rs` to read.
//!
//! The client lets few of the requests that change something carry anything. Their exchange is the one that the task is
//! [watching](Exchange::watch), which is told from requests for credentials, made by the same task, as changes go through a
//! connection of their own, whose credentials are another client's. An answer to a change may say 200 and be an error
//! all the same: S3 begins to answer before it has joined the parts or copied the object.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_locks::Mutex;
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use object_store::{ClientOptions, Extensions};

/// The longest listing page that is taken. 1000 keys of 1024 bytes, each byte escaped, are below 8 MiB.
const MAX_LISTING: usize = 16 << 20;
/// The longest error answer that is taken.
const MAX_ERROR: usize = 64 << 10;
/// What the client's own parser gets to see in place of a listing that was taken out.
const EMPTY_LISTING: &[u8] = b"<ListBucketResult></ListBucketResult>";

/// One request and what came back, shared between an attempt and the HTTP layer below it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange(Arc<Mutex<Observed>>);

/// What was seen of an exchange.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// The request reached the HTTP client: its credentials had been found.
    pub(crate) sent: bool,
    /// The status of the answer, as it was sent; 0 before there is one.
    pub(crate) status: u16,
    /// The answer, if it was not a success.
    pub(crate) refusal: Option<Refusal>,
    /// The request changes something.
    pub(crate) is_change: bool,
    /// The entity tag of what a copy made.
    pub(crate) etag: Option<String>,
    wants_listing: bool,
    listing: Option<Bytes>,
}

/// An answer that is not a success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    /// `NoSuchBucket`, `AccessDenied`…; empty when the answer had no body, as with HEAD.
    pub(crate) code: String,
    pub(crate) message: String,
    /// The region that the bucket is in, when the origin says so.
    pub(crate) region: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    /// The server's clock, as it wrote it.
    pub(crate) date: Option<String>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorBody {
    code: String,
    message: String,
    region: Option<String>,
}

impl Refusal {
    fn of(status: u16, error: ErrorBody) -> Self {
        let ErrorBody { code, message, region } = error;
        Self { status, code, message, region, ..Self::default() }
    }
}

/// What a change is answered with, as far as it matters here.
#[derive(Debug, serde::Deserialize)]
enum Answer {
    Error(ErrorBody),
    CopyObjectResult(Copied),
    #[serde(other)]
    Other,
}

#[derive(Debug, serde::Deserialize)]
struct Copied {
    #[serde(rename = "ETag")]
    etag: Option<String>,
}

tokio::task_local! {
    static WATCHING: Exchange;
}

impl Exchange {
    /// For a request that changes something.
    pub(crate) fn for_change() -> Self {
        let exchange = Self::default();
        exchange.0.lock().is_change = true;
        exchange
    }

    /// Notes in this exchange what comes of the requests that `work` sends.
    pub(crate) async fn watch<T>(&self, work: impl Future<Output = T>) -> T {
        WATCHING.scope(self.clone(), work).await
    }

    /// For a listing, which is to be taken out whole.
    pub(crate) fn for_listing() -> Self {
        let exchange = Self::default();
        exchange.0.lock().wants_listing = true;
        exchange
    }

    /// The extensions of a request that carries this exchange.
    pub(crate) fn extensions(&self) -> Extensions {
        let mut extensions = Extensions::new();
        extensions.insert(self.clone());
        extensions
    }

    /// What was seen so far.
    pub(crate) fn observed(&self) -> Observed {
        self.0.lock().clone()
    }

    /// The listing that was taken out.
    pub(crate) fn take_listing(&self) -> Option<Bytes> {
        self.0.lock().listing.take()
    }
}

/// Connects by another connector, with the observing layer around.
#[derive(Debug)]
pub(crate) struct ObservingConnector {
    connector: Box<dyn HttpConnector>,
    for_changes: bool,
    made: Made,
}

/// The HTTP client that a connector made last: that of the object store's client, which makes those for credentials before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Made(Arc<Mutex<Option<HttpClient>>>);

impl Made {
    /// The client, once it is made.
    pub(crate) fn take(&self) -> Option<HttpClient> {
        self.0.lock().take()
    }
}

impl ObservingConnector {
    /// For a client that reads.
    pub(crate) fn for_reads(connector: Box<dyn HttpConnector>) -> Self {
        Self { connector, for_changes: false, made: Made::default() }
    }

    /// For a client that is used for changes only, and gets its credentials elsewhere.
    pub(crate) fn for_changes(connector: Box<dyn HttpConnector>) -> Self {
        Self { connector, for_changes: true, made: Made::default() }
    }

    /// Where the client will be that it makes, for requests of our own.
    pub(crate) fn made(&self) -> Made {
        self.made.clone()
    }
}

impl HttpConnector for ObservingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = self.connector.connect(options)?;
        let client = HttpClient::new(ObservingService { client, for_changes: self.for_changes });
        *self.made.0.lock() = Some(client.clone());
        Ok(client)
    }
}

#[derive(Debug)]
struct ObservingService {
    client: HttpClient,
    for_changes: bool,
}

#[async_trait::async_trait]
impl HttpService for ObservingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Requests for credentials go through here too; they carry no exchange and are none of our business.
        let carried = request.extensions().get::<Exchange>().cloned();
        let watching = || WATCHING.try_with(Exchange::clone).ok().filter(|_| self.for_changes);
        let Some(exchange) = carried.or_else(watching) else {
            return self.client.execute(request).await;
        };
        exchange.0.lock().sent = true;
        let response = self.client.execute(request).await?;
        let (mut parts, body) = response.into_parts();
        exchange.0.lock().status = parts.status.as_u16();
        let Observed { is_change, wants_listing, .. } = exchange.observed();
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        if parts.status.is_success() && is_change {
            let text = collect(body, MAX_ERROR).await?;
            match answer_in(&text) {
                Answer::Error(error) => {
                    exchange.0.lock().refusal = Some(Refusal::of(parts.status.as_u16(), error));
                    // For the client to see that it is one.
                    parts.status = 500.try_into().unwrap_or(parts.status);
                }
                Answer::CopyObjectResult(copied) => exchange.0.lock().etag = copied.etag,
                Answer::Other => exchange.0.lock().etag = header("etag"),
            }
            return Ok(HttpResponse::from_parts(parts, Bytes::copy_from_slice(text.trim_ascii_start()).into()));
        }
        if parts.status.is_success() {
            if !wants_listing {
                return Ok(HttpResponse::from_parts(parts, body));
            }
            let listing = collect(body, MAX_LISTING).await?;
            exchange.0.lock().listing = Some(listing);
            return Ok(HttpResponse::from_parts(parts, Bytes::from_static(EMPTY_LISTING).into()));
        }
        // The status alone says enough if the body cannot be had.
        let text = collect(body, MAX_ERROR).await.unwrap_or_default();
        let refusal = refusal_in(parts.status.as_u16(), &text);
        exchange.0.lock().refusal = Some(Refusal {
            region: header("x-amz-bucket-region").or(refusal.region),
            retry_after: header("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
            date: header("date"),
            ..refusal
        });
        Ok(HttpResponse::from_parts(parts, text.into()))
    }
}

/// What a change is answered with by a success.
fn answer_in(text: &[u8]) -> Answer {
    quick_xml::de::from_reader(text.trim_ascii_start()).unwrap_or(Answer::Other)
}

/// What an answer says that is not a success.
fn refusal_in(status: u16, text: &[u8]) -> Refusal {
    Refusal::of(status, quick_xml::de::from_reader(text).unwrap_or_default())
}

/// Both, for fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_answer(status: u16, text: &[u8]) -> Refusal {
    match answer_in(text) {
        Answer::Error(error) => Refusal::of(status, error),
        Answer::CopyObjectResult(_) | Answer::Other => refusal_in(status, text),
    }
}

async fn collect(body: HttpResponseBody, limit: usize) -> Result<Bytes, HttpError> {
    let mut chunks = body.bytes_stream();
    let mut all = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        if all.len() + chunk.len() > limit {
            let error = std::io::Error::other(format!("the answer is longer than {limit} bytes"));
            return Err(HttpError::new(HttpErrorKind::Decode, error));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}
