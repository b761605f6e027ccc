//! A record on disk, as it is while a benchmark runs: whole after every measurement, so that a run that was cut off can go on.
//!
//! Beside it is `run.log`, which says what was done when; its lock keeps a second run out of the directory. `made.json` is there
//! as long as something is elsewhere that the run has made: see [`Made`].

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::made::Made;
use crate::record::Record;
use crate::report::{self, RecordError};

/// The record's name in the directory of a run, where [`report::load`] looks for it.
const FILE: &str = "record.json";
/// What was made elsewhere.
const MADE: &str = "made.json";
/// The log's.
const LOG: &str = "run.log";

/// A record and the directory that it is kept in.
#[derive(Debug)]
pub struct Kept {
    directory: PathBuf,
    /// Locked.
    log: File,
    /// What was measured so far.
    pub record: Record,
    /// What this run, and what of those before it is left, have made elsewhere.
    pub made: Vec<Made>,
    /// Whether there was one already.
    pub resumed: bool,
}

/// Why a record cannot be kept there.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The system refused.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// `make`, `write`, `lock`.
        doing: &'static str,
        /// What.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// What is there cannot be gone on with.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Something says what is to be removed, and no run of ours has written it.
    #[error("{} was not written by a run that is kept there: {why}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What tells.
        why: &'static str,
    },
    /// Another run has it.
    #[error("another run is writing to {}", .0.display())]
    InUse(PathBuf),
    /// Something else was measured there.
    #[error("{} holds a run with other settings: {what}", directory.display())]
    Other {
        /// Where.
        directory: PathBuf,
        /// The first difference.
        what: String,
    },
}

impl Kept {
    /// Keeps `fresh` in `directory`, which is made if need be; or goes on with what is there, when it was measured with the same
    /// settings.
    ///
    /// # Errors
    /// [`KeepError`].
    pub fn open(directory: &Path, fresh: Record) -> Result<Self, KeepError> {
        let failed = |doing, path: &Path, error| KeepError::Io { doing, path: path.to_owned(), error };
        std::fs::create_dir_all(directory).map_err(|error| failed("make", directory, error))?;
        let path = directory.join(LOG);
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.map_err(|error| failed("write", &path, error))?;
        match rustix::fs::flock(&log, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(KeepError::InUse(directory.to_owned())),
            Err(error) => return Err(failed("lock", &path, error.into())),
        }
        let (path, made) = (directory.join(FILE), directory.join(MADE));
        if !path.exists() {
            if made.symlink_metadata().is_ok() {
                return Err(KeepError::Foreign { path: made, why: "there is no record beside it" });
            }
            let kept = Self { directory: directory.to_owned(), log, record: fresh, made: Vec::new(), resumed: false };
            kept.save()?;
            return Ok(kept);
        }
        let record = report::load(&path)?;
        if let Some(what) = difference(&record, &fresh) {
            return Err(KeepError::Other { directory: directory.to_owned(), what });
        }
        let made = left(&made)?;
        Ok(Self { directory: directory.to_owned(), log, record, made, resumed: true })
    }

    /// Adds a line to the log. A log that cannot be written ends no run: the record that cannot does.
    pub fn log(&self, line: &str) {
        let now = chrono::Local::now().format("%Y-%m-%d %H:%M:%S");
        let _ = (&self.log).write_all(format!("{now} {line}\n").as_bytes());
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes the record: either the whole of it is there afterwards, or the one before.
    ///
    /// # Errors
    /// [`KeepError::Io`].
    pub fn save(&self) -> Result<(), KeepError> {
        let text = serde_json::to_vec_pretty(&self.record);
        let text = text.map_err(|error| self.failed("write", FILE, error.into()))?;
        self.put(FILE, &text)
    }

    /// Writes down what is about to be made elsewhere, and what has been removed.
    ///
    /// # Errors
    /// [`KeepError::Io`].
    pub fn save_made(&self) -> Result<(), KeepError> {
        if self.made.is_empty() {
            return match std::fs::remove_file(self.directory.join(MADE)) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed("remove", MADE, error)),
                _ => Ok(()),
            };
        }
        let text = serde_json::to_vec_pretty(&self.made);
        let text = text.map_err(|error| self.failed("write", MADE, error.into()))?;
        self.put(MADE, &text)
    }

    /// Writes another file of the run, whole or not at all.
    ///
    /// # Errors
    /// [`KeepError::Io`].
    pub fn put(&self, name: &str, text: &[u8]) -> Result<(), KeepError> {
        let (path, unfinished) = (self.directory.join(name), self.directory.join(format!(".{name}.new")));
        let write = || {
            let mut file = std::fs::File::create(&unfinished)?;
            file.write_all(text)?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)
        };
        write().map_err(|error| self.failed("write", name, error))
    }

    fn failed(&self, doing: &'static str, name: &str, error: std::io::Error) -> KeepError {
        KeepError::Io { doing, path: self.directory.join(name), error }
    }
}

/// What earlier runs have left. All of it is to be removed, so the list must be a file of this user's own.
fn left(path: &Path) -> Result<Vec<Made>, KeepError> {
    let foreign = |why| KeepError::Foreign { path: path.to_owned(), why };
    let failed = |error| KeepError::Io { doing: "read", path: path.to_owned(), error };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.is_file() => return Err(foreign("it is no regular file")),
        Ok(found) if found.uid() != rustix::process::geteuid().as_raw() => return Err(foreign("it is another user's")),
        Ok(_) => {}
    }
    let text = std::fs::read(path).map_err(failed)?;
    let made: Vec<Made> = serde_json::from_slice(&text).map_err(|_| foreign("it is not what a run writes"))?;
    match made.iter().all(Made::is_ours) {
        true => Ok(made),
        false => Err(foreign("it names what no run makes")),
    }
}

