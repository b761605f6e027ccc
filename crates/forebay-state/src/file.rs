//! The embedded store: one directory of this machine, one process, nothing else installed.
//!
//! What is acknowledged is on the disk: each commit is a record in a log, synced before it is answered. A crash loses
//! nothing but what was not answered; damage that no crash explains is an error that names the file, never a silent loss.
//! Leases end with the process, and so do their keys. A store without a directory is the same in memory, for a process
//! whose state nobody wants to find again.
//!
//! * `table`: the entries, and what a transaction does to them (pure);
//! * `record`: how a change lies in a file, and what a crash can leave of it (pure);
//! * `disk`: the directory: lock, log, snapshot;
//! * `writer`: the thread that writes, and what readers see.

mod disk;
pub(crate) mod record;
mod table;
mod writer;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_locks::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::{
    Committed, DEFAULT_DEADLINE, Entry, Lease, LeaseId, Revision, Snapshot, StateError, StateStore, Transaction, Watch,
    WatchSender, key,
};
use disk::Disk;
use table::Table;
use writer::{Published, Queue, Request, Writer};

/// How many commits and new leases may wait for the disk; more wait in their callers.
const REQUESTS_WAITING: usize = 256;
/// How many updates a watcher may lag before the store stops preparing more for it.
const WATCH_CAPACITY: usize = 16;

/// The options of a [`FileStore`].
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// How long an operation may take.
    pub deadline: Duration,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { deadline: DEFAULT_DEADLINE }
    }
}

/// A [`StateStore`] in a directory, or in memory.
#[derive(Debug)]
pub struct FileStore {
    shared: Arc<FileStoreShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    tasks: TaskTracker,
    closing: CancellationToken,
    next_lease: AtomicU64,
}

#[derive(Debug)]
struct FileStoreShared {
    name: String,
    deadline: Duration,
    queue: Queue,
    room: Arc<Semaphore>,
    published: Published,
}

impl FileStore {
    /// Opens a directory, making it if needed. Keys of leases that an earlier process held are deleted.
    ///
    /// # Errors
    /// `InUse` while another process has it open, `NotOurs` if it is not this user's alone, `Corrupted` for damage other
    /// than a crash leaves, `Io`.
    pub async fn open(directory: impl Into<PathBuf>, options: FileOptions) -> Result<Self, StateError> {
        let directory = directory.into();
        let opening = tokio::task::spawn_blocking(move || {
            let (disk, table) = Disk::open(&directory)?;
            Self::begin(format!("files in {}", directory.display()), Some(disk), table, &options)
        });
        // Opening does not panic, and a runtime that ends drops this future, too.
        opening.await.unwrap_or_else(|_| Err(StateError::Closed { store: "the state directory".to_owned() }))
    }

    /// One without a directory, which is empty, and whose entries go with it: a process that is killed leaves nothing.
    ///
    /// # Errors
    /// `Io` when there is no thread for it.
    pub fn in_memory(options: &FileOptions) -> Result<Self, StateError> {
        Self::begin("memory of this process".to_owned(), None, Table::default(), options)
    }

    fn begin(name: String, disk: Option<Disk>, table: Table, options: &FileOptions) -> Result<Self, StateError> {
        let shared = Arc::new(FileStoreShared {
            name,
            deadline: options.deadline,
            queue: Queue::default(),
            room: Arc::new(Semaphore::new(REQUESTS_WAITING)),
            published: Published::new(table.clone()),
        });
        let serving = Arc::clone(&shared);
        let serve = move || {
            let (store, published) = (&serving.name, &serving.published);
            Writer { store, disk, table, held: HashSet::new(), published }.run(&serving.queue);
        };
        let thread = std::thread::Builder::new().name("state-writer".to_owned()).spawn(serve).map_err(|cause| {
            StateError::Io { action: "start a thread for", path: shared.name.clone().into(), cause: Arc::new(cause) }
        })?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            next_lease: AtomicU64::new(1),
        })
    }

    fn check_open(&self) -> Result<(), StateError> {
        if self.closing.is_cancelled() { Err(self.shared.closed()) } else { Ok(()) }
    }
}

impl FileStoreShared {
    fn closed(&self) -> StateError {
        StateError::Closed { store: self.name.clone() }
    }

    /// Asks the writer once there is room. A caller that gives up does not take its request back: it is done when the
    /// disk allows, and keeps its room until then.
    async fn ask<T>(
        &self,
        operation: &str,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, StateError> {
        let asking = async {
            // The semaphore is never closed.
            let room = Arc::clone(&self.room).acquire_owned().await.ok();
            self.answer_to(request, room).await
        };
        self.in_time(operation, asking).await
    }

    /// Has a lease end that was asked for. This takes no room: there is one such request for each lease that took some,
    /// and without it the lease's keys would stay.
    async fn end(&self, lease: LeaseId) -> Result<(), StateError> {
        self.in_time("end a lease", self.answer_to(|answer| Request::End(lease, answer), None)).await
    }

    /// `None` when there is no writer any more.
    async fn answer_to<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
        room: Option<OwnedSemaphorePermit>,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        if self.queue.push(request(answer), room) { answered.await.ok() } else { None }
    }

    async fn in_time<T>(&self, operation: &str, asking: impl Future<Output = Option<T>>) -> Result<T, StateError> {
        match tokio::time::timeout(self.deadline, asking).await {
            Ok(answer) => answer.ok_or_else(|| self.closed()),
            Err(_) => Err(StateError::TimedOut {
                store: self.name.clone(),
                operation: operation.to_owned(),
                deadline: self.deadline,
            }),
        }
    }
}

