//! `forebay man`: the manual pages that packages ship.

use std::path::PathBuf;

use anyhow::Context as _;

/// Write the manual pages of all commands, for a package
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "\
Example:
  forebay man /usr/local/share/man/man1"
)]
pub(crate) struct Args {
    /// An existing directory
    directory: PathBuf,
}

/// Runs it, for the whole of the command line. Pages are the same each time: they carry no date.
///
/// # Errors
/// When the directory cannot be written.
pub(crate) fn run(args: &Args, command_line: clap::Command) -> anyhow::Result<()> {
    clap_mangen::generate_to(command_line, &args.directory)
        .with_context(|| format!("cannot write manual pages into {}", args.directory.display()))
}
