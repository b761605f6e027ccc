//! What a request must be before anything else is looked at: signed as AWS4-HMAC-SHA256 asks, and with all that its
//! signature has to hold. Pure.
//!
//! The library that checks signatures takes more than we do, and believes headers that no signature holds. Somebody
//! with a URL that was signed to put one object could add `x-amz-copy-source` to it, and read with it what the signer
//! may read. So, as Amazon does, we take no such header that is not signed; nor the older signatures, which are made
//! with SHA-1; nor forms that browsers post.

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderMap, HeaderValue, Method, Uri};
use percent_encoding::percent_decode_str;
use s3s::{S3Error, S3ErrorCode};

/// What is demanded of a signature.
const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// What the end of a credential's scope is.
const SCOPE_END: &str = "/s3/aws4_request";
/// What of a URL is its signature.
const SIGNATURE: &str = "X-Amz-Signature";
/// The only header that may go along with a URL that was signed before its body was known.
const OF_BODY: &str = "x-amz-content-sha256";
/// What that says of a body in the encoding `aws-chunked` begins with.
const IN_CHUNKS: &str = "STREAMING-";
/// How long a URL that is signed may be good, as Amazon has it: a week.
const MAX_EXPIRES_SECONDS: u64 = 7 * 24 * 3600;
/// What a query asks for instead of the object itself. The library knows no such operation for PUT and DELETE, and would
/// write or delete the object: that of a directory bucket which renames would make an empty one.
const NOT_THE_OBJECT: [&str; 9] =
    ["append", "attributes", "delete", "encryption", "renameObject", "restore", "select", "torrent", "uploads"];
/// How many headers a message names.
const MAX_NAMED: usize = 5;

/// Checks what a request says of its signature; the signature itself is checked later.
///
/// # Errors
/// Why it is not looked at, as a client is told.
pub(crate) fn check(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), S3Error> {
    if headers.get_all(HOST).iter().count() != 1 {
        return Err(refused(S3ErrorCode::InvalidRequest, "a request has one `Host`"));
    }
    if *method == Method::POST && headers.get_all(CONTENT_TYPE).iter().any(is_form) {
        return Err(refused(S3ErrorCode::NotImplemented, "forms of browsers are not taken; use a URL that is signed"));
    }
    check_body(method, headers)?;
    let query = Query(uri.query().unwrap_or_default());
    check_object(method, &query)?;
    let shown = headers.get_all(AUTHORIZATION).iter().count();
    let (credential, signed, is_presigned) = match (shown, query.has(SIGNATURE)) {
        _ if query.has("Signature") || query.has("AWSAccessKeyId") => return Err(other_algorithm()),
        (0, false) => {
            return Err(refused(S3ErrorCode::AccessDenied, "requests have to be signed; `forebay key s3` makes a key"));
        }
        (0, true) => {
            check_expires(&query)?;
            (query.get("X-Amz-Credential"), query.get("X-Amz-SignedHeaders"), true)
        }
        (1, false) => {
            let authorization = only(headers, AUTHORIZATION.as_str()).unwrap_or_default();
            let fields = authorization.strip_prefix(ALGORITHM).ok_or_else(other_algorithm)?;
            // Or the library takes for the name of the algorithm what is taken for fields here.
            if !fields.starts_with(' ') {
                return Err(other_algorithm());
            }
            (field(fields, "Credential"), field(fields, "SignedHeaders"), false)
        }
        _ => {
            return Err(refused(
                S3ErrorCode::InvalidArgument,
                "a request has one signature, in `Authorization` or in its URL",
            ));
        }
    };
    let (Some(credential), Some(signed)) = (credential, signed) else {
        let message = "the signature does not say its credential, or which headers are signed";
        return Err(refused(S3ErrorCode::AuthorizationHeaderMalformed, message));
    };
    if !credential.ends_with(SCOPE_END) {
        let message = format!("the scope of the credential does not end in `{SCOPE_END}`");
        return Err(S3Error::with_message(S3ErrorCode::AuthorizationHeaderMalformed, message));
    }
    check_signed(headers, &signed, is_presigned)
}

