//! What a fuzzer shows to an HTTP listener, and which of that is let in.

use std::time::SystemTime;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use forebay_identity::LiveTokens;
use forebay_types::{Permission, Role};

use crate::access::{Access, Caller, Denial, token};

/// Somebody asks with these values of `Authorization`, of which HTTP takes some, where `secret` is the token of `role`.
///
/// # Panics
/// When something else than one `Bearer` and the token is let in, or that is not, or may do what its role may not.
pub fn authorization(values: &[&[u8]], secret: &str, role: Role) {
    let mut headers = HeaderMap::new();
    let mut sent = Vec::new();
    for value in values {
        if let Ok(header) = HeaderValue::from_bytes(value) {
            headers.append(AUTHORIZATION, header);
            sent.push(*value);
        }
    }
    let shown = token(&headers);
    if let Some(shown) = shown {
        assert!(sent.len() == 1 && !shown.starts_with(' ') && !shown.ends_with(' '));
        assert!(sent[0].get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer ")));
        assert!(sent[0].ends_with(shown.as_bytes()) || sent[0].ends_with(b" ") || sent[0].ends_with(b"\t"));
    }
    let is_known = shown == Some(secret);
    let access = Access::by_token(LiveTokens::only(secret, role));
    for permission in Permission::ALL {
        let judged = access.judge(Some(permission), &Caller(None), &headers, SystemTime::UNIX_EPOCH);
        let expected = match is_known {
            true if role.may(permission) => Ok(()),
            true => Err(Denial::Role(role, permission)),
            false => Err(Denial::Unproved),
        };
        assert_eq!((judged.by_token, judged.verdict), (is_known.then_some(role), expected));
    }
    let nobody = Access::by_token(LiveTokens::only("", role));
    let judged = nobody.judge(Some(Permission::Observe), &Caller(None), &HeaderMap::new(), SystemTime::UNIX_EPOCH);
    assert_eq!(judged.verdict, Err(Denial::Unproved), "who shows nothing is nobody");
}
