//! Operations that change objects: they go through to the origin, by the same rules as what a mount writes
//! (`docs/SEMANTICS.md`).
//!
//! What an object store keeps besides bytes, and the cache does not carry, is refused where leaving it out could do
//! harm: conditions of writes, which could not be kept, encryption, retention, tags and access lists. Content types and
//! `x-amz-meta-…`, which most clients send with everything, are left out.

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use forebay_types::{Attr, FailureKind, Permission};
use futures::StreamExt as _;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput, CompleteMultipartUploadOutput,
    CompletedPart, CopyObjectInput, CopyObjectOutput, CopyObjectResult, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput,
    DeletedObject, ETag, Error, ObjectIdentifier, PutObjectInput, PutObjectOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use crate::access::Caller;
use crate::bucket::Place;
use crate::checksums::Declared;
use crate::conditions::{Conditions, is_only_new};
use crate::copies::Source;
use crate::etag::{self, PartTag};
use crate::failure::{self, of_completion, of_upload};
use crate::receive::Incoming;
use crate::sending::{MAX_PART, MAX_PUT, MIN_PART};
use crate::served::{Served, without};

/// Objects that are deleted at once for one request.
const DELETES: usize = 16;
/// Keys that a request deletes at most, as Amazon has it.
const MAX_DELETES: usize = 1000;
/// What follows a body is named in it.
const TRAILER: &str = "x-amz-trailer";
/// How many bytes a body has that comes in signed pieces, or with a trailer.
const DECODED_LENGTH: &str = "x-amz-decoded-content-length";

/// That what makes an object asks for nothing besides it that an origin does not keep. The operations have these fields
/// in common, and no type.
macro_rules! without_extras {
    ($input:expr) => {
        without(&[
            (
                "encryption that is asked for",
                $input.server_side_encryption.is_some() || $input.sse_customer_key.is_some(),
            ),
            ("tags", $input.tagging.is_some()),
            ("retention", $input.object_lock_mode.is_some() || $input.object_lock_legal_hold_status.is_some()),
            (
                "a grant",
                $input.grant_full_control.is_some()
                    || $input.grant_read.is_some()
                    || $input.grant_read_acp.is_some()
                    || $input.grant_write_acp.is_some(),
            ),
        ])
    };
}

/// That an object of several is deleted whatever it is now: any other wish would be passed over, and the object gone.
fn unconditional(object: &ObjectIdentifier) -> S3Result<()> {
    without(&[
        ("a version by its id", object.version_id.as_deref().is_some_and(|version| version != "null")),
        (
            "a condition of a deletion",
            object.e_tag.is_some() || object.last_modified_time.is_some() || object.size.is_some(),
        ),
    ])
}

/// Whether a request has conditions that the library does not know for its operation.
fn has_conditions(headers: &HeaderMap) -> bool {
    headers.contains_key(IF_MATCH) || headers.contains_key(IF_NONE_MATCH)
}

/// How many bytes a body has that comes without a length of its own, as HTTP has it.
fn decoded_length(headers: &HeaderMap) -> Option<i64> {
    headers.get(DECODED_LENGTH)?.to_str().ok()?.parse().ok()
}

/// How many bytes a body says that it has.
fn length(content_length: Option<i64>, most: u64) -> S3Result<u64> {
    let missing = || S3Error::with_message(S3ErrorCode::MissingContentLength, "a body says how long it is");
    let length = content_length.and_then(|length| u64::try_from(length).ok()).ok_or_else(missing)?;
    if length > most {
        let message = format!(
            "{length} bytes are more than the {most} that are taken at once; upload in parts, of 64 MiB at most"
        );
        return Err(S3Error::with_message(S3ErrorCode::EntityTooLarge, message));
    }
    Ok(length)
}

