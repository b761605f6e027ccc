//! A cache that exists in memory only, for tests: it can be told to fail, to be slow, to forget and to change.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_transport::message::{FreeReply, ListReply};
use forebay_types::{
    Attr, BlockKey, BlockLayout, DirEntry, Failure, FailureKind, FileId, FileVersion, FsPath, VersionTag,
};

use crate::cache::{CacheAccess, HeldBytes, Loaded};

/// Which calls a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `stat`.
    Stat,
    /// `list`.
    List,
    /// `load_block`.
    Load,
    /// `coverage`.
    Coverage,
    /// `free`; of no path in particular.
    Free,
    /// `read`.
    Read,
}

/// How often the cache was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Blocks that were fetched from the origin.
    pub fetched: u64,
    /// Blocks that were loaded, fetched or not.
    pub loads: u64,
    /// Blocks that were checked.
    pub checks: u64,
    /// Requests to free.
    pub frees: u64,
    /// Pages that were listed.
    pub pages: u64,
}

/// The cache. Files are laid out over no workers in particular: replicas are only counted.
#[derive(Debug)]
pub struct FakeCache {
    block_size: u32,
    state: Mutex<FakeCacheState>,
}

#[derive(Debug, Default)]
struct FakeCacheState {
    files: BTreeMap<FsPath, File>,
    /// Files that were deleted, which may be cached all the same.
    gone: Vec<(FsPath, FileId)>,
    cached: HashMap<BlockKey, u32>,
    /// Blocks in the order in which they came; the first is evicted first.
    order: VecDeque<BlockKey>,
    capacity: Option<usize>,
    faults: Vec<Fault>,
    delay: Duration,
    calls: Calls,
    placement: u64,
    /// One, unless a test says otherwise.
    workers: Option<Vec<Answered>>,
}

/// A worker, and what it answers when it is asked for its counters.
type Answered = (Arc<str>, Result<serde_json::Value, Failure>);

#[derive(Clone, Debug)]
struct File {
    version: FileVersion,
    modified_nanos: i64,
    content: Option<Bytes>,
}

#[derive(Debug)]
struct Fault {
    path: FsPath,
    call: Call,
    kind: FailureKind,
    times: u32,
}

impl FakeCache {
    /// An empty one.
    #[must_use]
    pub fn new(block_size: u32) -> Self {
        Self { block_size, state: Mutex::default() }
    }

    /// Makes a file of `size` bytes, or replaces it by another version.
    pub fn put(&self, path: &str, size: u64, modified_nanos: i64) {
        self.put_file(path, size, modified_nanos, None);
    }

    /// Makes a file that can be read.
    pub fn put_text(&self, path: &str, text: &str) {
        self.put_file(path, text.len() as u64, 0, Some(Bytes::copy_from_slice(text.as_bytes())));
    }

    /// Deletes a file at the origin.
    pub fn delete(&self, path: &str) {
        let mut state = self.state.lock();
        if let Some((path, file)) = state.files.remove_entry(&path_of(path)) {
            state.gone.push((path, file.version.id()));
        }
    }

    /// Drops all blocks of a file.
    pub fn evict(&self, path: &str) {
        let mut state = self.state.lock();
        if let Some(file) = state.files.get(&path_of(path)).map(|file| file.version.id()) {
            state.cached.retain(|block, _| block.file != file);
        }
    }

    /// All blocks have other owners from now on, which hold none of them.
    pub fn reassign(&self) {
        let mut state = self.state.lock();
        state.placement += 1;
        state.cached.clear();
        state.order.clear();
    }

    /// Holds no more than so many blocks from now on; the oldest go first.
    pub fn limit(&self, blocks: usize) {
        self.state.lock().capacity = Some(blocks);
    }

    /// The next `times` calls of this kind about `path`, or what lies below it, fail.
    pub fn fail(&self, path: &str, call: Call, kind: FailureKind, times: u32) {
        self.state.lock().faults.push(Fault { path: path_of(path), call, kind, times });
    }

    /// No call fails any more.
    pub fn heal(&self) {
        self.state.lock().faults.clear();
    }

    /// Every call takes so long from now on.
    pub fn slow_down(&self, delay: Duration) {
        self.state.lock().delay = delay;
    }

    /// The workers are these, and count this.
    pub fn set_workers(&self, workers: impl IntoIterator<Item = (Arc<str>, Result<serde_json::Value, Failure>)>) {
        self.state.lock().workers = Some(workers.into_iter().collect());
    }

