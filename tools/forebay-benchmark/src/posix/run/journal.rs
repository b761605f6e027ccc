//! The directory of a run: what it has measured so far, in a form that survives it.
//!
//! ```text
//! record.json   all of it, written anew after every step: to a new file, synced, and renamed over the old one
//! made.json     which files and directories the run has made where it measures, written before they are
//! run.log       what was told, and fio's command lines
//! fio/NNN.json  what fio itself said of each step; NNN.fio is its job file, where it had one
//! load.csv      what else this machine did: a line before each step, and one for each second of it
//! report.html, steps.csv
//! ```
//!
//! A run that ended early goes on in the same directory, if it is asked the same question: other settings would make a record
//! of which no half can be compared with the other.
//!
//! The directory may be used for other things, too. What a run has not made there it neither writes to nor removes: a
//! directory that holds a file by one of these names and no record is refused. And as files are removed by what
//! `made.json` says, it is believed only beside its record, from ourselves, and of what a run makes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::RunError;
use super::processors::{Load, Sample};
use crate::record::{FORMAT, Measured, Record, Step};
use crate::report;

const RECORD: &str = "record.json";
const MADE: &str = "made.json";
const LOG: &str = "run.log";
const LOAD: &str = "load.csv";
const OF_FIO: &str = "fio";
/// What a run writes beside its record and its log.
const OTHERS: [&str; 5] = [MADE, "report.html", "steps.csv", LOAD, OF_FIO];

/// How far apart samples of the load are.
const SAMPLED: Duration = Duration::from_secs(1);

/// A name for the directory of a run that begins now: `forebay-bench-20260131-235959`.
#[must_use]
pub fn default_output() -> PathBuf {
    chrono::Local::now().format("forebay-bench-%Y%m%d-%H%M%S").to_string().into()
}

/// What a run has made where it measures. What is not in it is not the run's to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    /// In the order in which they were made.
    pub(super) directories: Vec<PathBuf>,
    pub(super) files: Vec<PathBuf>,
}

/// A run's directory. While this lives, no other run has it.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
    log: Locked,
    /// What this run, and no earlier one, began here.
    begun: Begun,
    pub(super) record: Record,
    pub(super) made: Made,
}

/// A file that is locked for as long as this lives. Given up by hand: processes that were being started meanwhile have the file
/// open for a moment longer.
#[derive(Debug)]
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// What is to be taken away again, if the run cannot begin.
#[derive(Clone, Copy, Debug)]
struct Begun {
    directory: bool,
    record: bool,
}

impl Journal {
    /// Begins a run, or goes on with the one that is there. `fresh` is a record without steps; `places` are those where a run
    /// makes something.
    pub(super) fn open(directory: &Path, fresh: Record, places: &BTreeSet<PathBuf>) -> Result<Self, RunError> {
        let new_directory = !directory.exists();
        std::fs::create_dir_all(directory).map_err(RunError::io("make", directory))?;
        // fio runs elsewhere, and is told where its job files are.
        let directory = directory.canonicalize().map_err(RunError::io("resolve", directory))?;
        let path = directory.join(LOG);
        // Looked at before it is made, and judged once it is locked: then no other process is making one.
        let had_log = path.symlink_metadata().is_ok();
        if !had_log {
            is_free(&directory, &OTHERS)?;
            kept(&directory.join(RECORD))?;
        }
        let log = OpenOptions::new().create(true).append(true).open(&path).map_err(RunError::io("open", &path))?;
        let log = match rustix::fs::flock(&log, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Locked(log),
            Err(Errno::WOULDBLOCK) => return Err(RunError::InUse(directory)),
            Err(error) => return Err(RunError::io("lock", &path)(error.into())),
        };
        let kept = kept(&directory.join(RECORD))?;
        let new_record = kept.is_none();
        if had_log {
            is_free(&directory, &[LOG])?;
        }
        let record = match kept {
            Some(record) => going_on(record, fresh, &directory)?,
            None => fresh,
        };
        let made = made(&directory.join(MADE), places)?;
        let of_fio = directory.join(OF_FIO);
        std::fs::create_dir_all(&of_fio).map_err(RunError::io("make", &of_fio))?;
        Ok(Self { directory, log, begun: Begun { directory: new_directory, record: new_record }, record, made })
    }

    /// Where it is.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The steps that were measured.
    pub(super) fn steps(&self) -> &[Step] {
        match &self.record.measured {
            Measured::Posix { steps, .. } => steps,
            Measured::Read { .. } => &[],
        }
    }

