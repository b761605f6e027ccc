//! A mount, and the process in the background that serves it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use forebay_types::Role;
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{Finished, Setup, UCX_ON_LOOPBACK, eventually, finish, forebay, once, program};

/// Longer than `forebay up` gives an origin for its first answer.
const START_WITHIN: Duration = Duration::from_secs(150);
const END_WITHIN: Duration = Duration::from_secs(30);
/// How long a command may take that is asked of a mount: it may bring hundreds of files.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// Longer than an upload takes that the tests let fail.
const STAGED_WITHIN: Duration = Duration::from_secs(90);
/// How long a dropped mount may take to end in good order.
const DROP_WITHIN: Duration = Duration::from_secs(5);
/// Longer than any test takes. A read that gets no answer cannot be interrupted, but its server can be killed.
const LIMIT: Duration = Duration::from_secs(900);

/// A mount. Dropping it ends its process and takes it away, dead or alive.
#[derive(Debug)]
pub struct Mount {
    setup: Setup,
    command: Vec<String>,
    directory: TempDir,
    /// What the command printed of the mount.
    summary: Value,
    _watchdog: Option<mpsc::Sender<()>>,
}

impl Mount {
    pub(crate) fn new(setup: Setup, command: Vec<String>) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the mountpoint");
        std::fs::create_dir(directory.path().join("mnt")).expect("the mountpoint");
        Self { setup, command, directory, summary: Value::Null, _watchdog: None }
    }

    #[track_caller]
    pub(crate) fn started(mut self) -> Self {
        let _ = self.start().succeeded();
        self
    }

    /// Mounts, also once more. Gives what the command printed.
    ///
    /// # Panics
    /// When it takes too long.
    #[track_caller]
    pub fn start(&mut self) -> Finished {
        self.start_with(&[])
    }

    /// Starts another process that takes the mount over, with further arguments. Gives what the command printed; of one that
    /// failed, nothing is believed.
    ///
    /// # Panics
    /// When it takes too long.
    #[track_caller]
    pub fn replace(&mut self, more: &[&str]) -> Finished {
        let more: Vec<&str> = std::iter::once("--replace").chain(more.iter().copied()).collect();
        self.start_with(&more)
    }

    #[track_caller]
    fn start_with(&mut self, more: &[&str]) -> Finished {
        let (program, arguments) = self.command.split_first().expect("a command");
        let log = format!("log.file={}", self.log().display());
        let staging = format!("write.staging_dir={}", self.staging().display());
        let finished = finish(
            self.setup
                .forebay(self.role())
                .envs([UCX_ON_LOOPBACK])
                .arg(program)
                .args(arguments)
                .arg(self.root())
                .args(["--json", "-o", &log, "-o", &staging])
                .args(&self.setup.arguments)
                .args(more),
            START_WITHIN,
        );
        if finished.code == Some(0) {
            self.summary = serde_json::from_slice(&finished.stdout).expect("the summary as JSON");
            self._watchdog = Some(watch(self.pid()));
        }
        finished
    }

    /// The role of its process, where each has a certificate of its own: that of its worker, if it has one, for a
    /// certificate stands for all parts of a process.
    fn role(&self) -> Role {
        let has = |flag: &str| self.setup.has_flag(flag);
        let is_up = self.command.first().is_some_and(|command| command == "up");
        let shares = ["--cache-group", "--memory", "--disk"].into_iter().any(has) && !has("--no-sharing");
        if is_up || shares {
            Role::Worker
        } else if has("--read-only") || self.setup.setting("write.mode") == Some("none") {
            Role::Reader
        } else {
            Role::Writer
        }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// The place of a file.
    #[must_use]
    pub fn path(&self, below: &str) -> PathBuf {
        self.root().join(below)
    }

    /// What the command printed of the mount, as JSON.
    #[must_use]
    pub fn summary(&self) -> &Value {
        &self.summary
    }

    /// The process that serves it.
    ///
    /// # Panics
    /// When it was not started.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.summary["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("the mount was started")
    }

    /// The process that serves it now, if one says so: a keeper may have started it.
    #[must_use]
    pub fn served_by(&self) -> Option<u32> {
        let pid = std::fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()?;
        (!program::ended(pid)).then_some(pid)
    }

    /// `kill -9`: a dead mount stays.
    ///
    /// # Panics
    /// When the process does not end.
    #[track_caller]
    pub fn kill(&self) {
        program::signal(self.pid(), Signal::KILL);
        self.wait_for_end();
    }

    /// Ends it in good order.
    ///
    /// # Panics
    /// When the process does not end.
    #[track_caller]
    pub fn terminate(&self) {
        program::signal(self.pid(), Signal::TERM);
        self.wait_for_end();
    }

    /// Waits until the process has ended.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn wait_for_end(&self) {
        let pid = self.pid();
        eventually("the mount's process ends", END_WITHIN, || program::ended(pid));
    }

    /// Runs `forebay COMMAND ROOT`.
    ///
    /// # Panics
    /// When that takes too long.
    #[must_use]
    #[track_caller]
    pub fn ask(&self, command: &[&str]) -> Finished {
        self.ask_of("", command)
    }

    /// Runs `forebay COMMAND FILE`.
    ///
    /// # Panics
    /// When that takes too long.
    #[must_use]
    #[track_caller]
    pub fn ask_of(&self, file: &str, command: &[&str]) -> Finished {
        finish(forebay(&[]).args(command).arg(self.path(file)), ANSWER_WITHIN)
    }

    /// The counters of the worker of `forebay up`, at `pointer`.
    ///
    /// # Panics
    /// When it does not answer, or there is no such counter.
    #[must_use]
    #[track_caller]
    pub fn counter(&self, pointer: &str) -> u64 {
        // One that has no processor for a moment may not answer as fast as a command expects it.
        let answer = once("it tells its worker's counters", END_WITHIN, || {
            let answer = self.ask(&["stats", "--all", "--json"]);
            (answer.code == Some(0)).then_some(answer)
        });
        let worker = answer.stdout.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let stats: Value = serde_json::from_slice(worker).expect("the counters as JSON");
        stats.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {pointer} in {stats}"))
    }

    /// The counters of the mount itself. That its workers do not answer, or not whoever asks here, is said besides.
    ///
    /// # Panics
    /// When it does not answer.
    #[must_use]
    #[track_caller]
    pub fn own_stats(&self) -> Value {
        once("it tells its counters", END_WITHIN, || {
            let answer = self.ask(&["stats", "--all", "--json"]);
            let last: Option<Value> = answer.text().lines().last().and_then(|line| serde_json::from_str(line).ok());
            last.filter(|counters| counters["fuse"].is_object())
        })
    }

    /// The sockets of a `forebay up`: for what is asked of the process, of its worker and of its coordinator.
    ///
    /// # Panics
    /// When it has none.
    #[must_use]
    #[track_caller]
    pub fn sockets(&self) -> [PathBuf; 3] {
        let state = std::fs::read(self.pid_file().with_extension("json")).expect("the run state");
        let state: Value = serde_json::from_slice(&state).expect("the run state as JSON");
        let unix = |address: &Value| -> PathBuf {
            let path = address.as_str().and_then(|address| address.strip_prefix("unix:"));
            path.unwrap_or_else(|| panic!("no socket: {state}")).into()
        };
        let control = state["control"].as_str().expect("a control socket").into();
        [control, unix(&state["workers"][0]), unix(&state["coordinator"])]
    }

    /// Where it stages what is written to it.
    #[must_use]
    pub fn staging(&self) -> PathBuf {
        self.directory.path().join("staging")
    }

    /// What `forebay fs staged ls` shows of it.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    #[track_caller]
    pub fn staged(&self) -> Vec<Value> {
        let listed = self.fs_staged(&["ls", "--json"], &[&self.root().display().to_string()]).succeeded();
        listed.text().lines().map(|line| serde_json::from_str(line).expect("a staged file as JSON")).collect()
    }

    /// Runs `forebay fs staged VERB MORE` for the staging directory of this mount.
    ///
    /// # Panics
    /// When that takes too long.
    #[must_use]
    #[track_caller]
    pub fn fs_staged(&self, verb: &[&str], more: &[&str]) -> Finished {
        let staging = format!("write.staging_dir={}", self.staging().display());
        finish(forebay(&[]).args(["fs", "staged"]).args(verb).args(["-o", &staging]).args(more), STAGED_WITHIN)
    }

    /// Where its process logs.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// What its processes logged.
    #[must_use]
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Where the process id is written.
    ///
    /// # Panics
    /// When it was not started.
    #[must_use]
    pub fn pid_file(&self) -> PathBuf {
        self.summary["pid_file"].as_str().expect("a summary with the pid file").into()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the mount at {}\n{}", self.root().display(), self.log_text());
        }
        // A keeper may have started another one.
        let serving = || self.served_by().or_else(|| Some(self.pid()).filter(|pid| !program::ended(*pid)));
        if let Some(pid) = self.summary.is_object().then(serving).flatten() {
            program::signal(pid, Signal::CONT);
            program::signal(pid, Signal::TERM);
            let deadline = std::time::Instant::now() + DROP_WITHIN;
            while !program::ended(pid) && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            program::signal(pid, Signal::KILL);
        }
        while is_mounted(&self.root()) && rustix::mount::unmount(self.root(), UnmountFlags::DETACH).is_ok() {}
        if self.summary.is_object() {
            // What a killed process left.
            let _ = std::fs::remove_file(self.pid_file());
            let _ = std::fs::remove_file(self.pid_file().with_extension("json"));
        }
    }
}

/// Whether anything is mounted at `path`, dead or alive.
#[must_use]
pub fn is_mounted(path: &Path) -> bool {
    let table = std::fs::read("/proc/self/mounts").unwrap_or_default();
    let place = |line: &[u8]| line.split(|byte| *byte == b' ').nth(1).map(<[u8]>::to_vec);
    table.split(|byte| *byte == b'\n').any(|line| place(line).as_deref() == Some(path.as_os_str().as_bytes()))
}

/// Kills the process when what is returned is not dropped in time.
fn watch(pid: u32) -> mpsc::Sender<()> {
    let (alive, gone) = mpsc::channel();
    std::thread::spawn(move || {
        if gone.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("the mount of process {pid} was in use for {LIMIT:?}: ending it");
            program::signal(pid, Signal::KILL);
        }
    });
    alive
}