    /// How often it was asked.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.state.lock().calls
    }

    /// Bytes that are cached.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.state.lock().cached.values().map(|bytes| u64::from(*bytes)).sum()
    }

    fn put_file(&self, path: &str, size: u64, modified_nanos: i64, content: Option<Bytes>) {
        let mut state = self.state.lock();
        let path = path_of(path);
        let number = state.files.get(&path).map_or(0, |file| match &file.version.tag {
            VersionTag::Modified { inode, .. } => inode + 1,
            VersionTag::Etag(_) => 0,
        });
        let tag = VersionTag::Modified { nanos: modified_nanos, inode: number };
        let version = FileVersion { origin: "fake://".into(), path: path.as_bytes().into(), size, tag };
        state.files.insert(path, File { version, modified_nanos, content });
    }

    async fn call(&self, call: Call, path: Option<&FsPath>) -> Result<(), Failure> {
        let delay = self.state.lock().delay;
        if delay > Duration::ZERO {
            tokio::time::sleep(delay).await;
        }
        let mut state = self.state.lock();
        let fault = state.faults.iter_mut().find(|fault| {
            let hits = path.is_none_or(|path| path.relative_to(&fault.path).is_some());
            fault.call == call && fault.times > 0 && hits
        });
        let Some(fault) = fault else { return Ok(()) };
        fault.times -= 1;
        let shown = path.map(ToString::to_string).unwrap_or_default();
        Err(Failure::new(fault.kind, format!("{shown}: told to fail")))
    }
}

fn path_of(text: &str) -> FsPath {
    FsPath::new(text).unwrap_or_else(|error| panic!("{error}"))
}

fn name_of(version: &FileVersion) -> FsPath {
    FsPath::new(&version.path).unwrap_or_else(|_| FsPath::root())
}

impl FakeCacheState {
    fn attr(&self, path: &FsPath) -> Result<Attr, Failure> {
        if let Some(File { version, modified_nanos, .. }) = self.files.get(path) {
            return Ok(Attr { modified_nanos: *modified_nanos, ..Attr::file(version.clone()) });
        }
        let is_directory = path.is_root() || self.files.keys().any(|file| file.relative_to(path).is_some());
        let gone = || Failure::new(FailureKind::NotFound, format!("{path}: no such file or directory"));
        is_directory.then(Attr::directory).ok_or_else(gone)
    }

    fn children(&self, path: &FsPath) -> BTreeMap<Vec<u8>, Attr> {
        let mut children = BTreeMap::new();
        for (file, File { version, modified_nanos, .. }) in self.files.range(path.clone()..) {
            let Some(below) = file.relative_to(path) else {
                // Siblings such as `/a-b` sort between `/a` and `/a/b`.
                if file.as_bytes().starts_with(path.as_bytes()) { continue } else { break }
            };
            match below.iter().position(|byte| *byte == b'/') {
                Some(end) => children.insert(below[..end].to_vec(), Attr::directory()),
                None => {
                    let attr = Attr { modified_nanos: *modified_nanos, ..Attr::file(version.clone()) };
                    children.insert(below.to_vec(), attr)
                }
            };
        }
        children
    }

    fn insert(&mut self, block: BlockKey, length: u32) {
        self.cached.insert(block, length);
        self.order.push_back(block);
        while let Some(capacity) = self.capacity
            && self.cached.len() > capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.cached.remove(&oldest);
        }
    }
}

#[async_trait::async_trait]
impl CacheAccess for FakeCache {
    async fn stat(&self, path: &FsPath, _fresh: bool) -> Result<Attr, Failure> {
        self.call(Call::Stat, Some(path)).await?;
        self.state.lock().attr(path)
    }

    async fn list(&self, path: &FsPath, token: Option<&str>, max: u32) -> Result<ListReply, Failure> {
        self.call(Call::List, Some(path)).await?;
        let mut state = self.state.lock();
        state.calls.pages += 1;
        state.attr(path)?;
        let after = token.map(|token| token.as_bytes().to_vec());
        let mut rest = state.children(path).into_iter().filter(|(name, _)| after.as_ref().is_none_or(|at| name > at));
        let entries: Vec<_> =
            rest.by_ref().take(max as usize).map(|(name, attr)| DirEntry { name: name.into(), attr }).collect();
        let last = entries.last().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
        let next = rest.next().and(last);
        Ok(ListReply { entries, next, valid_for: Duration::ZERO })
    }

