//! A secret for a listener that every process of this machine reaches: who sends it in the head of a request is
//! answered.
//!
//! It goes to the person in the fragment of a URL, which a browser does not send, and from the page's memory into the
//! head of each request. So the page itself has to be open, and has nothing to hide.

use std::fmt;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;

use crate::refused::{self, Reason};

/// Bytes of chance.
const LENGTH: usize = 32;

/// A secret of this process. Cheap to clone.
#[derive(Clone)]
pub struct Token {
    text: Arc<str>,
    /// What is compared, in a time that tells nothing of the secret.
    hash: blake3::Hash,
}

impl Token {
    /// A new one, which nobody can guess.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; LENGTH];
        // The kernel gives as many at once, or fails.
        let given = rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
        if given != LENGTH {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { hash: blake3::hash(text.as_bytes()), text: text.into() })
    }

    /// The secret, for the one who may have it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// Whether a request has it, as `Authorization: Bearer TOKEN` (RFC 6750, 2.1).
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut said = headers.get_all(AUTHORIZATION).iter();
        let (Some(said), None) = (said.next(), said.next()) else { return false };
        let Some((scheme, secret)) = said.to_str().ok().and_then(|said| said.split_once(' ')) else { return false };
        scheme.eq_ignore_ascii_case("bearer") && blake3::hash(secret.trim().as_bytes()) == self.hash
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What a router demands.
struct Gate {
    token: Token,
    open: Vec<&'static str>,
}

/// `router`, of which all but the pages at the paths `open` is for those who have `token`.
pub fn demanding(router: Router, token: Token, open: impl IntoIterator<Item = &'static str>) -> Router {
    let gate = Gate { token, open: open.into_iter().collect() };
    router.layer(middleware::from_fn_with_state(Arc::new(gate), only_with_token))
}

async fn only_with_token(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if gate.open.contains(&request.uri().path()) || gate.token.is_in(request.headers()) {
        return next.run(request).await;
    }
    refused::count(Reason::Token);
    // In the form of the REST interface, which its clients understand.
    let error = json!({
        "code": "UNAUTHENTICATED",
        "message": "this is for those who have the token",
        "remedy": "open the URL that `forebay up --web` printed, or send `Authorization: Bearer` and the token in it",
    });
    let headers = [(WWW_AUTHENTICATE, "Bearer"), (X_CONTENT_TYPE_OPTIONS, "nosniff"), (CACHE_CONTROL, "no-store")];
    (StatusCode::UNAUTHORIZED, headers, Json(json!({ "error": error }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[&str]) -> HeaderMap {
        lines.iter().map(|line| (AUTHORIZATION, line.parse().unwrap())).collect()
    }

    #[test]
    fn only_the_whole_token_said_once_is_one() {
        let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
        let text = token.reveal();
        assert_eq!(text.len(), 2 * LENGTH);
        let bearer = format!("Bearer {text}");
        assert!(
            token.is_in(&headers(&[bearer.as_str()])) && token.is_in(&headers(&[format!("bearer {text} ").as_str()]))
        );
        let (basic, others) = (format!("Basic {text}"), format!("Bearer {}", other.reveal()));
        let refused: [&[&str]; 8] = [
            &[],
            &[text],
            &["Bearer "],
            &["Bearer"],
            &[&bearer[..bearer.len() - 1]],
            &[basic.as_str()],
            &[others.as_str()],
            &[bearer.as_str(), bearer.as_str()],
        ];
        for lines in refused {
            assert!(!token.is_in(&headers(lines)), "{lines:?}");
        }
        assert!(!format!("{token:?}").contains(text));
    }
}
