//! `forebay fs stat`: all that is known of a name.

use std::io::Write;
use std::path::PathBuf;

use forebay_types::{Attr, ByteSize, VersionTag};
use serde_json::{Map, Value};

use crate::commands::fs::ls::describe;
use crate::commands::fs::target::{Target, Targets, WorkersArgs};
use crate::exit::Failures;
use crate::output::{self, JsonArg, Names};

/// Show what is known of a file or directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs stat /mnt/data/model.safetensors
  forebay fs stat --revalidate --json /mnt/data/model.safetensors | jq -r .version")]
pub(crate) struct Args {
    /// Files or directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Ask the origin, even if the workers remember the answer
    #[arg(long)]
    revalidate: bool,
    #[command(flatten)]
    json: JsonArg,
    #[command(flatten)]
    workers: WorkersArgs,
}

/// Runs it.
///
/// # Errors
/// When a path is not there.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut targets = Targets::new(&args.workers)?;
    let mut failures = Failures::default();
    for path in &args.paths {
        let shown = async {
            let target = targets.find(path).await?;
            let attr = target.stat(args.revalidate).await?;
            print(&target, &attr, args.json.json)
        };
        if let Err(error) = shown.await {
            failures.tell(error)?;
        }
    }
    targets.close().await;
    failures.finish()
}

fn print(target: &Target, attr: &Attr, json: bool) -> anyhow::Result<()> {
    let mut object = describe(&target.shown, attr);
    if let Some(version) = attr.version() {
        let tag = match &version.tag {
            VersionTag::Etag(etag) => format!("etag {etag}"),
            VersionTag::Modified { nanos, inode } => format!("modified {}, inode {inode}", output::time(*nanos)),
        };
        let layout = target.client.layout(version.size);
        object.insert("origin".to_owned(), (*version.origin).into());
        output::put_name(&mut object, "object", &version.path);
        object.insert("version".to_owned(), tag.into());
        object.insert("file_id".to_owned(), version.id().to_string().into());
        object.insert("blocks".to_owned(), layout.blocks().into());
        object.insert("block_size".to_owned(), layout.block_size().into());
    }
    let mut out = output::stdout();
    if json {
        output::json_line(&mut out, &Value::Object(object))?;
        return Ok(out.flush()?);
    }
    print_fields(&mut out, &object)?;
    Ok(out.flush()?)
}

/// The order in which people are told.
const FIELDS: [&str; 10] =
    ["path", "kind", "size", "modified", "origin", "object", "version", "file_id", "blocks", "block_size"];

fn print_fields(out: &mut impl Write, object: &Map<String, Value>) -> std::io::Result<()> {
    for (field, value) in FIELDS.iter().filter_map(|field| Some((*field, object.get(*field)?))) {
        let text = match (field, value, value.as_u64()) {
            ("size", _, Some(bytes)) => format!("{bytes} ({})", output::human(bytes)),
            ("block_size", _, Some(bytes)) => ByteSize::bytes(bytes).to_string(),
            (_, Value::String(text), _) => text.clone(),
            (_, Value::Null, _) => "-".to_owned(),
            _ => value.to_string(),
        };
        write!(out, "{:<12}", field.replace('_', " "))?;
        out.write_all(&Names::for_stdout().show(text.as_bytes()))?;
        writeln!(out)?;
    }
    Ok(())
}
