//! A programmable [`Remote`]: objects and uploads in memory, failures and delays on demand.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions, Spans};
use forebay_types::{Attr, ByteSize, Failure, FailureKind, FileKind, FileVersion, FsPath, VersionTag};
use tokio::sync::Notify;

use crate::{Base, Remote};

/// How long anything in a test may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Put,
    Begin,
    Part,
    Complete,
    Abort,
    Read,
}

#[derive(Clone)]
pub(crate) struct FakeRemote {
    world: Arc<World>,
}

struct World {
    state: Mutex<FakeRemoteState>,
    changed: Notify,
    pool: Pool,
}

/// The tag and the bytes of each part.
type Parts = BTreeMap<u32, (String, Bytes)>;

#[derive(Default)]
struct FakeRemoteState {
    objects: HashMap<FsPath, (FileVersion, Bytes)>,
    uploads: BTreeMap<String, (FsPath, Parts)>,
    numbers: u64,
    /// Failures to come: how many, and which.
    failing: HashMap<Verb, (usize, Failure)>,
    held: Vec<Verb>,
    calls: HashMap<Verb, usize>,
    /// How many calls are held now.
    waiting: HashMap<Verb, usize>,
    /// The parts that arrived, in order.
    arrived: Vec<u32>,
}

impl FakeRemote {
    pub(crate) fn new() -> Self {
        let pool = PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) };
        let world = World { state: Mutex::default(), changed: Notify::new(), pool: Pool::new(pool).unwrap() };
        Self { world: Arc::new(world) }
    }

    /// The next `count` calls of a verb fail.
    pub(crate) fn fail(&self, verb: Verb, count: usize, kind: FailureKind) {
        let failure = Failure::new(kind, format!("{verb:?} fails as it was told to"));
        self.world.state.lock().failing.insert(verb, (count, failure));
    }

    /// Calls of a verb wait until it is released.
    pub(crate) fn hold(&self, verb: Verb) {
        self.world.state.lock().held.push(verb);
    }

    pub(crate) fn release(&self, verb: Verb) {
        self.world.state.lock().held.retain(|held| *held != verb);
        self.world.changed.notify_waiters();
    }

    pub(crate) fn calls(&self, verb: Verb) -> usize {
        self.world.state.lock().calls.get(&verb).copied().unwrap_or(0)
    }

    pub(crate) fn waiting(&self, verb: Verb) -> usize {
        self.world.state.lock().waiting.get(&verb).copied().unwrap_or(0)
    }

    /// The numbers of the parts that arrived, in order.
    pub(crate) fn arrived(&self) -> Vec<u32> {
        self.world.state.lock().arrived.clone()
    }

    /// How many uploads are under way.
    pub(crate) fn uploads(&self) -> usize {
        self.world.state.lock().uploads.len()
    }

    /// Forgets all uploads, as an origin does that clears up.
    pub(crate) fn lose_uploads(&self) {
        self.world.state.lock().uploads.clear();
    }

    pub(crate) fn object(&self, path: &FsPath) -> Option<Bytes> {
        self.world.state.lock().objects.get(path).map(|(_, bytes)| bytes.clone())
    }

    pub(crate) fn remove(&self, path: &FsPath) {
        self.world.state.lock().objects.remove(path);
    }

    /// Puts an object there as another writer does.
    pub(crate) fn store(&self, path: &FsPath, bytes: impl Into<Bytes>) -> Attr {
        self.world.state.lock().store(path, bytes.into())
    }

    async fn enter(&self, verb: Verb) -> Result<(), Failure> {
        *self.world.state.lock().calls.entry(verb).or_default() += 1;
        let mut waiting = None;
        loop {
            let changed = self.world.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if !self.world.state.lock().held.contains(&verb) {
                break;
            }
            waiting.get_or_insert_with(|| Waiting::new(&self.world, verb));
            tokio::time::timeout(LIMIT, changed).await.expect("a call is held for ever");
        }
        let mut state = self.world.state.lock();
        match state.failing.get_mut(&verb) {
            Some((count, failure)) if *count > 0 => {
                *count -= 1;
                Err(failure.clone())
            }
            _ => Ok(()),
        }
    }
}

struct Waiting<'a>(&'a World, Verb);

impl<'a> Waiting<'a> {
    fn new(world: &'a World, verb: Verb) -> Self {
        *world.state.lock().waiting.entry(verb).or_default() += 1;
        Self(world, verb)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.state.lock().waiting.entry(self.1).or_default() -= 1;
    }
}

