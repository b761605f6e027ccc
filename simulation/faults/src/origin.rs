//! Origins: object stores, with every version that they ever had.
//!
//! What an object holds follows from its number ([`crate::content`]), which its version's tag tells, so nothing is kept of it but that.
//! Each change is noted with its time: what was the version of a path between two times is what [`crate::model`] compares answers with.
//!
//! On demand an origin is slow, fails, breaks off in the middle of a body, or is not reached from some machine.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_origin::{ListPage, Origin, OriginCounts};
use forebay_types::{Attr, DirEntry, Failure, FailureKind, FileVersion, VersionTag};
use rand::Rng;

use crate::model::{self, Object};
use crate::{content, kernel, net};

/// What an operation waits for an origin that does not answer, its own tries again included: `origin.retry.deadline`.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// What is wrong with an origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// It does not answer.
    pub(crate) silent: bool,
    /// Once in so many operations one fails; 0 is never.
    pub(crate) fails: u32,
    /// Bodies end before their end once in so many reads; 0 is never.
    pub(crate) truncates: u32,
    /// How many times slower it is.
    pub(crate) slower: u32,
}

/// What origins were asked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) gets: u64,
    pub(crate) bytes: u64,
    pub(crate) stats: u64,
    pub(crate) lists: u64,
    pub(crate) changes: u64,
    pub(crate) failed: u64,
}

struct OriginState {
    url: Arc<str>,
    node: usize,
    objects: BTreeMap<Vec<u8>, Object>,
    markers: BTreeSet<Vec<u8>>,
    uploads: BTreeMap<String, Upload>,
    completed: BTreeMap<String, (Vec<u8>, Object)>,
    next: u64,
    trouble: Trouble,
}

struct Upload {
    path: Vec<u8>,
    parts: BTreeMap<u32, (String, Bytes)>,
}

thread_local! {
    static ORIGINS: RefCell<(Vec<OriginState>, Counts)> = RefCell::default();
}

fn with<T>(number: usize, with: impl FnOnce(&mut OriginState, &mut Counts) -> T) -> T {
    ORIGINS.with_borrow_mut(|(origins, counts)| with(&mut origins[number], counts))
}

/// Another origin, on a machine of its own.
pub(crate) fn add(url: &str, node: usize) -> usize {
    let state = OriginState {
        url: url.into(),
        node,
        objects: BTreeMap::new(),
        markers: BTreeSet::new(),
        uploads: BTreeMap::new(),
        completed: BTreeMap::new(),
        next: 0,
        trouble: Trouble::default(),
    };
    ORIGINS.with_borrow_mut(|(origins, _)| {
        origins.push(state);
        origins.len() - 1
    })
}

/// The machine of an origin.
pub(crate) fn node(number: usize) -> usize {
    with(number, |state, _| state.node)
}

/// The origin with this URL.
pub(crate) fn with_url(url: &str) -> Option<usize> {
    ORIGINS.with_borrow(|(origins, _)| origins.iter().position(|state| &*state.url == url))
}

/// What is wrong with an origin from now on.
pub(crate) fn trouble(number: usize, trouble: Trouble) {
    with(number, |state, _| state.trouble = trouble);
}

/// What origins were asked so far.
pub(crate) fn counts() -> Counts {
    ORIGINS.with_borrow(|(_, counts)| *counts)
}

/// Another program makes, replaces or removes an object.
pub(crate) fn set(number: usize, path: &[u8], object: Option<Object>) {
    with(number, |state, _| state.set(number, path, object));
}

/// The version tag of an object.
pub(crate) fn tag_of(object: Object) -> VersionTag {
    VersionTag::Etag(format!("\"{:016x}-{}\"", object.number, object.size).into())
}

/// The object that a version is.
pub(crate) fn object_of(version: &FileVersion) -> Option<Object> {
    let VersionTag::Etag(tag) = &version.tag else { return None };
    let (number, size) = tag.trim_matches('"').split_once('-')?;
    Some(Object { number: u64::from_str_radix(number, 16).ok()?, size: size.parse().ok()? })
}

impl OriginState {
    fn set(&mut self, number: usize, path: &[u8], object: Option<Object>) {
        match object {
            Some(object) => _ = self.objects.insert(path.to_vec(), object),
            None => _ = self.objects.remove(path),
        }
        model::changed(number, path, object);
    }

