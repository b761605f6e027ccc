//! The command line: which commands there are. What each takes is beside what it does, in `commands/`.

use clap::{Parser, Subcommand};

use crate::commands::{completions, conf, fs, mount, stats, umount, up, version, worker};
use crate::exit;

/// A distributed read cache between object stores and the programs that read them
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    max_term_width = 100,
    after_help = AFTER,
    after_long_help = after_long(),
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER: &str = "\
Example:
  forebay up s3://bucket/prefix /mnt/data     # a bucket, cached by this machine, as a directory
  forebay umount /mnt/data";

fn after_long() -> String {
    format!("{AFTER}\n\n{}", exit::CODES)
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::Args),
    Worker(worker::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Fs(fs::Args),
    Stats(stats::Args),
    Conf(conf::Args),
    Version(version::Args),
    Completions(completions::Args),
}

impl Command {
    /// Whether this is the process in the background that another one waits for.
    pub(crate) fn is_background_child(&self) -> bool {
        match self {
            Self::Up(args) => args.stay.background_child,
            Self::Mount(args) => args.stay.background_child,
            _ => false,
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// Whatever keeps it from being done.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(args) => up::run(args),
            Self::Worker(args) => worker::run(&args),
            Self::Mount(args) => mount::run(args),
            Self::Umount(args) => umount::run(&args),
            Self::Fs(args) => fs::run(args),
            Self::Stats(args) => stats::run(&args),
            Self::Conf(args) => conf::run(&args),
            Self::Version(args) => version::run(args),
            Self::Completions(args) => completions::run(&args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
