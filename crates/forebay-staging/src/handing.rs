//! A draft that goes on in another process, to which its mount is given.
//!
//! Bytes and record stay where they are, in the staging directory, and the other process reads them there. What else it must know is a
//! few words, which go with a descriptor of the bytes: with that, their lock goes over, so at no time anybody else takes them for
//! those of a process that is gone. Which of both works with the draft is decided by whoever gives the mount away: until then
//! neither process writes to it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_types::{Attr, Failure, FailureKind, FileKind, FileVersion};
use serde::{Deserialize, Serialize};

use crate::MAX_PART;
use crate::content::Content;
use crate::draft::Draft;
use crate::journal::Journal;
use crate::left::restore;
use crate::parts::Parts;
use crate::record::{Record, from_hex, to_hex};
use crate::schedule::Schedule;
use crate::shared::DraftInner;
use crate::staged_file::As;
use crate::staging::Staging;
use crate::state::{DraftState, StagedFile, Upload, WrittenDown};
use crate::sync::Held;

/// How often it is looked whether parts that are on their way have arrived.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(2);

/// What the next process must know of a draft besides its record.
#[derive(Debug, Serialize, Deserialize)]
struct Passed {
    id: String,
    dirty: bool,
    new: bool,
    /// Nanoseconds since 1970.
    modified: i64,
    /// As in a record, and also where none of its bytes are needed.
    base: Option<String>,
    /// What the last sync made.
    attr: Option<PassedAttr>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PassedAttr {
    version: String,
    modified_nanos: i64,
    replicas: u8,
    writable: bool,
}

/// A draft that is about to go on in another process. It is held still. Dropping this lets it go on here, unless it was
/// [lent](Handing::lend): then nothing becomes of it here any more.
pub struct Handing {
    inner: Arc<DraftInner>,
    passed: Vec<u8>,
    staged: Arc<StagedFile>,
    /// Another process may work with it.
    is_out: bool,
    _held: Held,
}

impl Handing {
    /// Holds a draft still that nobody writes to meanwhile, and writes down what it is. Waits until then for parts that are on their way;
    /// call it from a thread that may.
    ///
    /// # Errors
    /// `Unavailable` when it is being uploaded, has no name any more, or could not be uploaded; what the disk says.
    pub fn begin(draft: &Draft, until: Instant) -> Result<Self, Failure> {
        let inner = draft.inner();
        let held = still(inner, until)?;
        // Whoever makes room holds `io` as well, and finds that it is lent: the record stays right.
        let _io = inner.io.write();
        let staged = inner.staged_file()?;
        inner.write_down(As::Exactly, false)?;
        let mut state = inner.state.lock();
        let passed = Passed::of(&state, &staged.id);
        let passed = serde_json::to_vec(&passed).map_err(|error| unusable(error.to_string()))?;
        state.is_lent = true;
        drop(state);
        Ok(Self { inner: Arc::clone(inner), passed, staged, is_out: false, _held: held })
    }

    /// What the other process is to be told of it.
    #[must_use]
    pub fn passed(&self) -> &[u8] {
        &self.passed
    }

    /// A descriptor of its bytes for the other process.
    ///
    /// # Errors
    /// When there are too many.
    pub fn bytes(&self) -> io::Result<OwnedFd> {
        Ok(self.staged.file.try_clone()?.into())
    }

    /// The other process is told of it, and may work with it from now on. Whoever drops this does not know which of both does: until it
    /// is [taken back](Handing::take_back), nothing of it is removed, written down or unlocked here, also when this process ends.
    pub fn lend(&mut self) {
        self.is_out = true;
    }

    /// The other process does not work with it, and will not: it goes on here.
    pub fn take_back(mut self) {
        self.is_out = false;
    }

