//! What becomes of a `ForebayLoad`: a plain function of what it says and of what was last known of its job.
//!
//! A job belongs to what it was asked to do: its hash is kept beside the job's name. An object that says the same as
//! before has its job, whether that runs or has ended, and an operator that starts anew follows it. One that says
//! something else has the job stopped and another one submitted. Only what is set counts in the hash, so that options
//! of later releases leave the hashes of old objects as they are.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_coordinator::jobs::{self, Cause, Failures, FileCounts, JobReport, JobSpec, JobState};
use forebay_types::{ByteSize, FsPath};
use serde_json::Value;

use crate::condition::{Scribe, Verdict, time};
use crate::resources::{LoadSpec, LoadStatus};

/// Whether the coordinator took it.
pub const ACCEPTED: &str = "Accepted";
/// Whether all is loaded.
pub const COMPLETE: &str = "Complete";
/// Whether it ended, and not all is loaded.
pub const FAILED: &str = "Failed";

/// Reasons of a failure that an object's condition has.
const MAX_REASONS: usize = 10;

/// How often a job that runs is asked for.
pub const FOLLOW_EVERY: Duration = Duration::from_secs(2);

/// What is to be done for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It can never be done: this is why.
    Refuse(Verdict),
    /// The coordinator is to be asked to run this.
    Submit(JobSpec),
    /// What this job does is not wanted any more; it is to be stopped, then the new one submitted.
    Replace {
        /// The old one's name.
        job: String,
        /// The new one.
        spec: JobSpec,
    },
    /// The coordinator is to be asked how far this job is. If it has forgotten the job, it is to run another one.
    Follow {
        /// Its name.
        job: String,
        /// What it does.
        spec: JobSpec,
    },
    /// Nothing, for so long if there is an end to it.
    Rest(Option<Duration>),
    /// The object is to be deleted: its time is over.
    Expire,
}

/// What is to be done for an object.
#[must_use]
pub fn step(spec: &LoadSpec, status: Option<&LoadStatus>, now: SystemTime) -> Step {
    let wanted = match job_spec(spec) {
        Ok(wanted) => wanted,
        Err(problem) => return Step::Refuse(problem),
    };
    let Some((status, job)) = status.and_then(|status| Some((status, status.job.as_ref()?))) else {
        return Step::Submit(wanted);
    };
    match (status.content_hash.as_deref() == Some(&*content_hash(&wanted)), has_ended(status)) {
        (true, true) => rest(spec, status, now),
        (true, false) => Step::Follow { job: job.clone(), spec: wanted },
        (false, true) => Step::Submit(wanted),
        (false, false) => Step::Replace { job: job.clone(), spec: wanted },
    }
}

/// Whether another object has this job, and wants it still. `others`: what they say, and what was last known of each.
#[must_use]
pub fn is_followed<'a>(
    job: &str,
    mut others: impl Iterator<Item = (&'a LoadSpec, Option<&'a LoadStatus>)>,
    now: SystemTime,
) -> bool {
    others.any(|(spec, status)| matches!(step(spec, status, now), Step::Follow { job: theirs, .. } if theirs == job))
}

/// The job that is to be stopped with an object that goes, if any. `others`: the jobs of other objects.
#[must_use]
pub fn forget<'a>(status: Option<&LoadStatus>, mut others: impl Iterator<Item = &'a str>) -> Option<String> {
    let status = status.filter(|status| !has_ended(status))?;
    let job = status.job.clone()?;
    (!others.any(|other| other == job)).then_some(job)
}

/// The status after the coordinator answered with `report` to who submitted `wanted`. Of two jobs for one path the
/// second one waits: then it is not ours that runs.
#[must_use]
pub fn submitted(wanted: &JobSpec, report: &JobReport, scribe: &Scribe<'_>) -> LoadStatus {
    if report.spec == *wanted {
        return followed(wanted, report, scribe);
    }
    let message = format!("the job {} loads {} in another way; this one comes after it", report.id, wanted.path());
    refused(None, Verdict::no("Waiting", message), scribe)
}

/// The status of a job.
#[must_use]
pub fn followed(wanted: &JobSpec, report: &JobReport, scribe: &Scribe<'_>) -> LoadStatus {
    let JobReport { progress, evicted, failures, .. } = report;
    let FileCounts { files, bytes } = progress.done;
    let skipped = progress.skipped;
    LoadStatus {
        observed_generation: scribe.generation,
        job: Some(report.id.clone()),
        content_hash: Some(content_hash(wanted)),
        state: Some(report.state.as_str().to_owned()),
        // A share of a hundred fits.
        percent: progress.percent.map(|percent| percent.clamp(0.0, 100.0) as u8),
        files: files + skipped.files,
        bytes: bytes.saturating_add(skipped.bytes),
        total_files: progress.total.map(|total| total.files),
        total_bytes: progress.total.map(|total| total.bytes),
        bytes_per_second: progress.bytes_per_second.max(0.0) as u64,
        failed_files: failures.count,
        evicted_bytes: evicted.bytes,
        warnings: report.warnings.clone(),
        start_time: report.started_ms.map(|at| time(of_millis(at))),
        completion_time: report.finished_ms.map(|at| time(of_millis(at))),
        conditions: vec![
            scribe.condition(ACCEPTED, Verdict::yes("Submitted", format!("its job is {}", report.id))),
            scribe.condition(COMPLETE, completeness(report)),
            scribe.condition(FAILED, failure(report)),
        ],
    }
}

