//! `forebay cluster`: the workers, how much each of them owns, and which of them shall leave.

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Subcommand;
use forebay_coordinator::ApiClient;
use forebay_coordinator::api::ClusterStatus;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::away::Away;
use crate::coordinator_args::CoordinatorArgs;
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg};
use crate::runtime;
use crate::signals::Signals;

/// How often the progress of a drain is asked for.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often in a row a worker that is to leave may be missing, or stay. A coordinator that has just started does not know the workers
/// yet, and a worker that starts anew does not know yet that it is to leave.
const DOUBTED: u32 = 10;

/// Show the cluster, and drain workers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay cluster status
  forebay cluster drain node7:29999")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the workers: their state, their share of the blocks, what they hold, their version
    #[command(after_help = "\
Example:
  forebay cluster status
  forebay cluster status --json | jq '.cluster.members[] | select(.state != \"active\").name'")]
    Status {
        #[command(flatten)]
        json: JsonArg,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
    /// Make a worker hand over its blocks, and wait until it can be stopped
    ///
    /// The worker owns no blocks from now on. It still serves the blocks that it has. Interrupting this command ends
    /// only the waiting.
    #[command(after_help = "\
Example:
  forebay cluster drain node7:29999")]
    Drain {
        /// The worker's name, as `forebay cluster status` shows it
        worker: String,
        /// Do not wait
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
    /// Cancel the drain of a worker, so that it stays
    #[command(after_help = "\
Example:
  forebay cluster undrain node7:29999")]
    Undrain {
        /// The worker's name
        worker: String,
        #[command(flatten)]
        coordinator: CoordinatorArgs,
    },
}

/// Runs it.
///
/// # Errors
/// When the coordinator cannot be reached, or knows no such worker.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    runtime::block_on(async {
        match args.command {
            Command::Status { json, coordinator } => status(&*coordinator.client(None)?, json.json).await,
            Command::Drain { worker, no_wait, coordinator } => {
                let client = coordinator.client(None)?;
                client.drain(&worker).await?;
                if no_wait {
                    output::say(&format!("{worker} hands over what it holds"));
                    return Ok(());
                }
                Signals::take()?.unless_any(drained(&client, &worker)).await
            }
            Command::Undrain { worker, coordinator } => {
                coordinator.client(None)?.undrain(&worker).await?;
                output::say(&format!("{worker} stays"));
                Ok(())
            }
        }
    })
}

async fn status(client: &ApiClient, json: bool) -> anyhow::Result<()> {
    let status = client.cluster().await?;
    let stats = client.stats().await?;
    let mut out = output::stdout();
    if json {
        let mut value = serde_json::to_value(&status)?;
        value["stats"] = serde_json::to_value(&stats)?;
        output::json_line(&mut out, &value)?;
        return Ok(out.flush()?);
    }
    let health = |name: &str| {
        let told = stats.workers.iter().find(|worker| worker.name == name);
        match told.map(|worker| (&worker.stats, &worker.error)) {
            Some((Some(stats), _)) => ("answers", held(stats)),
            Some((None, Some(_))) => ("no answer", String::new()),
            _ => ("not asked", String::new()),
        }
    };
    print(&mut out, &status, health)?;
    Ok(out.flush()?)
}

/// Bytes that a worker holds, in memory and on disk.
fn held(stats: &Value) -> String {
    let bytes = |value: &Value| value.as_u64().map(|bytes| HumanBytes(bytes).to_string()).unwrap_or_default();
    let memory = bytes(&stats["store"]["memory"]["run_bytes"]);
    let disk: u64 =
        stats["store"]["disks"].as_array().into_iter().flatten().filter_map(|disk| disk["run_bytes"].as_u64()).sum();
    if disk == 0 { memory } else { format!("{memory} + {}", HumanBytes(disk)) }
}

