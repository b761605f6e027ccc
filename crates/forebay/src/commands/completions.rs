//! `forebay completions`: what a shell needs to complete our command lines.

use std::io::Write as _;

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::output;

/// Print the completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay completions bash > /etc/bash_completion.d/forebay
  forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Runs it.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "forebay", &mut script);
    let mut out = output::stdout();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
