//! `forebay completions`: what a shell needs to complete our command lines.

use std::io::Write as _;

use clap_complete::Shell;

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

/// Runs it, for the whole of the command line.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn run(args: &Args, command_line: &mut clap::Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command_line, "forebay", &mut script);
    let mut out = output::stdout();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
