//! Sequential writes through a mount, until `close(2)` says that the origin has the file, against a plain multipart upload of
//! the same file: the same parts, as many at once, by the client that workers use, from this process.
//!
//! The file that is written comes from tmpfs for both. A mount stages it on disk on the way, a plain upload does not.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use forebay_testkit::MountProcess;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::multipart::MultipartStore as _;
use tokio::runtime::Runtime;

use crate::fixture::{BUCKET, Fixture};
use crate::mount::start_worker;
use crate::process::{MemoryWatch, cpu_seconds};
use crate::progress::Progress;
use crate::report::{Report, Table, percent, rate};
use crate::rounds::{self, Case, Sample};

/// What a write is to reach of a plain upload.
const TARGET: f64 = 0.8;
/// Bytes in a part: `write.part_size`.
const PART: u64 = 8 << 20;
/// Parts on their way at once: as many as `write.memory` has room for.
const PARTS_AT_ONCE: usize = 16;
/// Bytes in a `write(2)`.
const WRITE: usize = 1 << 20;
/// The object that is written again and again.
const WRITTEN: &str = "written";

/// Measures it.
///
/// # Errors
/// When a part does not start or a write fails.
pub(crate) fn measure(
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress.say("Writing through the mount against plain uploads");
    let store = AmazonS3Builder::new()
        .with_endpoint(fixture.server.url())
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_access_key_id(fixture.server.access_key())
        .with_secret_access_key(fixture.server.secret_key())
        .with_allow_http(true)
        .build()?;
    let up = fixture.up(None)?;
    let worker = start_worker(fixture)?;
    let workers = [worker.address().to_string()];
    let none: [&str; 0] = [];
    let mount = MountProcess::mount(&fixture.programs, &workers, &fixture.mountpoint("writing"), none)?;
    let processes = [("`forebay up`", up.pid()), ("`forebay worker`", worker.pid()), ("`forebay mount`", mount.pid())];
    let watch = MemoryWatch::start(processes.map(|(name, pid)| (format!("{name}, writing"), pid)).into());
    let source = &fixture.on_tmpfs();
    let (up_pids, mount_pids) = ([up.pid()], [worker.pid(), mount.pid()]);
    let through = |name: &str, mount: &Path, pids| {
        let file = mount.join(WRITTEN);
        Case::new(name, move || timed(fixture, pids, || write(source, &file)))
    };
    let plain = || timed(fixture, &[], || runtime.block_on(upload(&store, source, fixture.settings.size)));
    let cases = vec![
        through("write, up", up.path(), &up_pids),
        Case::new("plain multipart upload", plain),
        through("write, separate worker", mount.path(), &mount_pids),
    ];
    let outcomes = rounds::measure("write", cases, fixture.settings.repeat, progress, || watch.warm())?;
    report.memory(watch.finish());
    compare_bytes(fixture, source)?;
    mount.unmount()?;
    worker.stop()?;
    up.unmount()?;

    let [ours, theirs, remote] = &outcomes[..] else { anyhow::bail!("there are {} outcomes", outcomes.len()) };
    let text = format!(
        "One writer, 1 MiB at a time, from the first `write(2)` to the success of `close(2)`, against a multipart upload of the same file in parts of \
         8 MiB, {PARTS_AT_ONCE} at once. CPU is what the daemons used."
    );
    let mut table = Table::new("Writing", text, &["write", "Forebay GB/s", "plain GB/s", "ratio", "CPU s/GiB"]);
    for (name, of) in [("`forebay up`", ours), ("separate worker over TCP", remote)] {
        let ratio = of.ratio(theirs, |sample| sample.rate);
        report.ratio_target(&format!("sequential write, {name}"), "a plain multipart upload", TARGET, ratio);
        let cpu = format!("{:.2}", of.median(|sample| sample.cpu));
        table.row(vec![name.to_owned(), rate(of), rate(theirs), percent(ratio), cpu]);
    }
    report.table(table);
    report.samples("write", outcomes);
    Ok(())
}

fn timed(fixture: &Fixture, pids: &[u32], write: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Sample> {
    let used = || pids.iter().map(|pid| cpu_seconds(*pid)).sum::<anyhow::Result<f64>>();
    let (before, started) = (used()?, Instant::now());
    write()?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes = fixture.settings.size as f64;
    Ok(Sample { rate: bytes / seconds, cpu: (used()? - before) / (bytes / f64::from(1 << 30)), ..Sample::default() })
}

fn write(source: &Path, target: &Path) -> anyhow::Result<()> {
    let (mut from, mut to, mut buffer) = (File::open(source)?, File::create(target)?, vec![0; WRITE]);
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        to.write_all(&buffer[..count]).with_context(|| format!("cannot write {}", target.display()))?;
    }
    // `drop` would not say how that went.
    // SAFETY: the descriptor was the file's, which is gone, and nobody else has it.
    unsafe { rustix::io::try_close(to.into_raw_fd()) }.with_context(|| format!("cannot close {}", target.display()))
}

async fn upload(store: &AmazonS3, source: &Path, size: u64) -> anyhow::Result<()> {
    let path = object_store::path::Path::from(WRITTEN);
    let file = Arc::new(File::open(source)?);
    let id = store.create_multipart(&path).await?;
    let parts = (0..size.div_ceil(PART)).map(|number| {
        let (path, id, file) = (&path, &id, Arc::clone(&file));
        async move {
            let start = number * PART;
            // A part is far below 4 GiB.
            let length = PART.min(size - start) as usize;
            let bytes = tokio::task::spawn_blocking(move || {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, start).map(|()| bytes)
            });
            anyhow::Ok(store.put_part(path, id, number as usize, bytes.await??.into()).await?)
        }
    });
    let parts = futures::stream::iter(parts).buffered(PARTS_AT_ONCE).try_collect().await?;
    store.complete_multipart(&path, &id, parts).await?;
    Ok(())
}

/// What is at the origin must be what was written.
fn compare_bytes(fixture: &Fixture, source: &Path) -> anyhow::Result<()> {
    let (mut ours, mut theirs) = (File::open(fixture.bucket().join(WRITTEN))?, File::open(source)?);
    let (mut a, mut b) = (vec![0; WRITE], vec![0; WRITE]);
    loop {
        let count = theirs.read(&mut b)?;
        ours.read_exact(&mut a[..count])?;
        anyhow::ensure!(a[..count] == b[..count], "the object is not what was written");
        if count == 0 {
            return Ok(());
        }
    }
}