    fn is_directory(&self, path: &[u8]) -> bool {
        let prefix = [path, b"/"].concat();
        let below = |key: Option<&Vec<u8>>| key.is_some_and(|key| key.starts_with(&prefix));
        path.is_empty()
            || self.markers.contains(path)
            || below(self.objects.range(prefix.clone()..).next().map(|(key, _)| key))
            || below(self.markers.range(prefix.clone()..).next())
    }

    fn attr(&self, path: &[u8], object: Object) -> Attr {
        let version =
            FileVersion { origin: Arc::clone(&self.url), path: path.into(), size: object.size, tag: tag_of(object) };
        Attr { writable: true, ..Attr::file(version) }
    }

    fn failure(&self, kind: FailureKind, path: &[u8], what: &str) -> Failure {
        Failure::new(kind, format!("{}/{}: {what}", self.url, String::from_utf8_lossy(path)))
    }

    /// The object that these bytes are. They must be exactly those of its number; otherwise bytes were mixed up.
    fn object_in(bytes: &[u8], number: usize, path: &[u8]) -> Object {
        let mut beginning = [0; 8];
        let known = bytes.len().min(8);
        beginning[..known].copy_from_slice(&bytes[..known]);
        let object = Object { number: u64::from_le_bytes(beginning), size: bytes.len() as u64 };
        if let Some(at) = content::first_difference(object.number, 0, bytes) {
            let path = String::from_utf8_lossy(path);
            kernel::violated("written whole", format!("origin {number} was given {path} with a wrong byte at {at}"));
        }
        object
    }

    fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        if self.is_directory(path) {
            return Ok(Attr::directory());
        }
        let object = self.objects.get(path);
        object
            .map(|object| self.attr(path, *object))
            .ok_or_else(|| self.failure(FailureKind::NotFound, path, "not found"))
    }

    fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        if !self.is_directory(path) {
            let kind = if self.objects.contains_key(path) { FailureKind::NotADirectory } else { FailureKind::NotFound };
            return Err(self.failure(kind, path, "cannot be listed"));
        }
        let prefix = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
        let keys = self.objects.range(prefix.clone()..).map(|(key, _)| key).chain(self.markers.range(prefix.clone()..));
        let names: BTreeSet<&[u8]> = keys
            .filter_map(|key| key.strip_prefix(&prefix[..])?.split(|byte| *byte == b'/').next())
            .filter(|name| !name.is_empty())
            .collect();
        let start = token.and_then(|token| token.parse().ok()).unwrap_or(0);
        let end = names.len().min(start + max.max(1));
        let entry = |name: &&[u8]| {
            let path = [&prefix[..], name].concat();
            let attr = match self.objects.get(&path) {
                Some(object) if !self.is_directory(&path) => self.attr(&path, *object),
                _ => Attr::directory(),
            };
            DirEntry { name: (*name).into(), attr }
        };
        let entries = names.iter().skip(start).take(end - start).map(entry).collect();
        Ok(ListPage { entries, next: (end < names.len()).then(|| end.to_string()) })
    }
}

/// A process's way to an origin.
pub(crate) struct SimulatedOrigin {
    number: usize,
    url: Arc<str>,
    /// Which worker asks, and in which of its lives.
    asker: kernel::Process,
}

impl SimulatedOrigin {
    /// The way of the process that runs.
    pub(crate) fn new(number: usize) -> Self {
        Self { number, url: with(number, |state, _| Arc::clone(&state.url)), asker: kernel::current() }
    }

