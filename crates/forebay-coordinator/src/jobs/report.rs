//! What people are told of a job.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::counts::{Failures, FileCounts};
use super::delivery::Delivery;
use super::rate::Speed;
use super::record::JobRecord;
use super::spec::JobSpec;
use super::state::{JobState, Pass};

/// A job and how far it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobReport {
    /// Its name.
    pub id: String,
    /// What it was asked to do.
    pub spec: JobSpec,
    /// Where it stands.
    pub state: JobState,
    /// What it is doing, or did last.
    pub pass: Pass,
    /// How far it is.
    pub progress: Progress,
    /// What the last audit found missing of the loaded files, and what was not loaded again.
    pub evicted: Evicted,
    /// What mounts keep of it; absent where they were not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// What could not be done.
    pub failures: Failures,
    /// What a person should know, a sentence each.
    pub warnings: Vec<String>,
    /// When it was submitted, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it was first run.
    pub started_ms: Option<u64>,
    /// When it ended.
    pub finished_ms: Option<u64>,
    /// When this was so.
    pub as_of_ms: u64,
    /// The coordinator that runs it, or ran it last.
    pub coordinator: String,
    /// What `forebay job` ends with: 0 done, 7 done but for what was evicted meanwhile, 8 failed, 9 stopped, 10 not
    /// ended.
    pub exit_code: u8,
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Whether the listing is complete; `total` is absent before.
    pub total_known: bool,
    /// All files.
    pub total: Option<FileCounts>,
    /// Listed so far by this pass.
    pub listed: FileCounts,
    /// Directories listed so far by this pass.
    pub directories: u64,
    /// Loaded, or freed. The bytes of files that are under way count.
    pub done: FileCounts,
    /// Passed over because they were cached whole.
    pub skipped: FileCounts,
    /// Bytes that came from the origin.
    pub fetched_bytes: u64,
    /// Bytes that were cached already.
    pub cached_bytes: u64,
    /// Bytes dropped from the caches.
    pub freed_bytes: u64,
    /// Found cached and right, by this audit.
    pub audited: FileCounts,
    /// Loaded again because an audit found them missing.
    pub repaired: FileCounts,
    /// Files that were replaced while the job ran, and were loaded in their new version.
    pub changed_files: u64,
    /// Of this pass; absent while the total is not known.
    pub percent: Option<f64>,
    /// Over the last 15 seconds.
    pub bytes_per_second: f64,
    /// Over the last 15 seconds.
    pub files_per_second: f64,
    /// What is left of this pass at this speed.
    pub eta_seconds: Option<u64>,
}

/// What was evicted while the job ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evicted {
    /// Files of which something is missing.
    pub files: u64,
    /// Bytes that are missing.
    pub bytes: u64,
    /// The first of the files.
    pub first_paths: Vec<String>,
}

impl JobReport {
    /// The report of a job that runs here at this speed, or is known from its record only.
    pub(crate) fn of(record: &JobRecord, speed: Option<Speed>) -> Self {
        let counts = &record.ledger.counts;
        let evicted = Evicted {
            files: counts.missing.files,
            bytes: counts.missing.bytes,
            first_paths: record.ledger.missing_paths.clone(),
        };
        let mut report = Self {
            id: record.id.clone(),
            spec: record.spec.clone(),
            state: record.state,
            pass: record.pass,
            progress: progress(record, speed.unwrap_or_default()),
            evicted,
            delivery: record.ledger.delivery.clone(),
            failures: record.ledger.failures.clone(),
            warnings: Vec::new(),
            created_ms: record.created,
            started_ms: record.started,
            finished_ms: record.finished,
            as_of_ms: record.updated,
            coordinator: record.coordinator.clone(),
            exit_code: 0,
        };
        report.warnings = warnings(&report, record);
        report.exit_code = exit_code(&report);
        report
    }
}

/// What `forebay job` ends with, for its help and for `docs/CLI.md`.
pub const EXIT_CODES: &str = "\
  7    the job succeeded, but some of what it loaded was evicted again meanwhile
  8    the job failed: some of it could not be done
  9    the job was stopped
  10   the job has not ended";

fn exit_code(report: &JobReport) -> u8 {
    match report.state {
        JobState::Succeeded if report.evicted.bytes > 0 => 7,
        JobState::Succeeded => 0,
        JobState::Failed => 8,
        JobState::Stopped => 9,
        JobState::Waiting | JobState::Running => 10,
    }
}