fn trailer(headers: &HeaderMap) -> Option<String> {
    headers.get(TRAILER).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

fn tag_of(attr: &Attr) -> Option<ETag> {
    attr.version().map(etag::of_version)
}

fn signed(size: u64) -> Option<i64> {
    i64::try_from(size).ok()
}

/// The tags and the size of an upload that is to be completed from `parts`: all from the first on, as an origin has
/// them. And whether one but the last is shorter than object stores take.
fn whole(parts: Vec<CompletedPart>) -> S3Result<(Vec<String>, u64, bool)> {
    let (mut tags, mut size) = (Vec::with_capacity(parts.len()), 0u64);
    let (mut before, mut is_short) = (MIN_PART, false);
    for (number, part) in (1..).zip(parts) {
        match part.part_number {
            Some(named) if named == number => {}
            Some(named) if named < number => {
                return Err(S3Error::with_message(
                    S3ErrorCode::InvalidPartOrder,
                    "parts are listed in ascending order",
                ));
            }
            _ => {
                let message = format!("there is no part {number}: parts are numbered from 1 on, without gaps");
                return Err(S3Error::with_message(S3ErrorCode::InvalidPart, message));
            }
        }
        let known = part.e_tag.as_ref().and_then(|tag| PartTag::decode(tag.value()));
        let known = known.ok_or_else(|| {
            let message = format!("the entity tag of part {number} is none that uploading a part has told");
            S3Error::with_message(S3ErrorCode::InvalidPart, message)
        })?;
        size = size.checked_add(known.size).ok_or_else(|| S3Error::new(S3ErrorCode::EntityTooLarge))?;
        is_short |= before < MIN_PART;
        before = known.size;
        tags.push(known.tag);
    }
    if tags.is_empty() {
        return Err(S3Error::with_message(
            S3ErrorCode::MalformedXML,
            "an upload is completed with the list of its parts",
        ));
    }
    Ok((tags, size, is_short))
}

impl Served {
    pub(crate) async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let caller = self.caller(&request)?;
        let (decoded, trailer) = (decoded_length(&request.headers), trailer(&request.headers));
        let (trailers, input) = (request.trailing_headers, request.input);
        let only_new = is_only_new(input.if_match.as_ref(), input.if_none_match.as_ref());
        let is_directory = input.key.ends_with('/');
        without(&[
            ("this condition of a write", only_new.is_none() || (is_directory && only_new == Some(true))),
            ("a write at an offset", input.write_offset_bytes.is_some()),
        ])?;
        without_extras!(input)?;
        let place = self.target(&caller, &input.bucket, &input.key)?;
        let length = length(input.content_length.or(decoded), MAX_PUT)?;
        let checksums = [
            input.checksum_crc32,
            input.checksum_crc32c,
            input.checksum_crc64nvme,
            input.checksum_sha1,
            input.checksum_sha256,
        ];
        let declared = Declared { checksums, md5: input.content_md5, trailer };
        let incoming = Incoming::new(input.body, length, declared, trailers, &self.stats);
        let made = if place.is_directory {
            self.make_directory(&place, incoming, length).await
        } else {
            self.send(&place.path, incoming, length, only_new == Some(true)).await
        };
        let attr = self.within_bucket(&input.bucket, made).await?;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: tag_of(&attr),
            size: signed(attr.size()),
            ..PutObjectOutput::default()
        }))
    }

    /// A key that ends in `/` is a directory, and has no bytes.
    async fn make_directory(&self, place: &Place, incoming: Incoming<'_>, length: u64) -> S3Result<Attr> {
        if length > 0 {
            let message = "a key that ends in `/` is a directory, and has no bytes";
            return Err(S3Error::with_message(S3ErrorCode::InvalidArgument, message));
        }
        incoming.finish().await?;
        match self.client.make_directory(&place.path).await {
            Ok(attr) => Ok(attr),
            Err(failure) if failure.kind() == FailureKind::Exists => {
                let stat = self.client.stat(&place.path, true).await.map_err(|failure| failure::told(&failure))?;
                if stat.attr.version().is_none() { Ok(stat.attr) } else { Err(failure::told(&failure)) }
            }
            Err(failure) => Err(failure::of_write(&failure)),
        }
    }

    pub(crate) async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        without_extras!(input)?;
        let place = self.file(&caller, &input.bucket, &input.key)?;
        let begun = self.client.begin_upload(&place.path).await.map_err(|failure| failure::of_write(&failure));
        let upload = self.within_bucket(&input.bucket, begun).await?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(upload),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    pub(crate) async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let caller = self.caller(&request)?;
        let (decoded, trailer) = (decoded_length(&request.headers), trailer(&request.headers));
        let (trailers, input) = (request.trailing_headers, request.input);
        let place = self.file(&caller, &input.bucket, &input.key)?;
        let number = u32::try_from(input.part_number).ok().filter(|number| (1..=10_000).contains(number));
        let no_part = || S3Error::with_message(S3ErrorCode::InvalidArgument, "parts are numbered from 1 to 10000");
        let number = number.ok_or_else(no_part)?;
        let length = length(input.content_length.or(decoded), MAX_PART)?;
        let checksums = [
            input.checksum_crc32,
            input.checksum_crc32c,
            input.checksum_crc64nvme,
            input.checksum_sha1,
            input.checksum_sha256,
        ];
        let declared = Declared { checksums, md5: input.content_md5, trailer };
        let _share = self.memory.share_of_incoming(length).await.map_err(|failure| failure::told(&failure))?;
        let mut incoming = Incoming::new(input.body, length, declared, trailers, &self.stats);
        let bytes = incoming.part(length).await?;
        incoming.finish().await?;
        let sent = self.client.upload_part(&place.path, &input.upload_id, number, bytes).await;
        let tag = PartTag { tag: sent.map_err(|failure| of_upload(&failure))?, size: length };
        let e_tag = Some(ETag::Strong(tag.encode()));
        Ok(S3Response::new(UploadPartOutput { e_tag, ..UploadPartOutput::default() }))
    }

    pub(crate) async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        let checksums = [
            input.checksum_crc32,
            input.checksum_crc32c,
            input.checksum_crc64nvme,
            input.checksum_sha1,
            input.checksum_sha256,
        ];
        without(&[
            ("a condition of a write", input.if_match.is_some() || input.if_none_match.is_some()),
            ("a checksum of all parts together", checksums.iter().any(Option::is_some)),
        ])?;
        let place = self.file(&caller, &input.bucket, &input.key)?;
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let (tags, size, is_short) = whole(parts)?;
        if input.mpu_object_size.is_some_and(|said| signed(size) != Some(said)) {
            let message = "the parts do not have as many bytes as `x-amz-mp-object-size` says";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message));
        }
        let completed = self.client.complete_upload(&place.path, &input.upload_id, size, &tags).await;
        let attr = completed.map_err(|failure| of_completion(&failure, is_short))?;
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            e_tag: tag_of(&attr),
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    pub(crate) async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let caller = self.caller(&request)?;
        let place = self.file(&caller, &request.input.bucket, &request.input.key)?;
        let aborted = self.client.abort_upload(&place.path, &request.input.upload_id).await;
        aborted.map_err(|failure| of_upload(&failure))?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    /// The store copies. From one origin to another it cannot, and under conditions it would copy what is there by then:
    /// what was found is read and sent.
    pub(crate) async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let caller = self.caller(&request)?;
        let (conditional, source) = (has_conditions(&request.headers), Source::of(&request)?);
        let input = request.input;
        without(&[("a condition of a write", conditional)])?;
        without_extras!(input)?;
        let conditions = Conditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let (found, from) = self.source(&caller, source, &conditions).await?;
        let to = self.target(&caller, &input.bucket, &input.key)?;
        if from.is_directory || to.is_directory {
            let message = "directories are not copied; copy what is in them";
            return Err(S3Error::with_message(S3ErrorCode::NotImplemented, message));
        }
        if from.path == to.path {
            let message = "an object cannot be copied to itself: the cache carries no metadata that this could change";
            return Err(S3Error::with_message(S3ErrorCode::InvalidRequest, message));
        }
        let made = match conditions.are_any() {
            true => self.copy_found(&found, &from.path, &to.path).await,
            false => match self.client.copy(&from.path, &to.path).await {
                Err(failure) if failure.kind() == FailureKind::CrossDevice => {
                    self.copy_found(&found, &from.path, &to.path).await
                }
                copied => copied.map_err(|failure| failure::of_write(&failure)),
            },
        };
        let attr = self.within_bucket(&input.bucket, made).await?;
        let copied = CopyObjectResult {
            e_tag: tag_of(&attr),
            last_modified: etag::modified(&attr),
            ..CopyObjectResult::default()
        };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(copied), ..CopyObjectOutput::default() }))
    }

    pub(crate) async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let caller = self.caller(&request)?;
        let input = request.input;
        without(&[
            ("a version by its id", input.version_id.as_deref().is_some_and(|version| version != "null")),
            (
                "a condition of a deletion",
                input.if_match.is_some()
                    || input.if_match_last_modified_time.is_some()
                    || input.if_match_size.is_some(),
            ),
        ])?;
        self.delete(&caller, &input.bucket, &input.key).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    pub(crate) async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let caller = self.caller(&request)?;
        let (bucket, delete) = (request.input.bucket, request.input.delete);
        // First: of a list that is too long, nothing is kept while somebody is asked.
        if delete.objects.len() > MAX_DELETES {
            return Err(S3Error::with_message(S3ErrorCode::MalformedXML, "a request deletes at most 1000 objects"));
        }
        self.check_bucket(&bucket).await?;
        let is_quiet = delete.quiet.unwrap_or_default();
        let deletions = delete.objects.into_iter().map(|object| {
            let (served, bucket) = (self, &bucket);
            let caller = Caller { asked: caller.asked.part(), ..caller.clone() };
            async move {
                let done = match unconditional(&object) {
                    Ok(()) => served.delete(&caller, bucket, &object.key).await,
                    Err(refusal) => Err(refusal),
                };
                let status = done.as_ref().err().map_or(Some(StatusCode::NO_CONTENT), S3Error::status_code);
                caller.asked.record(Some(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR).as_u16()));
                (done, object.key)
            }
        });
        let deletions: Vec<_> = futures::stream::iter(deletions).buffered(DELETES).collect().await;
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (done, key) in deletions {
            match done {
                Ok(()) if is_quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..DeletedObject::default() }),
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    message: error.message().map(str::to_owned),
                    key: Some(key),
                    ..Error::default()
                }),
            }
        }
        let (deleted, errors) = (Some(deleted), Some(errors));
        Ok(S3Response::new(DeleteObjectsOutput { deleted, errors, ..DeleteObjectsOutput::default() }))
    }

    /// Deletes an object; no failure when it is not there. A directory goes when it is empty: its marker is what a
    /// client means.
    async fn delete(&self, caller: &Caller, bucket: &str, key: &str) -> S3Result<()> {
        use FailureKind::{IsADirectory, NotADirectory, NotEmpty, NotFound};
        let Some(Place { path, is_directory }) = self.reach(caller, bucket, key, Permission::Write)? else {
            return Ok(());
        };
        let removed = match is_directory {
            true => self.client.remove_directory(&path).await,
            false => self.client.remove(&path).await,
        };
        match removed {
            Err(failure) if !matches!(failure.kind(), NotFound | NotADirectory | IsADirectory | NotEmpty) => {
                Err(failure::told(&failure))
            }
            _ => Ok(()),
        }
    }

    /// What is to be written in parts.
    ///
    /// # Errors
    /// As [`Self::target`], and of a directory.
    pub(crate) fn file(&self, caller: &Caller, bucket: &str, key: &str) -> S3Result<Place> {
        let place = self.target(caller, bucket, key)?;
        if place.is_directory {
            let message = "a key that ends in `/` is a directory, and has no bytes";
            return Err(S3Error::with_message(S3ErrorCode::InvalidArgument, message));
        }
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: i32, tag: &str, size: u64) -> CompletedPart {
        let tag = PartTag { tag: tag.to_owned(), size }.encode();
        CompletedPart { part_number: Some(number), e_tag: Some(ETag::Strong(tag)), ..CompletedPart::default() }
    }

    #[test]
    fn an_upload_is_its_parts_from_the_first_on() {
        let parts = vec![part(1, "\"a\"", 5), part(2, "b", 3)];
        assert_eq!(whole(parts).unwrap(), (vec!["\"a\"".to_owned(), "b".to_owned()], 8, true));
        assert!(!whole(vec![part(1, "a", MIN_PART), part(2, "b", 3)]).unwrap().2, "the last one may be short");
        let foreign = CompletedPart {
            part_number: Some(1),
            e_tag: Some(ETag::Strong("0123".to_owned())),
            ..CompletedPart::default()
        };
        for (parts, code) in [
            (vec![], S3ErrorCode::MalformedXML),
            (vec![part(2, "a", 1)], S3ErrorCode::InvalidPart),
            (vec![part(1, "a", 1), part(3, "c", 1)], S3ErrorCode::InvalidPart),
            (vec![part(1, "a", 1), part(1, "a", 1)], S3ErrorCode::InvalidPartOrder),
            (vec![foreign], S3ErrorCode::InvalidPart),
            (vec![part(1, "a", u64::MAX), part(2, "b", 1)], S3ErrorCode::EntityTooLarge),
        ] {
            assert_eq!(whole(parts).unwrap_err().code(), &code);
        }
    }

    #[test]
    fn nothing_is_deleted_but_what_is_meant() {
        let object = |version: Option<&str>, e_tag: Option<&str>, size| ObjectIdentifier {
            key: "k".to_owned(),
            version_id: version.map(str::to_owned),
            e_tag: e_tag.map(|tag| ETag::Strong(tag.to_owned())),
            size,
            last_modified_time: None,
        };
        assert!(unconditional(&object(None, None, None)).is_ok());
        assert!(unconditional(&object(Some("null"), None, None)).is_ok());
        for refused in [object(Some("v1"), None, None), object(None, Some("a"), None), object(None, None, Some(1))] {
            assert_eq!(unconditional(&refused).unwrap_err().code(), &S3ErrorCode::NotImplemented, "{refused:?}");
        }
        assert!(has_conditions(&HeaderMap::from_iter([(IF_NONE_MATCH, "*".parse().unwrap())])));
        assert!(!has_conditions(&HeaderMap::new()));
    }

    #[test]
    fn a_body_says_how_long_it_is_and_is_not_too_long() {
        assert_eq!(length(Some(5), 5).unwrap(), 5);
        let code = |length: S3Result<u64>| length.unwrap_err().code().clone();
        assert_eq!(code(length(None, 5)), S3ErrorCode::MissingContentLength);
        assert_eq!(code(length(Some(-1), 5)), S3ErrorCode::MissingContentLength);
        assert_eq!(code(length(Some(6), 5)), S3ErrorCode::EntityTooLarge);
    }
}
