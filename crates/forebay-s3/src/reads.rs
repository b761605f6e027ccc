//! Operations that read objects.

use std::ops;

use axum::http::HeaderMap;
use axum::http::header::IF_RANGE;
use forebay_types::{FailureKind, FilePart};
use s3s::dto::{
    GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectInput, GetObjectOutput, HeadObjectInput,
    HeadObjectOutput, ObjectAttributes, Range, StorageClass, StreamingBlob,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::access::Caller;
use crate::body::ObjectReader;
use crate::conditions::{Conditions, Unmet, content_range, resolve};
use crate::served::{Found, Served, wants_fresh, without};
use crate::{etag, failure};

/// What an object is said to be where nobody knows: as Amazon does.
const CONTENT_TYPE: &str = "binary/octet-stream";
/// What a directory is said to be, as several clients mark them.
const DIRECTORY_TYPE: &str = "application/x-directory";
/// How often an object may be replaced between looking and reading before a client is asked to try again.
const TRIES: usize = 4;
/// Versions of objects are not known by name; this is what Amazon calls the one that there is.
const ONLY_VERSION: &str = "null";

/// What a request wants of an object.
struct Wish<'a> {
    bucket: &'a str,
    key: &'a str,
    conditions: Conditions,
    range: Option<Range>,
    /// The range counts only for the version with this tag.
    if_range: Option<String>,
    /// The number of a part, from 1 on.
    part: Option<i32>,
}

/// The bytes that are wanted of an object.
struct Wanted {
    range: ops::Range<u64>,
    /// They are told as a part of it.
    is_part: bool,
    /// How many parts it has, where one of several is asked for by its number.
    count: Option<i32>,
}

impl Wish<'_> {
    /// The bytes of the range that is asked for.
    fn range(&self, found: &Found) -> S3Result<Wanted> {
        let counts = self.if_range.as_deref().is_none_or(|tag| etag::is_meant(&found.tag, tag));
        let range = self.range.as_ref().filter(|_| counts);
        let resolved = resolve(range, found.size()).ok_or_else(|| found.no_such_range())?;
        Ok(Wanted { range: resolved, is_part: range.is_some(), count: None })
    }

    /// The number of the part that is asked for, from 1 on.
    fn number(&self) -> S3Result<Option<u32>> {
        let Some(number) = self.part else { return Ok(None) };
        if self.range.is_some() {
            let message = "a request has a range, or the number of a part, and not both";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message));
        }
        let numbered = u32::try_from(number).ok().filter(|number| (1..=10_000).contains(number));
        let wrong = || S3Error::with_message(S3ErrorCode::InvalidArgument, "parts are numbered from 1 to 10000");
        numbered.ok_or_else(wrong).map(Some)
    }
}

/// The tag, or whatever is no tag of ours, of `If-Range`.
fn if_range(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(IF_RANGE)?.to_str().ok()?;
    Some(text.trim().trim_matches('"').to_owned())
}

fn content_type(found: &Found) -> String {
    if found.version().is_some() { CONTENT_TYPE.to_owned() } else { DIRECTORY_TYPE.to_owned() }
}

fn is_other_version(version: Option<&String>) -> bool {
    version.is_some_and(|version| version != ONLY_VERSION)
}

fn signed(length: u64) -> Option<i64> {
    i64::try_from(length).ok()
}

