//! Warm reads through a kernel mount: in one process with the worker (`forebay up`), and from a worker in another
//! process over TCP (`forebay worker` and `forebay mount`).

use anyhow::{Context as _, ensure};
use forebay_testkit::{MountProcess, WorkerProcess};
use rustix::fs::OFlags;

use crate::copying;
use crate::fio::{Access, Fio, count};
use crate::fixture::{BY_DAEMON, Fixture, LARGE};
use crate::iperf::Iperf;
use crate::null::NullServer;
use crate::process::MemoryWatch;
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, kilo, latency, percent, rate};
use crate::rounds::{self, Case, Outcome, Sample};
use crate::through::{Target, daemons, on_tmpfs};

/// What `forebay up` is to reach of tmpfs: a server that does nothing reaches 76 to 83 %.
const UP_TARGET: f64 = 0.75;
/// With as many jobs at most: more than two for each processor measure the scheduler.
const UP_JOBS: u32 = 4;
/// What a mount is to reach of iperf3.
const WORKER_TARGET: f64 = 0.6;
/// No row is compared with more iperf3 streams: what `forebay mount` connects with.
const MAX_STREAMS: u32 = 4;

/// `forebay up` against tmpfs.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn up(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("forebay up: warm reads through the mount");
    let mount = fixture.up_at("up", &BY_DAEMON)?;
    let target = Target::new("mount", mount.path().join(LARGE), [mount.pid()]);
    read_to_end(&target.file, OFlags::empty())?;
    let null = NullServer::start(fixture, &["device"], progress)?;
    let targets: Vec<Target> = std::iter::once(target).chain(null.iter().flat_map(NullServer::targets)).collect();
    let watch = MemoryWatch::start(vec![("`forebay up`".to_owned(), mount.pid())]);
    let fetched = origin_bytes(&mount)?;
    let lines = Fio::all(fixture.settings);
    let measured = targets.len() + 1;
    let cases = lines.iter().flat_map(|fio| {
        let through = targets.iter().map(|target| target.case(fixture, *fio));
        through.chain([on_tmpfs(fixture, *fio)])
    });
    let cases = cases.chain(copying::cases(fixture));
    let mut outcomes = rounds::measure("up", cases.collect(), fixture.settings.repeat, progress, || watch.warm())?;
    let copies = outcomes.split_off(measured * lines.len());
    drop(null);
    report.memory(watch.finish());
    let fetched = origin_bytes(&mount)? - fetched;
    ensure!(fetched == 0, "the cache was warm, and {fetched} bytes came from the origin all the same");
    mount.unmount()?;

    let header = [
        "fio",
        "Forebay GB/s",
        "null GB/s",
        "tmpfs GB/s",
        "of null",
        "of tmpfs",
        "Forebay k/s",
        "null k/s",
        "p50/p99 µs",
        "null p50/p99 µs",
        "tmpfs p50/p99 µs",
        "CPU s/GiB",
        "null CPU s/GiB",
    ];
    let text = format!(
        "The same fio on a file in the mount, in a FUSE file system that does nothing but copy from memory (`null`), and on a tmpfs \
         file, all of the same bytes. What the null server lacks of tmpfs is what the kernel's FUSE takes, on this machine in this \
         run. CPU is what the daemon used. {}",
        how_buffered(fixture)
    );
    let mut table = Table::new("Mount, `forebay up`, warm", text, &header);
    for (fio, of) in lines.iter().zip(outcomes.chunks_exact(measured)) {
        let [ours, null @ .., tmpfs] = of else { continue };
        let ratio = ours.ratio(tmpfs, |sample| sample.rate);
        let of_null = |shown: &dyn Fn(&Outcome) -> String| null.first().map_or_else(String::new, shown);
        table.row(vec![
            fio.name(),
            rate(ours),
            of_null(&rate),
            rate(tmpfs),
            of_null(&|null| percent(ours.ratio(null, |sample| sample.rate))),
            percent(ratio),
            kilo(ours),
            of_null(&kilo),
            latency(ours),
            of_null(&latency),
            latency(tmpfs),
            daemons(ours),
            of_null(&daemons),
        ]);
        if fio.access == Access::Sequential && fio.direct && fio.jobs <= UP_JOBS {
            report.ratio_target(&format!("`up`, {}", fio.name()), "tmpfs", UP_TARGET, ratio);
        }
    }
    report.table(table);
    let reads = lines.iter().zip(outcomes.chunks_exact(measured)).filter_map(|(fio, of)| {
        let is_judged = fio.access == Access::Sequential && fio.direct && fio.jobs <= UP_JOBS;
        is_judged.then(|| Some((format!("`up`, {}", fio.name()), of.first()?))).flatten()
    });
    copying::compare("`forebay up`", &reads.collect::<Vec<_>>(), &copies, report);
    report.samples("mount", outcomes.into_iter().chain(copies).collect());
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
    // It is about what is sent.
    let arguments = [BY_DAEMON, ["-o", "network.shared_memory=off"]].concat();
    let mount = MountProcess::mount(&fixture.programs, &workers, &fixture.mountpoint("mount"), arguments)?;
    let target = Target::new("mount", mount.path().join(LARGE), [worker.pid(), mount.pid()]);
    read_to_end(&target.file, OFlags::empty())?;
    let processes = [("`forebay worker`", worker.pid()), ("`forebay mount`", mount.pid())];
    let watch = MemoryWatch::start(processes.map(|(name, pid)| (name.to_owned(), pid)).into());
    let fetched = origin_bytes(&mount)?;
    let lines = Fio::all(fixture.settings);
    let (iperf, target, mount_ref) = (&iperf, &target, &mount);
    let cases = lines.iter().flat_map(|fio| {
        let streams = streams(*fio);
        let name = format!("iperf3, {}", count(streams, "stream"));
        let piece = fio.access.block();
        let time = fixture.settings.time;
        let compared =
            (fio.access == Access::Sequential).then(|| Case::new(name, move || iperf.run(streams, piece, time)));
        std::iter::once(counted(fixture, *fio, target, mount_ref)).chain(compared)
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
         jobs, at most {MAX_STREAMS}, in pieces of 1 MiB. `over TCP`: bytes that the worker sent for each byte read. \
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
            daemons(ours),
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

/// The row's fio, and for each byte that it read those that came from the worker's memory.
fn counted<'a>(fixture: &'a Fixture, fio: Fio, target: &'a Target, mount: &'a MountProcess) -> Case<'a> {
    Case::new(format!("mount, {}", fio.name()), move || {
        let sent = || Ok::<_, anyhow::Error>(counter(mount, "/worker/bytes_memory")? as f64);
        let before = sent()?;
        let result = target.run(fixture, fio)?;
        Ok(Sample { extra: (sent()? - before) / result.bytes as f64, ..result.sample })
    })
}

fn streams(fio: Fio) -> u32 {
    fio.jobs.min(MAX_STREAMS)
}

/// What must be known of the page cache.
pub(crate) fn how_buffered(fixture: &Fixture) -> String {
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

/// Bytes that the worker has fetched so far.
fn origin_bytes(mount: &MountProcess) -> anyhow::Result<u64> {
    counter(mount, "/origins/0/counts/bytes")
}

pub(crate) fn counter(mount: &MountProcess, pointer: &str) -> anyhow::Result<u64> {
    let value = mount.stats()?.pointer(pointer).and_then(serde_json::Value::as_u64);
    value.with_context(|| format!("`forebay stats --all --json` has no {pointer}"))
}
