//! What requests carry, checked, with faults that say what is wrong in the interface's own form.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use forebay_types::FsPath;
use serde::de::DeserializeOwned;

use super::fault::Fault;

/// A body that may be sent.
pub(crate) trait RequestBody: DeserializeOwned {
    /// Whether a message about a malformed body may tell what is in it.
    const MAY_BE_TOLD: bool = true;
}

/// A JSON body. It must say that it is JSON, which a page of another site cannot without being asked for permission.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: RequestBody, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Fault;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Fault> {
        let content_type = request.headers().get("content-type").and_then(|value| value.to_str().ok());
        let media_type = content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case("application/json") {
            let (status, code) = (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UNSUPPORTED_MEDIA_TYPE");
            return Err(Fault::new(status, code, "the body is not JSON", "send `content-type: application/json`"));
        }
        let bytes = whole(request).await?;
        let parsed = serde_json::from_slice(&bytes).map_err(|error| {
            let place = format!("line {} column {}", error.line(), error.column());
            let what = if T::MAY_BE_TOLD { error.to_string() } else { format!("it is malformed at {place}") };
            Fault::invalid(format!("the body cannot be read: {what}"), "see /api/v1/openapi.json for its form")
        })?;
        Ok(Self(parsed))
    }
}

/// All bytes of a body, of which there are few.
pub(super) async fn whole(request: Request) -> Result<Bytes, Fault> {
    Bytes::from_request(request, &()).await.map_err(|rejection| {
        let remedy = "send less: no body of this interface is so large";
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Fault::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", "the body is too large", remedy)
            }
            _ => Fault::invalid("the body did not arrive", "send it again"),
        }
    })
}

/// The part of the URL after `?`.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Fault> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => Err(Fault::invalid(rejection.body_text(), "see /api/v1/openapi.json for what is taken")),
        }
    }
}

/// A path that someone sent.
pub(super) fn path_of(text: &str) -> Result<FsPath, Fault> {
    FsPath::new(text).map_err(|error| Fault::invalid(error, "give an absolute path of the namespace, `/s3/data`"))
}
