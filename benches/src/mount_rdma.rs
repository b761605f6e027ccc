//! Warm reads through a mount whose worker is another process, over UCX's shared memory: the RDMA transport's code on a machine
//! without a card. Against tmpfs, and against the same over TCP.

use anyhow::ensure;
use forebay_rdma::Library;
use forebay_testkit::{MountProcess, WorkerProcess};
use rustix::fs::OFlags;

use crate::copying;
use crate::fio::{Access, Fio};
use crate::fixture::{Fixture, LARGE};
use crate::mount::start_worker;
use crate::process::MemoryWatch;
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, kilo, latency, percent, rate};
use crate::rounds;
use crate::through::{Target, daemons, on_tmpfs};

/// What it is to reach of tmpfs with large reads.
const TARGET: f64 = 0.6;
/// With as many jobs at most.
const JOBS: u32 = 4;
/// UCX between two processes of one machine; its listener needs `tcp`.
const TRANSPORTS: &str = "posix,cma,tcp,self";
/// Makes both ends use it, and nothing else.
const UCX: [&str; 3] =
    ["network.rdma.data.enabled=true", "network.rdma.data.fallback=never", "network.rdma.metadata.enabled=true"];
/// The worker listens where nobody else does.
const LISTEN: [&str; 3] =
    ["network.rdma.data.bind.host=127.0.0.1", "network.rdma.data.port=0", "network.rdma.metadata.port=0"];

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
    progress.say("forebay worker and forebay mount: warm reads over UCX's shared memory");
    report.fact("UCX transports of mount and worker", TRANSPORTS.to_owned());
    let transports = format!("network.rdma.data.transports={TRANSPORTS}");
    let options: Vec<&str> = UCX.into_iter().chain([transports.as_str()]).collect();
    let worker = start_worker(fixture, &[&options[..], &LISTEN].concat())?;
    let mount = mount_of(fixture, "mount-rdma", &worker, &[&options[..], &[FEW_BUFFERS]].concat())?;
    let tcp_worker = start_worker(fixture, &[])?;
    let tcp_mount = mount_of(fixture, "mount-tcp", &tcp_worker, &[])?;
    let of = |name: &str, worker: &WorkerProcess, mount: &MountProcess| {
        Target::new(name, mount.path().join(LARGE), [worker.pid(), mount.pid()])
    };
    let (target, tcp) = (&of("shared memory", &worker, &mount), &of("TCP", &tcp_worker, &tcp_mount));
    read_to_end(&target.file, OFlags::empty())?;
    read_to_end(&tcp.file, OFlags::empty())?;

    let processes = [("`forebay worker`, UCX", worker.pid()), ("`forebay mount`, UCX", mount.pid())];
    let watch = MemoryWatch::start(processes.map(|(name, pid)| (name.to_owned(), pid)).into());
    let lines: Vec<Fio> = Fio::all(fixture.settings).into_iter().filter(|fio| fio.jobs <= JOBS).collect();
    let cases = lines
        .iter()
        .flat_map(|fio| [target.case(fixture, *fio), tcp.case(fixture, *fio), on_tmpfs(fixture, *fio)])
        .chain(copying::cases(fixture));
    let mut outcomes =
        rounds::measure("mount-rdma", cases.collect(), fixture.settings.repeat, progress, || watch.warm())?;
    let copies = outcomes.split_off(3 * lines.len());
    report.memory(watch.finish());
    let by_ucx = received(&mount)?;
    ensure!(by_ucx >= fixture.settings.size, "only {by_ucx} bytes came over UCX");
    for mount in [mount, tcp_mount] {
        mount.unmount()?;
    }
    for worker in [worker, tcp_worker] {
        worker.stop()?;
    }

    let header = ["fio", "Forebay GB/s", "tmpfs GB/s", "ratio", "of TCP", "Forebay k/s", "p50/p99 µs", "CPU s/GiB"];
    let text = "The same fio on a mount whose worker is another process, over UCX's shared memory, on another such mount over TCP, \
                and on tmpfs. CPU is what worker and mount used together.";
    let mut table = Table::new("Mount, separate worker over shared memory, warm", text.to_owned(), &header);
    let mut large = Vec::new();
    for (fio, of) in lines.iter().zip(outcomes.chunks_exact(3)) {
        let [ours, tcp, tmpfs] = of else { continue };
        let ratio = ours.ratio(tmpfs, |sample| sample.rate);
        table.row(vec![
            fio.name(),
            rate(ours),
            rate(tmpfs),
            percent(ratio),
            percent(ours.ratio(tcp, |sample| sample.rate)),
            kilo(ours),
            latency(ours),
            daemons(ours),
        ]);
        if fio.access == Access::Sequential && fio.direct {
            report.ratio_target(&format!("worker over shared memory, {}", fio.name()), "tmpfs", TARGET, ratio);
            large.push((format!("worker over shared memory, {}", fio.name()), ours));
            large.push((format!("worker over TCP, {}", fio.name()), tcp));
        }
    }
    report.table(table);
    copying::compare("separate worker", &large, &copies, report);
    report.samples("mount-rdma", outcomes.into_iter().chain(copies).collect());
    Ok(())
}

fn mount_of(fixture: &Fixture, name: &str, worker: &WorkerProcess, options: &[&str]) -> anyhow::Result<MountProcess> {
    let arguments = options.iter().flat_map(|option| ["-o", option]);
    MountProcess::mount(&fixture.programs, &[worker.address().to_string()], &fixture.mountpoint(name), arguments)
}

/// Bytes that a mount has had over UCX.
fn received(mount: &MountProcess) -> anyhow::Result<u64> {
    let stats = crate::counters::of(mount)?;
    crate::counters::count(&stats, "/rdma/paths/rdma/bytes_received")
}
