//! `forebay fs refresh`: what is remembered of a path is forgotten, by workers and by the mount that it is below.

use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::commands::fs::target::{Target, Targets, WorkersArgs};
use crate::exit::{Exit, Failures, Fault};
use crate::output::{self, JsonArg, Names};
use forebay_node::control;

/// Forget what is remembered of a path, so that the origin is asked again
///
/// The workers forget the attributes and listings of PATH. So does the mount on this machine that PATH is below. Other
/// mounts forget them within metadata.ttl, or when the command runs there. Cached file contents stay, because they
/// belong to their versions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs refresh /mnt/data/model.safetensors
  forebay fs refresh --recursive /mnt/data/datasets
  forebay fs refresh --workers node1:29999,node2:29999 /datasets")]
pub(crate) struct Args {
    /// Files or directories; they need not exist
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also everything below it
    #[arg(short, long)]
    recursive: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// Runs it.
///
/// # Errors
/// When a worker, or the mount, could not be told.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let mut failures = Failures::default();
    for path in &args.paths {
        let refreshed = async {
            let target = targets.find(path).await?;
            refresh(&args, &target, &mut failures).await
        };
        if let Err(error) = refreshed.await {
            failures.tell(error)?;
        }
    }
    targets.close().await;
    failures.finish()
}

async fn refresh(args: &Args, target: &Target, failures: &mut Failures) -> anyhow::Result<()> {
    // First the workers: the mount would ask them again, and believe what they remember.
    let refreshed = target.client.refresh(&target.path, args.recursive).await;
    let refreshed = refreshed.map_err(|failure| failure.context(target.shown()))?;
    let names = match &target.control {
        Some(control) => Some(control::refresh(control, &target.path, args.recursive).await?),
        None => None,
    };
    print(args, target, refreshed.workers, names)?;
    for (worker, failure) in refreshed.unreached {
        let what = format!("{worker} still remembers {}: {}", target.shown(), failure.message());
        failures.tell(Fault::new(Exit::Unavailable, what, "check that the worker runs, then try again").into())?;
    }
    Ok(())
}

fn print(args: &Args, target: &Target, workers: usize, names: Option<u64>) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if args.json.json {
        let mut object = Map::new();
        output::put_name(&mut object, "path", &target.shown);
        object.insert("workers".to_owned(), workers.into());
        object.insert("names".to_owned(), names.into());
        output::json_line(&mut out, &Value::Object(object))?;
    } else {
        out.write_all(&Names::for_stdout().show(&target.shown))?;
        let plural = if workers == 1 { "" } else { "s" };
        write!(out, ": forgotten by {workers} worker{plural}")?;
        if names.is_some() {
            write!(out, " and by the mount")?;
        }
        writeln!(out)?;
    }
    Ok(out.flush()?)
}
