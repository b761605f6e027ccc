//! The handle that a mount holds.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use forebay_types::{FileId, FileVersion};
use rustix::thread::{CapabilitySet, capabilities};
use tokio::runtime::Handle;
use tokio_util::sync::DropGuard;

use crate::backend::{BackendKind, FileBackend};
use crate::error::{LocalError, failed, say_off};
use crate::file::{NotTaken, Reading, Verdict, Why};
use crate::index::Shown;
use crate::kept::Kept;
use crate::listed::Listed;
use crate::options::LocalOptions;
use crate::shared::LocalShared;
use crate::source::Source;
use crate::stats::LocalStats;
use crate::{check, directory, memory};

/// Why files are not passed through where the process may not.
pub const NOT_PERMITTED: &str = "the kernel lets only processes with CAP_SYS_ADMIN pass files through; run the mount as root or give \
                                 it that capability";

/// The materialised files of a mount. Clones are the same; background work ends with the last.
#[derive(Clone)]
pub struct Local {
    kind: BackendKind,
    mode: Mode,
}

#[derive(Clone)]
enum Mode {
    On(
        Arc<LocalShared>,
        #[expect(dead_code, reason = "it ends the background work when it is dropped")] Arc<DropGuard>,
    ),
    /// There is no backend, and why.
    Off(Arc<str>),
}

impl Local {
    /// Opens the backend and lists what is in it, so it may take a moment. What a process before left in the directory is checked
    /// in the background and used then.
    ///
    /// Where the kernel lets this process pass no files through, or makes no memory of its own for it, they are off, with one
    /// warning: see [`Local::is_on`].
    ///
    /// # Errors
    /// [`LocalError`] when there is no room for them, or the directory belongs to another user or mount, or takes no
    /// files.
    pub fn open(options: LocalOptions, source: Arc<dyn Source>, runtime: Handle) -> Result<Self, LocalError> {
        if options.size.as_u64() == 0 {
            return Err(LocalError::NoSize);
        }
        let kind = if options.dir.is_some() { BackendKind::Directory } else { BackendKind::Memory };
        if !may_pass_through() {
            let is_automatic = options.is_automatic;
            return Ok(Self::off((kind, is_automatic), NOT_PERMITTED));
        }
        if let Some(dir) = &options.dir {
            let backend = directory::open(dir, &options.owner)?;
            return Self::on(Arc::new(backend), options, source, runtime);
        }
        // Whatever the kernel lacks for it, the mount does without.
        let is_automatic = options.is_automatic;
        let made = memory::open(options.size).map_err(failed("make", "a tmpfs".as_ref()));
        let local = made.and_then(|backend| Self::on(Arc::new(backend), options, source, runtime));
        Ok(local.unwrap_or_else(|error| Self::off((kind, is_automatic), &error.to_string())))
    }

    /// Without a backend, because of `why`.
    fn off((kind, is_automatic): (BackendKind, bool), why: &str) -> Self {
        say_off(is_automatic, why);
        Self { kind, mode: Mode::Off(why.into()) }
    }

    /// With files on `backend`.
    pub(crate) fn on(
        backend: Arc<dyn FileBackend>,
        options: LocalOptions,
        source: Arc<dyn Source>,
        runtime: Handle,
    ) -> Result<Self, LocalError> {
        let kind = backend.kind();
        let place = options.dir.clone().unwrap_or_else(|| "memory".into());
        let found = backend.found().map_err(failed("look through", &place))?;
        let free = backend.free().map_err(failed("ask for the free space of", &place))?;
        let shared = LocalShared::new(backend, options, source, runtime);
        shared.begin(found, free);
        shared.spawn(check::run(Arc::clone(&shared)));
        let guard = Arc::new(shared.closing.clone().drop_guard());
        Ok(Self { kind, mode: Mode::On(shared, guard) })
    }

    fn shared(&self) -> Option<&Arc<LocalShared>> {
        match &self.mode {
            Mode::On(shared, _) => Some(shared),
            Mode::Off(_) => None,
        }
    }

    /// Those that do something; `None` when they are off.
    fn working(&self) -> Option<&Arc<LocalShared>> {
        self.shared().filter(|shared| shared.why_off().is_none())
    }

