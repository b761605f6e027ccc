//! The one binary. `cli.rs` has the tree of commands, `commands/` a file for each; `assembly.rs` makes the parts from
//! the configuration, and `binding.rs` says at which addresses; `mounted.rs`, `daemon.rs` and `state.rs` keep a mounting
//! process; `exit.rs` says how it ended.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod assembly;
mod binding;
mod block_size;
mod cli;
mod cluster;
mod commands;
mod config_args;
mod control;
mod coordinating;
mod coordinator_args;
mod daemon;
mod direct;
mod disks;
mod elsewhere;
mod exit;
mod holders;
mod hot;
mod local;
mod logging;
mod materialise_requests;
mod measured;
mod memory;
mod metrics;
mod mounted;
mod namespaces;
mod node;
mod output;
mod process;
mod rdma;
mod report;
mod runtime;
mod signals;
mod staged;
mod state;
mod web;
mod window;

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
        user_error.print();
    }
    ExitCode::from(user_error.exit as u8)
}
