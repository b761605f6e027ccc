//! Origins over the `object_store` crate: S3, Google Cloud Storage, Azure Blob Storage, http(s).
//!
//! * **Reads** (`object/reading.rs`) are GETs with a bounded range, never open-ended, and carry `If-Match` (without an entity tag,
//!   `If-Unmodified-Since`). The answer is believed only if its range, entity tag and object size are the asked-for ones
//!   and its body is exactly as long. From S3 it goes from the socket into the caller's buffer (`object/in_place.rs`).
//! * **`stat`** asks two things at once, HEAD for the file and a listing of one key for the directory, since either may
//!   exist and the directory shadows the file.
//! * **Listings** take one page of the origin at a time (`object/listing.rs`).
//! * **Changes** (`object/writes.rs`) are whole objects and uploads in parts, and answer what a HEAD says of them afterwards;
//!   large objects are copied in parts (`object/copy.rs`); directories of their own are markers (`object/markers.rs`). What S3
//!   has of uploads it is asked by requests of our own (`object/asking.rs`).
//! * Every attempt has a permit and a time limit, and failures are tried again (`object/attempts.rs`); what the origin
//!   said is kept whole (`object/exchange.rs`) and explained (`object/failure.rs`).
//!
//! Keys are text: a path that is not UTF-8 is not there. Nor are names with control characters, which the client cannot
//! send.
//!
//! Plain http servers are origins too, with less: they take no changes, listings need WebDAV and come in one piece, a
//! path is a file if HEAD says so, and without entity tag and time of modification two versions of one length look the
//! same.

mod addresses;
mod asking;
mod attempts;
mod begun;
mod build;
mod copy;
mod exchange;
mod failure;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guard;
mod in_place;
mod listing;
mod markers;
mod parts;
mod profile;
mod reading;
mod signed;
mod writes;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use forebay_types::{
    Attr, DirEntry, Failure, FailureKind, FilePart, FileVersion, PartPage, SectorChecksums, UploadMarker, UploadPage,
    VersionTag,
};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{Attributes, GetOptions, GetResult, ObjectMeta};
use tracing::warn;
use url::Url;

use crate::names::{check_path, invalid, not_a_directory, not_found, shown};
use crate::retry::Verdict;
use crate::stats::Operation;
use crate::{ListPage, Origin, OriginCounts, OriginError, OriginOptions};
use attempts::Requests;
use begun::Begun;
use build::{Client, Flavor};
use exchange::Exchange;
use failure::{Problem, diagnose};
use listing::{Given, Listed, Position, RawPage, is_usable_name, merge, quoted, whole_seconds};

/// The most keys that S3 puts on a page.
const MAX_PAGE: usize = 1000;
/// How many files that were held back are asked for at once.
const LOOKS_AT_ONCE: usize = 8;

/// Which keys a page is to have.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    prefix: &'a str,
    /// The token of the page before.
    after: Option<&'a str>,
    max: usize,
    /// Keys at any depth; otherwise names, directories among them.
    is_deep: bool,
}

/// An object store as an origin.
pub struct ObjectStoreOrigin {
    client: Client,
    /// Shared with what goes on after its caller has left.
    requests: Arc<Requests>,
    begun: Begun,
    warned_of_names: AtomicBool,
}

impl ObjectStoreOrigin {
    /// Makes the origin for `url`, with `variables` for the environment. Asks nothing of the origin.
    pub(crate) fn new(
        url: &Url,
        normal: &str,
        options: &OriginOptions,
        variables: &HashMap<String, String>,
    ) -> Result<Self, OriginError> {
        let client = build::build(url, options, variables)?;
        let requests = Arc::new(Requests::new(normal.into(), client.setting.clone(), options));
        Ok(Self { client, requests, begun: Begun::default(), warned_of_names: AtomicBool::new(false) })
    }

    /// The key of a path, and the key as the client takes it; `NotFound` for what no key can be.
    fn key(&self, path: &[u8]) -> Result<(String, Path), Failure> {
        let not_there = || not_found(&self.requests.url, path);
        let text = std::str::from_utf8(path).map_err(|_| not_there())?;
        if !text.is_empty() && !text.split('/').all(is_usable_name) {
            return Err(not_there());
        }
        let key = format!("{}{text}", self.client.prefix);
        let client_key = Path::parse(&key).map_err(|_| not_there())?;
        Ok((key, client_key))
    }