    /// The other process works with it: nothing of it is this one's any more.
    pub fn given(mut self) {
        self.is_out = true;
        let mut state = self.inner.state.lock();
        state.dirty = false;
        state.left = Some(Failure::new(FailureKind::Unavailable, "another process goes on with it"));
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        if !self.is_out {
            self.inner.state.lock().is_lent = false;
        }
    }
}

/// A draft of which nothing is on its way, and nothing will be.
fn still(inner: &Arc<DraftInner>, until: Instant) -> Result<Held, Failure> {
    let mut held = None;
    loop {
        if held.is_none() {
            held = Held::try_new(inner);
        }
        let (is_still, path) = {
            let state = inner.state.lock();
            if state.unlinked || state.left.is_some() {
                return Err(unusable(format!("{} has no name any more, or could not be uploaded", state.path)));
            }
            let is_on_its_way = state.parts.in_flight() > 0 || matches!(state.upload, Upload::Beginning(_));
            (!is_on_its_way, state.path.clone())
        };
        if is_still && let Some(held) = held.take() {
            return Ok(held);
        }
        if Instant::now() >= until {
            let what = format!("{path} is being uploaded, and that takes longer than programs may wait");
            return Err(Failure::new(FailureKind::Unavailable, what));
        }
        std::thread::sleep(LOOKED_AT_EVERY);
    }
}

/// The draft that another process has given with `passed` and `bytes`. Until it is [made this one's](Draft::own) it may be that one's
/// again: nothing becomes of it when it is dropped, and nothing of it is written down.
///
/// # Errors
/// `Corrupt` when what was given makes no sense, or is of another staging directory; what the disk says.
pub fn adopt(staging: &Staging, passed: &[u8], bytes: OwnedFd) -> Result<Arc<Draft>, Failure> {
    let shared = staging.shared();
    let passed: Passed = serde_json::from_slice(passed).map_err(|error| unusable(error.to_string()))?;
    let file = File::from(bytes);
    if !shared.journal.is_of(&passed.id, &file) {
        return Err(elsewhere(shared.journal.dir()));
    }
    let record = shared.journal.read(&passed.id).map_err(unusable)?;
    let path = record.fs_path().map_err(unusable)?;
    let (schedule, content) = cut(&record)?;
    let base = passed.base.as_deref().map(version).transpose()?;
    let attr = passed.attr.as_ref().map(PassedAttr::read).transpose()?;
    shared.room.take_anyway(content.staged());
    let inner = DraftInner::new(shared, path, content, base.map(|version| shared.remote.open(version)));
    {
        let mut state = inner.state.lock();
        state.is_lent = true;
        state.parts = Parts::new(Arc::new(schedule));
    }
    restore(&inner, record, StagedFile { id: passed.id, file });
    {
        let mut guard = inner.state.lock();
        let state = &mut *guard;
        (state.dirty, state.new, state.attr) = (passed.dirty, passed.new, attr);
        state.modified = time(passed.modified);
        if state.dirty {
            state.take_all_for_unsent();
        }
    }
    Ok(Arc::new(Draft::new(inner)))
}

/// Whether the bytes of a draft that another process is about to give with `passed` are in the staging directory `dir`.
///
/// # Errors
/// `Corrupt` when they are not, or `passed` makes no sense.
pub fn is_in(dir: &Path, passed: &[u8], bytes: &OwnedFd) -> Result<(), Failure> {
    let passed: Passed = serde_json::from_slice(passed).map_err(|error| unusable(error.to_string()))?;
    let file = File::from(bytes.try_clone().map_err(|error| unusable(error.to_string()))?);
    Journal::at(dir).is_of(&passed.id, &file).then_some(()).ok_or_else(|| elsewhere(dir))
}

fn elsewhere(dir: &Path) -> Failure {
    unusable(format!("its bytes are not in {}: set write.staging_dir as it was", dir.display()))
}

/// How it is cut into parts, and where its bytes are.
fn cut(record: &Record) -> Result<(Schedule, Content), Failure> {
    let schedule = Schedule::of_steps(&record.schedule).filter(|schedule| schedule.largest() <= u64::from(MAX_PART));
    let schedule = schedule.ok_or_else(|| unusable("its parts make no sense".to_owned()))?;
    if !record.exact || record.size > schedule.max_size() {
        return Err(unusable("its record does not tell where its bytes are".to_owned()));
    }
    let Record { size, base_limit, staged, zeros, gone, .. } = record;
    Ok((schedule, Content::restored(*size, *base_limit, staged, zeros, gone)))
}

impl Draft {
    /// Whether it could go on in another process: it has a name, and is not being uploaded at this moment.
    #[must_use]
    pub fn is_movable(&self) -> bool {
        let state = self.inner().state.lock();
        !state.unlinked && !state.syncing && state.left.is_none()
    }

