//! How much is fetched for what is read: from the origin into an empty cache, and from a worker in another process that has it all.
//!
//! Every row mounts anew, so that nothing is there that a read before it left. What is read here and there lies on multiples of its
//! own length: of a read that begins elsewhere the cache fetches whole sectors, and from an origin whole pieces of 64 KiB. Nothing
//! is read at the beginning of the file: there the kernel takes a buffered reader for a sequential one, and reads ahead itself.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_testkit::{FaultProxy, MountProcess, ProxyCounts, WorkerProcess};
use rustix::fs::OFlags;

use crate::cold::read_small;
use crate::fixture::{Fixture, LARGE};
use crate::mount::{counter, start_worker};
use crate::progress::Progress;
use crate::reading::{Reach, read_at_random, read_to_end};
use crate::report::{Report, Table, number};

/// Bytes fetched for each byte of reads of 4 KiB here and there: the least that is fetched is 64 KiB.
const SMALL_TARGET: f64 = 16.0;
/// And for each byte of any others.
const TARGET: f64 = 1.02;
/// How long fetches ahead of a reader may take after it.
const SETTLE: Duration = Duration::from_secs(20);

const KIB: u64 = 1 << 10;
/// Lengths of long reads here and there.
const LENGTHS: [u64; 4] = [512 * KIB, 1024 * KIB, 2048 * KIB, 4096 * KIB];
/// Bytes that they read in all, at most.
const MAX_TOTAL: u64 = 256 << 20;
/// Reads of 4 KiB.
const SMALL_READS: u64 = 1000;

/// What is read.
#[derive(Clone, Copy)]
enum Read {
    InOrder,
    AtRandom { length: u64, flags: OFlags },
    SmallFiles,
}

impl Read {
    fn random() -> impl Iterator<Item = Self> {
        let of = |flags: OFlags| LENGTHS.map(|length| Self::AtRandom { length, flags });
        of(OFlags::DIRECT).into_iter().chain(of(OFlags::empty()))
    }

    fn name(self) -> String {
        match self {
            Self::InOrder => "1 MiB sequential, the whole file".to_owned(),
            Self::AtRandom { length, .. } if length < LENGTHS[0] => format!("{} KiB random", length / KIB),
            Self::AtRandom { length, flags } => {
                let way = if flags.contains(OFlags::DIRECT) { "direct" } else { "buffered" };
                match length / (1024 * KIB) {
                    0 => format!("{} KiB random, {way}", length / KIB),
                    mebibytes => format!("{mebibytes} MiB random, {way}"),
                }
            }
            Self::SmallFiles => "small files".to_owned(),
        }
    }

    fn target(self) -> Option<f64> {
        match self {
            Self::AtRandom { length, .. } if length < LENGTHS[0] => Some(SMALL_TARGET),
            Self::InOrder | Self::AtRandom { .. } => Some(TARGET),
            Self::SmallFiles => None,
        }
    }

    /// How many bytes were read.
    fn run(self, mount: &Path, keys: &[String]) -> anyhow::Result<u64> {
        match self {
            Self::InOrder => read_to_end(&mount.join(LARGE), OFlags::DIRECT),
            Self::AtRandom { length, flags } if length < LENGTHS[0] => {
                read_at_random(&mount.join(LARGE), flags, Reach { length, apart: 64 * length, most: SMALL_READS })
            }
            Self::AtRandom { length, flags } => {
                read_at_random(&mount.join(LARGE), flags, Reach { length, apart: 2 * length, most: MAX_TOTAL / length })
            }
            Self::SmallFiles => read_small(mount, keys),
        }
    }
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a read fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("What is fetched for what is read");
    cold(fixture, progress, report)?;
    warm(fixture, progress, report)
}

