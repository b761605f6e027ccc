//! Measuring the cells of a matrix: the files of one size at a time.
//!
//! For each size the files are written, once, through a mount, and each read once by every way with every byte checked: that fills
//! the worker's memory. Then the measurements follow each other, each with mounts of its own. The files go, and the worker
//! with them, before the next size.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use forebay_benchmark::posix::run::MountPoint;
use forebay_benchmark::read::differences::WrongFiles;
use forebay_benchmark::read::files::{self, Buffer};
use forebay_benchmark::read::{Batch, How, Kept, Step, file_name, remove_files, size, together};
use forebay_benchmark::record::{Cell, Compared, Finding, Level, Measured};

use super::carried::ChannelInUse;
use super::meter::Meter;
use super::place;
use super::plan::{By, Plan, Way, worker_memory};
use super::process::END_WITHIN;
use super::progress::{Bar, line};
use super::site::{Mount, Site, Transport};

/// A matrix that is being measured.
pub(super) struct Cells<'a> {
    /// The processes.
    pub(super) site: Site,
    /// What is to be measured.
    pub(super) plan: &'a Plan,
    /// What was measured.
    pub(super) kept: Kept,
    /// Set when it is to end.
    pub(super) stop: Arc<AtomicBool>,
    /// Shows the progress.
    pub(super) bar: Bar,
    /// Whether some could not be removed.
    pub(super) files_are_left: bool,
}

/// The files of one size, wherever they are to be read. They are removed before the mount that removes them goes.
struct Files {
    /// Directories in other file systems, by the number of the way.
    elsewhere: BTreeMap<usize, PathBuf>,
    /// The directory's path below a mount.
    below: PathBuf,
    count: u32,
    mount: Mount,
}

impl Files {
    /// The first `count`, below `root`.
    fn list(&self, root: &Path, count: u32) -> Vec<PathBuf> {
        let directory = root.join(&self.below);
        (0..count).map(|number| directory.join(file_name(number))).collect()
    }

    /// The first `count` in the other file system of this way.
    fn list_elsewhere(&self, way: usize, count: u32) -> Vec<PathBuf> {
        let files =
            |directory: &PathBuf| (0..count).map(|number| directory.join(file_name(number))).collect::<Vec<_>>();
        self.elsewhere.get(&way).map(files).unwrap_or_default()
    }

    fn directories(&self) -> impl Iterator<Item = PathBuf> + use<'_> {
        std::iter::once(self.mount.path().join(&self.below)).chain(self.elsewhere.values().cloned())
    }

    /// Removes what there is of them, wherever that is possible.
    fn remove(self) -> anyhow::Result<()> {
        let removed: Vec<anyhow::Result<()>> = self.directories().map(|directory| remove(&directory)).collect();
        removed.into_iter().collect()
    }
}

fn remove(directory: &Path) -> anyhow::Result<()> {
    remove_files(directory).with_context(|| format!("cannot remove {}", directory.display()))
}