    fn problem(&self, path: &[u8], exchange: &Exchange, error: &object_store::Error) -> Problem {
        diagnose(&self.requests.url, path, &self.requests.setting, &exchange.observed(), error)
    }

    fn attr(&self, path: &[u8], size: u64, etag: Option<&str>, modified_nanos: i64) -> Attr {
        let tag = match etag {
            Some(etag) => VersionTag::Etag(etag.into()),
            None => VersionTag::Modified { nanos: modified_nanos, inode: 0 },
        };
        let version = FileVersion { origin: Arc::clone(&self.requests.url), path: path.into(), size, tag };
        Attr { modified_nanos, ..Attr::file(version) }
    }

    /// The file of this name, or `NotFound`.
    async fn head(&self, path: &[u8]) -> Result<Attr, Failure> {
        self.head_with_metadata(path).await.map(|(attr, _)| attr)
    }

    async fn head_with_metadata(&self, path: &[u8]) -> Result<(Attr, Attributes), Failure> {
        let (_, key) = self.key(path)?;
        self.head_key(path, &key).await
    }

    async fn head_key(&self, path: &[u8], key: &Path) -> Result<(Attr, Attributes), Failure> {
        let mut attempts = self.requests.attempts(Operation::Stat, path);
        loop {
            let exchange = Exchange::default();
            let attempt = async {
                let options = GetOptions { head: true, extensions: exchange.extensions(), ..GetOptions::default() };
                let result = self.client.store.get_opts(key, options).await;
                let GetResult { meta, attributes, .. } =
                    result.map_err(|error| self.problem(path, &exchange, &error))?;
                let ObjectMeta { size, e_tag, last_modified, .. } = meta;
                let etag = e_tag.as_deref().map(quoted);
                Ok((self.attr(path, size, etag.as_deref(), whole_seconds(last_modified)), attributes))
            };
            match attempts.run(attempt).await {
                Ok(found) => return Ok(found),
                Err(problem) => attempts.retry_or_give_up(problem, !exchange.observed().sent).await?,
            }
        }
    }

    /// One page of the keys that start with a prefix, in the origin's own terms.
    async fn page(&self, path: &[u8], wanted: Wanted<'_>) -> Result<RawPage, Failure> {
        let mut attempts = self.requests.attempts(Operation::List, path);
        loop {
            let exchange = Exchange::for_listing();
            match attempts.run(self.page_once(path, wanted, &exchange)).await {
                Ok(page) => return Ok(page),
                Err(problem) => {
                    let is_credentials = self.client.flavor != Flavor::Http && !exchange.observed().sent;
                    attempts.retry_or_give_up(problem, is_credentials).await?;
                }
            }
        }
    }

    async fn page_once(&self, path: &[u8], wanted: Wanted<'_>, exchange: &Exchange) -> Result<RawPage, Problem> {
        let Wanted { prefix, after, max, is_deep } = wanted;
        let Some(pages) = &self.client.pages else {
            return self.webdav_page(path, prefix, exchange).await;
        };
        let options = PaginatedListOptions {
            delimiter: (!is_deep).then_some(Cow::Borrowed("/")),
            max_keys: Some(max.clamp(1, MAX_PAGE)),
            page_token: after.map(str::to_owned),
            extensions: if self.client.flavor == Flavor::S3 {
                exchange.extensions()
            } else {
                Exchange::default().extensions()
            },
            ..PaginatedListOptions::default()
        };
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let result = pages.list_paginated(prefix, options).await;
        let result = result.map_err(|error| self.problem(path, exchange, &error))?;
        match exchange.take_listing() {
            Some(xml) => listing::parse(&xml).map_err(|error| {
                Problem::transient(format!("{}: the listing makes no sense ({error})", shown(&self.requests.url, path)))
            }),
            None => Ok(listing::from_client(result.result, result.page_token)),
        }
    }

    /// The whole directory in one piece: WebDAV has no pages.
    async fn webdav_page(&self, path: &[u8], prefix: &str, exchange: &Exchange) -> Result<RawPage, Problem> {
        let directory = Path::parse(prefix).unwrap_or_default();
        match self.client.store.list_with_delimiter(Some(&directory)).await {
            Ok(result) => Ok(listing::from_client(result, None)),
            Err(error) => {
                let problem = self.problem(path, exchange, &error);
                let place = shown(&self.requests.url, path);
                let is_refusal = problem.failure.message().contains("status code");
                Err(if is_refusal {
                    let message = format!(
                        "{place}: this server lists no directories (it has no WebDAV); open files by their full path"
                    );
                    Problem::new(Verdict::Final, FailureKind::Unsupported, message)
                } else {
                    problem
                })
            }
        }
    }

