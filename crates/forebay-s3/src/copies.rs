//! What is copied: its source as it is found, and one version of it on its way to another key.
//!
//! A copy may be under conditions of its source, and between looking and copying the source may be replaced. An object
//! store could be asked to copy only what has an entity tag, and not each one knows that, nor does a directory. So a copy
//! under conditions is made as a part of an upload is: the version that met them is read through the cache, which reads
//! no other one, and sent. Where it can be had no more, nothing is made, and its client is asked to try again. A copy from
//! one origin to another, which no store makes, is made in the same way.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_client::OpenFile;
use forebay_types::{Attr, FailureKind, FileVersion, FsPath, OriginUrl, Permission};
use percent_encoding::percent_decode_str;
use s3s::path::check_key;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use crate::access::Caller;
use crate::body::ObjectReader;
use crate::bucket::{Place, is_bucket_name};
use crate::conditions::Conditions;
use crate::failure;
use crate::sending::{MAX_PUT, Parts};
use crate::served::{Found, Served, no_such_key, without};

/// The header that names what is copied.
pub(crate) const COPY_SOURCE: &str = "x-amz-copy-source";

/// What a request names as what is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) bucket: String,
    key: String,
    version: Option<String>,
}

impl Source {
    /// That of the header `text`; `None` if it names no bucket and key. Amazon reads it as a value of a form, in which
    /// a `+` is a space, and so s5cmd writes it. The library leaves a `+` as it is, and takes only buckets that Amazon
    /// could have.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let decoded = |text: &str| percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned);
        let text = text.replace('+', " ");
        let (path, version) = match text.split_once("?versionId=") {
            Some((path, version)) => (decoded(path)?, Some(decoded(version)?)),
            None => (decoded(&text)?, None),
        };
        let (bucket, key) = path.strip_prefix('/').unwrap_or(&path).split_once('/')?;
        let is_one = is_bucket_name(bucket) && check_key(key);
        is_one.then(|| Self { bucket: bucket.to_owned(), key: key.to_owned(), version })
    }

    /// That of a request; one that the library does not read was kept beside its headers.
    ///
    /// # Errors
    /// When it is named in another way than by a bucket and a key.
    pub(crate) fn of<T>(request: &S3Request<T>) -> S3Result<Self> {
        let read = || Self::parse(request.headers.get(COPY_SOURCE)?.to_str().ok()?);
        let other = || S3Error::with_message(S3ErrorCode::NotImplemented, "what is copied is named `BUCKET/KEY`");
        request.extensions.get::<Self>().cloned().or_else(read).ok_or_else(other)
    }
}

/// One version of an object, which is read a part at a time.
struct Pinned<'a> {
    file: Arc<OpenFile>,
    /// What is still to be read.
    rest: Range<u64>,
    served: &'a Served,
}

impl Parts for Pinned<'_> {
    async fn part(&mut self, length: u64) -> S3Result<Bytes> {
        let Range { start, end } = self.rest;
        let until = start.saturating_add(length).min(end);
        let Served { memory, stats, .. } = self.served;
        let reader = ObjectReader::new(Arc::clone(&self.file), start..until, memory.clone(), Arc::clone(stats));
        let bytes = reader.collect().await.map_err(|failure| failure::told(&failure))?;
        self.rest.start = until;
        Ok(bytes)
    }

    /// Each part was as long as it should be, or a failure.
    async fn finish(self) -> S3Result<()> {
        Ok(())
    }
}

impl Served {
    /// What is copied, if the conditions hold for it, and where it lies.
    ///
    /// # Errors
    /// As of a read, and when a condition does not hold.
    pub(crate) async fn source(
        &self,
        caller: &Caller,
        source: Source,
        conditions: &Conditions,
    ) -> S3Result<(Found, Place)> {
        let Source { bucket, key, version } = source;
        without(&[("a version by its id", version.is_some_and(|version| version != "null"))])?;
        let found = self.find(caller, &bucket, &key, true).await?;
        // Of a copy, either way it is a condition that does not hold.
        let unmet =
            |_| S3Error::with_message(S3ErrorCode::PreconditionFailed, "the source does not meet the conditions");
        conditions.check(&found.tag, &found.attr).map_err(unmet)?;
        let place = self.reach(caller, &bucket, &key, Permission::Read)?.ok_or_else(no_such_key)?;
        Ok((found, place))
    }

