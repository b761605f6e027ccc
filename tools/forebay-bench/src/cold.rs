//! Cold reads: what Forebay makes of an empty cache and an S3 server, against plain parallel GETs from the same server.
//!
//! Every measurement mounts anew, with an empty cache. Mounting is not timed, and neither is taking the cache's memory
//! from the kernel, as a worker does at its start, except where it says so. The server's own files are in the page
//! cache for both sides, so that it is not the disk that is measured. Nothing is materialised, which would copy the bytes of buffered
//! reads once more meanwhile, but in the rows that say so: there it is as it comes.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use tokio::runtime::Runtime;

use crate::counters;
use crate::fixture::{BY_DAEMON, Fixture, LARGE, SMALL_SIZE};
use crate::gets::{PARTS_AT_ONCE, Source};
use crate::materialised;
use crate::progress::Progress;
use crate::reading::{READERS, read_each, read_to_end};
use crate::report::{Report, Table, number, percent, rate};
use crate::rounds::{self, Case, Outcome, Sample};

/// What a cold read through the mount is to reach of plain GETs.
const COLD_TARGET: f64 = 0.95;
/// The same where the file is materialised meanwhile.
const FILLED_TARGET: f64 = 0.9;
/// How long a request to a store that is not on the same machine takes until its first byte: S3 in its own region
/// answers within tens of milliseconds.
const DISTANCE: Duration = Duration::from_millis(20);
/// Marks the row of a cache that takes its memory as it fills.
const NEW_MEMORY: &str = "new memory";
/// Marks the rows of a file that is materialised while it is read.
const FILLED: &str = "filled meanwhile";
/// Marks the rows of a cache that gets its bytes through the HTTP library's buffers.
const LIBRARY: &str = "through the HTTP library";

/// Measures it.
///
/// # Errors
/// When a part does not start or a read fails.
pub(crate) fn measure(
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress.say("Cold reads against plain GETs");
    let keys = &fixture.small_keys();
    for key in keys.iter().map(String::as_str).chain([LARGE]) {
        read_to_end(&fixture.bucket().join(key), OFlags::empty())?;
    }
    let distant = fixture.distant_server(DISTANCE)?;
    let (near, far) = (&Source::new(fixture, &fixture.server)?, &Source::new(fixture, &distant)?);
    let case = |name: &str, source, read| mounted(fixture, name, source, keys, Cache::Prewarmed, read);
    let library = |name: &str, read| mounted(fixture, name, near, keys, Cache::ThroughLibrary, read);
    let parts = |source: &'_ Source| timed(1, || runtime.block_on(source.get_parts(fixture.settings.size)));
    let files = |source: &'_ Source| timed(keys.len(), || runtime.block_on(source.get_files(keys)));
    let cases = vec![
        case("cold, direct", near, read_direct),
        mounted(fixture, "cold, direct, new memory", near, keys, Cache::New, read_direct),
        library("cold, direct, HTTP library", read_direct),
        case("cold, buffered", near, read_buffered),
        library("cold, buffered, HTTP library", read_buffered),
        mounted(fixture, "cold, buffered, filled meanwhile", near, keys, Cache::Filled, read_buffered),
        Case::new("plain ranged GETs", move || parts(near)),
        case("cold, direct, distant", far, read_direct),
        case("cold, buffered, distant", far, read_buffered),
        mounted(fixture, "cold, buffered, filled meanwhile, distant", far, keys, Cache::Filled, read_buffered),
        Case::new("plain ranged GETs, distant", move || parts(far)),
        case("cold, small files", near, read_small),
        Case::new("plain GETs of small files", move || files(near)),
        case("cold, small files, distant", far, read_small),
        Case::new("plain GETs of small files, distant", move || files(far)),
    ];
    let outcomes = rounds::measure("cold", cases, fixture.settings.repeat, progress, || ())?;
    compare(&outcomes, keys.len(), report)?;
    report.samples("cold", outcomes);
    Ok(())
}

/// Reads files of the mount; how many bytes.
type Read = fn(&Path, &[String]) -> anyhow::Result<u64>;

fn read_direct(mount: &Path, _: &[String]) -> anyhow::Result<u64> {
    read_to_end(&mount.join(LARGE), OFlags::DIRECT)
}

fn read_buffered(mount: &Path, _: &[String]) -> anyhow::Result<u64> {
    read_to_end(&mount.join(LARGE), OFlags::empty())
}

/// What is measured of a cache.
#[derive(Clone, Copy)]
enum Cache {
    /// The kernel has backed its memory before it is used.
    Prewarmed,
    /// The same with `origin.s3.in_place=false`.
    ThroughLibrary,
    /// It takes its memory as it fills.
    New,
    /// As `up` comes, in memory of which the large file may have its share, backed before: it is materialised while it is read.
    Filled,
}

