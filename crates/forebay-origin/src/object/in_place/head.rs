//! Heads of HTTP/1.1 requests and answers, and where a body ends (RFC 9112): pure.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use object_store::client::{HttpError, HttpErrorKind};
use url::{Position, Url};

/// The longest head of an answer that is taken.
pub(super) const MAX_HEAD: usize = 64 << 10;
/// The most headers of an answer.
const MAX_HEADERS: usize = 128;
const OUR_NAME: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Bytes that it takes.
    pub(super) length: usize,
    pub(super) framing: Framing,
    /// Whether the server leaves the connection open behind the body.
    pub(super) is_kept: bool,
}

/// How long the body behind a head is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// So many bytes.
    Length(u64),
    /// Each part of it says how long it is.
    Chunked,
    /// What comes until the server closes the connection.
    UntilClose,
}

/// An answer that makes no sense.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadHead {
    #[error("the head of the answer is longer than {MAX_HEAD} bytes")]
    Long,
    #[error("the head of the answer is not HTTP/1.1: {0}")]
    Malformed(#[from] httparse::Error),
    #[error("the answer does not say clearly how long its body is")]
    Framing,
    #[error("a part of the answer does not say how long it is")]
    Chunk,
    #[error("the server changes to another protocol, which nobody asked for")]
    Switched,
}

impl BadHead {
    pub(super) fn into_http_error(self) -> HttpError {
        HttpError::new(HttpErrorKind::Decode, self)
    }
}

/// The head of a GET of `url`.
pub(super) fn request(url: &Url, headers: &HeaderMap) -> Vec<u8> {
    let mut head = Vec::with_capacity(1 << 10);
    let mut line = |parts: [&[u8]; 4]| parts.into_iter().for_each(|part| head.extend_from_slice(part));
    line([b"GET ", url[Position::BeforePath..Position::AfterQuery].as_bytes(), b" HTTP/1.1", b"\r\n"]);
    // What was signed.
    line([b"host: ", url[Position::BeforeHost..Position::AfterPort].as_bytes(), b"", b"\r\n"]);
    if !headers.contains_key(USER_AGENT) {
        line([b"user-agent: ", OUR_NAME.as_bytes(), b"", b"\r\n"]);
    }
    // A `HeaderValue` has no end of a line in it.
    for (name, value) in headers.iter().filter(|(name, _)| **name != HOST) {
        line([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// The head that `bytes` begin with; `None` while there is only a part of it.
///
/// # Errors
/// When there will never be one.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Head>, BadHead> {
    let mut room = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut room);
    let length = match answer.parse(bytes)? {
        httparse::Status::Complete(length) => length,
        httparse::Status::Partial if bytes.len() < MAX_HEAD => return Ok(None),
        httparse::Status::Partial => return Err(BadHead::Long),
    };
    let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or(BadHead::Malformed(httparse::Error::Status))?;
    let mut headers = HeaderMap::with_capacity(answer.headers.len());
    for header in answer.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let name = name.map_err(|_| BadHead::Malformed(httparse::Error::HeaderName))?;
        let value = HeaderValue::from_bytes(header.value);
        headers.append(name, value.map_err(|_| BadHead::Malformed(httparse::Error::HeaderValue))?);
    }
    let framing = framing(status, &headers)?;
    let is_kept = answer.version == Some(1) && !says_close(&headers) && framing != Framing::UntilClose;
    Ok(Some(Head { status, headers, length, framing, is_kept }))
}

/// Section 6.3. What can be read in two ways is refused: the rest of the one could be taken for the next answer.
fn framing(status: StatusCode, headers: &HeaderMap) -> Result<Framing, BadHead> {
    if status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Ok(Framing::Length(0));
    }
    let number = |value: &HeaderValue| {
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<u64>().ok()
    };
    let lengths: Option<Vec<u64>> = headers.get_all(CONTENT_LENGTH).iter().map(number).collect();
    let lengths = lengths.ok_or(BadHead::Framing)?;
    let encodings: Vec<&HeaderValue> = headers.get_all(TRANSFER_ENCODING).iter().collect();
    match (&encodings[..], &lengths[..]) {
        ([], []) => Ok(Framing::UntilClose),
        ([], [length, others @ ..]) if others.iter().all(|other| other == length) => Ok(Framing::Length(*length)),
        ([encoding], []) if encoding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        _ => Err(BadHead::Framing),
    }
}

