//! How far a run is: a bar on a terminal, a line for each step elsewhere.
//!
//! A run survives its terminal: what cannot be written is not written.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use forebay_benchmark::posix::run::{Progress, Stop};
use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// How often it is checked whether the user has asked to end, while an answer is waited for.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(100);
/// How often the clock of a bar goes on.
const TICK: std::time::Duration = std::time::Duration::from_millis(500);

/// Progress on standard error.
pub(super) struct Shown {
    on_terminal: bool,
    kind: String,
    done: usize,
    total: usize,
    bar: Option<ProgressBar>,
}

impl Shown {
    pub(super) fn new() -> Self {
        let on_terminal = std::io::stderr().is_terminal();
        Self { on_terminal, kind: String::new(), done: 0, total: 0, bar: None }
    }
}

impl Progress for Shown {
    fn say(&mut self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("==> {text}")),
            None => line(&format!("==> {text}")),
        }
    }

    fn confirm(&mut self, question: &str, stop: &Stop) -> bool {
        if !std::io::stdin().is_terminal() || !self.on_terminal {
            return false;
        }
        let _ = write!(std::io::stderr(), "{question} [y/N] ");
        // Reading would hold up the end by a signal. A terminal has a whole line when it has anything.
        loop {
            match output::has_input(LOOK_EVERY) {
                Ok(true) => break,
                Ok(false) if !stop.is_asked() => {}
                _ => return false,
            }
        }
        let mut answer = String::new();
        let _ = std::io::stdin().lock().read_line(&mut answer);
        matches!(answer.trim(), "y" | "Y" | "yes")
    }

    fn begin(&mut self, kind: &str, total: usize) {
        self.end();
        (self.kind, self.done, self.total) = (kind.to_owned(), 0, total);
        if self.on_terminal && total > 0 {
            let bar = ProgressBar::new(total as u64).with_prefix(kind.to_owned());
            let style = ProgressStyle::with_template("{prefix:12} {bar:30} {pos}/{len}  {eta} left  {wide_msg}");
            style.into_iter().for_each(|style| bar.set_style(style));
            bar.enable_steady_tick(TICK);
            self.bar = Some(bar);
        }
    }

    fn now(&mut self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    fn done(&mut self, step: &str, result: &str) {
        self.done += 1;
        let text = format!("{} {:>3}/{} {step}: {result}", self.kind, self.done, self.total);
        match &self.bar {
            Some(bar) => {
                bar.println(text);
                bar.inc(1);
            }
            None => line(&text),
        }
    }

    fn skip(&mut self, steps: usize) {
        self.done += steps;
        if let Some(bar) = &self.bar {
            bar.inc(steps as u64);
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Unlike `eprintln`, does not panic when there is no terminal any more.
fn line(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
