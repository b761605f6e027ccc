//! A proxy in front of an http server that does, on command, what bad networks and bad servers do.
//!
//! It passes the client's `Host` header on as it is, so that signed requests stay valid.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_locks::Mutex;
use futures::{Stream, TryStreamExt, stream};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;

use crate::loopback::{Body, Connection, Handler, LoopbackServer};

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server is not asked; this status is answered, with an error body in S3's form.
    Status(u16),
    /// The body stops after so many bytes and goes on when [`FaultProxy::release`] is called.
    Stall {
        /// Bytes that pass first.
        after: u64,
    },
    /// The connection is reset after so many bytes of the body.
    Reset {
        /// Bytes that pass first.
        after: u64,
    },
    /// The connection is closed in good order after so many bytes of the body, although more were announced.
    Short {
        /// Bytes that pass first.
        after: u64,
    },
}

/// What passed through a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounts {
    /// Requests by method, those with a fault included.
    pub requests: BTreeMap<String, u64>,
    /// GETs of objects, which are the GETs that are no listings.
    pub object_gets: u64,
    /// GETs of objects without a `Range` header, or with one that has no end.
    pub unbounded_gets: u64,
    /// Bytes of bodies passed to clients.
    pub bytes: u64,
}

/// The proxy.
pub struct FaultProxy {
    server: LoopbackServer,
    state: Arc<ProxyShared>,
}

struct ProxyShared {
    upstream: Authority,
    client: Client<HttpConnector, Incoming>,
    programme: Mutex<Programme>,
    counts: Mutex<ProxyCounts>,
    /// Counts the releases; a stall ends at the next one.
    released: watch::Sender<u64>,
}

/// Which requests a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Requests {
    Any,
    /// GETs of objects.
    Reads,
    /// Neither GET nor HEAD.
    Changes,
}

#[derive(Default)]
struct Programme {
    faults: VecDeque<(Fault, Requests)>,
    latency: Duration,
}

impl FaultProxy {
    /// Starts a proxy in front of the server at `upstream`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(upstream: SocketAddr) -> anyhow::Result<Self> {
        let state = Arc::new(ProxyShared {
            upstream: upstream.to_string().parse()?,
            client: Client::builder(TokioExecutor::new()).build_http(),
            programme: Mutex::default(),
            counts: Mutex::default(),
            released: watch::Sender::new(0),
        });
        let handler = Arc::new(Forward(Arc::clone(&state)));
        Ok(Self { server: LoopbackServer::start("proxy", 0, handler)?, state })
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

    /// The next `count` requests of any kind go wrong like this.
    pub fn inject(&self, count: usize, fault: Fault) {
        self.state.programme.lock().faults.extend(std::iter::repeat_n((fault, Requests::Any), count));
    }

    /// The next `count` GETs of objects go wrong like this.
    pub fn inject_reads(&self, count: usize, fault: Fault) {
        self.state.programme.lock().faults.extend(std::iter::repeat_n((fault, Requests::Reads), count));
    }

    /// The next `count` requests that change something (PUT, POST, DELETE) go wrong like this. The server is asked all the same,
    /// but for [`Fault::Status`]: it is the answer that gets lost, the whole of it with `after: 0`.
    pub fn inject_changes(&self, count: usize, fault: Fault) {
        self.state.programme.lock().faults.extend(std::iter::repeat_n((fault, Requests::Changes), count));
    }

    /// Forgets the faults to come and the latency, and lets stalled bodies go on.
    pub fn heal(&self) {
        *self.state.programme.lock() = Programme::default();
        self.release();
    }

    /// Lets the bodies that are stalled now go on.
    pub fn release(&self) {
        self.state.released.send_modify(|count| *count += 1);
    }

    /// Every request waits this long before the server is asked.
    pub fn set_latency(&self, latency: Duration) {
        self.state.programme.lock().latency = latency;
    }

    /// Refuses connections and cuts those that are open.
    pub fn stop(&self) {
        self.server.stop();
    }

    /// Accepts connections again, on the same port.
    ///
    /// # Errors
    /// When the port was taken meanwhile.
    pub fn resume(&self) -> anyhow::Result<()> {
        self.server.resume()
    }

    /// What passed so far.
    #[must_use]
    pub fn counts(&self) -> ProxyCounts {
        self.state.counts.lock().clone()
    }
}

struct Forward(Arc<ProxyShared>);

