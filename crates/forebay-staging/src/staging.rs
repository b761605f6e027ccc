//! What the drafts of a process share: the directory, the room in it, the way to the origin, and the tasks.

use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_types::{ByteSize, Failure, FailureKind, FsPath};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::buffers::Buffers;
use crate::content::Content;
use crate::draft::{Draft, Inner};
use crate::error::StagingError;
use crate::journal::Journal;
use crate::process::Process;
use crate::report::StagingReport;
use crate::room::Room;
use crate::schedule::Schedule;
use crate::{Base, MAX_PART, Remote, reclaim, recover, uploader};

/// The smallest part that S3 takes anywhere but at the end of a file.
const MIN_PART: ByteSize = ByteSize::mib(5);
/// How long what is under way in the background may still take when the mount is being closed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Where and how files are staged.
#[derive(Clone, Debug)]
pub struct StagingOptions {
    /// The directory; made when it is not there. Several mounts may share it.
    pub dir: PathBuf,
    /// Most bytes that this process stages in it. What other processes stage there, or left there, does not count.
    pub size: ByteSize,
    /// The size of the first 2,000 parts, 5 MiB to 64 MiB.
    pub part_size: ByteSize,
    /// Most bytes of parts that are being sent at once, 64 MiB or more.
    pub memory: ByteSize,
    /// How long a writer waits for room.
    pub timeout: Duration,
    /// How long nobody must have written to a part for it to be sent before the file is synced.
    pub quiet: Duration,
    /// Who stages, for people: the mountpoint.
    pub owner: String,
}

/// The files that a process is writing. Clones are the same; background work ends with the last.
#[derive(Clone, Debug)]
pub struct Staging {
    shared: Arc<Shared>,
    _open: Arc<DropGuard>,
}

/// What counts up.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) puts: AtomicU64,
    pub(crate) begun: AtomicU64,
    pub(crate) parts: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) aborted: AtomicU64,
    /// Bytes that arrived, in parts and whole.
    pub(crate) bytes: AtomicU64,
    /// Syncs that failed.
    pub(crate) failures: AtomicU64,
    /// Bytes let go of to make room.
    pub(crate) let_go: AtomicU64,
    pub(crate) parts_in_flight: AtomicU64,
    pub(crate) bytes_in_flight: AtomicU64,
}

/// What is called with the bytes that have arrived.
pub(crate) type OnProgress = Box<dyn Fn(u64) + Send + Sync>;

/// What all drafts of a [`Staging`] use.
pub(crate) struct Shared {
    pub(crate) owner: String,
    pub(crate) timeout: Duration,
    pub(crate) quiet: Duration,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) journal: Journal,
    pub(crate) process: Process,
    pub(crate) remote: Arc<dyn Remote>,
    pub(crate) room: Room,
    pub(crate) counts: Counts,
    pub(crate) closing: CancellationToken,
    /// The uploader has something to look at.
    pub(crate) wake: Notify,
    pub(crate) on_progress: Option<OnProgress>,
    memory: Arc<Semaphore>,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) runtime: Handle,
    pub(crate) tasks: TaskTracker,
    keys: AtomicU64,
    drafts: Mutex<HashMap<u64, Weak<Inner>>>,
    /// Drafts of which parts may go early.
    hot: Mutex<HashMap<u64, Weak<Inner>>>,
    /// What could not be uploaded, by id: its bytes take room as long as they are there.
    kept: Mutex<HashMap<String, u64>>,
}

impl Staging {
    /// Opens a staging directory. What dead processes left in it is looked through in the background: uploads that
    /// nobody will complete are aborted.
    ///
    /// # Errors
    /// [`StagingError`] when the options make no sense, or the directory takes no files.
    pub fn open(options: StagingOptions, remote: Arc<dyn Remote>, runtime: Handle) -> Result<Self, StagingError> {
        if !(MIN_PART..=ByteSize::bytes(u64::from(MAX_PART))).contains(&options.part_size) {
            return Err(StagingError::PartSize(options.part_size));
        }
        if options.memory.as_u64() < u64::from(MAX_PART) {
            return Err(StagingError::Memory(options.memory));
        }
        let schedule = Schedule::new(options.part_size.as_u64());
        if options.size.as_u64() < schedule.largest() {
            return Err(StagingError::Size { given: options.size, least: ByteSize::bytes(schedule.largest()) });
        }
        Self::open_scheduled(options, schedule, remote, runtime)
    }

