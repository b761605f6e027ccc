//! Files that are read for the second time, from `forebay up` as it comes: while a file is read from its start, or mapped, it is
//! materialised, and from its next open on the kernel reads it by itself. Against the same reads of a tmpfs in huge pages.
//!
//! Each round mounts anew, with an empty cache. Beside it stand the first reads, and those of a mapping that is touched at random; and
//! what memory the process takes while twice as much is read as its cache holds, every file twice.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_testkit::MountProcess;
use forebay_types::ByteSize;
use rustix::fs::OFlags;

use crate::counters;
use crate::fio::{Access, Fio};
use crate::fixture::{Fixture, LARGE};
use crate::huge::HugeTmpfs;
use crate::materialised;
use crate::process::{Memory, MemoryWatch, shared_memory, taken};
use crate::progress::Progress;
use crate::reading::read_to_end;
use crate::report::{Report, Table, number, percent, rate};
use crate::rounds::{self, Case, Outcome, Sample};
use crate::settings::Settings;
use crate::through::{Target, daemons};

/// What second reads are to reach of the tmpfs.
const TARGET: f64 = 0.9;
/// What random faults all over a cold file are to reach of the same in order: 1.2 times as long at most.
const RANDOM_TARGET: f64 = 1.0 / 1.2;
/// What the process may take of `worker.memory.size`.
const MEMORY_TARGET: f64 = 1.15;
/// The file is read so often in a measurement of second reads, opened anew each time: once takes too little time.
const PASSES: u32 = 4;
/// A first read is not cut short.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a file may take to be whole, after it was read. What is later is read from the daemon.
const WHOLE_WITHIN: Duration = Duration::from_secs(10);
/// What a first read needs of memory: its blocks, the file, and the page cache.
const NEEDS: u64 = 3;
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes in a read of programs.
const BLOCK: u32 = 128 << 10;
/// Files of the section on memory: together twice the large file, and so twice the cache.
const FILES: u64 = 32;
/// How often they are read at most to fill the cache.
const FILLING: usize = 10;
/// The least that `up` lends files memory of.
const MIN_MEMORY: u64 = 128 << 20;

