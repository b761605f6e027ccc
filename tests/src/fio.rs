//! Running `fio`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::{finish, skipped};

/// `fio` starts up to some hundred processes and lets each run for some seconds.
const LIMIT: Duration = Duration::from_secs(90);

/// An installed `fio`.
#[derive(Debug)]
pub struct Fio {
    program: PathBuf,
}

impl Fio {
    /// The one on the path; says so when there is none.
    #[must_use]
    pub fn find() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        let program = std::env::split_paths(&path).map(|directory| directory.join("fio")).find(|fio| fio.is_file());
        if program.is_none() {
            skipped("no fio here: `apt-get install fio` brings it");
        }
        Some(Self { program: program? })
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it fails, a job of it reports an error, or it read nothing.
    #[track_caller]
    pub fn read(&self, arguments: &[&str]) {
        let finished =
            finish(Command::new(&self.program).args(arguments).arg("--output-format=json"), LIMIT).succeeded();
        // Warnings may come before the report.
        let text = finished.text();
        let report = &text[text.find('{').unwrap_or_else(|| panic!("no report: {text}"))..];
        let report: Value = serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {text}"));
        let jobs = report["jobs"].as_array().unwrap_or_else(|| panic!("no jobs: {text}"));
        // Versions of it differ in whether a job counts its errors.
        let failed = |job: &Value| job["error"] != 0 || job.get("total_err").is_some_and(|count| *count != 0);
        assert!(!jobs.iter().any(failed), "{text}");
        let bytes: u64 = jobs.iter().filter_map(|job| job["read"]["io_bytes"].as_u64()).sum();
        assert!(bytes > 0, "{text}");
    }
}
