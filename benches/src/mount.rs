//! Warm reads through a kernel mount: in one process with the worker (`forebay up`), and from a worker in another
//! process over TCP (`forebay worker` and `forebay mount`).

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use forebay_testkit::{MountProcess, WorkerProcess};

use crate::fio::{Access, Fio, count};
use crate::fixture::{Fixture, LARGE};
use crate::iperf::Iperf;
use crate::process::{MemoryWatch, cpu_seconds};
use crate::progress::Progress;
use crate::report::{Report, Table, kilo, latency, percent, rate};
use crate::rounds::{self, Case, Outcome, Sample};

/// What `forebay up` is to reach of tmpfs.
const UP_TARGET: f64 = 0.5;
/// What a mount is to reach of iperf3.
const WORKER_TARGET: f64 = 0.6;
/// No row is compared with more iperf3 streams: what `forebay mount` connects with.
const MOST_STREAMS: u32 = 4;

/// `forebay up` against tmpfs.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn up(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("forebay up: warm reads through the mount");
    let mount = fixture.up(None)?;
    let file = mount.path().join(LARGE);
    read_whole(&file)?;
    let watch = MemoryWatch::start(vec![("`forebay up`".to_owned(), mount.pid())]);
    let fetched = origin_bytes(&mount)?;
    let lines = Fio::all(fixture.settings);
    let pids = [mount.pid()];
    let cases = lines.iter().flat_map(|fio| [through(fixture, *fio, &file, &pids, &mount), on_tmpfs(fixture, *fio)]);
    let outcomes = rounds::measure("up", cases.collect(), fixture.settings.repeat, progress, || watch.warm())?;
    report.memory(watch.finish());
    let fetched = origin_bytes(&mount)? - fetched;
    ensure!(fetched == 0, "the cache was warm, and {fetched} bytes came from the origin all the same");
    mount.unmount()?;

    let header =
        ["fio", "Forebay GB/s", "tmpfs GB/s", "ratio", "Forebay k/s", "p50/p99 µs", "tmpfs p50/p99 µs", "CPU s/GiB"];
    let text = format!(
        "The same fio on a file in the mount and on a tmpfs file of the same bytes. CPU is what the daemon used. {}",
        how_buffered(fixture)
    );
    let mut table = Table::new("Mount, `forebay up`, warm", text, &header);
    for (fio, pair) in lines.iter().zip(outcomes.chunks_exact(2)) {
        let [ours, theirs] = pair else { continue };
        let ratio = ours.ratio(theirs, |sample| sample.rate);
        table.row(vec![
            fio.name(),
            rate(ours),
            rate(theirs),
            percent(ratio),
            kilo(ours),
            latency(ours),
            latency(theirs),
            cpu(ours),
        ]);
        if fio.access == Access::Sequential && fio.direct {
            report.ratio_target(&format!("`up`, {}", fio.name()), "tmpfs", UP_TARGET, ratio);
        }
    }
    report.table(table);
    report.samples("mount", outcomes);
    Ok(())
}

/// A worker and a mount of it against iperf3.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn worker(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("forebay worker and forebay mount: warm reads over TCP");
    let iperf = Iperf::start()?;
    let worker = start_worker(fixture, &[])?;
    let workers = [worker.address().to_string()];
    let none: [&str; 0] = [];
    let mount = MountProcess::mount(&fixture.programs, &workers, &fixture.mountpoint("mount"), none)?;
    let file = mount.path().join(LARGE);
    read_whole(&file)?;
    let processes = [("`forebay worker`", worker.pid()), ("`forebay mount`", mount.pid())];
    let watch = MemoryWatch::start(processes.map(|(name, pid)| (name.to_owned(), pid)).into());
    let fetched = origin_bytes(&mount)?;
    let lines = Fio::all(fixture.settings);
    let pids = [worker.pid(), mount.pid()];
    let iperf = &iperf;
    let cases = lines.iter().flat_map(|fio| {
        let streams = streams(*fio);
        let name = format!("iperf3, {}", count(streams, "stream"));
        let piece = fio.access.block();
        let time = fixture.settings.time;
        let compared =
            (fio.access == Access::Sequential).then(|| Case::new(name, move || iperf.run(streams, piece, time)));
        std::iter::once(through(fixture, *fio, &file, &pids, &mount)).chain(compared)
    });
    let outcomes = rounds::measure("worker", cases.collect(), fixture.settings.repeat, progress, || watch.warm())?;
    report.memory(watch.finish());
    let fetched = origin_bytes(&mount)? - fetched;
    ensure!(fetched == 0, "the cache was warm, and {fetched} bytes came from the origin all the same");
    mount.unmount()?;
    worker.stop()?;

    let header = ["fio", "Forebay GB/s", "iperf3 GB/s", "ratio", "Forebay k/s", "p50/p99 µs", "over TCP", "CPU s/GiB"];
    let text = format!(
        "The same fio on a mount whose worker is another process, over loopback; iperf3 with as many streams as fio has \
         jobs, at most {MOST_STREAMS}, in pieces of 1 MiB. `over TCP`: bytes that the worker sent for each byte read. \
         CPU is what worker and mount used together. {}",
        how_buffered(fixture)
    );
    let mut table = Table::new("Mount, separate worker over TCP, warm", text, &header);
    let mut outcomes_left = outcomes.iter();
    for fio in &lines {
        let Some(ours) = outcomes_left.next() else { break };
        let theirs = if fio.access == Access::Sequential { outcomes_left.next() } else { None };
        let ratio = theirs.map(|theirs| ours.ratio(theirs, |sample| sample.rate));
        table.row(vec![
            fio.name(),
            rate(ours),
            theirs.map_or_else(String::new, rate),
            ratio.map_or_else(String::new, percent),
            kilo(ours),
            latency(ours),
            percent(ours.median(|sample| sample.extra)),
            cpu(ours),
        ]);
        if let Some(ratio) = ratio.filter(|_| fio.direct) {
            let of_what = format!("iperf3 with {}", count(streams(*fio), "stream"));
            report.ratio_target(&format!("worker, {}", fio.name()), &of_what, WORKER_TARGET, ratio);
        }
    }
    report.table(table);
    report.samples("worker", outcomes);
    Ok(())
}

