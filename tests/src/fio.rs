//! Running `fio`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::finish;
use crate::suites::installed;

/// `fio` starts up to some hundred processes and lets each run for some seconds.
const LIMIT: Duration = Duration::from_secs(600);

/// An installed `fio`.
#[derive(Debug)]
pub struct Fio {
    program: PathBuf,
}

impl Fio {
    /// The one on the path; says so when there is none.
    #[must_use]
    pub fn find() -> Option<Self> {
        Some(Self { program: installed("fio")? })
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// When it fails, a job of it reports an error, or it read nothing.
    #[track_caller]
    pub fn read(&self, arguments: &[&str]) {
        self.run("read", arguments);
    }

    /// The same for jobs that write.
    ///
    /// # Panics
    /// When it fails, a job of it reports an error, or it wrote nothing.
    #[track_caller]
    pub fn write(&self, arguments: &[&str]) {
        self.run("write", arguments);
    }

    /// The same for jobs that check what was written before.
    ///
    /// # Panics
    /// When it fails, or a job of it reports an error.
    #[track_caller]
    pub fn verify(&self, arguments: &[&str]) {
        self.read(arguments);
    }

    #[track_caller]
    fn run(&self, direction: &str, arguments: &[&str]) {
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
        let bytes: u64 = jobs.iter().filter_map(|job| job[direction]["io_bytes"].as_u64()).sum();
        assert!(bytes > 0, "{text}");
    }
}
