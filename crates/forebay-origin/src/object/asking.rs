//! What S3 tells and the object store's client has no call for: the parts of an upload, and which uploads are under way; and
//! where the parts of an object begin (`object/parts.rs`).
//!
//! The client signs URLs with more in their query than it knows ([`Asking`]), so keys, hosts and credentials are those of
//! its own requests, and they go over its connections. The answers are read here, and are taken for nothing else than what
//! they are: of a list that leaves parts out, somebody would make a file without them.
//!
//! * **Tags of parts** are written as [`Origin::upload_part`](crate::Origin::upload_part) answers them, so an upload can be
//!   completed with those that are told here.
//! * **Names of uploads** have a random mark, which S3 does not tell (`object/writes.rs`). The last ones that were begun here
//!   are remembered with theirs. The others are told without, and mean the same upload. Then it cannot be told by the mark
//!   whether a completion came out whose answer was lost.
//!
//! Of Google's store, whose URLs a service account cannot always sign, and of Azure's, which has no such lists, nothing is
//! told.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use forebay_types::{Failure, FailureKind, PartPage, PendingUpload, UploadMarker, UploadPage, UploadedPart};
use http::Uri;
use object_store::client::{HttpRequest, HttpRequestBody, HttpResponse};
use object_store::path::Path;
use object_store::signer::SignedUrlOptions;

use super::exchange::{Exchange, Refusal};
use super::failure::Problem;
use super::listing::{is_usable_name, quoted, whole_seconds};
use super::signed::Asking;
use super::{MAX_PAGE, ObjectStoreOrigin};
use crate::names::{no_such_upload, shown};
use crate::retry::Verdict;
use crate::stats::Operation;
use crate::untold;

/// How long the URL of a request is good. It is used at once; clocks may be off by a quarter of an hour.
const GOOD_FOR: Duration = Duration::from_secs(3600);

impl ObjectStoreOrigin {
    pub(super) async fn parts_of(
        &self,
        path: &[u8],
        upload: &str,
        after: u32,
        max: usize,
    ) -> Result<PartPage, Failure> {
        let (_, key) = self.to_change(path)?;
        let asking = self.asking(path)?;
        let (_, id) = self.upload(path, upload)?;
        // Of the key with nothing in its query, the answer would be the object.
        if id.is_empty() {
            return Err(no_such_upload(&self.requests.url, path));
        }
        let max = max.clamp(1, MAX_PAGE);
        let query = [("uploadId", id), ("max-parts", max.to_string()), ("part-number-marker", after.to_string())];
        let answer = self.ask(path, &key, &query).await?;
        parts_in(&answer, after, max, asking.has_checksums).map_err(|what| self.nonsense(path, &what))
    }

    pub(super) async fn uploads_below(
        &self,
        prefix: &[u8],
        after: Option<&UploadMarker>,
        max: usize,
    ) -> Result<UploadPage, Failure> {
        self.asking(prefix)?;
        // Keys are text: of what is none, there is none.
        let Ok(text) = std::str::from_utf8(prefix) else { return Ok(UploadPage::default()) };
        let all = &self.client.prefix;
        let mut query = vec![("uploads", String::new()), ("prefix", format!("{all}{text}"))];
        query.push(("max-uploads", max.clamp(1, MAX_PAGE).to_string()));
        if let Some(after) = after {
            query.push(("key-marker", format!("{all}{}", String::from_utf8_lossy(&after.path))));
            let id = after.upload.split_once(':').map_or("", |(_, id)| id);
            query.extend((!id.is_empty()).then(|| ("upload-id-marker", id.to_owned())));
        }
        let answer = self.ask(prefix, &Path::default(), &query).await?;
        let page = uploads_in(&answer).and_then(|listed| self.page_of(listed, after));
        page.map_err(|what| self.nonsense(prefix, &what))
    }

