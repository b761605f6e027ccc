//! What clones of a [`Local`](crate::Local) share: carries out what the index decides.
//!
//! The index is changed under a lock that is held for nothing else. What it wants done is done after the lock is free: files
//! are opened, waiters told, and tasks spawned, each of which [`LocalShared::close`] waits for.

mod loan;
mod pinning;

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use forebay_locks::Mutex;
use forebay_types::{FileId, FileVersion};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backend::{BackendKind, FileBackend, Found};
use crate::error::say_off;
use crate::file::{LocalFile, NotTaken, Pinned, Verdict, Waiting, Why};
use crate::fill::{Failed, Fill};
use crate::index::{Action, Answer, FileIndex, Limits};
use crate::memory;
use crate::name::Name;
use crate::options::LocalOptions;
use crate::source::Source;
use crate::stats::{Counts, LocalStats};

/// How often the backend is asked what it has free, and what failed is looked at again.
const TICK: Duration = Duration::from_secs(1);

/// The files of a mount.
pub(crate) struct LocalShared {
    pub(crate) backend: Arc<dyn FileBackend>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) closing: CancellationToken,
    options: LocalOptions,
    source: Arc<dyn Source>,
    runtime: Handle,
    tasks: TaskTracker,
    state: Mutex<SharedState>,
    why_off: OnceLock<String>,
    /// There may be something to check.
    to_check: Notify,
    this: Weak<Self>,
}

/// The index, and those that wait for its files.
pub(crate) struct SharedState {
    pub(crate) index: FileIndex,
    waiters: HashMap<FileId, Vec<Waiter>>,
    /// Files that are open, so that one descriptor does for all that open them.
    open: HashMap<FileId, Weak<Pinned>>,
    fills: HashMap<FileId, CancellationToken>,
}

type Waiter = oneshot::Sender<Result<LocalFile, NotTaken>>;

/// An [`Action`] with what it takes to carry it out.
enum Work {
    Fill(Name, FileVersion, CancellationToken),
    Remove(Name),
    Tell(Name, Option<NotTaken>, Vec<Waiter>),
    Used(Name),
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// Every sector is what its checksum says.
    Right(FileVersion),
    /// It is not, or cannot be read.
    Wrong,
    /// It could not be opened now, which says nothing of it.
    Later,
    /// The mount is being closed.
    Ended,
}

impl LocalShared {
    pub(crate) fn new(
        backend: Arc<dyn FileBackend>,
        options: LocalOptions,
        source: Arc<dyn Source>,
        runtime: Handle,
    ) -> Arc<Self> {
        let sets_aside = backend.kind() == BackendKind::Directory;
        let index = FileIndex::new(Limits { rules: options.rules(), fills: options.fills.max(1), sets_aside });
        let state = SharedState { index, waiters: HashMap::new(), open: HashMap::new(), fills: HashMap::new() };
        Arc::new_cyclic(|this| Self {
            backend,
            counts: Arc::default(),
            closing: CancellationToken::new(),
            options,
            source,
            runtime,
            tasks: TaskTracker::new(),
            state: Mutex::new(state),
            why_off: OnceLock::new(),
            to_check: Notify::new(),
            this: Weak::clone(this),
        })
    }

    /// Takes in what was found, as far as it fits, and begins to look after it all.
    pub(crate) fn begin(self: &Arc<Self>, found: Vec<Found>, free: u64) {
        let (now, today) = (Instant::now(), SystemTime::now());
        let mut left_over = Vec::new();
        self.change(|state, _| {
            for Found { name, used } in found {
                let age = today.duration_since(used).unwrap_or_default();
                let used = now.checked_sub(age).unwrap_or(now);
                if !state.index.found(name.id, name.size, used, now) {
                    left_over.push(name);
                }
            }
            state.index.free(free, now);
        });
        let shared = Arc::clone(self);
        self.spawn(async move {
            for name in left_over {
                let backend = Arc::clone(&shared.backend);
                shared.blocking(move || backend.remove(name)).await;
            }
            shared.look_after().await;
        });
    }

