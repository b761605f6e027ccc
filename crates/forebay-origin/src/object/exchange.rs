//! What the origin really answered, seen from under the object store's client.
//!
//! The client turns answers into its own errors and, on the way, loses what a person needs: the error's code, the
//! bucket's region, the server's clock. And its parser of listings gives up on a whole page because of one key that is
//! no path. So every request carries an [`Exchange`], and [`ObservingConnector`] puts a layer around the HTTP client that
//! notes refusals in it and takes listings out whole, for `listing.rs` to read.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, Extensions};
use parking_lot::Mutex;

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
    /// The status of the answer; 0 before there is one.
    pub(crate) status: u16,
    /// The answer, if it was not a success.
    pub(crate) refusal: Option<Refusal>,
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

impl Exchange {
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

/// Connects as the object store's client does by itself, with the observing layer around.
#[derive(Debug, Default)]
pub(crate) struct ObservingConnector(ReqwestConnector);

impl HttpConnector for ObservingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(ObservingService(self.0.connect(options)?)))
    }
}

#[derive(Debug)]
struct ObservingService(HttpClient);

#[async_trait::async_trait]
impl HttpService for ObservingService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Requests for credentials go through here too; they carry no exchange and are none of our business.
        let Some(exchange) = request.extensions().get::<Exchange>().cloned() else {
            return self.0.execute(request).await;
        };
        exchange.0.lock().sent = true;
        let response = self.0.execute(request).await?;
        let (parts, body) = response.into_parts();
        exchange.0.lock().status = parts.status.as_u16();
        if parts.status.is_success() {
            if !exchange.0.lock().wants_listing {
                return Ok(HttpResponse::from_parts(parts, body));
            }
            let listing = collect(body, MAX_LISTING).await?;
            exchange.0.lock().listing = Some(listing);
            return Ok(HttpResponse::from_parts(parts, Bytes::from_static(EMPTY_LISTING).into()));
        }
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        // The status alone says enough if the body cannot be had.
        let text = collect(body, MAX_ERROR).await.unwrap_or_default();
        let error: ErrorBody = quick_xml::de::from_reader(&text[..]).unwrap_or_default();
        exchange.0.lock().refusal = Some(Refusal {
            status: parts.status.as_u16(),
            code: error.code,
            message: error.message,
            region: header("x-amz-bucket-region").or(error.region),
            retry_after: header("retry-after").and_then(|value| value.parse().ok()).map(Duration::from_secs),
            date: header("date"),
        });
        Ok(HttpResponse::from_parts(parts, text.into()))
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
