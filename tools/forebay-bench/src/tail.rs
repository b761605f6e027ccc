//! The slowest reads of a mount while one of three workers stands still, or answers late, and is not dead, every byte compared; and
//! what hedges cost while nothing is wrong: requests, and a slower median against a mount that sends none.
//!
//! Who reads in the place of that worker has its blocks, as another replica does, or fetches them: then they are fresh workers, since
//! these keep what they fetch.

use std::net::SocketAddr;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::relay::Relay;
use crate::report::{Report, Table, number, percent, rate};
use crate::rounds::{self, Case, Outcome, Sample};

const WORKERS: usize = 3;
/// Threads that read.
const READERS: u64 = 4;
/// Bytes in a read.
const READ: usize = 1 << 20;
/// How long a request to the origin takes.
const DISTANCE: Duration = Duration::from_millis(20);
/// How much later a worker answers that has become slow.
const LATE: Duration = Duration::from_millis(200);
/// For so long is read before a worker has a fault: so the mount knows what reads of it take.
const LEAD: Duration = Duration::from_secs(1);
/// Reads count that begin so long after that.
const SETTLE: Duration = Duration::from_secs(1);
/// For so long they do, so that the 99.9th percentile is of some reads: less than a silent worker takes to count as dead.
const TIME: Duration = Duration::from_secs(4);
/// How long a worker that goes on may be left out.
const RECOVER: Duration = Duration::from_secs(60);

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
    progress.say("The slowest reads while one of three workers stands still or is late");
    let distant = &fixture.distant_server(DISTANCE)?;
    let stopping = &Cluster::start(fixture, distant, "hedged", Fault::Stopped)?;
    let plain = &mount(fixture, "plain", &addresses(&stopping.workers), false)?;
    read_to_end(&plain.path().join(LARGE), OFlags::DIRECT)?;
    let late = &Cluster::start(fixture, distant, "late", Fault::Late)?;
    for cluster in [stopping, late] {
        cluster.warm_others()?;
        cluster.recover(fixture, progress)?;
    }
    let warm = |cluster: &Cluster| {
        let sample = sample(fixture, &cluster.mount, || cluster.break_one())?;
        cluster.recover(fixture, progress)?;
        anyhow::Ok(sample)
    };
    let cold = |fault: Fault| {
        let cluster = Cluster::start(fixture, distant, "cold", fault)?;
        sample(fixture, &cluster.mount, || cluster.break_one())
    };
    let named = |fault: Fault, others: &str| format!("{}, {others}", fault.name());
    let have_them = "others have its blocks";
    let fetch_them = format!("others fetch its blocks, {} ms away", DISTANCE.as_millis());
    let cases = vec![
        Case::new("nothing wrong", || sample(fixture, &stopping.mount, || Ok(()))),
        Case::new("nothing wrong, no hedges", || sample(fixture, plain, || Ok(()))),
        Case::new(named(Fault::Stopped, have_them), || warm(stopping)),
        Case::new(named(Fault::Late, have_them), || warm(late)),
        Case::new(named(Fault::Stopped, &fetch_them), || cold(Fault::Stopped)),
        Case::new(named(Fault::Late, &fetch_them), || cold(Fault::Late)),
    ];
    let outcomes = rounds::measure("tail", cases, fixture.settings.repeat, progress, || ())?;
    tabulate(&outcomes, report);
    report.samples("tail", outcomes);
    Ok(())
}

/// What is wrong with one of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It stands still.
    Stopped,
    /// Each of its answers is late.
    Late,
}

impl Fault {
    fn name(self) -> String {
        match self {
            Self::Stopped => "one of three stopped".to_owned(),
            Self::Late => format!("one of three {} ms late", LATE.as_millis()),
        }
    }
}

/// Workers that have the file in memory, each block one of them, and a mount that reads it. They end in this order.
struct Cluster {
    mount: MountProcess,
    /// In front of the first worker, if that is to be late.
    relay: Option<Relay>,
    workers: Vec<WorkerProcess>,
}

