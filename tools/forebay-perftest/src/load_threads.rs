//! Load threads, one for each job: each has a link, is given tasks and says what came of them.
//!
//! The threads connect once and run many tests. All begin a bandwidth test together, when each has its buffers; it ends when each
//! has seen the end of what it began. Every wait of a thread has a deadline, so every thread ends, and [`LoadThreads`] joins them.

mod job;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use self::job::{Counter, Job, Run};
use crate::error::Error;
use crate::link::Connector;
use crate::options::Kind;

/// How often a job without a task looks after its link.
const REST: Duration = Duration::from_millis(50);

/// What a job is to do.
#[derive(Clone)]
enum Task {
    Verify {
        bytes: u64,
    },
    Latency {
        bytes: u64,
        iterations: usize,
        within: Duration,
    },
    /// Get buffers for a bandwidth test.
    Prepare {
        bytes: u64,
        depth: u32,
    },
    /// Run it.
    Bandwidth(Arc<Run>),
}

/// What came of it.
enum Done {
    Ready,
    Verified(u32),
    Latencies(Vec<Duration>),
    Moved(Instant),
}

/// What a bandwidth test is, and what watches it.
pub(crate) struct Watched<'a> {
    pub(crate) bytes: u64,
    pub(crate) depth: u32,
    pub(crate) duration: Duration,
    pub(crate) windows: u32,
    /// Called after each window with its operations and length.
    pub(crate) told: &'a mut dyn FnMut(u64, Duration) -> Result<(), Error>,
}

/// What a bandwidth test moved.
pub(crate) struct Moved {
    pub(crate) operations: u64,
    pub(crate) elapsed: Duration,
    pub(crate) windows: Vec<(u64, Duration)>,
}

/// The threads of the jobs for one kind of operation.
pub(crate) struct LoadThreads {
    tasks: Vec<Sender<Task>>,
    done: Receiver<Result<Done, Error>>,
    threads: Vec<JoinHandle<()>>,
}

impl LoadThreads {
    /// Starts `jobs` threads, each with a link for `kind`, and waits until they are connected.
    pub(crate) fn start(connector: &Arc<Connector>, kind: Kind, jobs: u32) -> Result<Self, Error> {
        let (report, done) = channel();
        let mut started = Self { tasks: Vec::new(), done, threads: Vec::new() };
        for number in 0..jobs {
            let (tasks, queue) = channel();
            let (connector, report) = (Arc::clone(connector), report.clone());
            let job = move || run(&connector, kind, number, &queue, &report);
            started.threads.push(std::thread::Builder::new().name(format!("job-{number}")).spawn(job)?);
            started.tasks.push(tasks);
        }
        // Then only the jobs have senders, and waiting ends when no answer can come any more.
        drop(report);
        started.collect(|_| ())?;
        Ok(started)
    }

    /// Moves payloads of `bytes` and compares every byte; how many.
    pub(crate) fn verify(&mut self, bytes: u64) -> Result<u32, Error> {
        self.give(&Task::Verify { bytes });
        let mut transfers = 0;
        self.collect(|done| transfers += if let Done::Verified(count) = done { count } else { 0 })?;
        Ok(transfers)
    }

    /// One operation after the other, so many of them or as many as end `within`. Their times.
    pub(crate) fn latency(
        &mut self,
        bytes: u64,
        (iterations, within): (usize, Duration),
    ) -> Result<Vec<Duration>, Error> {
        self.give(&Task::Latency { bytes, iterations, within });
        let mut samples = Vec::new();
        self.collect(|done| {
            if let Done::Latencies(latencies) = done {
                samples.extend(latencies);
            }
        })?;
        Ok(samples)
    }

