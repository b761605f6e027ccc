//! A worker with its objects in memory: what it caches, believes and refuses is as programmable as it is observable.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_memory::{Pool, PoolOptions, Span, Spans};
use forebay_transport::message::{ListReply, ListRequest, StatReply};
use forebay_transport::{Flags, Op, Provenance, Request, Response, Service};
use forebay_types::{
    Attr, BlockKey, BlockLayout, ByteSize, DirEntry, Failure, FailureKind, FileId, FileVersion, MIN_BLOCK_SIZE,
    VersionTag,
};

/// Small blocks, so that reads cross from one to the next.
pub(crate) const BLOCK_SIZE: u32 = MIN_BLOCK_SIZE;
pub(crate) const MODIFIED_NANOS: i64 = 1_700_000_000_123_456_789;

/// The bytes of version `seed` of an object.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8 ^ seed).collect()
}

#[derive(Clone)]
struct Object {
    bytes: Arc<Vec<u8>>,
    version: FileVersion,
}

pub(crate) struct Bucket {
    objects: Mutex<BTreeMap<Vec<u8>, Object>>,
    versions: Mutex<HashMap<FileId, Object>>,
    /// Blocks that were read before stay readable, whatever becomes of the object.
    cached: Mutex<HashMap<BlockKey, Span>>,
    believed: Mutex<HashMap<Vec<u8>, (Attr, Instant)>>,
    pool: Pool,
    pub(crate) ttl: Duration,
    serial: AtomicU64,
    /// Operations other than reads that were asked for.
    pub(crate) asked: AtomicU64,
    /// Requests that wait for ever.
    pub(crate) hanging: AtomicU64,
    /// Every request waits for ever.
    pub(crate) hangs: AtomicBool,
    /// Every request panics.
    pub(crate) panics: AtomicBool,
    /// Bytes are withheld for as long as this is so.
    pub(crate) withhold: AtomicBool,
}

impl Bucket {
    pub(crate) fn new(ttl: Duration) -> Arc<Self> {
        Arc::new(Self {
            objects: Mutex::default(),
            versions: Mutex::default(),
            cached: Mutex::default(),
            believed: Mutex::default(),
            pool: Pool::new(PoolOptions::fixed(ByteSize::mib(128))).unwrap(),
            ttl,
            serial: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            hanging: AtomicU64::new(0),
            hangs: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            withhold: AtomicBool::new(false),
        })
    }

    /// Creates or replaces the object at `path`, which has no leading slash.
    pub(crate) fn put(&self, path: impl AsRef<[u8]>, bytes: Vec<u8>) {
        let path = path.as_ref();
        let etag = format!("\"{}\"", self.serial.fetch_add(1, Ordering::Relaxed));
        let version = FileVersion {
            origin: "memory://bucket".into(),
            path: path.into(),
            size: bytes.len() as u64,
            tag: VersionTag::Etag(etag.into()),
        };
        let object = Object { bytes: Arc::new(bytes), version };
        self.versions.lock().unwrap().insert(object.version.id(), object.clone());
        self.objects.lock().unwrap().insert(path.to_vec(), object);
    }

    pub(crate) fn delete(&self, path: &str) {
        self.objects.lock().unwrap().remove(path.as_bytes());
    }

    /// Forgets all cached blocks.
    pub(crate) fn evict(&self) {
        self.cached.lock().unwrap().clear();
    }

    fn attr(&self, path: &[u8]) -> Option<Attr> {
        let objects = self.objects.lock().unwrap();
        if let Some(object) = objects.get(path) {
            return Some(file(object));
        }
        let prefix = directory_prefix(path);
        let below = objects.range(prefix.clone()..).next().is_some_and(|(key, _)| key.starts_with(&prefix));
        (below || path.is_empty()).then(Attr::directory)
    }