impl Cells<'_> {
    /// Forgets rounds that were cut off: their measurements would be compared with those of another day.
    pub(super) fn keep_whole_rounds(&mut self) {
        let ways = self.plan.ways.len();
        if let Measured::Read { cells } = &mut self.kept.record.measured {
            let rounds = rounds(cells);
            cells.retain(|cell| rounds[&(cell.clients, cell.files, cell.file_bytes, cell.round)] == ways);
        }
        // They are made anew in the end, except what was met on the way.
        self.kept.record.findings.retain(|finding| [NOT_WARM, UNCHECKED].contains(&finding.rule.as_str()));
        self.kept.record.finished = false;
    }

    /// Writes down what this run is about to make, and removes what those before it have left.
    ///
    /// # Errors
    /// When that is impossible.
    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        let left = self.kept.made.clone();
        self.kept.made.push(self.site.made().clone());
        self.kept.save_made()?;
        if left.is_empty() {
            return Ok(());
        }
        self.bar.now("cleaning up after a run that was killed".to_owned());
        for made in &left {
            place::remove(&made.of_processes(), END_WITHIN)?;
            for (number, way) in self.plan.ways.iter().enumerate() {
                if let By::Directory(path) = &way.by {
                    remove(&path.join(made.of_files(number)))?;
                }
            }
        }
        // An origin in the directory of its processes has gone with it.
        if self.plan.origin.is_some() || !self.plan.workers.is_empty() {
            self.start_worker(0)?;
            let mount = self.site.writable()?;
            for made in &left {
                remove(&mount.path().join(&self.plan.below).join(made.of_files(IN_NAMESPACE)))?;
            }
            drop(mount);
            self.site.end_worker();
        }
        self.kept.made.retain(|made| made == self.site.made());
        Ok(self.kept.save_made()?)
    }

    /// Ends all processes, and removes what is left.
    ///
    /// # Errors
    /// When it cannot be written down what is not.
    pub(super) fn end(self) -> anyhow::Result<Kept> {
        let Self { site, mut kept, files_are_left, .. } = self;
        let made = site.made().clone();
        drop(site);
        if !files_are_left && std::fs::symlink_metadata(made.of_processes()).is_err() {
            kept.made.retain(|other| *other != made);
            kept.save_made()?;
        }
        Ok(kept)
    }

    /// Starts a worker with memory for files of so many bytes, unless there are some.
    fn start_worker(&mut self, bytes: u64) -> anyhow::Result<()> {
        if !self.plan.workers.is_empty() {
            return Ok(());
        }
        let origin = match &self.plan.origin {
            Some(origin) => origin.clone(),
            None => {
                std::fs::create_dir_all(self.site.origin()).context("cannot make a directory")?;
                format!("file://{}", self.site.origin().display())
            }
        };
        let by_mounts = |way: &Way| if let By::Mounts(transport) = way.by { Some(transport) } else { None };
        let with: Vec<Transport> = self.plan.ways.iter().filter_map(by_mounts).collect();
        self.site.start_worker(&origin, worker_memory(bytes), &with)
    }

    /// Measures what is left of a size.
    ///
    /// # Errors
    /// Whatever keeps it from being measured.
    pub(super) fn measure(&mut self, batch: &Batch) -> anyhow::Result<()> {
        let left: Vec<Step> = batch.steps.iter().copied().filter(|step| !self.is_measured(batch, step)).collect();
        self.bar.skip(batch.steps.len() - left.len());
        if left.is_empty() {
            return Ok(());
        }
        self.start_worker(batch.bytes())?;
        let files = self.make_directories(batch)?;
        let measured = self.measure_steps(&left, &files, batch);
        let removed = files.remove();
        self.files_are_left |= removed.is_err();
        self.site.end_worker();
        // What is told is what came first.
        measured.and(removed)
    }

    fn measure_steps(&mut self, steps: &[Step], files: &Files, batch: &Batch) -> anyhow::Result<()> {
        self.write(files, batch)?;
        // By which ways files are wrong tells what is: all are tried.
        let mut told = Vec::new();
        for (number, way) in self.plan.ways.iter().enumerate() {
            let wrong = self.read_once(number, files, batch)?.err();
            told.extend(wrong.map(|wrong| format!("over {}, {wrong}", way.name)));
        }
        anyhow::ensure!(told.is_empty(), "{}", told.join("\n"));
        let mut fetched = Some(0.0);
        let measured = steps.iter().try_for_each(|step| {
            self.site.unless_stopped()?;
            let before = self.site.fetched();
            let mut cell = self.cell(step, files, batch)?;
            let meanwhile = before.zip(self.site.fetched()).and_then(|(before, after)| after.since(&before));
            // Reads of another file system go through no worker.
            if matches!(self.plan.ways[step.way].by, By::Mounts(_)) {
                cell.origin_bytes = meanwhile.map(|bytes| bytes as u64);
                fetched = fetched.zip(meanwhile).map(|(all, bytes)| all + bytes);
            }
            self.kept.log(&line(&cell));
            self.bar.done(&cell);
            if let Measured::Read { cells } = &mut self.kept.record.measured {
                cells.push(cell);
            }
            Ok(self.kept.save()?)
        });
        // Also of those that were measured before an end that came early: a run that goes on keeps them.
        let own = self.plan.workers.is_empty();
        self.kept.record.findings.extend(warmth(batch, fetched, own));
        measured
    }

    fn is_measured(&self, batch: &Batch, step: &Step) -> bool {
        let Measured::Read { cells } = &self.kept.record.measured else { return false };
        let way = &self.plan.ways[step.way].name;
        cells.iter().any(|cell| {
            let shape = (cell.clients, cell.files, cell.file_bytes, cell.round);
            cell.transport == *way && shape == (step.clients, step.files, batch.file_bytes, step.round)
        })
    }

    /// Makes the directories of the files of a size.
    fn make_directories(&mut self, batch: &Batch) -> anyhow::Result<Files> {
        let (made, mount) = (self.site.made(), self.site.writable()?);
        let below = self.plan.below.join(made.of_files(IN_NAMESPACE));
        let ways = self.plan.ways.iter().enumerate();
        let elsewhere = ways.filter_map(|(number, way)| match &way.by {
            By::Directory(path) => Some((number, path.join(made.of_files(number)))),
            By::Mounts(_) => None,
        });
        let files = Files { elsewhere: elsewhere.collect(), below, count: batch.files, mount };
        let make = |directory: PathBuf| {
            std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))
        };
        let made = files.directories().try_for_each(make);
        if let Err(error) = made {
            self.files_are_left |= files.remove().is_err();
            return Err(error);
        }
        Ok(files)
    }

    /// Writes the files of a size.
    fn write(&self, files: &Files, batch: &Batch) -> anyhow::Result<()> {
        self.bar.now(format!("writing {} of {}", batch.files, size(batch.file_bytes)));
        let mut buffer = Buffer::new(self.plan.how.buffer);
        for directory in files.directories() {
            for number in 0..batch.files {
                let path = directory.join(file_name(number));
                files::write(&path, batch.file_bytes, false, &mut buffer, &self.stop)?;
            }
        }
        Ok(())
    }

    /// Reads every file once, with every byte checked.
    fn read_once(&self, way: usize, files: &Files, batch: &Batch) -> anyhow::Result<Result<(), WrongFiles>> {
        let name = &self.plan.ways[way].name;
        self.bar.now(format!("checking {} of {} over {name}", files.count, size(batch.file_bytes)));
        let mounts = self.mounts(way, 1)?;
        let list = self.lists(way, &mounts, files, 1, files.count);
        let how = How { check: true, ..self.plan.how };
        let (read, ..) = together(&list, Some(batch.file_bytes), how, &self.stop, || ())?;
        Ok(read.right(&list))
    }

    fn mounts(&self, way: usize, clients: u32) -> anyhow::Result<Vec<Mount>> {
        match &self.plan.ways[way].by {
            By::Mounts(transport) => self.site.mounts(clients, *transport),
            By::Directory(_) => Ok(Vec::new()),
        }
    }

    /// What each client reads.
    fn lists(&self, way: usize, mounts: &[Mount], files: &Files, clients: u32, count: u32) -> Vec<Vec<PathBuf>> {
        match &self.plan.ways[way].by {
            By::Mounts(_) => mounts.iter().map(|mount| files.list(mount.path(), count)).collect(),
            By::Directory(_) => vec![files.list_elsewhere(way, count); clients as usize],
        }
    }

    /// One measurement.
    fn cell(&self, step: &Step, files: &Files, batch: &Batch) -> anyhow::Result<Cell> {
        let way = &self.plan.ways[step.way];
        let (clients, count) = (step.clients, step.files);
        self.bar.now(format!("{clients} × {count} of {} over {}", size(batch.file_bytes), way.name));
        let mounts = self.mounts(step.way, clients)?;
        let lists = self.lists(step.way, &mounts, files, clients, count);
        let mut meter = Meter::new(&self.site, &mounts);
        let (read, before, after) =
            together(&lists, Some(batch.file_bytes), self.plan.how, &self.stop, || meter.read())?;
        read.right(&lists).with_context(|| format!("over {}", way.name))?;
        let (client_percent_seconds, worker_percent_seconds) = before.until(&after);
        let carried_by = match &way.by {
            By::Mounts(_) => {
                let mut carried = ChannelInUse::default();
                for mount in &mounts {
                    carried.add(&mount.counters()?, &mount.log());
                }
                carried.text()
            }
            By::Directory(path) => kind_of(path),
        };
        Ok(Cell {
            transport: way.name.clone(),
            carried_by,
            clients,
            files: count,
            file_bytes: batch.file_bytes,
            round: step.round,
            milliseconds_per_file: read.milliseconds_per_file(),
            seconds: read.took.as_secs_f64(),
            client_percent_seconds,
            worker_percent_seconds,
            checked: self.plan.how.check,
            compared: if self.plan.how.check { Compared::While } else { Compared::Before },
            origin_bytes: None,
            not_counted: Vec::new(),
        })
    }
}

