//! The driver: what does the reading, writing and waiting that the rest of [`crate::posix`] only decides.
//!
//! ```text
//! prerequisites ─► data (fio writes it through the mount) ─► for each planned step:
//!     cache filled or emptied ─► page cache dropped ─► fio, with a deadline ─► record.json ─► past the knee? the next sweep
//! report ─► what was made is removed, and its room in the cache given back
//! ```
//!
//! A run takes hours, and must survive what happens in hours. The record is whole after every step, and the same
//! command goes on after the last one (`journal.rs`). Every fio has a deadline, and is ended by its number
//! (`child.rs`). A lost terminal loses nothing: nothing here fails when its output is not read. An interruption ends
//! the fio under way, keeps the record and removes the data.
//!
//! * [`Run`]: what is to be measured;
//! * [`Fio`]: the program, its engines; [`serve()`]: its server on other machines, [`Host`]: these machines;
//! * [`Cache`]: the interface to what is measured: fills and empties a cache. [`AnyCache`] knows none;
//! * [`Progress`]: what is shown meanwhile; [`Stop`]: the wish to end it.

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
mod specification;
mod stop;

use std::path::Path;

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
pub use specification::{Measure, Run};
pub use stop::Stop;

use self::data::Data;
use self::driver::Driver;
use self::journal::Journal;
use super::job;
use crate::record::Record;

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
}
