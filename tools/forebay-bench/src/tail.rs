//! The slowest reads of a mount while one of three workers stands still and is not dead, every byte compared; and what hedges cost
//! while nothing is wrong: requests, and a slower median against a mount that sends none.

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use forebay_testkit::{MountProcess, S3Process, WorkerProcess, stop_process};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::counters;
use crate::fixture::{BY_DAEMON, Fixture, LARGE};
use crate::latencies::Latencies;
use crate::progress::Progress;
use crate::reading::{Aligned, open, read_to_end};
use crate::report::{Report, Table, number, percent, rate};
use crate::rounds::{self, Case, Outcome, Sample};

const WORKERS: usize = 3;
/// Threads that read.
const READERS: u64 = 4;
/// Bytes in a read.
const READ: usize = 1 << 20;
/// How long a request to the origin takes, which has what the stopped worker has.
const DISTANCE: Duration = Duration::from_millis(20);
/// Reads count that begin so long after a worker was stopped.
const SETTLE: Duration = Duration::from_secs(1);
/// For so long they do, so that the 99.9th percentile is of some reads: less than a silent worker takes to count as dead.
const TIME: Duration = Duration::from_secs(4);
/// How long a worker that goes on has to be used again.
const RECOVER: Duration = Duration::from_secs(3);

/// What the 99.9th percentile may be, in µs.
const TAIL_TARGET: f64 = 250_000.0;
/// What the longest read may be.
const LONGEST_TARGET: f64 = 1_000_000.0;
/// Requests that are sent once more while nothing is wrong, of all.
const HEDGES_TARGET: f64 = 0.01;
/// The median with hedges, of that without: what tells no difference in such a run.
const MEDIAN_TARGET: f64 = 1.02;

/// Measures it.
///
/// # Errors
/// When a part does not start, a read fails or has wrong bytes.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("The slowest reads while one of three workers stands still");
    let distant = fixture.distant_server(DISTANCE)?;
    let workers = (0..WORKERS).map(|_| worker(fixture, &distant)).collect::<anyhow::Result<Vec<_>>>()?;
    let hedged = &mount(fixture, "hedged", &workers, true)?;
    let plain = &mount(fixture, "plain", &workers, false)?;
    for mount in [hedged, plain] {
        read_to_end(&mount.path().join(LARGE), OFlags::DIRECT)?;
    }
    let first = workers.first().context("there is no worker")?.pid();
    let stopped = || {
        let stopped = Stopped::new(first)?;
        let sample = sample(fixture, hedged)?;
        drop(stopped);
        std::thread::sleep(RECOVER);
        Ok(sample)
    };
    let cases = vec![
        Case::new("nothing wrong", || sample(fixture, hedged)),
        Case::new("nothing wrong, no hedges", || sample(fixture, plain)),
        Case::new("one of three workers stopped", stopped),
    ];
    let outcomes = rounds::measure("tail", cases, fixture.settings.repeat, progress, || ())?;
    tabulate(&outcomes, report);
    report.samples("tail", outcomes);
    Ok(())
}

/// A worker whose bytes are sent.
fn worker(fixture: &Fixture, origin: &S3Process) -> anyhow::Result<WorkerProcess> {
    let mounts = format!("mounts=/={}", fixture.origin());
    let settings = [mounts, format!("worker.memory.size={}", fixture.memory()), "network.shared_memory=off".to_owned()];
    WorkerProcess::start(&fixture.programs, settings, origin.environment())
}

/// A mount that keeps little itself.
fn mount(fixture: &Fixture, name: &str, workers: &[WorkerProcess], hedges: bool) -> anyhow::Result<MountProcess> {
    let addresses: Vec<String> = workers.iter().map(|worker| worker.address().to_string()).collect();
    let hedges = format!("client.hedge.enabled={hedges}");
    let options = ["network.shared_memory=off", "client.memory.size=64MiB", hedges.as_str()];
    let arguments = options.into_iter().flat_map(|option| ["-o", option]).chain(BY_DAEMON);
    MountProcess::mount(&fixture.programs, &addresses, &fixture.mountpoint(name), arguments)
}

/// A process that stands still for as long as this lives.
struct Stopped(Option<Pid>);

impl Stopped {
    fn new(pid: u32) -> anyhow::Result<Self> {
        let stopped = Self(i32::try_from(pid).ok().and_then(Pid::from_raw));
        stop_process(pid)?;
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(pid) = self.0
            && let Err(error) = kill_process(pid, Signal::CONT)
        {
            eprintln!("process {} does not go on: {error}", pid.as_raw_nonzero());
        }
    }
}