#[async_trait::async_trait]
impl StateStore for FileStore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, StateError> {
        self.check_open()?;
        key::check(key)?;
        Ok(self.shared.published.read(|table| table.get(key)))
    }

    async fn list(&self, prefix: &str) -> Result<Snapshot, StateError> {
        self.check_open()?;
        Ok(self.shared.published.read(|table| table.list(prefix)))
    }

    async fn commit(&self, transaction: Transaction) -> Result<Committed, StateError> {
        self.check_open()?;
        transaction.check()?;
        let operation = transaction.describe();
        self.shared.ask(&operation, |answer| Request::Commit(transaction, answer)).await?
    }

    async fn lease(&self, ttl: Duration) -> Result<Lease, StateError> {
        self.check_open()?;
        let id = LeaseId(self.next_lease.fetch_add(1, Ordering::Relaxed));
        let (lease, mut owner) = Lease::new(id, ttl);
        // No answer is waited for without the task that ends the lease being there.
        let (shared, closing) = (Arc::clone(&self.shared), self.closing.clone());
        let (granted, is_granted) = oneshot::channel();
        self.tasks.spawn(async move {
            let mut is_asked_for = false;
            let take = |answer| {
                is_asked_for = true;
                Request::Grant(id, answer)
            };
            let result = shared.ask("take a lease", take).await;
            // A caller that gave up waiting has dropped the lease as well.
            let _ = granted.send(result.map(drop));
            let done = tokio::select! {
                done = owner.ended() => done,
                () = closing.cancelled() => None,
            };
            owner.lose();
            if is_asked_for {
                // If the writer cannot be asked any more, the keys end with the process.
                let _ = shared.end(id).await;
            }
            drop(done);
        });
        is_granted.await.unwrap_or_else(|_| Err(self.shared.closed()))?;
        Ok(lease)
    }

    fn watch(&self, prefix: &str) -> Watch {
        let (sender, watch) = Watch::new(WATCH_CAPACITY);
        let (shared, closing, prefix) = (Arc::clone(&self.shared), self.closing.clone(), prefix.to_owned());
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = closing.cancelled() => {}
                () = serve_watch(&shared.published, &prefix, &sender) => {}
            }
        });
        watch
    }

    fn describe(&self) -> String {
        self.shared.name.clone()
    }

    async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.shared.queue.close();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // The writer does not panic; if the runtime ends meanwhile, no task is left to wait for it.
            let _ = tokio::task::spawn_blocking(|| thread.join()).await;
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        self.closing.cancel();
        self.shared.queue.close();
        if let Some(thread) = self.thread.get_mut().take() {
            // The directory can be opened again when this returns: at most one write is waited for.
            let _ = thread.join();
        }
    }
}

async fn serve_watch(published: &Published, prefix: &str, sender: &WatchSender) {
    let mut revisions = published.revisions();
    let mut known: Option<Revision> = None;
    loop {
        revisions.mark_unchanged();
        let (update, now) = published.since(prefix, known);
        known = Some(now);
        if let Some(update) = update
            && !sender.send(update).await
        {
            return;
        }
        tokio::select! {
            // The published state outlives its watches.
            _ = revisions.changed() => {}
            () = sender.closed() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_timed_out_has_its_room_until_the_disk_took_it() {
        let options = FileOptions { deadline: Duration::from_secs(60) };
        let store = FileStore::in_memory(&options).unwrap();
        let lease = store.lease(Duration::from_secs(60)).await.unwrap();
        store.commit(Transaction::new().put_leased("leased", "x", lease.id())).await.unwrap();

        // A disk that hangs: what is written cannot be shown.
        let (hangs, is_hanging) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel::<()>();
        let shared = Arc::clone(&store.shared);
        let disk = std::thread::spawn(move || {
            shared.published.read(|_| {
                hangs.send(()).unwrap();
                let _ = goes_on.recv();
            });
        });
        is_hanging.recv().unwrap();
        // Whoever waits has waited for long.
        tokio::time::pause();
        let is_late = |result: Result<(), StateError>| matches!(result, Err(StateError::TimedOut { .. }));
        for number in 0..REQUESTS_WAITING + 3 {
            let late = store.commit(Transaction::new().put(format!("late/{number:03}"), "x")).await;
            assert!(is_late(late.map(drop)), "{number}");
        }
        assert!(is_late(store.lease(Duration::from_secs(60)).await.map(drop)));
        assert_eq!(store.shared.room.available_permits(), 0);
        lease.revoke().await;

        tokio::time::resume();
        go_on.send(()).unwrap();
        disk.join().unwrap();
        let all = u32::try_from(REQUESTS_WAITING).unwrap();
        let room = tokio::time::timeout(options.deadline, store.shared.room.acquire_many(all)).await;
        drop(room.expect("the disk takes what waits").unwrap());
        // Behind the end of the other one.
        let lease = store.lease(Duration::from_secs(60)).await.unwrap();
        let keys: Vec<String> = store.list("").await.unwrap().entries.into_iter().map(|entry| entry.key).collect();
        let taken: Vec<String> = (0..REQUESTS_WAITING).map(|number| format!("late/{number:03}")).collect();
        assert_eq!(keys, taken, "no more than there was room for, and the lease has ended though there was none");
        drop(lease);
        store.close().await;
    }
}
