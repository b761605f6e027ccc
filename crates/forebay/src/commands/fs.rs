//! `forebay fs`: reading and looking around without the mount.
//!
//! * `target.rs`: which workers a PATH is asked of; `walk.rs`: going through a tree a page at a time; `stream.rs`: a
//!   file's bytes in order, read ahead;
//! * a file for each command.
//!
//! Whatever is listed or read, memory stays bounded: by the depth of the tree, and by a few blocks for each file.

mod checksum;
mod du;
mod get;
mod local;
mod location;
mod ls;
mod print;
mod refresh;
mod staged;
mod stat;
mod stream;
pub(crate) mod target;
mod walk;

use clap::Subcommand;

use crate::runtime;
use crate::signals::Signals;

/// List and read files without going through the mount, and manage files that could not be uploaded
///
/// PATH is a path below a live mount or, with `--workers`, a path of the workers' namespace.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay fs ls -l /mnt/data
  forebay fs location /mnt/data/model.safetensors
  forebay fs cat --workers node1:29999 /dir/file | head")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ls::Args),
    Stat(stat::Args),
    Cat(print::CatArgs),
    Head(print::HeadArgs),
    Tail(print::TailArgs),
    Get(get::Args),
    Du(du::Args),
    Checksum(checksum::Args),
    Location(location::Args),
    Refresh(refresh::Args),
    Staged(staged::Args),
    Local(local::Args),
}

/// Runs it.
///
/// # Errors
/// Those of the command; an interruption.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    runtime::block_on(async {
        // What a command has begun, such as a temporary file, is cleaned up when its future is dropped.
        let mut signals = Signals::take()?;
        signals
            .unless_any(async {
                match args.command {
                    Command::Ls(args) => ls::run(args).await,
                    Command::Stat(args) => stat::run(args).await,
                    Command::Cat(args) => print::cat(args).await,
                    Command::Head(args) => print::head(args).await,
                    Command::Tail(args) => print::tail(args).await,
                    Command::Get(args) => get::run(args).await,
                    Command::Du(args) => du::run(args).await,
                    Command::Checksum(args) => checksum::run(args).await,
                    Command::Location(args) => location::run(args).await,
                    Command::Refresh(args) => refresh::run(args).await,
                    Command::Staged(args) => staged::run(args).await,
                    Command::Local(args) => local::run(args).await,
                }
            })
            .await
    })
}
