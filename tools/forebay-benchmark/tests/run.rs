//! The driver with the real fio, on directories of this machine, and with caches that are pretended.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_benchmark::posix::run::{
    CacheError, CachedFiles, Capacity, Fio, Measure, Progress, Room, Run, RunError, Stop, Takes,
};
use forebay_benchmark::posix::{Cache, Engine, Settings, Sizes};
use forebay_benchmark::record::{Access, CacheState, Layout, Machine, Measured, Pattern, Record, Step, Target};

const MIB: u64 = 1 << 20;

/// What happened, in order.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    fn add(&self, event: impl Into<String>) {
        self.0.lock().unwrap().push(event.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Pretended {
    events: Events,
    /// Fails, instead of emptying.
    broken: bool,
    /// How much it says that it holds.
    capacity: Option<Capacity>,
    /// How much room there is.
    free: Option<u64>,
    /// What it has received from the origin, and how much more each time that it is asked.
    received: Cell<u64>,
    misses: u64,
}

impl Cache for Pretended {
    fn describe(&self) -> String {
        "pretended".to_owned()
    }

    fn rooms(&self, _: &Path) -> Vec<Room> {
        vec![Room { place: "nowhere".to_owned(), free: self.free, device: None, takes: Takes::All }]
    }

    fn capacity(&self) -> Option<Capacity> {
        self.capacity
    }

    fn received(&self, directory: &Path) -> Option<u64> {
        assert!(directory.ends_with("multiple"), "{}", directory.display());
        self.received.set(self.received.get() + self.misses);
        Some(self.received.get())
    }

    fn warm(&mut self, files: &CachedFiles, _: &Stop, _: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        self.events.add(format!("warm {}", files.files.len()));
        Ok(())
    }

    fn empty(&mut self, files: &CachedFiles, _: &Stop, _: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        self.events.add(format!("empty {}", files.files.len()));
        if self.broken { Err(CacheError::Unavailable("nobody answers; start it".to_owned())) } else { Ok(()) }
    }

    fn release(&mut self, files: &CachedFiles, _: &Stop) -> Result<(), CacheError> {
        assert!(files.paths().iter().all(|path| path.exists()), "before they are removed");
        self.events.add(format!("release {}", files.files.len()));
        Ok(())
    }
}

/// Asks for a stop after so many steps were measured.
struct Heard {
    events: Events,
    stop: Stop,
    after: usize,
}

impl Progress for Heard {
    fn say(&mut self, text: &str) {
        if text.starts_with("written ") {
            self.events.add("announced");
        }
    }

    fn confirm(&mut self, question: &str, _: &Stop) -> bool {
        self.events.add(question);
        false
    }

    fn begin(&mut self, kind: &str, total: usize) {
        self.events.add(format!("{kind} {total}"));
    }

    fn now(&mut self, _: &str) {}

    fn done(&mut self, step: &str, _: &str) {
        if let Some((_, jobs)) = step.split_once("jobs=") {
            self.events.add(format!("step {jobs}"));
            self.after = self.after.saturating_sub(1);
            if self.after == 0 {
                self.stop.ask();
            }
        }
    }

    fn skip(&mut self, steps: usize) {
        self.events.add(format!("skip {steps}"));
    }

    fn end(&mut self) {}
}

fn fio() -> Option<Fio> {
    let found = Fio::find().ok();
    if found.is_none() {
        // Past the test harness, which captures what is printed.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: no fio here: `make setup` brings it\n");
    }
    found
}

fn settings() -> Settings {
    Settings {
        states: vec![CacheState::Warm, CacheState::Cold],
        layouts: vec![Layout::Multiple],
        patterns: vec![Pattern::Distinct],
        accesses: vec![Access::Sequential],
        jobs: vec![1, 2],
        runtime: Duration::from_secs(1),
        engine: Engine::Psync,
        // What the temporary directory is on may know no other reads.
        direct: false,
        sizes: Sizes { single_bytes: MIB, files: 3, file_bytes: MIB, small_files: 2, small_bytes: MIB },
        ..Settings::quick()
    }
}

fn pretended(events: &Events, broken: bool) -> Pretended {
    Pretended { events: events.clone(), broken, capacity: None, free: None, received: Cell::new(0), misses: 0 }
}

fn run<'a>(fio: &'a Fio, directory: &Path, events: &Events, broken: bool) -> Run<'a> {
    let data = directory.join("data");
    std::fs::create_dir_all(&data).unwrap();
    let target = Target {
        name: "here".into(),
        path: data.canonicalize().unwrap().to_str().unwrap().to_owned(),
        file_system: "ext4".into(),
        cache: "pretended".into(),
        cold_is_memory: None,
    };
    Run {
        fio,
        settings: settings(),
        targets: vec![Measure { target, cache: Box::new(pretended(events, broken)) }],
        hosts: Vec::new(),
        workers: 0,
        machine: Machine { host: "h".into(), processors: 2, ..Machine::default() },
        way: None,
        version: "0".into(),
        more: BTreeMap::new(),
        output: directory.join("results"),
        keep: false,
        full_sweep: true,
        budget: None,
        asks_above: 1 << 30,
    }
}