fn print<'a>(
    out: &mut impl Write,
    status: &ClusterStatus,
    health: impl Fn(&str) -> (&'a str, String),
) -> std::io::Result<()> {
    let leader = status.leader.as_ref().map_or_else(|| "none".to_owned(), |leader| leader.name.clone());
    let store = if status.state_store.reachable { "reachable" } else { "unreachable" };
    writeln!(
        out,
        "coordinator {} (leads: {leader}), state in {}, {store}",
        status.coordinator, status.state_store.description
    )?;
    let heads = ["WORKER", "GROUP", "STATE", "HEALTH", "SHARE", "WEIGHT", "HOLDS", "VERSION", "ZONE"];
    let members = status.cluster["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let row = |member: &Value| {
        let name = text(&member["name"]);
        let (answers, holds) = health(&name);
        let mut state = text(&member["state"]);
        if member["warming"] == true {
            state += ", warming";
        }
        if let Some(total) = member["drain"]["bytes_total"].as_u64() {
            let done = member["drain"]["bytes_done"].as_u64().unwrap_or(0);
            state += &format!(" {}%", done * 100 / total.max(1));
        }
        let share = member["share"].as_f64().map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0));
        let weight = member["weight"].as_f64().map_or("-".to_owned(), |weight| weight.to_string());
        let group = text(&member["group"]);
        [name, group, state, answers.to_owned(), share, weight, holds, text(&member["version"]), text(&member["zone"])]
    };
    let rows: Vec<[String; 9]> = members.iter().map(row).collect();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).chain([heads[at].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    writeln!(out, "{}", line(&mut heads.into_iter()))?;
    for row in &rows {
        writeln!(out, "{}", line(&mut row.iter().map(String::as_str)))?;
    }
    for drain in &status.absent_drains {
        let worker = &drain.worker;
        writeln!(out, "{worker} was drained and is not there: `forebay cluster undrain {worker}` takes it back")?;
    }
    for warning in &status.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

/// What became of a worker that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drained {
    NotYet,
    Whole,
    /// It is in the cluster no more.
    Gone,
    /// Somebody took it back.
    Stays,
}

/// What was seen of a worker that is to leave.
#[derive(Debug, Default)]
struct Leaving {
    has_begun: bool,
    /// How often in a row it was missing, or stayed.
    doubts: u32,
}

impl Leaving {
    /// It is this in the cluster now, if it is there at all.
    fn seen(&mut self, member: Option<&Value>) -> Drained {
        let state = member.map(|member| member["state"].as_str().unwrap_or_default());
        let doubted = match state {
            None => Drained::Gone,
            // Of one that was not seen to leave, this is what it was before.
            Some("active" | "damped") if self.has_begun => Drained::Stays,
            Some("drained") => return Drained::Whole,
            Some(state) => {
                self.has_begun |= state == "draining";
                self.doubts = 0;
                return Drained::NotYet;
            }
        };
        self.doubts += 1;
        if self.doubts > DOUBTED { doubted } else { Drained::NotYet }
    }
}

/// Waits until a worker has handed over everything.
async fn drained(client: &ApiClient, worker: &str) -> anyhow::Result<()> {
    let bar = ProgressBar::new(0).with_message(worker.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}") {
        bar.set_style(style);
    }
    let (mut leaving, mut away) = (Leaving::default(), Away::default());
    loop {
        let status = match client.cluster().await {
            Ok(status) => status,
            // The worker goes on whoever answers.
            Err(error) if away.is_borne(&error, Instant::now()) => {
                bar.set_message(format!("{worker}, waiting for the coordinator: {error}"));
                tokio::time::sleep(ASK_EVERY).await;
                continue;
            }
            Err(error) => {
                bar.abandon();
                return Err(error.into());
            }
        };
        away.answered();
        bar.set_message(worker.to_owned());
        let members = status.cluster["members"].as_array().map(Vec::as_slice).unwrap_or_default();
        let member = members.iter().find(|member| member["name"] == worker);
        let counted = |what: &str| member.and_then(|member| member["drain"][what].as_u64()).unwrap_or(0);
        match leaving.seen(member) {
            Drained::NotYet => {
                bar.set_length(counted("bytes_total"));
                bar.set_position(counted("bytes_done"));
            }
            Drained::Whole => {
                bar.finish_and_clear();
                let moved = HumanBytes(counted("bytes_moved"));
                output::say(&format!("{worker} has handed over all it held ({moved} moved) and can be stopped"));
                return Ok(());
            }
            Drained::Gone => {
                bar.abandon();
                let what = format!("{worker} is gone before it had handed over everything");
                return Err(Fault::new(Exit::Failed, what, "what it held comes from the origin again").into());
            }
            Drained::Stays => {
                bar.abandon();
                let what = format!("{worker} stays: somebody has taken it back");
                let next = format!("`forebay cluster drain {worker}` asks again");
                return Err(Fault::new(Exit::Failed, what, next).into());
            }
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_coordinator::api::{Drain, StoreStatus};
    use serde_json::json;

    #[test]
    fn who_waits_for_a_drain_is_told_that_the_worker_is_gone_or_stays_after_some_looks_and_not_before() {
        let is = |state: &str| Some(json!({ "name": "w", "state": state }));
        let mut leaving = Leaving::default();
        let mut seen = |state: Option<Value>| leaving.seen(state.as_ref());
        // It has not heard of it yet.
        for _ in 0..2 * DOUBTED {
            assert_eq!(seen(is("active")), Drained::NotYet);
        }
        // A drain takes hours, in which coordinators come and go: now and then one does not know it yet.
        for _ in 0..2 * DOUBTED {
            for state in [None, is("draining"), is("active"), is("draining")] {
                assert_eq!(seen(state), Drained::NotYet);
            }
        }
        for (state, end) in [(None, Drained::Gone), (is("active"), Drained::Stays), (is("damped"), Drained::Stays)] {
            for _ in 0..DOUBTED {
                assert_eq!(seen(state.clone()), Drained::NotYet);
            }
            assert_eq!(seen(state), end);
            assert_eq!(seen(is("draining")), Drained::NotYet);
        }
        assert_eq!(seen(is("drained")), Drained::Whole);
    }

    #[test]
    fn a_status_is_a_table_with_its_warnings() {
        let members = json!([
            {"name": "node1:29999", "group": "default", "state": "active", "warming": true, "share": 0.5, "weight": 64.0, "version": "0.1.0"},
            {"name": "n2:1", "group": "default", "state": "draining", "share": 0.0, "weight": 1.0, "drain": {"bytes_total": 8, "bytes_done": 4}},
        ]);
        let status = ClusterStatus {
            coordinator: "c1".into(),
            version: "0.1.0".into(),
            leader: None,
            state_store: StoreStatus { description: "etcd at e1".into(), reachable: false, reason: None },
            warnings: vec!["the last known ring is in use".into()],
            cluster: json!({ "members": members }),
            absent_drains: vec![Drain { worker: "n3:1".into(), asked_ms: 1 }],
        };
        let mut out = Vec::new();
        print(&mut out, &status, |_| ("answers", "1GiB".into())).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "coordinator c1 (leads: none), state in etcd at e1, unreachable");
        assert!(lines[2].starts_with("node1:29999  default  active, warming"), "{text}");
        assert!(lines[3].contains("draining 50%") && lines[5].contains("last known ring"), "{text}");
        assert_eq!(lines[4], "n3:1 was drained and is not there: `forebay cluster undrain n3:1` takes it back");
        assert!(text.lines().all(|line| !line.ends_with(' ')));
    }
}