    /// Whether files are materialised.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.working().is_some()
    }

    /// What stores the files.
    #[must_use]
    pub fn backend(&self) -> BackendKind {
        self.kind
    }

    /// A program opens a version for reading, and it may be passed through. Short: at most one `openat`.
    #[must_use]
    pub fn opened(&self, id: FileId, version: &FileVersion) -> Verdict {
        self.working().map_or(Verdict::No, |shared| shared.opened(id, version))
    }

    /// A handle that was served the ordinary way was closed, and had read so much of a file of `size` bytes.
    pub fn closed(&self, id: FileId, size: u64, reading: Reading) {
        if let Some(shared) = self.working() {
            shared.change(|state, _| state.index.closed(id, size, reading));
        }
    }

    /// A handle that is served the ordinary way has read so much of a version by now, through the page cache of the kernel. It is
    /// filled while it is read where that looks like the whole of it.
    pub fn reads(&self, id: FileId, version: &FileVersion, reading: Reading) {
        if let Some(shared) = self.working() {
            shared.change(|state, now| state.index.reads(id, version, reading, now));
        }
    }

    /// A job or a command asks for a file: it is taken whatever its size, and goes for no other. The wait has no limit.
    ///
    /// # Errors
    /// [`NotTaken`] when it is plain that it will not come.
    pub fn want(&self, id: FileId, version: &FileVersion, why: Why) -> Result<Verdict, NotTaken> {
        self.working().map_or(Err(NotTaken::Off), |shared| shared.want(id, version, why))
    }

    /// No program will open this version any more: it was written over, replaced or removed. Handles that have it open
    /// keep it.
    pub fn forget(&self, id: FileId) {
        if let Some(shared) = self.working() {
            shared.change(|state, now| state.index.forget(id, now));
        }
    }

    /// Drops a file, whether or not it was asked for. Handles that have it open keep it. Whether there was one.
    pub fn drop_file(&self, id: FileId) -> bool {
        self.working().is_some_and(|shared| shared.change(|state, now| state.index.drop_file(id, now)))
    }

    /// Drops all files; how many there were.
    pub fn drop_all(&self) -> usize {
        self.working().map_or(0, |shared| shared.change(|state, now| state.index.drop_all(now)))
    }

    /// The kernel refuses to pass files through: says so once, and takes no more. What is in memory goes; what is in a
    /// directory stays there for another process.
    pub fn turn_off(&self, why: &str) {
        if let Some(shared) = self.shared() {
            shared.turn_off(why);
        }
    }

    /// The files that there are, by path.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let Some(shared) = self.shared() else { return Vec::new() };
        let (now, today) = (std::time::Instant::now(), SystemTime::now());
        let shown = shared.change(|state, _| state.index.list());
        let mut list: Vec<Listed> = shown.into_iter().map(|shown| listed(shown, now, today)).collect();
        list.sort_by(|a, b| (&a.origin, &a.path, &a.id).cmp(&(&b.origin, &b.path, &b.id)));
        list
    }

    /// Which files there are, for whoever would fetch them otherwise.
    #[must_use]
    pub fn kept(&self) -> Kept {
        Kept::of(self.shared().map_or_else(Weak::new, Arc::downgrade))
    }

    /// What they do, in numbers.
    #[must_use]
    pub fn stats(&self) -> LocalStats {
        match &self.mode {
            Mode::On(shared, _) => shared.stats(),
            Mode::Off(why) => {
                LocalStats { why_off: Some(why.to_string()), backend: Some(self.kind), ..LocalStats::default() }
            }
        }
    }

    /// Ends fills and checks and waits for them. Files in a directory stay for the next process; descriptors that were handed
    /// out stay good.
    pub async fn close(&self) {
        if let Some(shared) = self.shared() {
            shared.close().await;
        }
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Local").field("backend", &self.kind).field("is_on", &self.is_on()).finish_non_exhaustive()
    }
}

/// Whether the kernel lets this process pass files through (CAP_SYS_ADMIN), as far as that can be told without trying.
#[must_use]
pub fn may_pass_through() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

fn listed(shown: Shown, now: std::time::Instant, today: SystemTime) -> Listed {
    let path = shown.version.as_ref().map(|version| String::from_utf8_lossy(&version.path).into_owned());
    Listed {
        key: shown.id,
        id: shown.id.to_string(),
        origin: shown.version.as_ref().map(|version| version.origin.to_string()).unwrap_or_default(),
        path: path.unwrap_or_default(),
        size: shown.size,
        state: shown.state,
        written: shown.written,
        pins: shown.pins,
        opens: shown.opens,
        asked: shown.asked,
        since: today.checked_sub(now.saturating_duration_since(shown.since)).unwrap_or(today),
    }
}