    /// As [`Staging::open`], with parts of any sizes.
    pub(crate) fn open_scheduled(
        options: StagingOptions,
        schedule: Schedule,
        remote: Arc<dyn Remote>,
        runtime: Handle,
    ) -> Result<Self, StagingError> {
        let journal = Journal::open(&options.dir)?;
        Ok(Self::open_on(journal, options, schedule, remote, runtime))
    }

    /// As [`Staging::open`], in a directory that is open.
    pub(crate) fn open_on(
        journal: Journal,
        options: StagingOptions,
        schedule: Schedule,
        remote: Arc<dyn Remote>,
        runtime: Handle,
    ) -> Self {
        let shared = Arc::new(Shared::new(options, schedule, journal, remote, runtime, None));
        shared.spawn(uploader::run(Arc::clone(&shared)));
        shared.spawn(reclaim::run(Arc::clone(&shared)));
        shared.spawn(recover::run(Arc::clone(&shared)));
        let open = Arc::new(shared.closing.clone().drop_guard());
        Self { shared, _open: open }
    }

    /// A new and empty file. It is dirty: to sync it makes an empty file at the origin.
    ///
    /// # Errors
    /// `Unavailable` when the mount is being closed.
    pub fn create(&self, path: FsPath) -> Result<Arc<Draft>, Failure> {
        self.draft(path, Content::new(0), None)
    }

    /// A file that begins as `base`. It is clean.
    ///
    /// # Errors
    /// `TooLarge` for a base that all parts together do not hold; `Unavailable` when the mount is being closed.
    pub fn revise(&self, path: FsPath, base: Arc<dyn Base>) -> Result<Arc<Draft>, Failure> {
        let size = base.version().size;
        let most = self.shared.schedule.max_size();
        if size > most {
            return Err(crate::error::too_large(&path, most));
        }
        self.draft(path, Content::new(size), Some(base))
    }

    fn draft(&self, path: FsPath, content: Content, base: Option<Arc<dyn Base>>) -> Result<Arc<Draft>, Failure> {
        if self.shared.closing.is_cancelled() {
            return Err(crate::error::closing());
        }
        Ok(Arc::new(Draft::new(Inner::new(&self.shared, path, content, base))))
    }

    /// Stops background work and waits for what is under way. Dirty drafts stay staged and are written down; nothing
    /// can be synced any more.
    pub async fn close(&self) {
        self.shared.closing.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        for draft in self.shared.drafts() {
            draft.write_down_unsynced();
        }
    }

    /// What the directory holds at most, in bytes, once all that is under way has arrived at the origin: what its file system has left,
    /// and its options allow, but for files that could not be uploaded. `None` when the file system does not say. Asks it, which may
    /// take as long as the disk does.
    pub async fn holds(&self) -> Option<u64> {
        let shared = Arc::clone(&self.shared);
        let look = move || {
            let found = rustix::fs::statvfs(shared.journal.dir()).ok().filter(|found| found.f_blocks > 0)?;
            let (size, used, _) = shared.room.occupancy();
            Some(at_most(size, used, shared.kept().1, found.f_bavail.saturating_mul(found.f_frsize)))
        };
        self.shared.blocking(look).await.ok().flatten()
    }

    /// What the directory must hold so that a file of any size goes through it: its largest part.
    #[must_use]
    pub fn least(&self) -> u64 {
        self.shared.schedule.largest()
    }

    /// What is staged and under way, in numbers.
    #[must_use]
    pub fn report(&self) -> StagingReport {
        StagingReport::of(&self.shared)
    }
}

/// `used` of the `size` bytes of room are taken, `kept` of them for ever, and the file system has `available` bytes left.
fn at_most(size: u64, used: u64, kept: u64, available: u64) -> u64 {
    size.min(available.saturating_add(used)).saturating_sub(kept)
}

impl Shared {
    pub(crate) fn new(
        options: StagingOptions,
        schedule: Schedule,
        journal: Journal,
        remote: Arc<dyn Remote>,
        runtime: Handle,
        on_progress: Option<OnProgress>,
    ) -> Self {
        let memory = usize::try_from(options.memory.as_u64()).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            owner: options.owner,
            timeout: options.timeout,
            quiet: options.quiet,
            schedule: Arc::new(schedule),
            journal,
            process: Process::this(),
            remote,
            room: Room::new(options.size.as_u64()),
            counts: Counts::default(),
            closing: CancellationToken::new(),
            wake: Notify::new(),
            on_progress,
            memory: Arc::new(Semaphore::new(memory)),
            buffers: Buffers::new(memory),
            runtime,
            tasks: TaskTracker::new(),
            keys: AtomicU64::new(0),
            drafts: Mutex::default(),
            hot: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    /// Spawns a task that [`Staging::close`] waits for.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tasks.spawn_on(task, &self.runtime)
    }

