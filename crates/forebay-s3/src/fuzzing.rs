//! What a fuzzer asks of the endpoint before anything is looked up: requests, keys, tokens, tags of parts, hosts, and bodies in chunks;
//! and what it writes into the file of those who may ask.
//!
//! The library that checks signatures takes requests apart in its own way. What it reads is read here once more, as it does that, since
//! what is asked of a request holds for the library's reading, and ours alone is worth nothing.

use std::collections::VecDeque;
use std::path::Path;

use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use bytes::Bytes;
use forebay_identity::Scope;
use forebay_types::{FsPath, Role};
use percent_encoding::percent_decode_str;
use s3s::host::S3Host as _;

use crate::bucket::{Buckets, is_bucket_name, place};
use crate::chunks::{ChunkError, Chunks, MAX_SIGNED};
use crate::etag::PartTag;
use crate::gate;
use crate::hosts::Domains;
use crate::keyring::keys;
use crate::listing::{key_of_token, token};

/// The header that says what a body is. A URL that is signed does not hold it.
const OF_BODY: &str = "x-amz-content-sha256";
/// The longest that a signed URL is good.
const WEEK_SECONDS: u64 = 7 * 24 * 3600;
/// Characters that a secret has at least.
const SECRET: usize = 32;
/// Digits of the size of a chunk that the library reads.
const DIGITS: usize = 8;

/// A request comes, with these headers, of which HTTP takes some.
///
/// # Panics
/// When the gate lets it through, and the library would read of its signature that it leaves out what it must hold; when a refusal is more
/// than a line of a log.
pub fn request(method: &[u8], uri: &str, lines: &[(&[u8], &[u8])]) {
    let (Ok(method), Ok(uri)) = (Method::from_bytes(method), uri.parse::<Uri>()) else { return };
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    if let Err(refusal) = gate::check(&method, &uri, &headers) {
        let told = refusal.message().unwrap_or_default();
        return assert!(!told.is_empty() && !told.contains(char::is_control), "{told:?}");
    }
    assert_eq!(headers.get_all(HOST).iter().count(), 1);
    assert!(!gate::is_in_chunks(&headers) || method == Method::PUT);
    let is_form = |value: &HeaderValue| value.as_bytes().to_ascii_lowercase().starts_with(b"multipart/form-data");
    assert!(method != Method::POST || !headers.get_all(CONTENT_TYPE).iter().any(is_form));
    let pairs = pairs(uri.query().unwrap_or_default());
    let only = |name: &str| {
        let mut named = pairs.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        named.next().filter(|_| named.next().is_none())
    };
    let is_presigned = pairs.iter().any(|(name, _)| name == "X-Amz-Signature");
    let authorization = headers.get("authorization").and_then(|value| std::str::from_utf8(value.as_bytes()).ok());
    assert!(is_presigned != authorization.is_some(), "one signature");
    let signed = match authorization {
        Some(authorization) => signed(authorization),
        None => only("X-Amz-SignedHeaders").filter(|_| is_credential(only("X-Amz-Credential"))),
    };
    // Else the library refuses it.
    let Some(signed) = signed else { return };
    if let (true, Some(expires)) = (is_presigned, only("X-Amz-Expires").and_then(|text| text.parse::<u32>().ok())) {
        assert!(u64::from(expires) <= WEEK_SECONDS);
    }
    for (name, value) in &headers {
        let name = name.as_str();
        let may_be_left_out = is_presigned && name == OF_BODY;
        if name == HOST.as_str() || (name.starts_with("x-amz-") && !may_be_left_out) {
            let is_text = std::str::from_utf8(value.as_bytes()).is_ok();
            assert!(is_text && signed.split(';').any(|signed| name == signed), "{name} is not in {signed:?}");
        }
    }
}

/// The names and values of a query, as the library decodes them.
fn pairs(query: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let split = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    };
    query.split('&').filter(|pair| !pair.is_empty()).map(split).collect()
}

