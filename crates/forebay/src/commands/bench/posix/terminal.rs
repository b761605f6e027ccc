//! The terminal that a run was started from, and may lose.

use std::fs::File;
use std::io::{IsTerminal as _, stderr, stdout};

/// Which of the streams are on it.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands::bench) struct Terminal {
    stdout: bool,
    stderr: bool,
}

impl Terminal {
    /// As it is now: once it is lost, it can no longer be recognised as a terminal.
    pub(in crate::commands::bench) fn now() -> Self {
        Self { stdout: stdout().is_terminal(), stderr: stderr().is_terminal() }
    }

    /// It is lost. What is printed from now on goes nowhere, instead of being an error; what goes to a file still does.
    pub(in crate::commands::bench) fn leave(self) {
        let Ok(nowhere) = File::options().write(true).open("/dev/null") else { return };
        if self.stdout {
            let _ = rustix::stdio::dup2_stdout(&nowhere);
        }
        if self.stderr {
            let _ = rustix::stdio::dup2_stderr(&nowhere);
        }
    }
}
