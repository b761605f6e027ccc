//! The loop of `forebay stats`: asks, shows what there is between two answers, and follows the size of the terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::columns::{self, Column, Interval};
use super::screen::{Screen, Size};
use super::source::Source;
use crate::output;
use forebay_node::report::Report;

/// What is watched, and how it is shown.
pub(super) struct Watch {
    pub(super) columns: Vec<Column>,
    /// Whether a person named their groups.
    pub(super) are_named: bool,
    pub(super) every: Duration,
    /// Lines to show, if there is an end.
    pub(super) count: Option<u64>,
    pub(super) json: bool,
}

/// A line for each interval, until it is interrupted or there were enough.
pub(super) async fn watch(source: &Source, watch: Watch) -> anyhow::Result<()> {
    let is_terminal = std::io::stdout().is_terminal();
    let colours = is_terminal && std::env::var_os("NO_COLOR").is_none();
    let mut screen = Screen::new(watch.columns.clone(), watch.are_named, colours);
    let mut resizes = if is_terminal && !watch.json { Some(signal(SignalKind::window_change())?) } else { None };
    let (mut before, mut since) = (reports(source).await?, Instant::now());
    let mut shown = 0;
    while watch.count.is_none_or(|count| shown < count) {
        tokio::select! {
            () = tokio::time::sleep_until(since + watch.every) => {}
            () = resized(&mut resizes) => {
                if let Some(text) = screen.resized(size(is_terminal)) {
                    write(&text)?;
                }
                continue;
            }
        }
        let (after, now) = (reports(source).await?, Instant::now());
        let interval = Interval::new(&before, &after, now - since);
        if watch.json {
            let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
            let mut out = output::stdout();
            output::json_line(&mut out, &columns::json(&watch.columns, &interval, &time))?;
            out.flush()?;
        } else {
            let values = watch.columns.iter().map(|column| column.value(&interval)).collect();
            let size = size(is_terminal);
            // The terminal may have another size, and the signal be on its way.
            let redrawn = screen.resized(size).unwrap_or_default();
            let row = screen.row(values, &columns::counted(&watch.columns, &after), size);
            write(&format!("{redrawn}{row}"))?;
        }
        (before, since) = (after, now);
        shown += 1;
    }
    Ok(())
}

fn write(text: &str) -> std::io::Result<()> {
    let mut out = output::stdout();
    write!(out, "{text}")?;
    out.flush()
}

/// Waits until the terminal has another size; for ever where there is none.
async fn resized(resizes: &mut Option<Signal>) {
    match resizes {
        Some(resizes) => drop(resizes.recv().await),
        None => std::future::pending().await,
    }
}

async fn reports(source: &Source) -> anyhow::Result<Vec<(String, Report)>> {
    let reports = source.now().await?.into_iter();
    reports.map(|(name, report)| Ok((name, Report::of(&report)?))).collect()
}

/// That of the terminal. A terminal that does not know its own is 80 wide; a file has no end, unless `COLUMNS` says so.
fn size(is_terminal: bool) -> Size {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    if !is_terminal {
        return Size { width: told, height: None };
    }
    let Ok(window) = rustix::termios::tcgetwinsize(std::io::stdout()) else {
        return Size { width: told.or(Some(80)), height: None };
    };
    let some = |count: u16| Some(usize::from(count)).filter(|count| *count > 0);
    Size { width: some(window.ws_col).or(told).or(Some(80)), height: some(window.ws_row) }
}
