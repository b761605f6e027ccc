//! The one binary: commands, and what they print. What they run is a node of `forebay-node`. `cli.rs` has the tree of
//! commands, `commands/` a file for each; `mounting.rs` and `daemon.rs` keep a process that mounts; `service.rs`
//! tells systemd how it stands, `exit.rs` whoever called how it ended.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod away;
mod cli;
mod commands;
mod config_args;
mod coordinator_args;
mod daemon;
mod exit;
mod foreground;
mod holders;
mod logging;
mod mounting;
mod output;
mod runtime;
mod service;
mod signals;

use std::process::ExitCode;

use clap::Parser as _;

use crate::exit::UserError;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let in_background = cli.command.is_background_child();
    let Err(error) = cli.command.run() else { return ExitCode::SUCCESS };
    if exit::is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    let user_error = UserError::from(&error);
    if in_background {
        // Our standard error is the log, and the parent prints what it hears.
        tracing::error!("{}", user_error.what);
        daemon::failed(&user_error);
    } else {
        exit::print(&user_error);
    }
    ExitCode::from(user_error.exit as u8)
}
