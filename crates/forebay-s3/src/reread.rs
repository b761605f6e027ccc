//! Requests whose headers the library reads otherwise than Amazon does.
//!
//! The library checks a signature over the headers as they came, and then reads these: nobody in between may change one
//! that is signed. But it gives a request to a route of ours once its signature was found good, if that wants it. Ours
//! wants the few that the library would misread. It changes their headers, and has the same operations called once
//! more: without the signature, which holds for what came, and with the access key of who made it ([`Signer`]).

use axum::http::header::{AUTHORIZATION, RANGE};
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, Uri};
use s3s::path::check_bucket_name;
use s3s::route::S3Route;
use s3s::service::S3Service;
use s3s::{Body, HttpError, HttpRequest, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::access::Signer;
use crate::copies::{COPY_SOURCE, Source};
use crate::gate;
use crate::ranges::{self, Meant};

/// What the library reads as the source of a copy in place of one that it would not take.
const STAND_IN: &str = "stand-in/key";

/// Takes the requests that the library would misread.
pub(crate) struct Reread {
    /// What carries them out, and looks at who signed them.
    service: S3Service,
}

impl Reread {
    pub(crate) fn by(service: S3Service) -> Self {
        Self { service }
    }
}

/// What is to be copied, where the library would not take it for that: from a bucket that Amazon could not have.
fn source(method: &Method, headers: &HeaderMap) -> Option<Source> {
    let text = gate::only(headers, COPY_SOURCE).filter(|_| *method == Method::PUT)?;
    Source::parse(text).filter(|source| !check_bucket_name(&source.bucket))
}

/// What the `Range` of a read is to be taken for, where the library would not take it for that.
fn range(method: &Method, headers: &HeaderMap) -> Option<Meant> {
    let is_read = *method == Method::GET || *method == Method::HEAD;
    let text = headers.get(RANGE).filter(|_| is_read)?.to_str().ok()?;
    Some(ranges::meant(text)).filter(|meant| *meant != Meant::This)
}

/// Has the library read what is meant.
fn settle(method: &Method, headers: &mut HeaderMap, extensions: &mut Extensions) {
    if let Some(meant) = range(method, headers) {
        headers.remove(RANGE);
        if let Meant::Other(range) = meant
            && let Ok(range) = HeaderValue::from_str(&range)
        {
            headers.insert(RANGE, range);
        }
    }
    if let Some(source) = source(method, headers) {
        headers.insert(COPY_SOURCE, HeaderValue::from_static(STAND_IN));
        extensions.insert(source);
    }
}

/// A URL without its signature; `None`: it has no query that could hold one.
fn without_signature(uri: &Uri) -> Option<Uri> {
    let query = gate::without_signature(uri.query()?);
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{query}", uri.path()).parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[async_trait::async_trait]
impl S3Route for Reread {
    fn is_match(&self, method: &Method, _: &Uri, headers: &HeaderMap, _: &mut Extensions) -> bool {
        source(method, headers).is_some() || range(method, headers).is_some()
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let S3Request { input, method, uri, mut headers, mut extensions, credentials, .. } = request;
        let unsigned = || S3Error::with_message(S3ErrorCode::AccessDenied, "requests have to be signed");
        let credentials = credentials.ok_or_else(unsigned)?;
        settle(&method, &mut headers, &mut extensions);
        headers.remove(AUTHORIZATION);
        extensions.insert(Signer(credentials.access_key));
        let mut settled = HttpRequest::new(input);
        *settled.method_mut() = method;
        *settled.uri_mut() = without_signature(&uri).unwrap_or(uri);
        *settled.headers_mut() = headers;
        *settled.extensions_mut() = extensions;
        let failed = |error: HttpError| S3Error::with_source(S3ErrorCode::InternalError, error.into());
        let (parts, body) = self.service.call(settled).await.map_err(failed)?.into_parts();
        let mut response = S3Response::with_status(body, parts.status);
        (response.headers, response.extensions) = (parts.headers, parts.extensions);
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use s3s::S3;
    use s3s::auth::Credentials;
    use s3s::dto::{CopyObjectInput, CopyObjectOutput, CopySource};
    use s3s::service::S3ServiceBuilder;

    use super::*;

    fn copying(text: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(COPY_SOURCE, HeaderValue::from_static(text));
        headers
    }

    #[test]
    fn copies_from_buckets_that_amazon_could_not_have_are_read_again() {
        let is_read_again = |method: Method, text: &'static str| source(&method, &copying(text)).is_some();
        for text in ["my_data/k", "/Data/k", "s3/a+b", "my_data%2Fk?versionId=null"] {
            assert!(is_read_again(Method::PUT, text), "{text}");
            assert!(CopySource::parse(text).is_err(), "the library takes {text}");
            assert!(!is_read_again(Method::GET, text), "{text}");
        }
        for text in ["", "sets/k", "/sets/a+b", "my_data", "my data/k"] {
            assert!(!is_read_again(Method::PUT, text), "{text}");
        }
        let mut two = copying("my_data/k");
        two.append(COPY_SOURCE, HeaderValue::from_static("Data/k"));
        assert!(source(&Method::PUT, &two).is_none());
        assert!(CopySource::parse(STAND_IN).is_ok());
    }

    #[test]
    fn a_range_of_a_read_is_read_as_amazon_does() {
        let settled = |method: Method, text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, HeaderValue::from_static(text));
            let is_read_again = range(&method, &headers).is_some();
            settle(&method, &mut headers, &mut Extensions::new());
            (is_read_again, headers.get(RANGE).map(|range| range.to_str().unwrap().to_owned()))
        };
        let kept = |text: &str| (false, Some(text.to_owned()));
        assert_eq!(settled(Method::GET, "bytes=2-3"), kept("bytes=2-3"));
        assert_eq!(settled(Method::PUT, "bytes=2-1"), kept("bytes=2-1"), "nothing is read of it");
        for method in [Method::GET, Method::HEAD] {
            assert_eq!(settled(method.clone(), "bytes=2-1"), (true, None));
            let long = settled(method, "bytes=2-99999999999999999999");
            assert_eq!(long, (true, Some("bytes=2-".to_owned())));
        }
    }

    #[test]
    fn a_url_goes_on_without_its_signature_alone() {
        let settled = |uri: &str| without_signature(&uri.parse().unwrap()).map(|uri| uri.to_string());
        assert_eq!(settled("/b/k"), None);
        assert_eq!(settled("/b/k?X-Amz-Signature=abc").as_deref(), Some("/b/k?"));
        let url = "/b/a%20b?partNumber=1&X-Amz-Signature=abc&uploadId=u%2B";
        assert_eq!(settled(url).as_deref(), Some("/b/a%20b?partNumber=1&uploadId=u%2B"));
    }

    /// Copies nothing, and tells what it was asked for.
    struct Telling;

    #[async_trait::async_trait]
    impl S3 for Telling {
        async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
            assert!(!request.headers.contains_key(AUTHORIZATION) && request.uri.query() == Some("x-id=CopyObject"));
            let Signer(access) = request.extensions.get::<Signer>().cloned().unwrap();
            let told = format!("{access} {:?}", Source::of(&request)?);
            Err(S3Error::with_message(S3ErrorCode::InvalidRequest, told))
        }
    }

    fn signed(headers: HeaderMap, credentials: Option<Credentials>) -> S3Request<Body> {
        S3Request {
            input: Body::empty(),
            method: Method::PUT,
            uri: Uri::from_static("/sets/copy?x-id=CopyObject&X-Amz-Signature=abc"),
            headers,
            extensions: Extensions::new(),
            credentials,
            region: None,
            service: None,
            trailing_headers: None,
        }
    }

    #[tokio::test]
    async fn what_is_read_again_goes_on_without_a_signature_in_the_name_of_who_signed_it() {
        let route = Reread::by(S3ServiceBuilder::new(Telling).build());
        let mut headers = copying("/my_data/a+b");
        headers.insert(AUTHORIZATION, HeaderValue::from_static("AWS4-HMAC-SHA256 abc"));
        let credentials = Credentials { access_key: "KEY".to_owned(), secret_key: "secret".into() };
        let response = route.call(signed(headers.clone(), Some(credentials))).await.unwrap();
        assert_eq!(response.status.map(|status| status.as_u16()), Some(400));
        let told = String::from_utf8(response.output.bytes().unwrap_or_default().to_vec()).unwrap();
        assert!(told.contains("KEY Source") && told.contains("my_data") && told.contains("a b"), "{told}");
        let refused = route.call(signed(headers, None)).await.unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::AccessDenied);
    }
}
