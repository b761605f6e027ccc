//! `forebay job`: bring files into the cache, drop them from it, and see how far that is.

mod progress;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgGroup, Subcommand, ValueEnum};
use forebay_coordinator::jobs::{FreeSpec, JobKind, JobReport, JobSpec, LoadSpec};
use forebay_coordinator::{ApiClient, ApiError};
use forebay_types::{ByteSize, FsPath};

use crate::commands::fs::target::names_below;
use crate::coordinator_args::{Coordinator, CoordinatorArgs};
use crate::exit::{Exit, Fault};
use crate::signals::Signals;
use crate::{output, runtime};
use forebay_node::state;

/// Load files into the cache, free them from it, and list such jobs
///
/// The coordinator runs jobs. They continue when this command ends, and when the coordinator dies.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay job load --path /s3/datasets --submit --watch
  forebay job list")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load a path and everything below it into the cache
    ///
    /// The workers that own a block load it. Then they check every sector that they hold against its checksum.
    /// SUCCEEDED means that everything requested is cached and correct. If some of it was evicted again meanwhile, the
    /// report says so.
    #[command(after_help = "\
Exit codes, beside those of all commands:
  7    the job succeeded, and some of what it loaded was evicted again meanwhile
  8    the job failed: some of it could not be done
  9    the job was stopped
  10   the job has not ended

Example:
  forebay job load --path /s3/datasets --submit
  forebay job load --path /s3/datasets --progress --watch
  forebay job load --path /s3/models --submit --watch --verify --replicas 2 --bandwidth 2GiB
  forebay job load --index-file /s3/lists/today.txt --submit --partial-listing")]
    Load(Box<LoadArgs>),
    /// Drop a path and everything below it from the cache; the origin keeps it
    #[command(after_help = "\
Example:
  forebay job free --path /s3/datasets --submit --watch")]
    Free(FreeArgs),
    /// List the jobs, the newest first
    #[command(after_help = "\
Example:
  forebay job list
  forebay job list --format json | jq 'select(.state == \"FAILED\").spec'")]
    List {
        /// Text for people, or one JSON object a line
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
}

/// How a job is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What a job is about, and what to do about it.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true), group = ArgGroup::new("verb").required(true))]
struct Common {
    /// A file or directory: a path of the namespace, or a path below a mount on this machine
    #[arg(long, group = "what")]
    path: Option<PathBuf>,
    /// Instead of --path: a file of the namespace with one path on each line
    #[arg(long, value_name = "PATH", group = "what")]
    index_file: Option<PathBuf>,
    /// Start the job, or join it if it is already running
    #[arg(long, group = "verb")]
    submit: bool,
    /// Show the progress of the job; the exit code says how it ended
    #[arg(long, group = "verb")]
    progress: bool,
    /// Stop the job
    #[arg(long, group = "verb")]
    stop: bool,
    /// With --submit or --progress: wait until the job ends, with a live bar on a terminal
    #[arg(long, conflicts_with = "stop")]
    watch: bool,
    /// With --submit or --stop: how long to wait for a leading coordinator if there is none; 0s does not wait
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// Text for people, or JSON
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// List the paths that failed, by cause, and what was evicted
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    coordinator: CoordinatorArgs,
}

#[derive(Debug, clap::Args)]
struct LoadArgs {
    #[command(flatten)]
    common: Common,
    /// Most bytes a second that all workers together read from the origin
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<ByteSize>,
    /// Start loading before the listing is complete; totals are unknown until then
    #[arg(long)]
    partial_listing: bool,
    /// Reload what the final check finds missing, and check again
    #[arg(long)]
    verify: bool,
    /// Load attributes and listings only
    #[arg(long)]
    metadata_only: bool,
    /// Check first, and skip files that are cached whole
    #[arg(long)]
    skip_if_exists: bool,
    /// How many workers hold each block [default: what the policies say, 1]
    #[arg(long, value_name = "N")]
    replicas: Option<u8>,
    /// Make every mount that keeps files whole (client.local.size) keep these files too
    #[arg(long)]
    to_clients: bool,
}

#[derive(Debug, clap::Args)]
struct FreeArgs {
    #[command(flatten)]
    common: Common,
}