    /// Whether the origin has the directory `path`: whether any key, a marker included, starts with it. Any key at any depth, as
    /// file gateways leave the marker out when they are asked for names.
    async fn has_directory(&self, path: &[u8]) -> Result<bool, Failure> {
        let (key, _) = self.key(path)?;
        let prefix = directory_prefix(&key);
        let mut after = None;
        loop {
            let wanted = Wanted { prefix: &prefix, after: after.as_deref(), max: 1, is_deep: true };
            let page = self.page(path, wanted).await?;
            if !page.objects.is_empty() || !page.prefixes.is_empty() {
                return Ok(true);
            }
            // A page may be empty although more follow, after many deletions for example.
            match page.next {
                Some(next) => after = Some(next),
                None => return self.has_unlisted_marker(path).await,
            }
        }
    }

    /// The files that earlier pages held back, as they are now. A token may be old, and whoever lists may have written
    /// it: of what it says of a file, only the name counts.
    async fn as_they_are(&self, path: &[u8], prefix: &str, held: Vec<Listed>) -> Result<Vec<Listed>, Failure> {
        let looks = futures::stream::iter(held).map(|listed| self.as_it_is(path, prefix, listed));
        let found: Vec<Option<Listed>> = looks.buffered(LOOKS_AT_ONCE).try_collect().await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn as_it_is(&self, path: &[u8], prefix: &str, listed: Listed) -> Result<Option<Listed>, Failure> {
        let name = listed.key.strip_prefix(prefix).filter(|name| is_usable_name(name));
        let Some(file) = name.map(|name| child(path, name)) else { return Ok(None) };
        match self.head(&file).await {
            Ok(attr) => {
                let etag = match attr.version().map(|version| &version.tag) {
                    Some(VersionTag::Etag(etag)) => Some(etag.to_string()),
                    _ => None,
                };
                Ok(Some(Listed { size: attr.size(), etag, modified_nanos: attr.modified_nanos, ..listed }))
            }
            Err(failure) if failure.kind() == FailureKind::NotFound => Ok(None),
            // Leave to list and not to read: nobody reads it, whatever is said of it.
            Err(failure) if failure.kind() == FailureKind::PermissionDenied => Ok(Some(listed)),
            Err(failure) => Err(failure),
        }
    }

    fn warn_of_names(&self, path: &[u8], count: usize) {
        if count > 0 && !self.warned_of_names.swap(true, Ordering::Relaxed) {
            let directory = shown(&self.requests.url, path);
            warn!(%directory, count, "left out names that no file can have (empty, `.`, `..`, over 255 bytes, control characters); said once per origin");
        }
    }

    fn bad_token(&self, path: &[u8]) -> Failure {
        invalid(&self.requests.url, path, "not a listing token of this origin")
    }

    /// The failure for listing something without entries: a file, or nothing.
    async fn why_empty(&self, path: &[u8]) -> Failure {
        match self.head(path).await {
            Ok(_) => not_a_directory(&self.requests.url, path),
            Err(failure) => failure,
        }
    }
}

#[async_trait::async_trait]
impl Origin for ObjectStoreOrigin {
    fn url(&self) -> &Arc<str> {
        &self.requests.url
    }