fn heard(events: &Events, stop: &Stop, after: usize) -> Heard {
    Heard { events: events.clone(), stop: stop.clone(), after }
}

fn steps(record: &Record) -> &[Step] {
    match &record.measured {
        Measured::Posix { steps, .. } => steps,
        Measured::Read { .. } => panic!("another benchmark"),
    }
}

#[test]
fn the_cache_is_filled_once_and_emptied_before_every_cold_step_and_a_stopped_run_goes_on() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (events, stop) = (Events::default(), Stop::default());
    let stopped = run(&fio, directory.path(), &events, false).run(&mut heard(&events, &stop, 3), &stop);
    assert!(matches!(stopped, Err(RunError::Interrupted)));
    let first =
        ["announced", "writing here 3", "measuring 4", "warm 3", "step 1", "step 2", "empty 3", "step 1", "release 3"];
    assert_eq!(events.all(), first);
    assert_eq!(std::fs::read_dir(directory.path().join("data")).unwrap().count(), 0);
    let kept = forebay_benchmark::report::load(&directory.path().join("results")).unwrap();
    assert_eq!((steps(&kept).len(), kept.finished), (3, false));

    let (events, stop) = (Events::default(), Stop::default());
    let finished = run(&fio, directory.path(), &events, false).run(&mut heard(&events, &stop, 9), &stop).unwrap();
    assert_eq!(events.all(), ["announced", "writing here 3", "measuring 1", "empty 3", "step 2", "release 3"]);
    assert_eq!(&steps(&finished)[..3], steps(&kept));
    assert!(finished.finished && steps(&finished).len() == 4);
    for step in steps(&finished) {
        assert!(step.outcome.bytes >= 3 * MIB && step.outcome.cpu.machine >= step.outcome.cpu.fio, "{step:?}");
    }
    let (events, stop) = (Events::default(), Stop::default());
    let again = run(&fio, directory.path(), &events, false).run(&mut heard(&events, &stop, 9), &stop).unwrap();
    assert_eq!((again, events.all()), (finished, Vec::<String>::new()));
}

#[test]
fn a_sweep_ends_two_points_past_its_knee_unless_all_of_it_is_asked_for() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().unwrap();
    let sweep = |events: &Events, full_sweep: bool| {
        let mut run = run(&fio, directory.path(), events, false);
        (run.settings.states, run.settings.jobs, run.full_sweep) =
            (vec![CacheState::Warm], vec![1, 2, 3, 4, 5], full_sweep);
        run
    };
    let (events, stop) = (Events::default(), Stop::default());
    assert!(sweep(&events, false).run(&mut heard(&events, &stop, 1), &stop).is_err());
    // As if two jobs more had given nothing but longer waiting.
    let place = directory.path().join("results/record.json");
    let mut kept = forebay_benchmark::report::load(&place).unwrap();
    let Measured::Posix { steps: measured, .. } = &mut kept.measured else { panic!("another benchmark") };
    for jobs in [2, 3] {
        let mut step = measured[0].clone();
        step.case.jobs = jobs;
        step.outcome.latency.p99 *= f64::from(jobs) * 10.0;
        measured.push(step);
    }
    std::fs::write(&place, serde_json::to_vec(&kept).unwrap()).unwrap();
    let (events, stop) = (Events::default(), Stop::default());
    let finished = sweep(&events, false).run(&mut heard(&events, &stop, 9), &stop).unwrap();
    assert_eq!((steps(&finished).len(), finished.finished, events.all()), (3, true, Vec::new()));
    let other = sweep(&events, true).run(&mut heard(&events, &stop, 9), &stop).unwrap_err();
    assert!(other.to_string().contains("--full-sweep was `false`, not `true`"), "{other}");
}