/// Bytes that leave the server for each byte that is read, counted by a proxy between the two.
fn cold(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    let header = ["read", "bytes read", "bytes fetched", "amplification", "GET", "HEAD", "LIST"];
    let text = "Bytes that a fresh `forebay up` takes from the server for the bytes that are asked for, and the requests \
                that it makes. Random reads are at multiples of their length, none next to another.";
    let mut table = Table::new("Read amplification, cold", text.to_owned(), &header);
    let small = Read::AtRandom { length: 4 * KIB, flags: OFlags::DIRECT };
    let reads: Vec<Read> = [Read::InOrder, small].into_iter().chain(Read::random()).chain([Read::SmallFiles]).collect();
    let keys = fixture.small_keys();
    let mut steps = progress.steps("amplification, cold", reads.len());
    for read in reads {
        let name = read.name();
        steps.begin(&name)?;
        let proxy = FaultProxy::start(fixture.server.url().trim_start_matches("http://").parse()?)?;
        let mount = fixture.up(Some(proxy.url()))?;
        let before = proxy.counts();
        let bytes = read.run(mount.path(), &keys)?;
        settle(&mount)?;
        let after = proxy.counts();
        mount.unmount()?;
        let of = |method: &str| {
            let count = |counts: &ProxyCounts| counts.requests.get(method).copied().unwrap_or(0);
            count(&after) - count(&before)
        };
        let (fetched, gets) = (after.bytes - before.bytes, after.object_gets - before.object_gets);
        let ratio = judge(read, "cold", bytes, fetched, report);
        steps.end(&name, &ratio);
        let requests = [gets, of("HEAD"), of("GET") - gets].map(|count| count.to_string());
        table.row([name, bytes.to_string(), fetched.to_string(), ratio].into_iter().chain(requests).collect());
    }
    report.table(table);
    Ok(())
}

/// Bytes that a worker sends a mount for each byte that is read.
fn warm(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    let worker = start_worker(fixture, &[])?;
    let mount = mounted(fixture, &worker)?;
    read_to_end(&mount.path().join(LARGE), OFlags::DIRECT)?;
    mount.unmount()?;
    let text = "Bytes that a worker which has the whole file in memory sends a fresh `forebay mount` over TCP for the bytes that are \
                asked for. Random reads as above.";
    let header = ["read", "bytes read", "bytes sent", "amplification"];
    let mut table = Table::new("Read amplification, warm, over TCP", text.to_owned(), &header);
    let reads: Vec<Read> = [Read::InOrder].into_iter().chain(Read::random()).collect();
    let mut steps = progress.steps("amplification, warm", reads.len());
    for read in reads {
        let name = read.name();
        steps.begin(&name)?;
        let mount = mounted(fixture, &worker)?;
        let sent = || counter(&mount, "/worker/bytes_memory");
        let before = sent()?;
        let bytes = read.run(mount.path(), &[])?;
        settle(&mount)?;
        let sent = sent()? - before;
        mount.unmount()?;
        let ratio = judge(read, "warm, over TCP", bytes, sent, report);
        steps.end(&name, &ratio);
        table.row(vec![name, bytes.to_string(), sent.to_string(), ratio]);
    }
    worker.stop()?;
    report.table(table);
    Ok(())
}

fn mounted(fixture: &Fixture, worker: &WorkerProcess) -> anyhow::Result<MountProcess> {
    let workers = [worker.address().to_string()];
    let over_tcp = ["-o", "network.shared_memory=off"];
    MountProcess::mount(&fixture.programs, &workers, &fixture.mountpoint("amplification"), over_tcp)
}

/// The ratio as it is shown, judged where it has a target.
fn judge(read: Read, how: &str, bytes: u64, fetched: u64, report: &mut Report) -> String {
    let amplified = fetched as f64 / bytes as f64;
    if let Some(target) = read.target() {
        // A reply's headers are no reason to fail: a random read of 64 KiB is 16 times one of 4 KiB, and never less.
        let what = format!("read amplification, {how}, {}", read.name());
        report.times_target(&what, target, (amplified * 100.0).round() / 100.0);
    }
    number(amplified, 2, "")
}

/// Waits until nothing is being fetched.
fn settle(mount: &MountProcess) -> anyhow::Result<()> {
    let deadline = Instant::now() + SETTLE;
    while mount.stats()?["worker"]["fetches"].as_u64().context("`forebay stats --all --json` has no worker.fetches")?
        > 0
    {
        anyhow::ensure!(Instant::now() < deadline, "fetches go on {SETTLE:?} after the last read");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