/// The query of a URL without its signature, if that is in it.
pub(crate) fn without_signature(query: &str) -> String {
    let others: Vec<&str> = query.split('&').filter(|pair| !Query(pair).has(SIGNATURE)).collect();
    others.join("&")
}

/// Whether a body comes in the encoding `aws-chunked`, as the library sees it.
pub(crate) fn is_in_chunks(headers: &HeaderMap) -> bool {
    only(headers, OF_BODY).is_some_and(|value| value.starts_with(IN_CHUNKS))
}

/// That of a body is said once what it is, and that only an object comes in chunks: of all else the library keeps what
/// comes, and knows no bound of a chunk.
fn check_body(method: &Method, headers: &HeaderMap) -> Result<(), S3Error> {
    if headers.get_all(OF_BODY).iter().count() > 1 {
        return Err(refused(S3ErrorCode::InvalidRequest, "a request has one `x-amz-content-sha256`"));
    }
    if is_in_chunks(headers) && *method != Method::PUT {
        return Err(refused(S3ErrorCode::InvalidRequest, "only objects and parts of uploads are sent in chunks"));
    }
    Ok(())
}

/// That what is written or deleted is what the query says.
fn check_object(method: &Method, query: &Query<'_>) -> Result<(), S3Error> {
    if *method != Method::PUT && *method != Method::DELETE {
        return Ok(());
    }
    if let Some(name) = NOT_THE_OBJECT.iter().find(|name| query.has(name)) {
        let message = format!("`{method}` with `?{name}` is not carried out here");
        return Err(S3Error::with_message(S3ErrorCode::NotImplemented, message));
    }
    // An upload is given up without a number; a part of one has both.
    let (is_of_upload, is_part) = (query.has("uploadId"), query.has("partNumber"));
    if is_part != is_of_upload && (*method == Method::PUT || is_part) {
        let message = "a part of an upload has both a `partNumber` and an `uploadId`";
        return Err(refused(S3ErrorCode::InvalidArgument, message));
    }
    Ok(())
}

/// That a URL is not good for longer than Amazon's may be: whoever finds one has what it is for.
fn check_expires(query: &Query<'_>) -> Result<(), S3Error> {
    let expires = query.get("X-Amz-Expires").and_then(|expires| expires.parse::<u64>().ok());
    if expires.is_none_or(|seconds| seconds > MAX_EXPIRES_SECONDS) {
        let message = "a signed URL says in `X-Amz-Expires` for how long it is good: a week at most, in seconds";
        return Err(refused(S3ErrorCode::AuthorizationQueryParametersError, message));
    }
    Ok(())
}

/// Whether this is the type of a form, however it goes on: the library takes more text than ASCII.
fn is_form(content_type: &HeaderValue) -> bool {
    const FORM: &[u8] = b"multipart/form-data";
    content_type.as_bytes().trim_ascii_start().get(..FORM.len()).is_some_and(|start| start.eq_ignore_ascii_case(FORM))
}

/// That each header counts in the signature that may change what a request asks for.
fn check_signed(headers: &HeaderMap, signed: &str, is_presigned: bool) -> Result<(), S3Error> {
    let signed: Vec<&str> = signed.split(';').collect();
    let has_to_be =
        |name: &str| (name.starts_with("x-amz-") && !(is_presigned && name == OF_BODY)) || name == HOST.as_str();
    // The library passes over what is no text, wherever it is named.
    let counts =
        |name: &str, value: &HeaderValue| signed.contains(&name) && std::str::from_utf8(value.as_bytes()).is_ok();
    let named = headers.iter().map(|(name, value)| (name.as_str(), value));
    let unsigned = named.filter(|(name, value)| has_to_be(name) && !counts(name, value)).map(|(name, _)| name);
    let unsigned: Vec<&str> = unsigned.take(MAX_NAMED).collect();
    if unsigned.is_empty() {
        return Ok(());
    }
    let message = format!("there are headers that are not signed: {}", unsigned.join(", "));
    Err(S3Error::with_message(S3ErrorCode::AccessDenied, message))
}