    /// Adds a step, for good.
    pub(super) fn add(&mut self, step: Step) -> Result<(), RunError> {
        if let Measured::Posix { steps, .. } = &mut self.record.measured {
            steps.push(step);
        }
        self.save()
    }

    /// Writes the record.
    pub(super) fn save(&self) -> Result<(), RunError> {
        self.replace(RECORD, &serde_json::to_vec_pretty(&self.record).unwrap_or_default())
    }

    /// Writes down what is about to be made, and what has been removed.
    pub(super) fn save_made(&self) -> Result<(), RunError> {
        self.replace(MADE, &serde_json::to_vec_pretty(&self.made).unwrap_or_default())
    }

    /// Writes the report and the table of what there is.
    pub(super) fn publish(&self) -> Result<(), RunError> {
        self.replace("report.html", report::html(&self.record).as_bytes())?;
        self.replace("steps.csv", report::csv(&self.record).as_bytes())
    }

    /// Leaves nothing of a run that could not begin: a user who mends what was wrong and tries again has one directory,
    /// and not one for each try. One in which something was measured, or is still to be removed, stays; so does what
    /// was there before.
    pub(super) fn withdraw(&self) {
        if !self.begun.record || !self.steps().is_empty() || self.made != Made::default() {
            return;
        }
        // Else these names were free when this run began, and are its own. The record last: what is left without it is refused.
        for name in [MADE, LOG, RECORD] {
            let _ = std::fs::remove_file(self.directory.join(name));
        }
        // Not when there is anything else.
        let _ = std::fs::remove_dir(self.directory.join(OF_FIO));
        if self.begun.directory {
            let _ = std::fs::remove_dir(&self.directory);
        }
    }

    /// The place of something that fio said or is told in step `number`.
    pub(super) fn of_fio(&self, number: usize, extension: &str) -> PathBuf {
        self.directory.join(OF_FIO).join(format!("{number:03}.{extension}"))
    }

    /// Adds what this machine's processors did before step `number`, and during it.
    pub(super) fn keep_load(&self, number: usize, before: Option<Load>, during: &[Sample]) -> Result<(), RunError> {
        let path = self.directory.join(LOAD);
        let mut lines =
            if path.exists() { String::new() } else { "time,step,phase,busy_percent,stolen_percent\r\n".to_owned() };
        let now = chrono::Utc::now();
        let mut line = |ago: Duration, phase: &str, load: Load| {
            let time = (now - ago).to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
            lines.push_str(&format!("{time},{number},{phase},{:.1},{:.1}\r\n", load.busy, load.stolen));
        };
        let looked = during.first().map_or(Duration::ZERO, |first| first.ago);
        before.into_iter().for_each(|load| line(looked + SAMPLED, "before", load));
        during.iter().for_each(|sample| line(sample.ago, "reading", sample.load));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(lines.as_bytes())).map_err(RunError::io("write", &path))
    }

    /// Adds lines to the log. A log that cannot be written, as on a full disk, ends no run: the record will.
    pub(super) fn log(&self, text: &str) {
        let now = chrono::Local::now().format("%Y-%m-%d %H:%M:%S");
        let lines: String = text.lines().map(|line| format!("{now} {line}\n")).collect();
        let _ = (&self.log.0).write_all(lines.as_bytes());
    }

    /// Puts a file in the place of another, so that there is always a whole one, also when the machine goes down.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), RunError> {
        let (path, unfinished) = (self.directory.join(name), self.directory.join(format!(".{name}.new")));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&unfinished)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(RunError::io("write", &path))
    }
}

/// Whether nothing is there by these names.
fn is_free(directory: &Path, names: &[&str]) -> Result<(), RunError> {
    let record = directory.join(RECORD);
    let taken = |name: &&&str| directory.join(name).symlink_metadata().is_ok();
    // Of a directory with a record all of them are the run's.
    match names.iter().find(taken) {
        Some(name) if record.symlink_metadata().is_err() => Err(RunError::OtherRun(format!(
            "{} holds `{name}` and no {RECORD}, so that it is no run's to write to; give another --output",
            directory.display()
        ))),
        _ => Ok(()),
    }
}

fn kept(path: &Path) -> Result<Option<Record>, RunError> {
    if !path.exists() {
        return Ok(None);
    }
    report::load(path).map(Some).map_err(|error| {
        RunError::OtherRun(format!("this run cannot go on in {}: {error}; give another --output", path.display()))
    })
}

