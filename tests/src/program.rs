//! Running the binary, and looking at processes by their number.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_types::Role;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::security;

/// The binary under test: the one that was built beside this test, or the one that `FOREBAY_TEST_BINARY` names.
fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("FOREBAY_TEST_BINARY") {
        return named.into();
    }
    beside_tests("forebay")
}

/// Another program of this build.
///
/// # Panics
/// When it has not been built.
#[must_use]
pub fn beside_tests(program: &str) -> PathBuf {
    // A test runs as target/PROFILE/deps/NAME-HASH.
    let test = std::env::current_exe().expect("the test's own path");
    let binary = test.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps").join(program);
    assert!(binary.is_file(), "{} is not there: `cargo build --bin {program}` makes it", binary.display());
    binary
}

/// `forebay` with nothing of this machine's configuration and credentials, and with this environment instead, in the mode
/// that `FOREBAY_TEST_SECURITY` names: a command of an admin.
#[must_use]
pub fn forebay(environment: &[(&str, String)]) -> Command {
    forebay_as(Role::Admin, "tests", environment)
}

/// The same of a process that is `name` in this role, where each has a certificate of its own. One that is a worker, too, is
/// that in all its parts: `forebay up`, and a mount that shares its cache.
#[must_use]
pub fn forebay_as(role: Role, name: &str, environment: &[(&str, String)]) -> Command {
    let mut command = Command::new(binary());
    isolate(&mut command);
    for (variable, value) in security::variables(role, name).iter().chain(environment) {
        command.env(variable, value);
    }
    command
}

/// `wrapper`, which runs the program that its last arguments name, around this command with its arguments and environment.
#[must_use]
pub fn wrapped(mut wrapper: Command, command: &Command) -> Command {
    wrapper.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapper.env(name, value),
            None => wrapper.env_remove(name),
        };
    }
    wrapper
}

/// UCX over sockets is to use loopback, and not the devices that other tests make and remove meanwhile.
pub const UCX_ON_LOOPBACK: (&str, &str) = ("UCX_NET_DEVICES", "lo");

/// Takes what would change the result out of the environment.
fn isolate(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        // The library that `make test` chose is for the programs, too.
        if name_text == "FOREBAY_UCX_LIBRARY" {
            continue;
        }
        if name_text.starts_with("FOREBAY_") || name_text.starts_with("AWS_") || name_text.starts_with("XDG_") {
            command.env_remove(&name);
        }
    }
    // An empty file, so that the one in /etc is not read.
    command.env("FOREBAY_CONFIG", "/dev/null").env("HOME", "/nonexistent").stdin(Stdio::null());
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: String,
    /// How long it took.
    pub took: Duration,
}

impl Finished {
    /// Standard output as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The same command, which must have succeeded.
    ///
    /// # Panics
    /// When it did not; with what it printed.
    #[must_use]
    #[track_caller]
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.text(), self.stderr);
        self
    }

    /// Checks that the command failed with `code` and said each of `words`.
    ///
    /// # Panics
    /// When it did not.
    #[track_caller]
    pub fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.text(), self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in: {}", self.stderr);
        }
    }
}

/// Runs `command` to its end.
///
/// # Panics
/// When it cannot be started, or takes longer than `limit`; then it is killed, with those that it started.
#[track_caller]
pub fn finish(command: &mut Command, limit: Duration) -> Finished {
    let program = command.get_program().to_owned();
    let what = format!("{program:?} {:?}", command.get_args().collect::<Vec<&OsStr>>());
    let started = Instant::now();
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {what}: {error}"));
    let group = Pid::from_child(&child);
    let collect = |mut pipe: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // Whatever came before a broken pipe is all there is.
            let _ = pipe.read_to_end(&mut bytes);
            bytes
        })
    };
    let stdout = collect(Box::new(child.stdout.take().expect("piped")));
    let stderr = collect(Box::new(child.stderr.take().expect("piped")));
    let status = loop {
        if let Some(status) = child.try_wait().expect("waiting for a child") {
            break status;
        }
        if started.elapsed() > limit {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            let _ = child.wait();
            let stderr = stderr.join().unwrap_or_default();
            panic!("{what} took longer than {limit:?}; it said: {}", String::from_utf8_lossy(&stderr));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Finished {
        code: status.code(),
        stdout: stdout.join().unwrap_or_default(),
        stderr: String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned(),
        took: started.elapsed(),
    }
}

/// Sends a signal to one process; one that has ended gets none.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Whether process `pid` has ended, all its threads included: before that, its files are still open.
///
/// # Panics
/// When the kernel does not say.
#[must_use]
pub fn ended(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return true };
    let descriptor = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(Errno::SRCH) => return true,
        Err(error) => panic!("cannot look at process {}: {error}", pid.as_raw_nonzero()),
    };
    let mut poll = [PollFd::new(&descriptor, PollFlags::IN)];
    rustix::event::poll(&mut poll, Some(&Timespec::default())).expect("polling a process") > 0
}

/// Bytes of memory that process `pid` has resident; 0 when it has ended.
#[must_use]
pub fn resident(pid: u32) -> u64 {
    status(pid, "VmRSS")
}

/// The part of that which it may share with other processes.
#[must_use]
pub fn resident_shared(pid: u32) -> u64 {
    status(pid, "RssShmem")
}

/// Bytes that the kernel counts of process `pid` under this name.
fn status(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}