    /// It was another process's, and is this one's from now on, which is written down.
    pub fn own(&self) {
        let inner = self.inner();
        let needless = {
            let mut state = inner.state.lock();
            state.is_lent = false;
            if state.dirty {
                None
            } else {
                state.written_down = WrittenDown::Not;
                state.file.clone()
            }
        };
        match needless {
            // Nothing of it would be lost.
            Some(staged) => inner.shared.journal.remove_record(&staged.id),
            None => inner.warn(inner.write_down(As::Before, false)),
        }
        inner.shared.heat(inner);
    }
}

impl Passed {
    fn of(state: &DraftState, id: &str) -> Self {
        Self {
            id: id.to_owned(),
            dirty: state.dirty,
            new: state.new,
            modified: nanos(state.modified),
            base: state.base.as_ref().map(|base| to_hex(&base.version().encode())),
            attr: state.attr.as_ref().and_then(PassedAttr::of),
        }
    }
}

impl PassedAttr {
    /// What a sync makes is a file.
    fn of(attr: &Attr) -> Option<Self> {
        let version = to_hex(&attr.version()?.encode());
        let Attr { modified_nanos, replicas, writable, .. } = *attr;
        Some(Self { version, modified_nanos, replicas, writable })
    }

    fn read(&self) -> Result<Attr, Failure> {
        let Self { version: text, modified_nanos, replicas, writable } = self;
        let kind = FileKind::File(version(text)?);
        Ok(Attr { kind, modified_nanos: *modified_nanos, replicas: *replicas, writable: *writable })
    }
}

impl DraftState {
    /// Whatever is staged may be what the origin does not have, but for parts that are known to have arrived.
    fn take_all_for_unsent(&mut self) {
        let now = Instant::now();
        let ranges: Vec<_> = self.content.staged_within(0..self.content.size()).chain(self.content.zeros()).collect();
        for range in ranges {
            for number in self.parts.schedule().touched(&range) {
                let whole = self.parts.schedule().range(number);
                let staged = whole.end - whole.start - self.content.unstaged(whole);
                self.parts.restore_unsent(number, staged, now);
            }
        }
    }
}

fn version(text: &str) -> Result<FileVersion, Failure> {
    let bytes = from_hex(text).ok_or_else(|| unusable("its version is not hexadecimal".to_owned()))?;
    FileVersion::decode(&bytes).map_err(|error| unusable(error.to_string()))
}

fn unusable(why: String) -> Failure {
    Failure::new(FailureKind::Corrupt, format!("a file that was being written cannot go on in another process: {why}"))
}

fn nanos(time: SystemTime) -> i64 {
    let nanos = |length: Duration| i64::try_from(length.as_nanos()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => nanos(since),
        Err(before) => -nanos(before.duration()),
    }
}

fn time(nanos: i64) -> SystemTime {
    let length = Duration::from_nanos(nanos.unsigned_abs());
    let time = if nanos < 0 { UNIX_EPOCH.checked_sub(length) } else { UNIX_EPOCH.checked_add(length) };
    time.unwrap_or(UNIX_EPOCH)
}
