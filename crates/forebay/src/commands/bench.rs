//! `forebay bench`: measuring what this installation can give.

mod posix;
mod rdma;
mod read;

use clap::Subcommand;

/// Measure mounts and networks, and explain the results
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay bench posix /mnt/data                       # what programs that read files get
  forebay bench posix /mnt/data --against /mnt/other  # and what another file system gives
  forebay bench read                                  # whole files, over TCP and over UCX
  forebay bench rdma                                  # on one host
  forebay bench rdma --remote-ip 10.0.1.10            # on another one")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Posix(Box<posix::Args>),
    Rdma(Box<rdma::Args>),
    Read(Box<read::Args>),
}

/// Runs it.
///
/// # Errors
/// Those of the command.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Posix(args) => posix::run(*args),
        Command::Rdma(args) => rdma::run(*args),
        Command::Read(args) => read::run(&args),
    }
}
