//! What the drafts of a process share, and what each of them is. They know each other: a draft takes room, memory and tasks from what
//! is shared, and registers there, so that all drafts are found, and those of which parts may go early.
//!
//! Locks of a draft, in the order in which they are taken: `serial` (a sync is under way; the only one that is held
//! while waiting), `io` (shared: staged bytes are being read or written; exclusive: they are cut off, zeroed or let go
//! of), `disk` (the staged file is made or removed, or its record is written), `state` (what is known; never held while
//! a disk works, so that no thread waits for one to learn a file's size).
//!
//! A write is first put into the staged file and then noted: what is noted is there. To send a part, first take the generation
//! and then read: a write that the read may have missed is noted later, and makes the part go again.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_locks::{Mutex, RwLock};
use forebay_types::{Failure, FailureKind, FsPath};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::buffers::Buffers;
use crate::content::Content;
use crate::journal::Journal;
use crate::options::StagingOptions;
use crate::process::Process;
use crate::room::Room;
use crate::schedule::Schedule;
use crate::state::DraftState;
use crate::{Base, Remote};

/// How long what is under way in the background may still take when the mount is being closed.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// What is called with the bytes that have arrived.
pub(crate) type OnProgress = Box<dyn Fn(u64) + Send + Sync>;

/// What all drafts of a [`Staging`](crate::Staging) use.
pub(crate) struct StagingShared {
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
    drafts: Mutex<HashMap<u64, Weak<DraftInner>>>,
    /// Drafts of which parts may go early.
    hot: Mutex<HashMap<u64, Weak<DraftInner>>>,
    /// What could not be uploaded, by id: its bytes take room as long as they are there.
    kept: Mutex<HashMap<String, u64>>,
}

/// A file that is being written, behind its [`Draft`](crate::Draft).
#[derive(Debug)]
pub(crate) struct DraftInner {
    pub(crate) shared: Arc<StagingShared>,
    pub(crate) key: u64,
    pub(crate) serial: Arc<tokio::sync::Mutex<()>>,
    pub(crate) io: RwLock<()>,
    pub(crate) disk: Mutex<()>,
    pub(crate) state: Mutex<DraftState>,
    /// Something that was under way in the background has ended.
    pub(crate) settled: Notify,
    /// Cancelled when the file is not wanted at the origin any more.
    pub(crate) unlinked: CancellationToken,
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

impl StagingShared {
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

    /// Spawns a task that [`Staging::close`](crate::Staging::close) waits for.
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

    /// Has a draft forget its upload, and gives that up.
    pub(crate) fn give_up_upload(self: &Arc<Self>, state: &mut DraftState) {
        if let Some(begun) = state.forget_upload() {
            self.abort(begun.path.clone(), begun.name.clone());
        }
    }

    /// So many bytes are at the origin, in a part or whole.
    pub(crate) fn arrived(&self, bytes: u64) {
        let before = self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(on_progress) = &self.on_progress {
            on_progress(before + bytes);
        }
    }

    /// Registers a draft, and names it.
    pub(crate) fn register(&self, draft: &Weak<DraftInner>) -> u64 {
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
    pub(crate) fn drafts(&self) -> Vec<Arc<DraftInner>> {
        self.drafts.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Parts of this draft may go early.
    pub(crate) fn heat(&self, draft: &Arc<DraftInner>) {
        self.hot.lock().insert(draft.key, Arc::downgrade(draft));
        self.wake.notify_one();
    }

    /// As [`StagingShared::heat`], by the uploader itself.
    pub(crate) fn keep_hot(&self, draft: &Arc<DraftInner>) {
        self.hot.lock().insert(draft.key, Arc::downgrade(draft));
    }

    /// Takes the drafts of which parts may go early.
    pub(crate) fn take_hot(&self) -> Vec<Arc<DraftInner>> {
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

impl std::fmt::Debug for StagingShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagingShared")
            .field("owner", &self.owner)
            .field("journal", &self.journal)
            .finish_non_exhaustive()
    }
}

impl DraftInner {
    pub(crate) fn new(
        shared: &Arc<StagingShared>,
        path: FsPath,
        content: Content,
        base: Option<Arc<dyn Base>>,
    ) -> Arc<Self> {
        let state = DraftState::new(&shared.schedule, path, content, base);
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            shared: Arc::clone(shared),
            key: shared.register(this),
            serial: Arc::default(),
            io: RwLock::new(()),
            disk: Mutex::default(),
            state: Mutex::new(state),
            settled: Notify::new(),
            unlinked: CancellationToken::new(),
        })
    }

    pub(crate) fn is_dirty(&self) -> bool {
        let state = self.state.lock();
        state.dirty && !state.unlinked
    }
}

impl Drop for DraftInner {
    fn drop(&mut self) {
        self.shared.unregister(self.key);
        let state = self.state.get_mut();
        let staged = state.content.staged();
        let Some(file) = &state.file else { return };
        if state.is_lent {
            // The lock is that of all descriptors.
            return self.shared.room.give(staged);
        }
        // Closing alone would not do: a child process that is just being started shares the descriptor for a moment.
        let _ = file.file.unlock();
        if state.left.is_some() {
            self.shared.keep(&file.id, staged);
        } else {
            self.shared.room.give(staged);
        }
    }
}
