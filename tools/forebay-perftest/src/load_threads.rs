//! Load threads, one for each job: each has a link, is given tasks and says what came of them.
//!
//! The threads connect once and run many tests. All begin a bandwidth test together, when each has its buffers; it ends when each
//! has seen the end of what it began. Every wait of a thread has a deadline, so every thread ends, and [`LoadThreads`] joins them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_memory::{FRAME_SIZE, Pool};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::error::Error;
use crate::link::{Connector, Link, Operation, Patience};
use crate::memory::Buffer;
use crate::options::Kind;
use crate::pattern;
use crate::plan::{AREA_FRAMES, parts};
use crate::wire::Region;

/// How often a job without a task looks after its link.
const REST: Duration = Duration::from_millis(50);
/// How many operations warm a latency test up, at most, and which part of its time.
const WARM_UP: (usize, u32) = (200, 10);
/// How far apart the jobs start in the server's memory, in operations: a prime, so that they do not meet.
const APART: u64 = 7919;

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

/// A bandwidth test that is running.
struct Run {
    end: AtomicBool,
    /// For each job, the operations that have ended.
    moved: Box<[Counter]>,
}

/// A counter with a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Counter(AtomicU64);

impl Run {
    fn operations(&self) -> u64 {
        self.moved.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum()
    }
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

/// What a job's thread works with.
struct Job {
    kind: Kind,
    number: u32,
    pool: Pool,
    /// Frames of the server to read from.
    blocks: u32,
    /// What its patterns are made of: another one in each run.
    seed: u64,
    link: Box<dyn Link>,
}

impl Job {
    fn buffer(&self, bytes: u64) -> Result<Buffer, Error> {
        match self.kind {
            Kind::Write => Buffer::to_write(&self.pool, bytes, |_, part| part.fill(self.number as u8)),
            Kind::Read | Kind::Seal | Kind::Cache => Buffer::to_read(&self.pool, bytes),
        }
    }

    fn operation(&self, number: u64) -> Operation {
        match self.kind {
            Kind::Write => Operation { writes: true, region: Region::Area, number },
            Kind::Read | Kind::Seal | Kind::Cache => Operation { writes: false, region: Region::Blocks, number },
        }
    }

    /// Starts one operation and waits for its end. Its buffer, back.
    fn one(&mut self, operation: Operation, buffer: Buffer, patience: Patience) -> Result<Buffer, Error> {
        let mut ended = Vec::with_capacity(1);
        self.link.start(operation, buffer)?;
        self.link.wait(&mut ended, patience)?;
        ended.pop().ok_or_else(|| std::io::Error::other("an operation of the benchmark got lost").into())
    }

    fn latency(&mut self, bytes: u64, iterations: usize, within: Duration) -> Result<Vec<Duration>, Error> {
        let mut buffer = self.buffer(bytes)?;
        let mut samples = Vec::with_capacity(iterations);
        let mut number = 0;
        for (iterations, within) in [(WARM_UP.0, within / WARM_UP.1), (iterations, within)] {
            samples.clear();
            let begun = Instant::now();
            while samples.len() < iterations && (samples.is_empty() || begun.elapsed() < within) {
                let operation = self.operation(number);
                let start = Instant::now();
                buffer = self.one(operation, buffer, Patience::Poll)?;
                samples.push(start.elapsed());
                number += 1;
            }
        }
        Ok(samples)
    }

    fn bandwidth(&mut self, mut free: Vec<Buffer>, run: &Run) -> Result<Instant, Error> {
        let depth = free.len();
        let mut number = u64::from(self.number) * APART;
        let moved = &run.moved[self.number as usize].0;
        // Each job begins once, also one that had no processor until the test was over: nothing moved would be no rate.
        let mut has_begun = false;
        loop {
            if !std::mem::replace(&mut has_begun, true) || !run.end.load(Ordering::Relaxed) {
                for buffer in free.drain(..) {
                    self.link.start(self.operation(number), buffer)?;
                    number += 1;
                }
            }
            let idle = free.len();
            if idle == depth {
                return Ok(Instant::now());
            }
            self.link.wait(&mut free, Patience::Sleep)?;
            moved.fetch_add((free.len() - idle) as u64, Ordering::Relaxed);
        }
    }

    /// At the first places and the last one: writes and reads back what was written, or reads what the server has.
    fn verify(&mut self, bytes: u64) -> Result<u32, Error> {
        let frames = match self.kind {
            Kind::Write => AREA_FRAMES as u64,
            Kind::Read | Kind::Seal | Kind::Cache => u64::from(self.blocks),
        };
        let places = (frames * FRAME_SIZE as u64 / bytes).max(1);
        let mut numbers = vec![0, 1.min(places - 1), places - 1];
        numbers.dedup();
        for number in &numbers {
            self.verify_at(*number, bytes)?;
        }
        Ok(numbers.len() as u32)
    }