    fn counts(&self) -> OriginCounts {
        self.requests.stats.counts()
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        check_path(&self.requests.url, path)?;
        if path.is_empty() {
            // Asked all the same, so that a missing bucket or missing rights show at once. A plain site has no such test.
            if self.client.flavor != Flavor::Http {
                self.has_directory(path).await?;
            }
            return Ok(Attr::directory());
        }
        let (file, directory) = tokio::join!(self.head(path), self.has_directory(path));
        match (file, directory) {
            (_, Ok(true)) => Ok(Attr::directory()),
            (file, Ok(false)) => file,
            // Leave to read but not to list: files can be opened, directories cannot be told from nothing.
            (Ok(file), Err(refused))
                if matches!(refused.kind(), FailureKind::PermissionDenied | FailureKind::Unsupported) =>
            {
                Ok(file)
            }
            (Err(failure), Err(refused)) if refused.kind() == FailureKind::Unsupported => Err(failure),
            // The listing's refusal has a body that says why; HEAD's has none.
            (_, Err(refused)) => Err(refused),
        }
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        check_path(&self.requests.url, path)?;
        let position: Position = match token {
            Some(token) => serde_json::from_str(token).map_err(|_| self.bad_token(path))?,
            None => Position::default(),
        };
        // No listing holds so many back: each is the beginning of the name after it.
        if position.held.len() > MAX_PAGE {
            return Err(self.bad_token(path));
        }
        let (key, _) = self.key(path)?;
        let prefix = directory_prefix(&key);
        let max = max.clamp(1, MAX_PAGE);
        let is_first = token.is_none();
        let Position { after, held } = position;
        let wanted = max.saturating_sub(held.len()).max(1);
        let page = async {
            if !is_first && after.is_none() {
                return Ok(RawPage::default());
            }
            self.page(path, Wanted { prefix: &prefix, after: after.as_deref(), max: wanted, is_deep: false }).await
        };
        let (page, held) = tokio::try_join!(page, self.as_they_are(path, &prefix, held))?;
        let is_nothing = page.objects.is_empty() && page.prefixes.is_empty() && page.next.is_none();
        if is_first && is_nothing && !path.is_empty() && !self.has_directory(path).await? {
            return Err(self.why_empty(path).await);
        }
        // WebDAV's one page holds all there is.
        let max = if self.client.flavor == Flavor::Http { max.max(page.prefixes.len()) } else { max };
        let Given { directories, files, unnameable, next } = merge(&prefix, held, page, max);
        self.warn_of_names(path, unnameable);

        let mut entries: Vec<DirEntry> = directories
            .into_iter()
            .map(|name| DirEntry { name: name.into_bytes().into(), attr: Attr::directory() })
            .collect();
        entries.extend(files.into_iter().map(|(name, Listed { size, etag, modified_nanos, .. })| {
            let file = child(path, &name);
            DirEntry { name: name.into_bytes().into(), attr: self.attr(&file, size, etag.as_deref(), modified_nanos) }
        }));
        let next = next.map(|position| serde_json::to_string(&position)).transpose().map_err(|error| {
            Failure::new(FailureKind::Internal, format!("{}: {error}", shown(&self.requests.url, path)))
        })?;
        Ok(ListPage { entries, next })
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        self.read_range(version, range, into).await.map(drop)
    }

    async fn read_checksummed(
        &self,
        version: &FileVersion,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<SectorChecksums, Failure> {
        self.read_range(version, range, into).await
    }

    async fn part(&self, version: &FileVersion, number: u32) -> Result<Option<FilePart>, Failure> {
        self.part_at(version, number).await
    }

    fn takes_changes(&self) -> bool {
        self.client.writer.is_some()
    }

    async fn put(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        self.put_file(path, bytes).await
    }

    async fn create(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        self.create_file(path, bytes).await
    }

    async fn begin_upload(&self, path: &[u8]) -> Result<String, Failure> {
        self.begin(path).await
    }

    async fn upload_part(&self, path: &[u8], upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        self.send_part(path, upload, number, bytes).await
    }

    async fn complete_upload(&self, path: &[u8], upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        self.complete(path, upload, size, parts).await
    }

    async fn abort_upload(&self, path: &[u8], upload: &str) -> Result<(), Failure> {
        self.abort(path, upload).await
    }

    async fn list_parts(&self, path: &[u8], upload: &str, after: u32, max: usize) -> Result<PartPage, Failure> {
        self.parts_of(path, upload, after, max).await
    }

    async fn list_uploads(
        &self,
        prefix: &[u8],
        after: Option<&UploadMarker>,
        max: usize,
    ) -> Result<UploadPage, Failure> {
        self.uploads_below(prefix, after, max).await
    }

    async fn copy(&self, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        self.copy_file(from, to).await
    }

    async fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        self.remove_file(path).await
    }

    async fn make_directory(&self, path: &[u8]) -> Result<Attr, Failure> {
        self.put_marker(path).await
    }

    async fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        self.remove_marker(path).await
    }
}

/// The path of `name` in the directory `path`.
fn child(path: &[u8], name: &str) -> Vec<u8> {
    if path.is_empty() { name.as_bytes().to_vec() } else { [path, b"/", name.as_bytes()].concat() }
}

fn directory_prefix(key: &str) -> String {
    if key.is_empty() || key.ends_with('/') { key.to_owned() } else { format!("{key}/") }
}

#[cfg(test)]
pub(crate) mod test_support;
#[cfg(test)]
mod tests;
