//! Small reads, one at a time and many at once, and what carries them between the kernel and the mount: `/dev/fuse`, or rings
//! of io_uring.
//!
//! Two mounts of the same cache settings stand beside each other, and each read goes through both, to tmpfs, and through a server
//! that does nothing (`null.rs`) over either, in turn. The large reads are in the table because a mount has one channel for all of
//! its requests: what it gains here must not be lost there.

use rustix::fs::OFlags;

use crate::fio::{Access, Engine, Fio};
use crate::fixture::{BY_DAEMON, Fixture, LARGE};
use crate::machine;
use crate::null::{self, NullServer};
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, kilo, latency, mean, percent, rate};
use crate::rounds::{self, Outcome};
use crate::through::{Target, on_tmpfs};

/// What reads of 4 KiB are to reach of tmpfs, 16 under way in each of 4 jobs: an io_uring server that does nothing reaches 47 %.
const QUEUED_TARGET: f64 = 0.45;
/// What their 99th percentile may be of that over `/dev/fuse`.
const TAIL_TARGET: f64 = 1.0 / 3.0;
/// How long one read may take on average, with no other, in µs.
const SINGLE_TARGET: f64 = 15.0;

/// What carries requests, as `fuse.io` has it.
const DEVICE: &str = "device";
const URING: &str = "uring";

/// What is read; in a quick run only what has a target.
fn lines(quick: bool) -> Vec<Fio> {
    let (small, large) = (Fio::new(Access::Random), Fio::new(Access::Sequential));
    let queued = small.queued(16).jobs(4);
    if quick { vec![small, queued] } else { vec![small, small.jobs(4), queued, large, large.jobs(4), large.queued(16)] }
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("Small reads at depth, over /dev/fuse and over io_uring");
    let mut channels = vec![DEVICE];
    if machine::offers_uring() {
        channels.push(URING);
    } else {
        progress.say("skipped: FUSE over io_uring: /sys/module/fuse/parameters/enable_uring is not Y");
    }
    let mounts = channels.iter().map(|channel| {
        let over = format!("fuse.io={channel}");
        fixture.up_at(channel, &[BY_DAEMON, ["-o", &over]].concat())
    });
    let mounts = mounts.collect::<anyhow::Result<Vec<_>>>()?;
    let null = NullServer::start(fixture, &channels, progress)?;
    let mut targets: Vec<Target> = channels
        .iter()
        .zip(&mounts)
        .map(|(channel, mount)| Target::new(*channel, mount.path().join(LARGE), [mount.pid()]))
        .collect();
    targets.iter().try_for_each(|target| read_to_end(&target.file, OFlags::empty()).map(drop))?;
    targets.extend(null.iter().flat_map(NullServer::targets));
    let (targets, measured) = (&targets, 1 + targets.len());
    let lines = lines(fixture.settings.quick);
    let cases = lines.iter().flat_map(|fio| {
        std::iter::once(on_tmpfs(fixture, *fio)).chain(targets.iter().map(move |target| target.case(fixture, *fio)))
    });
    let outcomes = rounds::measure("depth", cases.collect(), fixture.settings.repeat, progress, || ())?;
    drop(null);
    mounts.into_iter().try_for_each(|mount| mount.unmount())?;
    let of_lines = outcomes.chunks_exact(measured).collect::<Vec<_>>();
    tabulate(&channels, &lines, &of_lines, report);
    report.samples("depth", outcomes);
    Ok(())
}

fn tabulate(channels: &[&str], lines: &[Fio], of_lines: &[&[Outcome]], report: &mut Report) {
    let text = "The same fio on tmpfs and on two mounts by `forebay up`, one with `fuse.io=device` and one with `fuse.io=uring`. \
                `null server`: a FUSE file system that does nothing but copy from memory, over the same. \
                `of device`: operations a second against those over `/dev/fuse`, and the 99th percentile likewise. \
                `of null`: against the null server over the same. CPU is what the daemon used.";
    let header = [
        "fio",
        "over",
        "GB/s",
        "k/s",
        "of tmpfs",
        "of device",
        "of null",
        "mean µs",
        "p50/p99 µs",
        "p99 of device",
        "CPU s/GiB",
    ];
    let mut table = Table::new("Depth", text.to_owned(), &header);
    for (fio, of) in lines.iter().zip(of_lines) {
        let [tmpfs, of_mounts @ ..] = *of else { continue };
        let Some((carried, nulls)) = of_mounts.split_at_checked(channels.len()) else { continue };
        let [device, ..] = carried else { continue };
        let none = String::new;
        let own = [rate(tmpfs), kilo(tmpfs), none(), none(), none(), mean(tmpfs), latency(tmpfs), none(), none()];
        table.row([fio.name(), "tmpfs".to_owned()].into_iter().chain(own).collect());
        for (at, (channel, outcome)) in channels.iter().cycle().zip(of_mounts).enumerate() {
            let null = nulls.get(at);
            let name = if at < channels.len() { (*channel).to_owned() } else { null::name(channel) };
            let tail = outcome.ratio(device, |sample| sample.p99);
            table.row(vec![
                fio.name(),
                name,
                rate(outcome),
                kilo(outcome),
                percent(outcome.ratio(tmpfs, |sample| sample.operations)),
                percent(outcome.ratio(device, |sample| sample.operations)),
                null.map_or_else(String::new, |null| percent(outcome.ratio(null, |sample| sample.operations))),
                mean(outcome),
                latency(outcome),
                percent(tail),
                crate::through::daemons(outcome),
            ]);
        }
        judge(*fio, channels, tmpfs, carried, report);
    }
    report.table(table);
}

/// The targets of small reads are those of the better channel: of many at once io_uring, whose tail is measured against the other's.
fn judge(fio: Fio, channels: &[&str], tmpfs: &Outcome, carried: &[Outcome], report: &mut Report) {
    let (Some(channel), Some(outcome)) = (channels.last(), carried.last()) else { return };
    if fio.access != Access::Random {
        return;
    }
    let what = format!("{}, `{channel}`", fio.name());
    match fio.engine {
        Engine::Queued { .. } => {
            report.ratio_target(&what, "tmpfs", QUEUED_TARGET, outcome.ratio(tmpfs, |sample| sample.operations));
            if let [device, uring] = carried {
                let tail = uring.ratio(device, |sample| sample.p99);
                report.max_target(&format!("p99 of {what}"), "that over /dev/fuse", TAIL_TARGET, tail);
            }
        }
        _ if fio.jobs == 1 => {
            let means = channels.iter().zip(carried).map(|(channel, of)| (channel, of.median(|sample| sample.mean)));
            if let Some((channel, mean)) = means.min_by(|(_, a), (_, b)| a.total_cmp(b)) {
                report.time_target(&format!("mean of {}, `{channel}`", fio.name()), SINGLE_TARGET, mean);
            }
        }
        _ => {}
    }
}
