//! A programmable [`Source`] and a [`FileBackend`] with faults, for tests.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use forebay_locks::{Condvar, Mutex};
use forebay_memory::{Pool, PoolOptions, Spans};
use forebay_types::{
    BlockLayout, ByteSize, Failure, FailureKind, FileId, FileVersion, MIN_BLOCK_SIZE, SectorChecksums, VersionTag,
};
use tokio::sync::Notify;

use crate::backend::{BackendKind, FileBackend, Found, Part, View};
use crate::name::Name;
use crate::record::Record;
use crate::source::{Blocks, Checksummed, Source};
use crate::tree::{Tree, TreeOptions};

/// How long anything in a test may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const BLOCK: u32 = MIN_BLOCK_SIZE;

pub(crate) fn version(path: &str, size: u64) -> FileVersion {
    let tag = VersionTag::Etag("\"1\"".into());
    FileVersion { origin: "s3://bucket".into(), path: path.as_bytes().into(), size, tag }
}

/// The bytes of a version: others for each, and none of them in a pattern of blocks or sectors.
pub(crate) fn bytes_of(version: &FileVersion) -> Vec<u8> {
    let seed = u64::from(version.id().0[0]) | 1;
    (0..version.size).map(|at| ((at + 7) * seed * 31 / 251 % 256) as u8).collect()
}

pub(crate) fn record_of(version: &FileVersion) -> Record {
    Record { version: version.clone(), checksums: SectorChecksums::of(&bytes_of(version)) }
}

/// Delivers the bytes of any version, or what it is told to.
#[derive(Clone)]
pub(crate) struct FakeSource {
    world: Arc<World>,
}

struct World {
    state: Mutex<FakeSourceState>,
    changed: Notify,
    pool: Pool,
}

#[derive(Default)]
struct FakeSourceState {
    /// How many reads of a block deliver a wrong byte.
    wrong: HashMap<u64, usize>,
    failing: Option<FailureKind>,
    is_held: bool,
    in_flight: usize,
    max_in_flight: usize,
    reads: usize,
    /// Blocks that were asked for again.
    scrubbed: HashSet<u64>,
}

impl FakeSource {
    pub(crate) fn new() -> Self {
        let pool = PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) };
        let world = World { state: Mutex::default(), changed: Notify::new(), pool: Pool::new(pool).unwrap() };
        Self { world: Arc::new(world) }
    }

    /// The next `times` reads of a block deliver a wrong byte.
    pub(crate) fn spoil(&self, block: u64, times: usize) {
        self.world.state.lock().wrong.insert(block, times);
    }

    pub(crate) fn fail(&self, kind: Option<FailureKind>) {
        self.world.state.lock().failing = kind;
    }

    /// Reads wait until they are released.
    pub(crate) fn hold(&self, is_held: bool) {
        self.world.state.lock().is_held = is_held;
        self.world.changed.notify_waiters();
    }

    pub(crate) fn reads(&self) -> usize {
        self.world.state.lock().reads
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.world.state.lock().in_flight
    }

    pub(crate) fn max_in_flight(&self) -> usize {
        self.world.state.lock().max_in_flight
    }

    pub(crate) fn was_scrubbed(&self, block: u64) -> bool {
        self.world.state.lock().scrubbed.contains(&block)
    }
}

impl Source for FakeSource {
    fn open(&self, version: &FileVersion) -> Arc<dyn Blocks> {
        Arc::new(FakeBlocks { world: Arc::clone(&self.world), version: version.clone(), bytes: bytes_of(version) })
    }
}

struct FakeBlocks {
    world: Arc<World>,
    version: FileVersion,
    bytes: Vec<u8>,
}

/// Counts a read for as long as it lasts.
struct InFlight<'a>(&'a World);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.state.lock().in_flight -= 1;
    }
}

#[async_trait::async_trait]
impl Blocks for FakeBlocks {
    fn layout(&self) -> BlockLayout {
        BlockLayout::new(self.version.size, BLOCK)
    }

    async fn read(&self, index: u64, scrub: bool) -> Result<Checksummed, Failure> {
        let _in_flight = {
            let mut state = self.world.state.lock();
            state.reads += 1;
            state.in_flight += 1;
            state.max_in_flight = state.max_in_flight.max(state.in_flight);
            if scrub {
                state.scrubbed.insert(index);
            }
            InFlight(&self.world)
        };
        loop {
            let changed = self.world.changed.notified();
            if !self.world.state.lock().is_held {
                break;
            }
            changed.await;
        }
        let is_wrong = {
            let mut state = self.world.state.lock();
            if let Some(kind) = state.failing {
                return Err(Failure::new(kind, "it fails as it was told to"));
            }
            let left = state.wrong.entry(index).or_default();
            let is_wrong = *left > 0;
            *left = left.saturating_sub(1);
            is_wrong
        };
        let start = usize::try_from(index * u64::from(BLOCK)).unwrap();
        let bytes = &self.bytes[start..self.bytes.len().min(start + BLOCK as usize)];
        let mut landing = self.world.pool.alloc(bytes.len(), LIMIT).await.unwrap();
        landing.copy_from_slice(bytes);
        if is_wrong {
            landing[bytes.len() / 2] ^= 1;
        }
        let whole = landing.freeze();
        // Two spans where there can be two.
        let middle = bytes.len() / 2 / forebay_types::SECTOR_SIZE as usize * forebay_types::SECTOR_SIZE as usize;
        let halves = [0..middle, middle..bytes.len()];
        let spans: Spans = halves.into_iter().filter(|half| !half.is_empty()).map(|half| whole.slice(half)).collect();
        Ok(Checksummed { spans, checksums: SectorChecksums::of(bytes) })
    }
}

