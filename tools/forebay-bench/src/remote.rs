//! Reads through a mount whose worker is some time away: what programs get that read a file in order, by `read(2)` into the page
//! cache or out of a mapping, when the bytes are in another machine's memory.

use std::time::Duration;

use forebay_testkit::MountProcess;
use rustix::fs::OFlags;

use crate::far;
use crate::fio::{Access, Fio};
use crate::fixture::{BY_DAEMON, Fixture, LARGE};
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, latency, percent, rate};
use crate::rounds;
use crate::through::{Target, daemons};

/// How far away: a round trip through a few switches, with what the kernels of both sides add.
const DISTANCE: Duration = Duration::from_micros(300);
/// What such a read is to reach, in bytes a second.
const TARGET: f64 = 2e9;

/// What is read: the first two have a target, and a quick run reads no others.
fn lines(quick: bool) -> Vec<Fio> {
    let sequential = Fio::new(Access::Sequential);
    let programs = sequential.block(128 << 10);
    let mut lines = vec![programs.buffered(), programs.mapped()];
    if !quick {
        lines.extend([sequential.buffered(), sequential.mapped(), sequential]);
    }
    lines
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("A worker 300 µs away");
    let workers = [far::start(fixture, DISTANCE)?, far::start(fixture, Duration::ZERO)?];
    let mounts = workers.iter().zip(["far", "near"]).map(|(worker, name)| {
        MountProcess::mount(
            &fixture.programs,
            std::slice::from_ref(&worker.address),
            &fixture.mountpoint(name),
            BY_DAEMON,
        )
    });
    let mounts = mounts.collect::<anyhow::Result<Vec<_>>>()?;
    let targets: Vec<Target> = ["300 µs away", "near"]
        .iter()
        .zip(mounts.iter().zip(&workers))
        .map(|(name, (mount, worker))| Target::new(*name, mount.path().join(LARGE), [mount.pid(), worker.pid()]))
        .collect();
    targets.iter().try_for_each(|target| read_to_end(&target.file, OFlags::empty()).map(drop))?;
    let lines = lines(fixture.settings.quick);
    let cases = lines.iter().flat_map(|fio| targets.iter().map(|target| target.case(fixture, *fio)));
    let outcomes = rounds::measure("remote", cases.collect(), fixture.settings.repeat, progress, || ())?;
    mounts.into_iter().try_for_each(MountProcess::unmount)?;

    let text = "One reader of a file that a worker in another process has in memory, over TCP on loopback. `300 µs away`: the worker \
                waits so long before it answers a request. The page cache is empty before each buffered and mapped read. CPU is \
                what worker and mount used together.";
    let header = ["fio", "300 µs away GB/s", "near GB/s", "ratio", "p50/p99 µs", "CPU s/GiB"];
    let mut table = Table::new("Remote", text.to_owned(), &header);
    for (number, (fio, of)) in lines.iter().zip(outcomes.chunks_exact(2)).enumerate() {
        let [far, near] = of else { continue };
        let ratio = far.ratio(near, |sample| sample.rate);
        table.row(vec![fio.name(), rate(far), rate(near), percent(ratio), latency(far), daemons(far)]);
        if number < 2 {
            let what = format!("300 µs away, {}", fio.name());
            report.rate_target(&what, TARGET, far.median(|sample| sample.rate));
        }
    }
    report.table(table);
    report.samples("remote", outcomes);
    Ok(())
}
