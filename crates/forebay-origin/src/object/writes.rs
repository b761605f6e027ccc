//! Changes of files in an object store: whole objects and uploads in parts.
//!
//! * **What a change answers** is what a HEAD says afterwards: only that has the modification time. When its entity tag
//!   is not the one that the change was answered with, another writer has written since, and the answer is of our
//!   version.
//! * **Names of uploads and tags of parts** carry more than the origin's. A part's tag has its length, so that parts that do
//!   not add up are found out before anything is changed, by whatever worker. An upload's name has a random mark, which is
//!   put into the object's metadata (`x-amz-meta-forebay-upload`): when the answer to a completion was lost, and the upload
//!   is gone when it is asked for again, the mark says whether the object is ours. Where there is no metadata (the HEAD
//!   shows none), the object's size, its number of parts and its time have to do, and only after an attempt whose answer
//!   was lost. Azure commits the same list of blocks twice without complaint. A file that is only made where there is none
//!   has such a mark, too: after a lost answer the origin says that it is there, and the mark, whose it is.
//! * Before a file is written where none was known to be, one key is listed, since a directory there would shadow it.
//!
//! Nothing here pins versions: the last writer wins.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::Utc;
use forebay_types::{Attr, Failure, FailureKind, VersionTag};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::ObjectStoreOrigin;
use super::attempts::{AT_WORK, Requests, for_upload};
use super::build::{Flavor, Writer};
use super::exchange::Exchange;
use super::failure::diagnose;
use super::listing::{quoted, whole_seconds};
use crate::names::{
    check_change, check_part, check_parts, exists, invalid, is_a_directory, no_such_part, no_such_upload, not_of_size,
    shown,
};
use crate::read_only;
use crate::stats::Operation;

/// The longest key in S3, Google Cloud Storage and Azure.
const LONGEST_KEY: usize = 1024;
/// The metadata that says which upload, or which request that makes a file where there is none, an object came from.
const MARK: &str = "forebay-upload";
/// The same on Azure, whose names of metadata are identifiers.
const MARK_ON_AZURE: &str = "forebayupload";
/// How far the origin's clock and ours may be apart: S3 refuses requests beyond.
const CLOCK_SKEW_NANOS: i64 = 15 * 60 * 1_000_000_000;

impl ObjectStoreOrigin {
    pub(super) async fn put_file(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let (writer, key) = self.to_change(path)?;
        self.refuse_directory(path).await?;
        let length = bytes.len();
        let payload = PutPayload::from(bytes);
        let put = || writer.store.put(&key, payload.clone());
        let (result, _) = self.change(Operation::Put, path, for_upload(length), put).await?;
        self.requests.stats.count_uploaded(length);
        self.written(path, length as u64, result).await
    }

    /// The store keeps the condition. One that passes over it, as old ones do, replaces what is there.
    pub(super) async fn create_file(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let (writer, key) = self.to_change(path)?;
        self.refuse_directory(path).await?;
        let length = bytes.len();
        let payload = PutPayload::from(bytes);
        let mark = new_mark();
        let mut is_answer_lost = false;
        let mut attempts = self.requests.attempts_with(Operation::Put, path, for_upload(length));
        let created = loop {
            let exchange = Exchange::for_change();
            let attempt = async {
                let attributes = [(self.mark_name(), mark.clone())].into_iter().collect();
                let options = PutOptions { mode: PutMode::Create, attributes, ..PutOptions::default() };
                let create = writer.store.put_opts(&key, payload.clone(), options);
                exchange.watch(create).await.map_err(|error| self.problem(path, &exchange, &error))
            };
            match attempts.run(attempt).await {
                Ok(result) => break self.written(path, length as u64, result).await,
                Err(problem) if matches!(problem.failure.kind(), FailureKind::VersionChanged | FailureKind::Exists) => {
                    break self.created_before(path, &mark, length as u64, is_answer_lost).await;
                }
                Err(problem) => {
                    is_answer_lost |= is_lost(&exchange);
                    attempts.retry_or_give_up(problem, !exchange.observed().sent).await?;
                }
            }
        };
        let attr = created?;
        self.requests.stats.count_uploaded(length);
        Ok(attr)
    }

