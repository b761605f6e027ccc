//! What a fuzzer shows to an HTTP listener, and which of that is let in.

use std::net::IpAddr;
use std::time::SystemTime;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use forebay_identity::LiveTokens;
use forebay_types::{Permission, Role};

use crate::access::{Access, Caller, Denial, token};
use crate::hosts::HostNames;

/// Headers that say by which name a listener is asked, and from which page.
const OF_HOSTS: [&str; 5] = ["host", "origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"];
/// What the listener is called here, and what is in front of it.
const NAMES: [&str; 4] = ["localhost", "node1", "node1.example.org", IN_FRONT];
const IN_FRONT: &str = "cache.example.com";

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

/// Somebody asks `node1.example.org`, in front of which is `cache.example.com`, for `uri`, with these values of headers: of those that say
/// by which name it is asked and from which page, each by its number, and of which HTTP takes some.
///
/// # Panics
/// When it is answered under another name, or to a page of another origin that is not only opened; when a refusal is more than a line.
pub fn hosts(reads: bool, uri: &str, lines: &[(u8, &[u8])]) {
    let Ok(uri) = uri.parse::<Uri>() else { return };
    let mut headers = HeaderMap::new();
    for (number, value) in lines {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(OF_HOSTS[usize::from(*number) % OF_HOSTS.len()], value);
        }
    }
    let method = if reads { Method::GET } else { Method::POST };
    let names = HostNames::new().with_own(NAMES[2]).with_listed([IN_FRONT]);
    if let Err(refusal) = names.judge(&method, &uri, &headers) {
        return assert!(!refusal.to_string().contains(char::is_control), "{refusal}");
    }
    let all = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    };
    let (hosts, origins) = (all("host"), all("origin"));
    assert!(hosts.len() == 1 && origins.len() <= 1, "{hosts:?} {origins:?}");
    let asked = host_of(uri.authority().map_or(hosts[0].as_str(), |authority| authority.as_str()));
    for name in [&host_of(&hosts[0]), &asked] {
        assert!(name.parse::<IpAddr>().is_ok() || NAMES.contains(&name.as_str()), "{name} is somebody else's");
    }
    for origin in origins {
        let page = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")).map(host_of);
        assert!(page.is_some_and(|page| page == IN_FRONT || page == asked), "a page of {origin} is answered");
    }
    let is_opened = reads && all("sec-fetch-mode") == ["navigate"] && all("sec-fetch-dest") == ["document"];
    assert!(is_opened || !all("sec-fetch-site").iter().any(|site| site == "cross-site"));
}

/// The host of `HOST` or `HOST:PORT`, in small letters.
fn host_of(authority: &str) -> String {
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next(),
        None => authority.split(':').next(),
    };
    let host = host.unwrap_or_default().to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    host.parse::<IpAddr>().map_or_else(|_| host.to_owned(), |address| address.to_string())
}