    /// Makes `to` a file of the bytes of the version that was found at `from`.
    ///
    /// Two URLs may be two ways to one store, which nobody is told. The copy has replaced what it was made of then, and who
    /// moves an object by copying must not go on and delete the only one.
    ///
    /// # Errors
    /// When it can be had no more, or is too long, and those of the origin. From one origin to another also when there is
    /// something else at `from` once the copy is made.
    pub(crate) async fn copy_found(&self, found: &Found, from: &FsPath, to: &FsPath) -> S3Result<Attr> {
        // A directory has no bytes.
        let Some(version) = found.version() else { return Err(no_such_key()) };
        let made = self.copy_version(version, found.attr.replicas, to).await?;
        let is_one = made.version().is_some_and(|made| {
            OriginUrl::are_one_object((&*made.origin, &*made.path), (&*version.origin, &*version.path))
        });
        if !is_one && made.version().is_some_and(|made| made.origin == version.origin) {
            return Ok(made);
        }
        // Entity tags of the same bytes may be the same: then the time tells.
        let state = |attr: &Attr| (attr.version().cloned(), attr.modified_nanos);
        match self.client.stat(from, true).await {
            Ok(now) if !is_one && state(&now.attr) == state(&found.attr) => Ok(made),
            Ok(_) => {
                let message = "the source was replaced while it was copied: by another, or both keys are one object";
                Err(S3Error::with_message(S3ErrorCode::OperationAborted, message))
            }
            // It was deleted, which is what a move does next.
            Err(failure) if matches!(failure.kind(), FailureKind::NotFound | FailureKind::NotADirectory) => Ok(made),
            Err(failure) => Err(failure::told(&failure.context("it was copied, and may not be there any more"))),
        }
    }

    /// Makes `to` a file of the bytes of this version, of an object with so many replicas.
    async fn copy_version(&self, version: &FileVersion, replicas: u8, to: &FsPath) -> S3Result<Attr> {
        let size = version.size;
        if size > MAX_PUT {
            let message = format!("{size} bytes are more than the {MAX_PUT} that are copied at once; copy in parts");
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message));
        }
        let file = self.client.open_replicated(version.clone(), replicas);
        self.send(to, Pinned { file, rest: 0..size, served: self }, size, false).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(bucket: &str, key: &str, version: Option<&str>) -> Source {
        Source { bucket: bucket.to_owned(), key: key.to_owned(), version: version.map(str::to_owned) }
    }

    #[test]
    fn a_plus_in_the_name_of_what_is_copied_is_a_space() {
        for (text, key) in [
            ("sets/a+b", "a b"),
            ("/sets/a%20b", "a b"),
            ("sets/a%2Bb", "a+b"),
            ("/sets/names/a+b%2Bc%26d", "names/a b+c&d"),
        ] {
            assert_eq!(Source::parse(text), Some(source("sets", key, None)), "{text}");
        }
    }

    #[test]
    fn what_is_copied_is_a_key_of_any_bucket_that_there_may_be() {
        for bucket in ["s3", "Data", "my_data", "sets"] {
            assert_eq!(Source::parse(&format!("{bucket}/a/b")), Some(source(bucket, "a/b", None)));
        }
        let version = Some(source("my_data", "k", Some("a b")));
        assert_eq!(Source::parse("/my%5Fdata%2Fk?versionId=a%20b"), version);
        let long = format!("sets/{}", "k".repeat(1025));
        let access_point = "arn:aws:s3:us-east-1:123456789012:accesspoint/name/object/k";
        for none in ["", "sets", "/sets", "//k", "a b/k", "../k", "sets/%FF", access_point, &long] {
            assert_eq!(Source::parse(none), None, "{none}");
        }
    }
}