    pub(crate) fn why_off(&self) -> Option<&str> {
        self.why_off.get().map(String::as_str)
    }

    /// Changes what is known, and does what follows from it.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut SharedState, Instant) -> T) -> T {
        let (answer, works) = {
            let mut state = self.state.lock();
            let answer = change(&mut state, Instant::now());
            (answer, state.works(&self.closing))
        };
        for work in works {
            self.carry_out(work);
        }
        answer
    }

    pub(crate) fn opened(&self, id: FileId, version: &FileVersion) -> Verdict {
        let name = Name { id, size: version.size };
        let limit = Some(self.options.first_open_wait);
        let verdict = self.change(|state, now| match state.index.opened(id, version, now) {
            Answer::Ready => Ok(state.opened_already(id, now)),
            Answer::Wait => Err(Some(self.wait(state, id, limit))),
            Answer::No => Err(None),
        });
        self.verdict(name, verdict).unwrap_or(Verdict::No)
    }

    pub(crate) fn want(&self, id: FileId, version: &FileVersion, why: Why) -> Result<Verdict, NotTaken> {
        let name = Name { id, size: version.size };
        let verdict = self.change(|state, now| {
            let answer = state.index.want(id, version, why, now)?;
            Ok::<_, NotTaken>(match answer {
                Answer::Ready => Ok(state.opened_already(id, now)),
                Answer::Wait => Err(Some(self.wait(state, id, None))),
                Answer::No => Err(None),
            })
        })?;
        self.verdict(name, verdict)
    }

    fn verdict(&self, name: Name, found: Result<Option<LocalFile>, Option<Waiting>>) -> Result<Verdict, NotTaken> {
        match found {
            Ok(Some(file)) => Ok(Verdict::Ready(file)),
            Ok(None) => self.pinned(name).map(Verdict::Ready),
            Err(Some(waiting)) => Ok(Verdict::Waiting(waiting)),
            Err(None) => Ok(Verdict::No),
        }
    }

    fn wait(&self, state: &mut SharedState, id: FileId, limit: Option<Duration>) -> Waiting {
        let (tell, file) = oneshot::channel();
        let waiters = state.waiters.entry(id).or_default();
        // Drops waiters that gave up, so that the list never holds more than those that wait.
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(tell);
        Waiting { file, limit, counts: Arc::clone(&self.counts) }
    }

    fn carry_out(&self, work: Work) {
        match work {
            Work::Fill(name, version, cancelled) => {
                if let Some(shared) = self.this.upgrade() {
                    self.spawn(async move { shared.fill(name, version, cancelled).await });
                }
            }
            Work::Remove(name) => self.elsewhere(move |shared| {
                shared.lender().into_iter().for_each(|lender| lender.leaves(name.id));
                if let Err(error) = shared.backend.remove(name) {
                    tracing::warn!(file = %name, %error, "a materialised file cannot be removed");
                }
                shared.change(|state, now| state.index.removed(name.id, now));
                shared.give_back(name);
            }),
            Work::Used(name) => {
                if self.backend.kind() == BackendKind::Directory {
                    self.elsewhere(move |shared| shared.backend.used(name));
                }
            }
            Work::Tell(name, why, waiters) => {
                for waiter in waiters {
                    let answer = why.clone().map_or_else(|| self.taken(name), Err);
                    // A waiter that gave up meanwhile gives it back: what was sent is dropped.
                    drop(waiter.send(answer));
                }
            }
        }
    }

    async fn fill(self: Arc<Self>, name: Name, version: FileVersion, cancelled: CancellationToken) {
        let started = Instant::now();
        let fill = Fill {
            name,
            version,
            source: Arc::clone(&self.source),
            backend: Arc::clone(&self.backend),
            runtime: self.runtime.clone(),
            tasks: self.tasks.clone(),
            counts: Arc::clone(&self.counts),
            // To read memory back is cheap; to read a disk back is not.
            reads_back: self.backend.kind() == BackendKind::Memory || self.options.check_writes,
            lender: self.lender().cloned(),
            may_evict: self.state.lock().index.may_evict(&name.id),
            cancelled,
        };
        let filled = fill.run(|written| self.state.lock().index.progress(&name.id, written)).await;
        let counts = &self.counts;
        match &filled {
            Ok(_) => counts.filled(name.size, started.elapsed()),
            Err(Failed::Cancelled) => Counts::add(&counts.cancelled, 1),
            Err(Failed::Changed) => Counts::add(&counts.changed, 1),
            Err(Failed::NoRoom) => Counts::add(&counts.no_room, 1),
            Err(Failed::Corrupt(_)) => Counts::add(&counts.corrupt, 1),
            Err(Failed::Other(_)) => Counts::add(&counts.failed, 1),
        }
        if let Err(Failed::Corrupt(why) | Failed::Other(why)) = &filled {
            let path = String::from_utf8_lossy(&fill.version.path);
            tracing::warn!(file = %name, %path, error = why, "a file cannot be materialised, and is served as ever");
        }
        if let Ok(whole) = &filled {
            self.show(name, whole).await;
        }
        self.change(|state, now| {
            state.fills.remove(&name.id);
            match filled {
                Ok(_) => state.index.filled(name.id, now),
                Err(failed) => state.index.failed(name.id, failed.into(), now),
            }
        });
    }

    /// The file to check next; `None` when the mount is being closed.
    pub(crate) async fn next_check(&self) -> Option<Name> {
        let interval = Some(self.options.check_interval).filter(|interval| !interval.is_zero());
        while !self.closing.is_cancelled() {
            let next = {
                let state = self.state.lock();
                let next = state.index.next_check(interval, Instant::now());
                next.and_then(|id| Some(Name { id, size: state.index.size(&id)? }))
            };
            if next.is_some() {
                return next;
            }
            tokio::select! {
                () = self.closing.cancelled() => {}
                () = self.to_check.notified() => {}
            }
        }
        None
    }

    pub(crate) fn checked(&self, id: FileId, checked: Checked) {
        let is_wrong = checked == Checked::Wrong;
        if is_wrong {
            // Also where handles that have it open keep it.
            self.lender().into_iter().for_each(|lender| lender.leaves(id));
        }
        let open = self.change(|state, now| {
            match checked {
                Checked::Right(version) => state.index.checked(id, Some(version), true, now),
                Checked::Wrong => state.index.checked(id, None, false, now),
                Checked::Later | Checked::Ended => {}
            }
            // Not dropped here: the last one takes the lock.
            let open = state.open.get(&id).filter(|_| is_wrong)?.upgrade()?;
            open.is_wrong.store(true, Ordering::Release);
            let version = state.index.version(&id);
            Some((open, version.map(|version| String::from_utf8_lossy(&version.path).into_owned())))
        });
        if let Some((_, path)) = &open {
            let path = path.as_deref().unwrap_or_default();
            tracing::error!(file = %id, path, "programs that have a materialised file open may read wrong bytes: end them");
        }
    }

    /// How long it takes to check so many bytes.
    pub(crate) fn check_takes(&self, bytes: u64) -> Duration {
        // Both are far below what a float has digits for.
        Duration::from_secs_f64(bytes as f64 / self.options.check_bandwidth.as_u64().max(1) as f64)
    }

    /// Asks the backend what is free, and tells the index the time.
    async fn look_after(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.closing.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let backend = Arc::clone(&self.backend);
            let free = self.blocking(move || backend.free()).await;
            free.into_iter().for_each(|free| self.settle(free));
            self.reclaim();
            self.drop_wrong();
            self.change(|state, now| state.index.tick(now));
            self.to_check.notify_one();
        }
    }

    pub(crate) fn turn_off(&self, why: &str) {
        if self.why_off.set(why.to_owned()).is_err() {
            return;
        }
        say_off(self.options.is_automatic, why);
        self.change(|state, now| {
            state.index.close(now);
            if self.backend.kind() == BackendKind::Memory {
                state.index.drop_all(now);
            }
        });
        // There is nothing to look after any more, and no task that answers the waiters.
        self.closing.cancel();
        self.tell_off();
    }

    /// Tells all waiters that nothing comes any more.
    fn tell_off(&self) {
        let waiters = std::mem::take(&mut self.state.lock().waiters);
        drop(waiters);
    }

    pub(crate) fn stats(&self) -> LocalStats {
        let capacity_bytes = self.options.size.as_u64();
        let backend = Some(self.backend.kind());
        let why_off = self.why_off().map(str::to_owned);
        let mut stats = LocalStats { on: why_off.is_none(), why_off, backend, capacity_bytes, ..LocalStats::default() };
        self.state.lock().index.report(&mut stats);
        self.counts.report(&mut stats);
        if backend == Some(BackendKind::Memory) {
            let bytes = &stats.bytes;
            let used = bytes.ready + bytes.filling + bytes.leaving + bytes.lingering;
            stats.huge_bytes = memory::huge_pages().unwrap_or(0).min(used);
        }
        stats
    }

    /// Ends fills and checks, and waits for what is under way.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.change(|state, now| state.index.close(now));
        self.tasks.close();
        self.tasks.wait().await;
        self.tell_off();
        self.lender().into_iter().for_each(|lender| lender.end());
    }

    /// Spawns a task that [`LocalShared::close`] waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn_on(task, &self.runtime));
    }

    /// Does what blocks, elsewhere. `None` when the mount is being closed.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Option<io::Result<T>> {
        if self.closing.is_cancelled() {
            return None;
        }
        self.tasks.spawn_blocking_on(work, &self.runtime).await.ok()
    }

    /// Does what blocks and need not be waited for. When the mount is being closed it is done here and now, since no
    /// task may be started any more.
    fn elsewhere(&self, work: impl FnOnce(&Self) + Send + 'static) {
        match self.this.upgrade() {
            Some(shared) if !self.closing.is_cancelled() => {
                drop(self.tasks.spawn_blocking_on(move || work(&shared), &self.runtime));
            }
            _ => work(self),
        }
    }
}

