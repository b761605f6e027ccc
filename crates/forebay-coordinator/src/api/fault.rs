//! How the interface says that something did not work: `{"error": {"code", "message", "remedy"}}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forebay_state::StateError;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::runner::RunnerError;

/// The code of a refusal because no coordinator leads at the moment.
pub(crate) const NO_LEADER: &str = "NO_LEADER";

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What went wrong.
    pub error: ErrorDetail,
}

/// What went wrong, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// What a program can act on: `INVALID_ARGUMENT`, `NOT_FOUND`, `CONFLICT`, `NO_LEADER`, `UNAVAILABLE` …
    pub code: String,
    /// What a person reads.
    pub message: String,
    /// What to do next.
    pub remedy: String,
}

/// An answer that is not a success.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    status: StatusCode,
    code: &'static str,
    message: String,
    remedy: String,
}

impl Fault {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl ToString, remedy: &str) -> Self {
        Self { status, code, message: message.to_string(), remedy: remedy.to_owned() }
    }

    /// What was sent makes no sense.
    pub(crate) fn invalid(message: impl ToString, remedy: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", message, remedy)
    }

    /// There is no such thing.
    pub(crate) fn not_found(message: impl ToString, remedy: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", message, remedy)
    }

    /// There is one already.
    pub(crate) fn conflict(message: impl ToString, remedy: &str) -> Self {
        Self::new(StatusCode::CONFLICT, "CONFLICT", message, remedy)
    }

    /// No coordinator runs jobs now; one will.
    pub(crate) fn no_leader(message: impl ToString) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, NO_LEADER, message, "try again in a few seconds")
    }

    /// Another try may work.
    pub(crate) fn unavailable(message: impl ToString, remedy: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", message, remedy)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let Self { status, code, message, remedy } = self;
        let body = ErrorBody { error: ErrorDetail { code: code.to_owned(), message, remedy } };
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}

impl From<StateError> for Fault {
    fn from(error: StateError) -> Self {
        // The messages name the thing and, after the colon, the remedy.
        let text = error.to_string();
        let (message, remedy) = text.rsplit_once(": ").unwrap_or((&text, "look at the coordinator's log"));
        if error.is_unavailable() {
            return Self::unavailable(message, remedy);
        }
        if matches!(error, StateError::InvalidKey { .. }) {
            // Keys are made of the paths and names that were sent.
            return Self::invalid(
                message,
                "give a shorter one: there are about 500 bytes for it, of which a slash, and all but letters, digits, \
                 `-`, `_`, `.` and `~`, take three",
            );
        }
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "STATE_STORE", message, remedy)
    }
}

impl From<RunnerError> for Fault {
    fn from(error: RunnerError) -> Self {
        match error {
            RunnerError::Spec(problem) => Self::invalid(problem, "correct the job's options"),
            RunnerError::NoJob(_) => {
                Self::not_found(error, "list the jobs: those that ended are forgotten after a while")
            }
            RunnerError::TooMany(_) => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                Self::new(status, "TOO_MANY", error, "wait until some have ended, or stop some")
            }
            RunnerError::Deposed => Self::no_leader(error),
            RunnerError::Unclear { .. } => Self::unavailable(
                error,
                "it is listed, and runs when the state store answers again; stop it if it is not wanted any more",
            ),
            RunnerError::State(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_too_long_for_a_key_is_no_failure_of_ours() {
        let fault = Fault::from(StateError::InvalidKey { key: "mounts/a".to_owned(), reason: "it is too long" });
        assert_eq!((fault.status, fault.code), (StatusCode::BAD_REQUEST, "INVALID_ARGUMENT"));
        assert!(fault.message.contains("it is too long") && fault.remedy.contains("shorter"), "{fault:?}");
    }
}
