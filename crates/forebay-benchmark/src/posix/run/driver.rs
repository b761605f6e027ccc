//! The order of things in a run, and what becomes of it when something fails.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::child::{ChildError, Ended};
use super::data::{self, Data};
use super::error::{CacheError, RunError};
use super::fio::quoted;
use super::journal::Journal;
use super::page_cache;
use super::prerequisites;
use super::processors::Watch;
use super::progress::Progress;
use super::stop::Stop;
use super::{Measure, Run};
use crate::posix::job::{self, Command};
use crate::posix::plan::Planned;
use crate::posix::{judge, knee, outcome};
use crate::record::{Case, Finding, Layout, Level, Outcome, Pattern, Record, State, Step};

/// What a fio may take beside its time of reading: to start, to open its files, to wait for a last operation.
const BESIDE_READING: Duration = Duration::from_secs(60);
/// And more for each job: they are started one after the other.
const FOR_EACH_JOB: Duration = Duration::from_millis(200);
/// The slowest writing that is waited for: an object store, through a home's uplink.
const SLOWEST_WRITING: u64 = 1 << 20;
/// The rule of what was found while caches were filled, emptied or dropped.
const CACHE_RULE: &str = "cache";

pub(super) struct Driver<'a> {
    run: Run<'a>,
    journal: Journal,
    progress: &'a mut dyn Progress,
    stop: Stop,
    /// What is in its target's cache now, as far as we made it so.
    warm: BTreeSet<(String, Layout)>,
}

impl<'a> Driver<'a> {
    pub(super) fn new(run: Run<'a>, journal: Journal, progress: &'a mut dyn Progress, stop: &Stop) -> Self {
        Self { run, journal, progress, stop: stop.clone(), warm: BTreeSet::new() }
    }

    pub(super) fn run(mut self) -> Result<Record, RunError> {
        let measured = self.measure();
        self.progress.end();
        if let Err(error) = &measured {
            self.journal.log(&format!("ended early: {error}"));
        }
        // What is wrong is told; a page that shows nothing would not tell more.
        let begun = !matches!(measured, Err(RunError::Usage(_) | RunError::Prerequisites(_)));
        let begun = begun || !self.journal.steps().is_empty();
        let published = if begun { self.publish(measured.is_ok()) } else { Ok(()) };
        let cleaned = match &measured {
            // To remove a file there would wait as well, and could not be killed.
            Err(RunError::TimedOut { .. } | RunError::Stuck { .. }) => {
                self.say("the data is left where it is: its file system does not answer");
                Ok(())
            }
            _ if self.run.keep => Ok(()),
            _ => self.clean_up(),
        };
        if !begun {
            self.journal.withdraw();
        }
        measured.and(published).and(cleaned)?;
        Ok(self.journal.record)
    }

    /// Findings of what there is, the report, and the record with both.
    fn publish(&mut self, finished: bool) -> Result<(), RunError> {
        let record = &mut self.journal.record;
        record.finished = finished;
        record.findings.retain(is_own);
        record.findings.extend(judge::findings(record));
        self.journal.save()?;
        self.journal.publish()
    }

    fn measure(&mut self) -> Result<(), RunError> {
        let planned = self.run.planned();
        let left: Vec<Planned> = planned.iter().filter(|step| self.is_needed(step)).cloned().collect();
        if !self.journal.steps().is_empty() {
            let (done, all) = (self.journal.steps().len(), planned.len());
            self.say(&format!("going on after step {done} of {all}, in {}", self.journal.directory().display()));
        }
        if left.is_empty() {
            return Ok(());
        }
        // What was noted of the prerequisites is noted anew; what happened to caches stays.
        self.journal.record.findings.retain(|finding| finding.rule == CACHE_RULE);
        self.journal.save()?;
        let notes = prerequisites::check(&self.run, |target| Run::layouts_of(&left, target))?;
        notes.into_iter().for_each(|note| self.note(note));
        self.prepare(&left)?;
        self.progress.begin("measuring", left.len());
        for step in &left {
            self.interruption()?;
            // Steps since have shown that this one is past the knee.
            if !self.is_needed(step) {
                self.journal.log(&format!("{}: past the knee, left out", name_of(&step.case)));
                self.progress.skip(1);
                continue;
            }
            let outcome = self.step(step)?;
            self.progress.done(&name_of(&step.case), &result_of(&outcome));
            self.journal.log(&format!("{}: {}", name_of(&step.case), result_of(&outcome)));
            self.journal.add(Step { case: step.case.clone(), round: step.round, outcome })?;
        }
        self.progress.end();
        Ok(())
    }

