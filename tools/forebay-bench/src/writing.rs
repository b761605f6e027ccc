//! Sequential writes through a mount, until `close(2)` says that the origin has the file, against a plain multipart upload of
//! the same file: the same parts, as many at once, by the client that workers use, from this process.
//!
//! The file that is written comes from tmpfs for both, and is a new one each time. A mount stages it on disk on the way, a plain
//! upload does not. Both are measured with either checksum of `origin.s3.checksum`: the SHA-256 that every server knows costs
//! the uploader about as much as all else.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::IntoRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Context as _;
use forebay_testkit::{MountProcess, WorkerProcess};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder, Checksum};
use object_store::multipart::MultipartStore as _;
use tokio::runtime::Runtime;

use crate::fixture::{BUCKET, Fixture};
use crate::mount::start_worker;
use crate::process::{MemoryWatch, cpu_seconds};
use crate::progress::Progress;
use crate::report::{Report, Table, percent, rate, seconds};
use crate::rounds::{self, Case, Sample};

/// What a write is to reach of a plain upload.
const TARGET: f64 = 0.8;
/// Bytes in a part: `write.part_size`.
const PART: u64 = 8 << 20;
/// Parts on their way at once: as many as `write.memory` has room for.
const PARTS_AT_ONCE: usize = 16;
/// Bytes in a `write(2)`.
const WRITE: usize = 1 << 20;
/// The setting of the faster checksum.
const CRC: &str = "origin.s3.checksum=crc64nvme";

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
    let client = AmazonS3Builder::new()
        .with_endpoint(fixture.server.url())
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_access_key_id(fixture.server.access_key())
        .with_secret_access_key(fixture.server.secret_key())
        .with_allow_http(true);
    let signing = client.clone().build()?;
    let summing = client.with_unsigned_payload(true).with_checksum_algorithm(Checksum::CRC64NVME).build()?;
    let up = fixture.up(None)?;
    let up_crc = fixture.up_at("up-crc", &["-o", CRC])?;
    let (worker, worker_crc) = (start_worker(fixture, &[])?, start_worker(fixture, &[CRC])?);
    let none: [&str; 0] = [];
    let mount_of = |worker: &WorkerProcess, name: &str| {
        MountProcess::mount(&fixture.programs, &[worker.address().to_string()], &fixture.mountpoint(name), none)
    };
    let (mount, mount_crc) = (mount_of(&worker, "writing")?, mount_of(&worker_crc, "writing-crc")?);
    let processes =
        [("`forebay up`", up_crc.pid()), ("`forebay worker`", worker_crc.pid()), ("`forebay mount`", mount_crc.pid())];
    let watch = MemoryWatch::start_with_room(
        processes.map(|(name, pid)| (format!("{name}, writing"), pid)).into(),
        PARTS_AT_ONCE as u64 * PART,
    );
    let source = &fixture.on_tmpfs();
    let (up_pids, crc_pids, mount_pids) = ([up.pid()], [up_crc.pid()], [worker.pid(), mount.pid()]);
    let mount_crc_pids = [worker_crc.pid(), mount_crc.pid()];
    let written = AtomicU64::new(0);
    let next = || name(written.fetch_add(1, Ordering::Relaxed));
    // What was written goes again, or the page cache would fill up with it.
    let through = |what: &str, mount: &Path, pids| {
        let mount = mount.to_owned();
        Case::new(what, move || {
            let file = mount.join(next());
            let sample = timed(fixture, pids, || write(source, &file))?;
            std::fs::remove_file(&file)?;
            Ok(sample)
        })
    };
    let plain = |what: &str, store| {
        Case::new(what, move || {
            let key = next();
            let sample = timed(fixture, &[], || runtime.block_on(upload(store, &key, source, fixture.settings.size)))?;
            std::fs::remove_file(fixture.bucket().join(key))?;
            Ok(sample)
        })
    };
    let cases = vec![
        through("write, up", up.path(), &up_pids),
        plain("plain multipart upload", &signing),
        through("write, up, CRC", up_crc.path(), &crc_pids),
        plain("plain multipart upload, CRC", &summing),
        through("write, separate worker", mount.path(), &mount_pids),
        through("write, separate worker, CRC", mount_crc.path(), &mount_crc_pids),
    ];
    let outcomes = rounds::measure("write", cases, fixture.settings.repeat, progress, || watch.warm())?;
    report.memory(watch.finish());
    let object = next();
    write(source, &up_crc.path().join(&object))?;
    compare_bytes(&fixture.bucket().join(&object), source)?;
    mount_crc.unmount()?;
    mount.unmount()?;
    worker_crc.stop()?;
    worker.stop()?;
    up_crc.unmount()?;
    up.unmount()?;

    let [up, signed, up_crc, checksummed, remote, remote_crc] = &outcomes[..] else {
        anyhow::bail!("there are {} outcomes", outcomes.len())
    };
    let text = format!(
        "One writer, 1 MiB at a time, from `open(2)` to the success of `close(2)`, against a multipart upload of the same file in parts of \
         8 MiB, {PARTS_AT_ONCE} at once. CPU is what the daemons used. SHA-256 is what a plain upload uses by default, CRC is \
         `origin.s3.checksum=crc64nvme`."
    );
    let columns = ["write", "plain upload", "Forebay GB/s", "plain GB/s", "ratio", "CPU s/GiB"];
    let mut table = Table::new("Writing", text, &columns);
    let rows = [
        ("`forebay up`, SHA-256", up, "SHA-256", signed),
        ("`forebay up`, CRC", up_crc, "SHA-256", signed),
        ("`forebay up`, CRC", up_crc, "CRC", checksummed),
        ("separate worker, SHA-256", remote, "SHA-256", signed),
        ("separate worker, CRC", remote_crc, "SHA-256", signed),
        ("separate worker, CRC", remote_crc, "CRC", checksummed),
    ];
    for (what, ours, plain, theirs) in rows {
        let ratio = ours.ratio(theirs, |sample| sample.rate);
        report.ratio_target(
            &format!("sequential write, {what}"),
            &format!("a plain multipart upload, {plain}"),
            TARGET,
            ratio,
        );
        let cpu = seconds(ours.median(|sample| sample.cpu));
        table.row(vec![what.to_owned(), plain.to_owned(), rate(ours), rate(theirs), percent(ratio), cpu]);
    }
    report.table(table);
    report.samples("write", outcomes);
    Ok(())
}

fn name(number: u64) -> String {
    format!("written-{number}")
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
    // SAFETY: the descriptor was the file's, which is gone, and nothing else has it.
    unsafe { rustix::io::try_close(to.into_raw_fd()) }.with_context(|| format!("cannot close {}", target.display()))
}

async fn upload(store: &AmazonS3, key: &str, source: &Path, size: u64) -> anyhow::Result<()> {
    let path = object_store::path::Path::from(key);
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
fn compare_bytes(object: &Path, source: &Path) -> anyhow::Result<()> {
    let (mut ours, mut theirs) = (File::open(object)?, File::open(source)?);
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