/// What differs in the settings, in words.
fn difference(there: &Record, asked: &Record) -> Option<String> {
    if std::mem::discriminant(&there.measured) != std::mem::discriminant(&asked.measured) {
        return Some("it is another benchmark".to_owned());
    }
    let names = there.settings.keys().chain(asked.settings.keys());
    let changed = |name: &&String| there.settings.get(*name) != asked.settings.get(*name);
    let name = names.into_iter().find(changed)?;
    let value =
        |record: &Record| record.settings.get(name).map_or_else(|| "unset".to_owned(), |value| format!("`{value}`"));
    Some(format!("{name} was {} and is {} now", value(there), value(asked)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::statistics::tests::cell;
    use super::*;
    use crate::record::{FORMAT, Machine, Measured};

    fn fresh(scale: &str) -> Record {
        Record {
            format: FORMAT,
            version: "0.1.0".to_owned(),
            begun: "2026-01-01T00:00:00Z".to_owned(),
            finished: false,
            machine: Machine::default(),
            settings: BTreeMap::from([("scale".to_owned(), scale.to_owned())]),
            measured: Measured::Read { cells: Vec::new() },
            findings: Vec::new(),
        }
    }

    #[test]
    fn a_run_goes_on_where_it_was_cut_off_unless_its_settings_changed() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("run");
        let mut kept = Kept::open(&directory, fresh("1")).unwrap();
        assert!(!kept.resumed);
        kept.record.measured = Measured::Read { cells: vec![cell("tcp", 1.5)] };
        kept.save().unwrap();
        assert!(matches!(Kept::open(&directory, fresh("1")), Err(KeepError::InUse(_))), "two runs in one directory");
        let measured = kept.record.clone();
        drop(kept);
        let again = Kept::open(&directory, fresh("1")).unwrap();
        assert!(again.resumed);
        assert_eq!(again.record, measured);
        drop(again);
        let error = Kept::open(&directory, fresh("0.5")).unwrap_err();
        assert!(error.to_string().contains("scale was `1` and is `0.5` now"), "{error}");
        let posix = Record { measured: Measured::Posix { targets: Vec::new(), steps: Vec::new() }, ..fresh("1") };
        assert!(Kept::open(&directory, posix).unwrap_err().to_string().contains("another benchmark"));
    }

    #[test]
    fn what_a_run_has_made_is_known_to_the_next_and_what_somebody_else_has_written_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let made = root.path().join(MADE);
        std::fs::write(&made, "[]").unwrap();
        let error = Kept::open(root.path(), fresh("1")).unwrap_err();
        assert!(matches!(error, KeepError::Foreign { .. }), "{error}");
        std::fs::remove_file(&made).unwrap();
        let mut kept = Kept::open(root.path(), fresh("1")).unwrap();
        kept.made = vec![Made { name: "forebay-bench-a1B2c3".to_owned(), temporary: "/tmp".into() }];
        kept.save_made().unwrap();
        let expected = kept.made.clone();
        drop(kept);
        let mut again = Kept::open(root.path(), fresh("1")).unwrap();
        assert_eq!(again.made, expected);
        again.made.clear();
        again.save_made().unwrap();
        again.save_made().unwrap();
        drop(again);
        assert!(!made.exists());
        for wrong in ["{", r#"[{"name": "precious", "temporary": "/home"}]"#] {
            std::fs::write(&made, wrong).unwrap();
            let error = Kept::open(root.path(), fresh("1")).unwrap_err();
            assert!(matches!(error, KeepError::Foreign { .. }), "{error}");
        }
    }

    #[test]
    fn the_time_of_workers_that_did_not_say_is_read_back_as_unknown_and_shown_as_such() {
        let root = tempfile::tempdir().unwrap();
        let mut kept = Kept::open(root.path(), fresh("1")).unwrap();
        let unknown = crate::record::Cell { worker_percent_seconds: f64::NAN, ..cell("ucx", 1.0) };
        kept.record.measured = Measured::Read { cells: vec![cell("tcp", 1.0), unknown] };
        kept.save().unwrap();
        drop(kept);
        let record = Kept::open(root.path(), fresh("1")).unwrap().record;
        let Measured::Read { cells } = &record.measured else { panic!("another benchmark") };
        assert!(cells[1].worker_percent_seconds.is_nan() && cells[0].worker_percent_seconds == 1.0, "{cells:?}");
        assert!(![report::html(&record), report::csv(&record), report::text(&record)].concat().contains("NaN"));
    }

    #[test]
    fn what_is_no_record_is_left_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(FILE), "{}").unwrap();
        assert!(Kept::open(root.path(), fresh("1")).is_err());
        let newer = serde_json::to_vec(&Record { format: FORMAT + 1, version: "9".to_owned(), ..fresh("1") }).unwrap();
        std::fs::write(root.path().join(FILE), &newer).unwrap();
        let error = Kept::open(root.path(), fresh("1")).unwrap_err();
        assert!(error.to_string().contains("forebay 9"), "{error}");
        assert_eq!(std::fs::read(root.path().join(FILE)).unwrap(), newer);
    }
}