    /// Whether it is neither measured nor, on every target, past the knee: ratios need all of them.
    fn is_needed(&self, step: &Planned) -> bool {
        let steps = self.journal.steps();
        if steps.iter().any(|done| done.case == step.case && done.round == step.round) {
            return false;
        }
        let of = |target: &Measure| Case { target: target.target.name.clone(), ..step.case.clone() };
        let planned_on = |case: &Case| case.state != State::Cold || self.can_be_cold(&case.target);
        let mut sweeps = self.run.targets.iter().map(of).filter(planned_on);
        self.run.full_sweep || !sweeps.all(|sweep| knee::is_past(steps, &sweep))
    }

    fn can_be_cold(&self, target: &str) -> bool {
        let found = self.run.targets.iter().find(|measure| measure.target.name == target);
        found.is_some_and(|measure| measure.cache.cannot_empty().is_none())
    }

    fn data(&self, target: &str) -> Data {
        Data::new(&self.run.path_of(target), &self.run.settings)
    }

    /// Has the data of these steps written, where it is not there.
    fn prepare(&mut self, steps: &[Planned]) -> Result<(), RunError> {
        let targets: Vec<String> = self.run.targets.iter().map(|measure| measure.target.name.clone()).collect();
        for target in targets {
            let data = self.data(&target);
            for layout in Run::layouts_of(steps, &target) {
                let missing = data.missing(layout, &mut self.journal)?;
                self.progress.begin(&format!("writing {target}"), missing.len());
                for (place, command) in missing {
                    self.interruption()?;
                    let what = format!("writing {}", place.display());
                    self.progress.now(&what);
                    let within = BESIDE_READING + Duration::from_secs(data.bytes(layout) / SLOWEST_WRITING);
                    let ended = self.fio(&command, None, &what, within, &place, &mut || ())?;
                    self.succeeded(&ended, &what)?;
                    self.progress.done(&what, "done");
                }
                self.progress.end();
                data.check(layout)?;
                if self.run.settings.direct
                    && let Some(file) = data.cached(layout).paths().first()
                {
                    prerequisites::reads_direct(file)?;
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Planned) -> Result<Outcome, RunError> {
        let (case, number) = (&step.case, self.journal.steps().len());
        let data = self.data(&case.target);
        self.bring_into_state(case, &data)?;
        let directory = data.directory(case.layout);
        let hosts = self.hosts_file()?;
        let command = job::command(case, &directory, &self.run.settings, hosts.as_deref());
        let command = command.map_err(|error| RunError::Usage(error.to_string()))?;
        let name = name_of(case);
        self.progress.now(&name);
        let within = BESIDE_READING + self.run.settings.runtime + FOR_EACH_JOB * case.jobs;
        let mut watch = Watch::default();
        let ended = self.fio(&command, Some(number), &name, within, &directory, &mut || watch.look())?;
        let said = self.journal.of_fio(number, "json");
        std::fs::write(&said, &ended.stdout).map_err(RunError::io("write", &said))?;
        self.succeeded(&ended, &name)?;
        let failed = |reason: String| RunError::Fio { what: name.clone(), reason, log: said.clone() };
        let mut outcome = outcome::outcome(&ended.stdout, case.clients).map_err(|error| failed(error.to_string()))?;
        if self.run.hosts.is_empty() {
            outcome.cpu = watch.busiest(outcome.seconds, outcome.cpu.fio).unwrap_or_default();
        }
        Ok(outcome)
    }

    fn bring_into_state(&mut self, case: &Case, data: &Data) -> Result<(), RunError> {
        let key = (case.target.clone(), case.layout);
        let files = data.cached(case.layout);
        let found = self.run.targets.iter_mut().find(|measure| measure.target.name == case.target);
        let Some(measure) = found else { return Ok(()) };
        let (cache, progress, what) = (&mut measure.cache, &mut self.progress, format!("{}: ", case.target));
        let mut tell = |text: &str| progress.now(&format!("{what}{text}"));
        let mut noted = None;
        match case.state {
            State::Warm if self.warm.contains(&key) => {}
            State::Warm => {
                noted = cache.warm(&files, &self.stop, &mut tell).map_err(interrupted)?;
                self.warm.insert(key);
            }
            State::Cold => {
                self.warm.remove(&key);
                cache.empty(&files, &self.stop, &mut tell).map_err(interrupted)?;
            }
        }
        let dropped = page_cache::drop_pages(&files.paths());
        for text in noted.into_iter().chain(dropped.warning()) {
            self.note(Finding { rule: CACHE_RULE.to_owned(), ..prerequisites::told(Level::Warn, &text) });
        }
        Ok(())
    }

    fn hosts_file(&self) -> Result<Option<PathBuf>, RunError> {
        if self.run.hosts.is_empty() {
            return Ok(None);
        }
        let path = self.journal.directory().join("fio/hosts");
        let lines: String = self.run.hosts.iter().map(super::Host::line).collect();
        std::fs::write(&path, lines).map_err(RunError::io("write", &path))?;
        Ok(Some(path))
    }

    /// Runs fio to its end, however that is. `number`: of the step, which its job file is named after.
    fn fio(
        &self,
        command: &Command,
        number: Option<usize>,
        what: &str,
        within: Duration,
        directory: &Path,
        watch: &mut dyn FnMut(),
    ) -> Result<Ended, RunError> {
        let path = number.map(|number| self.journal.of_fio(number, "fio")).unwrap_or_default();
        let mut arguments = command.arguments.clone();
        if let Some(text) = &command.job_file {
            std::fs::write(&path, text).map_err(RunError::io("write", &path))?;
            arguments.push(path.to_string_lossy().into_owned());
        }
        self.journal.log(&command.line(&path.to_string_lossy()));
        let ended = self.run.fio.run(&arguments, within, &self.stop, watch).map_err(|error| match error {
            ChildError::Start(error) => RunError::Io { doing: "start", path: "fio".into(), error },
            ChildError::TimedOut => {
                RunError::TimedOut { what: what.to_owned(), within, directory: directory.to_owned() }
            }
            ChildError::Interrupted => RunError::Interrupted,
            ChildError::Stuck(pid) => RunError::Stuck { what: what.to_owned(), pid },
        })?;
        self.journal.log(&String::from_utf8_lossy(&ended.stderr));
        self.journal.log(&format!("fio ended after {:.1} s: {}", ended.took.as_secs_f64(), ended.status));
        Ok(ended)
    }

    fn succeeded(&self, ended: &Ended, what: &str) -> Result<(), RunError> {
        if ended.status.success() {
            return Ok(());
        }
        let log = self.journal.directory().join("run.log");
        Err(RunError::Fio { what: what.to_owned(), reason: quoted(ended), log })
    }

    /// Gives back the room in the caches, and removes what was made.
    fn clean_up(&mut self) -> Result<(), RunError> {
        if self.journal.made.files.is_empty() && self.journal.made.directories.is_empty() {
            return Ok(());
        }
        // Who asked it to end once has asked for this.
        let stop = self.stop.again();
        self.say("removing the data; --keep would leave it");
        for measure in &mut self.run.targets {
            let data = Data::new(Path::new(&measure.target.path), &self.run.settings);
            for layout in &self.run.settings.layouts {
                let files = data.cached(*layout);
                let made = files.paths().iter().any(|path| self.journal.made.files.contains(path));
                // A file that is gone has nothing to be found by: the room is given back first.
                let released = if made { measure.cache.release(&files, &stop) } else { Ok(()) };
                if let Err(error) = released {
                    let text = format!("the cache of {} still has the data: {error}", measure.target.name);
                    self.progress.say(&text);
                    self.journal.log(&text);
                }
            }
        }
        for left in data::remove(&mut self.journal)? {
            self.say(&left);
        }
        Ok(())
    }

    fn interruption(&self) -> Result<(), RunError> {
        if self.stop.is_asked() { Err(RunError::Interrupted) } else { Ok(()) }
    }

    /// Tells a finding, and keeps it, once.
    fn note(&mut self, finding: Finding) {
        let findings = &mut self.journal.record.findings;
        if findings.contains(&finding) {
            return;
        }
        let next = finding.next.as_ref().map(|next| format!("; {next}")).unwrap_or_default();
        let text = format!("{}{next}", finding.text);
        findings.push(finding);
        self.say(&text);
    }

    fn say(&mut self, text: &str) {
        self.progress.say(text);
        self.journal.log(text);
    }
}

fn interrupted(error: CacheError) -> RunError {
    match error {
        CacheError::Interrupted => RunError::Interrupted,
        other => other.into(),
    }
}

/// Whether it is one of ours rather than one that is made of the results.
fn is_own(finding: &Finding) -> bool {
    matches!(finding.rule.as_str(), prerequisites::RULE | CACHE_RULE)
}

/// `forebay warm multiple shared sequential 256K jobs=8`.
pub(super) fn name_of(case: &Case) -> String {
    let Case { target, state, layout, pattern, access, block_bytes, jobs, .. } = case;
    let pattern = if *layout == Layout::Single && *pattern == Pattern::Shared { "" } else { pattern.name() };
    let words = [target.as_str(), state.name(), layout.name(), pattern, access.name()];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    format!("{} {}K jobs={jobs}", words.join(" "), block_bytes >> 10)
}

fn result_of(outcome: &Outcome) -> String {
    let latency = outcome.latency;
    let cpu = match outcome.cpu.per_gigabyte(outcome.bytes_per_second) {
        percent if outcome.cpu.machine > 0.0 && percent.is_finite() => format!(", {percent:.0} % CPU per GB/s"),
        _ => String::new(),
    };
    format!(
        "{:.0} MB/s, {:.0} IOPS, p50 {:.0} µs, p99 {:.0} µs{cpu}",
        outcome.bytes_per_second / 1e6,
        outcome.operations_per_second,
        latency.p50,
        latency.p99,
    )
}
