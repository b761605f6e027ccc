//! The web page: a few files that are part of the binary. They take everything they show from `/api/v1`.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::routing::get;

use crate::service::Service;

/// Where, of what type, and what.
const FILES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("../web/index.html")),
    ("/forebay.css", "text/css; charset=utf-8", include_str!("../web/forebay.css")),
    ("/forebay.js", "text/javascript; charset=utf-8", include_str!("../web/forebay.js")),
];

pub(crate) fn router() -> Router<Arc<Service>> {
    FILES.into_iter().fold(Router::new(), |router, (path, media_type, text)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, media_type)], text) }))
    })
}