    pub(super) async fn begin(&self, path: &[u8]) -> Result<String, Failure> {
        let (writer, key) = self.to_change(path)?;
        self.refuse_directory(path).await?;
        let mark = new_mark();
        let begin = || {
            let attributes: Attributes = match self.client.flavor {
                // There the metadata belongs to the last request, which the client sends without.
                Flavor::Azure => Attributes::new(),
                _ => [(self.mark_name(), mark.clone())].into_iter().collect(),
            };
            let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
            writer.uploads.create_multipart_opts(&key, options)
        };
        let (id, _) = self.change(Operation::Begin, path, Duration::ZERO, begin).await?;
        if self.client.asking.is_some() {
            self.begun.remember(&id, &mark);
        }
        Ok(format!("{mark}:{id}"))
    }

    pub(super) async fn send_part(
        &self,
        path: &[u8],
        upload: &str,
        number: u32,
        bytes: Bytes,
    ) -> Result<String, Failure> {
        let (writer, key) = self.to_change(path)?;
        check_part(&self.requests.url, path, number)?;
        let (_, id) = self.upload(path, upload)?;
        let length = bytes.len();
        let payload = PutPayload::from(bytes);
        // The client counts from 0.
        let send = || writer.uploads.put_part(&key, &id, number as usize - 1, payload.clone());
        let (part, _) = self.change(Operation::Part, path, for_upload(length), send).await?;
        self.requests.stats.count_uploaded(length);
        Ok(format!("{length:x}:{}", part.content_id))
    }

    pub(super) async fn complete(
        &self,
        path: &[u8],
        upload: &str,
        size: u64,
        tags: &[String],
    ) -> Result<Attr, Failure> {
        let (writer, key) = self.to_change(path)?;
        check_parts(&self.requests.url, path, tags)?;
        let (mark, id) = self.upload(path, upload)?;
        let mut parts = Vec::with_capacity(tags.len());
        let mut found = 0u64;
        for (tag, number) in tags.iter().zip(1..) {
            let no_such_part = || no_such_part(&self.requests.url, path, number);
            let (length, tag) = tag.split_once(':').ok_or_else(no_such_part)?;
            found = found.saturating_add(u64::from_str_radix(length, 16).map_err(|_| no_such_part())?);
            parts.push(PartId { content_id: tag.to_owned() });
        }
        if found != size {
            return Err(not_of_size(&self.requests.url, path, size, found));
        }
        let began = whole_seconds(Utc::now());
        let mut is_answer_lost = false;
        let mut attempts = self.requests.attempts_with(Operation::Complete, path, AT_WORK);
        let result = loop {
            let exchange = Exchange::for_change();
            let attempt = async {
                let complete = writer.uploads.complete_multipart(&key, &id, parts.clone());
                exchange.watch(complete).await.map_err(|error| self.problem(path, &exchange, &error))
            };
            match attempts.run(attempt).await {
                Ok(result) => break result,
                Err(problem) if problem.failure.kind() == FailureKind::NotFound => {
                    let lost = is_answer_lost.then_some(began.saturating_sub(CLOCK_SKEW_NANOS));
                    return self.completed_before(path, mark, size, tags.len(), lost).await;
                }
                Err(problem) => {
                    is_answer_lost |= is_lost(&exchange);
                    attempts.retry_or_give_up(problem, !exchange.observed().sent).await?;
                }
            }
        };
        self.written(path, size, result).await
    }

    pub(super) async fn abort(&self, path: &[u8], upload: &str) -> Result<(), Failure> {
        match self.to_abort(path, upload)? {
            Some(abort) => abort.run().await,
            None => Ok(()),
        }
    }

