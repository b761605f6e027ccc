//! The order of things in a run, and what becomes of it when something fails.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cache::CachedFiles;
use super::child::{ChildError, Ended};
use super::data::{self, Data};
use super::error::{CacheError, RunError};
use super::fio::{self, quoted};
use super::journal::Journal;
use super::neighbours::{self, Processes};
use super::page_cache;
use super::prerequisites::{self, Writing};
use super::processors::Watch;
use super::progress::Progress;
use super::specification::{Measure, Run};
use super::stop::Stop;
use crate::posix::job::{self, Command};
use crate::posix::plan::Planned;
use crate::posix::words::{bytes, depth, measured_time, speed};
use crate::posix::{judge, knee, outcome};
use crate::record::{CacheState, Case, Finding, Layout, Level, Outcome, Pattern, Record, Step};
use crate::spread::Spread;

/// What a fio may take beside its time of reading: to start, to open its files, to wait for a last operation.
const BESIDE_READING: Duration = Duration::from_secs(60);
/// And more for each job: they are started one after the other.
const FOR_EACH_JOB: Duration = Duration::from_millis(200);
/// The slowest writing that is waited for: an object store, through a home's uplink.
const SLOWEST_WRITING: u64 = 1 << 20;
/// A warm step in which more than this part of the data came from the origin was not warm. Others read by the same cache, too, and
/// what they miss is not told from what we do.
const MISSES_OF: u64 = 1000;
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
        let begun =
            !matches!(measured, Err(RunError::Usage(_) | RunError::Prerequisites(_) | RunError::NotConfirmed(_)));
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
        self.announce(&left)?;
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
            let case = Case { state: self.state_found(&step.case, &outcome), ..step.case.clone() };
            self.progress.done(&name_of(&case), &result_of(&case, &outcome));
            self.journal.log(&format!("{}: {}", name_of(&case), result_of(&case, &outcome)));
            self.journal.add(Step { case, round: step.round, outcome })?;
        }
        self.progress.end();
        Ok(())
    }

    /// Whether it is neither measured nor, on every target, past the knee: ratios need all of them.
    fn is_needed(&self, step: &Planned) -> bool {
        let steps = self.journal.steps();
        // What turned out not to be warm is called otherwise, and has been measured all the same.
        let asked = |state: CacheState| if state == CacheState::Partial { CacheState::Warm } else { state };
        let is_it = |done: &Case| *done == Case { state: done.state, ..step.case.clone() };
        let was_it = |done: &Step| is_it(&done.case) && asked(done.case.state) == step.case.state;
        if steps.iter().any(|done| was_it(done) && done.round == step.round) {
            return false;
        }
        let of = |target: &Measure| Case { target: target.target.name.clone(), ..step.case.clone() };
        let planned_on = |case: &Case| case.state != CacheState::Cold || self.can_be_cold(&case.target);
        let mut sweeps = self.run.targets.iter().map(of).filter(planned_on);
        self.run.full_sweep || !sweeps.all(|sweep| knee::is_past(steps, &sweep))
    }

    fn measure_of(&self, target: &str) -> Option<&Measure> {
        self.run.targets.iter().find(|measure| measure.target.name == target)
    }

    fn can_be_cold(&self, target: &str) -> bool {
        self.measure_of(target).is_some_and(|measure| measure.cache.cannot_empty().is_none())
    }

    /// The state that the cache was in, by what it had to fetch meanwhile.
    fn state_found(&self, case: &Case, outcome: &Outcome) -> CacheState {
        let tolerated = self.run.settings.sizes.bytes(case.layout) / MISSES_OF;
        match (case.state, outcome.origin_bytes) {
            (CacheState::Warm, Some(received)) if received > tolerated => CacheState::Partial,
            (state, _) => state,
        }
    }

    fn data(&self, target: &str) -> Data {
        Data::new(&self.run.path_of(target), &self.run.settings)
    }

    /// Tells what will be written, and asks where that is much.
    fn announce(&mut self, left: &[Planned]) -> Result<(), RunError> {
        let Some(writing) = Writing::of(&self.run, |target| Run::layouts_of(left, target)) else { return Ok(()) };
        let fate = if self.run.keep { "and kept" } else { "and removed in the end" };
        writing.places.iter().for_each(|place| self.say(&format!("written {fate}: {place}")));
        let question = format!("Write {}?", bytes(writing.bytes));
        if writing.bytes <= self.run.asks_above || self.progress.confirm(&question, &self.stop) {
            return self.interruption();
        }
        self.interruption()?;
        Err(RunError::NotConfirmed(bytes(writing.bytes)))
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
                    self.succeeded(&ended, &what).map_err(|error| self.with_cause(error, &target, &data))?;
                    self.progress.done(&what, "done");
                }
                self.progress.end();
                let synced = data.sync(layout, &self.journal).map_err(|(path, error)| self.not_kept(&path, error));
                synced.and_then(|()| data.check(layout)).map_err(|error| self.with_cause(error, &target, &data))?;
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
        let here = self.run.hosts.is_empty();
        let before = here.then(Processes::now);
        let load_before = here.then(|| Watch::look_for(neighbours::LOOK_FOR)).flatten();
        let begin = here.then(Processes::now);
        let received = || self.measure_of(&case.target)?.cache.received(&directory);
        let received_before = received();
        let ended = self.fio(&command, Some(number), &name, within, &directory, &mut || watch.look())?;
        let others =
            before.zip(begin).map_or(0.0, |(before, begin)| neighbours::went_on(&before, &begin, &Processes::now()));
        // One that counts less than before was started anew.
        let origin_bytes = received_before.zip(received()).and_then(|(before, after)| after.checked_sub(before));
        let said = self.journal.of_fio(number, "json");
        std::fs::write(&said, &ended.stdout).map_err(RunError::io("write", &said))?;
        self.succeeded(&ended, &name)?;
        let failed = |reason: String| RunError::Fio { what: name.clone(), reason, log: said.clone() };
        let mut outcome = outcome::outcome(&ended.stdout, case.clients).map_err(|error| failed(error.to_string()))?;
        outcome.origin_bytes = origin_bytes;
        if here {
            outcome.cpu = watch.busiest(outcome.seconds, outcome.cpu.fio, others).unwrap_or_default();
            self.journal.keep_load(number, load_before, &watch.samples())?;
        }
        Ok(outcome)
    }

    fn bring_into_state(&mut self, case: &Case, data: &Data) -> Result<(), RunError> {
        let key = (case.target.clone(), case.layout);
        let files = data.cached(case.layout);
        let layouts = &self.run.settings.layouts;
        let all = layouts.iter().map(|layout| data.bytes(*layout)).sum();
        let is_there = |files: &CachedFiles| files.paths().iter().any(|path| path.symlink_metadata().is_ok());
        let others = layouts.iter().filter(|layout| **layout != case.layout);
        let others: Vec<_> = others.map(|layout| (*layout, data.cached(*layout))).collect();
        let found = self.run.targets.iter_mut().find(|measure| measure.target.name == case.target);
        let Some(measure) = found else { return Ok(()) };
        let (cache, progress, what) = (&mut measure.cache, &mut self.progress, format!("{}: ", case.target));
        let mut tell = |text: &str| progress.now(&format!("{what}{text}"));
        match case.state {
            CacheState::Warm | CacheState::Partial if self.warm.contains(&key) => {}
            CacheState::Warm | CacheState::Partial => {
                // What is read often stays: without room for all, it would be this that is evicted while it is loaded.
                if cache.capacity().is_some_and(|capacity| capacity.usable < all) {
                    for (layout, other) in others.iter().filter(|(_, other)| is_there(other)) {
                        tell("making room");
                        self.warm.remove(&(case.target.clone(), *layout));
                        cache.release(other, &self.stop).map_err(interrupted)?;
                    }
                }
                cache.warm(&files, &self.stop, &mut tell).map_err(interrupted)?;
                self.warm.insert(key);
            }
            CacheState::Cold => {
                self.warm.remove(&key);
                cache.empty(&files, &self.stop, &mut tell).map_err(interrupted)?;
            }
        }
        let dropped = page_cache::drop_pages(&files.paths());
        if let Some(text) = dropped.warning() {
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
        let (what, log) = (what.to_owned(), self.journal.directory().join("run.log"));
        Err(match fio::cause(ended) {
            Some((error, _)) if is_full(error) => RunError::NoSpace { what, why: None, log },
            Some((_, reason)) => RunError::Fio { what, reason, log },
            None => RunError::Fio { what, reason: quoted(ended), log },
        })
    }

    /// A file that was written and could not be synced.
    fn not_kept(&self, path: &Path, error: std::io::Error) -> RunError {
        let (what, log) = (format!("writing {}", path.display()), self.journal.directory().join("run.log"));
        match error.raw_os_error() {
            Some(number) if is_full(number) => RunError::NoSpace { what, why: None, log },
            _ => RunError::io("sync", path)(error),
        }
    }

    /// The error with what the mount says of it, which was asked to write and knows where to: that is the cause, whatever fio, or a
    /// look at the file, has made of it.
    fn with_cause(&self, error: RunError, target: &str, data: &Data) -> RunError {
        let said = self.measure_of(target).and_then(|measure| measure.cache.not_arrived(data.root(), &self.stop));
        let Some(why) = said else { return error };
        self.journal.log(&why);
        let what = match &error {
            RunError::NoSpace { what, .. } | RunError::Fio { what, .. } => what.clone(),
            RunError::Io { path, .. } => format!("writing {}", path.display()),
            _ => format!("writing {}", data.root().display()),
        };
        let log = self.journal.directory().join("run.log");
        match FULL.iter().any(|full| why.contains(full)) {
            true => RunError::NoSpace { what, why: Some(why), log },
            false => RunError::Fio { what, reason: why, log },
        }
    }

    /// Gives back the room in the caches, and removes what was made.
    fn clean_up(&mut self) -> Result<(), RunError> {
        if self.journal.made.files.is_empty() && self.journal.made.directories.is_empty() {
            return Ok(());
        }
        // The first request to end asks for this.
        let stop = self.stop.again();
        self.say("removing the data; --keep would leave it");
        for measure in &mut self.run.targets {
            let data = Data::new(Path::new(&measure.target.path), &self.run.settings);
            for layout in &self.run.settings.layouts {
                let files = data.cached(*layout);
                // What did not arrive is in no cache.
                let is_made =
                    |path: &PathBuf| self.journal.made.files.contains(path) && path.symlink_metadata().is_ok();
                let made = files.paths().iter().any(is_made);
                // A file that is gone has nothing to be found by: the room is given back first.
                let released = if made { measure.cache.release(&files, &stop) } else { Ok(()) };
                if let Err(error) = released {
                    let text = format!("the cache of {} still has the data: {error}", measure.target.name);
                    self.progress.say(&text);
                    self.journal.log(&text);
                }
            }
        }
        let mut left = data::remove(&mut self.journal)?;
        if !left.is_empty() {
            let output = self.journal.directory().display();
            left.push(format!("the same command with --output {output} removes these, too"));
        }
        for measure in &mut self.run.targets {
            let data = Data::new(Path::new(&measure.target.path), &self.run.settings);
            left.extend(measure.cache.discard(data.root(), &stop));
        }
        match left.is_empty() {
            true => self.say("all of it is removed"),
            false => left.iter().for_each(|left| self.say(&format!("left: {left}"))),
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

/// How a full disk is told in words.
const FULL: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// Whether a number of an error says that there is no room.
fn is_full(error: i32) -> bool {
    [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT].iter().any(|full| full.raw_os_error() == error)
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
    let depth = depth(case).map(|depth| format!(" {depth}")).unwrap_or_default();
    format!("{} {}K{depth} jobs={jobs}", words.join(" "), block_bytes >> 10)
}

fn result_of(case: &Case, outcome: &Outcome) -> String {
    let latency = outcome.latency;
    let cpu = match outcome.cpu.per_gigabyte(outcome.bytes_per_second) {
        percent if outcome.cpu.machine > 0.0 && percent.is_finite() => format!(", {percent:.0} % CPU per GB/s"),
        _ => String::new(),
    };
    let origin = outcome.origin_bytes.map(|received| format!(", {} from the origin", bytes(received)));
    let origin = origin.unwrap_or_default();
    format!(
        "{}, p50 {}, p99 {}{cpu}{origin}",
        speed(case, &Spread::once(outcome.bytes_per_second), &Spread::once(outcome.operations_per_second)),
        measured_time(&Spread::once(latency.p50)),
        measured_time(&Spread::once(latency.p99)),
    )
}