/// The list of headers that are signed, as the library reads it in `Authorization`; `None` if it reads none.
fn signed(authorization: &str) -> Option<&str> {
    let space = |letter: char| letter.is_ascii_whitespace();
    let (_algorithm, rest) = authorization.split_once(space)?;
    let rest = rest.trim_start_matches(space).strip_prefix("Credential=")?;
    let rest = after_credential(rest)?.strip_prefix(',')?.trim_start_matches(space);
    let (signed, rest) = rest.strip_prefix("SignedHeaders=")?.split_once(',')?;
    rest.trim_start_matches(space).strip_prefix("Signature=")?;
    Some(signed)
}

/// What follows a credential of a service that the library knows.
fn after_credential(text: &str) -> Option<&str> {
    let (_access, rest) = text.split_once('/')?;
    let (date, rest) = rest.split_once('/')?;
    let (_region, rest) = rest.split_once('/')?;
    let (service, rest) = rest.split_once('/')?;
    let is_known =
        date.len() == DIGITS && date.bytes().all(|byte| byte.is_ascii_digit()) && ["s3", "sts"].contains(&service);
    rest.strip_prefix("aws4_request").filter(|_| is_known)
}

fn is_credential(text: Option<&str>) -> bool {
    text.and_then(after_credential) == Some("")
}

