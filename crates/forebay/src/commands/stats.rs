//! `forebay stats`: the counters of the workers, and of the mount that reads from them.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::commands::fs::target::{Targets, WorkersArgs};
use crate::exit::Failures;
use crate::output::{self, JsonArg};
use crate::{control, runtime};

/// Show the counters of workers, and of a mount with its paths to them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay stats /mnt/data
  forebay stats /mnt/data --json | jq 'select(.client).rdma.paths'
  forebay stats --workers node1:29999,node2:29999 --json | jq .worker.bytes_memory")]
pub(crate) struct Args {
    /// Where their mount is; not needed with --workers
    mountpoint: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// Runs it.
///
/// # Errors
/// When none answers.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    runtime::block_on(stats(args))
}

async fn stats(args: &Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let mountpoint = args.mountpoint.as_deref();
    let client = targets.client_of(mountpoint).await?;
    let control = targets.control_of(mountpoint)?;
    let mut out = output::stdout();
    let mut failures = Failures::default();
    for (worker, answer) in client.worker_stats().await {
        match answer {
            Ok(text) => print(&mut out, &worker, serde_json::from_str(&text)?, args.json.json)?,
            Err(failure) => failures.tell(failure.context(&worker).into())?,
        }
    }
    if let (Some(mountpoint), Some(control)) = (mountpoint, control) {
        match control::ask(&control).await {
            Ok(report) => print(&mut out, &mountpoint.display().to_string(), report, args.json.json)?,
            Err(error) => failures.tell(error)?,
        }
    }
    out.flush()?;
    targets.close().await;
    failures.finish()
}

/// As one line with the name of worker or mount in it, or as an indented list of numbers.
fn print(out: &mut impl std::io::Write, worker: &str, mut counters: Value, json: bool) -> anyhow::Result<()> {
    if json {
        if let Some(object) = counters.as_object_mut() {
            object.insert("name".to_owned(), json!(worker));
        }
        return Ok(output::json_line(out, &counters)?);
    }
    writeln!(out, "{worker}")?;
    print_below(out, &counters, "")?;
    Ok(())
}

fn print_below(out: &mut impl std::io::Write, value: &Value, prefix: &str) -> std::io::Result<()> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            print_below(out, value, &name)
        }),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(at, value)| print_below(out, value, &format!("{prefix}.{at}")))
        }
        value => writeln!(out, "  {prefix:<40} {value}"),
    }
}
