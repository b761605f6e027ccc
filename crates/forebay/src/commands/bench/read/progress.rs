//! How far a matrix is.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use forebay_benchmark::read::{milliseconds, size};
use forebay_benchmark::record::Cell;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// What is being measured, as progress: a bar on a terminal, a line for each measurement elsewhere.
pub(super) struct Bar {
    bar: ProgressBar,
    on_terminal: bool,
}

impl Bar {
    pub(super) fn new(steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta} left  {msg}");
        style.into_iter().for_each(|style| bar.set_style(style));
        Self { bar, on_terminal: std::io::stderr().is_terminal() }
    }

    /// What is being done.
    pub(super) fn now(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Steps that need not be done.
    pub(super) fn skip(&self, steps: usize) {
        self.bar.inc(steps as u64);
    }

    /// No more will be done.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }

    /// A step ended, with this.
    pub(super) fn done(&self, cell: &Cell) {
        self.bar.inc(1);
        if !self.on_terminal {
            output::say(&format!(
                "{:>3}/{} {}",
                self.bar.position(),
                self.bar.length().unwrap_or_default(),
                line(cell)
            ));
        }
    }
}

/// A cell in a line.
pub(super) fn line(cell: &Cell) -> String {
    let mut line = format!("{} × {} of {}", cell.clients, cell.files, size(cell.file_bytes));
    // Writing to a string cannot fail.
    let _ = write!(line, " over {}", cell.carried_by);
    let cpu = cell.client_percent_seconds + cell.worker_percent_seconds;
    let cpu = if cpu.is_finite() { format!("{cpu:.1}") } else { "unknown".to_owned() };
    let _ = write!(line, ": {} a file, {cpu} percent × seconds", milliseconds(cell.milliseconds_per_file));
    line
}