#[test]
fn what_is_evicted_while_it_is_read_is_not_called_warm_and_is_not_measured_again() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (events, stop) = (Events::default(), Stop::default());
    let leaking = || {
        let mut run = run(&fio, directory.path(), &events, false);
        run.settings.states = vec![CacheState::Warm];
        run.targets[0].cache = Box::new(Pretended { misses: MIB, ..pretended(&events, false) });
        run
    };
    let record = leaking().run(&mut heard(&events, &stop, 9), &stop).unwrap();
    let found: Vec<_> = steps(&record).iter().map(|step| (step.case.state, step.outcome.origin_bytes)).collect();
    assert_eq!(found, [(CacheState::Partial, Some(MIB)); 2]);
    let rules: Vec<_> = record.findings.iter().map(|finding| finding.rule.as_str()).collect();
    assert!(rules.contains(&"warm") && !rules.contains(&"headline"), "{rules:?}");
    let before = events.all().len();
    let again = leaking().run(&mut heard(&events, &stop, 9), &stop).unwrap();
    assert_eq!((steps(&again).len(), events.all().len()), (2, before), "{:?}", events.all());
}

#[test]
fn what_does_not_fit_into_the_cache_is_told_before_it_is_written() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (events, stop) = (Events::default(), Stop::default());
    let mut small = run(&fio, directory.path(), &events, false);
    let capacity = Some(Capacity { usable: 2 * MIB, total: 3 * MIB });
    small.targets[0].cache = Box::new(Pretended { capacity, ..pretended(&events, false) });
    let told = small.run(&mut heard(&events, &stop, 9), &stop).unwrap_err().to_string();
    assert!(told.contains("keeps 2.0 MiB") && told.contains("--file-size make 3.0 MiB"), "{told}");
    let mut full = run(&fio, directory.path(), &events, false);
    full.targets[0].cache = Box::new(Pretended { free: Some(2 * MIB), ..pretended(&events, false) });
    full.budget = Some(MIB);
    let told = full.run(&mut heard(&events, &stop, 9), &stop).unwrap_err().to_string();
    assert!(told.contains("nowhere has room for 2.0 MiB, and the data takes 3.0 MiB"), "{told}");
    assert!(told.contains("3.0 MiB are to be written, and --budget allows 1.0 MiB"), "{told}");
    assert_eq!(events.all(), Vec::<String>::new());

    let mut much = run(&fio, directory.path(), &events, false);
    much.settings.sizes.file_bytes = 1 << 30;
    let told = much.run(&mut heard(&events, &stop, 9), &stop).unwrap_err().to_string();
    assert!(told.starts_with("3.0 GiB would be written, and nobody has agreed to that; give --yes"), "{told}");
    assert_eq!(events.all(), ["announced", "Write 3.0 GiB?"]);
    assert_eq!(std::fs::read_dir(directory.path().join("data")).unwrap().count(), 0);
    assert!(!directory.path().join("results").exists(), "a run that could not begin leaves nothing");
}

#[test]
fn what_fails_ends_the_run_with_what_was_measured_before_and_without_the_data() {
    let Some(fio) = fio() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (events, stop) = (Events::default(), Stop::default());
    let failed = run(&fio, directory.path(), &events, true).run(&mut heard(&events, &stop, 9), &stop).unwrap_err();
    assert_eq!(failed.to_string(), "nobody answers; start it");
    let kept = forebay_benchmark::report::load(&directory.path().join("results")).unwrap();
    assert_eq!((steps(&kept).len(), kept.finished), (2, false));
    assert!(kept.findings.iter().any(|finding| finding.rule == "unfinished"), "{:?}", kept.findings);
    assert_eq!(std::fs::read_dir(directory.path().join("data")).unwrap().count(), 0);

    // What cannot be measured is told before anything is made.
    let mut other = run(&fio, directory.path(), &events, false);
    other.output = directory.path().join("other");
    other.targets[0].target.path = directory.path().join("gone").to_str().unwrap().to_owned();
    let failed = other.run(&mut heard(&events, &stop, 9), &stop).unwrap_err();
    assert!(matches!(failed, RunError::Prerequisites(_)), "{failed}");
    assert!(!directory.path().join("other").exists(), "a run that could not begin leaves nothing");
}
