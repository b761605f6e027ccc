//! `forebay fs du`: how much is below a path.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::{Map, Value};

use crate::commands::fs::target::{Target, Targets, WorkersArgs};
use crate::commands::fs::walk::Walk;
use crate::exit::Failures;
use crate::output::{self, JsonArg, Names};

/// Print the total size of all files below a path
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs du /mnt/data/images /mnt/data/text")]
pub(crate) struct Args {
    /// Directories or files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Show sizes in bytes
    #[arg(short, long)]
    bytes: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    files: u64,
    directories: u64,
}

/// Runs it.
///
/// # Errors
/// When a path is not there or cannot be listed.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let mut failures = Failures::default();
    for path in &args.paths {
        let summed = async {
            let target = targets.find(path).await?;
            let sum = sum_up(target.clone(), &mut failures).await?;
            print(&args, &target, sum)
        };
        if let Err(error) = summed.await {
            failures.tell(error)?;
        }
    }
    targets.close().await;
    failures.finish()
}

async fn sum_up(target: Target, failures: &mut Failures) -> anyhow::Result<Sum> {
    let attr = target.stat(false).await?;
    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(120));
    let mut walk = Walk::new(target, attr);
    let mut sum = Sum::default();
    loop {
        match walk.next().await {
            Ok(Some((_, attr))) if attr.version().is_some() => {
                sum.bytes = sum.bytes.saturating_add(attr.size());
                sum.files += 1;
            }
            Ok(Some(_)) => sum.directories += 1,
            Ok(None) => break,
            Err(error) => progress.suspend(|| failures.tell(error))?,
        }
        if (sum.files + sum.directories).is_multiple_of(1000) {
            progress.set_message(format!("{} in {} files", output::human(sum.bytes), sum.files));
        }
    }
    progress.finish_and_clear();
    Ok(sum)
}

fn print(args: &Args, target: &Target, sum: Sum) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if args.json.json {
        let mut object = Map::new();
        output::put_name(&mut object, "path", &target.shown);
        object.insert("bytes".to_owned(), sum.bytes.into());
        object.insert("files".to_owned(), sum.files.into());
        object.insert("directories".to_owned(), sum.directories.into());
        output::json_line(&mut out, &Value::Object(object))?;
    } else {
        let size = if args.bytes { sum.bytes.to_string() } else { output::human(sum.bytes) };
        write!(out, "{size:>12}  {:>10} files  {:>8} directories  ", sum.files, sum.directories)?;
        out.write_all(&Names::for_stdout().show(&target.shown))?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}
