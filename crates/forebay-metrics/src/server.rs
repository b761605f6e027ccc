//! The pages of a process about itself, over HTTP.
//!
//! | page | what |
//! | --- | --- |
//! | `/metrics` | all metrics, for Prometheus |
//! | `/healthz` | 200: the process runs and answers |
//! | `/readyz` | 200, or 503 with what is missing: `{"ready":false,"missing":{"mount":"…"}}` |
//! | `/stats` | all counters as one JSON object, as `forebay stats` reads them |
//!
//! They tell and take no orders. Where somebody has to prove who it is, they are for those who may observe.
//! A client that is slow is closed, and so is an idle one when others come.
//!
//! `/healthz` and `/readyz` may have a listener of their own ([`serve_health`]): tools that restart a process must not
//! find it dead because others have taken its places.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use forebay_types::Permission;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::access::{Access, Operation};
use crate::exposition::{CONTENT_TYPE, Registry};
use crate::hosts::HostNames;
use crate::http::{HttpLimits, HttpServer};
use crate::readiness::Readiness;

/// Prometheus has one connection, people have some.
const LIMITS: HttpLimits = HttpLimits {
    connections: 64,
    head_within: Duration::from_secs(10),
    body_within: Duration::from_secs(10),
    write_within: Duration::from_secs(10),
    write_rate: 0,
    lasts_at_most: Duration::from_secs(600),
    ends_within: Duration::from_secs(2),
};
/// A kubelet makes a connection for each probe, and others have no reason to come.
const HEALTH_LIMITS: HttpLimits = HttpLimits {
    connections: 16,
    head_within: Duration::from_secs(5),
    body_within: Duration::from_secs(5),
    write_within: Duration::from_secs(5),
    write_rate: 0,
    lasts_at_most: Duration::from_secs(60),
    ends_within: Duration::from_secs(1),
};

/// What the pages ask of who wants them: counters name no file, and reasons tell of origins and hosts.
static OPERATIONS: [Operation; 4] = [
    ("GET", "/metrics", Some(Permission::Observe)),
    ("GET", "/stats", Some(Permission::Observe)),
    ("GET", "/healthz", Some(Permission::Observe)),
    ("GET", "/readyz", Some(Permission::Observe)),
];

/// Why the pages cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// The address cannot be listened on.
    #[error("cannot serve HTTP at {address}: {error}; choose another port, or 0 for a free one")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: std::io::Error,
    },
}

/// What the pages show.
#[derive(Clone)]
pub struct Site {
    registry: Arc<Registry>,
    readiness: Readiness,
    report: Arc<dyn Fn() -> Value + Send + Sync>,
}

impl Site {
    /// `report` is what `/stats` shows.
    pub fn new(registry: Registry, readiness: Readiness, report: impl Fn() -> Value + Send + Sync + 'static) -> Self {
        Self { registry: Arc::new(registry), readiness, report: Arc::new(report) }
    }
}

/// All pages.
pub fn routes(site: Site) -> Router {
    let health = Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready));
    counters(site.clone()).merge(health.with_state(site))
}

/// `/metrics` and `/stats`, for a server that knows by itself how it is.
pub fn counters(site: Site) -> Router {
    Router::new().route("/metrics", get(metrics)).route("/stats", get(stats)).with_state(site)
}

async fn metrics(State(site): State<Site>) -> Response {
    match site.registry.text() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(site): State<Site>) -> Response {
    let missing = site.readiness.reasons();
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({ "ready": missing.is_empty(), "missing": missing }))).into_response()
}

async fn stats(State(site): State<Site>) -> Json<Value> {
    Json((site.report)())
}

/// A server of the pages. Dropping it ends its tasks without waiting for them.
#[derive(Debug)]
pub struct MetricsServer {
    address: SocketAddr,
    server: HttpServer,
}

/// Serves `pages` at `address`, to those who ask for one of `hosts`, and whom `access` allows it. Must be called within a tokio
/// runtime.
///
/// # Errors
/// [`WebError::Listen`].
pub async fn serve(
    address: SocketAddr,
    pages: Router,
    access: Access,
    hosts: HostNames,
) -> Result<MetricsServer, WebError> {
    listen(address, pages, access, hosts, LIMITS).await
}

