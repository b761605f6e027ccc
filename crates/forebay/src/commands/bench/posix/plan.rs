//! What is to be measured, as it is said on the command line.

use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use forebay_benchmark::posix::run::Capacity;
use forebay_benchmark::posix::{Engine, Settings};
use forebay_benchmark::record::{Access, CacheState, Layout, Link, Machine, Pattern};
use forebay_types::ByteSize;

use crate::exit::{Exit, Fault};
use crate::output;

const QUICK: &str = "quick";
const REFERENCE: &str = "reference";
const STATES: [CacheState; 2] = [CacheState::Warm, CacheState::Cold];
const LAYOUTS: [Layout; 3] = [Layout::Single, Layout::Multiple, Layout::Small];
const PATTERNS: [Pattern; 2] = [Pattern::Shared, Pattern::Distinct];
const ACCESSES: [Access; 2] = [Access::Sequential, Access::Random];

/// What is to be measured.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "What is measured")]
pub(super) struct PlanArgs {
    /// The settings to start from. quick measures everything with small files, two seconds a step, once each, and its
    /// figures are called quick. reference is the published table of one client (100 GiB in one file, warm, 1 MiB and 4
    /// KiB, 1 to 512 jobs, a minute a step, three rounds). full is everything that was published: 200 GiB, ten hours
    #[arg(long, value_name = "PLAN", default_value = "quick", value_parser = ["quick", "reference", "full"])]
    plan: String,
    /// Size of the one large file [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// How many files the layout `multiple` has [default: 20]
    #[arg(long, value_name = "N")]
    files: Option<u32>,
    /// Size of each of these files [default: 25MiB]
    #[arg(long, value_name = "SIZE")]
    file_size: Option<ByteSize>,
    /// How many files the layout `small` has [default: 100]
    #[arg(long, value_name = "N")]
    small_files: Option<u32>,
    /// Size of each small file [default: 1MiB]
    #[arg(long, value_name = "SIZE")]
    small_size: Option<ByteSize>,
    /// Multiply all sizes by this, in whole MiB
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
    /// States of the cache
    #[arg(long, value_name = "STATE,...", value_delimiter = ',', value_parser = named(&STATES, CacheState::name))]
    states: Vec<CacheState>,
    /// One large file, several, many small ones
    #[arg(long, value_name = "LAYOUT,...", value_delimiter = ',', value_parser = named(&LAYOUTS, Layout::name))]
    layouts: Vec<Layout>,
    /// With several files: all jobs read all files, or each job reads its own with a deep queue
    #[arg(long, value_name = "PATTERN,...", value_delimiter = ',', value_parser = named(&PATTERNS, Pattern::name))]
    patterns: Vec<Pattern>,
    /// Orders of reading
    #[arg(long, value_name = "ACCESS,...", value_delimiter = ',', value_parser = named(&ACCESSES, Access::name))]
    accesses: Vec<Access>,
    /// The sweep: how many jobs read at once, ascending [default: 1,2,4,8,16,32]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    numjobs: Vec<u32>,
    /// Measure every step of a sweep; otherwise it ends two steps past the knee, except with --plan reference
    #[arg(long)]
    full_sweep: bool,
    /// How long a step reads; under 30s, figures are called quick [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    runtime: Option<Duration>,
    /// Bytes of a sequential read, one sweep for each size [default: 1MiB of the large file, 256KiB of others]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    bs: Vec<ByteSize>,
    /// Bytes of a random read, one sweep for each size [default: 4KiB]
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    random_bs: Vec<ByteSize>,
    /// Reads that each job has in flight, one sweep for each [default: 1 of shared files, 32 of distinct ones]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    iodepth: Vec<u32>,
    /// Read through the page cache of this machine; otherwise reads bypass it
    #[arg(long)]
    buffered: bool,
    /// The I/O engine of fio; auto takes the first of the others that works here
    #[arg(long, value_name = "ENGINE", default_value = "auto", value_parser = ["auto", "io_uring", "libaio", "psync"])]
    ioengine: String,
    /// How often to measure each step; several directories take turns [default: 1; 3 of the other plans]
    #[arg(long, value_name = "N")]
    repeat: Option<u32>,
    /// The speed of this machine's network card, as in 200Gbps [default: what the card says]
    #[arg(long, value_name = "SPEED", value_parser = bits_per_second)]
    nic_speed: Option<f64>,
    /// The read speed of the cache's disk, as in 12GBps
    #[arg(long, value_name = "SPEED", value_parser = bytes_per_second)]
    disk_speed: Option<f64>,
}

