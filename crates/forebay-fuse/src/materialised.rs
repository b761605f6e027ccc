//! Materialised files in the life of a mount: which opens pass through to them, and what the kernel says to that.
//!
//! [`forebay_materialise`] decides which files are worth it and has them. An open asks it once, and once more waits for it where the
//! options say so; what it hands out is made a backing of the kernel's and kept with the inode ([`crate::mode`]) from the first
//! handle that passes through to the last.
//!
//! Nothing here can fail an open. What the kernel refuses is served as ever; where it refuses always, as without CAP_SYS_ADMIN,
//! materialised files are turned off, for they would be memory for nothing.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_client::Client;
use forebay_fuse_io::{Backings, NoPassthrough};
use forebay_locks::RwLock;
use forebay_materialise::{BackendKind, Local, LocalError, Reading as ReadSoFar, Verdict};
use forebay_types::{FileId, FileVersion, FsPath};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tracing::debug;

use crate::mapped::is_mapped_by;
use crate::materialise_requests::MaterialiseRequests;
use crate::mode::Reading;
use crate::options::LocalOptions;
use crate::pinned::{How, Pinned};

/// Names of files that are remembered: some more than there can be files, so that those of files that went are looked for now and
/// then only.
const MAX_NAMES: usize = 80 << 10;
/// The largest file that is let go of in the thread of its last close: to free as much takes some 20 µs, and mostly there is
/// nothing to free.
const FREED_AT_ONCE: u64 = 1 << 20;

/// The materialised files of one mount.
pub(crate) struct Materialised {
    files: Local,
    runtime: Handle,
    /// What blocks: to free files, and to look at tables of mappings.
    aside: TaskTracker,
    on_writable: bool,
    /// Set when the kernel can be told of backings.
    backings: OnceLock<Backings>,
    passed: AtomicU64,
    direct: AtomicU64,
    served: AtomicU64,
    refused: AtomicU64,
    splits: AtomicU64,
    requests: MaterialiseRequests,
    /// Where the mount shows files, for people; a version says only where its origin has it.
    names: RwLock<HashMap<FileId, FsPath>>,
}

impl Materialised {
    /// Opens the place for them; `client` is where they come from.
    ///
    /// # Errors
    /// Those of [`Local::open`].
    pub(crate) fn open(options: &LocalOptions, client: &Client, runtime: Handle) -> Result<Self, LocalError> {
        let files = Local::open(options.files.clone(), Arc::new(client.clone()), runtime.clone())?;
        client.passes_over(files.kept());
        Ok(Self {
            files,
            runtime,
            aside: TaskTracker::new(),
            on_writable: options.on_writable,
            backings: OnceLock::new(),
            passed: AtomicU64::new(0),
            direct: AtomicU64::new(0),
            served: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            splits: AtomicU64::new(0),
            requests: MaterialiseRequests::default(),
            names: RwLock::default(),
        })
    }

    /// From now on the kernel can be told of backings, if it takes any. Until then nothing is passed through.
    pub(crate) fn begin(&self, backings: Backings, passthrough: Result<(), NoPassthrough>) {
        match passthrough {
            // The session is started once.
            Ok(()) => drop(self.backings.set(backings)),
            Err(why) => self.files.turn_off(&why.to_string()),
        }
    }

    /// The files themselves.
    pub(crate) fn files(&self) -> &Local {
        &self.files
    }

    /// What was asked for.
    pub(crate) fn requests(&self) -> &MaterialiseRequests {
        &self.requests
    }

    /// Whether files that may be written through the mount may be passed through.
    pub(crate) fn takes_writable(&self) -> bool {
        self.on_writable
    }

    /// How an open with `flags` wants to read.
    pub(crate) fn reading(&self, flags: i32) -> Reading {
        let is_direct = flags & libc::O_DIRECT != 0;
        // The file system of a directory would want reads to be aligned, which a program that opens a file of ours cannot know.
        if is_direct && self.files.backend() == BackendKind::Directory { Reading::ByUs } else { Reading::Anyhow }
    }

    /// Counts an open for reading. What it may have.
    pub(crate) fn opened(&self, id: FileId, version: &FileVersion) -> Verdict {
        self.files.opened(id, version)
    }

