//! One inode: a directory, a version of a file, or a file that is being written.
//!
//! A file's inode stands for one **version** of it. A replaced object is another inode, as after `rename(2)` over a file of a
//! local disk, so the kernel's page cache of one version can never be seen through a handle of another (invariant 1).
//!
//! Writing through this mount is the exception, because the kernel writes to the inode that it has: from the first open for
//! writing on, the inode stands for a [`Draft`], which all its handles read and write, and when the last writer has closed it
//! stands for the version that the draft became. Its pages are right throughout: they hold what was written. A handle for
//! reading remembers the inode's **revision** from when it was opened; once that is past, it reads what the inode is now.
//!
//! An inode whose handles the kernel passes through to a materialised file ([`crate::mode`]) cannot be written: its readers would
//! not see it. A writer gets an inode of its own ([`Inode::successor`]), to which the name leads from then on, and handles of the
//! old one go on reading the version that was opened, as after a rename over it.

mod handed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_client::{Client, OpenFile};
use forebay_locks::Mutex;
use forebay_staging::Draft;
use forebay_types::{Attr, Failure, FileId, FileKind, FileVersion, FsPath};

use crate::listing::SentAttributes;
use crate::mode::{Mode, Reading};
use crate::pinned::{How, Pinned};

/// How long what a name leads to is kept for a writer that was sent to look it up again. The kernel opens what it finds then, once;
/// a reader in between must not have it passed through again.
pub(crate) const KEPT_FOR_WRITER: Duration = Duration::from_secs(10);

/// One inode.
pub(crate) struct Inode {
    /// Its number.
    pub(crate) ino: u64,
    state: Mutex<InodeState>,
    revision: AtomicU64,
    /// A read found that the origin has another version by now.
    changed: AtomicBool,
    /// Changed only under the lock of the table's shard.
    pub(crate) lookups: AtomicU64,
    /// Of a directory: the attributes of its names that the kernel was sent.
    pub(crate) attributes_sent: Mutex<Option<SentAttributes>>,
    /// Held while a version is turned into a draft or back, renamed or removed.
    pub(crate) turn: tokio::sync::Mutex<()>,
}

struct InodeState {
    path: FsPath,
    version: Option<FileId>,
    known: Known,
    draft: Option<Arc<Draft>>,
    /// Handles that are open for writing.
    writers: u32,
    /// When it became what it is by a change that was made here; answers to earlier questions are about what it was.
    since: Option<Instant>,
    removed: bool,
    /// What was written could not be uploaded: the kernel's pages are of no version.
    lost: bool,
    /// What handles read that were opened on another revision, or that the kernel passes through.
    reader: Option<Arc<OpenFile>>,
    /// How its handles are open.
    mode: Mode<Arc<Pinned>>,
    /// A writer is about to come: until then nothing is passed through.
    kept_until: Option<Instant>,
}

impl InodeState {
    /// Whether it is being written, or what was written is on its way.
    fn is_written(&self) -> bool {
        self.draft.is_some() || self.writers > 0
    }

    /// How one more handle reads if it wants `wanted`: a materialised file that is not what it was is passed to no further one.
    fn reading(&self, wanted: Reading) -> Reading {
        match &self.mode {
            Mode::Passed { backing, .. } if !backing.is_right() => Reading::ByUs,
            _ => wanted,
        }
    }
}

/// What an answer said, and until when it may be believed.
#[derive(Clone)]
pub(crate) struct Known {
    /// The attributes.
    pub(crate) attr: Attr,
    /// When they were asked for.
    pub(crate) asked: Instant,
    /// Until when they may be believed.
    pub(crate) fresh_until: Instant,
}

impl Known {
    /// `attr`, asked for at `asked` and valid for `valid_for` since.
    pub(crate) fn new(attr: Attr, asked: Instant, valid_for: Duration) -> Self {
        // An instant that cannot be represented is centuries away; a day will do.
        let fresh_until = asked.checked_add(valid_for).unwrap_or(asked + Duration::from_secs(86_400));
        Self { attr, asked, fresh_until }
    }

    /// How long it may still be believed.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        self.fresh_until.saturating_duration_since(now)
    }
}

/// What a file's bytes are.
pub(crate) enum Content {
    /// Those of a version.
    Version(Arc<OpenFile>),
    /// What is being written.
    Draft(Arc<Draft>),
    /// What was written and could not be uploaded.
    Lost,
    /// It is a directory.
    None,
}

impl Inode {
    /// An inode that the kernel holds once.
    pub(crate) fn new(ino: u64, path: FsPath, known: Known) -> Self {
        let version = version_id(&known.attr);
        Self::of_version(ino, path, version, known)
    }