    /// As many operations as end within the duration. `begun` runs when every job is ready, right before they start.
    pub(crate) fn bandwidth(&mut self, test: Watched<'_>, begun: impl FnOnce()) -> Result<Moved, Error> {
        self.give(&Task::Prepare { bytes: test.bytes, depth: test.depth });
        self.collect(|_| ())?;
        let moved = self.threads.iter().map(|_| Counter::default()).collect();
        let run = Arc::new(Run { end: AtomicBool::new(false), moved });
        begun();
        let start = Instant::now();
        self.give(&Task::Bandwidth(Arc::clone(&run)));
        let mut windows = Vec::new();
        let (mut at, mut operations) = (start, 0);
        let mut outcome = Ok(());
        let mut early = None;
        for window in 1..=test.windows {
            if outcome.is_err() {
                break;
            }
            let until = start + test.duration * window / test.windows;
            match self.done.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => {}
                // A job ends before it is told to only when it fails.
                Ok(done) => {
                    early = Some(done);
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let (now, total) = (Instant::now(), run.operations());
            windows.push((total - operations, now - at));
            outcome = (test.told)(total - operations, now - at);
            (at, operations) = (now, total);
        }
        run.end.store(true, Ordering::Relaxed);
        let mut end = start;
        let jobs = self.collect_after(early, |done| {
            if let Done::Moved(ended) = done {
                end = end.max(ended);
            }
        });
        // What the watcher saw is nearer to the cause than what the jobs made of it.
        outcome.and(jobs)?;
        Ok(Moved { operations: run.operations(), elapsed: end - start, windows })
    }

    fn give(&self, task: &Task) {
        for job in &self.tasks {
            // A job that has ended has said why, or is found missing when answers are collected.
            let _ = job.send(task.clone());
        }
    }

    fn collect(&mut self, each: impl FnMut(Done)) -> Result<(), Error> {
        self.collect_after(None, each)
    }

    /// Waits for an answer of every job, of which `early` is one if it is given; the first error, when all have answered.
    fn collect_after(&mut self, early: Option<Result<Done, Error>>, mut each: impl FnMut(Done)) -> Result<(), Error> {
        let mut failed = None;
        let answers = early.into_iter().chain(std::iter::from_fn(|| self.done.recv().ok()));
        let mut missing = self.threads.len();
        for answer in answers.take(self.threads.len()) {
            missing -= 1;
            match answer {
                Ok(done) => each(done),
                Err(error) => _ = failed.get_or_insert(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if missing > 0 => Err(std::io::Error::other("a thread of the benchmark ended unexpectedly").into()),
            None => Ok(()),
        }
    }
}

impl Drop for LoadThreads {
    fn drop(&mut self) {
        self.tasks.clear();
        for thread in self.threads.drain(..) {
            // It ends by panic only through a fault of ours, which has been reported.
            let _ = thread.join();
        }
    }
}

/// A job's thread.
fn run(connector: &Connector, kind: Kind, number: u32, tasks: &Receiver<Task>, report: &Sender<Result<Done, Error>>) {
    let pinned = pin(&connector.cpus, number);
    let mut job = match pinned.and_then(|()| connector.connect(kind)) {
        Ok(link) => Job {
            kind,
            number,
            pool: connector.pool.clone(),
            blocks: connector.offer.blocks,
            seed: connector.offer.session,
            link,
        },
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    let mut buffers = Vec::new();
    let mut answer = Ok(Done::Ready);
    loop {
        let failed = answer.is_err();
        if report.send(answer).is_err() || failed {
            return;
        }
        let task = loop {
            match tasks.recv_timeout(REST) {
                Ok(task) => break task,
                Err(RecvTimeoutError::Timeout) => job.link.rest(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        };
        answer = match task {
            Task::Verify { bytes } => job.verify(bytes).map(Done::Verified),
            Task::Latency { bytes, iterations, within } => job.latency(bytes, iterations, within).map(Done::Latencies),
            Task::Prepare { bytes, depth } => {
                let prepared = (0..depth).map(|_| job.buffer(bytes)).collect::<Result<_, _>>();
                prepared.map(|prepared| {
                    buffers = prepared;
                    Done::Ready
                })
            }
            Task::Bandwidth(run) => job.bandwidth(std::mem::take(&mut buffers), &run).map(Done::Moved),
        };
    }
}

/// Pins this thread to one of `cpus`, in turn.
fn pin(cpus: &[usize], number: u32) -> Result<(), Error> {
    if cpus.is_empty() {
        return Ok(());
    }
    let cpu = cpus[number as usize % cpus.len()];
    let cannot = |reason: String| {
        Error::Usage(format!(
            "a thread cannot be pinned to processor {cpu}: {reason}; `lscpu -e` lists those that there are"
        ))
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(cannot("its number is too large".to_owned()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| cannot(error.to_string()))
}