/// Serves nothing but `/healthz` and `/readyz` at `address`, to everybody in plain text, with places of its own. Its
/// answers say yes or no, and give no reason: the port may be open to more than those who may see the pages. Must be
/// called within a tokio runtime.
///
/// # Errors
/// [`WebError::Listen`].
pub async fn serve_health<F, R>(address: SocketAddr, is_ready: F, hosts: HostNames) -> Result<MetricsServer, WebError>
where
    F: Fn() -> R + Clone + Send + Sync + 'static,
    R: Future<Output = bool> + Send + 'static,
{
    let ready = move || {
        let is_ready = is_ready();
        async move {
            match is_ready.await {
                true => (StatusCode::OK, "ready\n"),
                false => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            }
        }
    };
    let pages = Router::new().route("/healthz", get(|| async { "ok\n" })).route("/readyz", get(ready));
    listen(address, pages, Access::everybody(), hosts, HEALTH_LIMITS).await
}

async fn listen(
    address: SocketAddr,
    pages: Router,
    access: Access,
    hosts: HostNames,
    limits: HttpLimits,
) -> Result<MetricsServer, WebError> {
    let cannot = |error| WebError::Listen { address, error };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok(MetricsServer { address, server: HttpServer::start(listener, pages, &OPERATIONS, access, hosts, limits) })
}

impl MetricsServer {
    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Ends it. Answers under way may finish, for a moment.
    pub async fn close(&self) {
        self.server.close().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;
    use crate::family::Families;

    fn site() -> (Site, Readiness) {
        let registry = Registry::new().with(|families: &mut Families| {
            families.gauge("forebay_inodes", "Inodes").add([], 3u64);
        });
        let readiness = Readiness::new();
        (Site::new(registry, readiness.clone(), || json!({ "answer": 42 })), readiness)
    }

    async fn get(address: SocketAddr, page: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {page} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[tokio::test]
    async fn each_page_answers_and_readiness_says_what_is_missing() {
        let (site, readiness) = site();
        let server = serve(loopback(), routes(site), Access::everybody(), HostNames::new()).await.unwrap();
        let at = server.local_addr();
        let metrics = get(at, "/metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains(CONTENT_TYPE), "{metrics}");
        assert!(metrics.contains("\nforebay_inodes 3.0\n") && metrics.ends_with("# EOF\n"), "{metrics}");
        assert!(get(at, "/healthz").await.ends_with("\r\n\r\nok\n"));
        assert!(get(at, "/stats").await.ends_with("{\"answer\":42}"));
        assert!(get(at, "/readyz").await.starts_with("HTTP/1.1 200"));
        readiness.missing("mount", "it is being mounted");
        let unready = get(at, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(unready.ends_with(r#"{"missing":{"mount":"it is being mounted"},"ready":false}"#), "{unready}");
        readiness.there("mount");
        assert!(get(at, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(get(at, "/secret").await.starts_with("HTTP/1.1 404"));
        let posted = get(at, "/metrics HTTP/1.1\r\nhost: localhost\r\n\r\nPOST /metrics").await;
        assert!(posted.contains("405"), "{posted}");
        server.close().await;
        assert!(TcpStream::connect(at).await.is_err());
    }

    #[tokio::test]
    async fn those_who_say_nothing_keep_nobody_from_being_answered_and_hold_no_one_up_at_the_end() {
        let server = serve(loopback(), routes(site().0), Access::everybody(), HostNames::new()).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..4 * LIMITS.connections {
            silent.push(TcpStream::connect(server.local_addr()).await.unwrap());
        }
        let answered = tokio::time::timeout(LIMITS.head_within / 2, get(server.local_addr(), "/healthz")).await;
        assert!(answered.expect("no place is made").ends_with("ok\n"));
        let closed = tokio::time::timeout(Duration::from_secs(10), server.close()).await;
        assert!(closed.is_ok(), "it waits for those who say nothing");
        drop(silent);
    }

    #[tokio::test]
    async fn a_listener_for_probes_says_yes_or_no_and_no_more() {
        let (readiness, names) = (Readiness::new(), HostNames::new());
        let known = readiness.clone();
        let is_ready = move || std::future::ready(known.reasons().is_empty());
        let server = serve_health(loopback(), is_ready, names).await.unwrap();
        let at = server.local_addr();
        assert!(get(at, "/healthz").await.ends_with("\r\n\r\nok\n"));
        let ready = get(at, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 200") && ready.ends_with("\r\n\r\nready\n"), "{ready}");
        readiness.missing("mount", "s3://bucket is away");
        let unready = get(at, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.ends_with("\r\n\r\nnot ready\n"), "{unready}");
        for page in ["/", "/metrics", "/stats"] {
            assert!(get(at, page).await.starts_with("HTTP/1.1 404"), "{page}");
        }
        server.close().await;
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_told_by_its_number() {
        let server = serve(loopback(), routes(site().0), Access::everybody(), HostNames::new()).await.unwrap();
        let error = serve(server.local_addr(), routes(site().0), Access::everybody(), HostNames::new()).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&server.local_addr().to_string()), "{error}");
    }
}