    /// The same, where the id of the version in `known` is known, too.
    pub(crate) fn of_version(ino: u64, path: FsPath, version: Option<FileId>, known: Known) -> Self {
        let state = InodeState {
            path,
            version,
            known,
            draft: None,
            writers: 0,
            since: None,
            removed: false,
            lost: false,
            reader: None,
            mode: Mode::Free,
            kept_until: None,
        };
        Self {
            ino,
            state: Mutex::new(state),
            revision: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            lookups: AtomicU64::new(1),
            attributes_sent: Mutex::new(None),
            turn: tokio::sync::Mutex::new(()),
        }
    }

    /// Where it is, or was before it was removed.
    pub(crate) fn path(&self) -> FsPath {
        self.state.lock().path.clone()
    }

    /// What is known of it, as of the origin.
    pub(crate) fn known(&self) -> Known {
        self.state.lock().known.clone()
    }

    /// Takes what is known of it, unless what it has is to be believed for longer: a listing may be older.
    pub(crate) fn learn(&self, known: Known) {
        let mut state = self.state.lock();
        let is_older = state.since.is_some_and(|since| known.asked < since);
        if state.draft.is_none() && !is_older && known.fresh_until >= state.known.fresh_until {
            state.known = known;
        }
    }

    /// Forgets until when what is known may be believed.
    pub(crate) fn expire(&self, now: Instant) {
        let mut state = self.state.lock();
        state.known.fresh_until = state.known.fresh_until.min(now);
    }

    /// Whether an answer is about this inode: about this version of the file, or a directory as this is one. Also when the answer
    /// is older than what was written here, or when it is being written: then this is what its name leads to.
    pub(crate) fn is_meant_by(&self, known: &Known) -> bool {
        let state = self.state.lock();
        let is_older = state.since.is_some_and(|since| known.asked < since);
        state.draft.is_some() || is_older || state.version == version_id(&known.attr)
    }

    /// Whether `attr` is of this inode: of this version of the file, or of a directory as this is one.
    pub(crate) fn is_of(&self, attr: &Attr) -> bool {
        self.state.lock().version == version_id(attr)
    }

    /// Whether it is the one of `path` and of this version there, and was not removed.
    pub(crate) fn is_at(&self, path: &FsPath, version: Option<FileId>) -> bool {
        let state = self.state.lock();
        !state.removed && state.version == version && state.path == *path
    }