/// A client names a bucket and a key in it.
///
/// # Panics
/// When they lead out of the bucket, or to another place than they say.
pub fn key(bucket: &str, key: &str) {
    let Some(root) = Buckets::default().path(bucket) else { return assert!(!is_bucket_name(bucket)) };
    assert_eq!(root.as_bytes(), format!("/{bucket}").as_bytes());
    for root in [root, FsPath::root()] {
        let Some(place) = place(&root, key) else { continue };
        let names = key.strip_suffix('/').unwrap_or(key);
        assert_eq!(place.path.relative_to(&root), Some(names.as_bytes()));
        assert_eq!(place.is_directory, key.ends_with('/'));
        assert!(names.split('/').all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0')));
    }
}

/// A client asks for the page of `text`.
///
/// # Panics
/// When it is not written again as it was, or a key has a token that is another's.
pub fn continuation(text: &str) {
    assert_eq!(key_of_token(&token(text)).as_deref(), Some(text));
    if let Some(key) = key_of_token(text) {
        assert!(token(&key).eq_ignore_ascii_case(text));
    }
}

/// A client says that this is the tag of a part.
///
/// # Panics
/// When two texts are one tag, or a tag is not known again.
pub fn part(text: &str, size: u64) {
    if let Some(part) = PartTag::decode(text) {
        assert_eq!(part.encode(), text);
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'));
    }
    let part = PartTag { tag: text.to_owned(), size };
    assert_eq!(PartTag::decode(&part.encode()), Some(part));
}

/// A client asks for something at `host`.
///
/// # Panics
/// When the bucket that it names is not what stands before one of `domains`.
pub fn host(domains: &[&str], host: &str) {
    let known = Domains::new(domains.iter().map(|domain| (*domain).to_owned()));
    let Ok(named) = known.parse_host_header(host) else { return };
    let Some(bucket) = named.bucket() else { return };
    let rest = host.strip_prefix(bucket).and_then(|rest| rest.strip_prefix('.'));
    let domain = rest.map(|rest| rest.rsplit_once(':').map_or(rest, |(name, _)| name));
    let is_known = domain.is_some_and(|domain| domains.iter().any(|known| known.eq_ignore_ascii_case(domain)));
    assert!(is_known && !bucket.is_empty(), "{bucket:?} of {host:?}");
}

/// A file of keys says this.
///
/// # Panics
/// When a key is not read again as it was, or one is left out; when anything shows a secret, or a refusal is more than a line of a log.
pub fn key_file(text: &str) {
    let (path, scope) = (Path::new("keys"), Scope::new("forebay", "prod"));
    let scope = scope.unwrap_or_else(|error| unreachable!("{error}"));
    let known = match keys(text, path, &scope) {
        Ok(known) => known,
        Err(refusal) => {
            let told = refusal.to_string();
            assert!(!told.contains(char::is_control), "{told:?}");
            // No word of ours is so long.
            let mut long = text.split_whitespace().filter(|word| word.len() >= SECRET);
            return assert!(!long.any(|word| told.contains(word)), "{told:?}");
        }
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(lines.count(), known.len());
    let mut written = String::new();
    for (access, key) in &known {
        let (role, name, secret) = (key.identity.role(), key.identity.name(), key.secret.as_str());
        assert!(matches!(role, Role::Reader | Role::Writer | Role::Admin), "{role}");
        let may_be_shown = name.contains(secret.trim_matches(|letter: char| matches!(letter, '"' | ',')));
        assert!(secret.len() >= SECRET && (may_be_shown || !format!("{key:?}").contains(secret)));
        written += &format!("{access} {secret} {role} {name}\n");
    }
    let again = keys(&written, path, &scope).unwrap_or_else(|error| unreachable!("{error}"));
    assert_eq!(again.len(), known.len());
    let is_same = known.iter().all(|(access, key)| {
        again.get(access).is_some_and(|again| again.identity == key.identity && again.secret == key.secret)
    });
    assert!(is_same, "another key is read again");
}

/// A body in chunks comes, in pieces that end at these places.
///
/// # Panics
/// When another body goes on than came, or another one in pieces than in one; when a chunk that goes on is longer than what is kept for one.
pub fn chunks(body: &[u8], ends: &[usize]) {
    let whole = passed(&[body]);
    let mut pieces = Vec::new();
    let mut rest = body;
    for end in ends {
        let (piece, after) = rest.split_at((*end).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    let longest = pieces.iter().map(|piece| piece.len()).max().unwrap_or_default();
    let passed = passed(&pieces);
    assert_eq!(passed.as_ref().err(), whole.as_ref().err());
    let (Ok(passed), Ok(whole)) = (passed, whole) else { return };
    let [came, went, went_whole] = [body, &passed, &whole].map(decoded);
    assert_eq!((&went.bytes, went.rest), (&went_whole.bytes, went_whole.rest));
    assert!(went.longest <= longest.max(MAX_SIGNED as usize), "{}", went.longest);
    // What is cut off goes on as far as it came.
    assert_eq!(went.bytes, came.bytes);
    assert_eq!(went.rest, came.rest);
}

/// What goes on of a body that comes in these pieces.
fn passed(pieces: &[&[u8]]) -> Result<Vec<u8>, ChunkError> {
    let (mut chunks, mut on, mut passed) = (Chunks::new(), VecDeque::<Bytes>::new(), Vec::new());
    for piece in pieces {
        let mut came = Bytes::copy_from_slice(piece);
        while !came.is_empty() {
            chunks.step(&mut came, &mut on)?;
            on.drain(..).for_each(|bytes| passed.extend_from_slice(&bytes));
        }
    }
    Ok(passed)
}

/// A body in chunks as it is read to its end, or to where it was cut off.
struct Decoded<'a> {
    bytes: Vec<u8>,
    longest: usize,
    /// What follows the last chunk, if that came.
    rest: Option<&'a [u8]>,
}

fn decoded(mut body: &[u8]) -> Decoded<'_> {
    let mut decoded = Decoded { bytes: Vec::new(), longest: 0, rest: None };
    while let Some(at) = body.iter().position(|byte| *byte == b'\n') {
        let (line, after) = (&body[..at], &body[at + 1..]);
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let text = std::str::from_utf8(&line[..digits]).unwrap_or_default();
        let size = u64::from_str_radix(text, 16).unwrap_or_default();
        if size == 0 {
            decoded.rest = Some(after);
            break;
        }
        let length = after.len().min(usize::try_from(size).unwrap_or(usize::MAX));
        decoded.bytes.extend_from_slice(&after[..length]);
        decoded.longest = decoded.longest.max(length);
        body = after.get(length + 2..).unwrap_or_default();
    }
    decoded
}