    /// What gives an upload up; `None` for what is none.
    pub(super) fn to_abort(&self, path: &[u8], upload: &str) -> Result<Option<Abort>, Failure> {
        let (writer, key) = self.to_change(path)?;
        let Ok((_, id)) = self.upload(path, upload) else { return Ok(None) };
        let (requests, uploads) = (Arc::clone(&self.requests), Arc::clone(&writer.uploads));
        Ok(Some(Abort { requests, uploads, path: path.into(), key, id }))
    }

    pub(super) async fn remove_file(&self, path: &[u8]) -> Result<(), Failure> {
        let (writer, key) = self.to_change(path)?;
        or_gone(self.change(Operation::Remove, path, Duration::ZERO, || writer.store.delete(&key)).await)
    }

    /// The client for changes, and the key of a path as it takes it.
    pub(super) fn to_change(&self, path: &[u8]) -> Result<(&Writer, Path), Failure> {
        let writer = self.client.writer.as_ref().ok_or_else(|| read_only(&self.requests.url, path))?;
        check_change(&self.requests.url, path)?;
        let what = "no key can be called so: keys are UTF-8 without control characters";
        let (name, key) = self.key(path).map_err(|_| invalid(&self.requests.url, path, what))?;
        if name.len() > LONGEST_KEY {
            let (place, length) = (shown(&self.requests.url, path), name.len());
            let message = format!("{place}: a key of {length} bytes; object stores take up to {LONGEST_KEY}");
            return Err(Failure::new(FailureKind::NameTooLong, message));
        }
        Ok((writer, key))
    }

    /// `IsADirectory` if there is one. Where it may not be asked for, files cannot be shadowed for our readers.
    pub(super) async fn refuse_directory(&self, path: &[u8]) -> Result<(), Failure> {
        match self.has_directory(path).await {
            Ok(false) => Ok(()),
            Ok(true) => Err(is_a_directory(&self.requests.url, path)),
            Err(failure) if failure.kind() == FailureKind::PermissionDenied => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// As [`change`], at this origin.
    pub(super) async fn change<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: Operation,
        path: &[u8],
        longer: Duration,
        request: impl Fn() -> F,
    ) -> Result<(T, Exchange), Failure> {
        change(&self.requests, operation, path, longer, request).await
    }

    /// What there is of a file of `size` bytes that was written with this answer.
    async fn written(&self, path: &[u8], size: u64, result: PutResult) -> Result<Attr, Failure> {
        let attr = self.settled(path, size, result.e_tag.as_deref()).await?;
        if attr.size() == size { Ok(attr) } else { Err(not_of_size(&self.requests.url, path, size, attr.size())) }
    }

    /// What there is of a file that was written and got this entity tag.
    pub(super) async fn settled(&self, path: &[u8], size: u64, etag: Option<&str>) -> Result<Attr, Failure> {
        let found = self.head(path).await;
        let Some(etag) = etag.map(quoted) else { return found };
        match found {
            Ok(attr) if attr.version().is_some_and(|version| version.tag == VersionTag::Etag((*etag).into())) => {
                Ok(attr)
            }
            // Another writer has written since, or removed it; or it cannot be asked for, which makes it no less
            // written.
            _ => Ok(self.attr(path, size, Some(&etag), whole_seconds(Utc::now()))),
        }
    }

    /// For an upload that is gone: whether it was completed before. `lost_since`: an answer was lost, to a request that was
    /// sent after this time.
    async fn completed_before(
        &self,
        path: &[u8],
        mark: &str,
        size: u64,
        parts: usize,
        lost_since: Option<i64>,
    ) -> Result<Attr, Failure> {
        let gone = || no_such_upload(&self.requests.url, path);
        let (attr, metadata) = match self.head_with_metadata(path).await {
            Err(failure) if failure.kind() == FailureKind::NotFound => return Err(gone()),
            found => found?,
        };
        let is_likely = |since| {
            let tag = attr.version().map(|version| &version.tag);
            let has_parts = matches!(tag, Some(VersionTag::Etag(tag)) if tag.ends_with(&format!("-{parts}\"")));
            has_parts && attr.modified_nanos >= since
        };
        let is_ours = match metadata.get(&self.mark_name()) {
            Some(found) if !mark.is_empty() => **found == *mark,
            // One that was told without its mark (`object/asking.rs`), or there is no metadata.
            _ => lost_since.is_some_and(is_likely),
        };
        if is_ours && attr.size() == size { Ok(attr) } else { Err(gone()) }
    }

    /// For a file that was to be made where there is none, and is there: what it is, if it was made by an attempt whose
    /// answer was lost.
    async fn created_before(&self, path: &[u8], mark: &str, size: u64, is_answer_lost: bool) -> Result<Attr, Failure> {
        let exists = || exists(&self.requests.url, path);
        if !is_answer_lost {
            return Err(exists());
        }
        let (attr, metadata) = match self.head_with_metadata(path).await {
            // Removed since, or not for our eyes: it was there all the same.
            Err(failure) if matches!(failure.kind(), FailureKind::NotFound | FailureKind::PermissionDenied) => {
                return Err(exists());
            }
            found => found?,
        };
        let is_ours = metadata.get(&self.mark_name()).is_some_and(|found| **found == *mark);
        if is_ours && attr.size() == size { Ok(attr) } else { Err(exists()) }
    }

    fn mark_name(&self) -> Attribute {
        let name = if self.client.flavor == Flavor::Azure { MARK_ON_AZURE } else { MARK };
        Attribute::Metadata(name.into())
    }

    /// The mark, which may be empty, and the origin's name of an upload, which is empty on Azure.
    pub(super) fn upload<'a>(&self, path: &[u8], upload: &'a str) -> Result<(&'a str, String), Failure> {
        let (mark, id) = upload.split_once(':').ok_or_else(|| no_such_upload(&self.requests.url, path))?;
        Ok((mark, id.to_owned()))
    }
}

