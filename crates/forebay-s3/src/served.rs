//! What requests are answered from: the cache's client, and what is common to all operations.
//!
//! An operation gets at a path only by [`Served::reach`], which looks at who asks: none can forget to.

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use forebay_client::Client;
use forebay_types::{Attr, FailureKind, FileVersion, FsPath, Permission};
use s3s::dto::{ETag, Timestamp};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use crate::access::{Caller, Rules, Signer};
use crate::asked::Asked;
use crate::bucket::{self, Buckets, Place};
use crate::conditions::Unmet;
use crate::listing::Orders;
use crate::memory::BodyMemory;
use crate::stats::Stats;
use crate::{etag, failure};

/// The entity tag of an object without bytes: their MD5, as Amazon has it.
const OF_NOTHING: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// What requests are answered from.
pub(crate) struct Served {
    pub(crate) client: Client,
    pub(crate) buckets: Buckets,
    pub(crate) rules: Rules,
    pub(crate) memory: BodyMemory,
    /// Bytes in a part of an object that is put.
    pub(crate) part_size: u64,
    pub(crate) stats: Arc<Stats>,
    /// Directories whose names come in the order of keys.
    pub(crate) orders: Orders,
}

/// An object that is there.
pub(crate) struct Found {
    pub(crate) attr: Attr,
    pub(crate) tag: ETag,
}

impl Found {
    fn of(attr: Attr) -> Self {
        let tag = attr.version().map_or_else(|| ETag::Strong(OF_NOTHING.to_owned()), etag::of_version);
        Self { attr, tag }
    }

    /// `None`: it is a directory, and has no bytes.
    pub(crate) fn version(&self) -> Option<&FileVersion> {
        self.attr.version()
    }

    pub(crate) fn size(&self) -> u64 {
        self.attr.size()
    }

    pub(crate) fn modified(&self) -> Option<Timestamp> {
        etag::modified(&self.attr)
    }

    /// What a client is told whose condition it does not meet.
    pub(crate) fn unmet(&self, unmet: Unmet) -> S3Error {
        match unmet {
            Unmet::Failed => {
                let message = "at least one of the preconditions you specified did not hold";
                S3Error::with_message(S3ErrorCode::PreconditionFailed, message)
            }
            Unmet::NotModified => {
                let mut error = S3Error::new(S3ErrorCode::NotModified);
                error.set_headers(self.validators());
                error
            }
        }
    }

    /// What a client is told that asks for bytes that there are not.
    pub(crate) fn no_such_range(&self) -> S3Error {
        let mut error = S3Error::with_message(S3ErrorCode::InvalidRange, "the requested range is not satisfiable");
        let (xml, range) = (HeaderValue::from_static("application/xml"), format!("bytes */{}", self.size()));
        let mut headers = HeaderMap::from_iter([(axum::http::header::CONTENT_TYPE, xml)]);
        headers.extend(value(axum::http::header::CONTENT_RANGE, &range));
        error.set_headers(headers);
        error
    }

    /// Of an answer without a body.
    fn validators(&self) -> HeaderMap {
        HeaderMap::from_iter(self.tag.to_http_header().ok().map(|tag| (axum::http::header::ETAG, tag)))
    }
}

fn value(name: HeaderName, text: &str) -> Option<(HeaderName, HeaderValue)> {
    Some((name, HeaderValue::from_str(text).ok()?))
}

/// Whether a client wants what the origin says now, and not what is remembered.
pub(crate) fn wants_fresh(headers: &HeaderMap) -> bool {
    let of = |name: HeaderName| headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    of(axum::http::header::CACHE_CONTROL).any(|value| value.to_ascii_lowercase().contains("no-cache"))
}

pub(crate) fn no_such_bucket() -> S3Error {
    S3Error::with_message(
        S3ErrorCode::NoSuchBucket,
        "there is no such bucket; `forebay mounts list` shows what is mounted",
    )
}

pub(crate) fn no_such_key() -> S3Error {
    S3Error::with_message(S3ErrorCode::NoSuchKey, "the specified key does not exist")
}