    fn stat(&self, path: &[u8], revalidate: bool) -> Result<StatReply, Failure> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let mut believed = self.believed.lock().unwrap();
        let now = Instant::now();
        if let Some((attr, until)) = believed.get(path).filter(|(_, until)| !revalidate && *until > now) {
            return Ok(StatReply { attr: attr.clone(), valid_for: *until - now });
        }
        let Some(attr) = self.attr(path) else {
            believed.remove(path);
            return Err(Failure::new(FailureKind::NotFound, format!("{}: none", String::from_utf8_lossy(path))));
        };
        believed.insert(path.to_vec(), (attr.clone(), now + self.ttl));
        Ok(StatReply { attr, valid_for: self.ttl })
    }

    /// The token is the last name of the page before.
    fn list(&self, request: &ListRequest) -> ListReply {
        let path = request.path.strip_prefix(b"/").unwrap_or(&request.path);
        let prefix = directory_prefix(path);
        let after = request.token.as_ref().map(|token| unhex(token));
        let objects = self.objects.lock().unwrap();
        let mut entries: Vec<DirEntry> = Vec::new();
        let from = after.as_ref().map_or(prefix.clone(), |name| [&prefix[..], &name[..]].concat());
        for (key, object) in objects.range(from..) {
            let Some(rest) = key.strip_prefix(&prefix[..]) else { break };
            let (name, attr) = match rest.iter().position(|byte| *byte == b'/') {
                Some(slash) => (&rest[..slash], Attr::directory()),
                None => (rest, file(object)),
            };
            if entries.last().is_some_and(|last| *last.name == *name) || after.as_deref() == Some(name) {
                continue;
            }
            if entries.len() == request.max as usize {
                let next = entries.last().map(|last| hex(&last.name));
                return ListReply { entries, next, valid_for: self.ttl };
            }
            entries.push(DirEntry { name: name.into(), attr });
        }
        ListReply { entries, next: None, valid_for: self.ttl }
    }

    fn read(&self, request: &Request) -> Result<Response, Failure> {
        let Request { block, offset, length, .. } = request;
        let object = self.versions.lock().unwrap().get(&block.file).cloned();
        let object = object.ok_or_else(|| Failure::new(FailureKind::NeedsDescription, "unknown"))?;
        let current = self.objects.lock().unwrap().get(&*object.version.path).map(|object| object.version.clone());
        let span = self.cached.lock().unwrap().get(block).cloned();
        let span = match span {
            Some(span) => span,
            None if current.as_ref() != Some(&object.version) => {
                return Err(Failure::new(FailureKind::VersionChanged, "the object was replaced"));
            }
            None => {
                let layout = BlockLayout::new(object.version.size, BLOCK_SIZE);
                let start = (block.index * u64::from(BLOCK_SIZE)) as usize;
                let bytes = &object.bytes[start..start + layout.block_len(block.index) as usize];
                let mut span = self.pool.try_alloc(bytes.len()).unwrap();
                span.copy_from_slice(bytes);
                let span = span.freeze();
                self.cached.lock().unwrap().insert(*block, span.clone());
                span
            }
        };
        let slice = span.slice(*offset as usize..(offset + length) as usize);
        Ok(Response::of_spans(Spans::from_iter([slice]), Provenance::default()))
    }

    fn cached_read(&self, request: &Request) -> Option<Response> {
        let span = self.cached.lock().unwrap().get(&request.block).cloned()?;
        let slice = span.slice(request.offset as usize..(request.offset + request.length) as usize);
        Some(Response::of_spans(Spans::from_iter([slice]), Provenance { memory: request.length, ..Default::default() }))
    }
}

fn file(object: &Object) -> Attr {
    Attr { modified_nanos: MODIFIED_NANOS, ..Attr::file(object.version.clone()) }
}

fn directory_prefix(path: &[u8]) -> Vec<u8> {
    if path.is_empty() { Vec::new() } else { [path, b"/"].concat() }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[async_trait::async_trait]
impl Service for Bucket {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        let is_slow = [&self.hangs, &self.panics, &self.withhold].iter().any(|flag| flag.load(Ordering::Relaxed));
        if is_slow || request.op != Op::Read {
            return None;
        }
        self.cached_read(request)
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        if self.hangs.load(Ordering::Relaxed) {
            self.hanging.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        if self.panics.load(Ordering::Relaxed) {
            // Without the hook: its trace would bury what really failed.
            std::panic::resume_unwind(Box::new("as the test wants it"));
        }
        if !matches!(request.op, Op::Read | Op::Fill) {
            self.asked.fetch_add(1, Ordering::Relaxed);
            // A worker is seldom so close that it answers at once.
            tokio::task::yield_now().await;
        }
        while self.withhold.load(Ordering::Relaxed) && matches!(request.op, Op::Read | Op::Fill) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        match request.op {
            Op::Read => self.read(&request),
            Op::Fill => self.read(&request).map(|_| Response::of_body(Default::default())),
            Op::Stat => {
                let stat = self.stat(&request.body, request.flags.contains(Flags::REVALIDATE))?;
                Ok(Response::of_body(stat.encode()))
            }
            Op::List => Ok(Response::of_body(self.list(&ListRequest::decode(&request.body)?).encode())),
            _ => Err(Failure::new(FailureKind::Unsupported, "not in this test")),
        }
    }
}
