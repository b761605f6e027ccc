//! The REST interface: `/api/v1`, `/healthz` and `/readyz`.
//!
//! Any coordinator answers: reads from what it knows and from the state store, mounts, policies and drains by writing
//! there, where transactions keep order. Only jobs are the leader's: submitting and stopping one is passed on to it, and
//! its answer back (`forward`). Bodies are JSON and small, and say so in their type, which a page of another site cannot
//! send unasked.
//!
//! The routes are documented where they are handled, and the document is made of the routes, so neither can lack what
//! the other has. It is checked in as `docs/openapi.json`. What each asks of who wants it is a table, `permissions`. What a request
//! for a change is about, its handler notes for whoever keeps a record ([`forebay_metrics::About`]); what one is about that is
//! refused, its URL says (`named`).

mod cluster;
mod extract;
mod fault;
mod forward;
mod health;
mod jobs;
mod mounts;
mod named;
mod permissions;
mod policies;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::service::Service;
use crate::web;

use fault::Fault;
pub(crate) use fault::NO_LEADER;
pub(crate) use health::is_ready;
pub(crate) use named::subject_of_url;
pub(crate) use permissions::OPERATIONS;

pub use cluster::{ClusterStatus, Drain, StoreStatus, Version};
pub use fault::{ErrorBody, ErrorDetail};
pub use health::{Check, Health, Readiness};
pub use jobs::{JobList, Submitted};
pub use mounts::MountList;
pub use policies::{Policy, PolicyList};

pub use crate::mount::{Mount, MountAcl};
pub use crate::worker_stats::{HotFile, OneWorker, WorkerStats};

/// Bytes of a request's body, at most.
const MAX_BODY: usize = 64 << 10;
/// How long a request may take: several times the deadline of the state store.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Forebay coordinator",
        description = "Jobs, mounts, cache policies and the state of a Forebay cluster.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "jobs", description = "Bring files into the cache, or drop them"),
        (name = "mounts", description = "Which origin is where in the namespace"),
        (name = "policies", description = "How what lies below a path is cached"),
        (name = "cluster", description = "Members, their shares and their health"),
        (name = "health", description = "For those who restart and route"),
    )
)]
struct Document;

/// The OpenAPI document, as it is served and checked in.
#[must_use]
pub fn openapi_json() -> String {
    let (_, document) = described();
    // Made of texts, numbers and maps with texts as keys: its encoding cannot fail.
    let mut text = document.to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// Everything that a coordinator serves.
pub(crate) fn router(service: Arc<Service>) -> Router {
    let (routes, _) = described();
    let document: Arc<str> = openapi_json().into();
    let document = get(move || async move { ([(header::CONTENT_TYPE, "application/json")], document.to_string()) });
    routes
        .route("/api/v1/openapi.json", document)
        .merge(web::router())
        .fallback(no_such_place)
        .method_not_allowed_fallback(no_such_verb)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn(in_one_form))
        .layer(middleware::from_fn(safely))
        .with_state(service)
}

fn described() -> (Router<Arc<Service>>, utoipa::openapi::OpenApi) {
    let v1 = OpenApiRouter::new()
        .routes(routes!(jobs::submit, jobs::list))
        .routes(routes!(jobs::get))
        .routes(routes!(jobs::stop))
        .routes(routes!(mounts::add, mounts::list, mounts::remove))
        .routes(routes!(policies::set, policies::list, policies::remove))
        .routes(routes!(cluster::status))
        .routes(routes!(cluster::drain, cluster::undrain))
        .routes(routes!(cluster::stats))
        .routes(routes!(cluster::series))
        .routes(routes!(cluster::version));
    OpenApiRouter::with_openapi(Document::openapi())
        .nest("/api/v1", v1)
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .split_for_parts()
}

async fn no_such_place(request: Request) -> Fault {
    let message = format!("there is nothing at {}", request.uri().path());
    Fault::not_found(message, "see /api/v1/openapi.json for what there is")
}

async fn no_such_verb(request: Request) -> Fault {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    let remedy = "see /api/v1/openapi.json for what it takes";
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", message, remedy)
}

async fn in_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(ANSWER_WITHIN, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("no answer within {ANSWER_WITHIN:?}");
            Fault::new(StatusCode::GATEWAY_TIMEOUT, "TIMED_OUT", message, "look at /readyz, then try again")
                .into_response()
        }
    }
}

/// What the framework refuses by itself says so in text.
async fn in_one_form(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let (status, headers) = (response.status(), response.headers());
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes() == b"application/json");
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (code, message) = match status.is_client_error() {
        true => ("INVALID_ARGUMENT", "the request cannot be read"),
        false => ("INTERNAL", "the coordinator failed"),
    };
    Fault::new(status, code, message, "see /api/v1/openapi.json for what is taken").into_response()
}

/// Browsers are told to take nothing from elsewhere, and to keep nothing.
async fn safely(request: Request, next: Next) -> Response {
    const HEADERS: [(header::HeaderName, &str); 4] = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