/// That none of these was asked for, which an origin cannot keep or nobody here knows.
///
/// # Errors
/// The first one that was.
pub(crate) fn without(asked: &[(&'static str, bool)]) -> S3Result<()> {
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        None => Ok(()),
        Some((what, _)) => {
            let message = format!("{what} cannot be had through the cache; ask the object store itself");
            Err(S3Error::with_message(S3ErrorCode::NotImplemented, message))
        }
    }
}

impl Served {
    /// Who signed `request`.
    ///
    /// # Errors
    /// When its key was taken away since.
    pub(crate) fn caller<T>(&self, request: &S3Request<T>) -> S3Result<Caller> {
        let asked = request.extensions.get::<Asked>().cloned().unwrap_or_default();
        asked.is_called();
        let shown = request.credentials.as_ref().map(|credentials| credentials.access_key.as_str());
        let access = shown.or_else(|| request.extensions.get::<Signer>().map(|Signer(access)| access.as_str()));
        let key = access.and_then(|access| self.rules.key(access));
        let unknown = || S3Error::with_message(S3ErrorCode::AccessDenied, "requests have to be signed");
        let identity = key.ok_or_else(unknown)?.identity.clone();
        asked.signed_by(&identity);
        Ok(Caller { identity, asked })
    }

    /// The path of a bucket, for who may do there what asks for `wish`.
    ///
    /// # Errors
    /// Who may not, and when there cannot be such a bucket.
    pub(crate) fn reach_bucket(&self, caller: &Caller, bucket: &str, wish: Permission) -> S3Result<FsPath> {
        let root = self.buckets.path(bucket).ok_or_else(no_such_bucket)?;
        self.rules.permit(caller, &root, wish)?;
        Ok(root)
    }

    /// What a key names, for who may do there what asks for `wish`; `None`: no file can be there.
    ///
    /// # Errors
    /// Who may not, and when there cannot be such a bucket.
    pub(crate) fn reach(&self, caller: &Caller, bucket: &str, key: &str, wish: Permission) -> S3Result<Option<Place>> {
        let root = self.buckets.path(bucket).ok_or_else(no_such_bucket)?;
        let place = bucket::place(&root, key);
        self.rules.permit(caller, place.as_ref().map_or(&root, |place| &place.path), wish)?;
        Ok(place)
    }

    /// The same of what is to be written.
    ///
    /// # Errors
    /// As [`Self::reach`], and where no file can be.
    pub(crate) fn target(&self, caller: &Caller, bucket: &str, key: &str) -> S3Result<Place> {
        let impossible = || {
            let message = "keys here are paths: without empty names, `.` and `..`, and with names of at most 255 bytes";
            S3Error::with_message(S3ErrorCode::InvalidArgument, message)
        };
        self.reach(caller, bucket, key, Permission::Write)?.ok_or_else(impossible)
    }

    /// The object that a key names. `fresh`: as the origin says now.
    ///
    /// # Errors
    /// As [`Self::reach`], and when there is none.
    pub(crate) async fn find(&self, caller: &Caller, bucket: &str, key: &str, fresh: bool) -> S3Result<Found> {
        let place = self.reach(caller, bucket, key, Permission::Read)?.ok_or_else(no_such_key)?;
        let stat = match self.client.stat(&place.path, fresh).await {
            Ok(stat) => stat,
            Err(failure) if matches!(failure.kind(), FailureKind::NotFound | FailureKind::NotADirectory) => {
                self.check_bucket(bucket).await?;
                return Err(no_such_key());
            }
            Err(failure) => return Err(failure::told(&failure)),
        };
        let is_directory = stat.attr.version().is_none();
        if is_directory == place.is_directory { Ok(Found::of(stat.attr)) } else { Err(no_such_key()) }
    }

    /// What became of a write to `bucket`. Where nothing is found, it may be the bucket that is not there.
    ///
    /// # Errors
    /// As it says, and when there is no such bucket.
    pub(crate) async fn within_bucket<T>(&self, bucket: &str, done: S3Result<T>) -> S3Result<T> {
        if done.as_ref().is_err_and(|error| *error.code() == S3ErrorCode::NoSuchKey) {
            self.check_bucket(bucket).await?;
        }
        done
    }

    /// That there is such a bucket.
    ///
    /// # Errors
    /// When there is none, or it cannot be known.
    pub(crate) async fn check_bucket(&self, bucket: &str) -> S3Result<()> {
        let root = self.buckets.path(bucket).ok_or_else(no_such_bucket)?;
        match self.client.stat(&root, false).await {
            Ok(stat) if stat.attr.version().is_none() => Ok(()),
            Ok(_) => Err(no_such_bucket()),
            Err(failure) if failure.kind() == FailureKind::NotFound => Err(no_such_bucket()),
            Err(failure) => Err(failure::told(&failure)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asked_for_is_not_missed() {
        assert!(without(&[("a version", false)]).is_ok());
        let refused = without(&[("a version", false), ("encryption", true)]).unwrap_err();
        assert_eq!(refused.code(), &S3ErrorCode::NotImplemented);
        assert!(refused.message().is_some_and(|message| message.starts_with("encryption cannot be had")));
    }

    #[test]
    fn a_client_says_that_it_wants_what_the_origin_says_now() {
        let of = |text: &'static str| {
            let header = (axum::http::header::CACHE_CONTROL, HeaderValue::from_static(text));
            wants_fresh(&HeaderMap::from_iter([header]))
        };
        assert!(of("no-cache") && of("max-age=0, No-Cache") && !of("max-age=60"));
        assert!(!wants_fresh(&HeaderMap::new()));
    }
}