fn progress(record: &JobRecord, speed: Speed) -> Progress {
    let counts = &record.ledger.counts;
    // What this pass has behind it.
    let passed = match record.pass {
        Pass::Count => counts.seen,
        Pass::Work => FileCounts {
            files: counts.done.files + counts.skipped.files + record.ledger.failures.count,
            bytes: counts.done.bytes.saturating_add(counts.skipped.bytes),
        },
        Pass::Audit(_) => {
            FileCounts { files: counts.audited.files, bytes: counts.audited.bytes.saturating_add(counts.missing.bytes) }
        }
        Pass::Clients => record.ledger.delivery.as_ref().map(|delivery| delivery.kept).unwrap_or_default(),
    };
    let metadata_only = matches!(&record.spec, JobSpec::Load(load) if load.metadata_only);
    let known = record.total.filter(|_| record.pass != Pass::Count);
    // Every mount keeps all of it.
    let mounts = match record.pass {
        Pass::Clients => record.ledger.delivery.as_ref().map_or(1, |delivery| delivery.mounts),
        _ => 1,
    };
    let all = |total: FileCounts| FileCounts { files: total.files * mounts, bytes: total.bytes.saturating_mul(mounts) };
    let known = known.map(all);
    let by = known.map(|total| {
        let by_files = metadata_only || total.bytes == 0;
        if by_files { (passed.files, total.files, speed.files) } else { (passed.bytes, total.bytes, speed.bytes) }
    });
    let is_over = record.state.is_final();
    let percent = by.map(|(passed, total, _)| match total {
        0 => 100.0,
        _ => (passed as f64 / total as f64 * 100.0).min(100.0),
    });
    let eta = by.filter(|(.., speed)| *speed > 0.0 && !is_over);
    Progress {
        total_known: record.total.is_some(),
        total: record.total,
        listed: counts.seen,
        directories: counts.directories,
        done: counts.done,
        skipped: counts.skipped,
        fetched_bytes: counts.fetched,
        cached_bytes: counts.held,
        freed_bytes: counts.freed,
        audited: counts.audited,
        repaired: counts.repaired,
        changed_files: counts.changed,
        percent,
        bytes_per_second: if is_over { 0.0 } else { speed.bytes },
        files_per_second: if is_over { 0.0 } else { speed.files },
        eta_seconds: eta.map(|(passed, total, speed)| (total.saturating_sub(passed) as f64 / speed).ceil() as u64),
    }
}

fn warnings(report: &JobReport, record: &JobRecord) -> Vec<String> {
    let mut warnings = Vec::new();
    let Evicted { files, bytes, .. } = report.evicted;
    if bytes > 0 && report.state.is_final() {
        warnings.push(format!(
            "{bytes} bytes of {files} files were evicted while the job ran: the cache is too small for what it holds, \
             or too much else was read meanwhile"
        ));
    }
    let loads = matches!(&record.spec, JobSpec::Load(load) if !load.metadata_only);
    if loads && report.state.is_final() && !matches!(report.pass, Pass::Audit(_) | Pass::Clients) {
        warnings.push("what was loaded was not audited".to_owned());
    }
    let unread = record.ledger.counts.unread_replicas;
    if unread > 0 && report.state.is_final() {
        warnings.push(format!(
            "{unread} files have more replicas now than their policy says: the further copies are read only when the \
             owner fails; set `replicas` in a policy to have all of them read"
        ));
    }
    if let Some(delivery) = report.delivery.as_ref().filter(|delivery| !delivery.gone.is_empty()) {
        warnings.push(format!("mounts that went away before they kept all of it: {}", delivery.gone.join(", ")));
    }
    if record.stop_asked && !report.state.is_final() {
        warnings.push("it is being stopped".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::spec::LoadSpec;
    use forebay_types::FsPath;

    fn record(state: JobState, pass: Pass) -> JobRecord {
        let mut record = JobRecord::new("load-1".into(), JobSpec::Load(LoadSpec::new(FsPath::root())), 7);
        (record.state, record.pass) = (state, pass);
        record.total = Some(FileCounts { files: 10, bytes: 1000 });
        record
    }

    #[test]
    fn progress_is_that_of_the_pass() {
        let mut record = record(JobState::Running, Pass::Work);
        record.ledger.counts.done = FileCounts { files: 2, bytes: 240 };
        record.ledger.counts.skipped = FileCounts { files: 1, bytes: 10 };
        let report = JobReport::of(&record, Some(Speed { files: 1.0, bytes: 100.0 }));
        assert_eq!((report.progress.percent, report.progress.eta_seconds), (Some(25.0), Some(8)));
        assert_eq!((report.exit_code, report.warnings.len()), (10, 0));
        record.pass = Pass::Audit(0);
        assert_eq!(JobReport::of(&record, None).progress.percent, Some(0.0));
        record.total = None;
        let unknown = JobReport::of(&record, Some(Speed { files: 1.0, bytes: 100.0 }));
        assert_eq!((unknown.progress.percent, unknown.progress.eta_seconds), (None, None));
    }

    #[test]
    fn what_was_evicted_has_a_warning_and_a_code_of_its_own() {
        let mut record = record(JobState::Succeeded, Pass::Audit(0));
        assert_eq!(JobReport::of(&record, None).exit_code, 0);
        record.ledger.counts.missing = FileCounts { files: 1, bytes: 9 };
        let report = JobReport::of(&record, None);
        assert_eq!((report.exit_code, report.evicted.bytes), (7, 9));
        assert!(report.warnings[0].contains("9 bytes of 1 files were evicted"), "{:?}", report.warnings);
        for (state, code) in [(JobState::Failed, 8), (JobState::Stopped, 9), (JobState::Waiting, 10)] {
            record.state = state;
            assert_eq!(JobReport::of(&record, None).exit_code, code);
        }
    }

    #[test]
    fn a_report_survives_json() {
        let report = JobReport::of(&record(JobState::Running, Pass::Audit(2)), None);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<JobReport>(&text).unwrap(), report);
    }
}
