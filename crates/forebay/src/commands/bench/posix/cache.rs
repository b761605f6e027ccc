//! The cache of a Forebay mount: filled by load jobs and emptied by free jobs of its coordinator, which are followed to their
//! ends.
//!
//! The coordinator knows files by their path in the namespace, fio by their path below the mount. That both mean the same files
//! is checked: a load job counts what it loads, and that must be what fio has written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_benchmark::posix::run::{Cache, CacheError, CachedFiles, Stop};
use forebay_config::Config;
use forebay_coordinator::ApiError;
use forebay_coordinator::jobs::{Cause, FreeSpec, JobReport, JobSpec, LoadSpec};
use forebay_types::FsPath;
use tokio::runtime::Handle;

use crate::coordinator_args::Coordinator;
use crate::output;

/// How often a job is asked for.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// How long a coordinator may be away while a job is followed: another one takes over in less.
const AWAY: Duration = Duration::from_secs(60);

/// The cache behind a mount, through its coordinator. It waits: not for a thread of the runtime.
pub(super) struct Coordinated {
    mountpoint: PathBuf,
    address: String,
    client: Coordinator,
    runtime: Handle,
}

impl Coordinated {
    /// Of the mount at `mountpoint`, by the coordinator at `address`, which is asked as this configuration says.
    ///
    /// # Errors
    /// When that is no address, or this process cannot prove who it is though it should.
    pub(super) fn new(mountpoint: PathBuf, address: String, config: &Config, runtime: Handle) -> anyhow::Result<Self> {
        let client = {
            // The files of its identity are looked at there.
            let _entered = runtime.enter();
            Coordinator::at(&address, config)?
        };
        Ok(Self { client, mountpoint, address, runtime })
    }

    /// The addresses of the cluster's workers that will stay; none when the coordinator does not say.
    pub(super) fn workers(&self) -> Result<Vec<String>, ApiError> {
        let status = self.runtime.block_on(self.client.cluster())?;
        let members = status.cluster["members"].as_array().cloned().unwrap_or_default();
        let active = members.iter().filter(|member| member["state"].as_str().is_none_or(|state| state == "active"));
        Ok(active.map(|member| member["addresses"]["rpc"].as_str().unwrap_or_default().to_owned()).collect())
    }