/// Runs it.
///
/// # Errors
/// What the coordinator refuses, and, as the exit code, how the job ended.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    runtime::block_on(async {
        match args.command {
            Command::Load(args) => {
                let (path, index_file) = args.common.target()?;
                let spec = LoadSpec {
                    index_file,
                    bandwidth: args.bandwidth,
                    partial_listing: args.partial_listing,
                    verify: args.verify,
                    metadata_only: args.metadata_only,
                    skip_if_exists: args.skip_if_exists,
                    replicas: args.replicas,
                    to_clients: args.to_clients,
                    ..LoadSpec::new(path)
                };
                job(&args.common, &JobSpec::Load(spec)).await
            }
            Command::Free(args) => {
                let (path, index_file) = args.common.target()?;
                job(&args.common, &JobSpec::Free(FreeSpec { index_file, ..FreeSpec::new(path) })).await
            }
            Command::List { format, coordinator } => list(&*coordinator.client(None)?, format).await,
        }
    })
}

impl Common {
    /// The path of the namespace, and whether it is an index file.
    fn target(&self) -> anyhow::Result<(FsPath, bool)> {
        // One of the two is required.
        let (path, index_file) = match (&self.path, &self.index_file) {
            (Some(path), _) => (path, false),
            (None, Some(path)) => (path, true),
            (None, None) => (&PathBuf::from("/"), false),
        };
        Ok((of_namespace(path)?, index_file))
    }

    /// What the coordinator that leads answers, when there is one.
    async fn once_led<T, F>(&self, ask: impl FnMut() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, ApiError>>,
    {
        let within = self.wait;
        let say = |error: &ApiError| {
            let (error, within) = (error.to_string(), humantime::format_duration(within));
            let what = error.rsplit_once(": ").map_or(&*error, |(what, _)| what);
            output::say(&format!("waiting for a coordinator that leads, for up to {within} (--wait): {what}"));
        };
        Ok(forebay_coordinator::once_led(within, say, ask).await?)
    }

    fn client(&self) -> anyhow::Result<Coordinator> {
        let path = self.path.as_deref().or(self.index_file.as_deref());
        self.coordinator.client(path.map(from_here).transpose()?.as_deref())
    }
}

/// The path of the namespace that `path` means: itself, or, below a mount on this machine, where it shows there. A relative one is
/// below a mount, as anywhere else in a shell.
fn of_namespace(path: &Path) -> anyhow::Result<FsPath> {
    let full = from_here(path)?;
    let mounts = state::all();
    let around = mounts.iter().filter(|mount| full.starts_with(&mount.mountpoint));
    let Some(mount) = around.max_by_key(|mount| mount.mountpoint.len()) else {
        if path.is_relative() {
            let what = format!("{} is not below a forebay mount", full.display());
            let next = "give a path below a mount (`findmnt -t fuse.forebay` lists them), or one of the namespace, as in /s3/dir";
            return Err(Fault::new(Exit::Usage, what, next).into());
        }
        return Ok(FsPath::new(path.as_os_str().as_encoded_bytes())?);
    };
    let below = names_below(&full, Path::new(&mount.mountpoint));
    Ok(below.iter().try_fold(FsPath::root(), |path, name| path.join(name))?)
}

/// `path` as it is from the current directory.
fn from_here(path: &Path) -> anyhow::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let full = std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))?;
    // A shell may have come here through a link.
    Ok(full.ancestors().find_map(|up| Some(up.canonicalize().ok()?.join(full.strip_prefix(up).ok()?))).unwrap_or(full))
}

async fn job(args: &Common, spec: &JobSpec) -> anyhow::Result<()> {
    let client = args.client()?;
    if args.submit {
        let submitted = args.once_led(|| client.submit(spec)).await?;
        if !args.watch {
            return tell_submitted(args, &submitted.job, submitted.created);
        }
        return watch(args, &client, submitted.job).await;
    }
    let job = latest(&client, spec).await?;
    if args.stop {
        let job = args.once_led(|| client.stop(&job.id)).await?;
        return tell(args, &job);
    }
    if args.watch {
        return watch(args, &client, job).await;
    }
    tell(args, &job)?;
    ended_well(&job)
}