impl Cluster {
    fn start(fixture: &Fixture, origin: &S3Process, name: &str, fault: Fault) -> anyhow::Result<Self> {
        let workers = (0..WORKERS).map(|_| worker(fixture, origin)).collect::<anyhow::Result<Vec<_>>>()?;
        let mut addresses = addresses(&workers);
        let first = addresses.first_mut().context("there is no worker")?;
        let relay = match fault {
            Fault::Stopped => None,
            Fault::Late => Some(Relay::start(*first)?),
        };
        if let Some(relay) = &relay {
            *first = relay.address();
        }
        let cluster = Self { mount: mount(fixture, name, &addresses, true)?, relay, workers };
        cluster.read_once()?;
        Ok(cluster)
    }

    /// Has the others fetch the blocks of the first worker.
    fn warm_others(&self) -> anyhow::Result<()> {
        let broken = self.break_one()?;
        self.read_once()?;
        drop(broken);
        Ok(())
    }

    fn read_once(&self) -> anyhow::Result<()> {
        read_to_end(&self.mount.path().join(LARGE), OFlags::DIRECT).map(drop)
    }

    /// The first worker has its fault until what this returns is dropped.
    fn break_one(&self) -> anyhow::Result<Broken<'_>> {
        // Before, so that it goes on if it does not stop as a whole.
        let broken = Broken(self);
        match &self.relay {
            Some(relay) => relay.hold(LATE),
            None => stop_process(self.first()?)?,
        }
        Ok(broken)
    }

    fn mend(&self) -> anyhow::Result<()> {
        match &self.relay {
            Some(relay) => relay.hold(Duration::ZERO),
            None => {
                let process = i32::try_from(self.first()?).ok().and_then(Pid::from_raw).context("no such process")?;
                kill_process(process, Signal::CONT)?;
            }
        }
        Ok(())
    }

    fn first(&self) -> anyhow::Result<u32> {
        Ok(self.workers.first().context("there is no worker")?.pid())
    }

    /// Reads until no read leaves out a worker any more: that one is used again.
    fn recover(&self, fixture: &Fixture, progress: &Progress) -> anyhow::Result<()> {
        let avoided = || counters::count(&counters::of(&self.mount)?, "/client/avoided_reads");
        let deadline = Instant::now() + RECOVER;
        loop {
            let before = avoided()?;
            read(fixture, &self.mount, Duration::ZERO, || Ok(()))?;
            if avoided()? == before {
                return Ok(());
            }
            if Instant::now() > deadline {
                progress.say(&format!("a worker that goes on is left out for more than {RECOVER:?}"));
                return Ok(());
            }
        }
    }
}

/// A cluster of which one worker has a fault for as long as this lives.
struct Broken<'a>(&'a Cluster);

impl Drop for Broken<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.mend() {
            eprintln!("the first worker does not go on: {error:#}");
        }
    }
}

/// A worker whose bytes are sent.
fn worker(fixture: &Fixture, origin: &S3Process) -> anyhow::Result<WorkerProcess> {
    let mounts = format!("mounts=/={}", fixture.origin());
    let settings = [mounts, format!("worker.memory.size={}", fixture.memory()), "network.shared_memory=off".to_owned()];
    WorkerProcess::start(&fixture.programs, settings, origin.environment())
}

fn addresses(workers: &[WorkerProcess]) -> Vec<SocketAddr> {
    workers.iter().map(WorkerProcess::address).collect()
}

/// A mount that keeps little itself.
fn mount(fixture: &Fixture, name: &str, workers: &[SocketAddr], hedges: bool) -> anyhow::Result<MountProcess> {
    let addresses: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let hedges = format!("client.hedge.enabled={hedges}");
    let options = ["network.shared_memory=off", "client.memory.size=64MiB", hedges.as_str()];
    let arguments = options.into_iter().flat_map(|option| ["-o", option]).chain(BY_DAEMON);
    MountProcess::mount(&fixture.programs, &addresses, &fixture.mountpoint(name), arguments)
}

