//! What every request passes before a page or an interface sees it: it asks one of our names ([`crate::hosts`]), and who asks may
//! do so ([`crate::access`]). What becomes of it is recorded, where that is wanted ([`crate::audit`]).

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use forebay_types::{Permission, Role};
use serde_json::json;
use tracing::debug;

use crate::access::{Access, Caller, Denial, Judgement, Operation};
use crate::audit::{RequestAudit, answered, turned_away};
use crate::hosts::{HostNames, Refusal};
use crate::refused::{self, Reason};

/// What is asked of those who ask.
pub(crate) struct Gate {
    pub(crate) access: Access,
    pub(crate) operations: &'static [Operation],
}

/// `router`, which answers to `hosts` alone, and to those whom `gate` lets in.
pub(crate) fn guarded(router: Router, gate: Gate, hosts: HostNames) -> Router {
    let gate = Arc::new(gate);
    let router = router.layer(middleware::from_fn_with_state(Arc::clone(&gate), only_who_may));
    router.layer(middleware::from_fn_with_state((gate, Arc::new(hosts)), only_ours))
}

/// Answers those who speak no TLS where nothing else is spoken.
pub(crate) fn tls_only(access: &Access) -> Router {
    let access = access.clone();
    Router::new().fallback(move |request: Request| {
        let why = "this listener speaks TLS only";
        let remedy = "ask for https://, or, with `forebay`, set `security.mode` as it is set there";
        refused::count(Reason::Plain);
        turned_away(&access, request.extensions().get().copied(), why);
        let mut answer = told(StatusCode::BAD_REQUEST, "TLS_ONLY", why, remedy);
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        std::future::ready(answer)
    })
}

async fn only_who_may(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let (nobody, permission) = (Caller(None), gate.permission(&request));
    let caller = request.extensions().get().unwrap_or(&nobody);
    let Judgement { by_token, verdict } = gate.access.judge(permission, caller, request.headers(), SystemTime::now());
    let audit = gate.audit(&request, by_token);
    if let Err(denial) = verdict {
        audit.iter().for_each(|audit| audit.refused(&gate.access.subject_of(&request), &denial));
        return deny(denial);
    }
    let pending = audit.and_then(|audit| audit.begin(request.method(), permission));
    if let Some(pending) = &pending {
        request.extensions_mut().insert(pending.about());
    }
    let response = next.run(request).await;
    answered(pending, response.status());
    response
}

impl Gate {
    /// Who records what becomes of a request that shows a token of this role.
    fn audit(&self, request: &Request, by_token: Option<Role>) -> Option<RequestAudit> {
        self.access.audit().map(|auditing| RequestAudit::of(auditing, request, by_token))
    }

    /// What a request asks for.
    fn permission(&self, request: &Request) -> Option<Permission> {
        // Whoever answers GET answers HEAD.
        let asked = if request.method() == Method::HEAD { "GET" } else { request.method().as_str() };
        let path = request.extensions().get().map(MatchedPath::as_str);
        let known = self.operations.iter().find(|(method, place, _)| *method == asked && Some(*place) == path);
        known.map_or(Some(Permission::Administer), |(.., permission)| *permission)
    }
}

fn deny(denial: Denial) -> Response {
    debug!(%denial, "a request is refused");
    let message = denial.to_string();
    match denial {
        Denial::Unproved => {
            refused::count(Reason::Proof);
            let remedy = "present a certificate of this cluster, or a bearer token in `Authorization`; that of \
                          `forebay up --web` is in the URL that it printed";
            let mut answer = told(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", &message, remedy);
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            // A certificate that has expired since it was shown can be shown anew.
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            answer
        }
        Denial::Role(..) => {
            refused::count(Reason::Role);
            let remedy = "ask with a certificate or a token of a role that may";
            told(StatusCode::FORBIDDEN, "PERMISSION_DENIED", &message, remedy)
        }
    }
}

async fn only_ours(State((gate, hosts)): State<(Arc<Gate>, Arc<HostNames>)>, request: Request, next: Next) -> Response {
    match hosts.judge(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => {
            let subject = || gate.access.subject_of(&request);
            gate.audit(&request, None).iter().for_each(|audit| audit.refused(&subject(), &refusal));
            refuse(&refusal)
        }
    }
}

fn refuse(refusal: &Refusal) -> Response {
    refused::count(match refusal {
        Refusal::Malformed => Reason::Malformed,
        Refusal::Host(_) => Reason::Host,
        Refusal::Origin => Reason::Origin,
    });
    debug!(%refusal, "a request is refused");
    told(refusal.status(), refusal.code(), &refusal.to_string(), refusal.remedy())
}

/// In the form of the REST interface, which its clients understand.
fn told(status: StatusCode, code: &str, message: &str, remedy: &str) -> Response {
    let error = json!({ "code": code, "message": message, "remedy": remedy });
    let headers = [(X_CONTENT_TYPE_OPTIONS, "nosniff"), (CACHE_CONTROL, "no-store")];
    (status, headers, Json(json!({ "error": error }))).into_response()
}