impl PlanArgs {
    /// The settings that they stand for, read by `engine`.
    fn settings(&self, engine: Engine) -> Settings {
        let mut settings = match self.plan.as_str() {
            REFERENCE => Settings::reference(),
            "full" => Settings::full(),
            _ => Settings::quick(),
        };
        settings.engine = engine;
        settings.direct = !self.buffered;
        let set = |field: &mut u64, said: Option<ByteSize>| *field = said.map_or(*field, ByteSize::as_u64);
        set(&mut settings.sizes.single_bytes, self.size);
        set(&mut settings.sizes.file_bytes, self.file_size);
        set(&mut settings.sizes.small_bytes, self.small_size);
        let sizes = |said: &[ByteSize]| said.iter().map(|size| size.as_u64()).collect::<Vec<_>>();
        or_default(&mut settings.single_blocks, &sizes(&self.bs));
        or_default(&mut settings.blocks, &sizes(&self.bs));
        or_default(&mut settings.random_blocks, &sizes(&self.random_bs));
        or_default(&mut settings.shared_depths, &self.iodepth);
        or_default(&mut settings.distinct_depths, &self.iodepth);
        settings.sizes.files = self.files.unwrap_or(settings.sizes.files);
        settings.sizes.small_files = self.small_files.unwrap_or(settings.sizes.small_files);
        settings.repeat = self.repeat.unwrap_or(settings.repeat);
        settings.runtime = self.runtime.unwrap_or(settings.runtime);
        or_default(&mut settings.states, &self.states);
        or_default(&mut settings.layouts, &self.layouts);
        or_default(&mut settings.patterns, &self.patterns);
        or_default(&mut settings.accesses, &self.accesses);
        or_default(&mut settings.jobs, &self.numjobs);
        match self.scale {
            Some(factor) => settings.scaled(factor),
            None => settings,
        }
    }

    /// The settings that the options stand for, and what to tell of them. Sizes that the user did not ask for are made
    /// small enough to stay in a cache of this capacity.
    pub(super) fn fitted(&self, engine: Engine, capacity: Option<Capacity>) -> (Settings, Option<String>) {
        let mut settings = self.settings(engine);
        let Some(Capacity { usable, total }) = capacity else { return (settings, None) };
        if self.plan != QUICK || self.scale.is_some() || !settings.states.contains(&CacheState::Warm) {
            return (settings, None);
        }
        let mut told = Vec::new();
        for layout in settings.layouts.clone() {
            let is_said = match layout {
                Layout::Single => self.size.is_some(),
                Layout::Multiple => self.files.is_some() || self.file_size.is_some(),
                Layout::Small => self.small_files.is_some() || self.small_size.is_some(),
            };
            let before = settings.sizes.bytes(layout);
            if !is_said && before > usable {
                settings.sizes = settings.sizes.within(layout, usable);
                let (before, after) = (output::human(before), output::human(settings.sizes.bytes(layout)));
                told.push(format!("{} {after} rather than {before}", layout.name()));
            }
        }
        let text = format!("the cache holds {}, so that less is read: {}", output::human(total), told.join(", "));
        (settings, (!told.is_empty()).then_some(text))
    }

