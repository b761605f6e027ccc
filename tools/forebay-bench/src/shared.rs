//! Sixteen jobs on one file against sixteen jobs on sixteen files: whatever all readers of a file share (an inode, a lock, a
//! counter, the windows of what is fetched ahead) shows as the difference.

use rustix::fs::OFlags;

use crate::fio::{Access, Fio};
use crate::fixture::{BY_DAEMON, Fixture};
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, kilo, latency, percent, rate};
use crate::rounds;
use crate::through::Target;

/// Jobs, and files.
const JOBS: u32 = 16;
/// What one file is to reach of sixteen.
const TARGET: f64 = 0.95;
/// The one file, and with a number those of each job.
const NAME: &str = "shared.bin";

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    progress.say("Sixteen jobs on one file and on sixteen");
    let size = fixture.settings.size;
    let parts: Vec<String> = (0..JOBS).map(|job| format!("{NAME}.{job}")).collect();
    let all = || parts.iter().map(String::as_str).chain([NAME]);
    fixture.put(NAME, 1000, size)?;
    for (part, seed) in parts.iter().zip(1001..) {
        fixture.put(part, seed, size / u64::from(JOBS))?;
    }
    // The same bytes twice, each in one piece and in sixteen. Of the sixteen files some would be materialised, and the one not.
    let mount = fixture.up_sized("shared", Fixture::memory_for(2 * size), &BY_DAEMON)?;
    all().try_for_each(|name| read_to_end(&mount.path().join(name), OFlags::empty()).map(drop))?;
    let target = Target::new("mount", mount.path().join(NAME), [mount.pid()]);
    let lines = Access::ALL.map(|access| Fio::new(access).jobs(JOBS));
    let cases = lines.iter().flat_map(|fio| [target.case(fixture, *fio), target.case(fixture, fio.apart())]);
    let outcomes = rounds::measure("shared", cases.collect(), fixture.settings.repeat, progress, || ())?;
    mount.unmount()?;
    all().try_for_each(|name| fixture.remove(name))?;

    let text = "Sixteen jobs through the mount of `forebay up`: each on a part of one file, and each on a file of its own of that size.";
    let header = [
        "fio",
        "1 file GB/s",
        "16 files GB/s",
        "ratio",
        "1 file k/s",
        "16 files k/s",
        "p50/p99 µs",
        "16 files p50/p99 µs",
    ];
    let mut table = Table::new("Shared files", text.to_owned(), &header);
    for (fio, pair) in lines.iter().zip(outcomes.chunks_exact(2)) {
        let [one, many] = pair else { continue };
        let ratio = one.ratio(many, |sample| sample.rate);
        table.row(vec![
            fio.name(),
            rate(one),
            rate(many),
            percent(ratio),
            kilo(one),
            kilo(many),
            latency(one),
            latency(many),
        ]);
        report.ratio_target(&format!("shared file, {}", fio.name()), "16 files", TARGET, ratio);
    }
    report.table(table);
    report.samples("shared", outcomes);
    Ok(())
}
