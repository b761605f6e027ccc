//! What is known of a draft, and what is written down of it.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_types::{Attr, Failure, FsPath};
use tokio_util::sync::CancellationToken;

use crate::Base;
use crate::content::Content;
use crate::error::{let_go, too_large};
use crate::parts::Parts;
use crate::process::Process;
use crate::record::{FORMAT, Record, UploadRecord, to_hex};
use crate::schedule::Schedule;

/// How long background uploads of a draft rest after a failure; doubled with each, up to 64 times this.
const REST: Duration = Duration::from_millis(500);

/// The staged file.
#[derive(Debug)]
pub(crate) struct StagedFile {
    pub(crate) id: String,
    pub(crate) file: File,
}

/// What is written down of a draft, or is being written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenDown {
    Not,
    /// Where it belongs, and what is gone.
    Roughly,
    /// Where each byte is.
    Exactly,
}

/// An upload in parts.
#[derive(Debug)]
pub(crate) enum Upload {
    None,
    /// It is being begun, by the task that has this number.
    Beginning(u64),
    Begun(Arc<Begun>),
}

#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) path: FsPath,
    pub(crate) name: String,
    /// Cancelled when it is given up.
    pub(crate) given_up: CancellationToken,
}

pub(crate) struct DraftState {
    pub(crate) path: FsPath,
    pub(crate) content: Content,
    pub(crate) parts: Parts,
    pub(crate) base: Option<Arc<dyn Base>>,
    pub(crate) file: Option<Arc<StagedFile>>,
    pub(crate) written_down: WrittenDown,
    pub(crate) upload: Upload,
    pub(crate) beginnings: u64,
    pub(crate) dirty: bool,
    pub(crate) new: bool,
    pub(crate) unlinked: bool,
    pub(crate) syncing: bool,
    /// It is not open any more.
    pub(crate) dropped: bool,
    /// It could not be uploaded and was left in the staging directory.
    pub(crate) left: Option<Failure>,
    /// Another process works with it, or may again: its file and the lock on it are not this one's to let go of.
    pub(crate) is_lent: bool,
    /// Why the last sync failed.
    pub(crate) error: Option<String>,
    /// What the last sync made.
    pub(crate) attr: Option<Attr>,
    pub(crate) modified: SystemTime,
    pub(crate) since: SystemTime,
    pub(crate) used: Instant,
    /// Until when background uploads rest, and after how many failures.
    pub(crate) rest: Option<(Instant, u32)>,
}

impl DraftState {
    /// A draft that begins as `base`, or is new, and is cut into parts like this.
    pub(crate) fn new(schedule: &Arc<Schedule>, path: FsPath, content: Content, base: Option<Arc<dyn Base>>) -> Self {
        let now = SystemTime::now();
        Self {
            path,
            content,
            parts: Parts::new(Arc::clone(schedule)),
            dirty: base.is_none(),
            new: base.is_none(),
            base,
            file: None,
            written_down: WrittenDown::Not,
            upload: Upload::None,
            beginnings: 0,
            unlinked: false,
            syncing: false,
            dropped: false,
            left: None,
            is_lent: false,
            error: None,
            attr: None,
            modified: now,
            since: now,
            used: Instant::now(),
            rest: None,
        }
    }

    /// Whether the bytes of `range` may be changed.
    pub(crate) fn check_change(&self, range: &Range<u64>) -> Result<(), Failure> {
        if let Some(failure) = &self.left {
            return Err(failure.clone());
        }
        let most = self.parts.schedule().max_size();
        if range.end > most {
            return Err(too_large(&self.path, most));
        }
        if self.content.gone() > 0 {
            for number in self.parts.schedule().touched(range) {
                let whole = self.parts.schedule().range(number);
                let changed = whole.start.max(range.start)..whole.end.min(range.end);
                if self.content.gone_within(changed) < self.content.gone_within(whole.clone()) {
                    return Err(let_go(&self.path, &whole));
                }
            }
        }
        Ok(())
    }

    /// The staged file, if it is there and needs not be written down.
    pub(crate) fn file_at_hand(&self) -> Option<Arc<StagedFile>> {
        self.file.clone().filter(|_| self.unlinked || self.written_down != WrittenDown::Not)
    }

    /// Notes that the content was changed. `rough`: what is not written down exactly must be written down again. Whether something
    /// must be written down.
    #[must_use]
    pub(crate) fn changed(&mut self, rough: bool) -> bool {
        self.dirty = true;
        (self.modified, self.used) = (SystemTime::now(), Instant::now());
        // A sync may have ended since the staged file was asked for, and then its record was removed.
        rough || (self.written_down != WrittenDown::Roughly && !self.unlinked)
    }

    /// What is to be written down by a process, for its owner. `exact`: nothing is being changed.
    pub(crate) fn record(&self, owner: &str, process: Process, exact: bool) -> Record {
        let pairs = |range: Range<u64>| (range.start, range.end);
        let content = &self.content;
        let upload = match &self.upload {
            Upload::Begun(begun) => Some(UploadRecord {
                path_hex: to_hex(begun.path.as_bytes()),
                name: begun.name.clone(),
                parts: self.parts.current().map(|(number, length, tag)| (number, length, tag.to_owned())).collect(),
            }),
            Upload::None | Upload::Beginning(_) => None,
        };
        let base = self.base.as_ref().filter(|_| content.base_limit() > 0);
        Record {
            format: FORMAT,
            path: self.path.to_string(),
            path_hex: to_hex(self.path.as_bytes()),
            owner: owner.to_owned(),
            process,
            // Not before 1970, and not in half a billion years.
            since: self.since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64),
            error: self.error.clone(),
            size: content.size(),
            base: base.map(|base| to_hex(&base.version().encode())),
            base_limit: content.base_limit(),
            exact,
            staged: if exact { content.staged_within(0..content.size()).map(pairs).collect() } else { Vec::new() },
            zeros: if exact { content.zeros().map(pairs).collect() } else { Vec::new() },
            gone: content.all_gone().map(pairs).collect(),
            schedule: self.parts.schedule().steps().to_vec(),
            upload,
        }
    }

    /// Forgets the upload, and what of it is under way. The one that is to be aborted, if it was begun.
    #[must_use]
    pub(crate) fn forget_upload(&mut self) -> Option<Arc<Begun>> {
        let Upload::Begun(begun) = std::mem::replace(&mut self.upload, Upload::None) else { return None };
        begun.given_up.cancel();
        self.parts.forget_sent();
        Some(begun)
    }

    /// Something failed in the background: rests a while, and longer each time.
    pub(crate) fn rest(&mut self, now: Instant) {
        let failures = self.rest.map_or(0, |(_, failures)| failures);
        self.rest = Some((now + REST * (1 << failures.min(6)), failures + 1));
    }
}

impl std::fmt::Debug for DraftState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftState").field("path", &self.path).field("dirty", &self.dirty).finish_non_exhaustive()
    }
}

/// When the origin says that a file was modified, if it says.
pub(crate) fn modified(attr: &Attr) -> Option<SystemTime> {
    let nanos = u64::try_from(attr.modified_nanos).ok().filter(|nanos| *nanos > 0)?;
    Some(UNIX_EPOCH + Duration::from_nanos(nanos))
}