/// What is read twice.
fn lines() -> [Fio; 4] {
    let programs = Fio::new(Access::Sequential).block(BLOCK);
    [programs.buffered(), programs.buffered().jobs(4), programs.mapped(), programs.mapped().jobs(4)]
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a measurement fails.
pub(crate) fn measure(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    if !fixture.is_root {
        progress.say("skipped: files that are read twice: only root mounts the tmpfs that they are compared with");
        return Ok(());
    }
    progress.say("Files that are read twice");
    let mount = fixture.up_sized("again", fixture.ample_memory(), &[])?;
    let missing = materialised::missing(&mount)?;
    mount.unmount()?;
    if let Some(reason) = missing {
        progress.say(&format!("skipped: files that are read twice: {reason}"));
        return Ok(());
    }
    // First, while nothing else of ours goes from tmpfs.
    memory(fixture, progress, report)?;
    speed(fixture, progress, report)
}

fn speed(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    let tmpfs = HugeTmpfs::mount(&fixture.mountpoint("huge"), fixture.settings.size + (64 << 20))?;
    let huge = &Target::new("huge tmpfs", tmpfs.take(&fixture.on_tmpfs())?, Vec::new());
    let lines = fixture.settings.chosen(&lines());
    let mounted: &RefCell<Option<MountProcess>> = &RefCell::default();
    let cases = lines.iter().flat_map(|fio| {
        let fio = *fio;
        let first = move || {
            let (mount, sample) = read_cold(fixture, fio)?;
            let sample = Sample { extra: until_whole(&mount)?, ..sample };
            mounted.replace(Some(mount));
            Ok(sample)
        };
        let second = move || {
            let mount = mounted.take().context("nothing is mounted")?;
            let target = Target::new("second", mount.path().join(LARGE), [mount.pid()]);
            let sample = target.run(fixture, fio.passes(PASSES))?.sample;
            let passed = counters::count(&counters::of(&mount)?, "/local/handles/passed")?;
            mount.unmount()?;
            Ok(Sample { extra: passed as f64, ..sample })
        };
        let name = |which: &str| format!("{which}, {}", fio.name());
        [Case::new(name("first"), first), Case::new(name("second"), second), huge.case(fixture, fio.passes(PASSES))]
    });
    let reads = u32::try_from(fixture.settings.size / u64::from(BLOCK))?;
    let faults =
        [Access::Sequential, Access::Random].map(|access| Fio::new(access).block(BLOCK).mapped().unadvised(reads));
    let cold = faults.map(|fio| {
        Case::new(format!("first, {}", fio.name()), move || {
            let (mount, sample) = read_cold(fixture, fio)?;
            mount.unmount()?;
            Ok(sample)
        })
    });
    let cases = cases.chain(cold).collect();
    let outcomes = rounds::measure("again", cases, fixture.settings.repeat, progress, || ())?;
    tabulate(&lines, &outcomes, report);
    report.samples("again", outcomes);
    Ok(())
}

/// What fio reads of the large file by a mount that has nothing.
fn read_cold(fixture: &Fixture, fio: Fio) -> anyhow::Result<(MountProcess, Sample)> {
    // It is not the server's disk that is measured.
    fixture.take_bucket_into_page_cache()?;
    Fixture::back_memory(NEEDS * fixture.settings.size)?;
    let mount = fixture.up_sized("again", fixture.ample_memory(), &[])?;
    let settings = Settings { time: PATIENCE, ..fixture.settings };
    let sample = fio.run(&mount.path().join(LARGE), settings)?.sample;
    Ok((mount, sample))
}

/// Waits until a file is materialised; how many seconds.
fn until_whole(mount: &MountProcess) -> anyhow::Result<f64> {
    let began = Instant::now();
    while counters::count(&counters::of(mount)?, "/local/files/ready")? == 0 && began.elapsed() < WHOLE_WITHIN {
        std::thread::sleep(LOOK);
    }
    Ok(began.elapsed().as_secs_f64())
}

fn tabulate(lines: &[Fio], outcomes: &[Outcome], report: &mut Report) {
    let text = format!(
        "The same fio on a file in a mount by a fresh `forebay up` that has no setting but `--memory` (`first`; as much memory as it needs \
         was taken and given back before, so that the machine's host need not give it first), on the same file when it is materialised, {PASSES} times and opened anew each time (`second`), and so on a tmpfs with `huge=always`. `whole after`: \
         how long after the first read the file was materialised. `passed`: opens of the second reads that the kernel serves by itself. \
         CPU is what the daemon used for second reads. `mmap without advice`: a mapping of a cold file that the kernel is told nothing \
         of, all of it touched in order or at random."
    );
    let header = [
        "fio",
        "first GB/s",
        "whole after s",
        "second GB/s",
        "huge tmpfs GB/s",
        "of huge tmpfs",
        "passed",
        "CPU s/GiB",
    ];
    let mut table = Table::new("Files that are read twice", text, &header);
    let of_lines = outcomes.chunks_exact(3);
    for (fio, of) in lines.iter().zip(of_lines) {
        let [first, second, huge] = of else { continue };
        let ratio = second.ratio(huge, |sample| sample.rate);
        table.row(vec![
            fio.name(),
            rate(first),
            number(first.median(|sample| sample.extra), 2, ""),
            rate(second),
            rate(huge),
            percent(ratio),
            number(second.median(|sample| sample.extra), 0, ""),
            daemons(second),
        ]);
        report.ratio_target(&format!("read for the second time, {}", fio.name()), "the huge-page tmpfs", TARGET, ratio);
    }
    let faults = outcomes.get(3 * lines.len()..).unwrap_or_default();
    for outcome in faults {
        let none = String::new;
        let name = outcome.name.trim_start_matches("first, ").to_owned();
        table.row(vec![name, rate(outcome), none(), none(), none(), none(), none(), none()]);
    }
    report.table(table);
    if let [ordered, random] = faults {
        let ratio = random.ratio(ordered, |sample| sample.rate);
        report.ratio_target(
            "a cold file that is mapped and touched at random",
            "the same in order",
            RANDOM_TARGET,
            ratio,
        );
    }
}

/// Twice as much as the cache holds, every file twice.
fn memory(fixture: &Fixture, progress: &Progress, report: &mut Report) -> anyhow::Result<()> {
    const DIRECTORY: &str = "twice";
    let size = fixture.settings.size / FILES * 2;
    let cache = fixture.settings.size.max(MIN_MEMORY);
    let keys: Vec<String> = (0..FILES).map(|number| format!("{DIRECTORY}/{number:02}")).collect();
    for (key, seed) in keys.iter().zip(100..) {
        fixture.put(key, seed, size)?;
    }
    fixture.take_bucket_into_page_cache()?;
    let others = shared_memory().context("/proc/meminfo has no Shmem")?;
    let mount = fixture.up_sized("again", ByteSize::bytes(cache), &[])?;
    let name = "`forebay up`, every file read twice".to_owned();
    let watch = MemoryWatch::looking(vec![(name, mount.pid())], 0, move |pid| taken(pid, others));
    let round = || -> anyhow::Result<Sample> {
        let began = Instant::now();
        let mut bytes = 0;
        for key in &keys {
            let path = mount.path().join(key);
            bytes += read_to_end(&path, OFlags::empty())? + read_to_end(&path, OFlags::empty())?;
        }
        Ok(Sample { rate: bytes as f64 / began.elapsed().as_secs_f64(), ..Sample::default() })
    };
    // What fills a cache that has room still is no growth. Files that are all in it do not fill it.
    let is_full = || taken(mount.pid(), others).is_some_and(|taken| taken >= cache);
    for _ in 0..FILLING {
        if is_full() {
            break;
        }
        round()?;
    }
    let case = Case::new("every file twice", round);
    let outcomes = rounds::measure("memory", vec![case], fixture.settings.repeat, progress, || watch.warm())?;
    let stats = counters::of(&mount)?;
    let of = |pointer: &str| counters::count(&stats, pointer);
    let (fills, evictions, passed) = (of("/local/fills/done")?, of("/local/evictions")?, of("/local/handles/passed")?);
    let memory = watch.finish();
    mount.unmount()?;
    fixture.remove(DIRECTORY)?;

    let text = format!(
        "{FILES} files of {} each, each read twice in a row, buffered, in every round, by `forebay up --memory {}`. `most`: its own pages \
         and all that it has on tmpfs, at any time; before the first round they are read until the cache is full, {FILLING} times at most.",
        ByteSize::bytes(size),
        ByteSize::bytes(cache)
    );
    let header =
        ["GB/s", "files materialised", "and evicted", "opens passed through", "most", "of `worker.memory.size`"];
    let mut table = Table::new("Memory of files that are read twice", text, &header);
    for (outcome, Memory { peak: most, .. }) in outcomes.iter().zip(&memory) {
        let of_cache = *most as f64 / cache as f64;
        table.row(vec![
            rate(outcome),
            fills.to_string(),
            evictions.to_string(),
            passed.to_string(),
            ByteSize::bytes(*most >> 20 << 20).to_string(),
            percent(of_cache),
        ]);
        report.max_target("memory of `up`, every file read twice", "`worker.memory.size`", MEMORY_TARGET, of_cache);
    }
    report.table(table);
    report.memory(memory);
    report.samples("memory", outcomes);
    Ok(())
}