    /// Whether a read found that this version is gone.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire)
    }

    /// Notes that a read found this version gone, or that it is there after all.
    pub(crate) fn set_changed(&self, changed: bool) {
        self.changed.store(changed, Ordering::Release);
    }

    /// Counts what writing has made of it. To be asked before what it is.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// What is being written, if it is.
    pub(crate) fn draft(&self) -> Option<Arc<Draft>> {
        self.state.lock().draft.clone()
    }

    /// Whether its name was removed here.
    pub(crate) fn is_removed(&self) -> bool {
        self.state.lock().removed
    }

    /// What its bytes are now.
    pub(crate) fn content(&self, client: &Client) -> Content {
        let mut state = self.state.lock();
        if let Some(draft) = &state.draft {
            return Content::Draft(Arc::clone(draft));
        }
        if state.lost {
            return Content::Lost;
        }
        let Some(version) = state.known.attr.version().cloned() else { return Content::None };
        let replicas = state.known.attr.replicas;
        let reader = state.reader.get_or_insert_with(|| client.open_replicated(version, replicas));
        Content::Version(Arc::clone(reader))
    }

    /// Whether its handles are passed through to a file that a check found wrong. We could serve what one more reads, but
    /// the kernel would go on mapping that file.
    pub(crate) fn is_passed_to_wrong(&self) -> bool {
        matches!(&self.state.lock().mode, Mode::Passed { backing, .. } if backing.is_wrong())
    }

    /// One more handle is open for reading, if it is decided how such handles are: by those that are open already.
    pub(crate) fn join(&self, reading: Reading) -> Option<How> {
        let mut state = self.state.lock();
        let reading = state.reading(reading);
        state.mode.join(reading)
    }

    /// One more handle is open for reading: passed through to `offered`, where that is possible and the inode is still what it was
    /// at `revision`.
    pub(crate) fn enter(&self, offered: Option<Arc<Pinned>>, revision: u64, reading: Reading) -> How {
        // What is not taken is dropped with this, after the lock.
        let _offered = offered.clone();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let reading = state.reading(reading);
        let is_kept = is_ahead(state.kept_until);
        let is_same = state.draft.is_none() && !state.lost && self.revision() == revision;
        state.mode.read(offered.filter(|offered| is_same && !is_kept && offered.is_right()), reading)
    }

    /// Whether it is kept for a writer that is about to come.
    pub(crate) fn is_kept(&self) -> bool {
        is_ahead(self.kept_until())
    }

    /// Until when.
    pub(crate) fn kept_until(&self) -> Option<Instant> {
        self.state.lock().kept_until
    }

    /// It is kept for a writer until then. `false`: the kernel passes its handles through, so it cannot be written.
    pub(crate) fn keep(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        if matches!(state.mode, Mode::Passed { .. }) {
            return false;
        }
        state.kept_until = state.kept_until.max(Some(until));
        true
    }

    /// A handle for reading was closed. Returns what it was passed through to, if it was the last such handle: drop
    /// that where no request waits.
    pub(crate) fn leave(&self) -> Option<Arc<Pinned>> {
        self.state.lock().mode.leave()
    }

    /// An inode with the number `ino` for a writer of this one. The kernel does not hold it yet.
    pub(crate) fn successor(&self, ino: u64) -> Self {
        let (path, known) = {
            let state = self.state.lock();
            (state.path.clone(), state.known.clone())
        };
        let mut successor = Self::new(ino, path, known);
        *successor.lookups.get_mut() = 0;
        successor
    }

    /// One more handle is open for writing. `make` makes the draft, from what is known, if there is none. To be called with the
    /// turn held. `None`: the kernel passes its handles through, so it cannot be written.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn begin_writing(
        &self,
        make: impl FnOnce(&FsPath, &Attr) -> Result<Arc<Draft>, Failure>,
    ) -> Result<Option<Arc<Draft>>, Failure> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.mode.write().is_err() {
            return Ok(None);
        }
        let draft = match &state.draft {
            Some(draft) => Arc::clone(draft),
            None => {
                let made = make(&state.path, &state.known.attr);
                let draft = made.inspect_err(|_| drop(state.mode.leave()))?;
                state.draft = Some(Arc::clone(&draft));
                state.reader = None;
                self.revision.fetch_add(1, Ordering::AcqRel);
                draft
            }
        };
        state.writers += 1;
        Ok(Some(draft))
    }

    /// One handle less is open for writing. The draft, if it was the last one.
    pub(crate) fn end_writing(&self) -> Option<Arc<Draft>> {
        let mut state = self.state.lock();
        state.writers = state.writers.saturating_sub(1);
        // It is not passed through to anything, so nothing comes back.
        let _ = state.mode.leave();
        state.draft.clone().filter(|_| state.writers == 0)
    }

    /// Whether it is being written, or what was written is on its way.
    pub(crate) fn is_written(&self) -> bool {
        self.state.lock().is_written()
    }

    /// Whether any handle is open for writing.
    pub(crate) fn has_writers(&self) -> bool {
        self.state.lock().writers > 0
    }

    /// Whether any handle is open.
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.state.lock().mode, Mode::Free)
    }

    /// Whether the caller is the only writer.
    pub(crate) fn is_only_writer(&self) -> bool {
        self.state.lock().writers == 1
    }

    /// The draft is at the origin and needed no more: from now on the inode stands for what is known of that version. Without
    /// any, it stands for what it was before.
    pub(crate) fn settle(&self, known: Option<Known>) {
        let mut state = self.state.lock();
        state.draft = None;
        self.became(&mut state, known);
    }

    /// The draft could not be uploaded, and stays in the staging directory: what the kernel holds of it is of no version.
    pub(crate) fn lose(&self) {
        let mut state = self.state.lock();
        (state.draft, state.reader) = (None, None);
        (state.lost, state.removed) = (true, true);
        self.set_changed(true);
        self.revision.fetch_add(1, Ordering::AcqRel);
    }

    /// It is at `path` now, as this version where it is known.
    pub(crate) fn moved(&self, path: FsPath, known: Option<Known>) {
        let mut state = self.state.lock();
        state.path = path;
        self.became(&mut state, known);
    }

    /// It is something else now, by a change that was made here.
    fn became(&self, state: &mut InodeState, known: Option<Known>) {
        (state.reader, state.since) = (None, Some(Instant::now()));
        if let Some(known) = known {
            state.version = version_id(&known.attr);
            state.known = known;
        }
        self.revision.fetch_add(1, Ordering::AcqRel);
    }

    /// Its name leads elsewhere from now on, by a change that was made here.
    pub(crate) fn remove(&self) {
        self.state.lock().removed = true;
    }

    /// How it is to be shown.
    pub(crate) fn shown(&self) -> Shown {
        let state = self.state.lock();
        Shown { known: state.known.clone(), draft: state.draft.clone(), removed: state.removed }
    }
}

fn is_ahead(time: Option<Instant>) -> bool {
    time.is_some_and(|time| Instant::now() < time)
}

/// What there is to show of an inode.
pub(crate) struct Shown {
    pub(crate) known: Known,
    pub(crate) draft: Option<Arc<Draft>>,
    pub(crate) removed: bool,
}

/// The version that attributes are of.
pub(crate) fn version_id(attr: &Attr) -> Option<FileId> {
    match &attr.kind {
        FileKind::Directory => None,
        FileKind::File(version) => Some(FileVersion::id(version)),
    }
}