    async fn load_block(&self, version: &FileVersion, block: BlockKey, replicas: u8) -> Result<Loaded, Failure> {
        let path = name_of(version);
        self.call(Call::Load, Some(&path)).await?;
        let length = BlockLayout::new(version.size, self.block_size).block_len(block.index);
        let all = u64::from(length) * u64::from(replicas);
        let mut state = self.state.lock();
        state.calls.loads += 1;
        if state.cached.contains_key(&block) {
            return Ok(Loaded { fetched: 0, held: all });
        }
        match state.files.get(&path) {
            None => return Err(Failure::new(FailureKind::NotFound, format!("{path}: no such file or directory"))),
            Some(file) if file.version != *version => {
                return Err(Failure::new(FailureKind::VersionChanged, format!("{path}: was replaced")));
            }
            Some(_) => {}
        }
        state.calls.fetched += 1;
        state.insert(block, length);
        Ok(Loaded { fetched: all, held: 0 })
    }

    async fn coverage(
        &self,
        version: &FileVersion,
        block: BlockKey,
        _replicas: u8,
        check: bool,
    ) -> Result<HeldBytes, Failure> {
        self.call(Call::Coverage, Some(&name_of(version))).await?;
        let mut state = self.state.lock();
        state.calls.checks += u64::from(check);
        Ok(HeldBytes(state.cached.get(&block).map_or(0, |bytes| u64::from(*bytes))))
    }

    async fn free(&self, files: &[(FileId, u64)]) -> Result<FreeReply, Failure> {
        self.call(Call::Free, None).await?;
        let mut state = self.state.lock();
        state.calls.frees += 1;
        let mut reply = FreeReply { blocks: 0, bytes: 0 };
        for (file, blocks) in files {
            for index in 0..*blocks {
                if let Some(bytes) = state.cached.remove(&BlockKey { file: *file, index }) {
                    reply.blocks += 1;
                    reply.bytes += u64::from(bytes);
                }
            }
        }
        Ok(reply)
    }

    async fn free_below(&self, path: &FsPath) -> Result<FreeReply, Failure> {
        self.call(Call::Free, None).await?;
        let mut state = self.state.lock();
        let mut reply = FreeReply::default();
        let is_gone = |at: &FsPath| at.relative_to(path).is_some();
        let gone: Vec<FileId> = state.gone.iter().filter(|(at, _)| is_gone(at)).map(|(_, file)| *file).collect();
        state.cached.retain(|block, bytes| {
            let goes = gone.contains(&block.file);
            if goes {
                reply = FreeReply { blocks: reply.blocks + 1, bytes: reply.bytes + u64::from(*bytes) };
            }
            !goes
        });
        Ok(reply)
    }

    async fn read(&self, version: &FileVersion, offset: u64, length: u32) -> Result<Bytes, Failure> {
        let path = name_of(version);
        self.call(Call::Read, Some(&path)).await?;
        let state = self.state.lock();
        let content = state.files.get(&path).and_then(|file| file.content.clone()).unwrap_or_default();
        let start = content.len().min(offset as usize);
        Ok(content.slice(start..content.len().min(start + length as usize)))
    }

    fn placement(&self) -> u64 {
        self.state.lock().placement
    }

    async fn worker_stats(&self) -> Vec<(Arc<str>, Result<serde_json::Value, Failure>)> {
        if let Some(workers) = &self.state.lock().workers {
            return workers.clone();
        }
        let calls = self.calls();
        let hottest: Vec<_> = {
            let state = self.state.lock();
            let told = |(path, file): (&FsPath, &File)| {
                let (path, bytes) = (path.to_string(), file.version.size);
                serde_json::json!({ "path": path, "bytes_per_minute": bytes })
            };
            state.files.iter().take(5).map(told).collect()
        };
        let bytes = |blocks: u64| blocks * u64::from(self.block_size);
        let answer = self.call(Call::Stat, None).await.map(|()| {
            serde_json::json!({
                "worker": {
                    "bytes_memory": bytes(calls.loads), "bytes_disk": 0, "bytes_origin": bytes(calls.fetched),
                },
                "hottest": hottest,
            })
        });
        vec![("w1".into(), answer)]
    }
}