    fn verify_at(&mut self, number: u64, bytes: u64) -> Result<(), Error> {
        let pool = self.pool.clone();
        // Of its own for each run and place: what an earlier one left does not pass.
        let written = self.seed ^ number.wrapping_mul(APART);
        let mut operation = self.operation(number);
        if self.kind == Kind::Write {
            let buffer = Buffer::to_write(&pool, bytes, |position, part| pattern::fill(written, position, part))?;
            self.one(operation, buffer, Patience::Sleep)?;
            operation.writes = false;
        }
        let buffer = Buffer::to_read(&pool, bytes)?;
        let Buffer::In(read) = self.one(operation, buffer, Patience::Sleep)? else { return Ok(()) };
        let (lengths, mut before) = (parts(bytes).collect::<Vec<_>>(), 0);
        for (part, span) in read.iter().enumerate() {
            let difference = if self.kind == Kind::Write {
                pattern::first_difference(written, before, span)
            } else {
                let place = operation.part(part, lengths.len(), span.len(), self.blocks as usize);
                pattern::first_difference(pattern::block_seed(place.frame), place.offset.into(), span)
            };
            if let Some((at, expected, found)) = difference {
                return Err(Error::Mismatch { kind: self.kind, bytes, offset: before + at as u64, expected, found });
            }
            before += span.len() as u64;
        }
        if before != bytes {
            return Err(std::io::Error::other(format!("{before} of {bytes} bytes came back")).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::ByteSize;

    use super::*;
    use crate::memory::pool;

    /// Memory of this process, as a server whose links may change bytes.
    #[derive(Default)]
    struct Faulty {
        area: Vec<u8>,
        flying: Vec<Buffer>,
        /// The byte of a payload that arrives changed.
        wrong: Option<usize>,
    }

    impl Link for Faulty {
        fn start(&mut self, operation: Operation, mut buffer: Buffer) -> Result<(), Error> {
            self.area.resize(AREA_FRAMES * FRAME_SIZE, 0);
            let range = |part, count, length, frames| {
                let place = operation.part(part, count, length, frames);
                (place, place.frame as usize * FRAME_SIZE + place.offset as usize)
            };
            match &mut buffer {
                Buffer::Out(spans) => {
                    for (part, span) in spans.iter().enumerate() {
                        let (_, start) = range(part, spans.len(), span.len(), AREA_FRAMES);
                        self.area[start..start + span.len()].copy_from_slice(span);
                    }
                }
                Buffer::In(spans) => {
                    let count = spans.len();
                    for (part, span) in spans.iter_mut().enumerate() {
                        let length = span.len();
                        if operation.region == Region::Area {
                            let (_, start) = range(part, count, length, AREA_FRAMES);
                            span.copy_from_slice(&self.area[start..start + length]);
                        } else {
                            let (place, _) = range(part, count, length, 4);
                            pattern::fill(pattern::block_seed(place.frame), place.offset.into(), span);
                        }
                    }
                    let last = spans.len() - 1;
                    if let Some(wrong) = self.wrong {
                        spans[last][wrong] ^= 0x10;
                    }
                }
            }
            self.flying.push(buffer);
            Ok(())
        }

        fn wait(&mut self, ended: &mut Vec<Buffer>, _: Patience) -> Result<(), Error> {
            ended.append(&mut self.flying);
            Ok(())
        }
    }

    fn verify(kind: Kind, bytes: u64, wrong: Option<usize>) -> Result<u32, Error> {
        let link = Box::new(Faulty { wrong, ..Faulty::default() });
        let pool = pool(ByteSize::mib(32)).unwrap();
        Job { kind, number: 0, pool, blocks: 4, seed: 77, link }.verify(bytes)
    }

    #[test]
    fn every_size_is_verified_at_several_places() {
        for kind in [Kind::Write, Kind::Read, Kind::Cache] {
            for bytes in [2, 4096, 1 << 20, 4 << 20, 8 << 20] {
                let expected = if kind == Kind::Write && bytes == 8 << 20 { 1 } else { 2 };
                let transfers = verify(kind, bytes, None).unwrap();
                assert!(transfers >= expected, "{transfers} of {kind} of {bytes}");
            }
        }
    }

    #[test]
    fn one_changed_bit_is_found_and_named_by_its_offset() {
        for kind in [Kind::Write, Kind::Read, Kind::Cache] {
            for (bytes, wrong, expected) in [(4096, 4095, 4095), (8 << 20, 17, (4 << 20) + 17)] {
                match verify(kind, bytes, Some(wrong)) {
                    Err(Error::Mismatch { kind: of, bytes: size, offset, expected: should, found }) => {
                        assert_eq!((of, size, offset, should ^ found), (kind, bytes, expected, 0x10));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
