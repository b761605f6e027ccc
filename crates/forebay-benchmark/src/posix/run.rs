//! The driver: what does the reading, writing and waiting that the rest of [`crate::posix`] only decides.
//!
//! ```text
//! prerequisites ─► data (fio writes it through the mount) ─► for each planned step:
//!     cache filled or emptied ─► page cache dropped ─► fio, with a deadline ─► record.json ─► past the knee? the next sweep
//! report ─► what was made is removed, and its room in the cache given back
//! ```
//!
//! A run takes hours, and must survive what happens in hours. The record is whole after every step, and the same command goes on
//! after the last one (`journal.rs`). Every fio has a deadline, and is ended by its number (`child.rs`). Who loses the terminal loses
//! nothing: nothing here fails when nobody listens. An interruption ends the fio under way, keeps the record and removes the data.
//!
//! * [`Fio`]: the program, its engines; [`serve()`]: its server on other machines, [`Host`]: these machines;
//! * [`Cache`]: the seam to what is measured: who knows a cache fills and empties it. [`AnyCache`] knows none;
//! * [`Progress`]: who waits; [`Stop`]: who wants it to end.

mod cache;
mod child;
mod data;
mod driver;
mod error;
mod fio;
mod hosts;
mod journal;
mod machine;
mod mounts;
mod neighbours;
mod page_cache;
mod prerequisites;
mod processors;
mod progress;
mod room;
mod serve;
mod stop;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use cache::{AnyCache, Cache, CachedFiles, Capacity, DIRECTORY_VARIABLE, device_of};
pub use data::DIRECTORY;
pub use error::{CacheError, RunError};
pub use fio::Fio;
pub use hosts::{Host, PORT, is_public, start_line};
pub use journal::default_output;
pub use machine::{Way, machine, machine_by};
pub use mounts::MountPoint;
pub use progress::Progress;
pub use room::{Room, Takes};
pub use serve::serve;
pub use stop::Stop;

use self::data::Data;
use self::driver::Driver;
use self::journal::Journal;
use super::settings::Settings;
use super::{job, plan};
use crate::record::{FORMAT, Layout, Machine, Measured, Record, State, Target};

/// A run that is to be made.
pub struct Run<'a> {
    /// The fio to make it with.
    pub fio: &'a Fio,
    /// What to measure.
    pub settings: Settings,
    /// Where, the directory of interest first; with names and paths of their own.
    pub targets: Vec<Measure>,
    /// The machines that read; none: this one.
    pub hosts: Vec<Host>,
    /// Workers that serve them; 0 where that is not known.
    pub workers: u32,
    /// This machine, with speeds that were given rather than found.
    pub machine: Machine,
    /// The way that the data takes, if that is known.
    pub way: Option<Way>,
    /// The version of the program.
    pub version: String,
    /// What else was asked for that makes results differ, by the names of the command line.
    pub more: BTreeMap<String, String>,
    /// The directory of the results.
    pub output: PathBuf,
    /// Leave the data, for another run.
    pub keep: bool,
    /// Measure all numbers of jobs, also past the knee.
    pub full_sweep: bool,
    /// Write at most so many bytes, of all targets together.
    pub budget: Option<u64>,
    /// More than so many bytes are not written without asking.
    pub asks_above: u64,
}

/// A directory that is to be measured.
pub struct Measure {
    /// Its name and place.
    pub target: Target,
    /// Its cache.
    pub cache: Box<dyn Cache>,
}

