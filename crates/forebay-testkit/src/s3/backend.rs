//! The S3 operations: those that matter to a cache are ours, the rest is `s3s-fs`'s.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::StreamExt;
use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::io::AsyncWriteExt;

use super::directory::{Directories, entity_tag, keys_after, object_path};

/// Bytes of a file that are read at a time.
const CHUNK: u64 = 512 << 10;
/// S3's own bound on a page.
const MAX_KEYS: i32 = 1000;

pub(super) struct Backend {
    files: FileSystem,
    root: PathBuf,
    directories: Arc<Directories>,
    uploads: AtomicU64,
    last_modified: AtomicI64,
}

impl Backend {
    pub(super) fn new(root: &Path) -> anyhow::Result<Self> {
        let root = root.canonicalize()?;
        let files = FileSystem::new(&root).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        Ok(Self {
            files,
            root,
            directories: Arc::default(),
            uploads: AtomicU64::new(0),
            last_modified: AtomicI64::new(0),
        })
    }

    fn bucket(&self, name: &str) -> S3Result<PathBuf> {
        let path = object_path(&self.root, name).ok_or_else(|| s3_error!(NoSuchBucket))?;
        if path.is_dir() { Ok(path) } else { Err(s3_error!(NoSuchBucket)) }
    }

    /// Opens an object; all that is said of it comes from this one open file.
    fn open(&self, bucket: &str, key: &str) -> S3Result<(File, Metadata)> {
        let bucket = self.bucket(bucket)?;
        let missing = || s3_error!(NoSuchKey);
        let path = object_path(&bucket, key).ok_or_else(missing)?;
        let file = File::open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => missing(),
            ErrorKind::PermissionDenied => s3_error!(AccessDenied),
            _ => s3_error!(error, InternalError),
        })?;
        let metadata = file.metadata().map_err(|error| s3_error!(error, InternalError))?;
        // `dir/` is an object while the directory is empty, as its marker would be.
        let is_object = if key.ends_with('/') { metadata.is_dir() } else { metadata.is_file() };
        if is_object { Ok((file, metadata)) } else { Err(missing()) }
    }

    /// A modification time that no object got before, so that no two versions have one entity tag.
    fn next_modified(&self) -> SystemTime {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let next = |last: i64| last.saturating_add(1).max(now);
        let previous = self.last_modified.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        let nanos = next(previous.unwrap_or_default());
        UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanos).unwrap_or_default())
    }

    /// A file on its way to becoming an object; it is removed if it does not.
    fn upload(&self) -> S3Result<Upload> {
        let number = self.uploads.fetch_add(1, Ordering::Relaxed);
        let path = self.root.join(format!(".put-{}-{number}", std::process::id()));
        let file = File::create(&path).map_err(|error| s3_error!(error, InternalError))?;
        Ok(Upload { path, file })
    }

    fn finish(&self, upload: Upload, target: &Path) -> S3Result<ETag> {
        let place = || -> std::io::Result<ETag> {
            upload.file.set_modified(self.next_modified())?;
            let etag = ETag::Strong(entity_tag(&upload.file.metadata()?));
            if let Some(parent) = target.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::rename(&upload.path, target)?;
            Ok(etag)
        };
        // A directory cannot hold the file `a` and the directory `a` at once, as a bucket could.
        place().map_err(|error| s3_error!(InvalidRequest, "cannot place the object: {}", error))
    }
}

struct Upload {
    path: PathBuf,
    file: File,
}