/// What earlier runs here have made, by their own word.
fn made(path: &Path, places: &BTreeSet<PathBuf>) -> Result<Made, RunError> {
    let refused = |what: String| {
        let next = "look at it, remove what is yours, and give another --output";
        Err(RunError::OtherRun(format!("{} {what}; {next}", path.display())))
    };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Made::default()),
        Err(error) => return Err(RunError::io("open", path)(error)),
    };
    let mut bytes = Vec::new();
    let owner = file.metadata().map(|metadata| metadata.uid());
    let owner = owner.and_then(|owner| file.read_to_end(&mut bytes).map(|_| owner));
    if owner.map_err(RunError::io("read", path))? != rustix::process::geteuid().as_raw() {
        return refused("says what is to be removed, and was written by another user".to_owned());
    }
    let made: Made = match serde_json::from_slice(&bytes) {
        Ok(made) => made,
        Err(error) => return refused(format!("is damaged ({error})")),
    };
    match made.directories.iter().chain(&made.files).find(|path| !places.contains(*path)) {
        Some(other) => refused(format!("names {}, which no run with these settings makes", other.display())),
        None => Ok(made),
    }
}

/// The record that was kept, if what is asked now is what was asked then, on the same machine.
fn going_on(kept: Record, fresh: Record, directory: &Path) -> Result<Record, RunError> {
    let other = |what: String| {
        let next = "give the same settings to go on with it, or another --output to begin anew";
        Err(RunError::OtherRun(format!("{} holds another run: {what}; {next}", directory.display())))
    };
    debug_assert!(kept.format <= FORMAT);
    let (Measured::Posix { targets: then, .. }, Measured::Posix { targets: now, .. }) =
        (&kept.measured, &fresh.measured)
    else {
        return other("of another benchmark".to_owned());
    };
    let differences = differences(&kept.settings, &fresh.settings);
    if !differences.is_empty() {
        return other(differences.join(", "));
    }
    if then != now {
        return other("of other directories".to_owned());
    }
    if kept.machine.host != fresh.machine.host {
        return other(format!("of the machine {}", kept.machine.host));
    }
    Ok(kept)
}

