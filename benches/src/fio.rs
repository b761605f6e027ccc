//! `fio`, the same on whatever file: the yardstick of everything that is read through a file system.
//!
//! Each job reads a part of the file of its own, so that no job finds in the page cache what another one brought there.
//! Direct reads go on for a set time; buffered ones read nothing twice, since the page cache would answer the second
//! time.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::Settings;
use crate::rounds::Sample;

/// What is read at a time, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// 1 MiB after 1 MiB.
    Sequential,
    /// 4 KiB anywhere.
    Random,
}

impl Access {
    pub(crate) const ALL: [Self; 2] = [Self::Sequential, Self::Random];

    /// Bytes in one read.
    pub(crate) fn block(self) -> u32 {
        match self {
            Self::Sequential => 1 << 20,
            Self::Random => 4 << 10,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sequential => "1 MiB sequential",
            Self::Random => "4 KiB random",
        }
    }
}

/// One command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fio {
    pub(crate) access: Access,
    pub(crate) direct: bool,
    pub(crate) jobs: u32,
}

impl Fio {
    /// All that are measured.
    pub(crate) fn all(settings: Settings) -> Vec<Self> {
        let with = |access| {
            [true, false]
                .into_iter()
                .flat_map(move |direct| settings.jobs().iter().map(move |jobs| Self { access, direct, jobs: *jobs }))
        };
        Access::ALL.into_iter().flat_map(with).collect()
    }

    pub(crate) fn name(self) -> String {
        let (access, cache) = (self.access.name(), if self.direct { "direct" } else { "buffered" });
        format!("{access}, {cache}, {}", count(self.jobs, "job"))
    }

    fn arguments(self, settings: Settings) -> Vec<String> {
        let part = settings.size / u64::from(self.jobs);
        let order = if self.access == Access::Sequential { "read" } else { "randread" };
        let mut arguments = vec![
            "--name=bench".to_owned(),
            "--readonly".to_owned(),
            "--ioengine=psync".to_owned(),
            "--group_reporting".to_owned(),
            "--output-format=json".to_owned(),
            format!("--rw={order}"),
            format!("--bs={}", self.access.block()),
            format!("--direct={}", u8::from(self.direct)),
            format!("--numjobs={}", self.jobs),
            format!("--size={part}"),
            format!("--offset_increment={part}"),
            format!("--runtime={}ms", settings.time.as_millis()),
        ];
        if self.direct {
            arguments.push("--time_based".to_owned());
        }
        arguments
    }

    /// Reads `file`.
    ///
    /// # Errors
    /// When fio is missing or fails.
    pub(crate) fn run(self, file: &Path, settings: Settings) -> anyhow::Result<FioResult> {
        let mut command = Command::new("fio");
        command.args(self.arguments(settings)).arg(format!("--filename={}", file.display()));
        let output = command.output().context("cannot run fio; `make setup` installs it")?;
        let say = || format!("fio on {}: {}", file.display(), String::from_utf8_lossy(&output.stderr).trim());
        ensure!(output.status.success(), say());
        // Warnings come before the JSON, on standard output too.
        let start = output.stdout.iter().position(|byte| *byte == b'{').with_context(say)?;
        let json: Value = serde_json::from_slice(&output.stdout[start..]).with_context(say)?;
        FioResult::of(&json).with_context(|| format!("fio's result has another form than expected: {json}"))
    }
}

/// What fio found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FioResult {
    pub(crate) sample: Sample,
    /// Bytes read.
    pub(crate) bytes: u64,
}

impl FioResult {
    fn of(json: &Value) -> Option<Self> {
        let read = &json["jobs"][0]["read"];
        let percentile = |name: &str| Some(read["clat_ns"]["percentile"][name].as_f64()? / 1e3);
        let sample = Sample {
            rate: read["bw_bytes"].as_f64()?,
            operations: read["iops"].as_f64()?,
            p50: percentile("50.000000")?,
            p99: percentile("99.000000")?,
            ..Sample::default()
        };
        Some(Self { sample, bytes: read["io_bytes"].as_u64()? })
    }
}

/// `1 job`, `4 jobs`.
pub(crate) fn count(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