/// The latest job of this kind for this path, or for this index file.
async fn latest(client: &ApiClient, spec: &JobSpec) -> anyhow::Result<JobReport> {
    let latest = client.latest_job(spec).await?;
    latest.ok_or_else(|| {
        let (kind, option) = (spec.kind().as_str(), option_of(spec));
        let index = if spec.index_file() { "the index file " } else { "" };
        let what = format!("there is no {kind} job for {index}{}", spec.path());
        let next = format!(
            "start one with `forebay job {kind} {option} {} --submit`; `forebay job list` shows all",
            spec.path()
        );
        Fault::new(Exit::NotFound, what, next).into()
    })
}

/// The option that names the path of a job.
fn option_of(spec: &JobSpec) -> &'static str {
    if spec.index_file() { "--index-file" } else { "--path" }
}

fn tell_submitted(args: &Common, job: &JobReport, created: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    match args.format {
        Format::Json => output::json_line(&mut out, &serde_json::to_value(job)?)?,
        Format::Text => {
            let what = if created { "submitted" } else { "was under way already" };
            writeln!(out, "job {} {what}: {} {}", job.id, job.spec.kind().as_str(), job.spec.path())?;
            let (kind, option) = (job.spec.kind().as_str(), option_of(&job.spec));
            writeln!(out, "  follow it with `forebay job {kind} {option} {} --progress --watch`", job.spec.path())?;
        }
    }
    Ok(out.flush()?)
}

fn tell(args: &Common, job: &JobReport) -> anyhow::Result<()> {
    let mut out = output::stdout();
    match args.format {
        Format::Json => output::json_line(&mut out, &serde_json::to_value(job)?)?,
        Format::Text => progress::print(&mut out, job, args.verbose)?,
    }
    Ok(out.flush()?)
}

/// Follows a job to its end. An interruption ends the following only.
async fn watch(args: &Common, client: &ApiClient, job: JobReport) -> anyhow::Result<()> {
    let followed = progress::follow(client, job, args.format == Format::Json);
    let job = Signals::take()?.unless_any(followed).await?;
    tell(args, &job)?;
    ended_well(&job)
}

/// The job's end as the end of this command.
fn ended_well(job: &JobReport) -> anyhow::Result<()> {
    let (exit, what) = match job.exit_code {
        0 => return Ok(()),
        7 => (Exit::Evicted, "some of what was loaded was evicted again meanwhile"),
        8 => (Exit::JobFailed, "some of it could not be done"),
        9 => (Exit::JobStopped, "it was stopped"),
        _ => (Exit::JobNotEnded, "it has not ended"),
    };
    let next = match exit {
        Exit::Evicted => "give the workers more room, load less, or pin it: `forebay policy set PATH --pin`",
        Exit::JobFailed => "`--verbose` names what failed; submit it again when that is mended",
        Exit::JobStopped => "submit it again: what is cached is not loaded twice",
        _ => "`--watch` stays until it has",
    };
    Err(Fault::new(exit, format!("job {}: {what}", job.id), next).into())
}

async fn list(client: &ApiClient, format: Format) -> anyhow::Result<()> {
    let jobs = client.jobs(None, None).await?;
    let mut out = output::stdout();
    if format == Format::Text {
        writeln!(out, "{:<24} {:<5} {:<10} {:>8}  PATH", "JOB", "KIND", "STATE", "DONE")?;
    }
    for job in jobs {
        match format {
            Format::Json => output::json_line(&mut out, &serde_json::to_value(&job)?)?,
            Format::Text => {
                let done = job.progress.percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}%"));
                let kind: JobKind = job.spec.kind();
                let (state, path) = (job.state.as_str(), job.spec.path());
                writeln!(out, "{:<24} {:<5} {state:<10} {done:>8}  {path}", job.id, kind.as_str())?;
            }
        }
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    fn parse(arguments: &str) -> Result<crate::cli::Cli, clap::Error> {
        crate::cli::Cli::try_parse_from(std::iter::once("forebay").chain(arguments.split_whitespace()))
    }

    #[test]
    fn a_job_has_a_path_or_an_index_file_and_one_verb() {
        assert!(parse("job load --path /s3 --submit --verify --replicas 2 --bandwidth 1GiB").is_ok());
        assert!(parse("job load --path /s3/models --submit --to-clients").is_ok());
        assert!(parse("job load --index-file /s3/list --progress --watch --format json").is_ok());
        assert!(parse("job free --path /s3 --stop").is_ok());
        for bad in [
            "job load --submit",
            "job load --path /s3",
            "job load --path /a --index-file /b --submit",
            "job load --path /a --submit --stop",
            "job free --path /a --submit --verify",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
