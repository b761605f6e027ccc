//! What a run is to measure, and with what; and the steps and the record that come of it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::cache::Cache;
use super::fio::Fio;
use super::hosts::Host;
use super::machine::Way;
use crate::posix::plan;
use crate::posix::settings::Settings;
use crate::record::{CacheState, FORMAT, Layout, Machine, Measured, Record, Target};

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
    /// The path of the target of that name.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        let target = self.targets.iter().find(|measure| measure.target.name == name);
        target.map(|measure| PathBuf::from(&measure.target.path)).unwrap_or_default()
    }

    /// All steps, without those that are cold of a cache that cannot be emptied.
    pub(super) fn planned(&self) -> Vec<plan::Planned> {
        let names: Vec<String> = self.targets.iter().map(|measure| measure.target.name.clone()).collect();
        let clients = self.hosts.len().max(1) as u32;
        let mut planned = plan::plan(&self.settings, &names, clients, self.workers);
        let cannot = |name: &str| {
            let target = self.targets.iter().find(|measure| measure.target.name == name);
            target.is_some_and(|measure| measure.cache.cannot_empty().is_some())
        };
        planned.retain(|step| step.case.state != CacheState::Cold || !cannot(&step.case.target));
        planned
    }

    pub(super) fn fresh_record(&self) -> Record {
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
    pub(super) fn layouts_of(steps: &[plan::Planned], target: &str) -> Vec<Layout> {
        let mut layouts: Vec<Layout> =
            steps.iter().filter(|step| step.case.target == target).map(|step| step.case.layout).collect();
        layouts.sort_unstable();
        layouts.dedup();
        layouts
    }
}