/// What gives an upload up, apart from the origin at which it was begun: whoever began it may have left.
pub(super) struct Abort {
    requests: Arc<Requests>,
    uploads: Arc<dyn MultipartStore>,
    path: Box<[u8]>,
    key: Path,
    id: String,
}

impl Abort {
    /// Gives it up; no failure when there is none any more.
    pub(super) async fn run(&self) -> Result<(), Failure> {
        let abort = || self.uploads.abort_multipart(&self.key, &self.id);
        or_gone(change(&self.requests, Operation::Abort, &self.path, Duration::ZERO, abort).await)
    }

    /// What it was an upload of, for people.
    pub(super) fn file(&self) -> String {
        shown(&self.requests.url, &self.path)
    }
}

/// The attempts of one change, each of which may take so much longer than a request for some bytes.
async fn change<T, F: Future<Output = object_store::Result<T>>>(
    requests: &Requests,
    operation: Operation,
    path: &[u8],
    longer: Duration,
    request: impl Fn() -> F,
) -> Result<(T, Exchange), Failure> {
    let mut attempts = requests.attempts_with(operation, path, longer);
    loop {
        let exchange = Exchange::for_change();
        let attempt = async {
            let answer = exchange.watch(request()).await;
            answer.map_err(|error| diagnose(&requests.url, path, &requests.setting, &exchange.observed(), &error))
        };
        match attempts.run(attempt).await {
            Ok(done) => return Ok((done, exchange)),
            Err(problem) => attempts.retry_or_give_up(problem, !exchange.observed().sent).await?,
        }
    }
}

/// What nothing else has that is changed.
fn new_mark() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Whether a failed attempt may have changed something all the same.
fn is_lost(exchange: &Exchange) -> bool {
    let observed = exchange.observed();
    observed.sent && observed.refusal.is_none_or(|refusal| !(400..500).contains(&refusal.status))
}

/// What is not there is gone.
pub(super) fn or_gone<T>(result: Result<T, Failure>) -> Result<(), Failure> {
    match result {
        Err(failure) if failure.kind() != FailureKind::NotFound => Err(failure),
        _ => Ok(()),
    }
}
