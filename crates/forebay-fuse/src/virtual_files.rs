//! Files that are in no origin: what the mount tells of itself, at its root.
//!
//! | name | mode | what it holds |
//! | --- | --- | --- |
//! | `.stats` | 0444 | all counters, a line each: `fuse.read_bytes 4096` |
//! | `.stats.json` | 0444 | the same as one JSON object, with the buckets of all latencies |
//! | `.accesslog` | 0400 | a line for each request while it is open ([`crate::access_log`]) |
//!
//! They are not listed, so nothing that walks a tree meets them, and they hide files of the same names at the root of the
//! namespace. Their size is said to be 0, as that of files in `/proc`: they are read past the page cache until they end. The
//! access log never does.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_fuse_io::{Attributes, Errno, Kind};
use forebay_handover::{Handles, Journal, Record, VirtualHandle};
use serde_json::Value;

use crate::access_log::{AccessLog, LogReader};
use crate::handles::HandleTable;
use crate::inodes::{LAST_RESERVED, ROOT};

/// How long the kernel may believe that they are there: always.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(86_400);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VirtualFile {
    Stats,
    StatsJson,
    AccessLog,
}

/// What is open of them.
pub(crate) struct VirtualFiles {
    handles: HandleTable<Opened>,
    log: AccessLog,
    journal: Journal,
}

#[derive(Clone)]
pub(crate) enum Opened {
    /// What it held when it was opened.
    Text(Arc<[u8]>),
    Log(Arc<LogReader>),
}

impl Opened {
    /// It as the next process is told of it.
    fn handed(&self) -> VirtualHandle {
        match self {
            Self::Text(text) => VirtualHandle::Text(Box::from(&**text)),
            Self::Log(_) => VirtualHandle::Log,
        }
    }
}

impl VirtualFile {
    const ALL: [Self; 3] = [Self::Stats, Self::StatsJson, Self::AccessLog];

    fn name(self) -> &'static str {
        match self {
            Self::Stats => ".stats",
            Self::StatsJson => ".stats.json",
            Self::AccessLog => ".accesslog",
        }
    }

    /// The one of this name in the root.
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        // Few names begin like that.
        if name.first() != Some(&b'.') {
            return None;
        }
        Self::ALL.into_iter().find(|file| file.name().as_bytes() == name)
    }

    /// The one with this inode number.
    #[inline]
    pub(crate) fn at(ino: u64) -> Option<Self> {
        if ino > LAST_RESERVED {
            return None;
        }
        Self::ALL.into_iter().find(|file| file.ino() == ino)
    }

    fn ino(self) -> u64 {
        ROOT + 1 + self as u64
    }

    /// Of a mount that this user and group own.
    pub(crate) fn attributes(self, uid: u32, gid: u32) -> Attributes {
        let now = SystemTime::now();
        let perm = if self == Self::AccessLog { 0o400 } else { 0o444 };
        Attributes {
            ino: self.ino(),
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            kind: Kind::RegularFile,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
        }
    }
}

impl VirtualFiles {
    pub(crate) fn new() -> Self {
        Self { handles: HandleTable::new(), log: AccessLog::default(), journal: Journal::default() }
    }

    /// The same, which note in `journal` what is opened and closed.
    pub(crate) fn noting_in(self, journal: Journal) -> Self {
        Self { journal, ..self }
    }

    /// What is open of them as the next process is told of it.
    pub(crate) fn handed(&self) -> Handles<VirtualHandle> {
        self.handles.handed(Opened::handed)
    }

    /// What another process had open of them. A log begins anew.
    pub(crate) fn restored(handed: Handles<VirtualHandle>) -> Self {
        let log = AccessLog::default();
        let handles = HandleTable::restored(handed, |handle| match handle {
            VirtualHandle::Text(text) => Opened::Text(text.into()),
            // There were no more of them than there may be.
            VirtualHandle::Log => log.open().map_or_else(|| Opened::Text(Arc::default()), Opened::Log),
        });
        Self { handles, log, journal: Journal::default() }
    }