/// Some readers for a while; `extra` is how many hedges were sent for each read.
fn sample(fixture: &Fixture, mount: &MountProcess) -> anyhow::Result<Sample> {
    let hedges = || counters::count(&counters::of(mount)?, "/client/hedges_sent");
    let time = if fixture.settings.quick { fixture.settings.time } else { TIME };
    let before = hedges()?;
    let (mut latencies, reads) = read(fixture, mount, time)?;
    let extra = (hedges()? - before) as f64 / reads as f64;
    ensure!(!latencies.is_empty(), "no read began later than {SETTLE:?} after the first one");
    let [p999, longest] = latencies.tail();
    Ok(Sample { extra, p999, longest, ..latencies.sample(READ as u32, time) })
}

/// Random reads, compared with the file on tmpfs: how long those took that began after [`SETTLE`], and how many there were in all.
fn read(fixture: &Fixture, mount: &MountProcess, time: Duration) -> anyhow::Result<(Latencies, u64)> {
    let (path, right, began) = (mount.path().join(LARGE), fixture.on_tmpfs(), Instant::now());
    let places = fixture.settings.size / READ as u64;
    let reader = |number: u64| {
        let (file, right) = (open(&path, OFlags::DIRECT)?, open(&right, OFlags::empty())?);
        let (mut buffer, mut expected) = (Aligned::new(READ), vec![0; READ]);
        let (mut latencies, mut reads) = (Latencies::default(), 0_u64);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ number;
        while began.elapsed() < SETTLE + time {
            // xorshift64
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let place = random % places * READ as u64;
            let begins = Instant::now();
            file.read_exact_at(buffer.get(READ), place).with_context(|| format!("cannot read {}", path.display()))?;
            let took = begins.elapsed();
            right.read_exact_at(&mut expected, place)?;
            ensure!(*buffer.get(READ) == expected[..], "other bytes were read at {place}");
            reads += 1;
            if begins.duration_since(began) >= SETTLE {
                latencies.add(took);
            }
        }
        anyhow::Ok((latencies, reads))
    };
    std::thread::scope(|scope| {
        let reader = &reader;
        let readers: Vec<_> = (0..READERS).map(|number| scope.spawn(move || reader(number))).collect();
        let mut all = (Latencies::default(), 0_u64);
        for reader in readers {
            let (latencies, reads) = reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
            all.0.append(latencies);
            all.1 += reads;
        }
        Ok(all)
    })
}

fn tabulate(outcomes: &[Outcome], report: &mut Report) {
    let text = format!(
        "{READERS} readers of 1 MiB at random places of a file that {WORKERS} workers in processes of their own have in memory, over TCP \
         on loopback; each byte is compared. The origin is {} ms away. `one of three workers stopped`: by SIGSTOP, and reads count that \
         began a second later or more. `longest` is that of all rounds.",
        DISTANCE.as_millis()
    );
    let header = ["while", "GB/s", "p50 ms", "p99 ms", "p99.9 ms", "longest ms", "hedges of reads"];
    let mut table = Table::new("The slowest reads", text, &header);
    let longest = |of: &Outcome| of.samples.iter().map(|sample| sample.longest).fold(0.0, f64::max);
    for outcome in outcomes {
        let milliseconds = |of: fn(&Sample) -> f64| number(outcome.median(of) / 1e3, 2, "");
        table.row(vec![
            outcome.name.clone(),
            rate(outcome),
            milliseconds(|sample| sample.p50),
            milliseconds(|sample| sample.p99),
            milliseconds(|sample| sample.p999),
            number(longest(outcome) / 1e3, 1, ""),
            percent(outcome.median(|sample| sample.extra)),
        ]);
    }
    report.table(table);
    if let [hedged, plain, stopped] = outcomes {
        let tail = stopped.median(|sample| sample.p999);
        report.time_target("99.9th percentile of reads, one of three workers stopped", TAIL_TARGET, tail);
        report.time_target("longest read, one of three workers stopped", LONGEST_TARGET, longest(stopped));
        let hedges = hedged.median(|sample| sample.extra);
        report.max_target("hedges while nothing is wrong", "the reads", HEDGES_TARGET, hedges);
        let median = hedged.ratio(plain, |sample| sample.p50);
        report.max_target("median read while nothing is wrong", "that without hedges", MEDIAN_TARGET, median);
    }
}