/// A worker in a process of its own, with room for everything.
pub(crate) fn start_worker(fixture: &Fixture, more: &[&str]) -> anyhow::Result<WorkerProcess> {
    let settings = [format!("mounts=/={}", fixture.origin()), format!("worker.memory.size={}", fixture.memory())];
    let settings = settings.into_iter().chain(more.iter().map(|setting| (*setting).to_owned()));
    WorkerProcess::start(&fixture.programs, settings, fixture.server.environment())
}

/// The row's fio through a mount whose daemons are `pids`.
fn through<'a>(fixture: &'a Fixture, fio: Fio, file: &'a Path, pids: &'a [u32], mount: &'a MountProcess) -> Case<'a> {
    Case::new(format!("mount, {}", fio.name()), move || {
        if !fio.direct {
            fixture.drop_page_cache()?;
        }
        let used = || pids.iter().map(|pid| cpu_seconds(*pid)).sum::<anyhow::Result<f64>>();
        let sent = || Ok::<_, anyhow::Error>(counter(mount, "/worker/bytes_memory")? as f64);
        let (cpu_before, sent_before) = (used()?, sent()?);
        let result = fio.run(file, fixture.settings)?;
        let (cpu, sent) = (used()? - cpu_before, sent()? - sent_before);
        let bytes = result.bytes as f64;
        Ok(Sample { cpu: cpu / (bytes / f64::from(1 << 30)), extra: sent / bytes, ..result.sample })
    })
}

fn on_tmpfs(fixture: &Fixture, fio: Fio) -> Case<'_> {
    Case::new(format!("tmpfs, {}", fio.name()), move || {
        let fio = Fio { direct: fio.direct && fixture.tmpfs_is_direct, ..fio };
        Ok(fio.run(&fixture.on_tmpfs(), fixture.settings)?.sample)
    })
}

fn streams(fio: Fio) -> u32 {
    fio.jobs.min(MOST_STREAMS)
}

fn cpu(outcome: &Outcome) -> String {
    format!("{:.2}", outcome.median(|sample| sample.cpu))
}

/// What must be known of the page cache.
fn how_buffered(fixture: &Fixture) -> String {
    let mut text = if fixture.is_root {
        "The page cache is dropped before each buffered run."
    } else {
        "**Not run as root:** before buffered runs the page cache is dropped by nothing but fio's own `fadvise`."
    }
    .to_owned();
    if !fixture.tmpfs_is_direct {
        text.push_str(" This kernel's tmpfs takes no `O_DIRECT`: it is read buffered in all rows.");
    }
    text
}

/// Reads a file from one end to the other.
fn read_whole(path: &Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Bytes that the worker has fetched so far.
fn origin_bytes(mount: &MountProcess) -> anyhow::Result<u64> {
    counter(mount, "/origins/0/counts/bytes")
}

fn counter(mount: &MountProcess, pointer: &str) -> anyhow::Result<u64> {
    let value = mount.stats()?.pointer(pointer).and_then(serde_json::Value::as_u64);
    value.with_context(|| format!("`forebay stats --all --json` has no {pointer}"))
}
