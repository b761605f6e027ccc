//! What the settings of a mount do: one mount for each, all beside each other on one worker, and every read through all of them in
//! turn. The defaults of `fuse.*` are what this said; it is not part of a run unless it is asked for.

use std::time::Duration;

use forebay_testkit::MountProcess;
use rustix::fs::OFlags;

use crate::counters;
use crate::far;
use crate::fio::{Access, Fio};
use crate::fixture::{BY_DAEMON, Fixture, LARGE};
use crate::machine;
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, kilo, percent, rate, times};
use crate::rounds::{self, Case, Outcome, Sample};
use crate::through::Target;

/// How far away the worker is: most settings matter only where an answer takes time.
const DISTANCE: Duration = Duration::from_micros(300);

/// Pages that a program touches that says nothing of its order.
const TOUCHED: u32 = 1000;

/// One setting each, against the first, which changes nothing.
const SETTINGS: [&str; 13] = [
    "",
    "fuse.read_ahead=128KiB",
    "fuse.read_ahead=1MiB",
    "fuse.read_ahead=8MiB",
    "fuse.read_ahead=16MiB",
    "fuse.max_background=16",
    "fuse.max_background=256",
    "fuse.max_read=128KiB",
    "fuse.max_read=512KiB",
    "fuse.threads=1",
    "fuse.threads=4",
    "fuse.io=device",
    "fuse.io=uring",
];

/// What is read.
fn lines() -> [Fio; 7] {
    let (large, small) = (Fio::new(Access::Sequential), Fio::new(Access::Random));
    let programs = large.block(128 << 10);
    [
        programs.buffered(),
        programs.buffered().jobs(16),
        programs.mapped(),
        // The kernel reads around each fault of a program that says nothing of its order.
        small.mapped().unadvised(TOUCHED),
        large.jobs(4),
        small,
        small.queued(16).jobs(4),
    ]
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    let settings: Vec<&str> =
        SETTINGS.into_iter().filter(|setting| *setting != "fuse.io=uring" || machine::offers_uring()).collect();
    progress.say(&format!("{} settings of a mount", settings.len() - 1));
    let worker = far::start(fixture, DISTANCE)?;
    let mounts = settings.iter().enumerate().map(|(number, setting)| {
        let own: &[&str] = if setting.is_empty() { &[] } else { &["-o", setting] };
        let options = [&BY_DAEMON[..], own].concat();
        let place = fixture.mountpoint(&format!("tuned-{number}"));
        MountProcess::mount(&fixture.programs, std::slice::from_ref(&worker.address), &place, options)
    });
    let mounts = mounts.collect::<anyhow::Result<Vec<_>>>()?;
    let targets: Vec<Target> = settings
        .iter()
        .zip(&mounts)
        .map(|(setting, mount)| {
            let name = if setting.is_empty() { "default" } else { setting };
            Target::new(name, mount.path().join(LARGE), [mount.pid()])
        })
        .collect();
    targets.iter().try_for_each(|target| read_to_end(&target.file, OFlags::empty()).map(drop))?;
    let pairs = || targets.iter().zip(&mounts);
    let cases =
        lines().into_iter().flat_map(|fio| pairs().map(move |(target, mount)| counted(fixture, fio, target, mount)));
    let outcomes = rounds::measure("tuning", cases.collect(), fixture.settings.repeat, progress, || ())?;
    drop(targets);
    mounts.into_iter().try_for_each(MountProcess::unmount)?;

    let rows: Vec<&[Outcome]> = outcomes.chunks_exact(settings.len()).collect();
    let text = "Mounts of a worker 300 µs away, each with one setting that is not the default; reads a second against those through the mount \
                without one. The last column: bytes that the kernel asked the mount for, for each byte that a program touched at \
                random in a mapping."
        .to_owned();
    let names: Vec<String> = lines().map(Fio::name).into();
    let header: Vec<&str> = std::iter::once("setting")
        .chain(names.iter().map(String::as_str))
        .chain(["bytes asked for, random mmap"])
        .collect();
    let mut table = Table::new("Settings of a mount", text, &header);
    for (number, setting) in settings.iter().enumerate() {
        let cells = lines().into_iter().zip(&rows).filter_map(|(fio, of)| {
            let (default, own) = (of.first()?, of.get(number)?);
            let shown = if fio.access == Access::Sequential { rate(own) } else { kilo(own) };
            let ratio = own.ratio(default, |sample| sample.operations);
            Some(if number == 0 { shown } else { percent(ratio) })
        });
        let touched = rows.get(RANDOM_MMAP).and_then(|of| of.get(number));
        let asked = touched.map_or_else(String::new, |of| times(of.median(|sample| sample.extra), 0));
        let name =
            if setting.is_empty() { "default, GB/s or thousands a second".to_owned() } else { format!("`{setting}`") };
        table.row(std::iter::once(name).chain(cells).chain([asked]).collect());
    }
    report.table(table);
    report.samples("tuning", outcomes);
    Ok(())
}

/// Which of the reads is random in a mapping.
const RANDOM_MMAP: usize = 3;

/// A measurement with the bytes that the kernel asked the mount for, for each byte read.
fn counted<'a>(fixture: &'a Fixture, fio: Fio, target: &'a Target, mount: &'a MountProcess) -> Case<'a> {
    Case::new(format!("{}, {}", target.name, fio.name()), move || {
        let served = || counters::count(&counters::of(mount)?, "/fuse/read_bytes");
        let before = served()?;
        let result = target.run(fixture, fio)?;
        Ok(Sample { extra: (served()? - before) as f64 / result.bytes as f64, ..result.sample })
    })
}