/// The number of the directory in the namespace, where the first way reads; the others have those of their ways.
const IN_NAMESPACE: usize = 0;
/// The rules of findings that are made on the way.
const NOT_WARM: &str = "not-warm";
const UNCHECKED: &str = "not-checked";

/// Whether the files were in memory, by what workers, our own or others', fetched from their origins meanwhile.
fn warmth(batch: &Batch, fetched: Option<f64>, own: bool) -> Option<Finding> {
    let of = size(batch.file_bytes);
    let next = |text: &str| Some(text.to_owned());
    let (rule, level, text, next) = match (fetched, own) {
        (Some(..=0.0), _) => return None,
        (None, _) => (
            UNCHECKED,
            Level::Info,
            format!("Whether files of {of} were all in memory was not checked: not every worker said what it fetched."),
            next("`forebay stats --workers HOST:PORT --all` says why"),
        ),
        (Some(bytes), true) => (
            NOT_WARM,
            Level::Warn,
            format!(
                "While files of {of} were measured the worker fetched {} from its origin: they were not all in its memory.",
                size(bytes as u64)
            ),
            next("measure smaller files: --scale"),
        ),
        (Some(bytes), false) => (
            NOT_WARM,
            Level::Warn,
            format!(
                "While files of {of} were measured the workers fetched {} from their origins: either the files were not all in \
                 their memory, or somebody else read other files.",
                size(bytes as u64)
            ),
            next("measure smaller files (--scale), or when nobody else uses the workers"),
        ),
    };
    Some(Finding { rule: rule.to_owned(), level, text, next })
}

/// The type of a file system that is compared with.
fn kind_of(path: &Path) -> String {
    MountPoint::around(path).map_or_else(|| path.display().to_string(), |mounted| mounted.kind)
}

/// Cells by what tells them apart.
fn rounds(cells: &[Cell]) -> HashMap<(u32, u32, u64, u32), usize> {
    let mut rounds = HashMap::new();
    for cell in cells {
        *rounds.entry((cell.clients, cell.files, cell.file_bytes, cell.round)).or_default() += 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_fetched_is_told_and_what_they_did_not_say_too() {
        let batch = Batch { file_bytes: 5_000_000, files: 1, steps: Vec::new() };
        let rule = |fetched, own| warmth(&batch, fetched, own).map(|finding| finding.rule);
        assert_eq!((rule(Some(0.0), true), rule(Some(0.0), false)), (None, None));
        assert_eq!(rule(None, false).as_deref(), Some(UNCHECKED));
        assert_eq!(rule(Some(1.0), true).as_deref(), Some(NOT_WARM));
        let text = warmth(&batch, Some(2e6), false).unwrap().text;
        assert!(text.contains("5 MB") && text.contains("2 MB") && text.contains("somebody else"), "{text}");
    }
}
