//! `forebay profile`: which operations programs spend their time in, out of a mount's access log or one that was saved.

mod counts;

use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::builder::RangedU64ValueParser;

use self::counts::{Counts, Filter};
use crate::exit::{Exit, Fault};
use crate::output::{self, JsonArg};

/// The access log of a mount, as a file in it.
const ACCESS_LOG: &str = ".accesslog";
/// Lines that may wait to be counted.
const QUEUE: usize = 4096;
/// Moves the cursor home and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Show which operations programs spend their time in
///
/// The command reads the access log of a mount. In each interval it shows how often each operation ran, its average
/// time and its total time. For a saved log (`cat MOUNTPOINT/.accesslog > FILE`) it shows everything at once.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  forebay profile /mnt/data
  forebay profile /mnt/data --interval 10 --count 1 --uid 1000
  forebay profile access.log --pid 4242 --json")]
pub(crate) struct Args {
    /// A mountpoint, or a saved access log
    target: PathBuf,
    /// Only requests of this user
    #[arg(long, value_name = "UID")]
    uid: Option<u32>,
    /// Only requests of this group
    #[arg(long, value_name = "GID")]
    gid: Option<u32>,
    /// Only requests of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Seconds between tables of a mount
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = RangedU64ValueParser::<u64>::new().range(1..=3600))]
    interval: u64,
    /// End after this many tables
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    json: JsonArg,
}

/// Runs it.
///
/// # Errors
/// When the log cannot be read.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let filter = Filter { uid: args.uid, gid: args.gid, pid: args.pid };
    if args.target.is_dir() { live(args, filter) } else { saved(args, filter) }
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).map_err(|error| {
        let (exit, next) = match error.kind() {
            std::io::ErrorKind::NotFound => (Exit::NotFound, "give a forebay mountpoint or a saved access log"),
            std::io::ErrorKind::PermissionDenied => (Exit::Denied, "ask as root or as the user who mounted it"),
            _ => (Exit::Unavailable, "see the mount's log"),
        };
        Fault::new(exit, format!("cannot read {}: {error}", path.display()), next).into()
    })
}

/// A log that was saved.
fn saved(args: &Args, filter: Filter) -> anyhow::Result<()> {
    let mut counts = Counts::new(filter);
    let mut log = BufReader::new(open(&args.target)?);
    let mut line = Vec::new();
    while log.read_until(b'\n', &mut line).with_context(|| format!("cannot read {}", args.target.display()))? > 0 {
        counts.count(&String::from_utf8_lossy(&line));
        line.clear();
    }
    show(&counts, None, args.json.json)
}

/// The log of a mount, as it is written.
fn live(args: &Args, filter: Filter) -> anyhow::Result<()> {
    let log = open(&args.target.join(ACCESS_LOG))?;
    let (send, lines) = mpsc::sync_channel(QUEUE);
    // It ends at the latest when the mount's next heartbeat finds no receiver; the process does not wait for that.
    std::thread::spawn(move || read(log, &send));
    let interval = Duration::from_secs(args.interval);
    let mut shown = 0;
    while args.count.is_none_or(|count| shown < count) {
        let mut counts = Counts::new(filter);
        let goes_on = count_until(Instant::now() + interval, &lines, &mut counts);
        show(&counts, Some(interval), args.json.json)?;
        if !goes_on {
            let what = format!("{} is not mounted any more", args.target.display());
            return Err(Fault::new(Exit::Unavailable, what, "mount it again").into());
        }
        shown += 1;
    }
    Ok(())
}

/// Counts the lines that come until then. Whether there may be more.
fn count_until(until: Instant, lines: &mpsc::Receiver<String>, counts: &mut Counts) -> bool {
    loop {
        // Looked at first: where there is always another line, no wait for one ends the interval.
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        match lines.recv_timeout(left) {
            Ok(line) => counts.count(&line),
            Err(mpsc::RecvTimeoutError::Timeout) => return true,
            Err(mpsc::RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// Hands on the lines of a log. A reader that is too slow loses lines in the mount, which says so in the log.
fn read(mut log: File, lines: &mpsc::SyncSender<String>) {
    let (mut buffer, mut rest) = (vec![0; 1 << 18], Vec::new());
    while let Ok(n @ 1..) = log.read(&mut buffer) {
        rest.extend_from_slice(&buffer[..n]);
        let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        for line in rest[..whole].split_inclusive(|byte| *byte == b'\n') {
            if lines.send(String::from_utf8_lossy(line).into_owned()).is_err() {
                return;
            }
        }
        // Once, and not for each line.
        rest.drain(..whole);
    }
}

fn show(counts: &Counts, interval: Option<Duration>, json: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if json {
        output::json_line(&mut out, &counts.json())?;
    } else {
        if interval.is_some() && std::io::stdout().is_terminal() {
            write!(out, "{CLEAR}")?;
        }
        counts.table().print(&mut out)?;
        if counts.missing > 0 {
            writeln!(out, "{} requests came too fast to be logged", counts.missing)?;
        }
        if counts.unknown > 0 {
            writeln!(out, "{} lines are not of an access log", counts.unknown)?;
        }
        if interval.is_some() {
            writeln!(out)?;
        }
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_ends_though_there_is_always_another_line() {
        let (send, lines) = mpsc::sync_channel(1);
        send.send("a line".to_owned()).unwrap();
        let mut counts = Counts::new(Filter { uid: None, gid: None, pid: None });
        assert!(count_until(Instant::now(), &lines, &mut counts));
        assert!(lines.try_recv().is_ok(), "it is the next interval's");
        drop(send);
        assert!(!count_until(Instant::now() + Duration::from_secs(600), &lines, &mut counts));
    }

    #[test]
    fn lines_that_come_in_pieces_are_handed_on_whole() {
        use std::io::Seek as _;

        let mut log = tempfile::tempfile().unwrap();
        log.write_all(b"one\ntwo\nhalf").unwrap();
        log.rewind().unwrap();
        let (send, lines) = mpsc::sync_channel(QUEUE);
        read(log, &send);
        drop(send);
        assert_eq!(lines.iter().collect::<Vec<_>>(), ["one\n", "two\n"]);
    }
}
