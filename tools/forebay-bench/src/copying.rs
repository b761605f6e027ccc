//! `cp` from tmpfs: what moving bytes costs a program that asks no other process for them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::fixture::Fixture;
use crate::process::cpu_seconds_of_ended_children;
use crate::report::{Report, Table, percent, rate, seconds};
use crate::rounds::{Case, Outcome, Sample};
use crate::through::all_seconds;

/// What mount and worker may take of `cp`'s processor time.
const TARGET: f64 = 1.5;

/// `cp` of the large file from tmpfs: to nowhere, and to tmpfs.
pub(crate) fn cases(fixture: &Fixture) -> [Case<'_>; 2] {
    let nowhere = move || copy(fixture, Path::new("/dev/null"));
    let to_tmpfs = move || {
        let target = fixture.on_tmpfs().with_extension("copy");
        let sample = copy(fixture, &target);
        // A failure of `cp` says more.
        let removed = std::fs::remove_file(&target);
        let sample = sample?;
        removed?;
        Ok(sample)
    };
    [Case::new("cp from tmpfs to /dev/null", nowhere), Case::new("cp from tmpfs to tmpfs", to_tmpfs)]
}

/// One copy takes a few ticks of the processor's clock, so it is done again and again.
fn copy(fixture: &Fixture, target: &Path) -> anyhow::Result<Sample> {
    let (before, began, mut bytes) = (cpu_seconds_of_ended_children()?, Instant::now(), 0);
    while bytes == 0 || began.elapsed() < fixture.settings.time {
        let status = Command::new("cp")
            .arg(fixture.on_tmpfs())
            .arg(target)
            .stdin(Stdio::null())
            .status()
            .context("cannot run cp")?;
        ensure!(status.success(), "cp to {} failed", target.display());
        bytes += fixture.settings.size;
    }
    let (rate, gibibytes) = (bytes as f64 / began.elapsed().as_secs_f64(), bytes as f64 / f64::from(1 << 30));
    let reader = (cpu_seconds_of_ended_children()? - before) / gibibytes;
    Ok(Sample { rate, reader, ..Sample::default() })
}

/// The processor time of reads through a mount, by name, against that of the two `cp`s.
pub(crate) fn compare(what: &str, reads: &[(String, &Outcome)], copies: &[Outcome], report: &mut Report) {
    let [nowhere, to_tmpfs] = copies else { return };
    let title = format!("Processor time, {what}, warm");
    let text = "Seconds of processor time, in user space and in the kernel, for each GiB: of the daemons, of fio, and of both \
                together against `cp` from tmpfs to `/dev/null`, which copies each byte once, and to another file on tmpfs, \
                which does so twice and takes new pages.";
    let header =
        ["read", "GB/s", "daemons s/GiB", "reader s/GiB", "daemons / cp to nowhere", "all / cp to nowhere", "all / cp"];
    let mut table = Table::new(&title, text.to_owned(), &header);
    for (name, outcome) in reads {
        let ratio = |copy: &Outcome, ours: fn(&crate::rounds::Sample) -> f64| {
            let pairs = outcome.samples.iter().zip(&copy.samples);
            crate::rounds::median(pairs.map(|(sample, copy)| ours(sample) / copy.reader))
        };
        let served = ratio(nowhere, |sample| sample.cpu);
        let (strict, plain) = (ratio(nowhere, all_seconds), ratio(to_tmpfs, all_seconds));
        table.row(vec![
            name.clone(),
            rate(outcome),
            seconds(outcome.median(|sample| sample.cpu)),
            seconds(outcome.median(|sample| sample.reader)),
            percent(served),
            percent(strict),
            percent(plain),
        ]);
        report.max_target(&format!("CPU of mount and worker, {name}"), "`cp` to /dev/null", TARGET, served);
        report.max_target(&format!("CPU of mount, worker and reader, {name}"), "`cp` to /dev/null", TARGET, strict);
    }
    for (name, copy) in [("`cp` from tmpfs to `/dev/null`", nowhere), ("`cp` from tmpfs to tmpfs", to_tmpfs)] {
        let own = seconds(copy.median(|sample| sample.reader));
        let none = String::new;
        table.row(vec![name.to_owned(), rate(copy), none(), own, none(), none(), none()]);
    }
    report.table(table);
}