    /// The uploads of a page as they are called here; of what no file can be called, nobody hears.
    fn page_of(&self, listed: ListMultipartUploadsResult, after: Option<&UploadMarker>) -> Result<UploadPage, String> {
        let below = |key: &str| key.strip_prefix(&*self.client.prefix).map(str::to_owned);
        let is_usable = |path: &String| path.split('/').all(is_usable_name);
        let last = listed.uploads.last().map(|last| (last.key.clone(), last.upload_id.clone()));
        let marked = listed.next_key_marker.filter(|key| !key.is_empty());
        let end = marked.map(|key| (key, listed.next_upload_id_marker.unwrap_or_default())).or(last);
        let next = end.filter(|_| listed.is_truncated).and_then(|(key, id)| {
            let upload = if id.is_empty() { id } else { format!(":{id}") };
            Some(UploadMarker { path: below(&key)?.into_bytes(), upload })
        });
        // Whoever stopped there would leave uploads out, and whoever went on where it began would do so for ever.
        if listed.is_truncated && (next.is_none() || next.as_ref() == after) {
            return Err("there are more uploads, and not after which one".to_owned());
        }
        let uploads = listed.uploads.into_iter().filter_map(|Listed { key, upload_id, initiated }| {
            Some(PendingUpload {
                path: below(&key).filter(is_usable)?.into_bytes(),
                upload: self.begun.name_of(&upload_id),
                begun_nanos: initiated.map_or(0, whole_seconds),
            })
        });
        Ok(UploadPage { uploads: uploads.collect(), next })
    }

    /// What asks, if there is something that can be asked.
    fn asking(&self, path: &[u8]) -> Result<&Asking, Failure> {
        self.client.asking.as_ref().ok_or_else(|| untold(&self.requests.url, path))
    }

    /// The body of what a GET of `key` with this query is answered with.
    async fn ask(&self, path: &[u8], key: &Path, query: &[(&str, String)]) -> Result<Bytes, Failure> {
        let mut attempts = self.requests.attempts(Operation::List, path);
        loop {
            let exchange = Exchange::for_listing();
            match attempts.run(self.ask_once(path, key, query, &exchange)).await {
                Ok(answer) => return Ok(answer),
                Err(problem) => attempts.retry_or_give_up(problem, !exchange.observed().sent).await?,
            }
        }
    }

    async fn ask_once(
        &self,
        path: &[u8],
        key: &Path,
        query: &[(&str, String)],
        exchange: &Exchange,
    ) -> Result<Bytes, Problem> {
        self.send(path, (key, query), HttpRequest::new(HttpRequestBody::empty()), exchange).await?;
        let nothing =
            || Problem::transient(format!("{}: the answer has no list in it", shown(&self.requests.url, path)));
        exchange.take_listing().ok_or_else(nothing)
    }

    /// Sends a request of our own, for this key and with this query, and answers what is no refusal.
    pub(super) async fn send(
        &self,
        path: &[u8],
        (key, query): (&Path, &[(&str, String)]),
        mut request: HttpRequest,
        exchange: &Exchange,
    ) -> Result<HttpResponse, Problem> {
        let final_failure = |failure| Problem { verdict: Verdict::Final, failure };
        let failed = |error: object_store::Error| self.problem(path, exchange, &error);
        let asking = self.asking(path).map_err(final_failure)?;
        let options = SignedUrlOptions::default().with_query(query.iter().cloned());
        let method = request.method().clone();
        let url = asking.signer.signed_url_opts(method, key, GOOD_FOR, &options).await.map_err(failed)?;
        *request.uri_mut() = url.as_str().parse::<Uri>().map_err(|error| failed(generic(error)))?;
        request.extensions_mut().insert(exchange.clone());
        let response = asking.http.execute(request).await.map_err(|error| failed(generic(error)))?;
        let Some(refusal) = exchange.observed().refusal else { return Ok(response) };
        let refused = refused(&self.requests.url, path, &refusal).map(final_failure);
        Err(refused.unwrap_or_else(|| failed(generic(std::io::Error::other("it is refused")))))
    }

    fn nonsense(&self, path: &[u8], what: &str) -> Failure {
        let place = shown(&self.requests.url, path);
        let endpoint = &self.requests.setting.endpoint;
        Failure::new(
            FailureKind::Unavailable,
            format!("{place}: {endpoint} gave an answer that makes no sense ({what})"),
        )
    }
}

fn generic(error: impl std::error::Error + Send + Sync + 'static) -> object_store::Error {
    object_store::Error::Generic { store: "S3", source: Box::new(error) }
}

/// The refusals that mean something else of uploads than of files.
fn refused(url: &str, path: &[u8], refusal: &Refusal) -> Option<Failure> {
    let failed = |kind, message: &str| Some(Failure::new(kind, format!("{}: {message}", shown(url, path))));
    match (refusal.status, &*refusal.code) {
        (_, "NoSuchUpload") => Some(no_such_upload(url, path)),
        (405 | 501, _) | (_, "NotImplemented") => {
            failed(FailureKind::Unsupported, "the origin does not tell which uploads are under way, nor their parts")
        }
        (_, "AccessDenied") => failed(
            FailureKind::PermissionDenied,
            "the origin does not let this process know of uploads; give it the permissions s3:ListMultipartUploadParts and \
             s3:ListBucketMultipartUploads",
        ),
        _ => None,
    }
}

