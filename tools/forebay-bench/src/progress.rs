//! What is being measured, as progress: a bar on a terminal, a line for each measurement elsewhere.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress on standard error, and the way out of a run that was interrupted.
pub(crate) struct Progress {
    on_terminal: bool,
    interrupted: Arc<AtomicBool>,
}

/// The progress of some steps.
pub(crate) struct Steps<'a> {
    progress: &'a Progress,
    section: String,
    bar: Option<ProgressBar>,
    done: usize,
    total: usize,
}

impl Progress {
    pub(crate) fn new(interrupted: Arc<AtomicBool>) -> Self {
        Self { on_terminal: std::io::stderr().is_terminal(), interrupted }
    }

    /// A headline.
    pub(crate) fn say(&self, text: &str) {
        eprintln!("==> {text}");
    }

    /// Begins `total` steps of a section.
    pub(crate) fn steps(&self, section: &str, total: usize) -> Steps<'_> {
        let bar = self.on_terminal.then(|| {
            let bar = ProgressBar::new(total as u64).with_prefix(section.to_owned());
            let style = ProgressStyle::with_template("{prefix:12} {bar:30} {pos}/{len}  {eta} left  {msg}");
            style.into_iter().for_each(|style| bar.set_style(style));
            bar
        });
        Steps { progress: self, section: section.to_owned(), bar, done: 0, total }
    }
}

impl Steps<'_> {
    /// The next step begins.
    ///
    /// # Errors
    /// When the run was interrupted.
    pub(crate) fn begin(&self, step: &str) -> anyhow::Result<()> {
        if let Some(bar) = &self.bar {
            bar.set_message(step.to_owned());
        }
        anyhow::ensure!(!self.progress.interrupted.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }

    /// It ended, with this.
    pub(crate) fn end(&mut self, step: &str, result: &str) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None => eprintln!("{} {:>3}/{} {step}: {result}", self.section, self.done, self.total),
        }
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
