//! What every request passes before a page or an interface sees it ([`crate::hosts`]).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use serde_json::json;
use tracing::debug;

use crate::hosts::{HostNames, Refusal};
use crate::refused::{self, Reason};

/// `router`, which answers to `hosts` alone.
pub(crate) fn guarded(router: Router, hosts: HostNames) -> Router {
    router.layer(middleware::from_fn_with_state(Arc::new(hosts), only_ours))
}

async fn only_ours(State(hosts): State<Arc<HostNames>>, request: Request, next: Next) -> Response {
    match hosts.judge(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refuse(&refusal),
    }
}

fn refuse(refusal: &Refusal) -> Response {
    refused::count(match refusal {
        Refusal::Malformed => Reason::Malformed,
        Refusal::Host(_) => Reason::Host,
        Refusal::Origin => Reason::Origin,
    });
    debug!(%refusal, "a request is refused");
    // In the form of the REST interface, which its clients understand.
    let error = json!({ "code": refusal.code(), "message": refusal.to_string(), "remedy": refusal.remedy() });
    let headers = [(X_CONTENT_TYPE_OPTIONS, "nosniff"), (CACHE_CONTROL, "no-store")];
    (refusal.status(), headers, Json(json!({ "error": error }))).into_response()
}