/// Their variants are the names of the documents' roots, so that a web page is not taken for a list of nothing.
#[derive(Debug, serde::Deserialize)]
enum PartsDocument {
    ListPartsResult(ListPartsResult),
}

#[derive(Debug, serde::Deserialize)]
enum UploadsDocument {
    ListMultipartUploadsResult(ListMultipartUploadsResult),
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListPartsResult {
    #[serde(default, rename = "Part")]
    parts: Vec<Part>,
    #[serde(default)]
    is_truncated: bool,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Part {
    part_number: u32,
    #[serde(rename = "ETag")]
    etag: String,
    size: u64,
    last_modified: Option<DateTime<Utc>>,
    #[serde(rename = "ChecksumSHA256")]
    checksum_sha256: Option<String>,
    #[serde(rename = "ChecksumCRC64NVME")]
    checksum_crc64nvme: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListMultipartUploadsResult {
    #[serde(default, rename = "Upload")]
    uploads: Vec<Listed>,
    #[serde(default)]
    is_truncated: bool,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
}

#[derive(Debug, serde::Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    key: String,
    upload_id: String,
    initiated: Option<DateTime<Utc>>,
}

/// What the client knows a part by whose checksum the server has compared, and by the name that the client gives it.
#[derive(serde::Serialize)]
struct PartMetadata<'a> {
    e_tag: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum_sha256: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checksum_crc64nvme: Option<&'a str>,
}

impl Part {
    /// What was answered when it was sent.
    fn tag(&self, has_checksums: bool) -> Result<String, String> {
        let etag = quoted(&self.etag);
        if !has_checksums {
            return Ok(format!("{:x}:{etag}", self.size));
        }
        let (checksum_sha256, checksum_crc64nvme) =
            (self.checksum_sha256.as_deref(), self.checksum_crc64nvme.as_deref());
        let metadata = PartMetadata { e_tag: &etag, checksum_sha256, checksum_crc64nvme };
        let metadata = quick_xml::se::to_string(&metadata).map_err(|error| error.to_string())?;
        Ok(format!("{:x}:{metadata}", self.size))
    }
}

/// The parts that an answer tells, of those above `after` at most `max`. A server that tells more than it was asked for is
/// believed all the same.
///
/// # Errors
/// What of it makes no sense.
fn parts_in(xml: &[u8], after: u32, max: usize, has_checksums: bool) -> Result<PartPage, String> {
    let PartsDocument::ListPartsResult(ListPartsResult { parts, is_truncated }) =
        quick_xml::de::from_reader(xml).map_err(|error| error.to_string())?;
    let mut told: Vec<Part> = parts.into_iter().filter(|part| part.part_number > after).collect();
    if !told.is_sorted_by(|before, part| before.part_number < part.part_number) {
        return Err("parts are not told in the order of their numbers".to_owned());
    }
    if is_truncated && told.is_empty() {
        return Err("of the parts that there are, none is told".to_owned());
    }
    let has_more = is_truncated || told.len() > max;
    told.truncate(max);
    let part = |part: &Part| -> Result<UploadedPart, String> {
        let (number, size) = (part.part_number, part.size);
        let modified_nanos = part.last_modified.map_or(0, whole_seconds);
        Ok(UploadedPart { number, tag: part.tag(has_checksums)?, size, modified_nanos })
    };
    Ok(PartPage { parts: told.iter().map(part).collect::<Result<Vec<_>, String>>()?, has_more })
}

/// The uploads that an answer tells.
///
/// # Errors
/// What of it makes no sense.
fn uploads_in(xml: &[u8]) -> Result<ListMultipartUploadsResult, String> {
    let UploadsDocument::ListMultipartUploadsResult(listed) =
        quick_xml::de::from_reader(xml).map_err(|error| error.to_string())?;
    Ok(listed)
}

/// Both, for fuzzers: how many there are.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_lists(xml: &[u8], after: u32, max: usize) -> (Option<PartPage>, Option<usize>) {
    (parts_in(xml, after, max, true).ok(), uploads_in(xml).ok().map(|listed| listed.uploads.len()))
}
