//! The S3 operations: those that matter to a cache are ours, the rest is `s3s-fs`'s.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;

use super::directory::{Directories, keys_after, object_path};
use super::draft::Drafts;
use super::kept::{Kept, has_marker};
use super::uploads::Uploads;

/// Bytes of a file that are read at a time.
const CHUNK: u64 = 512 << 10;
/// S3's own bound on a page.
const MAX_KEYS: i32 = 1000;

pub(super) struct Backend {
    files: FileSystem,
    root: PathBuf,
    directories: Arc<Directories>,
    drafts: Arc<Drafts>,
    uploads: Arc<Uploads>,
}

/// An object that is open; all that is said of it comes from this one open file.
struct Opened {
    file: File,
    metadata: Metadata,
    kept: Kept,
}

impl Backend {
    pub(super) fn new(root: &Path, uploads: Arc<Uploads>) -> anyhow::Result<Self> {
        let root = root.canonicalize()?;
        let files = FileSystem::new(&root).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let drafts = Arc::new(Drafts::new(&root));
        Ok(Self { files, root, directories: Arc::default(), drafts, uploads })
    }

    fn bucket(&self, name: &str) -> S3Result<PathBuf> {
        let path = object_path(&self.root, name).ok_or_else(|| s3_error!(NoSuchBucket))?;
        if path.is_dir() { Ok(path) } else { Err(s3_error!(NoSuchBucket)) }
    }

    /// The file of a key that is to be written.
    fn target(&self, bucket: &str, key: &str) -> S3Result<PathBuf> {
        let refused = || s3_error!(InvalidArgument, "this server takes only keys that are paths");
        object_path(&self.bucket(bucket)?, key).ok_or_else(refused)
    }

    fn open(&self, bucket: &str, key: &str) -> S3Result<Opened> {
        let bucket = self.bucket(bucket)?;
        let missing = || s3_error!(NoSuchKey);
        let path = object_path(&bucket, key).ok_or_else(missing)?;
        let file = File::open(&path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => missing(),
            ErrorKind::PermissionDenied => s3_error!(AccessDenied),
            _ => s3_error!(error, InternalError),
        })?;
        let metadata = file.metadata().map_err(|error| s3_error!(error, InternalError))?;
        // `dir/` is an object where a client put it, and while the directory is empty, as its marker would be.
        let is_object = match key.ends_with('/') {
            true => metadata.is_dir() && (has_marker(&path) || is_empty(&path)),
            false => metadata.is_file(),
        };
        let kept = Kept::of_file(&file, &metadata);
        if is_object { Ok(Opened { file, metadata, kept }) } else { Err(missing()) }
    }
}

impl Backend {
    /// No failure when there is no such object, as in S3.
    fn delete(&self, bucket: &Path, key: &str) -> S3Result<()> {
        let Some(path) = object_path(bucket, key) else { return Ok(()) };
        let deleted = self.drafts.delete(bucket, &path, key.ends_with('/'));
        deleted.map_err(|error| s3_error!(error, InternalError))
    }
}

impl Opened {
    fn etag(&self) -> ETag {
        ETag::Strong(self.kept.entity_tag(&self.metadata))
    }

    /// The bytes of the part with this number; `None` where it is not kept how long each was.
    fn part(&self, number: i32) -> S3Result<Option<std::ops::Range<u64>>> {
        let sizes = &self.kept.sizes;
        let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
        match at.and_then(|at| Some((sizes[..at.min(sizes.len())].iter().sum::<u64>(), sizes.get(at)?))) {
            Some((start, size)) => Ok(Some(start..start + size)),
            None if sizes.is_empty() => Ok(None),
            None => Err(no_such_part()),
        }
    }

    /// `x-amz-meta-…`.
    fn user_metadata(&self) -> Option<s3s::dto::Metadata> {
        let metadata = &self.kept.metadata;
        (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect())
    }