fn differences(then: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let names: std::collections::BTreeSet<&String> = then.keys().chain(now.keys()).collect();
    let shown = |value: Option<&String>| value.map_or("nothing".to_owned(), |value| format!("`{value}`"));
    let differ = names.into_iter().filter(|name| then.get(*name) != now.get(*name));
    differ.map(|name| format!("--{name} was {}, not {}", shown(then.get(name)), shown(now.get(name)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Access, CacheState, Case, Layout, Machine, Outcome, Pattern, Target};

    fn fresh(jobs: &str) -> Record {
        let target = Target {
            name: "forebay".into(),
            path: "/mnt".into(),
            file_system: "fuse.forebay".into(),
            cache: "forebay job load".into(),
            cold_is_memory: None,
        };
        Record {
            format: FORMAT,
            version: "0".into(),
            begun: "2026-01-01T00:00:00Z".into(),
            finished: false,
            machine: Machine { host: "h".into(), ..Machine::default() },
            settings: BTreeMap::from([("numjobs".to_owned(), jobs.to_owned())]),
            measured: Measured::Posix { targets: vec![target], steps: Vec::new() },
            findings: Vec::new(),
        }
    }

    fn step() -> Step {
        let case = Case {
            target: "forebay".into(),
            state: CacheState::Warm,
            layout: Layout::Single,
            pattern: Pattern::Shared,
            access: Access::Sequential,
            block_bytes: 1 << 20,
            jobs: 1,
            depth: 1,
            clients: 1,
            workers: 1,
        };
        Step { case, round: 0, outcome: Outcome { bytes: 7, ..Outcome::default() } }
    }

    fn open(output: &Path, record: Record) -> Result<Journal, RunError> {
        Journal::open(output, record, &BTreeSet::from(["/mnt/forebay-bench/single/single".into()]))
    }

    #[test]
    fn a_run_goes_on_where_it_ended_and_only_with_the_same_settings() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("a/b");
        let mut journal = open(&output, fresh("1,2")).unwrap();
        assert_eq!(journal.steps().len(), 0);
        let other = open(&output, fresh("1,2")).unwrap_err();
        assert!(matches!(other, RunError::InUse(_)), "{other}");
        journal.add(step()).unwrap();
        journal.made.files.push("/mnt/forebay-bench/single/single".into());
        journal.save_made().unwrap();
        journal.log("two\nlines");
        drop(journal);
        let told = open(&output, fresh("1,4")).unwrap_err().to_string();
        assert!(told.contains("--numjobs was `1,2`, not `1,4`; give the same settings"), "{told}");
        let mut elsewhere = fresh("1,2");
        elsewhere.machine.host = "g".into();
        assert!(open(&output, elsewhere).unwrap_err().to_string().contains("of the machine h"));
        let journal = open(&output, fresh("1,2")).unwrap();
        assert_eq!(journal.steps(), [step()]);
        assert_eq!(journal.made.files, [PathBuf::from("/mnt/forebay-bench/single/single")]);
        journal.publish().unwrap();
        let names: Vec<_> = ["record.json", "made.json", "report.html", "steps.csv", "run.log", "fio"].into();
        for name in &names {
            assert!(output.join(name).exists(), "{name}");
        }
        assert_eq!(std::fs::read_dir(&output).unwrap().count(), names.len(), "nothing unfinished is left");
        let log = std::fs::read_to_string(output.join("run.log")).unwrap();
        assert!(log.lines().next().unwrap().ends_with(" two") && log.lines().count() == 2, "{log}");
    }

    #[test]
    fn a_run_that_could_not_begin_leaves_no_directory() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("a");
        let mut journal = open(&output, fresh("1")).unwrap();
        journal.save().unwrap();
        journal.withdraw();
        assert!(!output.exists());
        drop(journal);
        journal = open(&output, fresh("1")).unwrap();
        journal.add(step()).unwrap();
        journal.withdraw();
        assert!(output.join(RECORD).exists());
    }

    #[test]
    fn a_record_that_is_damaged_or_newer_is_not_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(RECORD);
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(open(directory.path(), fresh("1")), Err(RunError::OtherRun(_))));
        let newer = Record { format: FORMAT + 1, version: "9.9".into(), ..fresh("1") };
        std::fs::write(&path, serde_json::to_vec(&newer).unwrap()).unwrap();
        let told = open(directory.path(), fresh("1")).unwrap_err().to_string();
        assert!(told.contains("9.9"), "{told}");
    }

    #[test]
    fn what_was_in_the_directory_before_is_neither_written_to_nor_removed() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path();
        for name in [LOG, MADE, "report.html", "steps.csv"] {
            std::fs::write(output.join(name), "precious").unwrap();
            let told = open(output, fresh("1")).unwrap_err().to_string();
            assert!(told.contains(&format!("holds `{name}` and no record.json")), "{told}");
            assert_eq!(std::fs::read_to_string(output.join(name)).unwrap(), "precious");
            std::fs::remove_file(output.join(name)).unwrap();
        }
        std::fs::write(output.join("notes"), "precious").unwrap();
        let journal = open(output, fresh("1")).unwrap();
        journal.save().unwrap();
        journal.withdraw();
        let names: Vec<_> = std::fs::read_dir(output).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["notes"]);
        std::fs::remove_file(output.join("notes")).unwrap();
        open(output, fresh("1")).unwrap().withdraw();
        assert!(output.is_dir(), "it was there before");
        // A run that was here before is not taken away by one that goes on with it.
        let journal = open(output, fresh("1")).unwrap();
        journal.save().unwrap();
        drop(journal);
        open(output, fresh("1")).unwrap().withdraw();
        assert!(output.join(RECORD).exists() && output.join(LOG).exists());
    }

    #[test]
    fn a_list_of_what_was_made_is_believed_of_what_a_run_makes_and_from_ourselves_only() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path();
        open(output, fresh("1")).unwrap().save().unwrap();
        let path = output.join(MADE);
        let list = |name: &str| format!(r#"{{"directories": [], "files": ["{name}"]}}"#);
        for name in ["/etc/passwd", "/mnt/forebay-bench/single/../../x", "/mnt/forebay-bench/single", "single"] {
            std::fs::write(&path, list(name)).unwrap();
            let told = open(output, fresh("1")).unwrap_err().to_string();
            assert!(told.contains(&format!("names {name}, which no run")), "{told}");
        }
        std::fs::write(&path, list("/mnt/forebay-bench/single/single")).unwrap();
        assert_eq!(open(output, fresh("1")).unwrap().made.files.len(), 1);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1), None).unwrap();
            let told = open(output, fresh("1")).unwrap_err().to_string();
            assert!(told.contains("was written by another user"), "{told}");
        }
    }
}
