//! What is copied: its source as it is found, and one version of it on its way to another key.
//!
//! A copy may be under conditions of its source, and between looking and copying the source may be replaced. An object
//! store could be asked to copy only what has an entity tag, and not each one knows that, nor does a directory. So a copy
//! under conditions is made as a part of an upload is: the version that met them is read through the cache, which reads
//! no other one, and sent. Where it can be had no more, nothing is made, and its client is asked to try again. A copy from
//! one origin to another, which no store makes, is made in the same way.

use std::ops::Range;
use std::sync::Arc;

use axum::http::HeaderMap;
use bytes::Bytes;
use forebay_client::OpenFile;
use forebay_types::{Attr, FailureKind, FileVersion, FsPath, OriginUrl, Permission};
use s3s::dto::CopySource;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::access::Caller;
use crate::body::ObjectReader;
use crate::bucket::Place;
use crate::conditions::Conditions;
use crate::failure;
use crate::sending::{MAX_PUT, Parts};
use crate::served::{Found, Served, no_such_key, without};

/// The header that names what is copied.
const COPY_SOURCE: &str = "x-amz-copy-source";

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

/// What a request names as what is copied, of which the library has `read` this. Amazon reads it as a value of a form, in
/// which a `+` is a space, and so s5cmd writes it; the library leaves a `+` as it is.
fn named(headers: &HeaderMap, read: CopySource) -> S3Result<CopySource> {
    let text = headers.get(COPY_SOURCE).and_then(|value| value.to_str().ok());
    let Some(text) = text.filter(|text| text.contains('+')) else { return Ok(read) };
    let wrong =
        |_| S3Error::with_message(S3ErrorCode::InvalidArgument, "what is copied is no name in a URL's encoding");
    CopySource::parse(&text.replace('+', "%20")).map_err(wrong)
}

impl Served {
    /// What is copied, if the conditions hold for it, and where it lies: `read` as the library has it of the headers.
    ///
    /// # Errors
    /// As of a read, and when a condition does not hold.
    pub(crate) async fn source(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        read: CopySource,
        conditions: &Conditions,
    ) -> S3Result<(Found, Place)> {
        let CopySource::Bucket { bucket, key, version_id } = named(headers, read)? else {
            return Err(S3Error::with_message(S3ErrorCode::NotImplemented, "what is copied is named `BUCKET/KEY`"));
        };
        without(&[("a version by its id", version_id.is_some_and(|version| &*version != "null"))])?;
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
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn a_plus_in_the_name_of_what_is_copied_is_a_space() {
        let of = |text: &'static str| {
            let header = (HeaderName::from_static(COPY_SOURCE), HeaderValue::from_static(text));
            named(&HeaderMap::from_iter([header]), CopySource::parse(text).unwrap()).unwrap()
        };
        for (text, key) in [
            ("sets/a+b", "a b"),
            ("/sets/a%20b", "a b"),
            ("sets/a%2Bb", "a+b"),
            ("/sets/names/a+b%2Bc%26d", "names/a b+c&d"),
        ] {
            let expected = CopySource::Bucket { bucket: "sets".into(), key: key.into(), version_id: None };
            assert_eq!(of(text), expected, "{text}");
        }
    }
}