    /// RFC 9110, 13.2.2: `If-Match` comes before `If-Unmodified-Since`, both before `If-None-Match`.
    fn check_conditions(
        &self,
        if_match: Option<&ETagCondition>,
        if_unmodified_since: Option<&Timestamp>,
        if_none_match: Option<&ETagCondition>,
    ) -> S3Result<()> {
        let etag = self.etag();
        let matches = |condition: &ETagCondition| match condition {
            ETagCondition::Any => true,
            ETagCondition::ETag(other) => etag.strong_cmp(other),
        };
        match (if_match, if_unmodified_since) {
            (Some(condition), _) if !matches(condition) => return Err(s3_error!(PreconditionFailed)),
            (None, Some(since)) if last_modified(&self.metadata)? > *since => {
                return Err(s3_error!(PreconditionFailed));
            }
            _ => {}
        }
        if if_none_match.is_some_and(matches) { Err(s3_error!(NotModified)) } else { Ok(()) }
    }
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

fn no_such_part() -> S3Error {
    let mut error = S3Error::new(S3ErrorCode::Custom("InvalidPartNumber".into()));
    error.set_status_code(http::StatusCode::RANGE_NOT_SATISFIABLE);
    error
}

/// Runs what may block for long.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> S3Result<T> + Send + 'static) -> S3Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(s3_error!(error, InternalError)))
}

fn is_only_new(condition: Option<&ETagCondition>) -> bool {
    matches!(condition, Some(ETagCondition::Any))
}

/// Whole seconds, as in http dates: the same in headers and in listings.
fn last_modified(metadata: &Metadata) -> S3Result<Timestamp> {
    let modified = metadata.modified().map_err(|error| s3_error!(error, InternalError))?;
    let seconds = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(Timestamp::from(UNIX_EPOCH + Duration::from_secs(seconds)))
}

fn size(metadata: &Metadata) -> u64 {
    if metadata.is_dir() { 0 } else { metadata.len() }
}

fn signed(length: u64) -> Option<i64> {
    i64::try_from(length).ok()
}

/// The bytes of a range, read on threads that may block.
fn stream_file(file: File, range: std::ops::Range<u64>) -> StreamingBlob {
    let file = Arc::new(file);
    let chunks = futures::stream::unfold(range.start, move |offset| {
        let (file, end) = (Arc::clone(&file), range.end);
        async move {
            if offset >= end {
                return None;
            }
            let length = (end - offset).min(CHUNK);
            let read = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
                file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
            });
            Some((read.await.unwrap_or_else(|error| Err(std::io::Error::other(error))), offset + length))
        }
    });
    StreamingBlob::wrap(chunks)
}

