//! Running `forebay bench posix` on files that are written, and read, in a moment.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Finished, finish, forebay};

/// No run in tests takes longer, on a loaded machine.
const LIMIT: Duration = Duration::from_secs(600);
/// Files that are written, and read, in a moment.
const TINY: [&str; 12] = [
    "--size",
    "4MiB",
    "--files",
    "3",
    "--file-size",
    "2MiB",
    "--small-files",
    "4",
    "--small-size",
    "1MiB",
    "--runtime",
    "1s",
];

/// The command that measures `directory`, into `output`.
#[must_use]
pub fn bench(directory: &Path, output: &Path, arguments: &[&str]) -> Command {
    let mut command = forebay(&[]);
    command.args(["bench", "posix"]).arg(directory).arg("--output").arg(output).args(arguments);
    let tiny = TINY.chunks(2).filter(|pair| !arguments.contains(&pair[0]));
    command.args(tiny.flatten());
    command
}

/// Runs that to its end.
#[must_use]
pub fn run_bench(directory: &Path, output: &Path, arguments: &[&str]) -> Finished {
    finish(&mut bench(directory, output, arguments), LIMIT)
}
