//! `forebay fs local`: the whole copies of files that a mount keeps on this machine for the kernel to read.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Subcommand;
use forebay_fuse::MaterialiseProgress;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::commands::fs::target::mount_of;
use crate::exit::{Exit, Failures, Fault};
use crate::output::{self, JsonArg, Names, Table};
use forebay_node::local::Question;
use forebay_node::{control, local, state};

/// How often the progress of a request is asked for.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Choose and list the files that this machine keeps whole, so that the kernel reads them at the speed of memory
///
/// A mount keeps files that are opened often (client.local.size). Files that you add here also stay until you drop
/// them. When there is no room, they are the last to go.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs local add /mnt/models/llama
  forebay fs local ls")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(AddArgs),
    Drop(DropArgs),
    Ls(LsArgs),
}

/// Keep files on this machine, and wait until they are there
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs local add /mnt/models/llama/model-00001-of-00004.safetensors
  forebay fs local add --no-wait /mnt/models/llama")]
struct AddArgs {
    /// Files, or directories with all below them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Return at once
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// Give up kept files; a program that has one open keeps it until it closes it
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs local drop /mnt/models/llama
  forebay fs local drop --all /mnt")]
struct DropArgs {
    /// Files, or directories with all below them
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// All kept files of the mount that PATH is below
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// List the kept files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs local ls
  forebay fs local ls /mnt --json | jq -r 'select(.state == \"ready\").path'")]
struct LsArgs {
    /// A mountpoint [default: all that are known]
    #[arg(value_name = "MOUNTPOINT")]
    place: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs it.
///
/// # Errors
/// Those of the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Add(args) => add(args).await,
        Command::Drop(args) => drop_them(args).await,
        Command::Ls(args) => ls(args).await,
    }
}

async fn add(args: AddArgs) -> anyhow::Result<()> {
    let mut failures = Failures::default();
    for path in &args.paths {
        if let Err(error) = add_one(&args, path).await {
            failures.tell(error)?;
        }
    }
    failures.finish()
}

async fn add_one(args: &AddArgs, path: &Path) -> anyhow::Result<()> {
    let (mount, below) = mount_of(path)?;
    let control = control_of(&mount)?;
    let answer = control::local(&control, Question::Add { path: below.as_bytes().to_vec() }).await?;
    let request = answer["request"].as_u64().context("the mount is of a version that cannot do that")?;
    if args.no_wait {
        return Ok(());
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {binary_bytes}/{binary_total_bytes} {wide_msg}") {
        bar.set_style(style);
    }
    let progress = loop {
        let progress: MaterialiseProgress =
            serde_json::from_value(control::local(&control, Question::Progress { request }).await?)?;
        if progress.ended {
            break progress;
        }
        bar.set_length(progress.bytes);
        bar.set_position(progress.ready_bytes);
        bar.set_message(format!("{} of {} files", progress.ready, progress.files));
        tokio::time::sleep(ASK_EVERY).await;
    };
    bar.finish_and_clear();
    let mut out = output::stdout();
    let shown = path.as_os_str().as_encoded_bytes();
    if args.json.json {
        let mut object = serde_json::to_value(&progress)?;
        if let Some(object) = object.as_object_mut() {
            output::put_name(object, "path", shown);
        }
        output::json_line(&mut out, &object)?;
    } else {
        out.write_all(&Names::for_stdout().show(shown))?;
        writeln!(
            out,
            ": {} of {} files are here, {}",
            progress.ready,
            progress.files,
            output::human(progress.ready_bytes)
        )?;
    }
    out.flush()?;
    whole(&path.display().to_string(), &progress)
}

/// Whether all files of a request came.
fn whole(path: &str, progress: &MaterialiseProgress) -> anyhow::Result<()> {
    if let Some(error) = &progress.error {
        anyhow::bail!("{path}: {error}");
    }
    let Some((name, reason)) = progress.first.first() else { return Ok(()) };
    let missing = progress.no_room + progress.failed;
    let what = format!("{missing} files below {path} are not here; {name}: {reason}");
    let next = match progress.no_room {
        0 => "the mount's log has more; try again when that is mended",
        _ => "raise client.local.size, or drop others with `forebay fs local drop`",
    };
    Err(Fault::new(Exit::Failed, what, next).into())
}

async fn drop_them(args: DropArgs) -> anyhow::Result<()> {
    let mut failures = Failures::default();
    for path in &args.paths {
        let dropped = async {
            let (mount, below) = mount_of(path)?;
            let question = if args.all { Question::Clear } else { Question::Drop { path: below.as_bytes().to_vec() } };
            let answer = control::local(&control_of(&mount)?, question).await?;
            print_dropped(&args, path, answer["dropped"].as_u64().unwrap_or(0))
        };
        if let Err(error) = dropped.await {
            failures.tell(error)?;
        }
    }
    failures.finish()
}

fn print_dropped(args: &DropArgs, path: &Path, dropped: u64) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let shown = path.as_os_str().as_encoded_bytes();
    if args.json.json {
        let mut object = serde_json::Map::new();
        output::put_name(&mut object, "path", shown);
        object.insert("dropped".to_owned(), dropped.into());
        output::json_line(&mut out, &Value::Object(object))?;
    } else {
        out.write_all(&Names::for_stdout().show(shown))?;
        writeln!(out, ": {dropped} file{} dropped", if dropped == 1 { "" } else { "s" })?;
    }
    Ok(out.flush()?)
}