/// The status of an object that the coordinator did not take, with what is known of its job, if it has one.
#[must_use]
pub fn refused(known: Option<&LoadStatus>, verdict: Verdict, scribe: &Scribe<'_>) -> LoadStatus {
    let mut status = known.cloned().unwrap_or_default();
    status.observed_generation = scribe.generation;
    status.conditions.retain(|condition| condition.kind != ACCEPTED);
    status.conditions.insert(0, scribe.condition(ACCEPTED, verdict));
    status
}

/// The job of an object.
fn job_spec(spec: &LoadSpec) -> Result<JobSpec, Verdict> {
    let no = |message: String| Verdict::no("Refused", message);
    let path = FsPath::new(&spec.path).map_err(|problem| no(format!("spec.path: {problem}")))?;
    let bandwidth = spec.bandwidth.as_deref().map(str::parse::<ByteSize>).transpose();
    let job = JobSpec::Load(jobs::LoadSpec {
        index_file: spec.index_file,
        bandwidth: bandwidth.map_err(|problem| no(format!("spec.bandwidth: {problem}")))?,
        partial_listing: spec.partial_listing,
        verify: spec.verify,
        metadata_only: spec.metadata_only,
        skip_if_exists: spec.skip_if_exists,
        replicas: spec.replicas,
        to_clients: spec.to_clients,
        ..jobs::LoadSpec::new(path)
    });
    job.check().map_err(|problem| no(problem.to_string()))?;
    Ok(job)
}

/// The hash of what a job is asked to do, of all that is set.
fn content_hash(spec: &JobSpec) -> String {
    // Texts, numbers and booleans: their encoding cannot fail.
    let fields = match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let is_set = |value: &Value| !value.is_null() && *value != Value::Bool(false);
    let set: BTreeMap<_, _> = fields.into_iter().filter(|(_, value)| is_set(value)).collect();
    let encoded = serde_json::to_vec(&set).unwrap_or_default();
    blake3::hash(&encoded).to_hex()[..32].to_owned()
}

fn has_ended(status: &LoadStatus) -> bool {
    status.completion_time.is_some()
}

fn rest(spec: &LoadSpec, status: &LoadStatus, now: SystemTime) -> Step {
    let ended = status.completion_time.as_deref().and_then(|at| humantime::parse_rfc3339(at).ok());
    let Some((ended, ttl)) = ended.zip(spec.ttl_seconds_after_finished) else { return Step::Rest(None) };
    let age = now.duration_since(ended).unwrap_or_default();
    match Duration::from_secs(ttl).checked_sub(age) {
        Some(left) if !left.is_zero() => Step::Rest(Some(left)),
        _ => Step::Expire,
    }
}

fn completeness(report: &JobReport) -> Verdict {
    match report.state {
        JobState::Succeeded if report.evicted.bytes > 0 => {
            let message = format!("{} bytes of what was loaded were evicted again meanwhile", report.evicted.bytes);
            Verdict::yes("LoadedAndPartlyEvicted", message)
        }
        JobState::Succeeded => Verdict::yes("Loaded", "all is cached"),
        JobState::Waiting => Verdict::no("Waiting", "other jobs run"),
        JobState::Running => Verdict::no("Running", "it is under way"),
        JobState::Failed | JobState::Stopped => Verdict::no("Ended", "it ended before all was cached"),
    }
}

fn failure(report: &JobReport) -> Verdict {
    match report.state {
        JobState::Failed => {
            let message = format!(
                "{} files could not be loaded: `forebay job load --path {} --progress --verbose` names them{}",
                report.failures.count,
                report.spec.path(),
                reasons(&report.failures)
            );
            Verdict::yes("Failed", message)
        }
        JobState::Stopped => Verdict::yes("Stopped", "somebody stopped it; delete and create the object to load again"),
        JobState::Waiting | JobState::Running | JobState::Succeeded => Verdict::no("NotFailed", ""),
    }
}

/// Why, with the workers that could not be reached: as many reasons as people read.
fn reasons(failures: &Failures) -> String {
    let all: Vec<&str> = failures.causes.iter().flat_map(Cause::variants).collect();
    let mut shown: Vec<&str> = all.iter().copied().take(MAX_REASONS).collect();
    if shown.len() < all.len() {
        shown.push("and others");
    }
    shown.into_iter().map(|reason| format!("; {reason}")).collect()
}

fn of_millis(since_1970: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(since_1970)
}

#[cfg(test)]
mod tests;
