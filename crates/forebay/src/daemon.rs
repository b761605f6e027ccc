//! Going to the background.
//!
//! The process starts itself again with one more, hidden flag. The child's standard error is the log: a file, or the journal
//! where that is the parent's, too. Its standard output is a pipe, on which the child writes one line: that the mount answers, or why it will not. The parent waits
//! for that line with a deadline, and shows the progress to the user. Then the parent ends, and the child closes the
//! pipe. So "the command succeeded" means "the mount can be used", and an error shows in the command's own exit code.
//!
//! The child is an orphan from the start, and so a child of whoever takes those: process 1, or the service manager. systemd does not
//! wait for the end of a main process that was no child of its own when it was told of it (`MAINPID=` of a mount that goes on in another
//! process): where a unit stops, it sends SIGTERM and SIGKILL at once.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Fault, UserError};
use crate::logging;
use forebay_node::process::Process;

/// What the child is started with besides the arguments of its parent.
const CHILD_FLAG: &str = "--background-child";
/// For what takes longest: reading the headers of large disks, to find what they hold. An origin that does not answer ends
/// the wait earlier, by its own deadline.
const READY_WITHIN: Duration = Duration::from_secs(300);
/// How long a child that is given up has to clean up.
const END_WITHIN: Duration = Duration::from_secs(10);
/// How much of the log's end is shown when the child ends without a word.
const LOG_TAIL: u64 = 2048;

/// The one line on the pipe.
#[derive(Debug, Serialize, Deserialize)]
enum Word<T> {
    Ready(T),
    Failed(UserError),
}

/// In the parent: starts the child, which logs to the file `log`, or to where this process does, and waits until it is ready, for so
/// much `longer` than is usual. Returns what it says of itself.
///
/// # Errors
/// Whatever the child says; that it ended or took too long without a word.
pub(crate) fn start<T: DeserializeOwned + Send + 'static>(
    log: Option<&Path>,
    doing: &str,
    longer: Duration,
) -> anyhow::Result<T> {
    let within = READY_WITHIN.saturating_add(longer);
    let log = log.map(Log::open).transpose()?;
    let program = std::env::current_exe().context("cannot find the program's own file")?;
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    // Behind the name of the command, and so before a `--`.
    arguments.insert(arguments.len().min(1), CHILD_FLAG.into());
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.stderr(log.as_ref().map_or_else(|| Ok(Stdio::inherit()), Log::for_child)?);
    let (child, stdout) = spawn_orphan(command).context("cannot start a process in the background")?;
    let spinner = spinner(doing);
    let word = hear(stdout, within);
    spinner.finish_and_clear();
    match word {
        Heard::Word(Word::Ready(summary)) => Ok(summary),
        Heard::Word(Word::Failed(user_error)) => {
            // Its error is the answer; it ends now, so that a second attempt does not find it still there.
            let _ = child.wait_for_end(END_WITHIN);
            Err(anyhow::Error::new(user_error))
        }
        Heard::End => {
            // It says nothing any more, which is its end but for a moment.
            if !child.wait_for_end(END_WITHIN) {
                end(&child);
            }
            let what = format!("the process in the background ended{}", tail_of(log.as_ref()));
            Err(Fault::new(Exit::Failed, what, format!("see the log, {}", name_of(log.as_ref()))).into())
        }
        Heard::Nothing => {
            end(&child);
            let what = format!("the mount was not ready within {} s{}", within.as_secs(), tail_of(log.as_ref()));
            let next = format!("see the log, {}; `--foreground` shows what it waits for", name_of(log.as_ref()));
            Err(Fault::new(Exit::Unavailable, what, next).into())
        }
    }
}

enum Heard<T> {
    Word(Word<T>),
    End,
    Nothing,
}

