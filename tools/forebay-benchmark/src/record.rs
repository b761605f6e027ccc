//! What a benchmark measured, as it is kept: one JSON document, which reports are made of and which later runs are compared with.
//!
//! Units are in the names. Rates are per second of wall time, bytes are bytes, latencies are microseconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::median;

/// The form of the document. One that is newer than this is refused, with the version of the program that wrote it.
pub const FORMAT: u32 = 2;

/// A run of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of Forebay that measured.
    pub version: String,
    /// When it began, as in RFC 3339.
    pub begun: String,
    /// Whether it came to its end.
    pub finished: bool,
    /// The machine that measured.
    pub machine: Machine,
    /// What was asked for, by the names of the command line.
    pub settings: BTreeMap<String, String>,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
    /// What it means.
    pub findings: Vec<Finding>,
}

/// What was measured, by benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "benchmark", rename_all = "lowercase")]
pub enum Measured {
    /// `forebay bench posix`.
    Posix {
        /// The directories that were read, the one of interest first.
        targets: Vec<Target>,
        /// In the order in which they were measured.
        steps: Vec<Step>,
    },
    /// `forebay bench read`.
    Read {
        /// In the order in which they were measured.
        cells: Vec<Cell>,
    },
}

/// The machine that measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// `Linux 6.18.44`.
    pub system: String,
    /// Processors.
    pub processors: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The network interface that the data comes by (where that is not known, the fastest that is up), if its speed is known or
    /// was given.
    pub network: Option<Link>,
    /// What the disk of the cache reads, if it was given: bytes per second.
    pub disk_bytes_per_second: Option<f64>,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its speed.
    pub bits_per_second: f64,
}

/// A directory that is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// What it is called in tables: `forebay`, or the last part of the path.
    pub name: String,
    /// Where it is.
    pub path: String,
    /// The kind of file system: `fuse.forebay`, `tmpfs`.
    pub file_system: String,
    /// How its cache is filled and emptied, in words: `forebay job load`, `each file is read once`.
    pub cache: String,
    /// Why reading cold is reading from memory, if it is: nothing follows from how much slower it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cold_is_memory: Option<String>,
}

/// Whether the data is in the cache when it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// All of it.
    Warm,
    /// Nothing.
    Cold,
    /// Some of it: it was brought there before, and came from the origin all the same while it was read. A run never
    /// asks for that.
    Partial,
}

impl CacheState {
    /// Its name, as in the document and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
            Self::Partial => "partial",
        }
    }
}

/// Which files there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One large file: what one file gives.
    Single,
    /// Some files: what the whole gives.
    Multiple,
    /// Many small files: as training reads.
    Small,
}

impl Layout {
    /// Its name, as in the document and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Multiple => "multiple",
            Self::Small => "small",
        }
    }
}

/// Which job reads which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// All jobs read all files, one operation at a time each: data whose place is not known.
    Shared,
    /// Each job has files of its own and a deep queue: shards.
    Distinct,
}

impl Pattern {
    /// Its name, as in the document and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Distinct => "distinct",
        }
    }
}

/// The order in which it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// From front to back.
    Sequential,
    /// Anywhere.
    Random,
}

impl Access {
    /// Its name, as in the document and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }
}

/// What one run of fio did: what tells it from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Case {
    /// [`Target::name`].
    pub target: String,
    /// The state of the cache.
    pub state: CacheState,
    /// The files.
    pub layout: Layout,
    /// Which job reads which file.
    pub pattern: Pattern,
    /// In which order.
    pub access: Access,
    /// Bytes in a read.
    pub block_bytes: u64,
    /// Jobs that run, on each client.
    pub jobs: u32,
    /// Operations that each job has under way.
    pub depth: u32,
    /// Machines that read at once.
    pub clients: u32,
    /// Workers that serve them, where it is known: 0 where not.
    pub workers: u32,
}

/// A run of fio and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// What was run.
    pub case: Case,
    /// Which repetition of it, from 0. Repetitions of different targets alternate.
    pub round: u32,
    /// What was found.
    pub outcome: Outcome,
}

/// What fio, and the machine meanwhile, said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Of all jobs and clients.
    pub bytes_per_second: f64,
    /// Of all jobs and clients.
    pub operations_per_second: f64,
    /// Operations in all: the weight in averages.
    pub operations: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// How long it read.
    pub seconds: f64,
    /// Completion latency, of the operations of all clients together.
    pub latency: Latency,
    /// What processors did meanwhile, on this machine.
    pub cpu: Cpu,
    /// Bytes that the cache received from the origin meanwhile, where it counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_bytes: Option<u64>,
    /// Each client's own, when there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Client>,
}