    /// Has the origin do something: it answers, or its answer is lost, or nothing arrives.
    async fn call<T: Send + 'static>(
        &self,
        path: &[u8],
        bytes: u64,
        work: impl FnOnce(&mut OriginState, &mut Counts, usize) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (number, from) = (self.number, self.asker.node);
        let (to, trouble) = with(number, |state, _| (state.node, state.trouble));
        let is_reached = move || !with(number, |state, _| state.trouble.silent) && net::reaches(from, to);
        let unreachable = |kind| {
            let what = format!("{}/{}: the origin does not answer", self.url, String::from_utf8_lossy(path));
            Failure::new(kind, what)
        };
        let time = |slower: u32| {
            let tail = if kernel::once_in(100) { kernel::chance(|random| random.random_range(1..40)) } else { 1 };
            kernel::between(Duration::from_millis(2), Duration::from_millis(30)) * slower.max(1) * tail
        };
        let (there, back) = (time(trouble.slower), time(trouble.slower) + Duration::from_nanos(bytes * 5));
        let fails = trouble.fails > 0 && kernel::once_in(trouble.fails);
        // Whether it failed before it was done, or after.
        let is_done_all_the_same = kernel::once_in(2);
        let answered = kernel::ask(there, back, move || {
            if !is_reached() {
                return Err(None);
            }
            if fails && !is_done_all_the_same {
                return Err(Some(FailureKind::Unavailable));
            }
            let done = with(number, |state, counts| work(state, counts, number));
            if fails { Err(Some(FailureKind::Unavailable)) } else { Ok((done, is_reached())) }
        });
        match answered.await {
            Ok((done, true)) => done,
            Err(Some(kind)) => {
                with(number, |_, counts| counts.failed += 1);
                Err(unreachable(kind))
            }
            Ok((_, false)) | Err(None) => {
                let left = DEADLINE.saturating_sub(there + back);
                tokio::time::sleep(left).await;
                with(number, |_, counts| counts.failed += 1);
                Err(unreachable(FailureKind::TimedOut))
            }
        }
    }

    async fn change<T: Send + 'static>(
        &self,
        path: &[u8],
        bytes: u64,
        work: impl FnOnce(&mut OriginState, &[u8], usize) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let owned = path.to_vec();
        let counted = move |state: &mut OriginState, counts: &mut Counts, number: usize| {
            counts.changes += 1;
            work(state, &owned, number)
        };
        self.call(path, bytes, counted).await
    }
}

#[async_trait::async_trait]
impl Origin for SimulatedOrigin {
    fn url(&self) -> &Arc<str> {
        &self.url
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        let asked = path.to_vec();
        let stat = move |state: &mut OriginState, counts: &mut Counts, _| {
            counts.stats += 1;
            state.stat(&asked)
        };
        self.call(path, 0, stat).await
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        let (asked, token) = (path.to_vec(), token.map(str::to_owned));
        let list = move |state: &mut OriginState, counts: &mut Counts, _| {
            counts.lists += 1;
            state.list(&asked, token.as_deref(), max)
        };
        self.call(path, 0, list).await
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        let (asked, length) = (version.clone(), range.end - range.start);
        if range.end > version.size || length as usize != into.len() || version.origin != self.url {
            kernel::violated("origin contract", format!("{range:?} of {version:?} into {}", into.len()));
        }
        let get = model::Get::begin(self.asker, version, range.clone());
        let truncates = with(self.number, |state, _| state.trouble.truncates);
        let truncated = truncates > 0 && kernel::once_in(truncates);
        let read = move |state: &mut OriginState, counts: &mut Counts, _| {
            counts.gets += 1;
            match state.objects.get(&*asked.path) {
                Some(object) if tag_of(*object) == asked.tag => {
                    counts.bytes += length;
                    Ok(*object)
                }
                _ => Err(state.failure(FailureKind::VersionChanged, &asked.path, "is another version")),
            }
        };
        let object = self.call(&version.path, length, read).await?;
        if truncated {
            let half = into.len() / 2;
            content::fill(object.number, range.start, &mut into[..half]);
            into[half..].fill(0xee);
            return Err(Failure::new(FailureKind::Unavailable, format!("{}: the body ended early", self.url)));
        }
        content::fill(object.number, range.start, into);
        get.succeeded();
        Ok(())
    }

    fn takes_changes(&self) -> bool {
        true
    }

    async fn put(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let put = move |state: &mut OriginState, path: &[u8], number: usize| {
            if state.is_directory(path) {
                return Err(state.failure(FailureKind::IsADirectory, path, "is a directory"));
            }
            let object = OriginState::object_in(&bytes, number, path);
            state.set(number, path, Some(object));
            Ok(state.attr(path, object))
        };
        self.change(path, 0, put).await
    }

    async fn begin_upload(&self, path: &[u8]) -> Result<String, Failure> {
        let begin = |state: &mut OriginState, path: &[u8], _| {
            state.next += 1;
            let name = format!("upload-{}", state.next);
            state.uploads.insert(name.clone(), Upload { path: path.to_vec(), parts: BTreeMap::new() });
            Ok(name)
        };
        self.change(path, 0, begin).await
    }