#[async_trait::async_trait]
impl Handler for Forward {
    async fn handle(
        &self,
        mut request: Request<Incoming>,
        connection: &Connection,
    ) -> Result<Response<Body>, std::io::Error> {
        let shared = &self.0;
        let is_object_get = is_object_get(&request);
        let is_change = !matches!(*request.method(), Method::GET | Method::HEAD);
        shared.count(&request, is_object_get);
        let (fault, latency) = {
            let mut programme = shared.programme.lock();
            let due = programme.faults.iter().position(|(_, requests)| match requests {
                Requests::Any => true,
                Requests::Reads => is_object_get,
                Requests::Changes => is_change,
            });
            (due.and_then(|index| programme.faults.remove(index)).map(|(fault, _)| fault), programme.latency)
        };
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        if let Some(Fault::Status(status)) = fault {
            return refuse(status);
        }
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(shared.upstream.clone());
        *request.uri_mut() = Uri::from_parts(uri).map_err(std::io::Error::other)?;
        let response = shared.client.request(request).await.map_err(std::io::Error::other)?;
        if let (true, Some(Fault::Reset { after: 0 } | Fault::Short { after: 0 })) = (is_change, fault) {
            if matches!(fault, Some(Fault::Reset { .. })) {
                connection.reset_when_closed();
            }
            return Err(std::io::Error::other("kept back by the fault proxy"));
        }
        let (parts, body) = response.into_parts();
        let body = Passing {
            upstream: Box::pin(body.into_data_stream().map_err(std::io::Error::other)),
            shared: Arc::clone(shared),
            connection: connection.clone(),
            fault,
            passed: 0,
        };
        let frames = stream::try_unfold(body, |mut body| async move {
            Ok(body.next().await?.map(|bytes| (Frame::data(bytes), body)))
        });
        Ok(Response::from_parts(parts, BodyExt::boxed_unsync(StreamBody::new(frames))))
    }
}

/// A body on its way to the client.
struct Passing {
    upstream: std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, std::io::Error>> + Send>>,
    shared: Arc<ProxyShared>,
    connection: Connection,
    fault: Option<Fault>,
    passed: u64,
}

impl Passing {
    async fn next(&mut self) -> Result<Option<Bytes>, std::io::Error> {
        let Some(mut bytes) = self.upstream.try_next().await? else { return Ok(None) };
        let allowed = match self.fault {
            None | Some(Fault::Status(_)) => u64::MAX,
            Some(Fault::Stall { after } | Fault::Reset { after } | Fault::Short { after }) => after - self.passed,
        };
        if allowed == 0 {
            match self.fault {
                Some(Fault::Stall { .. }) => {
                    let mut released = self.shared.released.subscribe();
                    // The sender lives in `shared`, so the channel cannot be closed.
                    let _ = released.changed().await;
                    self.fault = None;
                }
                Some(Fault::Reset { .. }) => {
                    self.connection.reset_when_closed();
                    return Err(std::io::Error::other("reset by the fault proxy"));
                }
                _ => return Err(std::io::Error::other("cut short by the fault proxy")),
            }
        } else if (bytes.len() as u64) > allowed {
            let rest = bytes.split_off(usize::try_from(allowed).map_err(std::io::Error::other)?);
            // What is beyond comes again, as the next chunk.
            let upstream = std::mem::replace(&mut self.upstream, Box::pin(stream::empty()));
            self.upstream = Box::pin(futures::StreamExt::chain(stream::iter([Ok(rest)]), upstream));
        }
        self.passed += bytes.len() as u64;
        self.shared.counts.lock().bytes += bytes.len() as u64;
        Ok(Some(bytes))
    }
}

impl ProxyShared {
    fn count(&self, request: &Request<Incoming>, is_object_get: bool) {
        let mut counts = self.counts.lock();
        *counts.requests.entry(request.method().to_string()).or_default() += 1;
        if is_object_get {
            counts.object_gets += 1;
            let range = request.headers().get(http::header::RANGE).and_then(|value| value.to_str().ok());
            let is_bounded = range.is_some_and(|range| range.starts_with("bytes=") && !range.ends_with('-'));
            counts.unbounded_gets += u64::from(!is_bounded);
        }
    }
}

fn is_object_get(request: &Request<Incoming>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let is_list = ["list-type=", "location", "uploads=", "uploadId="].iter().any(|name| query.contains(name));
    request.method() == Method::GET && !is_list
}

fn refuse(status: u16) -> Result<Response<Body>, std::io::Error> {
    let code = match status {
        429 | 503 => "SlowDown",
        500 => "InternalError",
        403 => "AccessDenied",
        404 => "NoSuchKey",
        _ => "Fault",
    };
    let text =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>by the fault proxy</Message></Error>");
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    let response = Response::builder().status(status).header("content-type", "application/xml");
    response.body(body.boxed_unsync()).map_err(std::io::Error::other)
}