async fn ls(args: LsArgs) -> anyhow::Result<()> {
    let mounts = match &args.place {
        Some(place) => vec![mount_of(place)?.0],
        None => state::all().into_iter().filter(state::RunState::is_alive).collect(),
    };
    let (mut files, mut failures) = (Vec::new(), Failures::default());
    for mount in &mounts {
        let answer = async { control::local(&control_of(mount)?, Question::List).await }.await;
        match answer {
            Ok(answer) => {
                let listed = answer["listed"].as_array().cloned().unwrap_or_default();
                let more = answer["files"].as_u64().unwrap_or(0).saturating_sub(listed.len() as u64);
                if more > 0 {
                    output::say(&format!("{}: {more} more are not listed", mount.mountpoint));
                }
                files.extend(
                    listed.into_iter().map(|file| (mount.mountpoint.clone(), as_shown(file, &mount.mountpoint))),
                );
            }
            // Of all mounts, those that keep none have none.
            Err(error) if args.place.is_none() && is_off(&error) => {}
            Err(error) => failures.tell(error.context(mount.mountpoint.clone()))?,
        }
    }
    if args.json.json {
        let mut out = output::stdout();
        for (_, file) in files {
            output::json_line(&mut out, &file)?;
        }
        out.flush()?;
    } else if !files.is_empty() {
        print_listed(&files)?;
    } else if !failures.are_any() {
        output::say("no files are kept here whole");
    }
    failures.finish()
}

/// Whether a mount says that it keeps no files.
fn is_off(error: &anyhow::Error) -> bool {
    error.to_string().starts_with(local::OFF)
}

/// A file as it is told: with the path that programs open. Where the mount does not know it, only the origin's is.
fn as_shown(mut file: Value, mountpoint: &str) -> Value {
    let shown = file["shown"].as_str().map(|below| format!("{}{below}", mountpoint.trim_end_matches('/')));
    if let Some(object) = file.as_object_mut() {
        object.remove("shown");
        let key = object.insert("path".to_owned(), json!(shown));
        object.insert("key".to_owned(), key.unwrap_or_default());
        object.insert("mountpoint".to_owned(), json!(mountpoint));
    }
    file
}

fn print_listed(files: &[(String, Value)]) -> anyhow::Result<()> {
    let mut out = output::stdout();
    let mut table = Table::new(&["STATE", "SIZE", "OPEN", "OPENS", "ASKED BY", "PATH"]);
    for (mountpoint, file) in files {
        let text = |field: &str| file[field].as_str().unwrap_or("-").to_owned();
        let path = match file["path"].as_str() {
            Some(path) => path.to_owned(),
            None => format!("{} {} of {}", mountpoint, text("key"), text("origin")),
        };
        let number = |field: &str| file[field].as_u64().unwrap_or(0);
        let state = match (number("written"), number("size")) {
            (written, size) if text("state") == "filling" && size > 0 => format!("filling {}%", 100 * written / size),
            _ => text("state"),
        };
        let shown = |name: String| String::from_utf8_lossy(&Names::for_stdout().show(name.as_bytes())).into_owned();
        table.row(vec![
            state,
            output::human(number("size")),
            number("pins").to_string(),
            number("opens").to_string(),
            text("asked"),
            shown(path),
        ]);
    }
    table.print(&mut out)?;
    Ok(out.flush()?)
}

/// Where the process of a mount answers.
fn control_of(mount: &state::RunState) -> anyhow::Result<PathBuf> {
    mount.control.clone().ok_or_else(|| {
        let what = format!("the process of {} does not answer for itself", mount.mountpoint);
        Fault::new(Exit::Unavailable, what, "its log says why; mount again").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_listed_by_the_path_that_programs_open_and_by_its_origins_where_that_is_not_known() {
        let file = as_shown(json!({ "path": "k/a", "origin": "s3://b", "shown": "/models/a" }), "/mnt");
        assert_eq!((&file["path"], &file["key"], file.get("shown")), (&json!("/mnt/models/a"), &json!("k/a"), None));
        let file = as_shown(json!({ "path": "k/a", "shown": null }), "/");
        assert_eq!((&file["path"], &file["key"]), (&Value::Null, &json!("k/a")));
    }

    #[test]
    fn an_order_that_did_not_all_come_says_what_is_missing_and_what_to_do() {
        let progress = MaterialiseProgress { files: 2, ready: 2, ended: true, ..MaterialiseProgress::default() };
        assert!(whole("/mnt/a", &progress).is_ok());
        let first = vec![("/a/b".to_owned(), "there is no room".to_owned())];
        let error = whole("/mnt/a", &MaterialiseProgress { no_room: 1, first, ..progress }).unwrap_err();
        let user_error = crate::exit::UserError::from(&error);
        assert!(user_error.what.contains("/a/b: there is no room"), "{}", user_error.what);
        assert!(user_error.next.unwrap().contains("client.local.size"));
    }
}
