//! The fio that is installed: which version, which engines, and one run of it under a deadline.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::{self, ChildError, Ended};
use super::error::RunError;
use super::stop::Stop;
use crate::posix::settings::Engine;

/// The oldest fio that says what is read here: completion latencies in nanoseconds (`clat_ns`).
const OLDEST: (u32, u32) = (3, 0);
/// How long fio may take to say something of itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Bytes of the file that engines are tried on.
const TRIAL_BYTES: usize = 64 << 10;
/// Lines of what fio said that a message quotes.
const QUOTED: usize = 3;

/// An installed fio.
#[derive(Clone, Debug)]
pub struct Fio {
    program: PathBuf,
    version: String,
    engines: BTreeSet<String>,
}

impl Fio {
    /// The one on the path.
    ///
    /// # Errors
    /// When there is none, or it is too old.
    pub fn find() -> Result<Self, RunError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = std::env::split_paths(&path).map(|directory| directory.join("fio"));
        let program = program.into_iter().find(|program| program.is_file()).ok_or(RunError::NoFio)?;
        let version = said(&program, "--version")?;
        let version = version.trim().to_owned();
        if number(&version).is_some_and(|number| number < OLDEST) {
            let (major, minor) = OLDEST;
            let what = format!("{} is {version}; install fio {major}.{minor} or later", program.display());
            return Err(RunError::Usage(what));
        }
        let engines = said(&program, "--enghelp")?;
        let engines = engines.lines().skip(1).map(|line| line.trim().to_owned()).collect();
        Ok(Self { program, version, engines })
    }

    /// `fio-3.33`.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The fastest engine that works on this machine: a container may forbid io_uring that fio and kernel know. And why those
    /// before it do not.
    ///
    /// # Errors
    /// When none does; when it is interrupted.
    pub fn fastest_engine(&self, directory: &Path, stop: &Stop) -> Result<(Engine, Vec<String>), RunError> {
        let mut refused = Vec::new();
        for engine in [Engine::IoUring, Engine::Libaio, Engine::Psync] {
            match self.try_engine(engine, directory, stop)? {
                None => return Ok((engine, refused)),
                Some(reason) => refused.push(format!("{engine} does not work here: {reason}")),
            }
        }
        Err(RunError::Usage(format!("no engine of {} works here ({})", self.version, refused.join(", "))))
    }

    /// Reads a file in `directory`, of which nothing is left, with `engine`. Why that fails, if it does.
    ///
    /// # Errors
    /// When the file cannot be made; when it is interrupted.
    pub fn try_engine(&self, engine: Engine, directory: &Path, stop: &Stop) -> Result<Option<String>, RunError> {
        if !self.engines.contains(engine.name()) {
            return Ok(Some(format!("{} is built without it", self.version)));
        }
        // By a name that cannot be known before, and opened as a new one: every user may be able to write to the
        // directory.
        let file = tempfile::Builder::new().prefix("forebay-fio-").tempfile_in(directory);
        let mut file = file.map_err(RunError::io("make a file in", directory))?;
        file.write_all(&[0; TRIAL_BYTES]).map_err(RunError::io("write", file.path()))?;
        let mut command = self.command();
        command.args(["--name=trial", "--rw=read", "--bs=4k", "--readonly", "--allow_file_create=0"]);
        command.arg(format!("--ioengine={engine}")).arg(format!("--filename={}", file.path().display()));
        match child::run(&mut command, ANSWER_WITHIN, stop) {
            Ok(ended) if ended.status.success() => Ok(None),
            Ok(ended) => Ok(Some(quoted(&ended))),
            Err(ChildError::Interrupted) => Err(RunError::Interrupted),
            Err(ChildError::Start(error)) => Err(RunError::Io { doing: "start", path: self.program.clone(), error }),
            Err(ChildError::TimedOut) => Ok(Some(format!("no answer within {ANSWER_WITHIN:?}"))),
            Err(ChildError::Stuck(pid)) => Err(RunError::Stuck { what: format!("fio with {engine}"), pid }),
        }
    }

    /// A command line that is to be completed. fio leaves its state in files of the working directory in some cases: that is
    /// not the user's.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(std::env::temp_dir());
        command
    }

    /// Runs it to its end, and calls `watch` meanwhile. What it said, also when it failed, is for the caller to keep.
    pub(super) fn run(
        &self,
        arguments: &[String],
        within: Duration,
        stop: &Stop,
        watch: &mut dyn FnMut(),
    ) -> Result<Ended, ChildError> {
        child::run_watched(self.command().args(arguments), within, stop, watch)
    }
}

