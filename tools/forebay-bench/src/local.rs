//! Materialised files: what programs get that read a file through the page cache or map it, when this machine keeps it whole and
//! the kernel reads it without asking the mount. Against the same reads of a tmpfs in huge pages, which is what they lie on; and
//! what a mount's daemon gives them against a FUSE server that does nothing.

use rustix::fs::OFlags;

use crate::fio::{Access, Fio};
use crate::fixture::{BY_DAEMON, Fixture, LARGE};
use crate::huge::HugeTmpfs;
use crate::materialised;
use crate::null::NullServer;
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, latency, percent, rate};
use crate::rounds;
use crate::through::{Target, daemons};

/// What it is to reach of the tmpfs.
const TARGET: f64 = 0.9;
/// The file is read so often in a measurement, opened anew each time: once takes too little time to be measured.
const PASSES: u32 = 8;

/// What is read.
fn lines() -> [Fio; 6] {
    let (large, small) = (Fio::new(Access::Sequential), Fio::new(Access::Sequential).block(128 << 10));
    [
        small.buffered(),
        small.mapped(),
        large.buffered(),
        large.mapped(),
        large.buffered().jobs(4),
        large.mapped().jobs(4),
    ]
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    if !fixture.is_root {
        progress.say("skipped: materialised files: only root mounts the tmpfs that they are compared with");
        return Ok(());
    }
    progress.say("Materialised files");
    let mount = materialised::up(fixture, "local", fixture.settings.size, &[])?;
    if let Some(reason) = materialised::missing(&mount)? {
        progress.say(&format!("skipped: materialised files: {reason}"));
        return mount.unmount();
    }
    materialised::keep(fixture, &mount, LARGE)?;
    let plain = fixture.up_at("daemon", &BY_DAEMON)?;
    read_to_end(&plain.path().join(LARGE), OFlags::empty())?;
    let huge = HugeTmpfs::mount(&fixture.mountpoint("huge"), fixture.settings.size + (64 << 20))?;
    let huge_file = huge.take(&fixture.on_tmpfs())?;
    let null = NullServer::start(fixture, &["device"], progress)?;
    let nothing = null.iter().flat_map(NullServer::targets).next();
    let nothing = nothing.ok_or_else(|| anyhow::anyhow!("there is no FUSE server that does nothing"))?;
    let targets = [
        Target::new("huge tmpfs", huge_file, Vec::new()),
        Target::new("materialised", mount.path().join(LARGE), [mount.pid()]),
        Target::new("daemon", plain.path().join(LARGE), [plain.pid()]),
        nothing,
    ];
    let targets = &targets;
    let lines = fixture.settings.chosen(&lines());
    let cases = lines.iter().flat_map(|fio| {
        let [huge, kept, daemon, nothing] = targets;
        // The page cache would answer the second pass.
        let passed = [huge, kept].map(|target| target.case(fixture, fio.passes(PASSES)));
        passed.into_iter().chain([daemon, nothing].map(|target| target.case(fixture, *fio)))
    });
    let outcomes = rounds::measure("local", cases.collect(), fixture.settings.repeat, progress, || ())?;
    materialised::is_passed_through(&mount, LARGE)?;
    drop(null);
    mount.unmount()?;
    plain.unmount()?;

    let text = format!(
        "The same fio on a file that `forebay up` with `client.local.size` keeps whole, on a tmpfs with `huge=always`, and, for \
         comparison, on a file that is warm in `forebay up` and comes from its daemon (`client.local.size=0`), \
         and on one of a FUSE server that does nothing but copy from memory (`null`). The first two are read {PASSES} times, \
         opened anew each time, the last two once, with an empty page cache. CPU is what the daemon used."
    );
    let header = [
        "fio",
        "materialised GB/s",
        "huge tmpfs GB/s",
        "ratio",
        "from the daemon GB/s",
        "null GB/s",
        "daemon of null",
        "p50/p99 µs",
        "CPU s/GiB",
    ];
    let mut table = Table::new("Materialised files", text, &header);
    for (fio, of) in lines.iter().zip(outcomes.chunks_exact(4)) {
        let [huge, kept, daemon, null] = of else { continue };
        let ratio = kept.ratio(huge, |sample| sample.rate);
        table.row(vec![
            fio.name(),
            rate(kept),
            rate(huge),
            percent(ratio),
            rate(daemon),
            rate(null),
            percent(daemon.ratio(null, |sample| sample.rate)),
            latency(kept),
            daemons(kept),
        ]);
        if fio.jobs == 1 {
            report.ratio_target(&format!("materialised, {}", fio.name()), "the huge-page tmpfs", TARGET, ratio);
        }
    }
    report.table(table);
    report.samples("local", outcomes);
    Ok(())
}