    /// What was said wrongly, of what is no setting.
    ///
    /// # Errors
    /// The first of it.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        match self.scale {
            Some(factor) if !(factor.is_finite() && factor > 0.0) => {
                Err(Fault::new(Exit::Usage, format!("--scale {factor} cannot be"), "give a number above 0").into())
            }
            _ => Ok(()),
        }
    }

    /// Whether sweeps go on past their knees: a table has all of its cells.
    pub(super) fn full_sweep(&self) -> bool {
        self.full_sweep || self.plan == REFERENCE
    }

    /// The engine that was asked for; `None` for the first that works.
    pub(super) fn engine(&self) -> Option<Engine> {
        [Engine::IoUring, Engine::Libaio, Engine::Psync].into_iter().find(|engine| engine.name() == self.ioengine)
    }

    /// The speed of the network that was said.
    pub(super) fn said_network(&self) -> Option<String> {
        self.nic_speed.map(|bits| format!("{bits} bit/s"))
    }

    /// The speed of the disk that was said.
    pub(super) fn said_disk(&self) -> Option<String> {
        self.disk_speed.map(|bytes| format!("{bytes} B/s"))
    }

    /// The machine with the speeds that were said.
    pub(super) fn machine(&self, found: Machine) -> Machine {
        let said = self.nic_speed.map(|bits_per_second| Link {
            name: found.network.as_ref().map_or("the network".to_owned(), |link| link.name.clone()),
            bits_per_second,
        });
        Machine { network: said.or(found.network), disk_bytes_per_second: self.disk_speed, ..found }
    }
}

fn or_default<T: Clone>(field: &mut Vec<T>, said: &[T]) {
    if !said.is_empty() {
        *field = said.to_vec();
    }
}

/// One of `all`, by its name.
fn named<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl clap::builder::TypedValueParser<Value = T> {
    let names: Vec<&'static str> = all.iter().map(|value| name(*value)).collect();
    PossibleValuesParser::new(names).try_map(move |said| {
        all.iter().copied().find(|value| name(*value) == said).ok_or_else(|| format!("`{said}` is none of them"))
    })
}

/// `200Gbps`, `100 Gb/s`, `800M`: what cards are called by.
fn bits_per_second(text: &str) -> Result<f64, String> {
    speed(text, &["bit/s", "bps", "b/s", "b", ""], "200Gbps")
}

/// `12GBps`, `3.5 GB/s`.
fn bytes_per_second(text: &str) -> Result<f64, String> {
    speed(text, &["Bps", "B/s", "B", ""], "12GBps")
}

fn speed(text: &str, units: &[&str], example: &str) -> Result<f64, String> {
    let text = text.trim();
    let at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = (text[..at].parse::<f64>().ok(), text[at..].trim());
    let powers = [("K", 1e3), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("", 1.0)];
    let power = powers.iter().find_map(|(prefix, power)| units.contains(&unit.strip_prefix(prefix)?).then_some(power));
    match (number, power) {
        (Some(number), Some(power)) if number > 0.0 => Ok(number * power),
        _ => Err(format!("write it as in {example}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn the_help_s_defaults_are_those_of_the_settings() {
        let command = PlanArgs::augment_args(clap::Command::new("posix"));
        let help = |name: &str| {
            let argument = command.get_arguments().find(|argument| argument.get_id() == name).unwrap();
            argument.get_help().unwrap().to_string()
        };
        let Settings { jobs, runtime, sizes, .. } = Settings::quick();
        let jobs: Vec<String> = jobs.iter().map(ToString::to_string).collect();
        let size = |bytes: u64| ByteSize::bytes(bytes).to_string();
        for (name, default) in [
            ("numjobs", jobs.join(",")),
            ("runtime", humantime::format_duration(runtime).to_string()),
            ("size", size(sizes.single_bytes)),
            ("file_size", size(sizes.file_bytes)),
            ("small_size", size(sizes.small_bytes)),
            ("files", sizes.files.to_string()),
            ("small_files", sizes.small_files.to_string()),
        ] {
            assert!(help(name).contains(&format!("[default: {default}]")), "{name}: {default}: {}", help(name));
        }
    }

    #[test]
    fn a_speed_is_said_in_bits_of_a_network_and_in_bytes_of_a_disk() {
        assert_eq!(bits_per_second("200Gbps"), Ok(200e9));
        assert_eq!(bits_per_second("100 Gb/s"), Ok(100e9));
        assert_eq!(bits_per_second("2.5G"), Ok(2.5e9));
        assert_eq!(bytes_per_second("12GBps"), Ok(12e9));
        assert_eq!(bytes_per_second("3.5 GB/s"), Ok(3.5e9));
        // Bits of a disk, bytes of a network: a factor of eight that a user would not notice.
        for bad in ["200GBps", "", "Gbps", "-1Gbps", "0Gbps", "1Xbps"] {
            assert!(bits_per_second(bad).is_err(), "{bad}");
        }
        assert!(bytes_per_second("12Gbps").is_err());
    }
}
