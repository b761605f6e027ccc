//! fio on a file of a mount or of tmpfs, with the processor time of all processes that took part: the cases that most sections
//! are made of.

use std::path::PathBuf;

use crate::fio::{Fio, FioResult};
use crate::fixture::Fixture;
use crate::process::cpu_seconds_of;
use crate::report::seconds;
use crate::rounds::{Case, Outcome, Sample};

/// A file of a mount, and the processes that serve it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// What to call it.
    pub(crate) name: String,
    /// The file.
    pub(crate) file: PathBuf,
    /// Its daemons.
    pub(crate) pids: Vec<u32>,
}

impl Target {
    pub(crate) fn new(name: impl Into<String>, file: PathBuf, pids: impl Into<Vec<u32>>) -> Self {
        Self { name: name.into(), file, pids: pids.into() }
    }

    /// fio on it. Reads that the page cache could answer find it empty.
    ///
    /// # Errors
    /// When fio fails or a daemon has ended.
    pub(crate) fn run(&self, fixture: &Fixture, fio: Fio) -> anyhow::Result<FioResult> {
        if !fio.direct {
            fixture.drop_page_cache()?;
        }
        let before = cpu_seconds_of(&self.pids)?;
        let result = fio.run(&self.file, fixture.settings)?;
        let cpu = (cpu_seconds_of(&self.pids)? - before) / result.gibibytes();
        Ok(FioResult { sample: Sample { cpu, ..result.sample }, ..result })
    }

    /// The same as a measurement.
    pub(crate) fn case<'a>(&'a self, fixture: &'a Fixture, fio: Fio) -> Case<'a> {
        let name = format!("{}, {}", self.name, fio.name());
        Case::new(name, move || Ok(self.run(fixture, fio)?.sample))
    }
}

/// fio on the large file on tmpfs.
pub(crate) fn on_tmpfs(fixture: &Fixture, fio: Fio) -> Case<'_> {
    let fio = Fio { direct: fio.direct && fixture.tmpfs_is_direct, ..fio };
    Case::new(format!("tmpfs, {}", fio.name()), move || Ok(fio.run(&fixture.on_tmpfs(), fixture.settings)?.sample))
}

/// Processor time of the daemons, in seconds for each GiB.
pub(crate) fn daemons(outcome: &Outcome) -> String {
    seconds(outcome.median(|sample| sample.cpu))
}

/// Processor time of daemons and reader together.
pub(crate) fn all_seconds(sample: &Sample) -> f64 {
    sample.cpu + sample.reader
}
