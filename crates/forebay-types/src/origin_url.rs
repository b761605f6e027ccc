//! URLs of origins in the form that the cache has them in.
//!
//! A file version names its origin by its URL alone, so two spellings are one origin to the cache if both have one form here:
//! `s3://b/x/../y/` is `s3://b/y`. What opens an origin and what compares records of mounts both ask here, so that no
//! spelling is one origin to the one and another to the other.

use url::{ParseError, Position, Url};

/// The URL of an origin: no dots that lead elsewhere, no slash at the end, the scheme in lower case. Names of hosts are in lower case
/// where case says nothing (`https`), and as they were written where it may (`s3`). Slashes within it stay: `b//y` is not
/// `b/y`, for keys of objects may have empty names in them.
#[derive(Clone, Debug)]
pub struct OriginUrl {
    parsed: Url,
    normal: String,
}

/// Why a text is no URL of an origin. To be told after the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginUrlError {
    /// It is no URL.
    #[error(transparent)]
    Malformed(#[from] ParseError),
    /// It names no place.
    #[error("it has no `//` after the scheme")]
    NoPlace,
    /// It has a part that no origin has.
    #[error("it has a query or a fragment (`?`, `#`); write %3F and %23 for those characters")]
    Query,
    /// It has a credential in it.
    #[error("it has a password in it; credentials come from the environment or a profile")]
    Password,
}

impl OriginUrl {
    /// The URL in `text`.
    ///
    /// # Errors
    /// [`OriginUrlError`] when it can be none of an origin, whatever its scheme.
    pub fn parse(text: &str) -> Result<Self, OriginUrlError> {
        let mut parsed = Url::parse(text)?;
        if parsed.cannot_be_a_base() {
            return Err(OriginUrlError::NoPlace);
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(OriginUrlError::Query);
        }
        if parsed.password().is_some() {
            return Err(OriginUrlError::Password);
        }
        let path = parsed.path().trim_end_matches('/').to_owned();
        parsed.set_path(&path);
        let normal = parsed.as_str().trim_end_matches('/').to_owned();
        // The root directory's URL is nothing but slashes after the scheme.
        let normal = if normal.ends_with(':') { format!("{normal}///") } else { normal };
        Ok(Self { parsed, normal })
    }

    /// Its parts.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.parsed
    }

    /// Its one form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.normal
    }

    /// Whether both texts name one origin. What is no URL of an origin names none, but for itself.
    #[must_use]
    pub fn are_one(one: &str, two: &str) -> bool {
        match (Self::parse(one), Self::parse(two)) {
            (Ok(one), Ok(two)) => one.normal == two.normal,
            _ => one == two,
        }
    }

    /// Whether two names, each with the URL of the origin that it is below, are of one object: `x/y` of `s3://b` is `y` of `s3://b/x`.
    #[must_use]
    pub fn are_one_object((one, below): (&str, &[u8]), (other, other_below): (&str, &[u8])) -> bool {
        if one == other {
            return below == other_below;
        }
        let (Ok(one), Ok(other)) = (Self::parse(one), Self::parse(other)) else { return false };
        one.parsed[..Position::BeforePath] == other.parsed[..Position::BeforePath]
            && one.whole_path(below) == other.whole_path(other_below)
    }

    /// The path of what is `below` it, in bytes of its own.
    fn whole_path(&self, below: &[u8]) -> Vec<u8> {
        let path = self.parsed.path().trim_end_matches('/');
        let (mut whole, mut rest) = (Vec::with_capacity(path.len() + 1 + below.len()), path);
        while let Some(at) = rest.find('%') {
            whole.extend_from_slice(&rest.as_bytes()[..at]);
            let escaped = rest.get(at + 1..at + 3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            whole.push(escaped.unwrap_or(b'%'));
            let read = if escaped.is_some() { 3 } else { 1 };
            rest = &rest[at + read..];
        }
        whole.extend_from_slice(rest.as_bytes());
        whole.push(b'/');
        whole.extend_from_slice(below);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> String {
        OriginUrl::parse(text).unwrap().as_str().to_owned()
    }

    #[test]
    fn a_url_has_one_form() {
        for (given, expected) in [
            ("s3://bucket/a/b/", "s3://bucket/a/b"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("S3://bucket/a/../b", "s3://bucket/b"),
            ("s3://bucket/./a", "s3://bucket/a"),
            ("s3://bucket/%2E%2e/a", "s3://bucket/a"),
            ("s3://bucket/../a//", "s3://bucket/a"),
            ("s3://bucket/a b ", "s3://bucket/a%20b"),
            ("file:///data/x//", "file:///data/x"),
            ("file:///data/y/../x", "file:///data/x"),
            ("file:///", "file:///"),
            ("https://example.com/", "https://example.com"),
            ("HTTPS://Example.COM:443/a", "https://example.com/a"),
            ("https://example.com\\a", "https://example.com/a"),
        ] {
            assert_eq!(normal(given), expected, "{given}");
            assert_eq!(normal(expected), expected, "its form is a spelling of it");
        }
    }

    #[test]
    fn what_may_be_another_origin_is_another() {
        for other in
            ["s3://bucket//a", "s3://Bucket/a", "s3://bucket/A", "s3a://bucket/a", "s3://bucket/a/b", "bucket/a"]
        {
            assert!(!OriginUrl::are_one("s3://bucket/a", other) && OriginUrl::are_one(other, other), "{other}");
        }
        assert!(OriginUrl::are_one("S3://bucket/x/../a/", "s3://bucket/a"));
    }

    #[test]
    fn an_object_is_one_whichever_origins_it_is_below() {
        let are_one = |one: (&str, &str), other: (&str, &str)| {
            let found = OriginUrl::are_one_object((one.0, one.1.as_bytes()), (other.0, other.1.as_bytes()));
            let turned = OriginUrl::are_one_object((other.0, other.1.as_bytes()), (one.0, one.1.as_bytes()));
            assert_eq!(found, turned, "{one:?} {other:?}");
            found
        };
        for (one, other) in [
            (("s3://b", "x"), ("s3://b", "x")),
            (("s3://b", "x/y"), ("s3://b/x", "y")),
            (("s3://b", "a b/100%/y"), ("s3://b/a%20b/100%25", "y")),
            (("file:///", "data/x/f"), ("file:///data/x", "f")),
            (("https://example.com", "a/f"), ("https://example.com/a", "f")),
        ] {
            assert!(are_one(one, other), "{one:?} {other:?}");
        }
        for (one, other) in [
            (("s3://b", "x"), ("s3://b", "y")),
            (("s3://b", "x"), ("s3://c", "x")),
            (("s3://b", "xy"), ("s3://b/x", "y")),
            (("s3://b", "y"), ("s3://b/x", "y")),
            (("s3://b", "a%20b/y"), ("s3://b/a%20b", "y")),
            (("s3://b", "x//y"), ("s3://b/x", "y")),
            (("gs://b", "x/y"), ("s3://b/x", "y")),
            (("none", "x"), ("s3://b", "x")),
        ] {
            assert!(!are_one(one, other), "{one:?} {other:?}");
        }
    }

    #[test]
    fn what_no_origin_has_is_refused() {
        for (text, error) in [
            ("bucket/prefix", OriginUrlError::Malformed(ParseError::RelativeUrlWithoutBase)),
            ("s3:bucket", OriginUrlError::NoPlace),
            ("s3://b?x=y", OriginUrlError::Query),
            ("s3://b#x", OriginUrlError::Query),
            ("https://u:p@h/", OriginUrlError::Password),
        ] {
            assert_eq!(OriginUrl::parse(text).err(), Some(error), "{text}");
        }
    }
}
