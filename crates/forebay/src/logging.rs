//! The log: where it goes, how much of it, and that no panic is lost.
//!
//! The level is `log.level`; `FOREBAY_LOG` refines it with a filter, as in `info,forebay_origin=debug`.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, stderr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::Context as _;
use forebay_config::{Config, LogFormat, LogLevel};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::exit::{Exit, Fault};

const FILTER_VARIABLE: &str = "FOREBAY_LOG";
/// The library that speaks S3 logs each object that is not there as an error, and, to who debugs it, what a right signature would have
/// been. What goes wrong, the endpoint says itself.
const S3_LIBRARY: &str = "s3s";

/// Starts logging to `log.file`, or to standard error.
///
/// # Errors
/// When the file cannot be opened or the filter makes no sense.
pub(crate) fn start(config: &Config) -> anyhow::Result<()> {
    match &config.log_file {
        Some(path) => install(config, config.log_level, BoxMakeWriter::new(Mutex::new(open(path)?)), false),
        None => to_stderr(config, config.log_level),
    }
}

/// Starts logging of a command that runs to its end while a user watches: to standard error, and only what the user
/// should know unless more was asked for.
///
/// # Errors
/// When the filter makes no sense.
pub(crate) fn start_quiet(config: &Config) -> anyhow::Result<()> {
    let level = if config.log_level == Config::default().log_level { LogLevel::Warn } else { config.log_level };
    to_stderr(config, level)
}

/// Starts logging to standard error, whatever it is.
///
/// # Errors
/// When the filter makes no sense.
pub(crate) fn to_stderr(config: &Config, level: LogLevel) -> anyhow::Result<()> {
    install(config, level, BoxMakeWriter::new(stderr), stderr().is_terminal())
}

/// Whether standard error is the journal of systemd, which says so (`systemd.exec(5)`, `JOURNAL_STREAM`).
pub(crate) fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Opens a log file to append to it. Only its owner reads it: it names objects.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))
}

/// The same filter, without what a library says of which it says nothing itself.
fn quiet(filter: &str) -> String {
    let says = filter.is_empty() || filter.contains(S3_LIBRARY);
    if says { filter.to_owned() } else { format!("{filter},{S3_LIBRARY}=off") }
}

fn install(config: &Config, level: LogLevel, writer: BoxMakeWriter, colours: bool) -> anyhow::Result<()> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(text) => EnvFilter::try_new(quiet(&text)).map_err(|error| {
            let next = "write it as in FOREBAY_LOG=info,forebay_origin=debug";
            Fault::new(Exit::Usage, format!("environment {FILTER_VARIABLE}: {error}"), next)
        })?,
        Err(_) => EnvFilter::new(quiet(level.as_str())),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colours);
    // Only tests start it twice, and there the first one stays.
    let _ = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    log_panics();
    Ok(())
}

/// A task that panics ends alone and its owner sees an error; the log is where the reason is kept.
fn log_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        let payload = panic.payload();
        let text = || payload.downcast_ref::<String>().map(String::as_str);
        let why = payload.downcast_ref::<&str>().copied().or_else(text).unwrap_or("no message");
        let backtrace = std::backtrace::Backtrace::capture();
        if tracing::enabled!(tracing::Level::ERROR) {
            tracing::error!(at, %backtrace, "panic: {why}; this is a fault of forebay's, please report it");
        } else {
            report(panic);
        }
    }));
}