/// What goes wrong on a [`FakeBackend`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// There is room for so many bytes only, of all parts together.
    pub(crate) full_at: Option<u64>,
    /// A write at this offset writes half of it and says nothing; so many times.
    pub(crate) torn: Option<(u64, usize)>,
    /// A write at this offset flips a bit and says nothing; so many times.
    pub(crate) flipped: Option<(u64, usize)>,
    /// Writes wait.
    pub(crate) is_held: bool,
    /// The backend says that so much is free.
    pub(crate) free: Option<u64>,
    /// So many times a file cannot be opened, since there are too many open.
    pub(crate) lacking: usize,
}

/// A directory, as if it were memory, with faults.
#[derive(Clone)]
pub(crate) struct FakeBackend {
    tree: Arc<Tree>,
    kind: BackendKind,
    faults: Arc<(Mutex<Faults>, Condvar)>,
    on_open: Arc<Mutex<Option<OnOpen>>>,
    _dir: Arc<tempfile::TempDir>,
}

/// What is done in the middle of an open.
type OnOpen = Box<dyn FnOnce() + Send>;

impl FakeBackend {
    pub(crate) fn new(kind: BackendKind) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = TreeOptions { kind, lasting: false, sets_aside: false };
        let root = || OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        let tree = Arc::new(Tree::new(root(), root(), options).unwrap());
        Self { tree, kind, faults: Arc::default(), on_open: Arc::default(), _dir: Arc::new(dir) }
    }

    pub(crate) fn fault(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults.0.lock());
        self.faults.1.notify_all();
    }

    /// The next open of a file does this before it ends.
    pub(crate) fn on_open(&self, step: impl FnOnce() + Send + 'static) {
        *self.on_open.lock() = Some(Box::new(step));
    }

    /// Changes a byte of a file that is whole.
    pub(crate) fn rot(&self, name: Name, offset: u64) {
        let path = self._dir.path().join(name.shard()).join(name.to_string());
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[usize::try_from(offset).unwrap()] ^= 4;
        // In place: it is open, and it is that file that rots.
        use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 0).unwrap();
    }

    /// Whether there is a descriptor left.
    fn descriptor(&self) -> io::Result<()> {
        let mut faults = self.faults.0.lock();
        if faults.lacking == 0 {
            return Ok(());
        }
        faults.lacking -= 1;
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// How many files there are, in whatever place.
    pub(crate) fn files(&self) -> usize {
        let count = |dir: &std::path::Path| std::fs::read_dir(dir).map_or(0, Iterator::count);
        let dirs = std::fs::read_dir(self._dir.path()).unwrap();
        dirs.map(|dir| count(&dir.unwrap().path())).sum()
    }
}

impl FileBackend for FakeBackend {
    fn kind(&self) -> BackendKind {
        self.kind
    }

    fn free(&self) -> io::Result<u64> {
        Ok(self.faults.0.lock().free.unwrap_or(u64::MAX / 2))
    }

    fn begin(&self, name: Name) -> io::Result<Box<dyn Part>> {
        Ok(Box::new(FakePart { part: self.tree.begin(name)?, faults: Arc::clone(&self.faults) }))
    }

    fn open(&self, name: Name) -> io::Result<OwnedFd> {
        self.descriptor()?;
        let opened = self.tree.open(name);
        let step = self.on_open.lock().take();
        step.into_iter().for_each(|step| step());
        opened
    }

    fn view(&self, name: Name) -> io::Result<Box<dyn View>> {
        self.descriptor()?;
        self.tree.view(name)
    }

    fn record(&self, name: Name) -> io::Result<Option<Record>> {
        self.descriptor()?;
        self.tree.record(name)
    }

    fn used(&self, name: Name) {
        self.tree.used(name);
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        self.tree.remove(name)
    }

    fn found(&self) -> io::Result<Vec<Found>> {
        self.tree.found()
    }
}

struct FakePart {
    part: Box<dyn Part>,
    faults: Arc<(Mutex<Faults>, Condvar)>,
}

/// Whether a fault at `offset` is due once more.
fn is_due(fault: &mut Option<(u64, usize)>, offset: u64) -> bool {
    match fault {
        Some((at, times)) if *at == offset && *times > 0 => {
            *times -= 1;
            true
        }
        _ => false,
    }
}

impl Part for FakePart {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut bytes = bytes.to_vec();
        {
            let mut faults = self.faults.0.lock();
            while faults.is_held {
                let is_late;
                (faults, is_late) = self.faults.1.wait_for(faults, LIMIT);
                assert!(!is_late, "nobody let writes go on");
            }
            if let Some(room) = &mut faults.full_at {
                *room = room.checked_sub(bytes.len() as u64).ok_or(io::Error::from_raw_os_error(libc::ENOSPC))?;
            }
            if is_due(&mut faults.flipped, offset) {
                bytes[0] ^= 1;
            }
            if is_due(&mut faults.torn, offset) {
                let half = bytes.len() / 2;
                bytes[half..].fill(0);
            }
        }
        self.part.write(offset, &bytes)
    }

    fn view(&mut self) -> io::Result<&mut dyn View> {
        self.part.view()
    }

    fn publish(self: Box<Self>, record: &Record) -> io::Result<()> {
        self.part.publish(record)
    }
}

/// So that tests need not say it each time.
pub(crate) fn named(version: &FileVersion) -> (FileId, Name) {
    let id = version.id();
    (id, Name { id, size: version.size })
}