impl Run<'_> {
    /// Makes it, or goes on with it. The record, also when it was interrupted after a step: then it is not finished.
    ///
    /// # Errors
    /// [`RunError`]. What was measured until then is in [`Run::output`].
    pub fn run(self, progress: &mut dyn Progress, stop: &Stop) -> Result<Record, RunError> {
        self.settings.check().map_err(|error| RunError::Usage(error.to_string()))?;
        let places = self.targets.iter().map(|measure| Data::new(Path::new(&measure.target.path), &self.settings));
        let places = places.flat_map(|data| data.places()).collect();
        let journal = Journal::open(&self.output, self.fresh_record(), &places)?;
        Driver::new(self, journal, progress, stop).run()
    }

    /// What would be done, as lines to type: the preparation, and every step.
    ///
    /// # Errors
    /// When settings or paths are such that fio cannot be told.
    pub fn command_lines(&self) -> Result<Vec<String>, RunError> {
        let usage = |error: &dyn std::error::Error| RunError::Usage(error.to_string());
        self.settings.check().map_err(|error| usage(&error))?;
        let mut lines = Vec::new();
        for Measure { target, cache } in &self.targets {
            let data = Data::new(Path::new(&target.path), &self.settings);
            lines.push(format!("# {} ({}, {}): {}", target.name, target.path, target.file_system, cache.describe()));
            for layout in &self.settings.layouts {
                let commands = job::preparation(*layout, &data.directory(*layout), &self.settings, |_| true);
                lines.extend(commands.map_err(|error| usage(&error))?.iter().map(|command| command.line("")));
            }
        }
        let hosts = (!self.hosts.is_empty()).then(|| self.output.join("fio/hosts"));
        for (number, step) in self.planned().iter().enumerate() {
            let case = &step.case;
            let data = Data::new(&self.path_of(&case.target), &self.settings);
            let command = job::command(case, &data.directory(case.layout), &self.settings, hosts.as_deref());
            let command = command.map_err(|error| usage(&error))?;
            let job_file = self.output.join(format!("fio/{number:03}.fio"));
            lines.push(format!("# {}", driver::name_of(case)));
            // As a shell takes it: what is printed can be run.
            let text = command.job_file.as_ref().map(|text| text.trim_end());
            lines.extend(text.map(|text| format!("cat > {} <<'END'\n{text}\nEND", job_file.display())));
            lines.push(command.line(&job_file.to_string_lossy()));
        }
        Ok(lines)
    }

    /// The path of the target of that name.
    fn path_of(&self, name: &str) -> PathBuf {
        let target = self.targets.iter().find(|measure| measure.target.name == name);
        target.map(|measure| PathBuf::from(&measure.target.path)).unwrap_or_default()
    }

    /// All steps, without those that are cold of a cache that cannot be emptied.
    fn planned(&self) -> Vec<plan::Planned> {
        let names: Vec<String> = self.targets.iter().map(|measure| measure.target.name.clone()).collect();
        let clients = self.hosts.len().max(1) as u32;
        let mut planned = plan::plan(&self.settings, &names, clients, self.workers);
        let cannot = |name: &str| {
            let target = self.targets.iter().find(|measure| measure.target.name == name);
            target.is_some_and(|measure| measure.cache.cannot_empty().is_some())
        };
        planned.retain(|step| step.case.state != State::Cold || !cannot(&step.case.target));
        planned
    }

    fn fresh_record(&self) -> Record {
        let mut settings = self.settings.named();
        settings.extend(self.more.clone());
        settings.insert("full-sweep".to_owned(), self.full_sweep.to_string());
        settings.insert("workers".to_owned(), self.workers.to_string());
        if !self.hosts.is_empty() {
            let hosts: Vec<String> = self.hosts.iter().map(|host| host.address.to_string()).collect();
            settings.insert("clients".to_owned(), hosts.join(","));
        }
        let targets = self.targets.iter().map(|measure| measure.target.clone()).collect();
        Record {
            format: FORMAT,
            version: self.version.clone(),
            begun: chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            finished: false,
            machine: self.machine.clone(),
            settings,
            measured: Measured::Posix { targets, steps: Vec::new() },
            findings: Vec::new(),
        }
    }

    /// The layouts of some steps of a target.
    fn layouts_of(steps: &[plan::Planned], target: &str) -> Vec<Layout> {
        let mut layouts: Vec<Layout> =
            steps.iter().filter(|step| step.case.target == target).map(|step| step.case.layout).collect();
        layouts.sort_unstable();
        layouts.dedup();
        layouts
    }
}