fn refused(code: S3ErrorCode, message: &'static str) -> S3Error {
    S3Error::with_message(code, message)
}

fn other_algorithm() -> S3Error {
    let message = "the authorization mechanism you have provided is not supported; please use AWS4-HMAC-SHA256";
    refused(S3ErrorCode::InvalidRequest, message)
}

/// The value of a header, if it is there once and is text.
pub(crate) fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// `VALUE` of `NAME=VALUE` in a list with commas. Spaces at its end belong to it, as the library has it: it looks for a
/// header of that name, and passes over one that is not there.
fn field(fields: &str, name: &str) -> Option<String> {
    let mut named = fields.split(',').filter_map(|field| field.trim_start().split_once('='));
    named.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
}

/// The query of a URL.
struct Query<'a>(&'a str);

impl Query<'_> {
    fn pairs(&self) -> impl Iterator<Item = (String, &str)> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        self.0.split('&').map(move |pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), value)
        })
    }

    fn has(&self, name: &str) -> bool {
        self.pairs().any(|(known, _)| known == name)
    }

    fn get(&self, name: &str) -> Option<String> {
        let found = self.pairs().find(|(known, _)| known == name);
        found.map(|(_, value)| percent_decode_str(value).decode_utf8_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    const CREDENTIAL: &str = "AWS4-HMAC-SHA256 Credential=KEY/20261126/us-east-1/s3/aws4_request";

    fn checked(method: Method, uri: &str, lines: &[(&'static str, &str)]) -> Result<(), (String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let told = |error: S3Error| (error.code().as_str().to_owned(), error.message().unwrap_or_default().to_owned());
        check(&method, &uri.parse().unwrap(), &headers).map_err(told)
    }

    fn code(checked: Result<(), (String, String)>) -> String {
        checked.unwrap_err().0
    }

    fn signed(headers: &str) -> String {
        format!("{CREDENTIAL}, SignedHeaders={headers}, Signature=abc")
    }

    fn presigned(headers: &str) -> String {
        let credential = "KEY%2F20261126%2Fus-east-1%2Fs3%2Faws4_request";
        format!("/b/k?X-Amz-Credential={credential}&X-Amz-Expires=60&X-Amz-SignedHeaders={headers}&X-Amz-Signature=abc")
    }

    #[test]
    fn a_signature_holds_the_host_and_all_that_amazon_reads() {
        let of = |headers: &str| {
            let authorization = signed(headers);
            checked(
                Method::GET,
                "/b/k",
                &[("host", "h"), ("x-amz-date", "d"), ("authorization", authorization.as_str())],
            )
        };
        assert_eq!(of("host;x-amz-date"), Ok(()));
        for headers in ["host", "x-amz-date", "hostx;x-amz-date", ""] {
            assert_eq!(code(of(headers)), "AccessDenied", "{headers}");
        }
        let authorization = signed("host");
        let with_range = [("host", "h"), ("range", "bytes=0-1"), ("authorization", authorization.as_str())];
        assert_eq!(checked(Method::GET, "/b/k", &with_range), Ok(()), "it is Amazon's rule, too");
    }

    #[test]
    fn a_signature_is_taken_out_of_a_url_however_it_is_written() {
        for (query, expected) in [
            ("", ""),
            ("X-Amz-Signature=abc", ""),
            ("partNumber=1&X-Amz-Signature=abc&uploadId=u%26", "partNumber=1&uploadId=u%26"),
            ("X%2DAmz-%53ignature&x-amz-signature=abc&a=X-Amz-Signature", "x-amz-signature=abc&a=X-Amz-Signature"),
        ] {
            assert_eq!(without_signature(query), expected, "{query}");
        }
    }

    #[test]
    fn a_url_that_was_signed_takes_no_header_that_changes_what_it_does() {
        let url = presigned("host");
        assert_eq!(checked(Method::PUT, &url, &[("host", "h")]), Ok(()));
        assert_eq!(checked(Method::PUT, &url, &[("host", "h"), ("x-amz-content-sha256", "e3b0")]), Ok(()));
        let copies = checked(Method::PUT, &url, &[("host", "h"), ("x-amz-copy-source", "/b/secret")]);
        let (code, message) = copies.unwrap_err();
        assert_eq!(code, "AccessDenied");
        assert!(message.contains("x-amz-copy-source"), "{message}");
        let both = presigned("host%3Bx-amz-acl");
        assert_eq!(checked(Method::PUT, &both, &[("host", "h"), ("x-amz-acl", "private")]), Ok(()));
    }

    #[test]
    fn what_is_not_signed_as_it_should_be_is_refused() {
        let host = ("host", "h");
        let old = "AWS KEY:c2lnbmF0dXJl";
        for (uri, lines, expected) in [
            ("/b/k", &[host][..], "AccessDenied"),
            ("/b/k", &[], "InvalidRequest"),
            ("/b/k", &[host, host], "InvalidRequest"),
            ("/b/k", &[host, ("authorization", old)], "InvalidRequest"),
            ("/b/k", &[host, ("authorization", "Bearer abc")], "InvalidRequest"),
            ("/b/k?AWSAccessKeyId=K&Signature=s&Expires=9", &[host], "InvalidRequest"),
            ("/b/k?S%69gnature=s", &[host], "InvalidRequest"),
            ("/b/k", &[host, ("authorization", CREDENTIAL)], "AuthorizationHeaderMalformed"),
            ("/b/k?X-Amz-Signature=s", &[host], "AuthorizationQueryParametersError"),
            ("/b/k?X-Amz-Signature=s&X-Amz-Expires=60", &[host], "AuthorizationHeaderMalformed"),
            ("/b/k?X-Amz-Signature=s&X-Amz-Expires=604801", &[host], "AuthorizationQueryParametersError"),
            ("/b/k?X-Amz-Signature=s", &[host, ("authorization", CREDENTIAL)], "InvalidArgument"),
            ("/b/k", &[host, ("authorization", CREDENTIAL), ("authorization", CREDENTIAL)], "InvalidArgument"),
        ] {
            assert_eq!(code(checked(Method::GET, uri, lines)), expected, "{uri} {lines:?}");
        }
        let sts = signed("host").replace("/s3/", "/sts/");
        let refused = checked(Method::GET, "/b/k", &[host, ("authorization", sts.as_str())]);
        assert_eq!(code(refused), "AuthorizationHeaderMalformed");
        let form = [host, ("content-type", "Multipart/Form-Data; boundary=x")];
        assert_eq!(code(checked(Method::POST, "/b", &form)), "NotImplemented");
    }

    #[test]
    fn no_header_is_signed_in_one_reading_of_a_signature_and_not_in_another() {
        let of = |authorization: &str| {
            let lines = [("host", "h"), ("x-amz-copy-source", "/b/secret"), ("authorization", authorization)];
            checked(Method::PUT, "/b/k", &lines)
        };
        assert_eq!(of(&signed("host;x-amz-copy-source")), Ok(()));
        // The library looks for the header `x-amz-copy-source `, finds none, and goes on without.
        for headers in ["host;x-amz-copy-source ", "host;x-amz-copy-source\t", "host; x-amz-copy-source"] {
            assert_eq!(code(of(&signed(headers))), "AccessDenied", "{headers:?}");
        }
        // It passes over a value that is no text.
        let authorization = HeaderValue::from_str(&signed("host;x-amz-copy-source")).unwrap();
        let headers = HeaderMap::from_iter([
            (HOST, HeaderValue::from_static("h")),
            (AUTHORIZATION, authorization),
            (HeaderName::from_static("x-amz-copy-source"), HeaderValue::from_bytes(b"/b/\xff").unwrap()),
        ]);
        let refusal = check(&Method::PUT, &Uri::from_static("/b/k"), &headers).unwrap_err();
        assert_eq!(refusal.code(), &S3ErrorCode::AccessDenied);
        // It takes all up to the first space for the name of the algorithm.
        let hidden = ",Credential=a/s3/aws4_request,SignedHeaders=host;x-amz-copy-source;z ";
        let twice = signed("host").replacen(' ', hidden, 1);
        assert_eq!(code(of(&twice)), "InvalidRequest", "{twice}");
        assert_eq!(code(of(&signed("host").replacen(' ', "\t", 1))), "InvalidRequest");
    }

    #[test]
    fn a_form_is_one_whatever_else_its_type_says() {
        for text in ["multipart/form-data; boundary=x; y=\"é\"", " MULTIPART/form-data", "multipart/form-data+x"] {
            assert!(is_form(&HeaderValue::from_bytes(text.as_bytes()).unwrap()), "{text}");
        }
        for text in ["", "multipart/form", "multipart/mixed; multipart/form-data", "application/xml"] {
            assert!(!is_form(&HeaderValue::from_static(text)), "{text}");
        }
    }

    #[test]
    fn only_objects_come_in_chunks_and_a_body_is_one_thing() {
        let authorization = signed("host;x-amz-content-sha256");
        let of = |method: Method, kinds: &[&str]| {
            let mut lines = vec![("host", "h"), ("authorization", authorization.as_str())];
            lines.extend(kinds.iter().map(|kind| ("x-amz-content-sha256", *kind)));
            checked(method, "/b/k", &lines)
        };
        let chunks = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";
        assert_eq!(of(Method::PUT, &[chunks]), Ok(()));
        assert_eq!(of(Method::POST, &["UNSIGNED-PAYLOAD"]), Ok(()));
        assert_eq!(code(of(Method::POST, &[chunks])), "InvalidRequest");
        assert_eq!(code(of(Method::PUT, &["UNSIGNED-PAYLOAD", chunks])), "InvalidRequest");
        let headers = HeaderMap::from_iter([(HeaderName::from_static(OF_BODY), HeaderValue::from_static(chunks))]);
        assert!(is_in_chunks(&headers) && !is_in_chunks(&HeaderMap::new()));
    }

    #[test]
    fn what_is_no_write_of_an_object_does_not_become_one() {
        let authorization = signed("host");
        let of = |method: &Method, query: &str| {
            let lines = [("host", "h"), ("authorization", authorization.as_str())];
            checked(method.clone(), &format!("/b/k?{query}"), &lines)
        };
        for (method, query, expected) in [
            (Method::PUT, "renameObject", Some("NotImplemented")),
            (Method::PUT, "%72enameObject=", Some("NotImplemented")),
            (Method::DELETE, "uploads", Some("NotImplemented")),
            (Method::PUT, "uploadId=u", Some("InvalidArgument")),
            (Method::PUT, "partNumber=1", Some("InvalidArgument")),
            (Method::DELETE, "partNumber=1", Some("InvalidArgument")),
            (Method::PUT, "partNumber=1&uploadId=u", None),
            (Method::PUT, "x-id=PutObject", None),
            (Method::DELETE, "uploadId=u", None),
            (Method::POST, "uploads", None),
            (Method::GET, "partNumber=1", None),
        ] {
            assert_eq!(of(&method, query).err().map(|(code, _)| code).as_deref(), expected, "{method} {query}");
        }
    }

    proptest! {
        #[test]
        fn no_request_makes_it_panic(authorization in "[ -~]{0,80}", query in "[a-zA-Z0-9%=&;-]{0,80}") {
            let uri = format!("/b/k?{query}");
            if uri.parse::<Uri>().is_ok() {
                let _ = checked(Method::GET, &uri, &[("host", "h"), ("authorization", authorization.as_str())]);
            }
        }
    }
}
