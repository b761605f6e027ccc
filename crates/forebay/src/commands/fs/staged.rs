//! `forebay fs staged`: files that were written and are not at the origin, because an upload failed or a mount was killed.
//!
//! * [`found`]: which there are, and where; [`described`]: what is said of them;
//! * [`chosen`]: which of them a command is about;
//! * `retry.rs`, `discard.rs`: what can be done about them.
//!
//! They lie on this machine, in staging directories, and need no mount; to upload them, workers are needed.

mod chosen;
mod described;
mod discard;
mod found;
mod retry;

use std::io::Write as _;
use std::path::PathBuf;

use clap::Subcommand;
use forebay_staging::StagedState;
use serde_json::Value;

use self::described::{describe, state_of};
use self::found::{Entry, Places};
use crate::config_args::ConfigArgs;
use crate::logging;
use crate::output::{self, JsonArg, Names, Table};

/// Show files that were written and could not be uploaded, and upload or drop them
///
/// Files that a failed upload or a killed mount leaves stay in the staging directory (write.staging_dir). They stay
/// until you upload or drop them here.
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

/// List the staged files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs staged ls
  forebay fs staged ls /mnt/data
  forebay fs staged ls --json | jq -r 'select(.state == \"failed\").reason'")]
struct LsArgs {
    /// A mountpoint, even of a dead or removed mount, or a staging directory [default: all that are known]
    #[arg(value_name = "PLACE")]
    place: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    config: ConfigArgs,
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