impl SharedState {
    /// A file that the index has just pinned, if it is open already; that pin holds it then.
    fn opened_already(&mut self, id: FileId, now: Instant) -> Option<LocalFile> {
        let pinned = self.open.get(&id)?.upgrade()?;
        self.index.unpin(id, now);
        Some(LocalFile { pinned })
    }

    fn works(&mut self, closing: &CancellationToken) -> Vec<Work> {
        let actions = self.index.actions();
        actions.into_iter().filter_map(|action| self.work(action, closing)).collect()
    }

    fn work(&mut self, action: Action, closing: &CancellationToken) -> Option<Work> {
        let named = |index: &FileIndex, id: FileId| Some(Name { id, size: index.size(&id)? });
        match action {
            Action::Fill(id) => {
                let cancelled = closing.child_token();
                self.fills.insert(id, cancelled.clone());
                Some(Work::Fill(named(&self.index, id)?, self.index.version(&id)?, cancelled))
            }
            Action::Cancel(id) => {
                if let Some(fill) = self.fills.get(&id) {
                    fill.cancel();
                }
                None
            }
            Action::Remove(id) => Some(Work::Remove(named(&self.index, id)?)),
            Action::Used(id) => Some(Work::Used(named(&self.index, id)?)),
            Action::Tell(id, why) => {
                let waiters = self.waiters.remove(&id)?;
                // A file that is not known any more is not told to be there.
                let name = named(&self.index, id).unwrap_or(Name { id, size: 0 });
                Some(Work::Tell(name, why, waiters))
            }
        }
    }
}
