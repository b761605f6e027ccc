//! `forebay stats`: what a mount, a worker or several do now, a line for each interval, in the manner of `juicefs stats`; or all
//! counters once.
//!
//! * [`source`]: where the counters come from;
//! * [`columns`]: what is shown of two reports;
//! * [`table`]: how it is shown.

mod columns;
mod source;
mod table;

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use clap::builder::RangedU64ValueParser;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::columns::{Interval, Section, chosen};
use self::source::Source;
use self::table::Table;
use crate::commands::fs::target::WorkersArgs;
use crate::exit::Failures;
use crate::output::{self, JsonArg};
use crate::report::Report;
use crate::runtime;

/// Lines after which the heading is repeated where the terminal does not say how high it is.
const SCREENFUL: usize = 24;

/// Show what a mount or workers do, as it happens
///
/// A line for each interval, with a group of columns for each letter of the schema: u usage (CPU, memory, buffers), f FUSE
/// (operations, latency, bytes read and written), m metadata (attributes and listings), c cache (bytes from local memory, hit
/// ratio), r remote cache (bytes from other processes, over TCP and RDMA), e RDMA alone, o object store, l materialised files
/// (their bytes, what is fetched for them, files opened, and the share of those that the kernel reads by itself).
///
/// TARGET is a mountpoint, or HOST:PORT of a process that serves metrics. All rates are per second, latencies in
/// milliseconds; `-` is what the target does not count.
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
    /// Groups of columns, in their order: some of ufmcreol
    #[arg(long, default_value = "ufmcreo", value_parser = sections)]
    schema: Schema,
    /// Seconds between lines
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    interval: u64,
    /// End after so many lines
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
    /// Print every counter once: those of each worker, and the mount's own
    #[arg(long, conflicts_with_all = ["count", "interval", "schema", "verbosity"])]
    all: bool,
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

/// Runs it.
///
/// # Errors
/// When none answers.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    runtime::block_on(async {
        let source = Source::find(args.target.as_deref(), &args.workers).await?;
        let shown = if args.all { all(&source, args.json.json).await } else { watch(&source, args).await };
        source.close().await;
        shown
    })
}

/// Every counter once.
async fn all(source: &Source, json: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let mut failures = Failures::default();
    for (name, report) in source.all().await {
        match report {
            Ok(report) => print(&mut out, &name, report, json)?,
            Err(error) => failures.tell(error)?,
        }
    }
    out.flush()?;
    failures.finish()
}

/// As one line with the name of worker or mount in it, or as an indented list of numbers.
fn print(out: &mut impl std::io::Write, name: &str, mut counters: Value, json: bool) -> anyhow::Result<()> {
    if json {
        if let Some(object) = counters.as_object_mut() {
            object.insert("name".to_owned(), json!(name));
        }
        return Ok(output::json_line(out, &counters)?);
    }
    writeln!(out, "{name}")?;
    for (name, value) in forebay_metrics::lines(&counters) {
        writeln!(out, "  {name:<40} {value}")?;
    }
    Ok(())
}

/// A line for each interval, until it is interrupted or there were enough.
async fn watch(source: &Source, args: &Args) -> anyhow::Result<()> {
    let columns = chosen(&args.schema.0, args.verbosity);
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let table = Table::new(columns.clone(), colours);
    let every = Duration::from_secs(args.interval);
    let (mut before, mut since) = (reports(source).await?, Instant::now());
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        tokio::time::sleep_until(since + every).await;
        let (after, now) = (reports(source).await?, Instant::now());
        let interval = Interval::new(&before, &after, now - since);
        let mut out = output::stdout();
        if args.json.json {
            let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            output::json_line(&mut out, &columns::json(&columns, &interval, &time))?;
        } else {
            if shown % screenful() == 0 {
                write!(out, "{}", table.heading())?;
            }
            writeln!(out, "{}", table.line(&interval))?;
        }
        out.flush()?;
        (before, since) = (after, now);
        shown += 1;
    }
    Ok(())
}

async fn reports(source: &Source) -> anyhow::Result<Vec<(String, Report)>> {
    let reports = source.now().await?.into_iter();
    reports.map(|(name, report)| Ok((name, Report::of(&report)?))).collect()
}

/// Lines of the terminal, heading aside.
fn screenful() -> u64 {
    let rows = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    let rows = if rows > 4 { rows } else { SCREENFUL };
    rows as u64 - 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_of_known_letters() {
        assert_eq!(sections("ufmcreol").unwrap().0.len(), 8);
        assert_eq!(sections("ou").unwrap().0, [Section::Object, Section::Usage]);
        assert!(sections("x").unwrap_err().contains("ufmcreo"));
        assert!(sections("").is_err());
    }
}
