//! `forebay fs staged retry`: uploads what is staged, through the workers of the mount that it was written below.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use forebay_client::Client;
use forebay_staging::RetryOptions;
use forebay_types::Attr;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::chosen::Chosen;
use super::described::describe;
use super::found::Entry;
use crate::commands::fs::target::{Targets, WorkersArgs};
use crate::exit::{Exit, Failures, Fault};
use crate::output::{self, JsonArg, Names};
use forebay_node::{staged, state};

/// Upload staged files, and remove them here
///
/// Each upload goes through the workers that the file's mount reads from. If that mount is gone, the upload goes
/// through the workers that --workers or the configuration names.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs staged retry 5a0198c2d1
  forebay fs staged retry --all --of /mnt/data
  forebay fs staged retry --all --workers node1:29999")]
pub(crate) struct Args {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// Runs it.
///
/// # Errors
/// When there is no such file, no worker for it, or it could not be uploaded; that one stays.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let entries = args.chosen.find(targets.loaded())?;
    if entries.is_empty() {
        output::say("nothing is staged");
    }
    let mut failures = Failures::default();
    let progress = progress(&entries);
    let mut done = 0;
    for entry in &entries {
        progress.set_message(entry.staged.path.to_string());
        match upload(&mut targets, entry, &progress, done).await {
            Ok(attr) => progress.suspend(|| print(&args, entry, &attr))?,
            Err(error) => progress.suspend(|| failures.tell(error))?,
        }
        // Parts that had been sent before are not sent again.
        done += entry.staged.size;
        progress.set_position(done);
    }
    progress.finish_and_clear();
    targets.close().await;
    failures.finish()
}

async fn upload(targets: &mut Targets, entry: &Entry, progress: &ProgressBar, done: u64) -> anyhow::Result<Attr> {
    let remote = Arc::new(client_for(targets, entry).await?);
    let shown = progress.clone();
    let memory = targets.loaded().config.write_memory;
    let options = RetryOptions { memory, on_progress: Some(Box::new(move |bytes| shown.set_position(done + bytes))) };
    let uploaded = forebay_staging::retry(&entry.directory, &entry.staged.id, remote, options).await;
    uploaded.map_err(|failure| failure.context(format!("{} was not uploaded", entry.staged.path)).into())
}

/// A client of the workers that lead to where `entry` belongs.
///
/// # Errors
/// When none are known.
pub(super) async fn client_for(targets: &mut Targets, entry: &Entry) -> anyhow::Result<Client> {
    if targets.are_workers_named() {
        return targets.client_of(None).await;
    }
    let owner = &entry.staged.owner;
    if let Some(mount) = state::all().iter().find(|mount| staged::may_go_through(owner, mount)) {
        return targets.client_of_mount(mount).await;
    }
    let config = &targets.loaded().config;
    if !config.cluster_workers.is_empty() || !config.cluster_etcd_endpoints.is_empty() {
        return targets.client_of(None).await;
    }
    let what =
        format!("{} was written below {owner}, which is not mounted, and no workers are named", entry.staged.path);
    let next = "mount it again, or name workers that have it at the same path with `--workers HOST:PORT`";
    Err(Fault::new(Exit::Unavailable, what, next).into())
}

fn progress(entries: &[Entry]) -> ProgressBar {
    let bar = ProgressBar::new(entries.iter().map(|entry| entry.staged.size).sum());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bar:30} {binary_bytes}/{binary_total_bytes} {wide_msg}")
    {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn print(args: &Args, entry: &Entry, attr: &Attr) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if args.json.json {
        let mut object = describe(entry);
        object.insert("state".to_owned(), "uploaded".into());
        object.insert("size".to_owned(), attr.size().into());
        object.remove("reason");
        object.remove("file");
        output::json_line(&mut out, &Value::Object(object))?;
    } else {
        write!(out, "{}  ", entry.staged.id)?;
        out.write_all(&Names::for_stdout().show(entry.staged.path.as_bytes()))?;
        writeln!(out, "  {} uploaded", output::human(attr.size()))?;
    }
    Ok(out.flush()?)
}