    /// A handle on inode `ino` that we serve has read so much of a file by now. `by`: the thread that reads, where it may be one that
    /// faults in a mapping.
    pub(crate) fn reads(&self, id: FileId, version: &FileVersion, read: ReadSoFar, (ino, by): (u64, Option<u32>)) {
        self.files.reads(id, version, read);
        let Some(pid) = by.filter(|pid| *pid != 0 && self.files.is_on()) else { return };
        let (files, version) = (self.files.clone(), version.clone());
        let look = move || {
            if is_mapped_by(pid, ino) {
                files.reads(id, &version, ReadSoFar { is_mapped: true, ..read });
            }
        };
        drop(self.aside.spawn_blocking_on(look, &self.runtime));
    }

    /// A file is shown at `path`.
    pub(crate) fn named(&self, id: FileId, path: impl FnOnce() -> FsPath) {
        if !self.files.is_on() || self.names.read().contains_key(&id) {
            return;
        }
        let mut names = self.names.write();
        if names.len() >= MAX_NAMES {
            let kept: HashSet<FileId> = self.files.list().into_iter().map(|file| file.key).collect();
            names.retain(|id, _| kept.contains(id));
        }
        names.insert(id, path());
    }

    /// Where a file is shown, if that is known.
    pub(crate) fn name_of(&self, id: &FileId) -> Option<FsPath> {
        self.names.read().get(id).cloned()
    }

    /// What the first open of an inode may be passed through to. Waits for it where that is wanted.
    pub(crate) async fn offer(&self, verdict: Verdict) -> Option<Arc<Pinned>> {
        let backings = self.backings.get()?;
        let file = match verdict {
            Verdict::Ready(file) => file,
            Verdict::Waiting(waiting) => {
                waiting.done().await.inspect_err(|error| debug!(%error, "not waited for")).ok()?
            }
            Verdict::No => return None,
        };
        match backings.open(file.as_fd()) {
            Ok(backing) => Some(Arc::new(Pinned::new(backing, file))),
            Err(error) => {
                self.refuse(&error);
                None
            }
        }
    }

    /// Drops what no handle is passed through to any more. The kernel may have a file of many GB to free for it, and
    /// the calling thread serves other requests, too. A small file is gone before another thread would have been woken.
    pub(crate) fn let_go(&self, pinned: Arc<Pinned>) {
        if pinned.size() > FREED_AT_ONCE {
            drop(self.aside.spawn_blocking_on(move || drop(pinned), &self.runtime));
        }
    }

    /// Ends what goes on with files, and waits for it.
    pub(crate) async fn close(&self) {
        self.aside.close();
        self.aside.wait().await;
        self.files.close().await;
    }

    /// Counts how a handle for reading is open.
    pub(crate) fn count(&self, how: &How) {
        let counter = match how {
            How::Cached => &self.served,
            How::Passed(_) => &self.passed,
            How::Direct(_) => &self.direct,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a writer that got an inode of its own.
    pub(crate) fn count_split(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    #[cold]
    fn refuse(&self, error: &io::Error) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let why = match error.raw_os_error() {
            Some(libc::EPERM) => {
                "the kernel lets only processes with CAP_SYS_ADMIN pass files through; run the mount as root, or give it that \
                 capability"
            }
            Some(libc::ELOOP) => {
                "the kernel passes no files through to a file system that lies on others; choose a client.local.dir on a disk, \
                 or leave it unset"
            }
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL) => {
                "the kernel passes no files through: that takes Linux 6.9"
            }
            // Out of something, for the moment.
            _ => return debug!(%error, "a file is not passed through"),
        };
        self.files.turn_off(why);
    }

    /// What `.stats.json` shows.
    pub(crate) fn report(&self) -> Value {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut report = json!(self.files.stats());
        report["handles"] = json!({
            "passed": count(&self.passed),
            "direct": count(&self.direct),
            "served": count(&self.served),
        });
        report["refused_by_kernel"] = count(&self.refused).into();
        report["splits"] = count(&self.splits).into();
        report
    }
}