    /// Runs a job to its end, whatever that is.
    fn follow(&self, spec: &JobSpec, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<JobReport, CacheError> {
        let submitted = self.runtime.block_on(self.client.submit(spec)).map_err(|error| failed(&error))?;
        let (mut job, mut away) = (submitted.job, Duration::ZERO);
        while !job.state.is_final() {
            tell(&line_of(&job));
            std::thread::sleep(ASK_EVERY);
            if stop.is_asked() {
                // One that others had begun is theirs.
                if submitted.created {
                    let _ = self.runtime.block_on(self.client.stop(&job.id));
                }
                return Err(CacheError::Interrupted);
            }
            match self.runtime.block_on(self.client.job(&job.id)) {
                Ok(answer) => (job, away) = (answer, Duration::ZERO),
                Err(error) if error.is_unavailable() && away < AWAY => away += ASK_EVERY,
                Err(error) => return Err(failed(&error)),
            }
        }
        Ok(job)
    }

    /// Runs a job to its end, which is a good one.
    fn job(&self, spec: &JobSpec, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<JobReport, CacheError> {
        let job = self.follow(spec, stop, tell)?;
        judge(job)
    }

    fn to_free(&self, files: &CachedFiles) -> Result<JobSpec, CacheError> {
        Ok(JobSpec::Free(FreeSpec::new(in_namespace(&self.mountpoint, &files.directory)?)))
    }
}

impl Cache for Coordinated {
    fn describe(&self) -> String {
        format!("forebay job load and free, by the coordinator at {}", self.address)
    }

    fn warm(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        let path = in_namespace(&self.mountpoint, &files.directory)?;
        let job = self.job(&JobSpec::Load(LoadSpec::new(path.clone())), stop, tell)?;
        let total = job.progress.total.unwrap_or_default();
        if total.bytes != files.bytes() || total.files != files.files.len() as u64 {
            return Err(CacheError::Failed(format!(
                "the coordinator at {} finds {} files of {} bytes below {path}, and {} shows {} of {}: these are not the same; \
                 name the coordinator of this mount with --coordinator, and see that nobody else writes there",
                self.address,
                total.files,
                total.bytes,
                files.directory.display(),
                files.files.len(),
                files.bytes(),
            )));
        }
        Ok(())
    }

    fn empty(&mut self, files: &CachedFiles, stop: &Stop, tell: &mut dyn FnMut(&str)) -> Result<(), CacheError> {
        self.job(&self.to_free(files)?, stop, tell).map(drop)
    }

    fn release(&mut self, files: &CachedFiles, stop: &Stop) -> Result<(), CacheError> {
        let job = self.follow(&self.to_free(files)?, stop, &mut |_| ())?;
        if is_nothing_there(&job) { Ok(()) } else { judge(job).map(drop) }
    }
}

/// The path of the namespace that the mount at `mountpoint` shows at `path`.
pub(super) fn in_namespace(mountpoint: &Path, path: &Path) -> Result<FsPath, CacheError> {
    let below = path.strip_prefix(mountpoint).unwrap_or(path);
    let bytes = [b"/", below.as_os_str().as_encoded_bytes()].concat();
    FsPath::new(bytes).map_err(|error| CacheError::Failed(format!("{}: {error}", path.display())))
}

fn failed(error: &ApiError) -> CacheError {
    // The coordinator's errors have the remedy after a colon.
    let message = error.to_string();
    let message = message.rsplit_once(": ").map_or(message.clone(), |(what, next)| format!("{what}; {next}"));
    if error.is_unavailable() { CacheError::Unavailable(message) } else { CacheError::Failed(message) }
}

/// Whether a job failed because nothing of what it was to free is there: a file that the mount still shows, since its upload failed a
/// moment ago, is neither at the origin nor in a cache.
fn is_nothing_there(job: &JobReport) -> bool {
    let causes = &job.failures.causes;
    !causes.is_empty() && causes.iter().all(Cause::is_nothing_there)
}

/// A job that has ended, if its end is a good one.
fn judge(job: JobReport) -> Result<JobReport, CacheError> {
    match job.exit_code {
        0 => Ok(job),
        7 => Err(CacheError::Failed(format!(
            "{} of {} below {} were evicted again while they were loaded, so what is called warm would not be; give the workers \
             more room (worker.memory.size, worker.disks, a quota), or measure less data",
            output::human(job.evicted.bytes),
            output::human(job.progress.total.unwrap_or_default().bytes),
            job.spec.path(),
        ))),
        _ => Err(CacheError::Failed(format!("{}; {}", what_failed(&job), how_to_see(&job)))),
    }
}

fn line_of(job: &JobReport) -> String {
    let (kind, state) = (job.spec.kind().as_str(), job.state.as_str().to_lowercase());
    match job.progress.percent {
        Some(percent) => format!("{kind} job {state}, {percent:.0} %"),
        None => format!("{kind} job {state}"),
    }
}

fn what_failed(job: &JobReport) -> String {
    let (kind, path, state) = (job.spec.kind().as_str(), job.spec.path(), job.state.as_str());
    let cause = job.failures.causes.first().map(|cause| format!(": {} × {}", cause.count, cause.told()));
    format!("the {kind} job for {path} ended as {state}{}", cause.unwrap_or_default())
}

fn how_to_see(job: &JobReport) -> String {
    format!(
        "`forebay job {} --path {} --progress --verbose` names what failed",
        job.spec.kind().as_str(),
        job.spec.path()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_the_mount_is_one_of_the_namespace() {
        let path = |at: &str| in_namespace(Path::new("/mnt/data"), Path::new(at)).unwrap().to_string();
        assert_eq!(path("/mnt/data/s3/forebay-bench/small"), "/s3/forebay-bench/small");
        assert_eq!(path("/mnt/data"), "/");
    }
}
