//! `fio`, the same on whatever file: the yardstick of everything that is read through a file system.
//!
//! Each job reads a part of the file of its own, so that no job finds in the page cache what another one brought there.
//! Direct reads go on for a set time; buffered and mapped ones read nothing twice, since the page cache would answer the
//! second time, except where a section wants exactly that.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use crate::process::cpu_seconds_of_ended_children;
use crate::rounds::Sample;
use crate::settings::Settings;

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

    /// Bytes in one read, unless said otherwise.
    pub(crate) fn block(self) -> u32 {
        match self {
            Self::Sequential => 1 << 20,
            Self::Random => 4 << 10,
        }
    }

    pub(crate) fn name(self) -> String {
        self.name_of(self.block())
    }

    fn name_of(self, block: u32) -> String {
        let order = if self == Self::Sequential { "sequential" } else { "random" };
        let size = if block >= 1 << 20 { format!("{} MiB", block >> 20) } else { format!("{} KiB", block >> 10) };
        format!("{size} {order}")
    }
}

/// How a job reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// `pread(2)`, one after the other.
    Calls,
    /// Copies out of a mapping.
    Mapped,
    /// libaio, so many under way at once.
    Queued {
        /// How many.
        depth: u32,
    },
}

/// One command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fio {
    pub(crate) access: Access,
    /// Bytes in one read.
    pub(crate) block: u32,
    pub(crate) engine: Engine,
    pub(crate) direct: bool,
    pub(crate) jobs: u32,
    /// Each job has a file of its own, `FILE.0`, `FILE.1` and so on, in the place of a part of `FILE`.
    pub(crate) apart: bool,
    /// How often a buffered or mapped read goes through the file, which is opened anew each time.
    pub(crate) passes: u32,
    /// A mapping that the kernel is told nothing of, and that so many reads touch; otherwise it knows their order, and all is read.
    pub(crate) unadvised: Option<u32>,
}

impl Fio {
    /// Direct reads, one after the other, in one job.
    pub(crate) fn new(access: Access) -> Self {
        let block = access.block();
        Self { access, block, engine: Engine::Calls, direct: true, jobs: 1, apart: false, passes: 1, unadvised: None }
    }

    pub(crate) fn jobs(self, jobs: u32) -> Self {
        Self { jobs, ..self }
    }

    pub(crate) fn block(self, block: u32) -> Self {
        Self { block, ..self }
    }

    pub(crate) fn buffered(self) -> Self {
        Self { direct: false, ..self }
    }

    pub(crate) fn mapped(self) -> Self {
        Self { direct: false, engine: Engine::Mapped, ..self }
    }

    pub(crate) fn queued(self, depth: u32) -> Self {
        Self { engine: Engine::Queued { depth }, ..self }
    }

    pub(crate) fn apart(self) -> Self {
        Self { apart: true, ..self }
    }

    pub(crate) fn passes(self, passes: u32) -> Self {
        Self { passes, ..self }
    }

    pub(crate) fn unadvised(self, reads: u32) -> Self {
        Self { unadvised: Some(reads), ..self }
    }

    /// Those of the sections on warm reads through a mount.
    pub(crate) fn all(settings: Settings) -> Vec<Self> {
        let with = |access| {
            [true, false].into_iter().flat_map(move |direct| {
                settings.jobs().iter().map(move |jobs| Self { direct, ..Self::new(access) }.jobs(*jobs))
            })
        };
        Access::ALL.into_iter().flat_map(with).collect()
    }

    pub(crate) fn name(self) -> String {
        let access = self.access.name_of(self.block);
        let cache = if self.direct { "direct" } else { "buffered" };
        let how = match self.engine {
            Engine::Calls => cache.to_owned(),
            Engine::Mapped if self.unadvised.is_some() => "mmap without advice".to_owned(),
            Engine::Mapped => "mmap".to_owned(),
            Engine::Queued { depth } => format!("{cache}, libaio {depth} deep"),
        };
        let files = if self.apart { format!(", {}", count(self.jobs, "file")) } else { String::new() };
        format!("{access}, {how}, {}{files}", count(self.jobs, "job"))
    }