    /// Does what blocks, elsewhere.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let done = self.tasks.spawn_blocking_on(work, &self.runtime).await;
        done.map_err(|error| {
            Failure::new(FailureKind::Internal, format!("a task of the staging directory ended: {error}"))
        })
    }

    /// Memory for a part that is being sent; waits for it. At most as much as there is, so that it comes.
    pub(crate) async fn memory(self: &Arc<Self>, bytes: u64) -> Option<OwnedSemaphorePermit> {
        // Parts have at most 64 MiB, and the semaphore is never closed.
        Arc::clone(&self.memory).acquire_many_owned(u32::try_from(bytes).ok()?).await.ok()
    }

    /// Does something in the background that need not be waited for when the mount is closed.
    pub(crate) fn spawn_unhurried(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let closing = self.closing.clone();
        self.spawn(async move {
            let closed = async {
                closing.cancelled().await;
                tokio::time::sleep(LAST_WORDS).await;
            };
            tokio::select! {
                () = work => {}
                () = closed => {}
            }
        });
    }

    /// Gives an upload up, in the background.
    pub(crate) fn abort(self: &Arc<Self>, path: FsPath, upload: String) {
        let shared = Arc::clone(self);
        self.spawn_unhurried(async move {
            match shared.remote.abort(&path, &upload).await {
                Ok(()) => {
                    shared.counts.aborted.fetch_add(1, Ordering::Relaxed);
                }
                Err(failure) => {
                    tracing::warn!(%path, %failure, "an upload cannot be aborted; its parts stay at the origin")
                }
            }
        });
    }

    /// So many bytes are at the origin, in a part or whole.
    pub(crate) fn arrived(&self, bytes: u64) {
        let before = self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(on_progress) = &self.on_progress {
            on_progress(before + bytes);
        }
    }

    /// Registers a draft, and names it.
    pub(crate) fn register(&self, draft: &Weak<Inner>) -> u64 {
        let key = self.keys.fetch_add(1, Ordering::Relaxed);
        self.drafts.lock().insert(key, Weak::clone(draft));
        key
    }

    pub(crate) fn unregister(&self, key: u64) {
        let is_last = {
            let mut drafts = self.drafts.lock();
            drafts.remove(&key);
            drafts.is_empty()
        };
        self.hot.lock().remove(&key);
        if is_last {
            self.buffers.clear();
        }
    }

    /// The drafts that there are. No lock is held when the last reference to one goes.
    pub(crate) fn drafts(&self) -> Vec<Arc<Inner>> {
        self.drafts.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Parts of this draft may go early.
    pub(crate) fn heat(&self, draft: &Arc<Inner>) {
        self.hot.lock().insert(draft.key, Arc::downgrade(draft));
        self.wake.notify_one();
    }

    /// As [`Shared::heat`], by the uploader itself.
    pub(crate) fn keep_hot(&self, draft: &Arc<Inner>) {
        self.hot.lock().insert(draft.key, Arc::downgrade(draft));
    }

    /// Takes the drafts of which parts may go early.
    pub(crate) fn take_hot(&self) -> Vec<Arc<Inner>> {
        std::mem::take(&mut *self.hot.lock()).into_values().filter_map(|draft| draft.upgrade()).collect()
    }

    /// So many bytes of a draft that could not be uploaded stay in the directory.
    pub(crate) fn keep(&self, id: &str, bytes: u64) {
        self.kept.lock().insert(id.to_owned(), bytes);
    }

    /// How many drafts could not be uploaded, and their bytes.
    pub(crate) fn kept(&self) -> (usize, u64) {
        let kept = self.kept.lock();
        (kept.len(), kept.values().sum())
    }

    /// Gives back the room of what was retried or dropped meanwhile. Returns the bytes.
    pub(crate) fn forget_kept(&self) -> u64 {
        let mut freed = 0;
        self.kept.lock().retain(|id, bytes| {
            let is_there = self.journal.has(id);
            freed += if is_there { 0 } else { *bytes };
            is_there
        });
        self.room.give(freed);
        freed
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("owner", &self.owner).field("journal", &self.journal).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_its_way_is_no_loss_of_room_and_what_cannot_be_uploaded_is() {
        // Of 100, on a disk with enough room, and on one that has less than is allowed.
        assert_eq!((at_most(100, 0, 0, 1000), at_most(100, 60, 0, 1000), at_most(100, 60, 50, 1000)), (100, 100, 50));
        assert_eq!((at_most(100, 60, 0, 10), at_most(100, 60, 60, 10), at_most(100, 0, 0, 0)), (70, 10, 0));
    }
}