    async fn upload_part(&self, path: &[u8], upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        let upload = upload.to_owned();
        let add = move |state: &mut OriginState, path: &[u8], _| {
            // As in S3: of the same bytes, the same, so that a part may be sent twice.
            let tag = format!("part-{}", blake3::hash(&bytes).to_hex());
            let gone = state.failure(FailureKind::NotFound, path, "no such upload");
            let upload = state.uploads.get_mut(&upload).filter(|upload| upload.path == path).ok_or(gone)?;
            upload.parts.insert(number, (tag.clone(), bytes));
            Ok(tag)
        };
        self.change(path, 0, add).await
    }

    async fn complete_upload(&self, path: &[u8], upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        let (name, tags) = (upload.to_owned(), parts.to_vec());
        let complete = move |state: &mut OriginState, path: &[u8], number: usize| {
            if let Some((_, object)) = state.completed.get(&name) {
                return Ok(state.attr(path, *object));
            }
            let gone = state.failure(FailureKind::NotFound, path, "no such upload");
            let mixed = state.failure(FailureKind::InvalidArgument, path, "no such part");
            let upload = state.uploads.get(&name).filter(|upload| upload.path == path).ok_or(gone)?;
            let mut whole = Vec::new();
            for (tag, number) in tags.iter().zip(1..) {
                match upload.parts.get(&number) {
                    Some((known, bytes)) if known == tag => whole.extend_from_slice(bytes),
                    _ => return Err(mixed),
                }
            }
            if whole.len() as u64 != size {
                return Err(state.failure(FailureKind::Corrupt, path, "the parts do not add up"));
            }
            let object = OriginState::object_in(&whole, number, path);
            state.uploads.remove(&name);
            state.set(number, path, Some(object));
            state.completed.insert(name, (path.to_vec(), object));
            Ok(state.attr(path, object))
        };
        self.change(path, 0, complete).await
    }

    async fn abort_upload(&self, path: &[u8], upload: &str) -> Result<(), Failure> {
        let upload = upload.to_owned();
        let abort = move |state: &mut OriginState, _: &[u8], _| {
            state.uploads.remove(&upload);
            Ok(())
        };
        self.change(path, 0, abort).await
    }

    async fn copy(&self, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        let from = from.to_vec();
        let copy = move |state: &mut OriginState, to: &[u8], number: usize| {
            let gone = state.failure(FailureKind::NotFound, &from, "not found");
            let object = state.objects.get(&from).copied().ok_or(gone)?;
            if state.is_directory(to) {
                return Err(state.failure(FailureKind::IsADirectory, to, "is a directory"));
            }
            state.set(number, to, Some(object));
            Ok(state.attr(to, object))
        };
        self.change(to, 0, copy).await
    }

    async fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        let remove = |state: &mut OriginState, path: &[u8], number: usize| {
            if state.is_directory(path) {
                return Err(state.failure(FailureKind::IsADirectory, path, "is a directory"));
            }
            state.set(number, path, None);
            Ok(())
        };
        self.change(path, 0, remove).await
    }

    async fn make_directory(&self, path: &[u8]) -> Result<Attr, Failure> {
        let make = |state: &mut OriginState, path: &[u8], _| {
            if state.is_directory(path) || state.objects.contains_key(path) {
                return Err(state.failure(FailureKind::Exists, path, "exists"));
            }
            state.markers.insert(path.to_vec());
            Ok(Attr::directory())
        };
        self.change(path, 0, make).await
    }

    async fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        let remove = |state: &mut OriginState, path: &[u8], _| {
            let is_file = state.objects.contains_key(path);
            if !state.is_directory(path) {
                let kind = if is_file { FailureKind::NotADirectory } else { FailureKind::NotFound };
                return Err(state.failure(kind, path, "cannot be removed"));
            }
            if !state.list(path, None, 1)?.entries.is_empty() {
                return Err(state.failure(FailureKind::NotEmpty, path, "is not empty"));
            }
            state.markers.remove(path);
            Ok(())
        };
        self.change(path, 0, remove).await
    }

    fn counts(&self) -> OriginCounts {
        OriginCounts::default()
    }
}
