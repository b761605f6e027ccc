//! `forebay fs staged`: files that were written and are not at the origin, because an upload failed or a mount was killed.
//!
//! * [`found`]: which there are, and where;
//! * `retry.rs`, `discard.rs`: what can be done about them.
//!
//! They lie on this machine, in staging directories, and need no mount; to upload them, workers are needed.

mod discard;
mod found;
mod retry;

use std::io::Write as _;
use std::path::PathBuf;

use clap::Subcommand;
use forebay_config::Loaded;
use forebay_staging::StagedState;
use serde_json::{Map, Value};

use self::found::{Entry, Places};
use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::logging;
use crate::output::{self, JsonArg, Names, Table};

/// Show and deal with files that were written and could not be uploaded
///
/// What a failed upload or a killed mount leaves stays in the staging directory (write.staging_dir) until it is uploaded or
/// dropped here.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs staged ls
  forebay fs staged retry --all")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(LsArgs),
    Retry(retry::Args),
    Drop(discard::Args),
}

/// List them
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs staged ls
  forebay fs staged ls /mnt/data
  forebay fs staged ls --json | jq -r 'select(.state == \"failed\").reason'")]
struct LsArgs {
    /// A mountpoint, also of a mount that is dead or gone, or a staging directory [default: all that are known]
    #[arg(value_name = "PLACE")]
    place: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Which ones a command is about.
#[derive(Debug, clap::Args)]
struct Chosen {
    /// As `forebay fs staged ls` shows them
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    /// All but those that are open
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Only those of this mountpoint or staging directory
    #[arg(long, value_name = "PLACE")]
    of: Option<PathBuf>,
}

impl Chosen {
    /// Those that it means.
    ///
    /// # Errors
    /// When there is none of an id, or it is open.
    fn find(&self, loaded: &Loaded) -> anyhow::Result<Vec<Entry>> {
        let mut found = Places::known(loaded, self.of.as_deref())?.entries()?;
        if self.all {
            found.retain(|entry| !matches!(entry.staged.state, StagedState::Open { .. }));
            return Ok(found);
        }
        let mut chosen = Vec::new();
        for id in &self.ids {
            let Some(at) = found.iter().position(|entry| entry.staged.id == *id) else {
                let next = "`forebay fs staged ls` shows what there is";
                return Err(Fault::new(Exit::NotFound, format!("nothing is staged as {id}"), next).into());
            };
            let entry = found.swap_remove(at);
            if let StagedState::Open { pid } = entry.staged.state {
                let what = format!("{id}, {}, is being written: process {pid} has it open", entry.staged.path);
                return Err(Fault::new(Exit::Busy, what, "close the file, or unmount, then try again").into());
            }
            chosen.push(entry);
        }
        Ok(chosen)
    }
}

/// Runs it.
///
/// # Errors
/// Those of the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Ls(args) => list(&args),
        Command::Retry(args) => retry::run(args).await,
        Command::Drop(args) => discard::run(args).await,
    }
}

fn list(args: &LsArgs) -> anyhow::Result<()> {
    let loaded = args.config.load([])?;
    logging::start_quiet(&loaded.config)?;
    let entries = Places::known(&loaded, args.place.as_deref())?.entries()?;
    let mut out = output::stdout();
    if args.json.json {
        for entry in &entries {
            output::json_line(&mut out, &Value::Object(describe(entry)))?;
        }
        return Ok(out.flush()?);
    }
    if entries.is_empty() {
        output::say("nothing is staged");
        return Ok(());
    }
    let names = Names::for_stdout();
    let shown = |name: &[u8]| String::from_utf8_lossy(&names.show(name)).into_owned();
    let mut table = Table::new(&["ID", "STATE", "SIZE", "SINCE", "PATH", "OF", "WHY"]);
    for Entry { staged, .. } in &entries {
        let (state, mut why) = state_of(&staged.state);
        if let (StagedState::Unfinished, Some(obstacle)) = (&staged.state, &staged.obstacle) {
            why.clone_from(obstacle);
        }
        table.row(vec![
            staged.id.clone(),
            state.to_owned(),
            output::human(staged.size),
            output::time(found::nanos(staged.since)),
            shown(staged.path.as_bytes()),
            shown(staged.owner.as_bytes()),
            shown(why.as_bytes()),
        ]);
    }
    table.print(&mut out)?;
    Ok(out.flush()?)
}

/// What is to be said of a state, and why it is so.
fn state_of(state: &StagedState) -> (&'static str, String) {
    match state {
        StagedState::Open { pid } => ("open", format!("process {pid} writes it")),
        StagedState::Failed { reason } => ("failed", reason.clone()),
        StagedState::Unfinished => ("unfinished", "its process was ended".to_owned()),
    }
}

/// What every command says of an entry in JSON.
fn describe(entry: &Entry) -> Map<String, Value> {
    let staged = &entry.staged;
    let (state, why) = state_of(&staged.state);
    let mut object = Map::new();
    object.insert("id".to_owned(), staged.id.clone().into());
    output::put_name(&mut object, "path", staged.path.as_bytes());
    object.insert("size".to_owned(), staged.size.into());
    object.insert("since".to_owned(), output::time(found::nanos(staged.since)).into());
    object.insert("state".to_owned(), state.into());
    object.insert("reason".to_owned(), why.into());
    object.insert("of".to_owned(), staged.owner.clone().into());
    object.insert("obstacle".to_owned(), staged.obstacle.clone().into());
    object.insert("file".to_owned(), staged.file.display().to_string().into());
    object
}