impl FakeRemoteState {
    fn store(&mut self, path: &FsPath, bytes: Bytes) -> Attr {
        self.numbers += 1;
        let version = FileVersion {
            origin: "fake://".into(),
            path: path.as_bytes()[1..].into(),
            size: bytes.len() as u64,
            tag: VersionTag::Etag(format!("\"{}\"", self.numbers).into()),
        };
        self.objects.insert(path.clone(), (version.clone(), bytes));
        let modified_nanos = 1_000_000_000 * self.numbers as i64;
        Attr { kind: FileKind::File(version), modified_nanos, replicas: 1, writable: true }
    }
}

fn gone(upload: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("no upload {upload}"))
}

#[async_trait::async_trait]
impl Remote for FakeRemote {
    async fn put(&self, path: &FsPath, bytes: Bytes) -> Result<Attr, Failure> {
        self.enter(Verb::Put).await?;
        Ok(self.world.state.lock().store(path, bytes))
    }

    async fn begin(&self, path: &FsPath) -> Result<String, Failure> {
        self.enter(Verb::Begin).await?;
        let mut state = self.world.state.lock();
        state.numbers += 1;
        let name = format!("upload-{}", state.numbers);
        state.uploads.insert(name.clone(), (path.clone(), BTreeMap::new()));
        Ok(name)
    }

    async fn part(&self, path: &FsPath, upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        self.enter(Verb::Part).await?;
        let mut state = self.world.state.lock();
        state.numbers += 1;
        let tag = format!("tag-{}", state.numbers);
        let (of, parts) = state.uploads.get_mut(upload).ok_or_else(|| gone(upload))?;
        assert_eq!(of, path, "a part of another file");
        parts.insert(number, (tag.clone(), bytes));
        state.arrived.push(number);
        Ok(tag)
    }

    async fn complete(&self, path: &FsPath, upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        self.enter(Verb::Complete).await?;
        let mut state = self.world.state.lock();
        let (of, sent) = state.uploads.get(upload).ok_or_else(|| gone(upload))?;
        assert_eq!(of, path, "the upload of another file");
        let mut whole = Vec::new();
        for (number, tag) in (1..).zip(parts) {
            match sent.get(&number) {
                Some((sent, bytes)) if sent == tag => whole.extend_from_slice(bytes),
                _ => return Err(Failure::new(FailureKind::InvalidArgument, format!("part {number} is not {tag}"))),
            }
        }
        if whole.len() as u64 != size {
            return Err(Failure::new(FailureKind::Corrupt, format!("{} bytes and not {size}", whole.len())));
        }
        state.uploads.remove(upload);
        Ok(state.store(path, whole.into()))
    }

    async fn abort(&self, _path: &FsPath, upload: &str) -> Result<(), Failure> {
        self.enter(Verb::Abort).await?;
        self.world.state.lock().uploads.remove(upload);
        Ok(())
    }

    fn open(&self, version: FileVersion) -> Arc<dyn Base> {
        Arc::new(FakeBase { remote: self.clone(), version })
    }
}

struct FakeBase {
    remote: FakeRemote,
    version: FileVersion,
}

#[async_trait::async_trait]
impl Base for FakeBase {
    fn version(&self) -> &FileVersion {
        &self.version
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Spans, Failure> {
        self.remote.enter(Verb::Read).await?;
        let path = FsPath::new([b"/", &*self.version.path].concat()).unwrap();
        let bytes = match self.remote.world.state.lock().objects.get(&path) {
            Some((version, bytes)) if *version == self.version => bytes.clone(),
            Some(_) => return Err(Failure::new(FailureKind::VersionChanged, format!("{path} was replaced"))),
            None => return Err(Failure::new(FailureKind::NotFound, format!("{path} is not there"))),
        };
        let end = (offset + u64::from(length)).min(bytes.len() as u64).max(offset) as usize;
        let bytes = bytes.slice(offset as usize..end);
        // In one view or in two, as a cache answers.
        let middle = if bytes.len() % 2 == 0 { bytes.len() } else { bytes.len() / 2 };
        let mut spans = Spans::new();
        for piece in [&bytes[..middle], &bytes[middle..]].into_iter().filter(|piece| !piece.is_empty()) {
            let mut span = self.remote.world.pool.alloc(piece.len(), LIMIT).await.unwrap();
            span.copy_from_slice(piece);
            spans.push(span.freeze());
        }
        Ok(spans)
    }
}