/// Starts a process that is nobody's child here, and what comes from its standard output.
///
/// # Errors
/// When there can be no more processes, or the program cannot be started.
fn spawn_orphan(mut command: Command) -> io::Result<(Process, ChildStdout)> {
    let (mut told, tell) = io::pipe()?;
    let leave_parent = move || {
        // SAFETY: without flags it is fork(2); neither of both uses what belongs to the threads of the process before.
        let forked = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        match u32::try_from(forked) {
            Ok(0) => Ok(()),
            Ok(pid) => {
                let is_told = rustix::io::write(&tell, &pid.to_ne_bytes()).is_ok();
                // SAFETY: it ends this process, and runs nothing that others have left to be run at the end.
                unsafe { libc::_exit(i32::from(!is_told)) }
            }
            Err(_) => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: runs between fork and exec, where only what is safe in a signal handler may be called: a clone(2), a write(2) and an
    // _exit(2).
    unsafe { command.pre_exec(leave_parent) };
    let mut parent = command.stdout(Stdio::piped()).spawn()?;
    // It has an end of the pipe.
    drop(command);
    parent.wait()?;
    let mut pid = [0; size_of::<u32>()];
    told.read_exact(&mut pid)?;
    let stdout = parent.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((Process::of(u32::from_ne_bytes(pid)), stdout))
}

fn hear<T: DeserializeOwned + Send + 'static>(stdout: ChildStdout, within: Duration) -> Heard<T> {
    let (tell, told) = mpsc::channel();
    // Reading has no deadline, a channel has. The thread ends with the child's end of the pipe.
    std::thread::spawn(move || {
        // A library may print something of its own before.
        let mut lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        let _ = tell.send(lines.find_map(|line| serde_json::from_slice(&line).ok()));
    });
    match told.recv_timeout(within) {
        Ok(Some(word)) => Heard::Word(word),
        Ok(None) | Err(mpsc::RecvTimeoutError::Disconnected) => Heard::End,
        Err(mpsc::RecvTimeoutError::Timeout) => Heard::Nothing,
    }
}

/// Ends a child that did not become ready: it may unmount first, but not for ever.
fn end(child: &Process) {
    child.ask_to_end();
    if !child.wait_for_end(END_WITHIN) {
        child.kill();
    }
}

/// The file that a child logs to.
struct Log<'a> {
    path: &'a Path,
    file: File,
    /// How long it was before.
    start: u64,
}

impl<'a> Log<'a> {
    fn open(path: &'a Path) -> anyhow::Result<Self> {
        let file = logging::open(path)?;
        let start = file.metadata().map_or(0, |metadata| metadata.len());
        Ok(Self { path, file, start })
    }

    fn for_child(&self) -> anyhow::Result<Stdio> {
        Ok(self.file.try_clone().context("cannot duplicate the log")?.into())
    }

    /// The end of what the child logged.
    fn tail(&self) -> std::io::Result<String> {
        let mut file = File::open(self.path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(self.start.max(length.saturating_sub(LOG_TAIL))))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }
}

fn name_of(log: Option<&Log<'_>>) -> String {
    log.map_or_else(|| "which is the journal".to_owned(), |log| log.path.display().to_string())
}

/// What the child logged, so that its reason is seen without opening a file.
fn tail_of(log: Option<&Log<'_>>) -> String {
    match log.map(Log::tail) {
        Some(Ok(text)) if !text.is_empty() => format!("; it logged:\n{text}"),
        _ => String::new(),
    }
}

fn spinner(doing: &str) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(doing.to_owned());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}

/// In the child: the mount can be used, and `summary` is for the parent to print. From now on this process has a session
/// of its own, so that nothing that happens to the terminal reaches it; until now, a Ctrl-C there ended both. Its
/// standard output is `/dev/null`, and its working directory `/`, so that nothing of where it was started stays in use.
///
/// # Errors
/// When the system refuses any of this.
pub(crate) fn ready<T: Serialize>(summary: &T) -> anyhow::Result<()> {
    rustix::process::setsid().map_err(std::io::Error::from).context("cannot leave the session")?;
    std::env::set_current_dir("/").context("cannot enter /")?;
    say(&Word::Ready(summary));
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).map_err(std::io::Error::from).context("cannot close standard output")
}

/// In the child: there will be no mount.
pub(crate) fn failed(user_error: &UserError) {
    say(&Word::<()>::Failed(user_error.clone()));
}

fn say<T: Serialize>(word: &Word<T>) {
    let Ok(mut line) = serde_json::to_vec(word) else { return };
    line.push(b'\n');
    // A parent that was interrupted does not listen, and the mount is there all the same.
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_prints_is_not_the_word_that_is_waited_for() {
        let script = "echo 'a warning of a library'; echo '{\"Ready\":7}'; exec sleep 600";
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        let (child, stdout) = spawn_orphan(command).unwrap();
        let heard = hear::<u32>(stdout, READY_WITHIN);
        child.kill();
        assert!(matches!(heard, Heard::Word(Word::Ready(7))));
        assert!(child.wait_for_end(END_WITHIN));
    }

    #[test]
    fn a_process_in_the_background_is_nobodys_child_from_the_start() {
        let mut command = Command::new("sh");
        command.arg("-c").arg("echo \"{\\\"Ready\\\":[$$,$PPID]}\"; exec sleep 600");
        let (child, stdout) = spawn_orphan(command).unwrap();
        let Heard::Word(Word::Ready([pid, parent])) = hear::<[u32; 2]>(stdout, READY_WITHIN) else {
            child.kill();
            panic!("it does not say which process it is");
        };
        assert_ne!(parent, std::process::id());
        let itself = Process::of(pid);
        assert!(!itself.wait_for_end(Duration::ZERO));
        child.kill();
        assert!(itself.wait_for_end(END_WITHIN) && child.wait_for_end(END_WITHIN));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error_of_whoever_starts_it() {
        let error = spawn_orphan(Command::new("/nowhere/forebay")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
