//! Warm reads through a mount whose worker is another process of the same host: through the window onto its memory, over UCX's
//! shared memory (the RDMA transport's code on a machine without a card), and over TCP. Against tmpfs.

use std::time::{Duration, Instant};

use anyhow::ensure;
use forebay_rdma::Library;
use forebay_testkit::{MountProcess, WorkerProcess};
use rustix::fs::OFlags;

use crate::copying;
use crate::fio::{Access, Fio};
use crate::fixture::{BY_DAEMON, Fixture, LARGE};
use crate::mount::start_worker;
use crate::process::{MemoryWatch, exact_cpu_seconds};
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, kilo, latency, mean, number, percent, rate};
use crate::rounds;
use crate::through::{Target, daemons, on_tmpfs};

/// What it is to reach of tmpfs with large reads.
const TARGET: f64 = 0.6;
/// With as many jobs at most.
const JOBS: u32 = 4;
/// What it is to reach of tmpfs with as many jobs, over what.
const JOBS_TARGETS: [(&str, f64); 2] = [("window", 0.75), ("UCX", 0.43)];
/// What one read of 4 KiB may take on average, with no other, in µs, over what.
const SINGLE_TARGETS: [(&str, f64); 2] = [("window", 25.0), ("TCP", 35.0)];
/// What a process that nobody asks for anything may take of a core.
const IDLE_TARGET: f64 = 0.001;
/// How long after the last read that is measured, and for how long.
const IDLE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(30));
/// UCX between two processes of one machine; its listener needs `tcp`.
const TRANSPORTS: &str = "sysv,cma,tcp,self";
/// Makes both ends use it, and nothing else.
const UCX: [&str; 3] =
    ["network.rdma.data.enabled=true", "network.rdma.data.fallback=never", "network.rdma.metadata.enabled=true"];
/// The worker listens where nothing else does.
const LISTEN: [&str; 3] =
    ["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0", "network.rdma.metadata.port=0"];

/// So that bytes are sent.
const NO_WINDOW: &str = "network.shared_memory=off";
/// So that they are not.
const WINDOW: &str = "network.shared_memory=on";

/// The mount's buffers keep what was prefetched. With the default the whole file would come to lie in them, and nothing would cross
/// from process to process any more; this is what the mount over TCP has (`client.memory.size`).
const FEW_BUFFERS: &str = "network.rdma.data.buffer_pool.max_size=256MiB";

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    if let Err(missing) = Library::load(None) {
        progress.say(&format!("skipped: a mount over UCX: {missing}"));
        return Ok(());
    }
    progress.say("forebay worker and forebay mount: warm reads through shared memory");
    report.fact("UCX transports of mount and worker", TRANSPORTS.to_owned());
    let transports = format!("network.rdma.data.transports={TRANSPORTS}");
    let options: Vec<&str> = UCX.into_iter().chain([transports.as_str()]).collect();
    let worker = start_worker(fixture, &[&options[..], &LISTEN].concat())?;
    let mount = mount_of(fixture, "mount-rdma", &worker, &[&options[..], &[FEW_BUFFERS, NO_WINDOW]].concat())?;
    let near_worker = start_worker(fixture, &[WINDOW])?;
    let near_mount = mount_of(fixture, "mount-window", &near_worker, &[WINDOW])?;
    let tcp_worker = start_worker(fixture, &[])?;
    let tcp_mount = mount_of(fixture, "mount-tcp", &tcp_worker, &[NO_WINDOW])?;
    let of = |name: &str, worker: &WorkerProcess, mount: &MountProcess| {
        Target::new(name, mount.path().join(LARGE), [worker.pid(), mount.pid()])
    };
    let near = &of("window", &near_worker, &near_mount);
    let (target, tcp) = (&of("UCX", &worker, &mount), &of("TCP", &tcp_worker, &tcp_mount));
    read_to_end(&near.file, OFlags::empty())?;
    read_to_end(&target.file, OFlags::empty())?;
    read_to_end(&tcp.file, OFlags::empty())?;

    let processes = [
        ("`forebay worker`, UCX", worker.pid()),
        ("`forebay mount`, UCX", mount.pid()),
        ("`forebay worker`, window", near_worker.pid()),
        ("`forebay mount`, window", near_mount.pid()),
    ];
    let watch = MemoryWatch::start(processes.map(|(name, pid)| (name.to_owned(), pid)).into());
    let lines: Vec<Fio> = Fio::all(fixture.settings).into_iter().filter(|fio| fio.jobs <= JOBS).collect();
    let cases = lines
        .iter()
        .flat_map(|fio| {
            [near, target, tcp].map(|target| target.case(fixture, *fio)).into_iter().chain([on_tmpfs(fixture, *fio)])
        })
        .chain(copying::cases(fixture));
    let mut outcomes =
        rounds::measure("mount-rdma", cases.collect(), fixture.settings.repeat, progress, || watch.warm())?;
    let copies = outcomes.split_off(4 * lines.len());
    report.memory(watch.finish());
    let by_ucx = received(&mount)?;
    ensure!(by_ucx >= fixture.settings.size, "only {by_ucx} bytes came over UCX");
    let by_window = crate::counters::count(&crate::counters::of(&near_mount)?, "/window/bytes")?;
    ensure!(by_window >= fixture.settings.size, "only {by_window} bytes were read through the window");
    progress.say("The same while nobody reads");
    let idle = idle(fixture, &[near, target, tcp]);
    for mount in [mount, near_mount, tcp_mount] {
        mount.unmount()?;
    }
    for worker in [worker, near_worker, tcp_worker] {
        worker.stop()?;
    }

    let header = ["fio", "over", "GB/s", "of tmpfs", "of TCP", "k/s", "mean µs", "p50/p99 µs", "CPU s/GiB"];
    let text = "The same fio on mounts whose worker is another process of this host: through the window onto the worker's memory, \
                over UCX's shared memory, and over TCP; and on tmpfs. CPU is what worker and mount used together.";
    let mut table = Table::new("Mount, separate worker, shared memory, warm", text.to_owned(), &header);
    let mut large = Vec::new();
    for (fio, of) in lines.iter().zip(outcomes.chunks_exact(4)) {
        let [near, ucx, tcp, tmpfs] = of else { continue };
        for (over, ours) in [("window", near), ("UCX", ucx), ("TCP", tcp)] {
            let ratio = ours.ratio(tmpfs, |sample| sample.rate);
            table.row(vec![
                fio.name(),
                over.to_owned(),
                rate(ours),
                percent(ratio),
                percent(ours.ratio(tcp, |sample| sample.rate)),
                kilo(ours),
                mean(ours),
                latency(ours),
                daemons(ours),
            ]);
            if fio.access == Access::Sequential && fio.direct {
                if over != "TCP" {
                    let of_jobs = JOBS_TARGETS.iter().find(|(of, _)| fio.jobs == JOBS && *of == over);
                    let goal = of_jobs.map_or(TARGET, |(_, goal)| *goal);
                    report.ratio_target(&format!("separate worker, {over}, {}", fio.name()), "tmpfs", goal, ratio);
                }
                large.push((format!("separate worker, {over}, {}", fio.name()), ours));
            }
            let single = SINGLE_TARGETS.iter().find(|(of, _)| *of == over);
            if let Some((_, goal)) = single.filter(|_| fio.access == Access::Random && fio.direct && fio.jobs == 1) {
                let what = format!("mean of {}, separate worker, {over}", fio.name());
                report.time_target(&what, *goal, ours.median(|sample| sample.mean));
            }
        }
        table.row(vec![
            fio.name(),
            "tmpfs".to_owned(),
            rate(tmpfs),
            String::new(),
            String::new(),
            kilo(tmpfs),
            mean(tmpfs),
            latency(tmpfs),
            String::new(),
        ]);
    }
    report.table(table);
    tabulate_idle(&idle, report);
    copying::compare("separate worker", &large, &copies, report);
    report.samples("mount-rdma", outcomes.into_iter().chain(copies).collect());
    Ok(())
}

