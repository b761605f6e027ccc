//! `forebay fs staged drop`: gives up what is staged.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::chosen::Chosen;
use super::described::describe;
use super::found::Entry;
use super::retry::client_for;
use crate::commands::fs::target::{Targets, WorkersArgs};
use crate::exit::{Failures, UserError};
use crate::output::{self, JsonArg, Names};

/// How often it is looked whether the person at the terminal has answered.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Remove staged files without uploading them: their data is lost
///
/// The command aborts the files' unfinished uploads at the origin, through workers as `retry` does. On a terminal it
/// asks first.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs staged drop 5a0198c2d1
  forebay fs staged drop --all --of /mnt/data --yes")]
pub(crate) struct Args {
    #[command(flatten)]
    chosen: Chosen,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Remove also when the upload cannot be aborted; it then takes space until the bucket's own rules remove it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// Runs it.
///
/// # Errors
/// When there is no such file, or it cannot be removed.
pub(super) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let entries = args.chosen.find(targets.loaded())?;
    if entries.is_empty() {
        output::say("nothing is staged");
        return Ok(());
    }
    if !args.yes && std::io::stdin().is_terminal() && !confirmed(&entries).await? {
        output::say("nothing was dropped");
        return Ok(());
    }
    let mut failures = Failures::default();
    for entry in &entries {
        match discard(&args, &mut targets, entry).await {
            Ok(()) => print(&args, entry)?,
            Err(error) => failures.tell(error)?,
        }
    }
    targets.close().await;
    failures.finish()
}

async fn discard(args: &Args, targets: &mut Targets, entry: &Entry) -> anyhow::Result<()> {
    let (directory, id) = (&entry.directory, &entry.staged.id);
    let aborted = match client_for(targets, entry).await {
        Ok(client) => forebay_staging::drop_staged(directory, id, Some(Arc::new(client))).await.map_err(Into::into),
        Err(error) => Err(error),
    };
    match aborted {
        Err(_) if args.force => Ok(forebay_staging::drop_staged(directory, id, None).await?),
        Err(error) => {
            let mut user_error = UserError::from(&error);
            user_error.what = format!("{id}, {}, was not dropped: {}", entry.staged.path, user_error.what);
            let force = "`--force` drops it all the same";
            user_error.next = Some(user_error.next.map_or_else(|| force.to_owned(), |next| format!("{next}; {force}")));
            Err(user_error.into())
        }
        Ok(()) => Ok(()),
    }
}

/// Whether the person at the terminal wants it.
async fn confirmed(entries: &[Entry]) -> anyhow::Result<bool> {
    let bytes = entries.iter().map(|entry| entry.staged.size).sum();
    let files = if entries.len() == 1 { "1 file".to_owned() } else { format!("{} files", entries.len()) };
    eprint!("Drop {files} ({}) that the origin does not have? [y/N] ", output::human(bytes));
    // Reading would hold up the end by a signal. A terminal has a whole line when it has anything.
    while !output::has_input(Duration::ZERO).context("cannot ask")? {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("cannot ask")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn print(args: &Args, entry: &Entry) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if args.json.json {
        let mut object = describe(entry);
        object.insert("state".to_owned(), "dropped".into());
        object.remove("file");
        output::json_line(&mut out, &Value::Object(object))?;
    } else {
        write!(out, "{}  ", entry.staged.id)?;
        out.write_all(&Names::for_stdout().show(entry.staged.path.as_bytes()))?;
        writeln!(out, "  dropped")?;
    }
    Ok(out.flush()?)
}
