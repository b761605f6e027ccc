//! `forebay fs ls`: names as the origin lists them, printed as they come.

use std::io::Write;
use std::path::PathBuf;

use forebay_types::Attr;
use serde_json::{Map, Value};

use crate::commands::fs::target::{Target, Targets, WorkersArgs};
use crate::commands::fs::walk::{Listing, Walk};
use crate::exit::Failures;
use crate::output::{self, JsonArg, Names};

/// List a directory
///
/// Names come in the origin's order. A directory's name ends in a slash. A million names are listed as easily as ten.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs ls -l /mnt/data
  forebay fs ls -R --json /mnt/data | jq -r 'select(.size > 1e9).path'")]
pub(crate) struct Args {
    /// Directories or files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Show size and time
    #[arg(short, long)]
    long: bool,
    /// List everything below, with the path to it
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show sizes in bytes
    #[arg(short, long)]
    bytes: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

struct Printer<'a> {
    args: &'a Args,
    names: Names,
    out: std::io::BufWriter<std::io::StdoutLock<'static>>,
}

/// Runs it.
///
/// # Errors
/// When a path is not there or cannot be listed.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let mut printer = Printer { args: &args, names: Names::for_stdout(), out: output::stdout() };
    let mut failures = Failures::default();
    for (at, path) in args.paths.iter().enumerate() {
        let listed = async {
            let target = targets.find(path).await?;
            let attr = target.stat(false).await?;
            if args.paths.len() > 1 && attr.version().is_none() && !args.recursive && !args.json.json {
                let gap = if at == 0 { "" } else { "\n" };
                writeln!(printer.out, "{gap}{}:", path.display())?;
            }
            printer.list(target, attr, &mut failures).await
        };
        if let Err(error) = listed.await {
            failures.tell(error)?;
        }
        printer.out.flush()?;
    }
    targets.close().await;
    failures.finish()
}

impl Printer<'_> {
    async fn list(&mut self, target: Target, attr: Attr, failures: &mut Failures) -> anyhow::Result<()> {
        if attr.version().is_some() {
            return Ok(self.entry(&target.shown, &target, &attr)?);
        }
        if !self.args.recursive {
            let mut listing = Listing::new(target.clone());
            while let Some(entry) = listing.next().await? {
                self.entry(&entry.name, &target.join(&entry.name)?, &entry.attr)?;
            }
            return Ok(());
        }
        let mut walk = Walk::new(target, attr);
        loop {
            match walk.next().await {
                Ok(Some((target, attr))) => self.entry(&target.shown, &target, &attr)?,
                Ok(None) => return Ok(()),
                Err(error) => failures.tell(error)?,
            }
        }
    }

    fn entry(&mut self, name: &[u8], target: &Target, attr: &Attr) -> std::io::Result<()> {
        if self.args.json.json {
            return output::json_line(&mut self.out, &Value::Object(describe(&target.shown, attr)));
        }
        let is_directory = attr.version().is_none();
        if self.args.long {
            let size = match (is_directory, self.args.bytes) {
                (true, _) => "-".to_owned(),
                (false, true) => attr.size().to_string(),
                (false, false) => output::human(attr.size()),
            };
            let kind = if is_directory { 'd' } else { '-' };
            write!(self.out, "{kind}  {size:>12}  {:<20}  ", output::time(attr.modified_nanos))?;
        }
        self.out.write_all(&self.names.show(name))?;
        let slash = is_directory && !name.ends_with(b"/");
        self.out.write_all(if slash { b"/\n" } else { b"\n" })
    }
}

/// What every command says of a name in JSON.
pub(crate) fn describe(path: &[u8], attr: &Attr) -> Map<String, Value> {
    let mut object = Map::new();
    output::put_name(&mut object, "path", path);
    object.insert("kind".to_owned(), if attr.version().is_some() { "file" } else { "directory" }.into());
    object.insert("size".to_owned(), attr.size().into());
    let modified = (attr.modified_nanos > 0).then(|| output::time(attr.modified_nanos));
    object.insert("modified".to_owned(), modified.into());
    object
}
