//! `forebay fs get`: copies files and trees to a local directory, several files at once.
//!
//! A file is written under a temporary name beside its place and renamed when it is whole, so that there is never a part
//! of one under its name.

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::Context as _;
use forebay_types::{Attr, FailureKind, FileVersion};
use futures::StreamExt as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::task::JoinSet;

use crate::commands::fs::stream::chunks;
use crate::commands::fs::target::{Target, Targets, WorkersArgs};
use crate::commands::fs::walk::Walk;
use crate::exit::{Exit, Failures, Fault};
use crate::output::{self, JsonArg};

/// Copy a file or a directory to this machine
///
/// A file goes to DEST, or into DEST if that is a directory. The files of a directory go into DEST, which is created if
/// needed. Each existing file is replaced atomically, as a whole.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs get /mnt/data/model.safetensors /tmp/
  forebay fs get --jobs 16 /mnt/data/images /scratch/images")]
pub(crate) struct Args {
    /// A file or directory
    path: PathBuf,
    /// The destination
    dest: PathBuf,
    /// Files copied at once
    #[arg(short, long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

#[derive(Default)]
struct Sum {
    files: u64,
    bytes: u64,
}

/// Runs it.
///
/// # Errors
/// When something is not there, cannot be read or cannot be written.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut targets = Targets::new(&args.workers)?;
    let target = targets.find(&args.path).await?;
    let attr = target.stat(false).await?;
    let mut failures = Failures::default();
    let progress = progress(&attr);
    let sum = copy(&args, target, attr, &progress, &mut failures).await;
    progress.finish_and_clear();
    targets.close().await;
    report(&args, &sum?, began.elapsed())?;
    failures.finish()
}

async fn copy(
    args: &Args,
    target: Target,
    attr: Attr,
    progress: &ProgressBar,
    failures: &mut Failures,
) -> anyhow::Result<Sum> {
    let root = target.path.clone();
    let root_place = match attr.version() {
        Some(_) => place_of_file(&args.dest, target.path.name())?,
        None => args.dest.clone(),
    };
    let mut walk = Walk::new(target, attr);
    let mut copies = JoinSet::new();
    let mut sum = Sum::default();
    loop {
        let (target, attr) = match walk.next().await {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(error) => {
                progress.suspend(|| failures.tell(error))?;
                continue;
            }
        };
        // The walk stays below its root.
        let below = target.path.relative_to(&root).unwrap_or_default();
        let place =
            if below.is_empty() { root_place.clone() } else { root_place.join(std::ffi::OsStr::from_bytes(below)) };
        let Some(version) = attr.version().cloned() else {
            let made = std::fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()));
            made?;
            continue;
        };
        while copies.len() >= usize::from(args.jobs) {
            take_one(&mut copies, &mut sum, progress, failures).await?;
        }
        let (progress, modified) = (progress.clone(), attr.modified_nanos);
        copies.spawn(async move { copy_file(&target, version, modified, &place, &progress).await });
    }
    while !copies.is_empty() {
        take_one(&mut copies, &mut sum, progress, failures).await?;
    }
    Ok(sum)
}

async fn take_one(
    copies: &mut JoinSet<anyhow::Result<u64>>,
    sum: &mut Sum,
    progress: &ProgressBar,
    failures: &mut Failures,
) -> anyhow::Result<()> {
    match copies.join_next().await {
        Some(Ok(Ok(bytes))) => {
            sum.files += 1;
            sum.bytes += bytes;
            progress.set_message(format!("{} files", sum.files));
        }
        Some(Ok(Err(error))) => progress.suspend(|| failures.tell(error))?,
        Some(Err(panicked)) => return Err(panicked).context("a copy failed"),
        None => {}
    }
    Ok(())
}

/// Where a single file goes.
fn place_of_file(dest: &Path, name: &[u8]) -> anyhow::Result<PathBuf> {
    let is_directory = dest.is_dir();
    if !is_directory && dest.as_os_str().as_bytes().ends_with(b"/") {
        let next = format!("make it with `mkdir -p {}`", dest.display());
        return Err(Fault::new(Exit::NotFound, format!("directory {} does not exist", dest.display()), next).into());
    }
    Ok(if is_directory { dest.join(std::ffi::OsStr::from_bytes(name)) } else { dest.to_owned() })
}

async fn copy_file(
    target: &Target,
    version: FileVersion,
    modified_nanos: i64,
    place: &Path,
    progress: &ProgressBar,
) -> anyhow::Result<u64> {
    let cannot_write = || format!("cannot write {}", place.display());
    let directory = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // As a new file of this user has it.
    let permissions = || std::fs::Permissions::from_mode(0o666);
    let new = || {
        let file = tempfile::Builder::new().prefix(".forebay-get-").permissions(permissions()).tempfile_in(directory);
        file.with_context(cannot_write)
    };
    let mut size = version.size;
    let mut file = new()?;
    match fill(target, version, &file, progress).await {
        // What was remembered of the file was old; the workers know better now.
        Err(error) if is_version_change(&error) => {
            let version = target.version().await?;
            size = version.size;
            file = new()?;
            fill(target, version, &file, progress).await
        }
        filled => filled,
    }?;
    if let Ok(nanos @ 1..) = u64::try_from(modified_nanos) {
        let modified = UNIX_EPOCH + Duration::from_nanos(nanos);
        file.as_file().set_modified(modified).with_context(cannot_write)?;
    }
    file.persist(place).map_err(|error| error.error).with_context(cannot_write)?;
    Ok(size)
}

fn is_version_change(error: &anyhow::Error) -> bool {
    error.downcast_ref::<forebay_types::Failure>().is_some_and(|failure| failure.kind() == FailureKind::VersionChanged)
}

async fn fill(
    target: &Target,
    version: FileVersion,
    file: &NamedTempFile,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    let size = version.size;
    let descriptor = Arc::new(file.as_file().try_clone().context("cannot write a temporary file")?);
    let mut pieces = chunks(target.client.open(version), 0..size);
    while let Some(piece) = pieces.next().await {
        let (mut at, spans) = piece.map_err(|failure| failure.context(target.shown()))?;
        let file = Arc::clone(&descriptor);
        let written = tokio::task::spawn_blocking(move || {
            let began = at;
            for span in &spans {
                file.write_all_at(span, at)?;
                at += span.len() as u64;
            }
            std::io::Result::Ok(at - began)
        });
        progress.inc(written.await.context("writing failed")?.context("cannot write a temporary file")?);
    }
    Ok(())
}

fn progress(attr: &Attr) -> ProgressBar {
    let (bar, template) = match attr.version() {
        Some(version) => (
            ProgressBar::new(version.size),
            "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        ),
        // How much a tree holds is known only at its end.
        None => (ProgressBar::no_length(), "{spinner} {binary_bytes} {binary_bytes_per_sec} {msg}"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn report(args: &Args, sum: &Sum, took: Duration) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if args.json.json {
        output::json_line(&mut out, &json!({ "files": sum.files, "bytes": sum.bytes, "seconds": took.as_secs_f64() }))?;
    } else {
        // Times too short to measure make no rate.
        let rate = (sum.bytes as f64 / took.as_secs_f64().max(1e-3)) as u64;
        let (bytes, rate) = (output::human(sum.bytes), output::human(rate));
        let files = if sum.files == 1 { "1 file".to_owned() } else { format!("{} files", sum.files) };
        writeln!(out, "{files}, {bytes} in {:.1} s ({rate}/s)", took.as_secs_f64())?;
    }
    Ok(out.flush()?)
}