    fn arguments(self, file: &Path, settings: Settings) -> Vec<String> {
        let part = settings.size / u64::from(self.jobs);
        let order = if self.access == Access::Sequential { "read" } else { "randread" };
        let mut arguments = vec![
            "--name=bench".to_owned(),
            "--readonly".to_owned(),
            "--group_reporting".to_owned(),
            "--output-format=json".to_owned(),
            format!("--rw={order}"),
            format!("--bs={}", self.block),
            format!("--direct={}", u8::from(self.direct)),
            format!("--numjobs={}", self.jobs),
            format!("--size={part}"),
            format!("--runtime={}ms", settings.time.as_millis()),
        ];
        match self.engine {
            Engine::Calls => arguments.push("--ioengine=psync".to_owned()),
            Engine::Mapped => arguments.push("--ioengine=mmap".to_owned()),
            Engine::Queued { depth } => {
                arguments.extend(["--ioengine=libaio".to_owned(), format!("--iodepth={depth}")])
            }
        }
        if self.apart {
            let directory = file.parent().unwrap_or(Path::new("/"));
            let name = file.file_name().unwrap_or_default();
            arguments.push(format!("--directory={}", directory.display()));
            arguments.push(format!("--filename_format={}.$jobnum", name.display()));
        } else {
            arguments.push(format!("--filename={}", file.display()));
            arguments.push(format!("--offset_increment={part}"));
        }
        if self.direct {
            arguments.push("--time_based".to_owned());
        } else {
            arguments.push(format!("--loops={}", self.passes));
        }
        if let Some(reads) = self.unadvised {
            arguments.push("--fadvise_hint=0".to_owned());
            arguments.push(format!("--io_size={}", u64::from(reads) * u64::from(self.block)));
        }
        arguments
    }

    /// Reads `file`.
    ///
    /// # Errors
    /// When fio is missing or fails.
    pub(crate) fn run(self, file: &Path, settings: Settings) -> anyhow::Result<FioResult> {
        let before = cpu_seconds_of_ended_children()?;
        let output = Command::new("fio").args(self.arguments(file, settings)).output();
        let output = output.context("cannot run fio; `make setup` installs it")?;
        let used = cpu_seconds_of_ended_children()? - before;
        let say = || format!("fio on {}: {}", file.display(), String::from_utf8_lossy(&output.stderr).trim());
        ensure!(output.status.success(), say());
        // Warnings come before the JSON, on standard output too.
        let start = output.stdout.iter().position(|byte| *byte == b'{').with_context(say)?;
        let json: Value = serde_json::from_slice(&output.stdout[start..]).with_context(say)?;
        let result = FioResult::of(&json);
        let result = result.with_context(|| format!("fio's result has another form than expected: {json}"))?;
        Ok(FioResult { sample: Sample { reader: used / result.gibibytes(), ..result.sample }, ..result })
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
            mean: read["lat_ns"]["mean"].as_f64()? / 1e3,
            p50: percentile("50.000000")?,
            p99: percentile("99.000000")?,
            ..Sample::default()
        };
        Some(Self { sample, bytes: read["io_bytes"].as_u64()? })
    }

    /// What was read, in GiB.
    pub(crate) fn gibibytes(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 30)
    }
}

/// `1 job`, `4 jobs`.
pub(crate) fn count(number: u32, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_named_by_what_it_reads_and_how() {
        let name = |fio: Fio| fio.name();
        assert_eq!(name(Fio::new(Access::Sequential).jobs(4)), "1 MiB sequential, direct, 4 jobs");
        assert_eq!(name(Fio::new(Access::Sequential).block(128 << 10).mapped()), "128 KiB sequential, mmap, 1 job");
        let deep = Fio::new(Access::Random).queued(16).jobs(4);
        assert_eq!(name(deep), "4 KiB random, direct, libaio 16 deep, 4 jobs");
        assert_eq!(
            name(Fio::new(Access::Random).buffered().jobs(2).apart()),
            "4 KiB random, buffered, 2 jobs, 2 files"
        );
    }

    #[test]
    fn jobs_read_parts_of_one_file_or_files_of_their_own() {
        let settings = Settings { quick: true, repeat: 1, size: 64 << 20, time: std::time::Duration::from_secs(1) };
        let arguments = |fio: Fio| fio.arguments(Path::new("/mnt/data/large"), settings);
        let one = arguments(Fio::new(Access::Sequential).jobs(16));
        for expected in ["--filename=/mnt/data/large", "--size=4194304", "--offset_increment=4194304", "--time_based"] {
            assert!(one.iter().any(|argument| argument == expected), "{expected} is not in {one:?}");
        }
        let many = arguments(Fio::new(Access::Sequential).buffered().passes(3).jobs(16).apart());
        for expected in ["--directory=/mnt/data", "--filename_format=large.$jobnum", "--size=4194304", "--loops=3"] {
            assert!(many.iter().any(|argument| argument == expected), "{expected} is not in {many:?}");
        }
        assert!(!many.iter().any(|argument| argument.starts_with("--filename=") || argument == "--time_based"));
    }
}
