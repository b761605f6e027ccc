//! GETs of objects whose bodies stay on their connections until their reader takes them, right into its own buffer (ADR 0039).
//!
//! The object store's client makes and signs the requests and reads the heads of the answers, as ever. Below it stands
//! [`InPlaceService`]: a GET that carries a [`Slot`] goes over a connection of our own, and what the client gets of a partial answer is
//! the head with an empty body. The [`Body`] is in the slot. Everything else goes to the HTTP client that the origin has anyway:
//! requests without a slot, and redirects, which it follows as far as it may.
//!
//! * `head.rs`: heads of requests and answers, and where bodies end: pure;
//! * `connect.rs`: from a name to a connection, over TLS or not;
//! * `connection.rs`: one request and its answer; `body.rs`: the rest of it, in place;
//! * `pool.rs`: connections that wait for the next request.

mod body;
mod connect;
mod connection;
mod head;
mod pool;

use std::sync::Arc;

use bytes::Bytes;
use forebay_locks::Mutex;
use http::{Method, StatusCode};
use object_store::ClientOptions;
use object_store::client::{HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService};
use url::Url;

pub(crate) use connect::Settings;

use body::Body;
use connect::Connector;
use connection::{AskError, Connection, http_error};
use head::{Dechunked, Framing, Head};
use pool::{Pool, Target};

/// The longest body of a refusal that is taken.
const MAX_REFUSAL: usize = 64 << 10;

/// Where the body of an answer is left for whoever made the request that carries this.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slot(Arc<Mutex<Option<Body>>>);

impl Slot {
    /// The body, if the answer has one and it is still on its connection.
    pub(crate) fn take(&self) -> Option<Body> {
        self.0.lock().take()
    }

    fn put(&self, body: Body) {
        *self.0.lock() = Some(body);
    }
}

/// Connects by another connector, and reads in place what asks for it.
#[derive(Debug)]
pub(crate) struct InPlaceConnector {
    others: Box<dyn HttpConnector>,
    settings: Settings,
}

impl InPlaceConnector {
    /// `others` is for all requests that are not read in place.
    pub(crate) fn new(others: Box<dyn HttpConnector>, settings: Settings) -> Self {
        Self { others, settings }
    }
}

impl HttpConnector for InPlaceConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let others = self.others.connect(options)?;
        let connector = Connector::new(self.settings.clone())
            .map_err(|error| object_store::Error::Generic { store: "HTTP client", source: Box::new(error) })?;
        Ok(HttpClient::new(InPlaceService::new(others, connector)))
    }
}

#[derive(Debug)]
struct InPlaceService {
    others: HttpClient,
    connector: Connector,
    pool: Arc<Pool>,
}

/// A request that is read in place.
struct Asked {
    target: Target,
    head: Vec<u8>,
    slot: Slot,
}

impl InPlaceService {
    fn new(others: HttpClient, connector: Connector) -> Self {
        let pool = Arc::new(Pool::new(connector.idle_connections()));
        Self { others, connector, pool }
    }

    /// What to ask, if the answer is to be read in place and can be.
    fn asked(&self, request: &HttpRequest) -> Option<Asked> {
        let slot = request.extensions().get::<Slot>()?.clone();
        if *request.method() != Method::GET || !request.body().is_empty() {
            return None;
        }
        // As the client's signer and the other HTTP client read it.
        let url = Url::parse(&request.uri().to_string()).ok()?;
        let target = Target::of(&url).filter(|target| self.connector.may_reach(target))?;
        Some(Asked { target, head: head::request(&url, request.headers()), slot })
    }

    /// Sends a request and takes the head of its answer.
    async fn ask(&self, asked: &Asked) -> Result<(Connection, Head), HttpError> {
        if let Some(mut connection) = self.pool.take(&asked.target) {
            match connection.ask(&asked.head).await {
                Ok(answer) => return Ok((connection, answer)),
                // If nobody is at the other end any more, then at none of the others' either: the next attempt is to connect anew.
                Err(AskError::Failed(error)) => {
                    self.pool.forget(&asked.target);
                    return Err(error);
                }
                // The server closed it just then; the others may be as old. A GET may be sent again.
                Err(AskError::Unanswered(_)) => self.pool.forget(&asked.target),
            }
        }
        let mut connection = self.connector.connect(&asked.target).await?;
        match connection.ask(&asked.head).await {
            Ok(answer) => Ok((connection, answer)),
            Err(AskError::Failed(error)) => Err(error),
            Err(AskError::Unanswered(error)) => Err(http_error(error)),
        }
    }

    /// The answer; `None` if it leads elsewhere.
    async fn get(&self, asked: &Asked) -> Result<Option<HttpResponse>, HttpError> {
        let (mut connection, answer) = self.ask(asked).await?;
        let Head { status, headers, framing, is_kept, .. } = answer;
        if status.is_redirection() {
            return Ok(None);
        }
        let mut text = Bytes::new();
        match framing {
            Framing::Length(length) if status == StatusCode::PARTIAL_CONTENT => {
                let home = is_kept.then(|| (Arc::clone(&self.pool), asked.target.clone()));
                asked.slot.put(Body::new(connection, length, home));
            }
            // Not what was asked for, and as long as it may be: the head says enough.
            _ if status.is_success() => {}
            framing => {
                let (said, is_all) = refusal(&mut connection, framing).await;
                text = said;
                if is_all && is_kept && connection.is_between_answers() {
                    self.pool.put(&asked.target, connection);
                }
            }
        }
        let mut response = HttpResponse::new(text.into());
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Ok(Some(response))
    }
}

#[async_trait::async_trait]
impl HttpService for InPlaceService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        if let Some(asked) = self.asked(&request)
            && let Some(response) = self.get(&asked).await?
        {
            return Ok(response);
        }
        self.others.execute(request).await
    }
}

/// What a refusal says, as far as it can be had and is not too long; and whether the connection is at its end.
async fn refusal(connection: &mut Connection, framing: Framing) -> (Bytes, bool) {
    let length = match framing {
        Framing::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
        Framing::Chunked | Framing::UntilClose => usize::MAX,
    };
    let (mut raw, mut chunks) = (Vec::new(), Dechunked::default());
    while raw.len() < length.min(MAX_REFUSAL) {
        let before = raw.len();
        raw.resize(length.min(MAX_REFUSAL).min(before + (4 << 10)), 0);
        // The status alone says enough if the rest cannot be had.
        let count = connection.read(&mut raw[before..]).await.unwrap_or(0);
        raw.truncate(before + count);
        if count == 0 {
            break;
        }
        if framing == Framing::Chunked
            && let Ok(Some(behind)) = chunks.advance(&raw)
        {
            // Servers that ask for fewer requests are to get no more connections for it.
            return (chunks.body.into(), behind == Dechunked::END);
        }
    }
    let is_all = raw.len() == length;
    (raw.into(), is_all)
}

/// What a fuzzer feeds to the reader of heads and of chunked bodies: whether there is a head, and how long it is.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_head(bytes: &[u8]) -> Option<usize> {
    // Neither may panic, whatever it says.
    let _ = Dechunked::default().advance(bytes);
    head::parse(bytes).ok().flatten().map(|head| head.length)
}

#[cfg(test)]
mod tests;