fn mount_of(fixture: &Fixture, name: &str, worker: &WorkerProcess, options: &[&str]) -> anyhow::Result<MountProcess> {
    let arguments = options.iter().flat_map(|option| ["-o", option]).chain(BY_DAEMON);
    MountProcess::mount(&fixture.programs, &[worker.address().to_string()], &fixture.mountpoint(name), arguments)
}

/// What each process of `targets` takes of a core while nobody reads, the worker before the mount; NaN where the kernel does not say.
fn idle(fixture: &Fixture, targets: &[&Target]) -> Vec<(String, f64)> {
    let (after, time) = if fixture.settings.quick { (Duration::ZERO, fixture.settings.time) } else { IDLE };
    let used = || targets.iter().flat_map(|target| &target.pids).map(|pid| exact_cpu_seconds(*pid)).collect::<Vec<_>>();
    std::thread::sleep(after);
    let (began, before) = (Instant::now(), used());
    std::thread::sleep(time);
    let (after, took) = (used(), began.elapsed().as_secs_f64());
    let shares = before
        .into_iter()
        .zip(after)
        .map(|(before, after)| before.zip(after).map_or(f64::NAN, |(before, after)| (after - before) / took));
    let names =
        targets.iter().flat_map(|target| ["worker", "mount"].map(|process| format!("{process}, {}", target.name)));
    names.zip(shares).collect()
}

fn tabulate_idle(idle: &[(String, f64)], report: &mut Report) {
    let text = format!(
        "Processor time of the same processes while nobody reads, for {} s, {} s after the last read.",
        IDLE.1.as_secs(),
        IDLE.0.as_secs()
    );
    let mut table = Table::new("Mount, separate worker, idle", text, &["process", "of a core"]);
    for (name, share) in idle {
        table.row(vec![name.clone(), number(share * 100.0, 3, " %")]);
        report.share_target(&format!("idle {name}"), "a core", IDLE_TARGET, *share);
    }
    report.table(table);
}

/// Bytes that a mount has had over UCX.
fn received(mount: &MountProcess) -> anyhow::Result<u64> {
    let stats = crate::counters::of(mount)?;
    crate::counters::count(&stats, "/rdma/paths/rdma/bytes_received")
}