impl Drop for Upload {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// RFC 9110, 13.2.2: `If-Match` comes before `If-Unmodified-Since`, both before `If-None-Match`.
fn check_conditions(
    metadata: &Metadata,
    if_match: Option<&ETagCondition>,
    if_unmodified_since: Option<&Timestamp>,
    if_none_match: Option<&ETagCondition>,
) -> S3Result<()> {
    let etag = ETag::Strong(entity_tag(metadata));
    let matches = |condition: &ETagCondition| match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(other) => etag.strong_cmp(other),
    };
    match (if_match, if_unmodified_since) {
        (Some(condition), _) if !matches(condition) => return Err(s3_error!(PreconditionFailed)),
        (None, Some(since)) if last_modified(metadata)? > *since => return Err(s3_error!(PreconditionFailed)),
        _ => {}
    }
    if if_none_match.is_some_and(matches) { Err(s3_error!(NotModified)) } else { Ok(()) }
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
        let (file, metadata) = self.open(&input.bucket, &input.key)?;
        check_conditions(
            &metadata,
            input.if_match.as_ref(),
            input.if_unmodified_since.as_ref(),
            input.if_none_match.as_ref(),
        )?;
        let size = size(&metadata);
        let range = match &input.range {
            Some(range) => range.check(size)?,
            None => 0..size,
        };
        let content_range = input.range.map(|_| format!("bytes {}-{}/{size}", range.start, range.end - 1));
        Ok(S3Response::new(GetObjectOutput {
            content_length: signed(range.end - range.start),
            content_range,
            accept_ranges: Some("bytes".to_owned()),
            e_tag: Some(ETag::Strong(entity_tag(&metadata))),
            last_modified: Some(last_modified(&metadata)?),
            body: Some(stream_file(file, range)),
            ..GetObjectOutput::default()
        }))
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        let (_, metadata) = self.open(&input.bucket, &input.key)?;
        check_conditions(
            &metadata,
            input.if_match.as_ref(),
            input.if_unmodified_since.as_ref(),
            input.if_none_match.as_ref(),
        )?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: signed(size(&metadata)),
            accept_ranges: Some("bytes".to_owned()),
            e_tag: Some(ETag::Strong(entity_tag(&metadata))),
            last_modified: Some(last_modified(&metadata)?),
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
                let Ok(metadata) = std::fs::metadata(bucket.join(&key)) else { continue };
                contents.push(Object {
                    size: signed(size(&metadata)),
                    e_tag: Some(ETag::Strong(entity_tag(&metadata))),
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
        let bucket = self.bucket(&input.bucket)?;
        let target = object_path(&bucket, &input.key)
            .ok_or_else(|| s3_error!(InvalidArgument, "this server takes only keys that are paths"))?;
        if matches!(input.if_none_match, Some(ETagCondition::Any)) && target.exists() {
            return Err(s3_error!(PreconditionFailed));
        }
        if input.key.ends_with('/') {
            std::fs::create_dir_all(&target).map_err(|error| s3_error!(error, InternalError))?;
            return Ok(S3Response::new(PutObjectOutput::default()));
        }
        let upload = self.upload()?;
        let copy = upload.file.try_clone().map_err(|error| s3_error!(error, InternalError))?;
        let mut writer = tokio::io::BufWriter::with_capacity(1 << 20, tokio::fs::File::from_std(copy));
        let mut body = input.body.ok_or_else(|| s3_error!(IncompleteBody))?;
        let mut written = 0;
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|_| s3_error!(IncompleteBody))?;
            writer.write_all(&chunk).await.map_err(|error| s3_error!(error, InternalError))?;
            written += chunk.len() as u64;
        }
        writer.flush().await.map_err(|error| s3_error!(error, InternalError))?;
        if input.content_length.is_some_and(|expected| signed(written) != Some(expected)) {
            return Err(s3_error!(IncompleteBody));
        }
        let e_tag = Some(self.finish(upload, &target)?);
        Ok(S3Response::new(PutObjectOutput { e_tag, ..PutObjectOutput::default() }))
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = request.input;
        let CopySource::Bucket { bucket, key, .. } = &input.copy_source else {
            return Err(s3_error!(NotImplemented));
        };
        let (mut source, _) = self.open(bucket, key)?;
        let target = object_path(&self.bucket(&input.bucket)?, &input.key).ok_or_else(|| s3_error!(InvalidArgument))?;
        let mut upload = self.upload()?;
        std::io::copy(&mut source, &mut upload.file).map_err(|error| s3_error!(error, InternalError))?;
        let e_tag = Some(self.finish(upload, &target)?);
        let copy_object_result = Some(CopyObjectResult { e_tag, ..CopyObjectResult::default() });
        Ok(S3Response::new(CopyObjectOutput { copy_object_result, ..CopyObjectOutput::default() }))
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        let bucket = self.bucket(&request.input.bucket)?;
        delete(&bucket, &request.input.key).map_err(|error| s3_error!(error, InternalError))?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let bucket = self.bucket(&request.input.bucket)?;
        let mut deleted = Vec::new();
        for object in request.input.delete.objects {
            delete(&bucket, &object.key).map_err(|error| s3_error!(error, InternalError))?;
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
        self.files.create_multipart_upload(request).await
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.files.upload_part(request).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.files.list_parts(request).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.files.complete_multipart_upload(request).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.files.abort_multipart_upload(request).await
    }
}

/// Deletes an object and the directories that it was the last in, which were but implied by it.
fn delete(bucket: &Path, key: &str) -> std::io::Result<()> {
    let Some(path) = object_path(bucket, key) else { return Ok(()) };
    let removed = if key.ends_with('/') { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) };
    match removed {
        Ok(()) => {}
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::DirectoryNotEmpty
            ) =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    for parent in path.ancestors().skip(1).take_while(|parent| *parent != bucket) {
        if std::fs::remove_dir(parent).is_err() {
            break;
        }
    }
    Ok(())
}