/// The last of what a fio that failed said, in one line. It says what went wrong on standard error, and its servers' words on
/// standard output, before the report.
pub(super) fn quoted(ended: &Ended) -> String {
    let before_report = ended.stdout.split(|byte| *byte == b'{').next().unwrap_or_default();
    let text = [String::from_utf8_lossy(&ended.stderr), String::from_utf8_lossy(before_report)].join("\n");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = &lines[lines.len().saturating_sub(QUOTED)..];
    if last.is_empty() { ended.status.to_string() } else { last.join("; ").replace("; ", " / ") }
}

/// Which error ended a fio that failed, by its number and in fio's words. (It goes on talking after that.)
pub(super) fn cause(ended: &Ended) -> Option<(i32, String)> {
    let text = [String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr)].join("\n");
    text.lines().find_map(|line| {
        // `fio: pid=7, err=28/file:io_u.c:1876, func=io_u error, error=No space left on device`
        let number = line.split_once("err=")?.1;
        let number = &number[..number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len())];
        let words = line.rsplit_once("error=")?.1.trim().trim_end_matches(')');
        Some((number.parse().ok().filter(|number| *number != 0)?, words.to_owned()))
    })
}

fn said(program: &Path, question: &str) -> Result<String, RunError> {
    let failed = |reason: String| RunError::Usage(format!("{} {question} fails: {reason}", program.display()));
    let ended = child::run(Command::new(program).arg(question), ANSWER_WITHIN, &Stop::default());
    match ended {
        Ok(ended) if ended.status.success() => Ok(String::from_utf8_lossy(&ended.stdout).into_owned()),
        Ok(ended) => Err(failed(quoted(&ended))),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Of `fio-3.33-5-gabc`: 3 and 33.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix("fio-")?.split(['.', '-']);
    Some((parts.next()?.parse().ok()?, parts.next().and_then(|minor| minor.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(number("fio-3.33"), Some((3, 33)));
        assert_eq!(number("fio-3.1-12-gdead"), Some((3, 1)));
        assert_eq!(number("fio-4"), Some((4, 0)));
        assert!(number("fio-2.21").unwrap() < OLDEST);
        assert_eq!(number("something"), None);
    }

    #[test]
    fn the_error_that_ended_it_is_told_and_not_what_it_said_last() {
        let status = std::os::unix::process::ExitStatusExt::from_raw(256);
        let said = |stdout: &str| {
            let stdout = stdout.as_bytes().to_vec();
            cause(&Ended { status, stdout, stderr: b"fio: something else".to_vec(), took: Duration::ZERO })
        };
        let full = "Starting 1 process\nfio: pid=7, err=28/file:io_u.c:1876, func=io_u error, error=No space left on device\n\n\
                    Run status group 0 (all jobs):\n";
        assert_eq!(said(full), Some((28, "No space left on device".into())));
        assert_eq!(said("fio: pid=7, err= 0: fine"), None);
        assert_eq!(said(""), None);
    }

    #[test]
    fn an_engine_that_is_not_there_is_refused_with_the_reason() {
        let Ok(fio) = Fio::find() else {
            // Past the test harness, which captures what is printed.
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), b"skipped: no fio here: `make setup` brings it\n");
            return;
        };
        let directory = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        assert!(fio.version().starts_with("fio-"));
        assert_eq!(fio.try_engine(Engine::Psync, directory.path(), &stop).unwrap(), None);
        let without = Fio { engines: BTreeSet::new(), ..fio.clone() };
        let reason = without.try_engine(Engine::IoUring, directory.path(), &stop).unwrap().unwrap();
        assert!(reason.contains("is built without it"), "{reason}");
        let only = Fio { engines: BTreeSet::from(["psync".to_owned()]), ..fio };
        let (engine, refused) = only.fastest_engine(directory.path(), &stop).unwrap();
        assert_eq!((engine, refused.len()), (Engine::Psync, 2));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