#[async_trait::async_trait]
impl S3 for Backend {
    async fn get_object(&self, request: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        let opened = self.open(&input.bucket, &input.key)?;
        opened.check_conditions(
            input.if_match.as_ref(),
            input.if_unmodified_since.as_ref(),
            input.if_none_match.as_ref(),
        )?;
        let size = size(&opened.metadata);
        let range = match &input.range {
            Some(range) => range.check(size)?,
            None => 0..size,
        };
        let content_range = input.range.map(|_| format!("bytes {}-{}/{size}", range.start, range.end - 1));
        Ok(S3Response::new(GetObjectOutput {
            content_length: signed(range.end - range.start),
            content_range,
            accept_ranges: Some("bytes".to_owned()),
            e_tag: Some(opened.etag()),
            metadata: opened.user_metadata(),
            last_modified: Some(last_modified(&opened.metadata)?),
            body: Some(stream_file(opened.file, range)),
            ..GetObjectOutput::default()
        }))
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        let opened = self.open(&input.bucket, &input.key)?;
        opened.check_conditions(
            input.if_match.as_ref(),
            input.if_unmodified_since.as_ref(),
            input.if_none_match.as_ref(),
        )?;
        let whole = size(&opened.metadata);
        let part = input.part_number.map(|number| opened.part(number)).transpose()?.flatten();
        let part = part.filter(|part| !part.is_empty());
        let (content_range, content_length) = match &part {
            Some(part) => (Some(format!("bytes {}-{}/{whole}", part.start, part.end - 1)), part.end - part.start),
            None => (None, whole),
        };
        Ok(S3Response::new(HeadObjectOutput {
            content_length: signed(content_length),
            content_range,
            parts_count: part.and(opened.kept.parts).and_then(|parts| i32::try_from(parts).ok()),
            accept_ranges: Some("bytes".to_owned()),
            e_tag: Some(opened.etag()),
            metadata: opened.user_metadata(),
            last_modified: Some(last_modified(&opened.metadata)?),
            ..HeadObjectOutput::default()
        }))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let is_delimited = match input.delimiter.as_deref() {
            None | Some("") => false,
            Some("/") => true,
            Some(_) => return Err(s3_error!(NotImplemented, "the only delimiter here is /")),
        };
        let max_keys = input.max_keys.unwrap_or(MAX_KEYS).clamp(0, MAX_KEYS);
        let max = usize::try_from(max_keys).unwrap_or(0);
        // The token is the last key, marked, so that a token of another kind does not pass for one.
        let after = match &input.continuation_token {
            Some(token) => token.strip_prefix("after:").ok_or_else(|| s3_error!(InvalidArgument))?.to_owned(),
            None => input.start_after.clone().unwrap_or_default(),
        };
        let directories = Arc::clone(&self.directories);
        let listing = tokio::task::spawn_blocking(move || {
            let mut keys = keys_after(&directories, &bucket, &prefix, is_delimited, &after, max)?;
            let is_truncated = keys.len() > max;
            keys.truncate(max);
            let next = keys.last().filter(|_| is_truncated).map(|key| format!("after:{key}"));
            let (mut contents, mut prefixes) = (Vec::new(), Vec::new());
            for key in keys {
                if is_delimited && key.ends_with('/') && key != prefix {
                    prefixes.push(CommonPrefix { prefix: Some(key) });
                    continue;
                }
                // A file that vanished since the directory was read is no longer there.
                let path = bucket.join(&key);
                let Ok(metadata) = std::fs::metadata(&path) else { continue };
                contents.push(Object {
                    size: signed(size(&metadata)),
                    e_tag: Some(ETag::Strong(Kept::of_path(&path, &metadata).entity_tag(&metadata))),
                    last_modified: last_modified(&metadata).ok(),
                    key: Some(key),
                    ..Object::default()
                });
            }
            Ok((contents, prefixes, next))
        });
        let listing: std::io::Result<_> = listing.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let (contents, prefixes, next) = listing.map_err(|error| s3_error!(error, InternalError))?;
        Ok(S3Response::new(ListObjectsV2Output {
            key_count: i32::try_from(contents.len() + prefixes.len()).ok(),
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            is_truncated: Some(next.is_some()),
            next_continuation_token: next,
            continuation_token: input.continuation_token,
            start_after: input.start_after,
            max_keys: Some(max_keys),
            delimiter: input.delimiter,
            name: Some(input.bucket),
            prefix: input.prefix,
            ..ListObjectsV2Output::default()
        }))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = request.input;
        let target = self.target(&input.bucket, &input.key)?;
        let e_tag = if input.key.ends_with('/') {
            self.drafts.place_marker(&target)?
        } else {
            let draft = self
                .drafts
                .receive("put", input.body, input.content_length, input.checksum_crc64nvme.as_deref())
                .await?;
            let metadata = input.metadata.unwrap_or_default().into_iter().collect();
            let only_new = is_only_new(input.if_none_match.as_ref());
            self.drafts.place(&draft, &target, &Kept { metadata, ..Kept::default() }, only_new)?
        };
        Ok(S3Response::new(PutObjectOutput { e_tag: Some(e_tag), ..PutObjectOutput::default() }))
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = request.input;
        let CopySource::Bucket { bucket, key, .. } = &input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        if **bucket == *input.bucket && **key == *input.key {
            return Err(s3_error!(InvalidRequest, "an object cannot be copied to itself"));
        }
        let mut source = self.open(bucket, key)?;
        let target = self.target(&input.bucket, &input.key)?;
        let drafts = Arc::clone(&self.drafts);
        let e_tag = blocking(move || {
            let draft = drafts.make("put")?;
            // Copies in the kernel.
            std::io::copy(&mut source.file, &mut &draft.file).map_err(|error| s3_error!(error, InternalError))?;
            drafts.place(&draft, &target, &Kept { metadata: source.kept.metadata, ..Kept::default() }, false)
        });
        let copy_object_result = Some(CopyObjectResult { e_tag: Some(e_tag.await?), ..CopyObjectResult::default() });
        Ok(S3Response::new(CopyObjectOutput { copy_object_result, ..CopyObjectOutput::default() }))
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete(&self.bucket(&request.input.bucket)?, &request.input.key)?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let bucket = self.bucket(&request.input.bucket)?;
        let mut deleted = Vec::new();
        for object in request.input.delete.objects {
            self.delete(&bucket, &object.key)?;
            deleted.push(DeletedObject { key: Some(object.key), ..DeletedObject::default() });
        }
        Ok(S3Response::new(DeleteObjectsOutput { deleted: Some(deleted), ..DeleteObjectsOutput::default() }))
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        self.files.create_bucket(request).await
    }