/// `read` through a mount that is made for it.
fn mounted<'a>(
    fixture: &'a Fixture,
    name: &str,
    source: &'a Source,
    keys: &'a [String],
    cache: Cache,
    read: Read,
) -> Case<'a> {
    Case::new(name, move || {
        let endpoint = Some(source.url.clone());
        let mount = match cache {
            Cache::New => fixture.up_with("up", endpoint, &BY_DAEMON)?,
            Cache::Prewarmed => fixture.prewarmed_up("up", endpoint, fixture.memory(), &BY_DAEMON)?,
            Cache::ThroughLibrary => {
                let library = [BY_DAEMON, ["-o", "origin.s3.in_place=false"]].concat();
                fixture.prewarmed_up("up", endpoint, fixture.memory(), &library)?
            }
            Cache::Filled => fixture.prewarmed_up("up", endpoint, fixture.ample_memory(), &[])?,
        };
        let is_off = matches!(cache, Cache::Filled) && materialised::missing(&mount)?.is_some();
        let sample = timed(keys.len(), || read(mount.path(), keys))?;
        if matches!(cache, Cache::Filled) && !is_off {
            let stats = counters::of(&mount)?;
            let files =
                counters::count(&stats, "/local/files/filling")? + counters::count(&stats, "/local/files/ready")?;
            anyhow::ensure!(files > 0, "the file was read from its start, and nothing fills it");
        }
        mount.unmount()?;
        Ok(sample)
    })
}

fn compare(outcomes: &[Outcome], small_files: usize, report: &mut Report) -> anyhow::Result<()> {
    let [direct, new_memory, library, buffered, buffered_library, filled, parts, rest @ ..] = outcomes else {
        anyhow::bail!("there are {} outcomes", outcomes.len())
    };
    let [far, far_buffered, far_filled, far_parts, small, files, far_small, far_files] = rest else {
        anyhow::bail!("there are {} outcomes", outcomes.len())
    };
    let text = format!(
        "The first read of a file by a fresh `forebay up`, one reader, 1 MiB at a time, against ranged GETs of 4 MiB, \
         {PARTS_AT_ONCE} at once, of the same object, their bytes thrown away. {small_files} small files of 100 KiB are \
         read whole by {READERS} readers, against {READERS} GETs at once. `{} ms away`: the server waits so long before \
         it answers a request, as a real store does; otherwise it is as near as the same machine, and all that counts is \
         the processor's time. The cache's memory was taken from the kernel before (`worker.memory.prewarm`), except where \
         it is new: there the kernel's clearing of pages is part of the read. Nothing is materialised \
         (`client.local.size=0`), but as `{FILLED}`, which is `up` as it comes. `{LIBRARY}`: with `origin.s3.in_place=false`, so that bytes are copied from its buffers into the cache.",
        DISTANCE.as_millis()
    );
    let away = format!("{} ms away", DISTANCE.as_millis());
    let mut table = Table::new("Cold", text, &["read", "Forebay", "plain GETs", "ratio"]);
    let large = [
        ("large file, direct".to_owned(), direct, parts),
        ("large file, buffered".to_owned(), buffered, parts),
        (format!("large file, direct, {NEW_MEMORY}"), new_memory, parts),
        (format!("large file, direct, {LIBRARY}"), library, parts),
        (format!("large file, buffered, {LIBRARY}"), buffered_library, parts),
        (format!("large file, buffered, {FILLED}"), filled, parts),
        (format!("large file, direct, {away}"), far, far_parts),
        (format!("large file, buffered, {away}"), far_buffered, far_parts),
        (format!("large file, buffered, {FILLED}, {away}"), far_filled, far_parts),
    ];
    for (name, ours, theirs) in large {
        let ratio = ours.ratio(theirs, |sample| sample.rate);
        if !name.ends_with(NEW_MEMORY) && !name.ends_with(LIBRARY) {
            let target = if name.contains(FILLED) { FILLED_TARGET } else { COLD_TARGET };
            report.ratio_target(&format!("cold, {name}"), "plain GETs", target, ratio);
        }
        table.row(vec![format!("{name}, GB/s"), rate(ours), rate(theirs), percent(ratio)]);
    }
    let a_second = |of: &Outcome| number(of.median(|sample| sample.operations), 0, "");
    for (name, ours, theirs) in [("small files", small, files), (&format!("small files, {away}"), far_small, far_files)]
    {
        let ratio = percent(ours.ratio(theirs, |sample| sample.operations));
        table.row(vec![format!("{name}, files/s"), a_second(ours), a_second(theirs), ratio]);
    }
    report.table(table);
    Ok(())
}

/// How fast `read`, which returns how many bytes, is with `operations` files.
fn timed(operations: usize, read: impl FnOnce() -> anyhow::Result<u64>) -> anyhow::Result<Sample> {
    let started = Instant::now();
    let bytes = read()?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(Sample { rate: bytes as f64 / seconds, operations: operations as f64 / seconds, ..Sample::default() })
}

/// Reads every file, some at once.
pub(crate) fn read_small(mount: &Path, keys: &[String]) -> anyhow::Result<u64> {
    let bytes = read_each(mount, keys)?;
    anyhow::ensure!(bytes == keys.len() as u64 * SMALL_SIZE, "small files had {bytes} bytes in all");
    Ok(bytes)
}
