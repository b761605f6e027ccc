//! `forebay conf`: what is set and why, whether a file is right, and taking over the configuration of Alluxio or JuiceFS.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use forebay_config::import::{self, Import};
use forebay_config::{Config, Origin};
use serde_json::json;

use crate::config_args::ConfigArgs;
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg, Table};

/// Show, check or import configuration
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay conf show --changed
  forebay conf check /etc/forebay/forebay.toml")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(ShowArgs),
    Check(CheckArgs),
    Import(ImportArgs),
}

/// Show every key, its value and the source of the value
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay conf show --changed
  forebay conf show --json | jq -r 'select(.key == \"worker.memory.size\").value'")]
struct ShowArgs {
    /// Only keys that are not at their default
    #[arg(long)]
    changed: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Check a configuration file
///
/// The check covers only the file, not the environment or flags.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay conf check forebay.toml")]
struct CheckArgs {
    /// The configuration file
    file: PathBuf,
}

/// Convert an alluxio-site.properties or a `juicefs mount` to a forebay.toml, and print it
///
/// With --from juicefs, FILE holds a `juicefs mount ...` command or a line for /etc/fstab. The command may stand alone,
/// in a script or in a systemd unit. Settings without a counterpart are listed on standard error. They are a failure
/// only with --strict.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay conf import alluxio-site.properties > forebay.toml
  grep juicefs /etc/fstab | forebay conf import --from juicefs - > forebay.toml")]
struct ImportArgs {
    /// The file; - reads standard input
    file: PathBuf,
    /// The system that the configuration is from
    #[arg(long, value_enum, default_value_t = From::Alluxio)]
    from: From,
    /// Fail when a setting has no counterpart
    #[arg(long)]
    strict: bool,
}

/// A system whose configuration can be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum From {
    /// Alluxio's properties
    Alluxio,
    /// A mount of JuiceFS
    Juicefs,
}

/// Runs it.
///
/// # Errors
/// When the configuration is wrong or cannot be read.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.command {
        Command::Show(args) => show(args),
        Command::Check(args) => check(args),
        Command::Import(args) => import(args),
    }
}

fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let loaded = args.config.load([])?;
    let rows = loaded.show().into_iter().filter(|row| !args.changed || row.origin != Origin::Default);
    let mut out = output::stdout();
    if args.json.json {
        for row in rows {
            let row = json!({ "key": row.key, "value": row.value, "origin": row.origin.to_string() });
            output::json_line(&mut out, &row)?;
        }
    } else {
        let mut table = Table::new(&["KEY", "VALUE", "FROM"]);
        for row in rows {
            let value = row.value.unwrap_or_else(|| "(unset)".to_owned());
            table.row(vec![row.key.to_owned(), value, row.origin.to_string()]);
        }
        table.print(&mut out)?;
    }
    Ok(out.flush()?)
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let loaded = Config::check(&args.file)?;
    let set = loaded.show().iter().filter(|row| row.origin != Origin::Default).count();
    let mut out = output::stdout();
    writeln!(out, "{}: good, {set} keys set", args.file.display())?;
    Ok(out.flush()?)
}

fn import(args: &ImportArgs) -> anyhow::Result<()> {
    let (name, bytes) = read(&args.file)?;
    let imported = match args.from {
        From::Alluxio => import::alluxio_properties(&name, &bytes),
        From::Juicefs => import::juicefs_mount(&name, &String::from_utf8_lossy(&bytes)),
    };
    let Import { toml, unknown, notes } = imported.map_err(|errors| {
        let next = format!("correct it in {name}, or take it out for Forebay's default");
        Fault::new(Exit::Usage, errors.to_string(), next)
    })?;
    let mut out = output::stdout();
    out.write_all(toml.as_bytes())?;
    out.flush()?;
    for note in &notes {
        output::say(&format!("{name}:{}: {}", note.line, note.text));
    }
    for unknown in &unknown {
        let guess = unknown.nearest.map(|near| format!(": did you mean {near}?")).unwrap_or_default();
        output::say(&format!("{name}:{}: {} has no counterpart{guess}", unknown.line, unknown.name));
    }
    if args.strict && !unknown.is_empty() {
        let what = format!("{name}: {} of its settings have no counterpart", unknown.len());
        return Err(Fault::new(Exit::Usage, what, "remove them, or import without --strict").into());
    }
    Ok(())
}

/// The file's name for messages, and what is in it.
fn read(file: &Path) -> anyhow::Result<(String, Vec<u8>)> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read standard input")?;
        return Ok(("standard input".to_owned(), bytes));
    }
    let name = file.display().to_string();
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {name}"))?;
    Ok((name, bytes))
}