    async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.files.delete_bucket(request).await
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.files.head_bucket(request).await
    }

    async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        self.files.list_buckets(request).await
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.files.get_bucket_location(request).await
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let CreateMultipartUploadInput { bucket, key, metadata, .. } = request.input;
        self.target(&bucket, &key)?;
        let upload_id = Some(self.uploads.begin(&bucket, &key, metadata.unwrap_or_default().into_iter().collect()));
        let (bucket, key) = (Some(bucket), Some(key));
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket,
            key,
            upload_id,
            ..CreateMultipartUploadOutput::default()
        }))
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let UploadPartInput { bucket, key, upload_id, part_number, body, content_length, checksum_crc64nvme, .. } =
            request.input;
        self.uploads.check(&upload_id, &bucket, &key, part_number)?;
        let draft = self.drafts.receive("part", body, content_length, checksum_crc64nvme.as_deref()).await?;
        let part = (draft, checksum_crc64nvme.clone());
        let e_tag = Some(self.uploads.add(&self.drafts, &upload_id, (&bucket, &key), part_number, part)?);
        Ok(S3Response::new(UploadPartOutput { e_tag, checksum_crc64nvme, ..UploadPartOutput::default() }))
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let ListPartsInput { bucket, key, upload_id, max_parts, part_number_marker, .. } = request.input;
        let (after, max) = (part_number_marker.unwrap_or(0), max_parts.unwrap_or(MAX_KEYS).clamp(0, MAX_KEYS));
        let (parts, is_truncated) =
            self.uploads.parts(&upload_id, (&bucket, &key), after, usize::try_from(max).unwrap_or(0))?;
        let next = parts.last().and_then(|part| part.part_number).filter(|_| is_truncated);
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(bucket),
            key: Some(key),
            upload_id: Some(upload_id),
            is_truncated: Some(is_truncated),
            max_parts: Some(max),
            part_number_marker: Some(after),
            next_part_number_marker: next,
            parts: Some(parts),
            ..ListPartsOutput::default()
        }))
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let ListMultipartUploadsInput { bucket, prefix, key_marker, upload_id_marker, max_uploads, delimiter, .. } =
            request.input;
        self.bucket(&bucket)?;
        if delimiter.is_some_and(|delimiter| !delimiter.is_empty()) {
            return Err(s3_error!(NotImplemented, "uploads are not grouped here"));
        }
        let max = max_uploads.unwrap_or(MAX_KEYS).clamp(0, MAX_KEYS);
        let marker = (key_marker.as_deref().unwrap_or_default(), upload_id_marker.as_deref().unwrap_or_default());
        let prefix_text = prefix.as_deref().unwrap_or_default();
        let (uploads, is_truncated) =
            self.uploads.list(&bucket, prefix_text, marker, usize::try_from(max).unwrap_or(0));
        let last = uploads.last().filter(|_| is_truncated).cloned().unwrap_or_default();
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(bucket),
            is_truncated: Some(is_truncated),
            max_uploads: Some(max),
            next_key_marker: last.key,
            next_upload_id_marker: last.upload_id,
            prefix,
            key_marker,
            upload_id_marker,
            uploads: Some(uploads),
            ..ListMultipartUploadsOutput::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let CompleteMultipartUploadInput { bucket, key, upload_id, multipart_upload, if_none_match, .. } =
            request.input;
        let target = self.target(&bucket, &key)?;
        let list = multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let chosen = self.uploads.choose(&upload_id, &bucket, &key, &list)?;
        let only_new = is_only_new(if_none_match.as_ref());
        let drafts = Arc::clone(&self.drafts);
        let e_tag = blocking(move || {
            let draft = chosen.join(&drafts)?;
            drafts.place(&draft, &target, &chosen.kept(), only_new)
        });
        let e_tag = Some(e_tag.await?);
        // Another request may have completed it, too.
        let _ = self.uploads.end(&upload_id, &bucket, &key);
        let (bucket, key) = (Some(bucket), Some(key));
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket,
            key,
            e_tag,
            ..CompleteMultipartUploadOutput::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let AbortMultipartUploadInput { bucket, key, upload_id, .. } = request.input;
        self.uploads.end(&upload_id, &bucket, &key)?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}
