//! `forebay bench`: measuring what this installation can give.

mod rdma;

use clap::Subcommand;

/// Measure the network between two hosts
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay bench rdma                                  # on one host
  forebay bench rdma --remote-ip 10.0.1.10            # on another one")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Rdma(rdma::Args),
}

/// Runs it.
///
/// # Errors
/// Those of the command.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Rdma(args) => rdma::run(args),
    }
}