    /// What requests are told to.
    pub(crate) fn log(&self) -> &AccessLog {
        &self.log
    }

    /// A handle on `file`; `report` gives the counters.
    pub(crate) fn open(&self, file: VirtualFile, report: impl FnOnce() -> Value) -> Result<u64, Errno> {
        let opened = match file {
            VirtualFile::Stats => {
                let lines = forebay_metrics::lines(&report());
                let text: String = lines.iter().map(|(name, value)| format!("{name} {value}\n")).collect();
                Opened::Text(text.into_bytes().into())
            }
            VirtualFile::StatsJson => Opened::Text(format!("{}\n", report()).into_bytes().into()),
            VirtualFile::AccessLog => Opened::Log(self.log.open().ok_or(Errno::EMFILE)?),
        };
        let Some(handle) = self.handles.insert(opened.clone()) else {
            self.closed(&opened);
            return Err(Errno::EMFILE);
        };
        self.journal.append(|| Record::Virtual { handle, file: opened.handed() });
        Ok(handle)
    }

    /// What a handle stands for.
    pub(crate) fn opened(&self, handle: u64) -> Option<Opened> {
        self.handles.with(handle, Opened::clone)
    }

    /// The handle is closed.
    pub(crate) fn release(&self, handle: u64) {
        if let Some(opened) = self.opened(handle) {
            self.closed(&opened);
        }
        // Before its slot is another one's.
        self.journal.append(|| Record::VirtualClosed { handle });
        self.handles.remove(handle);
    }

    fn closed(&self, opened: &Opened) {
        if let Opened::Log(reader) = opened {
            self.log.close(reader);
        }
    }
}

/// The part of `text` that a read at `offset` gets.
pub(crate) fn part(text: &[u8], offset: u64, size: u32) -> &[u8] {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
    &text[start..text.len().min(start.saturating_add(size as usize))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_and_a_number_of_its_own() {
        for file in VirtualFile::ALL {
            assert_eq!(VirtualFile::named(file.name().as_bytes()), Some(file));
            assert_eq!(VirtualFile::at(file.ino()), Some(file));
            assert!(file.ino() > ROOT && file.ino() <= LAST_RESERVED);
        }
        assert_eq!((VirtualFile::named(b"stats"), VirtualFile::named(b".stats2")), (None, None));
        assert_eq!(
            (VirtualFile::at(ROOT), VirtualFile::at(LAST_RESERVED), VirtualFile::at(1 << 40)),
            (None, None, None)
        );
    }

    #[test]
    fn what_is_read_is_what_was_opened_and_nothing_beyond_its_end() {
        let files = VirtualFiles::new();
        let handle = files.open(VirtualFile::Stats, || serde_json::json!({ "a": { "b": 1 } })).unwrap();
        let Some(Opened::Text(text)) = files.opened(handle) else { panic!("it is text") };
        assert_eq!(part(&text, 0, 100), b"a.b 1\n");
        assert_eq!(
            (part(&text, 4, 1), part(&text, 6, 1), part(&text, u64::MAX, u32::MAX)),
            (&b"1"[..], &b""[..], &b""[..])
        );
        files.release(handle);
        assert!(files.opened(handle).is_none());
    }

    #[test]
    fn what_is_open_stays_open_in_the_next_process() {
        let files = VirtualFiles::new();
        let text = files.open(VirtualFile::Stats, || serde_json::json!({ "a": 1 })).unwrap();
        let log = files.open(VirtualFile::AccessLog, || Value::Null).unwrap();
        let files = VirtualFiles::restored(files.handed());
        let Some(Opened::Text(shown)) = files.opened(text) else { panic!("it is text") };
        assert_eq!(&*shown, b"a 1\n");
        assert!(matches!(files.opened(log), Some(Opened::Log(_))));
        files.release(log);
        assert!(files.opened(log).is_none());
    }
}
