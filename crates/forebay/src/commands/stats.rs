//! `forebay stats`: what a mount, a worker or several do now, a line for each interval, in the manner of `juicefs stats`; or all
//! counters once.
//!
//! * [`source`]: where the counters come from;
//! * [`counts`]: what a report says, as numbers;
//! * [`columns`]: what is shown of two reports;
//! * [`layout`]: which columns have a place in so many characters;
//! * [`table`]: how numbers and headings are written;
//! * [`screen`]: what is written when;
//! * [`mod@watch`]: the loop.

mod columns;
mod counts;
mod layout;
mod screen;
mod source;
mod table;
mod watch;

use std::io::Write as _;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};

use self::columns::{Section, chosen};
use self::source::Source;
use self::watch::{Watch, watch};
use crate::commands::fs::target::WorkersArgs;
use crate::exit::Failures;
use crate::output::{self, JsonArg};
use crate::runtime;

/// The groups that are shown when none are named.
const USUAL: &str = "ufmcreos";
/// Seconds from line to line, at least: the counters are those of all threads, and asking for them is work.
const SHORTEST: f64 = 0.1;
const LONGEST: f64 = 3600.0;

/// Show what a mount or workers do, as it happens
///
/// The command prints one line for each interval. Each letter of the schema stands for a group of columns: u usage
/// (CPU, memory, buffers), f FUSE (operations, latency, bytes read and written), m metadata (attributes and listings),
/// c cache (bytes from local memory, hit ratio), r remote cache (bytes from other processes, over TCP and RDMA), e RDMA
/// alone, o object store, s S3 endpoint (requests, bytes sent and received, refused requests and failures), l materialised
/// files (their bytes, the bytes fetched for them, files opened, and the share of those that the kernel reads by itself),
/// h reads that were late (sent to another worker as well, answered by it first or for nothing, and those of slow workers
/// that went elsewhere at once), a what was fetched ahead of readers (bytes, and small files, and how many of these were
/// opened then or were not).
///
/// The table fits the terminal. Without --schema, it leaves out groups that the target does not count. If that is not
/// enough, it shortens names and drops groups that have shown no activity. It splits the rest into several lines, each
/// starting with the letters of its groups. In a file, each interval is one line, or fits the width in COLUMNS if set.
///
/// TARGET is a mountpoint, or HOST:PORT of a process that serves metrics. All rates are per second, and latencies are
/// in milliseconds. `-` marks a value that the target does not count, and a share of nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay stats /mnt/data
  forebay stats /mnt/data -l 1 --schema ufmcreol --interval 5
  forebay stats --workers node1:29999,node2:29999 --json --count 10
  forebay stats /mnt/data --all --json | jq 'select(.client).rdma.paths'")]
pub(crate) struct Args {
    /// A mountpoint, or HOST:PORT of a process that serves metrics; not needed with --workers
    target: Option<String>,
    /// Show more columns with 1
    #[arg(short = 'l', long, value_name = "0|1", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    verbosity: u8,
    /// Column groups to show, in this order: letters of ufmcreoslha [default: those of ufmcreos that the target counts]
    #[arg(long, value_parser = sections)]
    schema: Option<Schema>,
    /// Seconds between lines, at least 0.1
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// End after this many lines
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
    /// Print once every counter that is not 0: those of each worker, and the mount's own
    #[arg(long, conflicts_with_all = ["count", "interval", "schema", "verbosity"])]
    all: bool,
    /// With --all, also print counters that are 0; JSON always has them
    #[arg(long, requires = "all")]
    zeros: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// The sections to show.
#[derive(Clone, Debug)]
struct Schema(Vec<Section>);

fn sections(letters: &str) -> Result<Schema, String> {
    let of = |letter| Section::of(letter).ok_or_else(|| format!("`{letter}` is none of {}", Section::LETTERS));
    let sections: Vec<Section> = letters.chars().map(of).collect::<Result<_, _>>()?;
    if sections.is_empty() { Err("name at least one".to_owned()) } else { Ok(Schema(sections)) }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is no number of seconds".to_owned())?;
    match (SHORTEST..=LONGEST).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("it is none of {SHORTEST} to {LONGEST} seconds")),
    }
}

/// Runs it.
///
/// # Errors
/// When none answers.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    runtime::block_on(async {
        let source = Source::find(args.target.as_deref(), &args.workers).await?;
        let shown = if args.all { all(&source, args).await } else { watch(&source, args.watch()).await };
        source.close().await;
        shown
    })
}

impl Args {
    fn watch(&self) -> Watch {
        let sections = match &self.schema {
            Some(schema) => schema.0.clone(),
            None => USUAL.chars().filter_map(Section::of).collect(),
        };
        Watch {
            columns: chosen(&sections, self.verbosity),
            are_named: self.schema.is_some(),
            every: self.interval,
            count: self.count,
            json: self.json.json,
        }
    }
}

/// Every counter once.
async fn all(source: &Source, args: &Args) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let mut failures = Failures::default();
    for (name, report) in source.all().await {
        match report {
            Ok(report) => print(&mut out, &name, report, args)?,
            Err(error) => failures.tell(error)?,
        }
    }
    out.flush()?;
    failures.finish()
}

/// As one line with the name of worker or mount in it, or as an indented list of numbers.
fn print(out: &mut impl std::io::Write, name: &str, mut counters: Value, args: &Args) -> anyhow::Result<()> {
    if args.json.json {
        if let Some(object) = counters.as_object_mut() {
            object.insert("name".to_owned(), json!(name));
        }
        return Ok(output::json_line(out, &counters)?);
    }
    writeln!(out, "{name}")?;
    let is_zero = |value: &str| value.parse() == Ok(0.0);
    for (name, value) in forebay_metrics::lines(&counters).iter().filter(|(_, value)| args.zeros || !is_zero(value)) {
        writeln!(out, "  {name:<40} {value}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_of_known_letters() {
        assert_eq!(sections("ufmcreoslha").unwrap().0.len(), 11);
        assert_eq!(sections("ou").unwrap().0, [Section::Object, Section::Usage]);
        assert!(sections("x").unwrap_err().contains("ufmcreo"));
        assert!(sections("").is_err());
    }

    #[test]
    fn an_interval_is_a_tenth_of_a_second_or_longer() {
        assert_eq!(seconds("0.1"), Ok(Duration::from_millis(100)));
        assert_eq!(seconds("2"), Ok(Duration::from_secs(2)));
        for wrong in ["0.05", "0", "-1", "1s", "NaN", "inf", "4000", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