impl Served {
    pub(crate) async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let caller = self.caller(&request)?;
        let (fresh, if_range, input) = (wants_fresh(&request.headers), if_range(&request.headers), request.input);
        without(&[
            ("a version by its id", is_other_version(input.version_id.as_ref())),
            ("an object under a key of the client's", input.sse_customer_key.is_some()),
        ])?;
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let (range, part) = (input.range, input.part_number);
        let wish = Wish { bucket: &input.bucket, key: &input.key, conditions, range, if_range, part };
        let (found, Wanted { range, is_part, count }, body) = self.open(&caller, &wish, fresh).await?;
        Ok(S3Response::new(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: signed(range.end - range.start),
            content_range: is_part.then(|| content_range(&range, found.size())),
            content_type: Some(content_type(&found)),
            last_modified: found.modified(),
            parts_count: count,
            e_tag: Some(found.tag),
            body,
            ..GetObjectOutput::default()
        }))
    }

    pub(crate) async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let caller = self.caller(&request)?;
        let (fresh, if_range, input) = (wants_fresh(&request.headers), if_range(&request.headers), request.input);
        without(&[("a version by its id", is_other_version(input.version_id.as_ref()))])?;
        let conditions = Conditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let (range, part) = (input.range, input.part_number);
        let wish = Wish { bucket: &input.bucket, key: &input.key, conditions, range, if_range, part };
        let (found, Wanted { range, is_part, count }) = self.look_for(&caller, &wish, fresh).await?;
        Ok(S3Response::new(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: signed(range.end - range.start),
            content_range: is_part.then(|| content_range(&range, found.size())),
            content_type: input.response_content_type.or_else(|| Some(content_type(&found))),
            cache_control: input.response_cache_control,
            content_disposition: input.response_content_disposition,
            content_encoding: input.response_content_encoding,
            content_language: input.response_content_language,
            last_modified: found.modified(),
            parts_count: count,
            e_tag: Some(found.tag),
            ..HeadObjectOutput::default()
        }))
    }

    /// What is known: the entity tag and the size. Of parts and checksums nothing is.
    pub(crate) async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let caller = self.caller(&request)?;
        let (fresh, input) = (wants_fresh(&request.headers), request.input);
        without(&[("a version by its id", is_other_version(input.version_id.as_ref()))])?;
        let found = self.find(&caller, &input.bucket, &input.key, fresh).await?;
        let wants = |attribute| is_among(attribute, &input.object_attributes);
        Ok(S3Response::new(GetObjectAttributesOutput {
            object_size: signed(found.size()).filter(|_| wants(ObjectAttributes::OBJECT_SIZE)),
            storage_class: wants(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from_static(StorageClass::STANDARD)),
            last_modified: found.modified(),
            e_tag: Some(found.tag).filter(|_| wants(ObjectAttributes::ETAG)),
            ..GetObjectAttributesOutput::default()
        }))
    }

    /// The object that is wanted, if it meets the conditions. What is remembered of it is looked at again before a
    /// client is told that it does not have the version that the client knows.
    async fn look(&self, caller: &Caller, wish: &Wish<'_>, mut fresh: bool) -> S3Result<Found> {
        loop {
            let found = self.find(caller, wish.bucket, wish.key, fresh).await?;
            match wish.conditions.check(&found.tag, &found.attr) {
                Ok(()) => return Ok(found),
                Err(Unmet::Failed) if !fresh => fresh = true,
                Err(unmet) => return Err(found.unmet(unmet)),
            }
        }
    }

    /// The same, and which of its bytes are wanted.
    async fn look_for(&self, caller: &Caller, wish: &Wish<'_>, mut fresh: bool) -> S3Result<(Found, Wanted)> {
        for _ in 0..TRIES {
            let found = self.look(caller, wish, fresh).await?;
            match self.wanted(wish, &found).await? {
                Some(wanted) => return Ok((found, wanted)),
                None => fresh = true,
            }
        }
        Err(replaced_again())
    }

    /// The bytes that are wanted of `found`; `None`: it was replaced since it was looked at. Where the parts of an object begin
    /// that has several, its origin alone knows.
    async fn wanted(&self, wish: &Wish<'_>, found: &Found) -> S3Result<Option<Wanted>> {
        let Some(number) = wish.number()? else { return wish.range(found).map(Some) };
        let Some(version) = found.version().filter(|version| !etag::is_of_one_part(version)) else {
            if number > 1 {
                return Err(failure::no_such_part());
            }
            // Of no bytes there is no part that could be told of.
            return Ok(Some(Wanted { range: 0..found.size(), is_part: found.size() > 0, count: None }));
        };
        match self.client.locate_part(version, number).await {
            Ok(Some(FilePart { range, count })) => {
                Ok(Some(Wanted { is_part: !range.is_empty(), range, count: i32::try_from(count).ok() }))
            }
            Ok(None) => Err(failure::no_such_part()),
            Err(failure) if failure.kind() == FailureKind::VersionChanged => Ok(None),
            Err(failure) if failure.kind() == FailureKind::Unsupported => {
                let message = "parts by their number are not known here, of an object that has several; ask for ranges";
                Err(S3Error::with_message(S3ErrorCode::NotImplemented, message))
            }
            Err(failure) => Err(failure::told(&failure)),
        }
    }

    /// The object and what is wanted of it, of which the first bytes have been read: all that follow are of the same version.
    async fn open(
        &self,
        caller: &Caller,
        wish: &Wish<'_>,
        mut fresh: bool,
    ) -> S3Result<(Found, Wanted, Option<StreamingBlob>)> {
        for _ in 0..TRIES {
            let (found, wanted) = self.look_for(caller, wish, fresh).await?;
            let Some(version) = found.version() else { return Ok((found, wanted, None)) };
            let file = self.client.open_replicated(version.clone(), found.attr.replicas);
            let (memory, stats) = (self.memory.clone(), self.stats.clone());
            let mut reader = ObjectReader::new(file, wanted.range.clone(), memory, stats);
            match reader.begin().await {
                Ok(()) => return Ok((found, wanted, Some(reader.into_blob()))),
                // It was replaced since it was looked at. A client that wants this version is told so by the next look.
                Err(failure) if failure.kind() == FailureKind::VersionChanged => fresh = true,
                Err(failure) => return Err(failure::told(&failure)),
            }
        }
        Err(replaced_again())
    }
}

fn replaced_again() -> S3Error {
    let message = "the object is replaced again and again; try again";
    S3Error::with_message(S3ErrorCode::ServiceUnavailable, message)
}

/// Whether an attribute is asked for. Clients send one header for each, or one with all of them and commas in between, which `s3s`
/// leaves as it is.
fn is_among(attribute: &str, asked: &[ObjectAttributes]) -> bool {
    asked.iter().flat_map(|asked| asked.as_str().split(',')).any(|asked| asked.trim() == attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_asked_for_in_one_header_or_in_several() {
        let headers =
            |lines: &[&str]| lines.iter().map(|line| ObjectAttributes::from((*line).to_owned())).collect::<Vec<_>>();
        for asked in [
            headers(&["ETag", "ObjectSize"]),
            headers(&["ETag,ObjectSize"]),
            headers(&["Checksum, ETag", " ObjectSize "]),
        ] {
            assert!(
                is_among(ObjectAttributes::ETAG, &asked) && is_among(ObjectAttributes::OBJECT_SIZE, &asked),
                "{asked:?}"
            );
            assert!(!is_among(ObjectAttributes::STORAGE_CLASS, &asked), "{asked:?}");
        }
    }
}