/// Some readers for a while, in the midst of which `begin` is called; `extra` is how many hedges were sent for each read.
fn sample<T>(
    fixture: &Fixture,
    mount: &MountProcess,
    begin: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Sample> {
    let hedges = || counters::count(&counters::of(mount)?, "/client/hedges_sent");
    let time = if fixture.settings.quick { fixture.settings.time } else { TIME };
    let before = hedges()?;
    let (mut latencies, reads) = read(fixture, mount, time, begin)?;
    let extra = (hedges()? - before) as f64 / reads as f64;
    ensure!(!latencies.is_empty(), "no read began later than {SETTLE:?} after the fault");
    let [p999, longest] = latencies.tail();
    Ok(Sample { extra, p999, longest, ..latencies.sample(READ as u32, time) })
}

/// Random reads, compared with the file on tmpfs: how long those took that began [`SETTLE`] or more after `begin`, in `time`, and how
/// many there were in all. What `begin` returns is kept until the last one has ended.
fn read<T>(
    fixture: &Fixture,
    mount: &MountProcess,
    time: Duration,
    begin: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Latencies, u64)> {
    let (path, right) = (mount.path().join(LARGE), fixture.on_tmpfs());
    let places = fixture.settings.size / READ as u64;
    let counts_from: OnceLock<Instant> = OnceLock::new();
    let is_over = AtomicBool::new(false);
    let reader = |number: u64| {
        let (file, right) = (open(&path, OFlags::DIRECT)?, open(&right, OFlags::empty())?);
        let (mut buffer, mut expected) = (Aligned::new(READ), vec![0; READ]);
        let (mut latencies, mut reads) = (Latencies::default(), 0_u64);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64 ^ number;
        while !is_over.load(Ordering::Relaxed) {
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
            if counts_from.get().is_some_and(|from| begins >= *from) {
                latencies.add(took);
            }
        }
        anyhow::Ok((latencies, reads))
    };
    std::thread::scope(|scope| {
        let reader = &reader;
        let readers: Vec<_> = (0..READERS).map(|number| scope.spawn(move || reader(number))).collect();
        std::thread::sleep(LEAD);
        let begun = begin();
        if begun.is_ok() {
            counts_from.get_or_init(|| Instant::now() + SETTLE);
            std::thread::sleep(SETTLE + time);
        }
        is_over.store(true, Ordering::Relaxed);
        let mut all = (Latencies::default(), 0_u64);
        for reader in readers {
            let (latencies, reads) = reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
            all.0.append(latencies);
            all.1 += reads;
        }
        begun.map(|_| all)
    })
}

fn tabulate(outcomes: &[Outcome], report: &mut Report) {
    let text = format!(
        "{READERS} readers of 1 MiB at random places of a file that {WORKERS} workers in processes of their own have in memory, over TCP \
         on loopback; each byte is compared. `stopped`: one worker is stopped by SIGSTOP while they read; `late`: each of its answers \
         comes {} ms later, through a relay. Reads count that began a second after that or later. `others have its blocks`: in memory, \
         as replicas do; `fetch`: from an origin {} ms away, and the workers are fresh in each round. `longest` is that of all rounds.",
        LATE.as_millis(),
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
    if let [hedged, plain, broken @ ..] = outcomes {
        for outcome in broken {
            let tail = outcome.median(|sample| sample.p999);
            report.time_target(&format!("99.9th percentile of reads, {}", outcome.name), TAIL_TARGET, tail);
            report.time_target(&format!("longest read, {}", outcome.name), LONGEST_TARGET, longest(outcome));
        }
        let hedges = hedged.median(|sample| sample.extra);
        report.max_target("hedges while nothing is wrong", "the reads", HEDGES_TARGET, hedges);
        let median = hedged.ratio(plain, |sample| sample.p50);
        report.max_target("median read while nothing is wrong", "that without hedges", MEDIAN_TARGET, median);
    }
}