/// Completion latency in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// Percentiles.
    pub p50: f64,
    #[allow(missing_docs)]
    pub p90: f64,
    #[allow(missing_docs)]
    pub p95: f64,
    #[allow(missing_docs)]
    pub p99: f64,
    #[allow(missing_docs)]
    pub p999: f64,
    /// The highest.
    pub max: f64,
}

impl Latency {
    /// No percentile above the highest: records of earlier versions have some.
    #[must_use]
    pub fn clamped(self) -> Self {
        let Self { mean, p50, p90, p95, p99, p999, max } = self;
        let [p50, p90, p95, p99, p999] =
            [p50, p90, p95, p99, p999].map(|time| if max > 0.0 { time.min(max) } else { time });
        Self { mean, p50, p90, p95, p99, p999, max }
    }
}

/// What processors did: percent of one processor, as `top` shows it. 0 where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// All of the machine.
    pub machine: f64,
    /// fio itself: the reader.
    pub fio: f64,
    /// What neither reads nor serves: what other programs did before the step, while nothing was read, and went on
    /// with.
    #[serde(default)]
    pub others: f64,
    /// What other machines on the same hardware took meanwhile, by the hypervisor's word. It is not in [`Cpu::machine`].
    #[serde(default)]
    pub stolen: f64,
}

impl Cpu {
    /// The medians of rounds.
    #[must_use]
    pub fn median_of(rounds: impl Iterator<Item = Self> + Clone) -> Self {
        let middle = |figure: fn(Self) -> f64| median(rounds.clone().map(figure)).unwrap_or_default();
        Self {
            machine: middle(|cpu| cpu.machine),
            fio: middle(|cpu| cpu.fio),
            others: middle(|cpu| cpu.others),
            stolen: middle(|cpu| cpu.stolen),
        }
    }

    /// What serving cost: everything but fio and what the machine does anyway. Percent of a processor for each 10^9 bytes per second.
    #[must_use]
    pub fn per_gigabyte(self, bytes_per_second: f64) -> f64 {
        (self.machine - self.fio - self.others).max(0.0) / (bytes_per_second / 1e9)
    }
}

/// A client's part of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Client {
    /// Its name or address.
    pub host: String,
    /// What it read.
    pub bytes_per_second: f64,
    /// What it did.
    pub operations: u64,
    /// Its latency.
    pub latency: Latency,
}

/// One measurement of `forebay bench read`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// `tcp` or `ucx`, as asked for.
    pub transport: String,
    /// What it went over: `tcp`, `ucx (posix)`.
    pub carried_by: String,
    /// Clients, a mount each.
    pub clients: u32,
    /// Files that each client reads, one after the other.
    pub files: u32,
    /// Bytes in each.
    pub file_bytes: u64,
    /// Which repetition of it, from 0. Repetitions of both transports alternate.
    pub round: u32,
    /// Mean time of a file, from open to its last byte, of all clients' files.
    pub milliseconds_per_file: f64,
    /// From the first open to the last byte.
    pub seconds: f64,
    /// The clients' processors: percent × seconds, as the study reckons it (100 is a processor for a second).
    pub client_percent_seconds: f64,
    /// The worker's. Where it is not known it is no number, and `null` in the document.
    #[serde(deserialize_with = "number_or_unknown")]
    pub worker_percent_seconds: f64,
    /// Whether every byte was compared with what was written in the time that was measured: see `compared`.
    pub checked: bool,
    /// When every byte of these files was compared with what was written.
    #[serde(default)]
    pub compared: Compared,
    /// Bytes that came from origins meanwhile, where the workers say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_bytes: Option<u64>,
    /// What of it does not count, and why: `CPU: the workers did not say what they used`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_counted: Vec<String>,
}

/// When the bytes of a measurement were compared with what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compared {
    /// In a reading of their own, by the same way, before they were measured: it is always done.
    #[default]
    Before,
    /// And in the time that was measured, too.
    While,
}

fn number_or_unknown<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// What a measurement means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which rule it follows from: `tail`, `knee`, `cold-warm`.
    pub rule: String,
    /// How good that is.
    pub level: Level,
    /// One or two sentences, with the figures.
    pub text: String,
    /// What to do, or to look at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// To know.
    Info,
    /// To look into.
    Warn,
}