fn says_close(headers: &HeaderMap) -> bool {
    let mut words = headers.get_all(CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// A chunked body, as far as it came.
#[derive(Debug, Default)]
pub(super) struct Dechunked {
    /// Its whole parts, joined.
    pub(super) body: Vec<u8>,
    /// How many of the raw bytes these were.
    taken: usize,
}

impl Dechunked {
    /// `raw` is all that came. At the end of the body: what stands behind its last part, which is [`Self::END`] unless there are trailers,
    /// or not all has come. `None` before that.
    ///
    /// # Errors
    /// When there will never be an end.
    pub(super) fn advance<'a>(&mut self, raw: &'a [u8]) -> Result<Option<&'a [u8]>, BadHead> {
        loop {
            let left = raw.get(self.taken..).unwrap_or_default();
            let (start, size) = match httparse::parse_chunk_size(left) {
                Ok(httparse::Status::Complete((start, size))) => {
                    (start, usize::try_from(size).map_err(|_| BadHead::Chunk)?)
                }
                Ok(httparse::Status::Partial) => return Ok(None),
                Err(_) => return Err(BadHead::Chunk),
            };
            let left = left.get(start..).unwrap_or_default();
            if size == 0 {
                return Ok(Some(left));
            }
            let Some((chunk, rest)) = left.split_at_checked(size) else { return Ok(None) };
            match rest {
                [b'\r', b'\n', ..] => {}
                [] | [b'\r'] => return Ok(None),
                _ => return Err(BadHead::Chunk),
            }
            self.body.extend_from_slice(chunk);
            self.taken += start + size + 2;
        }
    }

    /// What ends a body without trailers.
    pub(super) const END: &'static [u8] = b"\r\n";
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head(text: &str) -> Head {
        parse(text.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn a_request_names_what_was_signed() {
        let url = Url::parse("http://Bucket.Host:80/a%20b?versionId=1#no").unwrap();
        let headers = HeaderMap::from_iter([
            (http::header::RANGE, HeaderValue::from_static("bytes=0-9")),
            (HOST, HeaderValue::from_static("another")),
        ]);
        let expected = format!(
            "GET /a%20b?versionId=1 HTTP/1.1\r\nhost: bucket.host\r\nuser-agent: {OUR_NAME}\r\nrange: bytes=0-9\r\n\r\n"
        );
        assert_eq!(String::from_utf8(request(&url, &headers)).unwrap(), expected);
        let url = Url::parse("https://[::1]:9000/b/o").unwrap();
        assert!(request(&url, &HeaderMap::new()).starts_with(b"GET /b/o HTTP/1.1\r\nhost: [::1]:9000\r\n"));
    }

    #[test]
    fn a_head_is_taken_once_it_is_whole() {
        let text = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nETag: \"a\"\r\n\r\nhello";
        let whole = text.len() - 5;
        for length in 0..whole {
            assert!(parse(&text.as_bytes()[..length]).unwrap().is_none(), "{length}");
        }
        let Head { status, headers, length, framing, is_kept } = head(text);
        assert_eq!((status.as_u16(), length, framing, is_kept), (206, whole, Framing::Length(5), true));
        assert_eq!(headers["etag"], "\"a\"");
    }

    #[test]
    fn where_a_body_ends_is_said_once_or_the_answer_is_refused() {
        let of = |lines: &str| {
            let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
            parse(text.as_bytes()).map(|head| head.unwrap()).map(|head| (head.framing, head.is_kept))
        };
        assert_eq!(of("content-length: 7\r\n"), Ok((Framing::Length(7), true)));
        assert_eq!(of("content-length: 7\r\ncontent-length: 7\r\n"), Ok((Framing::Length(7), true)));
        assert_eq!(of("content-length: 7\r\nconnection: x, Close\r\n"), Ok((Framing::Length(7), false)));
        assert_eq!(of("transfer-encoding: Chunked\r\n"), Ok((Framing::Chunked, true)));
        assert_eq!(of(""), Ok((Framing::UntilClose, false)));
        for unclear in [
            "content-length: 7\r\ncontent-length: 8\r\n",
            "content-length: +7\r\n",
            "content-length: 7, 7\r\n",
            "content-length: 99999999999999999999\r\n",
            "content-length: 7\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        ] {
            assert_eq!(of(unclear), Err(BadHead::Framing), "{unclear}");
        }
        assert_eq!(head("HTTP/1.1 204 No\r\n\r\n").framing, Framing::Length(0));
        assert!(!head("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n").is_kept);
    }

    #[test]
    fn what_is_no_head_is_refused_and_so_is_a_long_one() {
        assert!(matches!(parse(b"SSH-2.0-OpenSSH\r\n"), Err(BadHead::Malformed(_))));
        assert!(matches!(parse(b"HTTP/1.1 20x OK\r\n\r\n"), Err(BadHead::Malformed(_))));
        let long = format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(MAX_HEAD));
        assert_eq!(parse(long.as_bytes()).unwrap_err(), BadHead::Long);
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(parse(many.as_bytes()).unwrap_err(), BadHead::Malformed(httparse::Error::TooManyHeaders));
    }

    /// A body, and what is behind it.
    type Body = (Vec<u8>, Vec<u8>);

    /// The body, if it is all there.
    fn dechunked(raw: &[u8]) -> Result<Option<Body>, BadHead> {
        let mut chunks = Dechunked::default();
        let behind = chunks.advance(raw)?.map(<[u8]>::to_vec);
        Ok(behind.map(|behind| (chunks.body, behind)))
    }

    #[test]
    fn parts_are_joined() {
        let raw = b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n";
        assert_eq!(dechunked(raw), Ok(Some((b"hello world".to_vec(), Dechunked::END.to_vec()))));
        let mut at_a_time = Dechunked::default();
        for length in 0..raw.len() - 3 {
            assert_eq!(dechunked(&raw[..length]), Ok(None), "{length}");
            assert_eq!(at_a_time.advance(&raw[..length]), Ok(None), "{length}");
        }
        assert_eq!(at_a_time.advance(raw), Ok(Some(Dechunked::END)));
        assert_eq!(at_a_time.body, b"hello world");
        for bad in [&b"5\r\nhelloX\n"[..], b"x\r\n", b"fffffffffffffffff\r\n"] {
            assert_eq!(dechunked(bad), Err(BadHead::Chunk));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
            let _ = parse(&[b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat());
            let _ = dechunked(&bytes);
        }
    }
}
