//! What a container is to the kernel: processes in namespaces of their own. And a process that tries to get at what is
//! another's, in one or in none.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::program::{beside_tests, wrapped};
use crate::{Finished, STRANGER, finish, is_root, once};

/// The program that tries.
const INTRUDER: &str = "forebay-e2e-intruder";
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a command in a container may take: a mount is one.
const ANSWER_WITHIN: Duration = Duration::from_secs(150);
/// The file that a program is read from when it is its own standard input. No directory on the way to it is looked at, so
/// another user runs it, too, wherever it was built.
const STANDARD_INPUT: &str = "/proc/self/fd/0";

/// Something that an intruder tried.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// What it tried.
    pub what: String,
    /// What came of it.
    pub outcome: Outcome,
    /// What it was told, if it did not get what it wanted.
    pub why: String,
}

/// What came of a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It got it.
    Got,
    /// It was not let.
    Refused,
    /// It was let, and it is not to be had so: a file is not a directory.
    Failed,
}

/// The command that tries these, each written `KIND:WHAT`, as the head of the program says.
#[must_use]
pub fn intruder(tries: &[String]) -> Command {
    let mut command = Command::new(beside_tests(INTRUDER));
    command.args(tries);
    command
}

/// What an intruder that has ended tells.
///
/// # Panics
/// When it did not try all that it should.
#[must_use]
#[track_caller]
pub fn attempts(intruder: Finished) -> Vec<Attempt> {
    let told = intruder.succeeded().text();
    let attempt = |line: &str| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        let outcome = match parts.next()?.as_str() {
            "got" => Outcome::Got,
            "refused" => Outcome::Refused,
            "failed" => Outcome::Failed,
            _ => return None,
        };
        Some(Attempt { outcome, what: parts.next()?, why: parts.next()? })
    };
    told.lines().map(|line| attempt(line).unwrap_or_else(|| panic!("what is {line:?}?"))).collect()
}

/// What comes of these tries by this process's user, in no container.
///
/// # Panics
/// As [`attempts`].
#[must_use]
#[track_caller]
pub fn intrude(tries: &[String]) -> Vec<Attempt> {
    attempts(finish(&mut intruder(tries), READY_WITHIN))
}

/// What comes of these tries by the root of a container that the user [`STRANGER`] made: with namespaces of its own for users,
/// mounts, IPC, the host's name and the network, and for processes unless it `sees_processes` of the host. It sees the host's
/// files, so nothing but their modes keeps them from it. `None`, said, where there can be no such container.
///
/// # Panics
/// As [`attempts`].
#[must_use]
#[track_caller]
pub fn intrude_from_container(tries: &[String], sees_processes: bool) -> Option<Vec<Attempt>> {
    if !is_root() {
        crate::skipped("only root makes a container of another user");
        return None;
    }
    let run = |tries: &[String]| {
        let id = STRANGER.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--", "unshare", "--user", "--map-root-user"]);
        command.args(["--mount", "--propagation", "slave", "--ipc", "--uts", "--net"]);
        if !sees_processes {
            command.args(["--pid", "--fork", "--kill-child"]);
        }
        let program = File::open(beside_tests(INTRUDER)).expect("the intruder's program");
        finish(command.arg(STANDARD_INPUT).args(tries).stdin(program).current_dir("/"), READY_WITHIN)
    };
    let nothing = run(&[]);
    if nothing.code != Some(0) {
        crate::skipped(&format!("there can be no container of another user here: {}", nothing.stderr.trim()));
        return None;
    }
    Some(attempts(run(tries)))
}

/// A privileged container: its root is the host's, it is on the host's network, and has namespaces of its own for mounts,
/// processes, IPC and the host's name. All that runs in it ends when it is dropped.
#[derive(Debug)]
pub struct Container {
    /// The parent of its first process, which ends with this one, and all others with that.
    holder: Child,
    _directory: TempDir,
}

impl Container {
    /// Starts one, in which the commands `prepare` of a shell run first.
    ///
    /// # Errors
    /// Why there can be none here.
    ///
    /// # Panics
    /// When it is not ready in time.
    #[track_caller]
    pub fn privileged(prepare: &str) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let [ready, log] = ["ready", "log"].map(|name| directory.path().join(name));
        // Copies of the mounts of other tests would keep them from ending.
        let alone = "umount --all --lazy --types fuse.forebay || true";
        let script = format!("{alone}; set -e; {prepare}; touch {}; exec sleep 900", ready.display());
        let holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "--mount-proc", "--pid", "--fork", "--kill-child"])
            .args(["--ipc", "--uts", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).map_err(|error| error.to_string())?)
            .spawn()
            .map_err(|error| format!("no unshare: {error}"))?;
        let mut container = Self { holder, _directory: directory };
        let is_ready = once("the container is ready", READY_WITHIN, || {
            let has_ended = container.holder.try_wait().expect("waiting for the container").is_some();
            (has_ended || ready.exists()).then(|| ready.exists())
        });
        if is_ready { Ok(container) } else { Err(std::fs::read_to_string(&log).unwrap_or_default()) }
    }

    /// Runs a command in it, as its root.
    ///
    /// # Panics
    /// When that takes too long.
    #[must_use]
    #[track_caller]
    pub fn run(&self, command: &Command) -> Finished {
        finish(&mut self.inside(command), ANSWER_WITHIN)
    }

    /// Starts a command in it, as its root, which ends with the container. What it says goes to standard error of the test.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start(&self, command: &Command) -> Child {
        self.inside(command).stdout(Stdio::null()).spawn().expect("a command in the container")
    }

    /// A command that runs this one in it.
    fn inside(&self, command: &Command) -> Command {
        let holder = self.holder.id();
        let mut enter = Command::new("nsenter");
        enter.args(["--mount", "--ipc", "--uts", "--target", &holder.to_string()]);
        // The holder itself is not in the namespace that it made for its child.
        enter.arg(format!("--pid=/proc/{holder}/ns/pid_for_children"));
        let mut inside = wrapped(enter, command);
        inside.stdin(Stdio::null());
        inside
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.holder.kill().and_then(|()| self.holder.wait());
    }
}
